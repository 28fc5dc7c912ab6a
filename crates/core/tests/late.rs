//! Completions that come late ([`late`]): polls, events, resets and the end of a completion queue know of
//! those that are kept.

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape, TEST_TIMEOUT};
use adverb_core::cq::CompletionQueue;
use adverb_core::engine;
use adverb_core::event::AsyncEventKind;
use adverb_core::late::{self, Completions, Lateness};
use adverb_core::null;
use adverb_core::qp::{AttributeMask, Attributes, Service, State};
use adverb_core::request::{Completion, CompletionOpcode, Opcode, Status};
use adverb_core::transport::TransportFactory;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const DEVICE: TransportFactory = TransportFactory { default: true, ..null::IB_FACTORY };

/// Says by the name of a request how late it is: in its highest byte 1 for the milliseconds in the rest, 2
/// for an overtaking.
struct ByName;

const AFTER: u64 = 1 << 56;
const OVERTAKEN: u64 = 2 << 56;
/// Longer than any test waits.
const NEVER: u64 = 1 << 32;

static MADE: AtomicU32 = AtomicU32::new(0);

impl Completions for ByName {
    fn made(&self, device: &str, queue_pair: u32) {
        assert!(device == "nullib0" && queue_pair > 1);
        MADE.fetch_add(1, Ordering::Relaxed);
    }

    fn comes(&self, device: &str, completion: &Completion, overtakes: bool) -> Lateness {
        assert_eq!(device, "nullib0");
        let time = Duration::from_millis(completion.wr_id & 0xffff_ffff);
        match completion.wr_id & !(AFTER - 1) {
            AFTER => Lateness::After(time),
            OVERTAKEN if !overtakes => Lateness::Overtaken(TEST_TIMEOUT * 2),
            _ => Lateness::OnTime,
        }
    }
}

fn home() -> (Site, Home) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| late::install(&ByName));
    let site = Site::new(|| engine::install(&[DEVICE]), "nullib0", "127.0.0.1").by_attributes();
    let home = Home::new(&site);
    (site, home)
}

fn pair(site: &Site, home: &Home) -> (Pair, Memory) {
    let shape = Shape { sends: 64, receives: 64, receive_completions: 64, sges: 1, one_queue: false };
    let pair = Pair::of(site, Service::Rc, shape, home);
    let memory = Memory::open(&pair.server.domain, 8);
    (pair, memory)
}

/// Whether a poll finds a completion.
fn has_one(queue: &CompletionQueue) -> bool {
    queue.poll(1, |_| ()).expect("a poll") > 0
}

/// A Write of nothing.
fn write(pair: &Pair, memory: &Memory, wr_id: u64) {
    pair.client.post(wr_id, Opcode::Write, &[], (memory.address(0), memory.region.key()));
}

#[test]
fn a_work_queue_keeps_its_order_and_an_event_comes_with_the_completion() {
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    let queue = &pair.client.sends;
    queue.arm(false).expect("armed");
    let channel = queue.channel().expect("a channel");
    for wr_id in [AFTER + 50, 1, AFTER + 1, 2] {
        write(&pair, &memory, wr_id);
    }
    // No earlier than the first one: all are behind it.
    let from = std::time::Instant::now();
    assert!(channel.ready(TEST_TIMEOUT.as_millis() as i32).expect("events"));
    let _ = channel.wait().expect("the event");
    let found: Vec<_> = (0..4).map(|_| pair.client.sent().wr_id).collect();
    assert_eq!(found, [AFTER + 50, 1, AFTER + 1, 2]);
    assert!(from.elapsed() <= TEST_TIMEOUT);
    assert!(MADE.load(Ordering::Relaxed) >= 2);
}

#[test]
fn receives_do_not_wait_for_sends() {
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    write(&pair, &memory, AFTER + NEVER - 1);
    pair.client.post_receive(7, &[]);
    pair.server.post(8, Opcode::Send, &[], (0, 0));
    let received = pair.client.received();
    assert_eq!((received.wr_id, received.opcode), (7, CompletionOpcode::Receive));
    assert!(!has_one(&pair.client.sends));
}

#[test]
fn a_queue_pair_that_is_reset_takes_along_what_is_late() {
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    write(&pair, &memory, AFTER + NEVER - 1);
    write(&pair, &memory, 1);
    pair.client.to(State::Reset, AttributeMask::empty(), &Attributes::default());
    assert!(!has_one(&pair.client.sends));
}

#[test]
fn a_flushed_request_completes_behind_one_that_is_late() {
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    write(&pair, &memory, AFTER + 50);
    pair.client.to(State::Error, AttributeMask::empty(), &Attributes::default());
    write(&pair, &memory, 1);
    let first = pair.client.sent();
    assert_eq!((first.wr_id, first.status), (AFTER + 50, Status::Success));
    let second = pair.client.sent();
    assert_eq!((second.wr_id, second.status), (1, Status::Flushed));
}

#[test]
fn as_many_are_late_as_there_is_room_for() {
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    let queue = &pair.client.sends;
    let room = u64::from(queue.capacity());
    // Sends are taken out of their queue as they complete, so that there may be more of them than entries.
    for _ in 0..room {
        write(&pair, &memory, AFTER + NEVER - 1);
    }
    assert!(!has_one(queue));
    assert_eq!(queue.resize(room as u32 - 1).expect_err("they do not fit").errno(), libc::EINVAL);
    write(&pair, &memory, 1);
    assert_eq!(queue.poll(1, |_| ()).expect_err("it has overrun").errno(), libc::EIO);
    let events = pair.client.context.events();
    assert!(events.ready(TEST_TIMEOUT.as_millis() as i32).expect("events"));
    assert_eq!(events.wait().expect("an event").kind, AsyncEventKind::CqError);
}

#[test]
fn one_that_is_overtaken_comes_after_another_queue_pairs() {
    use adverb_core::qp::QueuePair;
    let (site, home) = home();
    let (pair, memory) = pair(&site, &home);
    let (other, its) = self::pair(&site, &home);
    // A third one completes where the first one does: by the same numbers as those, it is connected with
    // itself.
    let queue = &pair.client.sends;
    let options = adverb_core::qp::QueuePairOptions {
        send_cq: queue.clone(),
        receive_cq: pair.client.receives.clone(),
        srq: None,
        capabilities: pair.client.queue_pair.capabilities(),
        service: Service::Rc,
        signal_all: true,
    };
    let third = QueuePair::new(&pair.client.domain, options).expect("a queue pair");
    write(&pair, &memory, OVERTAKEN);
    assert!(!has_one(queue));
    // One of another completion queue lets it wait.
    write(&other, &its, 1);
    assert_eq!(other.client.sent().wr_id, 1);
    assert!(!has_one(queue));
    // A request that is flushed completes, too.
    let error = Attributes { state: Some(State::Error), ..Attributes::default() };
    third.modify(&error, AttributeMask::STATE).expect("in error");
    let request = adverb_core::request::SendRequest { wr_id: 3, ..Default::default() };
    third.post_send(&request).expect("posted");
    assert_eq!((pair.client.sent().wr_id, pair.client.sent().wr_id), (3, OVERTAKEN));
    third.destroy();
}
