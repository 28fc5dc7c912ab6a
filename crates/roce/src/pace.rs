//! The pace of unreliable senders.
//!
//! A message that finds no receive is lost on an unreliable queue pair, and its sender does not learn it. The
//! standard allows that. But a sender on the same processors can use up all receives while the receiving
//! program has no processor: the background thread takes messages in meanwhile. So where fewer receives are
//! left than messages may have begun on their way, the echo of a mark ([`crate::peer`]) says how many there
//! are, and it waits while most of them are gone and the program is still at work on what it got. The sender
//! counts the messages that it has begun, each of which takes a receive with one packet: of a Send the first,
//! of a Write with immediate data the last. Where none is left, and the program can post none before messages
//! that have begun are complete, the echo says so, for those go on; another one follows when there are
//! receives.

mod held;

use crate::endpoint::Endpoint;
use crate::locate::{Mark, echo};
use crate::lock;
use crate::net::Net;
use crate::peer::MOST;
use crate::time;
use adverb_core::reactor::{Readiness, Source};
use held::{HeldMark, HeldMarks};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A program that has not polled for this time no longer stops senders, until it polls again. Time in which
/// no thread of its process gets a processor does not count: it could not have polled. Where looks are far
/// apart, that is long; a sender without an answer goes on by itself before.
///
/// Tests run where a single thread may be kept from its processors for longer.
const PROGRAM_TIMEOUT: Duration =
    if cfg!(test) { Duration::from_secs(40) } else { Duration::from_millis(200) };
/// A program may need the end of a message before it can post a receive. It is waited for while packets of
/// that message keep coming, but no longer than this: the peer may send them as slowly as it likes.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the background thread looks whether programs have caught up; polls look by themselves.
const LOOK: Duration = Duration::from_millis(1);
/// The queue pairs that are short of receives, and the marks that wait for them. Thread-safe.
#[derive(Default)]
pub(crate) struct Pace {
    /// Some are short of receives.
    is_short: AtomicBool,
    /// Marks wait.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    short: Vec<Short>,
    held: HeldMarks,
    is_timed: bool,
    own: OwnTime,
}

/// A clock that stands while the process is kept from its processors, as far as the looks show.
#[derive(Default)]
struct OwnTime {
    passed: Duration,
    last: Duration,
}

impl OwnTime {
    /// What has passed, at a look. Two looks are little apart, unless nobody could look, or had reason to.
    fn at(&mut self, now: Duration) -> Duration {
        self.passed += now.saturating_sub(self.last).min(LOOK * 2);
        self.last = self.last.max(now);
        self.passed
    }
}

/// A queue pair that is short of receives.
struct Short {
    endpoint: Weak<Endpoint>,
    /// What the packet by which each of its messages takes its receive takes of a window.
    cost: u32,
    /// The most receives that it was seen to have.
    most: u32,
    wait: Wait,
}

/// For how long a program is waited for, in the process's own time.
struct Wait {
    /// When the program was last seen to keep up.
    kept_up: Duration,
    /// When the program last kept up, or packets of a message that it needs had come.
    moved: Duration,
    /// Packets of messages that had come by then.
    packets: u64,
}

impl Wait {
    fn new(now: Duration, packets: u64) -> Self {
        Self { kept_up: now, moved: now, packets }
    }

    /// The program needs a message of which so many packets have come.
    fn come(&mut self, now: Duration, packets: u64) {
        if packets != self.packets && now < self.kept_up + MESSAGE_TIMEOUT {
            (self.moved, self.packets) = (now, packets);
        }
    }

    fn is_over(&self, now: Duration) -> bool {
        now >= self.moved + PROGRAM_TIMEOUT
    }
}

/// The receives that are left, if they are fewer than what may be in flight takes: where queue pairs share
/// them, each message may be another one's, and its first packet all that is there of it.
fn shortage(endpoint: &Endpoint, cost: u32) -> Option<u32> {
    let left = u32::try_from(endpoint.queues.receives_left()).unwrap_or(u32::MAX);
    (left.saturating_mul(cost) < endpoint.lane.socket.takes().min(MOST)).then_some(left)
}

impl Short {
    /// Looks again. False once there is no shortage any more; `receives` become no more than there are here,
    /// and `None` while its program is to be waited for.
    fn look(&mut self, now: Duration, receives: &mut Option<u32>) -> bool {
        let Some(endpoint) = self.endpoint.upgrade() else { return false };
        let Some(left) = shortage(&endpoint, self.cost) else {
            endpoint.is_short.store(false, Ordering::SeqCst);
            return false;
        };
        self.most = self.most.max(left);
        // In this order: what it has not seen as complete is still being received, or was to be seen.
        let (is_receiving, is_exhausted) =
            (endpoint.is_receiving.load(Ordering::SeqCst), endpoint.queues.receive_cq.is_exhausted());
        let waits_for_message = left == 0 && is_exhausted && is_receiving;
        let keeps_up =
            if left == 0 { is_exhausted && !is_receiving } else { is_exhausted || left * 2 >= self.most };
        let packets = endpoint.message_packets.load(Ordering::Relaxed);
        if keeps_up {
            self.wait = Wait::new(now, packets);
        } else if waits_for_message {
            self.wait.come(now, packets);
        }
        let is_waited_for = !keeps_up && !self.wait.is_over(now);
        if is_waited_for && !waits_for_message {
            *receives = None;
        } else if is_waited_for || left > 0 {
            *receives = receives.map(|receives| receives.min(left));
        }
        true
    }
}

impl State {
    /// How many messages unreliable senders may begin; `None` while somebody is to be waited for.
    fn receives(&mut self) -> Option<u32> {
        let now = self.own.at(time::now());
        let mut receives = Some(u32::MAX);
        self.short.retain_mut(|short| short.look(now, &mut receives));
        receives
    }

    /// The background thread looks in a moment.
    fn be_timed(&mut self, net: &Arc<Net>) {
        if !self.is_timed {
            let look = Arc::new(Look(net.clone()));
            self.is_timed = net.engine().is_ok_and(|engine| engine.reactor.set_timer(LOOK, look).is_ok());
        }
    }
}

impl Pace {
    /// An unreliable message has taken a receive, by a packet of this cost.
    #[inline]
    pub(crate) fn took_receive(&self, endpoint: &Endpoint, cost: u32, now: Duration) {
        if let Some(left) = shortage(endpoint, cost)
            && !endpoint.is_short.swap(true, Ordering::SeqCst)
        {
            let packets = endpoint.message_packets.load(Ordering::Relaxed);
            let (endpoint, most) = (endpoint.weak(), left + 1);
            let mut state = lock(&self.state);
            let wait = Wait::new(state.own.at(now), packets);
            state.short.push(Short { endpoint, cost, most, wait });
            self.is_short.store(true, Ordering::SeqCst);
        }
    }

    /// A mark has come. Returns how many messages the echo is to allow ([`u32::MAX`]: any number); `None` if
    /// it has to wait: then it is sent later, as is another one where it allows none.
    pub(crate) fn allow(&self, net: &Arc<Net>, mark: Mark) -> Option<u32> {
        if !self.is_short.load(Ordering::SeqCst) {
            return Some(u32::MAX);
        }
        let mut state = lock(&self.state);
        let receives = state.receives();
        self.is_short.store(!state.short.is_empty(), Ordering::SeqCst);
        if receives.is_some_and(|receives| receives > 0) {
            return receives;
        }
        let gone = state.held.hold(HeldMark { mark, is_told: receives.is_some() });
        self.is_on.store(true, Ordering::SeqCst);
        state.be_timed(net);
        drop(state);
        if let Some(gone) = gone {
            echo(net, gone, u32::MAX);
        }
        receives
    }

    /// A poll has found nothing: its program may have caught up.
    #[inline]
    pub(crate) fn polled(&self, net: &Net) {
        if self.is_on.load(Ordering::Relaxed) {
            self.look(net);
        }
    }

    /// Echoes the marks that wait, if everybody has caught up. Returns whether any still wait.
    fn look(&self, net: &Net) -> bool {
        let mut state = lock(&self.state);
        if state.held.is_empty() {
            return false;
        }
        let Some(receives) = state.receives() else { return true };
        if receives == 0 {
            let news = state.held.tell();
            drop(state);
            news.into_iter().for_each(|mark| echo(net, mark, 0));
            return true;
        }
        let held = state.held.take();
        self.is_on.store(false, Ordering::SeqCst);
        drop(state);
        held.for_each(|mark| echo(net, mark, receives));
        false
    }
}

/// The background thread's look.
struct Look(Arc<Net>);

impl Source for Look {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Look(net) = &*self;
        lock(&net.pace.state).is_timed = false;
        if net.pace.look(net) {
            lock(&net.pace.state).be_timed(net);
        }
    }
}

#[cfg(test)]
mod tests;
