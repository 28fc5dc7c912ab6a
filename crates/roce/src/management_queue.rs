//! Management datagrams that have come, until the background thread handles them.
//!
//! The handler of a datagram can make queue pairs ready or end them, connect to other processes, and answer.
//! That takes more of the stack than a program's thread may have (`PTHREAD_STACK_MIN`), and more time than a
//! poll should take. So a thread of the program checks what it receives, handles marks and their echoes
//! itself, and queues the rest.

use crate::gsi::{Gsi, MadSource};
use crate::handover::OwnedArrival;
use crate::locate;
use crate::lock;
use crate::net::Net;
use adverb_core::helpers;
use adverb_core::reactor::{Readiness, Source};
use adverb_wire::ib::mad::MAD_LEN;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most datagrams that wait. Peers repeat most of those that find no room.
const MOST: usize = 1024;

/// A datagram whose CRC and Q_Key are right.
type CheckedDatagram = ([u8; MAD_LEN], MadSource);

/// Management datagrams in the order of their arrival. Thread-safe.
#[derive(Default)]
pub(crate) struct ManagementQueue(Mutex<VecDeque<CheckedDatagram>>);

impl ManagementQueue {
    /// Adds what has come, as far as there is room. Returns how many there was room for.
    fn add(&self, datagrams: Vec<CheckedDatagram>) -> usize {
        let mut waiting = lock(&self.0);
        let kept = datagrams.len().min(MOST.saturating_sub(waiting.len()));
        waiting.extend(datagrams.into_iter().take(kept));
        kept
    }

    fn next(&self) -> Option<CheckedDatagram> {
        lock(&self.0).pop_front()
    }
}

impl Net {
    /// Takes management datagrams that have come, with no lock held. A thread of the engine's handles them
    /// before this returns. A thread of the program handles marks and their echoes, for which unreliable
    /// senders wait; the background thread handles the others soon.
    pub(crate) fn manage(&self, datagrams: Vec<OwnedArrival>) {
        let datagrams = self.check(datagrams);
        if helpers::is_helper() {
            self.queue_management(datagrams);
            return self.handle_management();
        }
        let (marks, others): (Vec<_>, Vec<_>) =
            datagrams.into_iter().partition(|(mad, _)| locate::is_mark(mad));
        for (mad, source) in &marks {
            self.gsi.deliver(mad, *source);
        }
        self.handle_soon(others);
    }

    /// Has the background thread handle management datagrams soon.
    pub(crate) fn manage_later(&self, datagrams: Vec<OwnedArrival>) {
        self.handle_soon(self.check(datagrams));
    }

    fn check(&self, datagrams: Vec<OwnedArrival>) -> Vec<CheckedDatagram> {
        let count = datagrams.len();
        let checked =
            |datagram: OwnedArrival| Gsi::check(&datagram.arrival()).map(|(mad, source)| (*mad, source));
        let good: Vec<_> = datagrams.into_iter().filter_map(checked).collect();
        if good.len() < count {
            self.counters().damaged.add((count - good.len()) as u64);
        }
        good
    }

    fn handle_soon(&self, datagrams: Vec<CheckedDatagram>) {
        if !self.queue_management(datagrams) {
            return;
        }
        let handler = Arc::new(Handler(self.this()));
        let told = self.engine().and_then(|engine| engine.reactor.set_timer(Duration::ZERO, handler));
        if told.is_err() {
            // Without a background thread they are lost, as the network may lose them.
            lock(&self.management_queue.0).clear();
        }
    }

    /// Returns whether there was room for any.
    fn queue_management(&self, datagrams: Vec<CheckedDatagram>) -> bool {
        let count = datagrams.len();
        let kept = self.management_queue.add(datagrams);
        if kept < count {
            self.counters().dropped.add((count - kept) as u64);
        }
        kept > 0
    }

    /// Handles the datagrams that wait now, and leaves later ones to the thread that queues them. A handler
    /// may receive more datagrams, and handles these first.
    pub(crate) fn handle_management(&self) {
        let waiting = lock(&self.management_queue.0).len();
        for (mad, source) in (0..waiting).map_while(|_| self.management_queue.next()) {
            self.gsi.deliver(&mad, source);
        }
    }
}

/// The background thread's call to the queue.
struct Handler(Arc<Net>);

impl Source for Handler {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.handle_management();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gsi::MadHandler;
    use crate::handover_queue::tests::{arrival, sealed};
    use adverb_wire::ib::mad::class;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Tells the first byte behind a datagram's header, and the name of the thread that handles the datagram.
    struct Witness(Mutex<Sender<Handling>>);
    type Handling = (u8, Option<String>);

    impl MadHandler for Witness {
        fn mad(&self, mad: &[u8; MAD_LEN], _: MadSource) {
            let thread = std::thread::current().name().map(str::to_owned);
            lock(&self.0).send((mad[24], thread)).unwrap();
        }
    }

    /// A process's state of its own, since the background thread may still look at the queue of another test.
    /// Datagrams of the class are witnessed.
    fn net(class: u8) -> (Arc<Net>, Receiver<Handling>) {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let (tell, told) = mpsc::channel();
        net.gsi.set_handler(class, Arc::new(Witness(Mutex::new(tell))));
        (net, told)
    }

    fn numbered(net: &Net, number: u8) -> OwnedArrival {
        let mut mad = [0; MAD_LEN];
        (mad[1], mad[24]) = (class::COMMUNICATION, number);
        OwnedArrival::of(&arrival(&sealed(net.gsi.packet(&mad).to_vec())))
    }

    #[test]
    fn datagrams_that_the_program_receives_are_handled_by_the_background_thread_in_their_order() {
        let (net, told) = net(class::COMMUNICATION);
        net.manage(vec![numbered(&net, 0), numbered(&net, 1)]);
        net.manage(vec![numbered(&net, 2)]);
        for number in 0..3 {
            assert_eq!(told.recv().unwrap(), (number, Some("adverb".to_owned())));
        }
    }

    #[test]
    fn a_thread_of_the_engine_handles_what_it_receives_before_it_goes_on() {
        let (net, told) = net(class::COMMUNICATION);
        let helper = adverb_core::engine::engine().unwrap().reactor.helpers.enter();
        net.manage(vec![numbered(&net, 3)]);
        assert_eq!(told.try_recv().map(|(number, _)| number), Ok(3));
        drop(helper);
    }

    /// An unreliable sender goes on when its mark comes back: that does not wait for another thread.
    #[test]
    fn a_thread_of_the_program_handles_marks_itself() {
        let (net, told) = net(locate::CLASS);
        net.manage(vec![OwnedArrival::of(&arrival(&sealed(net.gsi.packet(&locate::mark(1, 7)).to_vec())))]);
        let (_, thread) = told.try_recv().expect("it is handled by now");
        assert_eq!(thread.as_deref(), std::thread::current().name());
    }

    #[test]
    fn so_many_wait_at_most() {
        let queue = ManagementQueue::default();
        let source = MadSource::between((Ipv4Addr::LOCALHOST, 4791).into(), Ipv4Addr::LOCALHOST.into(), 7);
        let some = |count| vec![([0; MAD_LEN], source); count];
        assert_eq!((queue.add(some(MOST - 1)), queue.add(some(3)), queue.add(some(1))), (MOST - 1, 1, 0));
    }
}
