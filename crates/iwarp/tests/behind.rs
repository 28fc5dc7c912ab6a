//! A program that is behind with its receives: what has come waits for it.

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape, TEST_TIMEOUT, signalled};
use adverb_core::request::{Opcode, ReceiveRequest, SendRequest, Status};
use adverb_core::transport::TransportFactory;

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_iwarp::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "iwarp0", "127.0.0.1")
}

/// The message has come when its sender has been told, and polls of the receiver find it.
fn poll_in_vain(pair: &Pair) {
    for _ in 0..1000 {
        assert_eq!(pair.server.receives.poll(1, |_| ()).unwrap(), 0);
    }
}

// PRACTICE-RECEIVE-1
#[test]
fn messages_wait_for_receives_that_are_posted_late() {
    let pair = Pair::connect(&site());
    let (from, to) = (Memory::open(&pair.client.domain, 1 << 20), Memory::open(&pair.server.domain, 1 << 20));
    for (round, length) in [0, 64, 5_000, 200_000].into_iter().enumerate() {
        let sent = from.fill(round as u64);
        pair.client.post(round as u64, Opcode::Send, &[from.sge(0, length)], (0, 0));
        pair.client.sent_well(round as u64);
        poll_in_vain(&pair);
        pair.server.post_receive(7, &[to.all()]);
        assert_eq!(pair.server.received_well(7).byte_length as usize, length);
        assert_eq!(to.bytes()[..length], sent[..length]);
    }
}

// PRACTICE-RECEIVE-1
#[test]
fn messages_behind_one_without_a_receive_wait_too() {
    const MESSAGES: u64 = 20;
    let pair = Pair::connect(&site());
    let (from, to) = (Memory::open(&pair.client.domain, 4096), Memory::open(&pair.server.domain, 4096));
    let written = Memory::open(&pair.server.domain, 4096);
    let remote = written.share(&pair.server.domain);
    let bytes = from.fill(3);
    for message in 0..MESSAGES {
        if message % 2 == 0 {
            pair.client.post(message, Opcode::Send, &[from.all()], (0, 0));
        } else {
            let sges = [from.all()];
            let request = SendRequest {
                wr_id: message,
                opcode: Opcode::WriteWithImmediate,
                immediate: message as u32,
                ..signalled(&sges, (written.address(0), remote.key()))
            };
            pair.client.queue_pair.post_send(&request).unwrap();
        }
        pair.client.sent_well(message);
    }
    poll_in_vain(&pair);
    assert_eq!(written.bytes(), [0; 4096], "what is behind a message without a receive is not taken in");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tell = tell;
            let queue = &pair.server.receives;
            for message in 0..MESSAGES {
                queue.arm(false).unwrap();
                pair.server.post_receive(message, &[to.all()]);
                // The program sleeps, without a poll since it has posted: it looks itself for what comes, or
                // asks the descriptor.
                let channel = queue.channel().unwrap();
                if message % 3 == 0 {
                    assert!(
                        channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap(),
                        "message {message} does not come"
                    );
                }
                channel.wait().unwrap();
                pair.server.received_well(message);
            }
            tell.send(()).unwrap();
        });
        if told.recv_timeout(TEST_TIMEOUT).is_err() {
            // Whoever waits there would wait for ever.
            pair.server.queue_pair.destroy();
            panic!("a message does not come");
        }
    });
    assert!(to.bytes() == bytes && written.bytes() == bytes);
}

// PRACTICE-RECEIVE-1
#[test]
fn an_end_comes_though_a_message_waits() {
    for ends_here in [true, false] {
        let pair = Pair::connect(&site());
        let (from, to) = (Memory::open(&pair.client.domain, 64), Memory::open(&pair.server.domain, 64));
        pair.client.post(1, Opcode::Send, &[from.all()], (0, 0));
        pair.client.sent_well(1);
        poll_in_vain(&pair);
        let (first, last) =
            if ends_here { (&pair.server, &pair.client) } else { (&pair.client, &pair.server) };
        first.id.disconnect().unwrap();
        first.ended();
        last.ended();
        pair.server.post_receive(2, &[to.all()]);
        assert_eq!(pair.server.received().status, Status::Flushed);
    }
}

// PRACTICE-RECEIVE-1
#[test]
fn messages_of_many_connections_wait_for_a_queue_that_they_share() {
    const PAIRS: usize = 6;
    let home = Home::sharing(&site(), 64);
    let shape = Shape::default();
    let pairs: Vec<_> = (0..PAIRS).map(|_| Pair::to_home(&site(), shape, &home)).collect();
    let to = Memory::open(&home.domain, 64);
    let from: Vec<_> = pairs.iter().map(|pair| Memory::open(&pair.client.domain, 64)).collect();
    for (pair, from) in pairs.iter().zip(&from) {
        pair.client.post(1, Opcode::Send, &[from.all()], (0, 0));
        pair.client.sent_well(1);
    }
    poll_in_vain(&pairs[0]);
    let shared = home.srq.as_ref().unwrap();
    for receive in 0..PAIRS as u64 {
        shared.post_receive(&ReceiveRequest { wr_id: receive, sges: &[to.all()] }).unwrap();
    }
    let mut came: Vec<_> = pairs.iter().map(|pair| pair.server.received().queue_pair).collect();
    came.sort_unstable();
    came.dedup();
    assert_eq!(came.len(), PAIRS);
}
