//! Requests that are carried out as they are posted, by an object of the transport ([`OneSided`]): beside
//! requests that are queued, and until the program changes the queue pair.

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape};
use adverb_core::engine;
use adverb_core::null;
use adverb_core::qp::{AttributeMask, Attributes, Queues, Service, State};
use adverb_core::request::{Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Status};
use adverb_core::transport::{AtPost, OneSided, TransportFactory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const DEVICE: TransportFactory = TransportFactory { default: true, ..null::IB_FACTORY };
const SOME: u32 = 1000;

/// What a test knows of the object that it has installed.
#[derive(Default)]
struct ObjectState {
    asked: AtomicU32,
    is_gone: AtomicBool,
}

/// Carries out each request (in no memory), or answers something else.
struct Carrier {
    seen: Arc<ObjectState>,
    answer: fn(u32) -> AtPost,
}

impl OneSided for Carrier {
    fn carry_out(&mut self, _: &Queues, request: &SendRequest<'_>) -> AtPost {
        assert!(matches!(request.opcode, Opcode::Write | Opcode::Read));
        (self.answer)(self.seen.asked.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.seen.is_gone.store(true, Ordering::Relaxed);
    }
}

struct World {
    pair: Pair,
    from: Memory,
    to: Memory,
}

impl World {
    fn new() -> Self {
        let site = Site::new(|| engine::install(&[DEVICE]), "nullib0", "127.0.0.1").by_attributes();
        let shape =
            Shape { sends: SOME, receives: SOME, receive_completions: SOME, sges: 1, one_queue: false };
        let pair = Pair::of(&site, Service::Rc, shape, &Home::new(&site));
        let from = Memory::open(&pair.client.domain, 64);
        let to = Memory::open(&pair.server.domain, 64);
        Self { pair, from, to }
    }

    fn install(&self, answer: fn(u32) -> AtPost) -> Arc<ObjectState> {
        let seen = Arc::new(ObjectState::default());
        let carrier = Carrier { seen: seen.clone(), answer };
        self.pair.client.queue_pair.queues().send.install(|| Some(Box::new(carrier)));
        seen
    }

    fn post(&self, wr_id: u64, opcode: Opcode) {
        let sges = [self.from.sge(0, 8)];
        let request = SendRequest {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            data: Data::Registered(&sges),
            remote_address: self.to.address(0),
            rkey: self.to.region.key(),
            ..SendRequest::default()
        };
        self.pair.client.queue_pair.post_send(&request).unwrap();
    }

    fn receive(&self) {
        let request = ReceiveRequest { wr_id: 0, sges: &[self.to.sge(0, 8)] };
        self.pair.server.queue_pair.post_receive(&request).unwrap();
    }

    /// The requests that are complete, and how they have ended.
    fn completed(&self) -> Vec<(u64, Status)> {
        let mut all = Vec::new();
        let mut take = |completion: &adverb_core::request::Completion| {
            all.push((completion.wr_id, completion.status));
        };
        while self.pair.client.sends.poll(16, &mut take).unwrap() > 0 {}
        all
    }

    fn modify(&self, state: State) {
        let attributes = Attributes { state: Some(state), ..Attributes::default() };
        self.pair.client.queue_pair.modify(&attributes, AttributeMask::STATE).unwrap();
    }
}

/// Requests that are queued behind those find their places, and all complete in the order of the posts.
#[test]
fn requests_of_both_kinds_complete_in_order() {
    let world = World::new();
    let seen = world.install(|_| AtPost::Done(8));
    for round in 0..u64::from(SOME) / 4 {
        world.receive();
        world.post(3 * round, Opcode::Write);
        world.post(3 * round + 1, Opcode::Send);
        world.post(3 * round + 2, Opcode::Read);
        let wanted = [0, 1, 2].map(|place| (3 * round + place, Status::Success));
        assert_eq!(world.completed(), wanted);
    }
    assert_eq!(seen.asked.load(Ordering::Relaxed), SOME / 2);
}

#[test]
fn requests_that_are_left_are_queued() {
    let world = World::new();
    let seen = world.install(|count| if count % 2 == 0 { AtPost::No } else { AtPost::Done(8) });
    for wr_id in 0..8 {
        world.from.set(&[wr_id as u8 + 1; 64]);
        world.post(wr_id, Opcode::Write);
        // The object has not written anything.
        let last_queued = wr_id as u8 / 2 * 2 + 1;
        assert_eq!(world.to.bytes()[..8], [last_queued; 8]);
    }
    assert_eq!(world.completed(), (0..8).map(|wr_id| (wr_id, Status::Success)).collect::<Vec<_>>());
    assert!(!seen.is_gone.load(Ordering::Relaxed));
}

#[test]
fn nothing_overtakes_a_request_that_has_not_succeeded() {
    let world = World::new();
    let seen = world.install(|_| AtPost::Done(8));
    // It finds no receive.
    world.post(0, Opcode::Send);
    world.post(1, Opcode::Write);
    assert_eq!(world.completed(), [(0, Status::RnrRetryExceeded), (1, Status::Flushed)]);
    assert_eq!(seen.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn the_object_is_forgotten_when_it_is_of_no_use_or_the_queue_pair_changes() {
    let world = World::new();
    let first = world.install(|_| AtPost::Over);
    let second = world.install(|_| AtPost::Done(8));
    assert!(second.is_gone.load(Ordering::Relaxed), "there is one already");
    assert!(!first.is_gone.load(Ordering::Relaxed));
    world.post(0, Opcode::Write);
    assert!(first.is_gone.load(Ordering::Relaxed));
    assert_eq!(world.completed(), [(0, Status::Success)], "it was queued");

    let third = world.install(|_| AtPost::Done(8));
    world.modify(State::Sqd);
    assert!(third.is_gone.load(Ordering::Relaxed));
    world.modify(State::Rts);
    world.post(1, Opcode::Write);
    assert_eq!((world.completed().len(), third.asked.load(Ordering::Relaxed)), (1, 0));

    // In error it is not asked, whether or not it is there.
    let fourth = world.install(|_| AtPost::Done(8));
    world.modify(State::Error);
    let fifth = world.install(|_| AtPost::Done(8));
    world.post(2, Opcode::Write);
    assert_eq!(world.completed(), [(2, Status::Flushed)]);
    assert_eq!(fourth.asked.load(Ordering::Relaxed) + fifth.asked.load(Ordering::Relaxed), 0);
}
