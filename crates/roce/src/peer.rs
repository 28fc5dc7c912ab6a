//! Peers: the processes at the other end. All queue pairs with one of them share its socket's buffer, and so
//! a congestion window.
//!
//! Reliable connections learn from acknowledgements which packets have arrived. Nothing tells of datagrams
//! and of unreliable connections; but another adverb echoes *marks*: management datagrams put between the
//! packets now and then. A socket keeps the order, so an echo says that everything before its mark has been
//! taken out of the socket there.

use crate::batch::{Batch, PacketRoute};
use crate::endpoint::Endpoint;
use crate::lane::Lane;
use crate::locate::{self, Message, Place};
use crate::lock;
use crate::net::Net;
use crate::pace::MESSAGE_TIMEOUT;
use crate::route::Route;
use crate::time;
use adverb_core::random;
use adverb_core::reactor::{Readiness, Source};
use adverb_proto::ib::{Feedback, Window};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The most that may be in flight to a peer whose socket is not known: as much as a buffer of the size that
/// ordinary users get takes.
const USUAL: u32 = 352 << 10;
/// The most that may be in flight to any peer: more only spoils the caches.
pub(crate) const MOST: u32 = 1 << 20;
/// A mark follows when so much has gone out without one.
const MARK_EVERY: u32 = 48 << 10;
/// When nothing is heard for this long a mark is repeated, each time after twice as long, and at last given
/// up.
const REPEAT: Duration = Duration::from_millis(10);
/// How many times a mark is repeated. The waits are 0.6 s together.
/// In tests they are 40 s, since a busy machine may keep a single thread from its processors for longer.
const REPEATS: u32 = if cfg!(test) { 11 } else { 5 };

/// The peers that queue pairs are connected to, by address and UDP port. Thread-safe.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<(IpAddr, u16), Weak<Peer>>>);

impl Peers {
    /// The peer behind an address and port.
    pub(crate) fn of(&self, address: IpAddr, port: u16) -> Arc<Peer> {
        let mut peers = lock(&self.0);
        if let Some(peer) = peers.get(&(address, port)).and_then(Weak::upgrade) {
            return peer;
        }
        if peers.len() >= 64 && peers.len().is_power_of_two() {
            peers.retain(|_, peer| peer.strong_count() > 0);
        }
        let peer = Arc::new(Peer {
            port,
            echoes: AtomicBool::new(false),
            credit: Credit::default(),
            marks: Mutex::new(Marks { next: random::word(), ..Marks::default() }),
            window: Mutex::new(Window::new(USUAL)),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
        });
        peers.insert((address, port), Arc::downgrade(&peer));
        peer
    }

    /// A mark has come back from `address`.
    pub(crate) fn echoed(&self, address: IpAddr, echo: &Message) {
        let peer = lock(&self.0).get(&(address, echo.port)).and_then(Weak::upgrade);
        if let Some(peer) = peer {
            peer.echoed(echo);
        }
    }
}

/// A peer: a process at the other end, and the congestion window of all queue pairs that send to it. Its
/// locks are held for an instant only.
pub(crate) struct Peer {
    port: u16,
    /// Whether the peer echoes marks.
    echoes: AtomicBool,
    credit: Credit,
    marks: Mutex<Marks>,
    pub(crate) window: Mutex<Window>,
    /// Queue pairs that wait for room in the window.
    waiting: Mutex<Vec<Arc<Endpoint>>>,
    is_waited_for: AtomicBool,
}

/// Totals of the messages that unreliable queue pairs have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentTotals {
    /// The part of the window that these messages take.
    pub(crate) cost: u32,
    /// Messages that take their receive with it, of those that [`Peer::begin`] has admitted.
    pub(crate) begun: u32,
}

impl SentTotals {
    fn add(&mut self, more: SentTotals) {
        self.cost += more.cost;
        self.begun += more.begun;
    }
}

/// The marks sent, behind packets of which the peer's own acknowledgements do not tell.
#[derive(Default)]
struct Marks {
    next: u64,
    /// Sent since the last mark.
    unmarked: SentTotals,
    /// Marks that have not come back, each with the totals before it and the time when it left.
    outstanding: VecDeque<(u64, SentTotals, Duration)>,
    /// The last one that has come back.
    echoed: Option<u64>,
    repeats: u32,
    is_timed: bool,
    /// When a thread began to wait, or an echo last allowed messages to begin.
    hoped: Duration,
}

impl Marks {
    /// A mark behind the packets sent so far.
    fn put(&mut self, now: Duration) -> u64 {
        let mark = self.next;
        self.next = self.next.wrapping_add(1);
        let sent = std::mem::take(&mut self.unmarked);
        self.outstanding.push_back((mark, sent, now));
        mark
    }

    /// A timer is being set.
    fn begin_to_repeat(&mut self) {
        self.is_timed = true;
        self.repeats = 0;
        self.hoped = time::now();
    }

    fn is_empty(&self) -> bool {
        self.unmarked == SentTotals::default() && self.outstanding.is_empty()
    }
}

impl Peer {
    /// The peer's queue pair has been located. The answer shows whether the peer is an adverb, which echoes
    /// marks, and how much its socket takes.
    pub(crate) fn learn_place(&self, place: Place) {
        let Some(room) = place.room else { return };
        self.echoes.store(true, Ordering::Relaxed);
        if room > 0 {
            lock(&self.window).set_limit(room.min(MOST));
        }
    }

    /// Bytes of unreliable packets that may be in flight to it now; no limit where the peer does not echo.
    pub(crate) fn unreliable_room(&self) -> u32 {
        if self.echoes.load(Ordering::Relaxed) { lock(&self.window).room() } else { u32::MAX }
    }

    /// Whether the packet by which an unreliable message takes its receive may leave. Then it counts as
    /// begun: [`Peer::charge`] follows, or [`Peer::not_begun`].
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        self.credit.begin()
    }

    /// Takes note that a message which might have begun has not.
    #[cold]
    pub(crate) fn not_begun(self: &Arc<Self>, endpoint: &Endpoint, route: Route) {
        self.credit.forget(1);
        // Another queue pair may have found that there was no receive left for it, and nothing is on its way
        // that would tell it more. With the marks' lock: a thread that waits looks at the credit behind it.
        let mut marks = lock(&self.marks);
        if self.is_waited_for.load(Ordering::SeqCst) && !marks.is_timed {
            marks.begin_to_repeat();
            drop(marks);
            self.time(&endpoint.net, &endpoint.lane, route, REPEAT);
        }
    }

    /// Whether one might begin now.
    pub(crate) fn may_begin(&self) -> bool {
        !self.credit.is_spent()
    }

    /// Unreliable packets have been put into a batch, along `packet_route`: the mark that is due follows
    /// them.
    pub(crate) fn charge(
        &self,
        net: &Net,
        batch: &mut Batch,
        packet_route: &PacketRoute,
        sent: SentTotals,
        now: Duration,
    ) {
        let Some(mark) = self.mark_after(sent, now) else { return };
        if batch.has_room() {
            let packet = net.gsi.packet(&locate::mark(mark, self.port));
            let _ = batch.add(packet_route, &packet, 0, |_| Ok::<(), ()>(()));
        }
    }

    /// Accounts for unreliable packets. Returns the mark that is to follow them, if one is due.
    fn mark_after(&self, sent: SentTotals, now: Duration) -> Option<u64> {
        if sent == SentTotals::default() {
            return None;
        }
        if !self.echoes.load(Ordering::Relaxed) {
            self.credit.forget(sent.begun);
            return None;
        }
        let is_full = {
            let mut window = lock(&self.window);
            window.sent(sent.cost);
            window.room() == 0
        };
        let mut marks = lock(&self.marks);
        marks.unmarked.add(sent);
        (marks.unmarked.cost >= MARK_EVERY || is_full || self.credit.is_spent()).then(|| marks.put(now))
    }

    /// A queue pair waits for room. Afterwards look at the window once more: room may have come meanwhile.
    pub(crate) fn wait(self: &Arc<Self>, endpoint: &Endpoint, route: Route) {
        {
            let this = endpoint.this();
            let mut waiting = lock(&self.waiting);
            if !waiting.iter().any(|known| Arc::ptr_eq(known, &this)) {
                waiting.push(this);
            }
            self.is_waited_for.store(true, Ordering::SeqCst);
        }
        // Acknowledgements of reliable connections free their part of the window. The rest needs an echo.
        let mut marks = lock(&self.marks);
        if marks.is_timed || marks.is_empty() && !self.credit.is_spent() {
            return;
        }
        marks.begin_to_repeat();
        drop(marks);
        self.time(&endpoint.net, &endpoint.lane, route, REPEAT);
    }

    fn time(self: &Arc<Self>, net: &Arc<Net>, lane: &Arc<Lane>, route: Route, after: Duration) {
        let again = Arc::new(Again { net: net.clone(), lane: lane.clone(), peer: self.clone(), route });
        let set = net.engine().is_ok_and(|engine| engine.reactor.set_timer(after, again).is_ok());
        if !set {
            self.give_up();
        }
    }

    fn echoed(&self, echo: &Message) {
        let mark = echo.transaction;
        let now = time::now();
        let mut arrived = SentTotals::default();
        let mut feedback = Feedback::default();
        {
            let mut marks = lock(&self.marks);
            // Only marks that were sent are believed; each covers all before it. The last one may come once
            // more, when there are receives again.
            let is_outstanding = marks.outstanding.iter().any(|(known, ..)| *known == mark);
            if !is_outstanding && marks.echoed != Some(mark) {
                return;
            }
            marks.echoed = Some(mark);
            while is_outstanding && let Some((known, before, left)) = marks.outstanding.pop_front() {
                arrived.add(before);
                if known == mark {
                    feedback.round_trip = Some(now.saturating_sub(left));
                    break;
                }
            }
            if echo.room > 0 {
                (marks.repeats, marks.hoped) = (0, now);
            } else if arrived != SentTotals::default() && now < marks.hoped + MESSAGE_TIMEOUT {
                // It goes on with messages that have begun. But a peer that only says that there are none is
                // not waited for without end.
                marks.repeats = 0;
            }
        }
        feedback.acknowledged = arrived.cost;
        self.credit.learn(arrived.begun, echo.room);
        lock(&self.window).learn(&feedback, now);
        self.wake_all();
    }

    /// All packets that are outstanding count as gone.
    fn give_up(&self) {
        let mut gone = SentTotals::default();
        {
            let mut marks = lock(&self.marks);
            marks.is_timed = false;
            gone.add(std::mem::take(&mut marks.unmarked));
            marks.outstanding.drain(..).for_each(|(_, sent, _)| gone.add(sent));
        }
        self.credit.learn(gone.begun, u32::MAX);
        lock(&self.window).released(gone.cost);
        self.wake_all();
    }

    fn wake_all(&self) {
        let mut ready = Vec::new();
        self.wake(&mut ready);
        ready.iter().for_each(|endpoint| endpoint.ring());
    }

    /// Moves the queue pairs that wait for room in the window to `ready`, if there is room now. The caller
    /// rings them.
    pub(crate) fn wake(&self, ready: &mut Vec<Arc<Endpoint>>) {
        if self.is_waited_for.load(Ordering::SeqCst) && lock(&self.window).room() > 0 {
            let mut waiting = lock(&self.waiting);
            self.is_waited_for.store(false, Ordering::SeqCst);
            ready.append(&mut waiting);
        }
    }

    /// A queue pair is gone.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        lock(&self.waiting).retain(|known| !std::ptr::eq(&**known, endpoint));
    }
}

/// The receives that are left to unreliable messages. A message takes its receive with one packet, of a Send
/// the first and of a Write with immediate data the last. So messages are counted as that packet leaves (they
/// "begin"), and not by their bytes. Of many queue pairs that share a receive queue, each may begin one with
/// a packet. Thread-safe.
struct Credit(AtomicU64);

impl Default for Credit {
    fn default() -> Self {
        Self(AtomicU64::new(Self::both(u32::MAX, 0)))
    }
}

impl Credit {
    /// Two counts in one word, so that no thread sees the one without the other. The first has the receives
    /// at the last echo ([`u32::MAX`]: any number). The second has the messages that have begun since, of
    /// which no echo has told.
    fn both(receives: u32, begun: u32) -> u64 {
        u64::from(receives) << 32 | u64::from(begun)
    }

    fn of(both: u64) -> (u32, u32) {
        ((both >> 32) as u32, both as u32)
    }

    fn now(&self) -> (u32, u32) {
        Self::of(self.0.load(Ordering::Relaxed))
    }

    fn update(&self, mut change: impl FnMut(u32, u32) -> Option<(u32, u32)>) -> bool {
        let change = |both| {
            let (receives, begun) = Self::of(both);
            change(receives, begun).map(|(receives, begun)| Self::both(receives, begun))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    #[inline]
    fn begin(&self) -> bool {
        self.update(|receives, begun| (begun < receives).then(|| (receives, begun + 1)))
    }

    /// Takes note that so many messages have not begun, or that no echo will tell of them.
    fn forget(&self, count: u32) {
        self.update(|receives, begun| Some((receives, begun.saturating_sub(count))));
    }

    /// Takes note that so many messages have arrived or are lost, and that behind them there were so many
    /// receives.
    fn learn(&self, arrived: u32, receives: u32) {
        self.update(|_, begun| Some((receives, begun.saturating_sub(arrived))));
    }

    fn is_spent(&self) -> bool {
        let (receives, begun) = self.now();
        begun >= receives
    }
}

/// Repeats a mark that has not come back while a queue pair waits for it.
struct Again {
    net: Arc<Net>,
    lane: Arc<Lane>,
    peer: Arc<Peer>,
    route: Route,
}

impl Source for Again {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let peer = &self.peer;
        let (mark, repeats) = {
            let mut marks = lock(&peer.marks);
            let idle = marks.is_empty() && !peer.credit.is_spent();
            if idle || !peer.is_waited_for.load(Ordering::SeqCst) {
                marks.is_timed = false;
                drop(marks);
                // A sender that still waits found no receive left when another message was about to begin,
                // which then did not.
                return peer.wake_all();
            }
            marks.repeats += 1;
            (marks.put(time::now()), marks.repeats)
        };
        if repeats > REPEATS {
            return peer.give_up();
        }
        let datagram = locate::mark(mark, peer.port);
        self.net.gsi.send_from(&self.lane, self.route.source, self.route.peer(), &datagram);
        peer.time(&self.net, &self.lane, self.route, REPEAT * (1 << repeats));
    }
}

/// Tries unreliable packets to a peer, and echoes in any order. The counts of packets in flight and of begun
/// messages come down only by echoes of outstanding marks, each once, and nothing is left when the peer is
/// given up.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_effect(bytes: &[u8]) {
    let (address, port) = (IpAddr::from([10, 0, 0, 1]), 9);
    let peers = Peers::default();
    let peer = peers.of(address, port);
    peer.learn_place(Place { port, room: Some(MOST), host: 0 });
    // The totals sent without a mark, and with each outstanding one; the last mark that has come back.
    let (mut unmarked, mut outstanding, mut echoed) = (SentTotals::default(), VecDeque::new(), None);
    for step in bytes.as_chunks::<8>().0 {
        let [choice, which, host, from, rest @ ..] = *step;
        let word = u32::from_le_bytes(rest);
        let before = (lock(&peer.window).room(), peer.credit.now(), outstanding.len());
        match choice & 3 {
            0 | 1 => {
                let begun = u32::from(choice & 4 != 0 && peer.begin());
                let sent = SentTotals { cost: word & 0xffff, begun };
                let mark = peer.mark_after(sent, Duration::ZERO);
                unmarked.add(sent);
                if let Some(mark) = mark {
                    outstanding.push_back((mark, std::mem::take(&mut unmarked)));
                }
            }
            2 => {
                // Ours, as often as not.
                let own = outstanding.get(usize::from(which) % outstanding.len().max(1));
                let mark = own.map_or(word.into(), |(mark, _)| mark ^ u64::from(choice >> 6 == 3));
                let is_other = host & 7 == 0 || from & 7 == 0;
                let address = if host & 7 == 0 { IpAddr::from([10, 0, 0, 2]) } else { address };
                let port = if from & 7 == 0 { port + 1 } else { port };
                peers.echoed(address, &locate::echo_of(mark, port, word >> 8));
                let place = outstanding.iter().position(|(known, _)| *known == mark).filter(|_| !is_other);
                if let Some(place) = place {
                    outstanding.drain(..=place);
                    echoed = Some(mark);
                    assert_eq!(peer.credit.now().0, word >> 8, "it says how many receives there are");
                } else if is_other || echoed != Some(mark) {
                    let after = (lock(&peer.window).room(), peer.credit.now(), outstanding.len());
                    assert_eq!(after, before, "nobody has sent this mark");
                }
            }
            _ if choice & 0xf0 == 0 => {
                peer.give_up();
                unmarked = SentTotals::default();
                outstanding.clear();
            }
            _ => {}
        }
        let mut all = unmarked;
        outstanding.iter().for_each(|(_, sent)| all.add(*sent));
        assert_eq!(lock(&peer.window).in_flight(), all.cost);
        assert_eq!(peer.credit.now().1, all.begun);
        let marks = lock(&peer.marks);
        assert!(marks.outstanding.iter().map(|(mark, ..)| mark).eq(outstanding.iter().map(|(mark, _)| mark)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SentTotals = SentTotals { cost: 1000, begun: 1 };
    const REST: SentTotals = SentTotals { cost: 1000, begun: 0 };

    fn peer(receives: u32) -> Arc<Peer> {
        let peer = Peers::default().of(IpAddr::from([127, 0, 0, 1]), 9);
        peer.learn_place(Place { port: 9, room: Some(MOST), host: 0 });
        peer.credit.learn(0, receives);
        peer
    }

    /// Reliable messages share the window, but take no receives of unreliable queue pairs: a long write must
    /// not keep datagrams waiting.
    #[test]
    fn receives_are_for_unreliable_messages_alone() {
        let peer = peer(2);
        lock(&peer.window).sent(4 * ONE.cost);
        assert!(peer.begin());
        assert_eq!(peer.mark_after(ONE, Duration::ZERO), None);
        assert!(peer.begin());
        let mark = peer.mark_after(ONE, Duration::ZERO);
        assert!(mark.is_some(), "the last that may go asks how far it is");
        assert!(!peer.begin() && peer.unreliable_room() > 0);
        peer.give_up();
        assert!(peer.begin());
        assert_eq!(lock(&peer.window).in_flight(), 4 * ONE.cost);
    }

    /// The first packet of a message takes a receive, and the others none, however many queue pairs there
    /// are.
    #[test]
    fn messages_that_have_begun_are_counted_and_not_their_packets() {
        let peer = peer(3);
        for _ in 0..3 {
            assert!(peer.begin());
        }
        assert!(peer.mark_after(SentTotals { cost: 3, begun: 3 }, Duration::ZERO).is_some());
        let mark = peer.mark_after(REST, Duration::ZERO).expect("how many receives there are is asked again");
        assert!(!peer.begin(), "each queue pair goes on with its message, but begins none");
        // One of four receives was posted since; the first mark is told of with the second.
        peer.echoed(&locate::echo_of(mark, 9, 0));
        assert!(!peer.begin(), "there is none before the messages are complete");
        peer.echoed(&locate::echo_of(mark, 9, 1));
        assert!(peer.begin() && !peer.begin());
        peer.credit.forget(1);
        assert!(peer.may_begin() && peer.credit.now() == (1, 0));
        peer.echoed(&locate::echo_of(mark.wrapping_sub(1), 9, 7));
        assert_eq!(peer.credit.now(), (1, 0), "what is late says nothing");
    }

    /// Long messages are under way, each mark tells of another part of them, and there is no receive before
    /// they are complete.
    #[test]
    fn a_peer_that_has_no_receives_is_waited_for_as_long_as_more_arrives() {
        let peer = peer(1);
        assert!(peer.begin());
        let first = peer.mark_after(ONE, Duration::ZERO).unwrap();
        let second = peer.mark_after(REST, Duration::ZERO).unwrap();
        let repeats_after = |mark| {
            lock(&peer.marks).begin_to_repeat();
            lock(&peer.marks).repeats = REPEATS;
            peer.echoed(&locate::echo_of(mark, 9, 0));
            lock(&peer.marks).repeats
        };
        assert_eq!(repeats_after(first), 0);
        assert_eq!(repeats_after(second), 0);
        assert_eq!(repeats_after(second), REPEATS, "the same once more");
        let repeated = lock(&peer.marks).put(Duration::ZERO);
        assert_eq!(repeats_after(repeated), REPEATS, "nothing has arrived with it");
        assert!(!peer.begin());
    }

    /// Writes that take no receive go on without end, and each mark tells of some.
    #[test]
    fn a_peer_that_only_says_that_there_are_no_receives_is_given_up() {
        let peer = peer(0);
        let mark = peer.mark_after(REST, Duration::ZERO).unwrap();
        lock(&peer.marks).repeats = REPEATS;
        lock(&peer.marks).hoped = time::now().saturating_sub(MESSAGE_TIMEOUT);
        peer.echoed(&locate::echo_of(mark, 9, 0));
        assert_eq!(lock(&peer.marks).repeats, REPEATS);
    }

    #[test]
    fn nobody_counts_for_a_peer_that_tells_nothing() {
        let peer = Peers::default().of(IpAddr::from([127, 0, 0, 1]), 9);
        assert!(peer.begin() && peer.begin());
        assert_eq!(peer.mark_after(SentTotals { cost: 2, begun: 2 }, Duration::ZERO), None);
        assert_eq!(peer.credit.now(), (u32::MAX, 0));
    }
}
