//! What a program posts between two polls leaves together, and all of it leaves. All messages go by TCP, but
//! for those that leave before an end. The way is decided once in a process, so each test has one of its own.

mod pair;

use adverb_core::cm::ConnectionEvent;
use adverb_core::conformance::{rounds, runs_again};
use adverb_core::cq::CompletionQueue;
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask, Attributes, State};
use adverb_core::request::{Completion, Data, Opcode, ReceiveRequest, Status};
use pair::{Memory, Side, TEST_TIMEOUT, connect, memory, poll, request};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Tests of this file count what the process does: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test in a process for each of these values of `ADVERB_LOCAL`.
fn each_way(test: &str, ways: &[&str]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ways.iter().for_each(|way| runs_again(test, &[("ADVERB_LOCAL", way)], 1));
}

const LENGTH: usize = 4096;
const POSTS: u8 = 60;

fn sends_so_far(side: &Side) -> u64 {
    side.queue_pair.context().device().counters().tx_calls.get()
}

/// A poll of a program that has nothing to find.
fn poll_in_vain(queue: &CompletionQueue) {
    queue.poll(16, |completion| panic!("{completion:?}")).unwrap();
}

fn post_receives(side: &Side, target: &Memory) {
    for index in 0..POSTS {
        let sges = [target.sge(usize::from(index) * LENGTH, LENGTH)];
        side.queue_pair.post_receive(&ReceiveRequest { wr_id: index.into(), sges: &sges }).unwrap();
    }
}

/// Posts a Send of each piece of the memory, in order.
fn post_sends(side: &Side, source: &Memory) {
    for index in 0..POSTS {
        let sges = [source.sge(usize::from(index) * LENGTH, LENGTH)];
        side.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
    }
}

fn expect_all(side: &Side, source: &Memory, target: &Memory) {
    for index in 0..POSTS {
        let received = poll(side);
        assert_eq!((received.status, received.wr_id), (Status::Success, u64::from(index)));
    }
    assert_eq!(source.bytes, target.bytes);
}

fn sides() -> (Side, Side, Memory, Memory) {
    let (client, server) = connect("127.0.0.1:0".parse().unwrap());
    let mut source = memory(&client, LENGTH * usize::from(POSTS), Access::LOCAL_WRITE);
    let target = memory(&server, LENGTH * usize::from(POSTS), Access::LOCAL_WRITE);
    for (index, byte) in source.bytes.iter_mut().enumerate() {
        *byte = (index / LENGTH + index) as u8;
    }
    (client, server, source, target)
}

#[test]
fn posts_between_two_polls_leave_in_few_writes() {
    if rounds().is_none() {
        return each_way("posts_between_two_polls_leave_in_few_writes", &["off"]);
    }
    // Four posts before it is worth while, four gathered writes, and here and there one that a full socket
    // cuts in two.
    const MOST: u64 = 16;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, server, source, target) = sides();
    let mut fewest = u64::MAX;
    let until = Instant::now() + TEST_TIMEOUT;
    // A thread without a processor for a while is taken for one that does not poll: not every round counts.
    while fewest > MOST && Instant::now() < until {
        post_receives(&server, &target);
        poll_in_vain(&client.cq);
        let before = sends_so_far(&client);
        post_sends(&client, &source);
        for _ in 0..POSTS {
            assert_eq!(poll(&client).status, Status::Success);
        }
        fewest = fewest.min(sends_so_far(&client) - before);
        expect_all(&server, &source, &target);
    }
    assert!(fewest <= MOST, "{fewest} system calls for {POSTS} messages");
}

/// A program that keeps so many requests under way, and posts another one for each completion that it finds.
#[test]
fn posts_after_each_completion_leave_in_few_writes_in_a_deep_queue() {
    if rounds().is_none() {
        return each_way("posts_after_each_completion_leave_in_few_writes_in_a_deep_queue", &["off"]);
    }
    const DEEP: u8 = 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, server, source, target) = sides();
    let post = |index: u8| {
        let sges = [source.sge(usize::from(index) * LENGTH, LENGTH)];
        client.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
    };
    let mut fewest = u64::MAX;
    let until = Instant::now() + TEST_TIMEOUT;
    // As above: not every round counts.
    while fewest > u64::from(POSTS) / 2 && Instant::now() < until {
        post_receives(&server, &target);
        poll_in_vain(&client.cq);
        let before = sends_so_far(&client);
        (0..DEEP).for_each(post);
        for index in DEEP..POSTS {
            assert_eq!(poll(&client).status, Status::Success);
            post(index);
        }
        for _ in 0..DEEP {
            assert_eq!(poll(&client).status, Status::Success);
        }
        fewest = fewest.min(sends_so_far(&client) - before);
        expect_all(&server, &source, &target);
    }
    assert!(fewest <= u64::from(POSTS) / 2, "{fewest} system calls for {POSTS} messages");
}

#[test]
fn posts_with_polls_between_them_leave_at_once() {
    if rounds().is_none() {
        return each_way("posts_with_polls_between_them_leave_at_once", &["off"]);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, server, source, target) = sides();
    post_receives(&server, &target);
    for index in 0..POSTS {
        poll_in_vain(&client.cq);
        let before = sends_so_far(&client);
        let sges = [source.sge(usize::from(index) * LENGTH, LENGTH)];
        client.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
        assert_ne!(sends_so_far(&client), before, "post {index} waits");
        assert_eq!(poll(&client).status, Status::Success);
    }
    expect_all(&server, &source, &target);
}

#[test]
fn a_program_that_polls_no_more_need_not() {
    if rounds().is_none() {
        return each_way("a_program_that_polls_no_more_need_not", &["off"]);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, server, source, target) = sides();
    poll_in_vain(&client.cq);
    for _ in 0..3 {
        post_receives(&server, &target);
        post_sends(&client, &source);
        expect_all(&server, &source, &target);
        // They are there already, so this does not come by the connection.
        let mut left = POSTS.into();
        let until = Instant::now() + TEST_TIMEOUT;
        while left > 0 && Instant::now() < until {
            if client.cq.has_completions() {
                left -= client
                    .cq
                    .poll(left, |completion| assert_eq!(completion.status, Status::Success))
                    .unwrap();
            }
        }
        assert_eq!(left, 0);
    }
}

/// Posts, ends the connection by `end` without a poll between, and looks what comes out.
fn all_leave_before(end: impl Fn(&Side)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..16 {
        let (client, server, source, target) = sides();
        post_receives(&server, &target);
        poll_in_vain(&client.cq);
        post_sends(&client, &source);
        end(&client);
        expect_all(&server, &source, &target);
        assert!(matches!(server.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
    }
}

#[test]
fn posts_leave_before_the_queue_pair_is_destroyed() {
    if rounds().is_none() {
        return each_way("posts_leave_before_the_queue_pair_is_destroyed", &["off", "auto"]);
    }
    all_leave_before(|client| client.queue_pair.destroy());
}

#[test]
fn posts_leave_before_the_queue_pair_goes_to_error() {
    if rounds().is_none() {
        return each_way("posts_leave_before_the_queue_pair_goes_to_error", &["off", "auto"]);
    }
    all_leave_before(|client| {
        let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
        client.queue_pair.modify(&attributes, AttributeMask::STATE).unwrap();
        let mut found: Vec<Completion> = Vec::new();
        while found.len() < POSTS.into() {
            client.cq.poll(64, |completion| found.push(*completion)).unwrap();
        }
        assert!(found.iter().all(|completion| completion.status == Status::Success));
    });
}

#[test]
fn posts_leave_before_a_program_sleeps() {
    if rounds().is_none() {
        return each_way("posts_leave_before_a_program_sleeps", &["off", "auto"]);
    }
    all_leave_before(|client| {
        client.cq.arm(false).unwrap();
        for _ in 0..POSTS {
            assert_eq!(poll(client).status, Status::Success);
        }
        client.queue_pair.destroy();
    });
}
