//! Shared receive queues.

use super::fixture::{Home, Memory, Pair, QKEY, Shape, Site, completion, path, signalled};
use crate::cq::{CompletionChannel, CompletionQueue};
use crate::error::PostError;
use crate::event::AsyncEventKind;
use crate::qp::{AttributeMask, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State};
use crate::request::{Data, Datagram, Opcode, ReceiveRequest, SendRequest, Status};
use crate::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};
use std::collections::HashSet;

/// Messages of several connections take the receives of one queue, oldest first, and complete where their
/// queue pair completes.
// IB-SRQ-1, IB-SRQ-3, IB-SRQ-11
pub fn a_shared_receive_queue_feeds_all(site: &Site) {
    const PAIRS: usize = 3;
    const EACH: usize = 40;
    const LENGTH: usize = 100;
    let home = Home::sharing(site, 16);
    let srq = home.srq.clone().unwrap();
    let pairs: Vec<_> = (0..PAIRS).map(|_| Pair::to_home(site, Shape::default(), &home)).collect();
    let slots = srq.attributes().max_wr as usize;
    let memory = Memory::open(&home.domain, slots * LENGTH);
    let post = |slot: usize| {
        let sges = [memory.sge(slot * LENGTH, LENGTH)];
        srq.post_receive(&ReceiveRequest { wr_id: slot as u64, sges: &sges })
    };
    for slot in 0..slots {
        post(slot).unwrap();
    }
    assert_eq!(post(0), Err(PostError::QueueFull));
    let from: Vec<_> = pairs.iter().map(|pair| Memory::open(&pair.client.domain, LENGTH)).collect();
    let mut seen = HashSet::new();
    for round in 0..EACH {
        for (index, (pair, from)) in pairs.iter().zip(&from).enumerate() {
            let sent = from.fill((round * PAIRS + index) as u64);
            pair.client.post(round as u64, Opcode::Send, &[from.all()], (0, 0));
            pair.client.sent_well(round as u64);
            let done = pair.server.received();
            assert_eq!((done.status, done.byte_length as usize), (Status::Success, LENGTH), "{done:?}");
            assert_eq!(done.queue_pair, pair.server.queue_pair.number());
            let slot = done.wr_id as usize;
            // One message at a time, so the receives come round in the order of their posting.
            assert_eq!(slot, (round * PAIRS + index) % slots);
            assert_eq!(memory.bytes()[slot * LENGTH..][..LENGTH], sent);
            post(slot).unwrap();
            seen.insert((index, slot));
        }
    }
    assert!(seen.len() > slots, "each receive serves all");
    // All at once, from several threads.
    std::thread::scope(|scope| {
        for pair in &pairs {
            scope.spawn(|| {
                for wr_id in 0..EACH as u64 {
                    pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
                    assert_eq!(pair.server.received().status, Status::Success);
                    srq.post_receive(&ReceiveRequest { wr_id: 0, sges: &[] }).unwrap();
                    pair.client.sent_well(wr_id);
                }
            });
        }
    });
}

/// Queue pairs of all services take from one queue.
// IB-SRQ-1, IB-SRQ-3
pub fn a_shared_receive_queue_of_all_services(site: &Site) {
    const HEADER: u32 = 40;
    let home = Home::sharing(site, 8);
    let srq = home.srq.clone().unwrap();
    let memory = Memory::open(&home.domain, 100);
    let pairs = [Service::Uc, Service::Ud, Service::Rc]
        .map(|service| (service, Pair::of(site, service, Shape::default(), &home)));
    let send = |pair: &Pair, service: Service, wr_id: u64| {
        let peer_path = path(&pair.client.context, site.address);
        let queue_pair = pair.server.queue_pair.number();
        let datagram = Datagram { path: &peer_path, queue_pair, qkey: QKEY };
        let data: [&[u8]; 1] = [b"to all!!"];
        let request = SendRequest {
            wr_id,
            data: Data::Inline(&data),
            datagram: (service == Service::Ud).then_some(datagram),
            ..signalled(&[], (0, 0))
        };
        pair.client.queue_pair.post_send(&request).unwrap();
        pair.client.sent_well(wr_id);
    };
    for round in 0..5 {
        for (service, pair) in &pairs {
            srq.post_receive(&ReceiveRequest { wr_id: round, sges: &[memory.all()] }).unwrap();
            send(pair, *service, round);
            let done = pair.server.received_well(round);
            let header = if *service == Service::Ud { HEADER } else { 0 };
            assert_eq!(done.byte_length, header + 8, "{service:?}");
            assert_eq!(memory.bytes()[header as usize..][..8], *b"to all!!", "{service:?}");
        }
    }
}

/// One event when fewer receives wait than the limit says, until it is armed again.
// IB-SRQ-4, IB-SRQ-5, IB-SRQ-10
pub fn a_shared_receive_queue_tells_of_its_limit(site: &Site) {
    let home = Home::sharing(site, 8);
    let srq = home.srq.clone().unwrap();
    srq.set_cookie(99);
    let pair = Pair::to_home(site, Shape::default(), &home);
    let receive = ReceiveRequest { wr_id: 1, sges: &[] };
    let message = || {
        pair.client.post(1, Opcode::Send, &[], (0, 0));
        pair.client.sent_well(1);
        pair.server.received_well(1);
    };
    for _ in 0..5 {
        srq.post_receive(&receive).unwrap();
    }
    srq.modify(None, Some(4)).unwrap();
    assert_eq!(srq.attributes().limit, 4);
    message();
    assert!(!home.context.events().ready(0).unwrap(), "as many wait as the limit says");
    message();
    pair.server.raised(AsyncEventKind::SrqLimitReached, 99);
    assert_eq!(srq.attributes().limit, 0, "it is armed once");
    message();
    assert!(!home.context.events().ready(0).unwrap(), "an event without a limit");
    // Too late is not too late.
    srq.modify(None, Some(3)).unwrap();
    pair.server.raised(AsyncEventKind::SrqLimitReached, 99);
    srq.modify(None, Some(2)).unwrap();
    srq.modify(None, Some(0)).unwrap();
    message();
    message();
    assert!(!home.context.events().ready(0).unwrap(), "it was disarmed");
}

/// A peer that takes more than its share is noticed: an event tells that receives run low, and each
/// completion whose message took one.
// RFC5042-6.4.3.1-1
pub fn a_peer_that_takes_more_than_its_share_of_receives_is_noticed(site: &Site) {
    let home = Home::sharing(site, 8);
    let srq = home.srq.clone().unwrap();
    srq.set_cookie(5);
    let [greedy, modest] = [(); 2].map(|()| Pair::to_home(site, Shape::default(), &home));
    for _ in 0..6 {
        srq.post_receive(&ReceiveRequest { wr_id: 1, sges: &[] }).unwrap();
    }
    srq.modify(None, Some(2)).unwrap();
    let mut taken = [0; 2];
    for pair in [&greedy, &greedy, &modest, &greedy, &greedy] {
        assert!(!home.context.events().ready(0).unwrap(), "enough wait");
        pair.client.post(1, Opcode::Send, &[], (0, 0));
        pair.client.sent_well(1);
        let number = pair.server.received_well(1).queue_pair;
        for (taken, pair) in taken.iter_mut().zip([&greedy, &modest]) {
            *taken += u32::from(pair.server.queue_pair.number() == number);
        }
    }
    greedy.server.raised(AsyncEventKind::SrqLimitReached, 5);
    assert_eq!(taken, [4, 1]);
    // The remaining receives are for any queue pair.
    modest.client.post(1, Opcode::Send, &[], (0, 0));
    modest.client.sent_well(1);
    modest.server.received_well(1);
}

/// The queue grows and shrinks while receives wait in it and are taken; none is lost, and their order stays.
// IB-SRQ-5, IB-SRQ-6
pub fn a_shared_receive_queue_is_resized(site: &Site) {
    let home = Home::sharing(site, 4);
    let srq = home.srq.clone().unwrap();
    let pair =
        Pair::to_home(site, Shape { receives: 64, receive_completions: 64, ..Shape::default() }, &home);
    let errno = |max_wr, limit| srq.modify(max_wr, limit).unwrap_err().errno();
    let post = |wr_id| srq.post_receive(&ReceiveRequest { wr_id, sges: &[] });
    let receive = |wr_id| {
        pair.client.post(1, Opcode::Send, &[], (0, 0));
        pair.client.sent_well(1);
        pair.server.received_well(wr_id);
    };
    let first = u64::from(srq.attributes().max_wr);
    for wr_id in 0..first {
        post(wr_id).unwrap();
    }
    assert_eq!(post(99), Err(PostError::QueueFull));
    assert_eq!(errno(Some(1), None), libc::EINVAL, "fewer than wait");
    assert_eq!(errno(Some(0), None), libc::EINVAL);
    assert_eq!(errno(Some(home.context.attributes().max_srq_wr + 1), None), libc::EINVAL);
    assert_eq!(errno(Some(4 * first as u32), Some(100 * first as u32)), libc::EINVAL, "a limit beyond it");
    assert_eq!(u64::from(srq.attributes().max_wr), first, "nothing has changed");

    srq.modify(Some(4 * first as u32), None).unwrap();
    let larger = u64::from(srq.attributes().max_wr);
    assert!(larger >= 4 * first);
    for wr_id in first..larger {
        post(wr_id).unwrap();
    }
    assert_eq!(post(99), Err(PostError::QueueFull));
    for wr_id in 0..larger - 1 {
        receive(wr_id);
    }
    assert_eq!(errno(Some(2), Some(larger as u32)), libc::EINVAL, "a limit beyond the new size");
    srq.modify(Some(2), None).unwrap();
    let smaller = u64::from(srq.attributes().max_wr);
    assert!(smaller >= 2 && smaller < larger);
    // One receive is left over from before.
    for wr_id in 1..smaller {
        post(100 + wr_id).unwrap();
    }
    assert_eq!(post(99), Err(PostError::QueueFull));
    receive(larger - 1);
    receive(101);
}

/// A queue pair in error says that it takes no receives any more, and leaves those that wait to the others.
// IB-SRQ-7
pub fn the_last_receive_of_a_queue_pair(site: &Site) {
    let home = Home::sharing(site, 8);
    let srq = home.srq.clone().unwrap();
    let pairs = [(); 2].map(|()| Pair::to_home(site, Shape::default(), &home));
    let [first, second] = &pairs;
    first.server.queue_pair.set_cookie(1);
    second.server.queue_pair.set_cookie(2);
    for wr_id in 0..4 {
        srq.post_receive(&ReceiveRequest { wr_id, sges: &[] }).unwrap();
    }
    first.client.post(7, Opcode::Send, &[], (0, 0));
    first.client.sent_well(7);
    first.server.received_well(0);
    first.server.to(State::Error, AttributeMask::empty(), &Attributes::default());
    first.server.raised(AsyncEventKind::QpLastWqeReached, 1);
    assert_eq!(first.server.receives.poll(1, |_| ()).unwrap(), 0, "a receive of all was flushed");
    // Once: the program may say ERROR as often as it likes.
    first.server.to(State::Error, AttributeMask::empty(), &Attributes::default());
    assert!(!home.context.events().ready(0).unwrap());
    for wr_id in 1..4 {
        second.client.post(wr_id, Opcode::Send, &[], (0, 0));
        second.client.sent_well(wr_id);
        second.server.received_well(wr_id);
    }
    // A program that destroys the queue itself gets no event.
    second.server.queue_pair.destroy();
    assert!(!home.context.events().ready(0).unwrap());
}

/// Requests that a queue and its queue pairs refuse.
// IB-SRQ-1, IB-SRQ-2, IB-SRQ-5, IB-SRQ-9, IB-SRQ-10
pub fn limits_of_shared_receive_queues(site: &Site) {
    let home = Home::sharing(site, 4);
    let (srq, limits) = (home.srq.clone().unwrap(), home.context.attributes());
    for sizes in [(0, 1), (limits.max_srq_wr + 1, 1), (1, limits.max_srq_sge + 1)] {
        let sizes = SharedReceiveQueueAttributes { max_wr: sizes.0, max_sge: sizes.1, limit: 0 };
        assert_eq!(SharedReceiveQueue::new(&home.domain, sizes).err().unwrap().errno(), libc::EINVAL);
    }
    let real = srq.attributes();
    assert!(real.max_wr >= 4 && real.max_sge == 2 && real.limit == 0, "{real:?}");
    assert_eq!(srq.modify(None, Some(real.max_wr + 1)).unwrap_err().errno(), libc::EINVAL);
    let sge = crate::request::Sge::default();
    let receive = ReceiveRequest { wr_id: 0, sges: &[sge; 3] };
    assert_eq!(srq.post_receive(&receive), Err(PostError::TooManySges));
    let channel = CompletionChannel::new(&home.context).unwrap();
    let queue = CompletionQueue::new(&home.context, 8, Some(channel)).unwrap();
    let options = |srq| QueuePairOptions {
        send_cq: queue.clone(),
        receive_cq: queue.clone(),
        srq: Some(srq),
        capabilities: Capabilities { max_send_wr: 4, max_recv_wr: 7, ..Capabilities::default() },
        service: Service::Rc,
        signal_all: false,
    };
    let foreign = Home::sharing(site, 4).srq.unwrap();
    let refused = QueuePair::new(&home.domain, options(foreign)).err().unwrap();
    assert_eq!(refused.errno(), libc::EINVAL);
    let pair = QueuePair::new(&home.domain, options(srq.clone())).unwrap();
    assert_eq!(pair.capabilities().max_recv_wr, 0, "it has no receive queue of its own");
    let error = Attributes { state: Some(State::Error), ..Attributes::default() };
    pair.modify(&error, AttributeMask::STATE).unwrap();
    let receive = ReceiveRequest { wr_id: 0, sges: &[] };
    assert_eq!(pair.post_receive(&receive), Err(PostError::Invalid));
    assert_eq!(srq.retire().unwrap_err().errno(), libc::EBUSY);
    pair.destroy();
    srq.retire().unwrap();
    // Elements are checked against the queue's own domain, not against the queue pair's.
    let home = Home::sharing(site, 4);
    let memory = Memory::open(&home.domain, 8);
    let elsewhere =
        Home { domain: crate::region::ProtectionDomain::new(&home.context).unwrap(), ..home.clone() };
    let pair = Pair::to_home(site, Shape::default(), &elsewhere);
    home.srq.unwrap().post_receive(&ReceiveRequest { wr_id: 3, sges: &[memory.all()] }).unwrap();
    let from = Memory::open(&pair.client.domain, 8);
    let sent = from.fill(3);
    pair.client.post(3, Opcode::Send, &[from.all()], (0, 0));
    assert_eq!(completion(&pair.server.receives).status, Status::Success);
    assert_eq!(memory.bytes(), sent);
}
