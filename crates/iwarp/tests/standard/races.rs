//! Two threads, or the two ends, do things at the same instant. Each test repeats what only some orders of
//! events would show.

use crate::host::{Connection, DEPTHS, Events, Host};
use crate::peer::{PLAIN, Peer, TEST_TIMEOUT, send};
use crate::{ALL, pattern};
use adverb_core::cm::{ConnectRequest, ConnectionEvent, ConnectionSink};
use adverb_core::qp::{AttributeMask, Attributes, Queues, State};
use adverb_core::request::{Data, Opcode, SendFlags, SendRequest, Status};
use adverb_proto::iwarp::Outbound;
use adverb_proto::iwarp::mpa::{Config, RtrKinds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 150;

/// Nobody holds what belonged to a connection: neither the background thread nor the other connections of its
/// completion queue.
fn vanishes(queues: &Weak<Queues>) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while queues.strong_count() > 0 {
        assert!(Instant::now() < deadline, "somebody still holds the queue pair");
        std::thread::yield_now();
    }
}

/// Polls as long as `during` takes.
fn polled<T>(host: &Host, during: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = host.cq.poll(16, |_| ());
            }
        });
        let result = during();
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_queue_pair_is_destroyed_while_it_connects() {
    let host = Host::new();
    for round in 0..ROUNDS {
        let listening = host.listen();
        let ours = host.connect(listening.address, DEPTHS);
        let weak = Arc::downgrade(ours.queue_pair.queues());
        let request = listening.requests.recv_timeout(TEST_TIMEOUT).unwrap();
        let accepting = host.queue_pair();
        let (sink, _events) = Events::new();
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| request.accept(&accepting, DEPTHS, b"", sink));
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            if round % 2 == 0 {
                ours.queue_pair.destroy();
            } else {
                let error = Attributes { state: Some(State::Error), ..Attributes::default() };
                ours.queue_pair.modify(&error, AttributeMask::STATE).unwrap();
            }
            drop(accepted.join().unwrap());
        });
        let Connection { queue_pair, handle, .. } = ours;
        assert_eq!(queue_pair.state(), State::Error);
        drop((handle, queue_pair));
        vanishes(&weak);
        let weak = Arc::downgrade(accepting.queues());
        drop(accepting);
        vanishes(&weak);
    }
}

#[test]
fn a_peer_that_has_gone_before_it_is_accepted() {
    let host = Host::new();
    polled(&host, || {
        for round in 0..ROUNDS {
            let config = if round % 2 == 0 { PLAIN } else { Config { rtr: RtrKinds::ALL, ..PLAIN } };
            let (connection, peer) = host.passive(&config);
            drop(peer);
            let mut events = vec![connection.event()];
            if matches!(events[0], ConnectionEvent::Established { .. }) {
                events.push(connection.event());
            }
            // In order, or, if the peer never showed that it was ready, as a failure.
            assert!(
                matches!(
                    &events[..],
                    [ConnectionEvent::Established { .. }, ConnectionEvent::Disconnected]
                        | [ConnectionEvent::Failed { .. }]
                ),
                "{events:?}"
            );
            let weak = Arc::downgrade(connection.queue_pair.queues());
            drop(connection);
            vanishes(&weak);
        }
    });
}

// RFC5041-6.2.1-5
#[test]
fn the_end_right_behind_a_write_is_not_missed() {
    let host = Host::new();
    let target = host.region(8, ALL);
    for round in 1..=ROUNDS {
        let (connection, mut peer) = host.passive(&PLAIN);
        connection.established();
        let value = u64::from(round).to_ne_bytes();
        let frames =
            peer.frames(Outbound::Write { stag: target.key(), to: target.address(), len: 8 }, &value);
        let sent = std::thread::spawn(move || {
            peer.raw(&frames);
            drop(peer);
        });
        // The program polls until it sees the bytes, and then never again.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while target.bytes() != value {
            assert_eq!(host.cq.poll(1, |completion| panic!("{completion:?}")).unwrap(), 0);
            assert!(Instant::now() < deadline, "nothing came");
        }
        sent.join().unwrap();
        connection.ended();
    }
}

/// Keeps the background thread in a call-back until it is told to go on.
struct Halt {
    reached: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl ConnectionSink for Halt {
    fn event(&self, _: ConnectionEvent) {
        let _ = self.reached.lock().unwrap().send(());
        let _ = self.go_on.lock().unwrap().recv_timeout(TEST_TIMEOUT);
    }
}

// RFC5041-6.2.1-5
#[test]
fn a_message_that_came_before_sending_failed_is_delivered() {
    let host = Host::new();
    let inbox = host.region(8, ALL);
    let (connection, mut peer) = host.active(&PLAIN);
    connection.receive(1, &[inbox.sge(0, 8)]);
    // The background thread is busy with a connection that is refused.
    let listening = host.listen();
    let (reached, halted) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let request = ConnectRequest {
        source: None,
        destination: listening.address,
        options: Default::default(),
        parameters: DEPTHS,
        private_data: b"",
    };
    let refused = host.queue_pair();
    let sink = Arc::new(Halt { reached: Mutex::new(reached), go_on: Mutex::new(wait) });
    let _handle = host.context.transport().connections().connect(&refused, request, sink).unwrap();
    drop(listening.requests.recv_timeout(TEST_TIMEOUT).unwrap());
    halted.recv_timeout(TEST_TIMEOUT).unwrap();
    let request = SendRequest {
        wr_id: 2,
        opcode: Opcode::Send,
        flags: SendFlags::empty(),
        data: Data::Inline(&[b"x"]),
        ..SendRequest::default()
    };
    connection.queue_pair.post_send(&request).unwrap();
    peer.send(send(8), b"goodbye.");
    // What it never reads makes this a reset.
    drop(peer);
    // No more than the completion queue holds.
    // A busy machine delivers the reset late, so the pauses grow: they are 20 s together.
    for pause in 0..200 {
        if connection.queue_pair.state() == State::Error {
            break;
        }
        connection.queue_pair.post_send(&request).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
    }
    connection.ended();
    let received = std::iter::repeat_with(|| host.completion()).find(|completion| completion.wr_id == 1);
    assert_eq!(received.unwrap().status, Status::Success);
    go_on.send(()).unwrap();
}

#[test]
fn an_invalidation_waits_for_what_was_posted_before_it() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let source = host.region(1000, ALL);
    source.fill(&pattern(1000));
    let request = |wr_id, opcode, sges| SendRequest {
        wr_id,
        opcode,
        flags: SendFlags::empty(),
        data: Data::Registered(sges),
        immediate: source.key(),
        ..SendRequest::default()
    };
    let all = [source.sge(0, 1000)];
    let posted = connection.queue_pair.post_sends(|batch| {
        batch.push(&request(1, Opcode::Send, &all))?;
        batch.push(&request(2, Opcode::LocalInvalidate, &[]))?;
        batch.push(&request(3, Opcode::Send, &[]))
    });
    assert_eq!(posted, Ok(()));
    assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert_eq!(peer.segment().1, pattern(1000));
    assert_eq!(peer.segment().1, b"");
}

#[test]
fn a_queue_pair_has_one_connection_after_the_other() {
    let host = Host::new();
    let queue_pair = host.queue_pair();
    let init = Attributes { state: Some(State::Init), port: 1, ..Attributes::default() };
    let reset = Attributes { state: Some(State::Reset), ..Attributes::default() };
    for _ in 0..10 {
        let listening = host.listen();
        let address = listening.address;
        let peer = std::thread::spawn(move || Peer::connect(address, &PLAIN));
        let request = listening.requests.recv_timeout(TEST_TIMEOUT).unwrap();
        let (sink, events) = Events::new();
        let handle = request.accept(&queue_pair, DEPTHS, b"", sink).unwrap();
        let peer = peer.join().unwrap();
        let event = events.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
        drop(peer);
        let event = events.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(matches!(event, ConnectionEvent::Disconnected), "{event:?}");
        drop(handle);
        queue_pair.modify(&reset, AttributeMask::STATE).unwrap();
        let mask = AttributeMask::STATE
            | AttributeMask::PORT
            | AttributeMask::PKEY_INDEX
            | AttributeMask::ACCESS_FLAGS;
        queue_pair.modify(&init, mask).unwrap();
    }
    let weak = Arc::downgrade(queue_pair.queues());
    drop(queue_pair);
    vanishes(&weak);
}
