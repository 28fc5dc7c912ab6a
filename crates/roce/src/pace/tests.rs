//! Unreliable messages of queue pairs that share a receive queue, by the network: none meets it empty while
//! its program keeps up. Here the program may stay away for longer than elsewhere: a thread of a test may be
//! kept from its processors.

use super::{LOOK, MESSAGE_TIMEOUT, OwnTime, PROGRAM_TIMEOUT, Wait};
use adverb_core::conformance::fixture::{Home, Memory, TEST_TIMEOUT, path};
use adverb_core::conformance::{Site, rounds, runs_again};
use adverb_core::cq::CompletionQueue;
use adverb_core::memory::Access;
use adverb_core::qp::{
    AttributeMask as M, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State,
};
use adverb_core::request::{Data, Opcode, ReceiveRequest, SendRequest, Status};
use adverb_core::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};
use adverb_core::transport::TransportFactory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Queue pairs, and messages of each.
const PAIRS: usize = 16;
const EACH: u32 = 24;
/// More than a queue pair sends in its turn, so that many messages are under way at once.
const LENGTH: usize = 40 << 10;
/// Receives at first, and later: fewer than queue pairs.
const FIRST: u32 = 48;
const LATER: u32 = 4;

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..crate::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1").by_attributes()
}

/// Queue pairs of one end, which complete in one queue.
struct End {
    home: Home,
    receives: Arc<CompletionQueue>,
    pairs: Vec<Arc<QueuePair>>,
}

impl End {
    fn new(site: &Site, srq: Option<u32>) -> Self {
        let mut home = Home::new(site);
        let sizes = |max_wr| SharedReceiveQueueAttributes { max_wr, max_sge: 1, limit: 0 };
        home.srq = srq.map(|max_wr| SharedReceiveQueue::new(&home.domain, sizes(max_wr)).unwrap());
        let queue = || CompletionQueue::new(&home.context, 2 * FIRST, None).unwrap();
        let (sends, receives) = (queue(), queue());
        let pair = |_| {
            let options = QueuePairOptions {
                send_cq: sends.clone(),
                receive_cq: receives.clone(),
                srq: home.srq.clone(),
                capabilities: Capabilities { max_send_wr: EACH, max_send_sge: 1, ..Capabilities::default() },
                service: Service::Uc,
                signal_all: false,
            };
            QueuePair::new(&home.domain, options).unwrap()
        };
        let pairs = (0..PAIRS).map(pair).collect();
        Self { home, receives, pairs }
    }

    fn connect(&self, peer: &Self, site: &Site) {
        for (pair, other) in self.pairs.iter().zip(&peer.pairs) {
            let attributes = Attributes {
                path: path(&self.home.context, site.address),
                path_mtu: 1024,
                destination: other.number(),
                port: 1,
                access: Access::REMOTE_WRITE.bits(),
                ..Attributes::default()
            };
            let to_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
            let to_receive = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            for (state, mask) in [(State::Init, to_init), (State::Rtr, to_receive), (State::Rts, M::SQ_PSN)] {
                pair.modify(&Attributes { state: Some(state), ..attributes }, mask | M::STATE).unwrap();
            }
        }
    }
}

/// Messages of all queue pairs, each of which takes a receive.
fn few_receives_for_many(opcode: Opcode) {
    let site = site();
    let (sender, receiver) = (End::new(&site, None), End::new(&site, Some(FIRST)));
    receiver.connect(&sender, &site);
    sender.connect(&receiver, &site);
    let (from, to) = (Memory::open(&sender.home.domain, LENGTH), Memory::open(&receiver.home.domain, LENGTH));
    let srq = receiver.home.srq.as_ref().unwrap();
    let receive = || srq.post_receive(&ReceiveRequest { wr_id: 1, sges: &[to.all()] }).unwrap();
    (0..FIRST).for_each(|_| receive());
    let sges = [from.all()];
    let request = SendRequest {
        opcode,
        data: Data::Registered(&sges),
        remote_address: to.address(0),
        rkey: to.region.key(),
        ..SendRequest::default()
    };
    for _ in 0..EACH {
        sender.pairs.iter().for_each(|pair| pair.post_send(&request).unwrap());
    }
    let all = PAIRS as u32 * EACH;
    let (mut received, mut posted) = (0, FIRST);
    let mut last = Instant::now();
    while received < all {
        let found = receiver.receives.poll(16, |done| assert_eq!(done.status, Status::Success)).unwrap();
        received += found as u32;
        while posted < received + LATER {
            receive();
            posted += 1;
        }
        if found > 0 {
            last = Instant::now();
        }
        assert!(last.elapsed() < TEST_TIMEOUT, "{received} of {all} messages have come");
    }
}

#[test]
fn few_receives_for_sends() {
    if rounds().is_some() {
        few_receives_for_many(Opcode::Send);
    }
}

#[test]
fn few_receives_for_writes() {
    if rounds().is_some() {
        few_receives_for_many(Opcode::WriteWithImmediate);
    }
}

#[test]
fn messages_of_many_queue_pairs_find_the_few_receives_that_they_share() {
    if rounds().is_none() {
        for way in [&[("ADVERB_LOCAL", "off")][..], &[("ADVERB_LOCAL", "off"), ("ADVERB_WITHOUT", "gso")]] {
            for test in ["few_receives_for_sends", "few_receives_for_writes"] {
                runs_again(&format!("pace::tests::{test}"), way, 1);
            }
        }
    }
}

#[test]
fn time_without_a_processor_is_not_held_against_a_program() {
    let mut own = OwnTime::default();
    let mut now = Duration::from_secs(9);
    let start = own.at(now);
    for _ in 0..50 {
        now += LOOK;
        own.at(now);
    }
    assert_eq!(own.at(now), start + LOOK * 50);
    now += Duration::from_secs(1);
    assert_eq!(own.at(now), start + LOOK * 52);
    // Threads may have read the clock in another order.
    assert_eq!(own.at(now - LOOK), start + LOOK * 52);
    assert_eq!(own.at(now + LOOK), start + LOOK * 53);
}

#[test]
fn a_program_that_needs_a_message_is_waited_for_while_that_comes_but_not_without_end() {
    let start = Duration::from_secs(9);
    let mut wait = Wait::new(start, 7);
    wait.come(start + LOOK, 7);
    assert!(!wait.is_over(start) && wait.is_over(start + PROGRAM_TIMEOUT));
    let last = start + MESSAGE_TIMEOUT - LOOK;
    wait.come(last, 8);
    assert!(!wait.is_over(start + PROGRAM_TIMEOUT) && wait.is_over(last + PROGRAM_TIMEOUT));
    wait.come(last + LOOK, 9);
    assert!(wait.is_over(last + PROGRAM_TIMEOUT));
}
