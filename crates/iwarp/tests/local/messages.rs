//! Messages between two processes of one host go through memory that both have, and all is as it is by TCP.

use super::agent::{SLOT, length_of, message};
use super::other::{ALL, OPEN, Other, Pair, Tier, site};
use super::turn;
use adverb_core::cm::EventKind;
use adverb_core::conformance::fixture::{Memory, Shape, Side, TEST_TIMEOUT, parameters, resolved, signalled};
use adverb_core::request::{Opcode, SendRequest, Status};
use std::time::Instant;

/// Messages that needed no TCP.
fn beside(side: &Side) -> u64 {
    side.context.device().counters().tx_local.get()
}

/// Sends this message, and waits until it is complete.
fn send(side: &Side, memory: &Memory, number: u64) {
    post(side, memory, number);
    side.sent_well(number);
}

fn post(side: &Side, memory: &Memory, number: u64) {
    let bytes = message(number);
    memory.set(&bytes);
    side.post(number, Opcode::Send, &[memory.sge(0, bytes.len())], (0, 0));
}

/// A connection, memory for a message at this end, and for receives at the other.
struct Talk {
    pair: Pair,
    memory: Memory,
    inbox: u64,
    said: u64,
}

impl Talk {
    fn of(tier: Tier) -> Self {
        let mut pair = Pair::of(tier);
        let inbox = pair.region(8 * SLOT, OPEN).index;
        let memory = Memory::open(&pair.side.domain, SLOT);
        Self { pair, memory, inbox, said: 0 }
    }

    /// A connection whose ends have found each other: messages need no TCP from now on.
    fn met(tier: Tier) -> Self {
        let mut talk = Self::of(tier);
        let (begin, deadline) = (beside(&talk.pair.side), Instant::now() + TEST_TIMEOUT);
        while beside(&talk.pair.side) == begin {
            assert!(Instant::now() < deadline, "all messages go by TCP");
            talk.other_hears(8, 1);
            talk.say();
            assert_eq!(talk.pair.other.hear(), [0]);
        }
        talk
    }

    /// The other side takes in so many messages, with so many receives.
    fn other_hears(&mut self, receives: u64, count: u64) {
        let numbers = [self.pair.index, self.inbox, receives, self.said, count];
        self.pair.other.say("hear", &numbers);
    }

    fn say(&mut self) {
        send(&self.pair.side, &self.memory, self.said);
        self.said += 1;
    }
}

// RFC5041-5.3-2
#[test]
fn messages_of_all_lengths_come_in_order_whatever_their_way() {
    let _turn = turn();
    for tier in ALL {
        let mut talk = Talk::of(tier);
        let (begin, deadline) = (beside(&talk.pair.side), Instant::now() + TEST_TIMEOUT);
        let is_expected = matches!(tier, Tier::Mapped | Tier::Kernel);
        let mut ways = 0;
        // The two ends find each other late where a background thread gets no processor: then more follow.
        while talk.said == 0 || is_expected && ways == 0 {
            assert!(Instant::now() < deadline, "{tier:?}: all messages go by TCP");
            talk.other_hears(8, 600);
            (0..600).for_each(|_| talk.say());
            assert_eq!(talk.pair.other.hear(), [0], "{tier:?}");
            ways = beside(&talk.pair.side) - begin;
        }
        assert_eq!(ways > 0, is_expected, "{tier:?}: {ways} messages needed no TCP");
        assert!(ways < talk.said, "long ones go by TCP");
    }
}

/// The receiver has one receive at a time, so most messages wait; what does not fit goes by TCP.
// PRACTICE-RECEIVE-1
#[test]
fn a_receiver_that_is_behind_gets_all_messages_in_order() {
    let _turn = turn();
    let mut talk = Talk::met(Tier::Mapped);
    talk.other_hears(1, 700);
    (0..700).for_each(|_| talk.say());
    assert_eq!(talk.pair.other.hear(), [0]);
}

/// A message without a receive ends its connection, and no other one of the same processes waits for that.
// PRACTICE-RECEIVE-1, RFC5041-7.1-2
#[test]
fn a_message_without_a_receive_ends_its_connection_alone() {
    let _turn = turn();
    let mut talk = Talk::met(Tier::Mapped);
    let port = talk.pair.other.ask("accept", &[super::agent::all()])[0] as u16;
    let shape = Shape { sends: 64, ..Shape::default() };
    let second = resolved(&site(), shape, site().at(port));
    second.id.connect(Some(&parameters())).unwrap();
    second.expect(EventKind::Established);
    talk.pair.other.hear();
    // Without a receive over there: those that go by TCP wait, too.
    let memory = Memory::open(&second.domain, SLOT);
    send(&second, &memory, 0);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !second.channel.ready(0).unwrap() {
        assert!(Instant::now() < deadline, "the connection goes on");
        let begin = beside(&talk.pair.side);
        talk.other_hears(8, 1);
        talk.say();
        assert_eq!(talk.pair.other.hear(), [0]);
        assert!(beside(&talk.pair.side) > begin || length_of(talk.said - 1) > 4096);
    }
    second.expect(EventKind::Disconnected);
    let counters = second.context.device().counters();
    assert!(counters.terminates_received.get() > 0);
}

// RFC5041-6.2.1-4, RFC5041-6.2.1-5
#[test]
fn messages_sent_before_a_disconnect_arrive() {
    let _turn = turn();
    let mut talk = Talk::met(Tier::Mapped);
    talk.other_hears(8, 8);
    for _ in 0..8 {
        talk.say();
    }
    talk.pair.side.id.disconnect().unwrap();
    assert_eq!(talk.pair.other.hear(), [0]);
    talk.pair.side.ended();
    assert_eq!(talk.pair.other.ask("ended", &[talk.pair.index])[0], 6);
}

/// What a process has sent before it was killed arrives.
#[test]
fn messages_sent_before_the_end_of_a_process_arrive() {
    let _turn = turn();
    let mut talk = Talk::met(Tier::Mapped);
    let to = Memory::open(&talk.pair.side.domain, 8 * SLOT);
    for receive in 0..8 {
        talk.pair.side.post_receive(receive, &[to.sge(receive as usize * SLOT, SLOT)]);
    }
    let numbers = [talk.pair.index, talk.inbox, 0, 8];
    talk.pair.other.ask("tell", &numbers);
    talk.pair.other.kill();
    for number in 0..8 {
        let done = talk.pair.side.received_well(number);
        let bytes = super::agent::bytes(&to, number as usize * SLOT, done.byte_length as usize);
        assert_eq!(bytes, message(number));
    }
    talk.pair.side.expect(EventKind::Disconnected);
}

/// The messages wait for receives when this side finds out, by a Send of its own, that TCP has failed.
// PRACTICE-RECEIVE-1, RFC5041-6.2.1-5
#[test]
fn messages_that_wait_come_before_the_failure_of_tcp() {
    const COUNT: u64 = 4;
    let _turn = turn();
    let mut talk = Talk::met(Tier::Mapped);
    // The other side's messages need no TCP from now on.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let to = Memory::open(&talk.pair.side.domain, 8 * SLOT);
    let came = |side: &Side| side.context.device().counters().rx_local.get();
    let begin = came(&talk.pair.side);
    while came(&talk.pair.side) == begin {
        assert!(Instant::now() < deadline, "all messages go by TCP");
        talk.pair.side.post_receive(0, &[to.sge(0, SLOT)]);
        talk.pair.other.ask("tell", &[talk.pair.index, talk.inbox, 0, 1]);
        talk.pair.side.received_well(0);
    }
    talk.pair.other.ask("tell", &[talk.pair.index, talk.inbox, 0, COUNT]);
    talk.pair.other.kill();
    // The first long one may be taken by TCP, whose answer is that nobody is there.
    for _ in 0..3 {
        let sges = [talk.memory.sge(0, SLOT)];
        let _ = talk.pair.side.queue_pair.post_send(&signalled(&sges, (0, 0)));
    }
    let side = &talk.pair.side;
    for receive in 0..COUNT {
        side.post_receive(receive, &[to.sge(receive as usize * SLOT, SLOT)]);
    }
    for number in 0..COUNT {
        let done = side.received_well(number);
        let bytes = super::agent::bytes(&to, number as usize * SLOT, done.byte_length as usize);
        assert_eq!(bytes, message(number));
    }
    side.expect(EventKind::Disconnected);
}

/// A message that is too long for its receive, and the key of a message that cannot be invalidated.
// RFC5041-7.1-4, RFC5040-5.3-6
#[test]
fn refused_messages_end_the_connection_as_by_tcp() {
    let _turn = turn();
    for opcode in [Opcode::Send, Opcode::SendWithInvalidate] {
        let mut talk = Talk::met(Tier::Mapped);
        talk.pair.other.ask("expect", &[talk.pair.index, talk.inbox]);
        let length = if opcode == Opcode::Send { 65 } else { 8 };
        let sges = [talk.memory.sge(0, length)];
        let begin = beside(&talk.pair.side);
        let request = SendRequest { opcode, immediate: 0x7777, rkey: 0x7777, ..signalled(&sges, (0, 0)) };
        talk.pair.side.queue_pair.post_send(&request).unwrap();
        assert_eq!(talk.pair.side.sent().status, Status::Success, "it is complete once it is on its way");
        assert_eq!(beside(&talk.pair.side), begin + 1);
        talk.pair.side.expect(EventKind::Disconnected);
        assert!(talk.pair.side.context.device().counters().terminates_received.get() > 0);
    }
}

// RFC7306-6.3-2, RFC7306-6.4-1
#[test]
fn immediate_data_come_behind_the_write_without_tcp() {
    let _turn = turn();
    for length in [8, 0] {
        let mut talk = Talk::met(Tier::Mapped);
        let remote = talk.pair.region(5 << 12, OPEN);
        talk.pair.reach(Opcode::Write, remote.middle());
        let deadline = Instant::now() + TEST_TIMEOUT;
        for number in 1.. {
            talk.pair.other.ask("post", &[talk.pair.index, talk.inbox]);
            talk.memory.set(&[number as u8; 8]);
            let (side, sges) = (&talk.pair.side, [talk.memory.sge(0, length)]);
            let request = SendRequest {
                opcode: Opcode::WriteWithImmediate,
                immediate: number,
                ..signalled(&sges, remote.middle())
            };
            let begin = (beside(side), talk.pair.direct());
            side.queue_pair.post_send(&request).unwrap();
            assert_eq!(side.sent().status, Status::Success);
            let needs_none = beside(side) > begin.0 && (length == 0 || talk.pair.direct() > begin.1);
            let next = talk.pair.other.ask("next", &[talk.pair.index]);
            assert_eq!(next, [Status::Success as u64, length as u64, number.into()]);
            if length > 0 {
                let at = remote.middle().0 - remote.address;
                let word = talk.pair.other.ask("word", &[remote.index, at]);
                assert_eq!(word, [u64::from_ne_bytes([number as u8; 8])]);
            }
            if needs_none {
                break;
            }
            assert!(Instant::now() < deadline, "all goes by TCP");
        }
    }
}

/// Two connections, one after the other, of the same queue pair numbers or not: nothing of the first comes to
/// the second.
#[test]
fn nothing_of_an_old_connection_comes_to_a_new_one() {
    let _turn = turn();
    let mut other = Other::start(&[]);
    for round in 0..4 {
        let port = other.ask("accept", &[super::agent::all()])[0] as u16;
        let mut pair = Pair::at(other, port, Tier::Mapped);
        let inbox = pair.region(8 * SLOT, OPEN).index;
        let memory = Memory::open(&pair.side.domain, SLOT);
        pair.other.say("hear", &[pair.index, inbox, 8, round * 1000, 64]);
        for number in 0..64 {
            send(&pair.side, &memory, round * 1000 + number);
        }
        assert_eq!(pair.other.hear(), [0]);
        // More than it takes in.
        pair.other.ask("post", &[pair.index, inbox]);
        for number in 0..4 {
            post(&pair.side, &memory, 7 + number * 7);
        }
        other = pair.leave();
    }
}
