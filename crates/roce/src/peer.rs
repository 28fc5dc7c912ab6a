//! Peers: the processes at the other end. All queue pairs with one of them share its socket's buffer, and so a congestion window.
//!
//! Reliable connections learn from acknowledgements what has arrived. Nothing tells of datagrams and of unreliable connections; but
//! another adverb echoes *marks*: management datagrams put between the packets now and then. A socket keeps the order, so an echo
//! says that everything before its mark has been taken out of the socket there.

use crate::batch::{Batch, Way};
use crate::endpoint::Endpoint;
use crate::lane::Lane;
use crate::locate::{self, Message, Place};
use crate::lock;
use crate::net::Net;
use crate::route::Route;
use crate::time;
use adverb_core::random;
use adverb_core::reactor::{Readiness, Source};
use adverb_proto::ib::{Feedback, Window};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The most that may be in flight to a peer whose socket is not known: what a buffer of the size that ordinary users get takes.
const USUAL: u32 = 352 << 10;
/// The most that may be in flight to any peer: more only spoils the caches.
pub(crate) const MOST: u32 = 1 << 20;
/// A mark follows when so much has gone out without one.
const MARK_EVERY: u32 = 48 << 10;
/// When nothing is heard for this long a mark is repeated, each time after twice as long, and at last given up.
const REPEAT: Duration = Duration::from_millis(10);
const REPEATS: u32 = 5;

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
            receives: AtomicU32::new(u32::MAX),
            unechoed: AtomicU32::new(0),
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

/// See the module. Its locks are held for an instant only.
pub(crate) struct Peer {
    port: u16,
    /// Whether it echoes marks.
    echoes: AtomicBool,
    /// What the receives that its programs have posted can take of unreliable messages in flight.
    receives: AtomicU32,
    /// The cost of unreliable messages that no echo has told of: what may yet take such receives.
    unechoed: AtomicU32,
    marks: Mutex<Marks>,
    pub(crate) window: Mutex<Window>,
    /// Queue pairs that wait for room in the window.
    waiting: Mutex<Vec<Arc<Endpoint>>>,
    is_waited_for: AtomicBool,
}

/// What has been sent without the peer's acknowledging it by itself.
#[derive(Default)]
struct Marks {
    next: u64,
    /// Sent since the last mark.
    unmarked: u32,
    /// Marks that have not come back, the cost of what is before each, and when it left.
    outstanding: VecDeque<(u64, u32, Duration)>,
    repeats: u32,
    is_timed: bool,
}

impl Marks {
    /// A mark behind what has been sent.
    fn put(&mut self, now: Duration) -> u64 {
        let mark = self.next;
        self.next = self.next.wrapping_add(1);
        let cost = std::mem::take(&mut self.unmarked);
        self.outstanding.push_back((mark, cost, now));
        mark
    }
}

impl Peer {
    /// Where it lives shows whether it is one of us, which echoes marks, and what its socket takes.
    pub(crate) fn learn_place(&self, place: Place) {
        let Some(room) = place.room else { return };
        self.echoes.store(true, Ordering::Relaxed);
        if room > 0 {
            lock(&self.window).set_limit(room.min(MOST));
        }
    }

    /// What unreliable packets may be in flight to it now; all there is where nobody echoes.
    pub(crate) fn unreliable_room(&self) -> u32 {
        if self.echoes.load(Ordering::Relaxed) { self.room_in(&lock(&self.window)) } else { u32::MAX }
    }

    fn room_in(&self, window: &Window) -> u32 {
        let receives = self.receives.load(Ordering::Relaxed);
        window.room().min(receives.saturating_sub(self.unechoed.load(Ordering::Relaxed)))
    }

    /// Unreliable packets of this cost have been put into a batch, along `way`: the mark that is due follows them.
    pub(crate) fn charge(&self, net: &Net, batch: &mut Batch, way: &Way, cost: u32, now: Duration) {
        let Some(mark) = self.mark_after(cost, now) else { return };
        if batch.has_room() {
            let packet = net.gsi.packet(&locate::mark(mark, self.port));
            let _ = batch.add(way, &packet, 0, |_| Ok::<(), ()>(()));
        }
    }

    /// Accounts for unreliable packets. Returns the mark that is to follow them, if one is due.
    fn mark_after(&self, cost: u32, now: Duration) -> Option<u64> {
        if cost == 0 || !self.echoes.load(Ordering::Relaxed) {
            return None;
        }
        self.unechoed.fetch_add(cost, Ordering::Relaxed);
        let room = {
            let mut window = lock(&self.window);
            window.sent(cost);
            self.room_in(&window)
        };
        let mut marks = lock(&self.marks);
        marks.unmarked += cost;
        (marks.unmarked >= MARK_EVERY || room == 0).then(|| marks.put(now))
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
        // Reliable connections bring their acknowledgements; what else takes up room needs an echo.
        let mut marks = lock(&self.marks);
        if marks.is_timed || marks.unmarked == 0 && marks.outstanding.is_empty() {
            return;
        }
        marks.is_timed = true;
        marks.repeats = 0;
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
        let mut feedback = Feedback::default();
        {
            let mut marks = lock(&self.marks);
            // Only what has been sent comes back; each covers all before it.
            if !marks.outstanding.iter().any(|(known, ..)| *known == mark) {
                return;
            }
            while let Some((known, cost, sent)) = marks.outstanding.pop_front() {
                feedback.acknowledged += cost;
                if known == mark {
                    feedback.round_trip = Some(now.saturating_sub(sent));
                    break;
                }
            }
            marks.repeats = 0;
        }
        self.unechoed.fetch_sub(feedback.acknowledged, Ordering::Relaxed);
        self.receives.store(if echo.room == 0 { u32::MAX } else { echo.room }, Ordering::Relaxed);
        lock(&self.window).learn(&feedback, now);
        self.wake_all();
    }

    /// Whatever is outstanding counts as gone.
    fn give_up(&self) {
        let mut gone = 0;
        {
            let mut marks = lock(&self.marks);
            marks.is_timed = false;
            self.receives.store(u32::MAX, Ordering::Relaxed);
            gone += std::mem::take(&mut marks.unmarked);
            gone += marks.outstanding.drain(..).map(|(_, cost, _)| cost).sum::<u32>();
        }
        self.unechoed.fetch_sub(gone, Ordering::Relaxed);
        lock(&self.window).released(gone);
        self.wake_all();
    }

    fn wake_all(&self) {
        let mut ready = Vec::new();
        self.wake(&mut ready);
        ready.iter().for_each(|endpoint| endpoint.ring());
    }

    /// Those who waited, if there is room now.
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

/// Repeats a mark that has not come back while somebody waits.
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
            let idle = marks.unmarked == 0 && marks.outstanding.is_empty();
            if idle || !peer.is_waited_for.load(Ordering::SeqCst) {
                marks.is_timed = false;
                return;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reliable messages share the window, but take no receives of unreliable queue pairs: a long write must not keep datagrams waiting.
    #[test]
    fn receives_are_for_unreliable_messages_alone() {
        const COST: u32 = 1000;
        let peer = Peers::default().of(IpAddr::from([127, 0, 0, 1]), 9);
        peer.learn_place(Place { port: 9, room: Some(MOST), host: 0 });
        peer.receives.store(2 * COST, Ordering::Relaxed);
        lock(&peer.window).sent(4 * COST);
        assert_eq!(peer.unreliable_room(), 2 * COST);
        assert_eq!(peer.mark_after(COST, Duration::ZERO), None);
        assert_eq!(peer.unreliable_room(), COST);
        let mark = peer.mark_after(COST, Duration::ZERO);
        assert!(mark.is_some(), "the last that may go asks how far it is");
        assert_eq!(peer.unreliable_room(), 0);
        peer.give_up();
        assert_eq!(peer.unreliable_room(), lock(&peer.window).room());
        assert_eq!(lock(&peer.window).in_flight(), 4 * COST);
    }
}
