//! Unreliable messages of queue pairs that share a receive queue, by the network: none meets it empty while its program keeps up. Here the program may stay
//! away for longer than elsewhere: a thread of a test may be kept from its processors.

use super::{HeldMark, LOOK, MESSAGE_TIMEOUT, MOST_HELD, OwnTime, PROGRAM_TIMEOUT, State as PaceState, Wait};
use crate::gsi::MadSource;
use crate::locate::Mark;
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
use std::net::{IpAddr, Ipv4Addr};
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

/// A mark of the process behind a UDP port of a host.
fn mark(number: u64, host: [u8; 4], peer_port: u16) -> HeldMark {
    let from = MadSource::between((Ipv4Addr::LOCALHOST, 4791).into(), IpAddr::from(host), peer_port);
    HeldMark { mark: Mark { number, port: 4791, from }, is_told: false }
}

#[test]
fn an_address_with_many_marks_takes_no_place_away_from_others() {
    let (greedy, [one, other]) = ([192, 0, 2, 1], [[192, 0, 2, 2], [192, 0, 2, 3]]);
    let mut state = PaceState::default();
    let mut hold = |held| state.hold(held).map(|gone| (gone.number, gone.from.peer));
    assert_eq!(hold(mark(1, one, 9)), None);
    for port in 0..MOST_HELD as u16 - 1 {
        assert_eq!(hold(mark(port.into(), greedy, port)), None);
    }
    // The oldest ones of the address with the most go, and no others.
    assert_eq!(hold(mark(2, other, 9)), Some((0, greedy.into())));
    for port in 0..MOST_HELD as u16 {
        let gone = hold(mark(0, greedy, 10_000 + port)).expect("all places are taken");
        assert_eq!(gone.1, IpAddr::from(greedy), "after {port} more");
    }
    // A later mark of a sender takes the place of its earlier one.
    assert_eq!(hold(mark(3, one, 9)), None);
    let of = |host| move |held: &&HeldMark| held.mark.from.peer == IpAddr::from(host);
    let numbers = |host| state.held.iter().filter(of(host)).map(|held| held.mark.number).collect::<Vec<_>>();
    assert_eq!((state.held.len(), numbers(one), numbers(other)), (MOST_HELD, vec![3], vec![2]));
}
