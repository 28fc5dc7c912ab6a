use super::*;

use adverb_wire::ib::cm::{
    Drep, Dreq, Mra, Path, Rtu, about, port_space, private_data, service_id, sidr_status,
};
use adverb_wire::ib::mad::{Header, class, method};
use proptest::prelude::*;

const ZERO: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
/// Long enough for everything.
const EVER: Duration = Duration::from_secs(1 << 20);
const ACTIVE: u8 = 1;
const PASSIVE: u8 = 2;
const STRANGER: u8 = 3;
const ACTIVE_QPN: u32 = 0x11;
const PASSIVE_QPN: u32 = 0x22;

fn service() -> u64 {
    service_id(port_space::TCP, 7174)
}

fn config(peer: u8) -> Config {
    Config {
        prefix: peer.into(),
        prefix_bits: 8,
        seed: 0x1234_5678_9abc_def0 * u64::from(peer),
        ca_guid: peer.into(),
        max_connections: 64,
    }
}

fn req() -> Req {
    Req {
        service_id: service(),
        local_qpn: ACTIVE_QPN,
        starting_psn: 7,
        remote_response_timeout: RESPONSE_TIMEOUT,
        local_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: MAX_RETRIES,
        primary: Path { local_ack_timeout: 19, ..Path::default() },
        private_data: private_data(b"please").unwrap(),
        ..Req::default()
    }
}

fn rep() -> Rep {
    Rep { local_qpn: PASSIVE_QPN, private_data: private_data(b"welcome").unwrap(), ..Rep::default() }
}

fn no() -> Rej {
    Rej {
        reason: RejectReason::CONSUMER_DEFINED,
        private_data: private_data(b"no").unwrap(),
        ..Rej::default()
    }
}

fn parse(bytes: &[u8]) -> (u64, Message) {
    let mad = Mad::parse(bytes).unwrap();
    (mad.header.transaction_id.get(), Message::parse(mad).unwrap())
}

/// Everything that a manager sends.
fn sent(manager: &mut Manager<u8>) -> Vec<(u8, u64, Message)> {
    std::iter::from_fn(|| manager.poll_transmit())
        .map(|(to, bytes)| {
            let (transaction_id, message) = parse(&bytes);
            (to, transaction_id, message)
        })
        .collect()
}

fn events(manager: &mut Manager<u8>) -> Vec<Event<u8>> {
    std::iter::from_fn(|| manager.poll_event()).collect()
}

/// Two managers that hear each other.
struct Pair {
    active: Manager<u8>,
    passive: Manager<u8>,
    now: Duration,
}

impl Pair {
    fn new() -> Pair {
        let mut passive = Manager::new(config(PASSIVE));
        passive.listen(service(), 4).unwrap();
        Pair { active: Manager::new(config(ACTIVE)), passive, now: ZERO }
    }

    /// Delivers what the active side sends; returns it.
    fn forth(&mut self) -> Vec<Message> {
        let messages = sent(&mut self.active);
        for (to, transaction_id, message) in &messages {
            assert_eq!(*to, PASSIVE);
            let _ = self.passive.receive(&message.to_mad(*transaction_id).to_bytes(), ACTIVE, self.now);
        }
        messages.into_iter().map(|(_, _, message)| message).collect()
    }

    /// Delivers what the passive side sends; returns it.
    fn back(&mut self) -> Vec<Message> {
        let messages = sent(&mut self.passive);
        for (to, transaction_id, message) in &messages {
            assert_eq!(*to, ACTIVE);
            let _ = self.active.receive(&message.to_mad(*transaction_id).to_bytes(), PASSIVE, self.now);
        }
        messages.into_iter().map(|(_, _, message)| message).collect()
    }

    /// Active asks, and passive hears it.
    fn ask(&mut self) -> (u32, u32) {
        let a = self.active.connect(PASSIVE, &req(), self.now).unwrap();
        self.forth();
        let [Event::Request { connection: b, peer: ACTIVE, .. }] = events(&mut self.passive)[..] else {
            panic!()
        };
        (a, b)
    }

    /// Passive accepts, and active hears it.
    fn agree(&mut self) -> (u32, u32) {
        let (a, b) = self.ask();
        self.passive.accept(b, &rep(), self.now).unwrap();
        self.back();
        assert!(matches!(events(&mut self.active)[..], [Event::Reply { connection, .. }] if connection == a));
        (a, b)
    }

    fn establish(&mut self) -> (u32, u32) {
        let (a, b) = self.agree();
        self.active.ready(a).unwrap();
        self.forth();
        assert_eq!(events(&mut self.passive), [Event::Established { connection: b }]);
        (a, b)
    }

    /// Nothing is left, at the latest when all time has passed.
    fn end(mut self) {
        for manager in [&mut self.active, &mut self.passive] {
            manager.handle_timeout(self.now + SECOND * 10);
            assert!(manager.is_empty() && manager.remotes.is_empty() && manager.deadlines.is_empty());
            assert_eq!(manager.deadline(), None);
        }
    }
}

// IB-CM-9, IB-CM-19, IB-CM-27, IB-CM-40, IB-CM-41, IB-CM-45
#[test]
fn a_connection_is_made_and_released() {
    let mut pair = Pair::new();
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let messages = sent(&mut pair.active);
    let [(PASSIVE, transaction_id, Message::Req(request))] = messages[..] else { panic!("{messages:?}") };
    assert_eq!(request, Req { local_communication_id: a, local_ca_guid: ACTIVE.into(), ..req() });
    let bytes = Message::from(request).to_mad(transaction_id).to_bytes();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let told = events(&mut pair.passive);
    let [Event::Request { connection: b, peer: ACTIVE, request: heard }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(**heard, request);
    let b = *b;

    pair.passive.accept(b, &rep(), ZERO).unwrap();
    let messages = sent(&mut pair.passive);
    let reply =
        Rep { local_communication_id: b, remote_communication_id: a, local_ca_guid: PASSIVE.into(), ..rep() };
    assert_eq!(messages, [(ACTIVE, transaction_id, reply.into())]);
    let bytes = Message::from(reply).to_mad(transaction_id).to_bytes();
    pair.active.receive(&bytes, PASSIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.active), [Event::Reply { connection: a, reply: Box::new(reply) }]);
    assert_eq!(pair.active.deadline(), None);

    pair.active.ready(a).unwrap();
    let rtu = Rtu { local_communication_id: a, remote_communication_id: b, ..Rtu::default() };
    let messages = sent(&mut pair.active);
    assert_eq!(messages, [(PASSIVE, transaction_id, rtu.into())]);
    pair.passive.receive(&Message::from(rtu).to_mad(transaction_id).to_bytes(), ACTIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.passive), [Event::Established { connection: b }]);
    assert_eq!(pair.passive.deadline(), None);

    pair.passive.disconnect(b, ZERO).unwrap();
    let [Message::Dreq(dreq)] = pair.back()[..] else { panic!() };
    assert_eq!((dreq.remote_communication_id, dreq.remote_qpn), (a, ACTIVE_QPN));
    assert_eq!(events(&mut pair.active), [Event::Disconnected { connection: a, asked: true }]);
    pair.active.disconnect(a, ZERO).unwrap();
    let [Message::Drep(_)] = pair.forth()[..] else { panic!() };
    assert_eq!(events(&mut pair.passive), [Event::Disconnected { connection: b, asked: false }]);

    for (manager, connection) in [(&mut pair.active, a), (&mut pair.passive, b)] {
        let at = manager.deadline().unwrap();
        assert!(at >= interval(19) && at <= SECOND * 3);
        manager.handle_timeout(at);
        assert_eq!(events(manager), [Event::TimewaitExit { connection }]);
    }
    pair.end();
}

// IB-CM-23, IB-CM-26
#[test]
fn nobody_listens() {
    let mut pair = Pair::new();
    pair.passive.unlisten(service());
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    pair.forth();
    let [Message::Rej(rej)] = pair.back()[..] else { panic!() };
    assert_eq!((rej.reason, rej.remote_communication_id), (RejectReason::INVALID_SERVICE_ID, a));
    assert_eq!(events(&mut pair.active), [Event::Rejected { connection: a, rejection: Box::new(rej) }]);
    pair.end();
}

// IB-CM-35
#[test]
fn another_transport_is_refused() {
    let mut pair = Pair::new();
    pair.active.connect(PASSIVE, &Req { transport_service: 3, ..req() }, ZERO).unwrap();
    pair.forth();
    let [Message::Rej(rej)] = pair.back()[..] else { panic!() };
    assert_eq!(rej.reason, RejectReason::INVALID_TRANSPORT_TYPE);
    pair.end();
}

// IB-CM-27, IB-CM-28, IB-CM-37
#[test]
fn a_refusal_is_given_again_but_not_for_ever() {
    let mut pair = Pair::new();
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let [Event::Request { connection: b, .. }] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.reject(b, &no(), ZERO).unwrap();
    assert!(pair.passive.is_empty());
    let first = sent(&mut pair.passive);
    let (_, transaction_id) = (first[0].0, first[0].1);
    pair.passive.receive(&bytes, ACTIVE, SECOND * 5).unwrap();
    assert_eq!(sent(&mut pair.passive), first);
    assert_eq!(events(&mut pair.passive), []);
    let Message::Rej(rej) = first[0].2 else { panic!() };
    assert_eq!((rej.message, rej.reason, rej.local_communication_id), (about::REQ, no().reason, 0));

    pair.active.receive(&first[0].2.to_mad(transaction_id).to_bytes(), PASSIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.active), [Event::Rejected { connection: a, rejection: Box::new(rej) }]);

    pair.passive.receive(&bytes, ACTIVE, ANSWER_LIFETIME).unwrap();
    assert!(matches!(events(&mut pair.passive)[..], [Event::Request { .. }]));
}

// ROCE-40
#[test]
fn answers_that_are_kept_are_bounded() {
    let mut pair = Pair::new();
    for number in 1..=MAX_ANSWERS as u32 + 10 {
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        pair.passive.receive(&Message::from(req).to_mad(1).to_bytes(), ACTIVE, ZERO).unwrap();
        let [Event::Request { connection, .. }] = events(&mut pair.passive)[..] else { panic!() };
        pair.passive.reject(connection, &no(), ZERO).unwrap();
    }
    assert_eq!(pair.passive.answers.len(), MAX_ANSWERS);
    assert!(pair.passive.is_empty());
}

/// Runs a manager's clock until it has nothing to wait for; returns when it sent what.
fn wait(manager: &mut Manager<u8>) -> Vec<(Duration, Message)> {
    let mut messages = Vec::new();
    while let Some(at) = manager.deadline() {
        manager.handle_timeout(at);
        messages.extend(sent(manager).into_iter().map(|(_, _, message)| (at, message)));
    }
    messages
}

// IB-CM-16, IB-CM-17
#[test]
fn nobody_answers() {
    let mut pair = Pair::new();
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let [(_, _, first)] = sent(&mut pair.active)[..] else { panic!() };
    let messages = wait(&mut pair.active);
    let (last, again) = messages.split_last().unwrap();
    assert_eq!(again.len(), usize::from(MAX_RETRIES));
    let timeout = interval(RESPONSE_TIMEOUT) + interval(19);
    for (number, (at, message)) in (1..).zip(again) {
        assert_eq!((*at, *message), (timeout * number, first));
    }
    let Message::Rej(rej) = last.1 else { panic!("{last:?}") };
    assert_eq!((rej.reason, rej.local_communication_id), (RejectReason::TIMEOUT, a));
    assert_eq!(rej.additional_information[..8], u64::from(ACTIVE).to_be_bytes());
    assert_eq!(events(&mut pair.active), [Event::TimedOut { connection: a }]);
    pair.end();
}

// IB-CM-48
#[test]
fn whoever_stops_waiting_says_so() {
    let mut pair = Pair::new();
    let (a, b) = pair.ask();
    pair.active.destroy(a, ZERO);
    pair.forth();
    assert!(matches!(events(&mut pair.passive)[..], [Event::Rejected { connection, .. }] if connection == b));
    assert_eq!(pair.passive.accept(b, &rep(), ZERO), Err(Error::Unknown));
    assert_eq!(events(&mut pair.active), []);
    pair.end();
}

// IB-CM-18, IB-CM-29, IB-CM-31
#[test]
fn a_program_that_takes_its_time() {
    let mut pair = Pair::new();
    let (a, b) = pair.ask();
    let at = pair.active.deadline().unwrap();
    pair.active.handle_timeout(at);
    assert!(matches!(pair.forth()[..], [Message::Req(_)]));
    assert_eq!(events(&mut pair.passive), []);
    pair.now = at;
    let [Message::Mra(mra)] = pair.back()[..] else { panic!() };
    assert_eq!((mra.message, mra.remote_communication_id), (about::REQ, a));
    let long = interval(SERVICE_TIMEOUT);
    assert!(pair.active.deadline().unwrap() >= at + long);
    // A second one changes nothing.
    let bytes = Message::from(mra).to_mad(0).to_bytes();
    assert_eq!(pair.active.receive(&bytes, PASSIVE, at + long), Err(Ignored::State));
    // The retries are no more for it.
    pair.active.handle_timeout(EVER);
    assert!(matches!(pair.forth()[..], [Message::Req(_)]));

    pair.passive.accept(b, &rep(), ZERO).unwrap();
    pair.back();
    assert!(matches!(events(&mut pair.active)[..], [Event::Reply { .. }]));
    // REP comes again before the program has said that it is ready.
    let at = pair.passive.deadline().unwrap();
    pair.passive.handle_timeout(at);
    assert!(matches!(pair.back()[..], [Message::Rep(_)]));
    let [Message::Mra(mra)] = pair.forth()[..] else { panic!() };
    assert_eq!(mra.message, about::REP);
    assert!(pair.passive.deadline().unwrap() >= at + long);
    pair.active.ready(a).unwrap();
    pair.forth();
    assert_eq!(events(&mut pair.passive), [Event::Established { connection: b }]);

    // Waiting for DREP has its own time.
    pair.passive.disconnect(b, at).unwrap();
    assert!(pair.passive.deadline().unwrap() <= at + SECOND * 10);
}

// IB-CM-15, IB-CM-27, IB-CM-28
#[test]
fn a_request_that_comes_again_gets_the_same_reply() {
    let mut pair = Pair::new();
    pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let [Event::Request { connection: b, .. }] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.accept(b, &rep(), ZERO).unwrap();
    let first = sent(&mut pair.passive);
    let deadline = pair.passive.deadline();
    pair.passive.receive(&bytes, ACTIVE, SECOND).unwrap();
    assert_eq!(sent(&mut pair.passive), first);
    assert_eq!(pair.passive.deadline(), deadline);
    assert_eq!(events(&mut pair.passive), []);
}

// IB-CM-20, IB-CM-30
#[test]
fn lost_ready_to_use() {
    let mut pair = Pair::new();
    let (a, b) = pair.agree();
    pair.active.ready(a).unwrap();
    assert_eq!(sent(&mut pair.active).len(), 1);
    let at = pair.passive.deadline().unwrap();
    assert_eq!(at, interval(RESPONSE_TIMEOUT));
    pair.passive.handle_timeout(at);
    assert!(matches!(pair.back()[..], [Message::Rep(_)]));
    assert_eq!(events(&mut pair.active), []);
    assert!(matches!(pair.forth()[..], [Message::Rtu(_)]));
    assert_eq!(events(&mut pair.passive), [Event::Established { connection: b }]);
}

// IB-CM-30, IB-CM-32, IB-CM-63
#[test]
fn data_come_before_ready_to_use() {
    let mut pair = Pair::new();
    let (a, b) = pair.agree();
    pair.active.ready(a).unwrap();
    assert_eq!(pair.active.establish(a), Ok(()));
    pair.passive.establish(b).unwrap();
    assert_eq!(events(&mut pair.passive), [Event::Established { connection: b }]);
    assert_eq!(pair.passive.deadline(), None);
    pair.forth();
    pair.passive.establish(b).unwrap();
    assert_eq!(events(&mut pair.passive), []);
}

// IB-CM-30
#[test]
fn ready_to_use_never_comes() {
    let mut pair = Pair::new();
    let (_, b) = pair.agree();
    let messages = wait(&mut pair.passive);
    assert_eq!(messages.len(), usize::from(MAX_RETRIES) + 1);
    let Message::Rej(rej) = messages.last().unwrap().1 else { panic!() };
    assert_eq!(rej.reason, RejectReason::TIMEOUT);
    assert_eq!(events(&mut pair.passive), [Event::TimedOut { connection: b }]);
    pair.active.receive(&Message::from(rej).to_mad(0).to_bytes(), PASSIVE, ZERO).unwrap();
    assert!(matches!(events(&mut pair.active)[..], [Event::Rejected { .. }]));
    pair.end();
}

// IB-CM-21, IB-CM-24
#[test]
fn a_reply_can_be_refused() {
    let mut pair = Pair::new();
    let (a, b) = pair.agree();
    pair.active.reject(a, &no(), ZERO).unwrap();
    let [Message::Rej(rej)] = pair.forth()[..] else { panic!() };
    assert_eq!((rej.message, rej.reason, rej.private_data), (about::REP, no().reason, no().private_data));
    assert_eq!(events(&mut pair.passive), [Event::Rejected { connection: b, rejection: Box::new(rej) }]);
    pair.end();
}

// IB-CM-9, IB-CM-41, IB-CM-43, IB-CM-45
#[test]
fn a_wish_to_release_that_comes_again() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    pair.active.disconnect(a, ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.passive), [Event::Disconnected { connection: b, asked: true }]);
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::State));
    pair.passive.disconnect(b, ZERO).unwrap();
    let first = sent(&mut pair.passive);
    assert_eq!(first[0].1, parse(&bytes).0);
    for _ in 0..2 {
        pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
        assert_eq!(sent(&mut pair.passive), first);
    }
    pair.passive.handle_timeout(SECOND * 10);
    assert_eq!(events(&mut pair.passive), [Event::TimewaitExit { connection: b }]);
    // Nobody knows the connection any more, and still the peer gets its answer.
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::Unknown));
    assert_eq!(sent(&mut pair.passive), first);
}

// IB-CM-44
#[test]
fn release_of_another_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let dreq = Dreq {
        local_communication_id: a,
        remote_communication_id: b,
        remote_qpn: PASSIVE_QPN + 1,
        ..Dreq::default()
    };
    let bytes = Message::from(dreq).to_mad(0).to_bytes();
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::State));
    assert!(sent(&mut pair.passive).is_empty() && events(&mut pair.passive).is_empty());
}

// IB-CM-42
#[test]
fn both_sides_release_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    pair.active.disconnect(a, ZERO).unwrap();
    pair.passive.disconnect(b, ZERO).unwrap();
    let (forth, back) = (pair.active.poll_transmit().unwrap().1, pair.passive.poll_transmit().unwrap().1);
    pair.passive.receive(&forth, ACTIVE, ZERO).unwrap();
    pair.active.receive(&back, PASSIVE, ZERO).unwrap();
    for (manager, connection) in [(&mut pair.active, a), (&mut pair.passive, b)] {
        assert_eq!(events(manager), [Event::Disconnected { connection, asked: false }]);
        assert!(matches!(sent(manager)[..], [(_, _, Message::Drep(_))]));
    }
    pair.end();
}

// IB-CM-40, IB-CM-45
#[test]
fn nobody_answers_the_wish_to_release() {
    let mut pair = Pair::new();
    let (a, _) = pair.establish();
    pair.active.disconnect(a, ZERO).unwrap();
    assert_eq!(sent(&mut pair.active).len(), 1);
    let messages = wait(&mut pair.active);
    assert_eq!(messages.len(), usize::from(MAX_RETRIES));
    let [Event::Disconnected { connection: x, asked: false }, Event::TimewaitExit { connection: y }] =
        events(&mut pair.active)[..]
    else {
        panic!()
    };
    assert_eq!((x, y), (a, a));
    assert!(pair.active.is_empty());
}

// IB-CM-33
#[test]
fn a_queue_pair_that_is_in_use_makes_the_old_connection_stale() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    // The peer's program has begun anew, and got the same queue pair.
    let mut again = Manager::new(Config { seed: 99, ..config(ACTIVE) });
    let c = again.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = again.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let messages = sent(&mut pair.passive);
    let [(ACTIVE, _, Message::Rej(rej)), (ACTIVE, transaction_id, Message::Dreq(dreq))] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((rej.remote_communication_id, rej.reason), (c, RejectReason::STALE_CONNECTION));
    assert_eq!(dreq.remote_communication_id, a);
    assert_eq!(events(&mut pair.passive), []);

    let bytes = Message::from(rej).to_mad(0).to_bytes();
    again.receive(&bytes, PASSIVE, ZERO).unwrap();
    assert!(matches!(events(&mut again)[..], [Event::Rejected { .. }]));
    again.handle_timeout(EVER);
    assert_eq!(events(&mut again), [Event::TimewaitExit { connection: c }]);

    let bytes = Message::from(dreq).to_mad(transaction_id).to_bytes();
    assert_eq!(again.receive(&bytes, PASSIVE, ZERO), Err(Ignored::Unknown));
    let (_, drep) = again.poll_transmit().unwrap();
    pair.passive.receive(&drep, ACTIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.passive), [Event::Disconnected { connection: b, asked: false }]);
    // Now the queue pair is free.
    again.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = again.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert!(matches!(events(&mut pair.passive)[..], [Event::Request { .. }]));
}

#[test]
fn a_communication_id_that_is_in_use_makes_the_old_connection_stale() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let req = Req { local_communication_id: a, local_ca_guid: ACTIVE.into(), local_qpn: 0x77, ..req() };
    let bytes = Message::from(req).to_mad(1).to_bytes();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert!(matches!(
        sent(&mut pair.passive)[..],
        [(_, 1, Message::Rej(Rej { reason: RejectReason::STALE_CONNECTION, .. })), (_, _, Message::Dreq(_))]
    ));
    assert_eq!(pair.passive.disconnect(b, ZERO), Err(Error::State));
}

#[test]
fn a_reply_of_a_queue_pair_that_is_in_use() {
    let mut pair = Pair::new();
    let (_, b) = pair.establish();
    // The passive side forgets everything, and gets the same queue pair.
    pair.passive = Manager::new(Config { seed: 99, ..config(PASSIVE) });
    pair.passive.listen(service(), 1).unwrap();
    let c = pair.active.connect(PASSIVE, &Req { local_qpn: 0x77, ..req() }, ZERO).unwrap();
    pair.forth();
    let [Event::Request { connection: d, .. }] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.accept(d, &rep(), ZERO).unwrap();
    pair.back();
    let messages = sent(&mut pair.active);
    let [(_, _, Message::Rej(rej)), (_, _, Message::Dreq(dreq))] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((rej.local_communication_id, rej.remote_communication_id), (c, d));
    assert_eq!((rej.message, rej.reason), (about::REP, RejectReason::STALE_CONNECTION));
    assert_eq!(dreq.remote_communication_id, b);
}

// IB-CM-34
#[test]
fn the_request_of_a_released_connection_is_stale() {
    let mut pair = Pair::new();
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let [Event::Request { connection: b, .. }] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.accept(b, &rep(), ZERO).unwrap();
    pair.back();
    pair.active.ready(a).unwrap();
    pair.forth();
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::State));
    pair.active.disconnect(a, ZERO).unwrap();
    pair.forth();
    pair.passive.disconnect(b, ZERO).unwrap();
    pair.back();
    events(&mut pair.passive);
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let [(_, _, Message::Rej(rej))] = sent(&mut pair.passive)[..] else { panic!() };
    assert_eq!(rej.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(events(&mut pair.passive), []);
}

/// Messages for a connection count only from its peer, and with both communication IDs.
// IB-CM-12, IB-CM-13, IB-CM-22
#[test]
fn strangers_change_nothing() {
    let mut pair = Pair::new();
    let (a, b) = pair.agree();
    let (c, d) = (a, b ^ 1);
    let messages = |local_communication_id, remote_communication_id| {
        let rej = Rej { local_communication_id, remote_communication_id, message: about::REP, ..no() };
        let remote_qpn = PASSIVE_QPN;
        [
            Rtu { local_communication_id, remote_communication_id, ..Rtu::default() }.into(),
            rej.into(),
            Dreq { local_communication_id, remote_communication_id, remote_qpn, ..Dreq::default() }.into(),
            Drep { local_communication_id, remote_communication_id, ..Drep::default() }.into(),
            Mra { local_communication_id, remote_communication_id, message: about::REP, ..Mra::default() }
                .into(),
            Message::Rep(Rep { local_communication_id, remote_communication_id, ..rep() }),
        ]
    };
    let deadline = pair.passive.deadline();
    for (from, local, remote) in [(STRANGER, a, b), (ACTIVE, c + 1, b), (ACTIVE, a, d)] {
        for message in messages(local, remote) {
            let bytes = message.to_mad(0).to_bytes();
            assert_eq!(pair.passive.receive(&bytes, from, ZERO), Err(Ignored::Unknown), "{message:?}");
        }
    }
    assert_eq!(events(&mut pair.passive), []);
    assert_eq!(pair.passive.deadline(), deadline);
    assert!(pair.passive.establish(b).is_ok());
    assert_eq!(pair.passive.establish(d), Err(Error::Unknown));
}

// IB-CM-46
#[test]
fn a_refusal_ends_an_established_connection() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let rej = Rej { local_communication_id: a, remote_communication_id: b, message: about::OTHER, ..no() };
    pair.passive.receive(&Message::from(rej).to_mad(0).to_bytes(), ACTIVE, ZERO).unwrap();
    assert!(matches!(events(&mut pair.passive)[..], [Event::Rejected { .. }]));
    pair.passive.handle_timeout(EVER);
    assert_eq!(events(&mut pair.passive), [Event::TimewaitExit { connection: b }]);
}

// IB-CM-36, ROCE-40
#[test]
fn unanswered_requests_are_bounded() {
    let mut pair = Pair::new();
    let ask = |passive: &mut Manager<u8>, number| {
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        passive.receive(&Message::from(req).to_mad(1).to_bytes(), ACTIVE, ZERO)
    };
    for number in 1..=4 {
        assert_eq!(ask(&mut pair.passive, number), Ok(()));
    }
    assert_eq!(ask(&mut pair.passive, 5), Err(Ignored::Full));
    let sidr = SidrReq { request_id: 1, service_id: service(), ..SidrReq::default() };
    let bytes = Message::from(sidr).to_mad(1).to_bytes();
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::Full));
    let [Event::Request { connection, .. }, ..] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.accept(connection, &rep(), ZERO).unwrap();
    assert_eq!(ask(&mut pair.passive, 5), Ok(()));
    assert_eq!(pair.passive.listen(service(), 1), Err(Error::InUse));
}

// IB-CM-11, ROCE-40
#[test]
fn connections_are_bounded_and_numbered() {
    let mut manager =
        Manager::new(Config { prefix: 0xabc, prefix_bits: 12, max_connections: 1000, ..config(1) });
    let mut ids = BTreeSet::new();
    for _ in 0..1000 {
        ids.insert(manager.connect(PASSIVE, &req(), ZERO).unwrap());
    }
    assert_eq!(ids.len(), 1000);
    assert!(ids.iter().all(|id| id >> 20 == 0xabc));
    assert_eq!(manager.connect(PASSIVE, &req(), ZERO), Err(Error::Full));
    manager.destroy(*ids.first().unwrap(), ZERO);
    assert!(manager.connect(PASSIVE, &req(), ZERO).is_ok());
    assert_eq!(manager.len(), 1000);

    let mut few = Manager::new(Config { prefix: 0, prefix_bits: 0, seed: 0, ca_guid: 0, max_connections: 1 });
    let id = few.connect(PASSIVE, &req(), ZERO).unwrap();
    assert_ne!(id, 0);
    let bytes = Message::from(req()).to_mad(0).to_bytes();
    few.listen(service(), 1).unwrap();
    assert_eq!(few.receive(&bytes, ACTIVE, ZERO), Err(Ignored::Malformed));
    let bytes = Message::from(Req { local_communication_id: 1, ..req() }).to_mad(0).to_bytes();
    assert_eq!(few.receive(&bytes, ACTIVE, ZERO), Err(Ignored::Full));
}

#[test]
fn calls_in_the_wrong_state() {
    let mut pair = Pair::new();
    let (a, b) = pair.ask();
    assert_eq!(pair.active.ready(a), Err(Error::State));
    assert_eq!(pair.active.accept(a, &rep(), ZERO), Err(Error::State));
    assert_eq!(pair.active.reject(a, &no(), ZERO), Err(Error::State));
    assert_eq!(pair.active.disconnect(a, ZERO), Err(Error::State));
    assert_eq!(pair.active.establish(a), Err(Error::State));
    assert_eq!(pair.active.answer(a, &SidrRep::default(), ZERO), Err(Error::State));
    assert_eq!(pair.passive.ready(b), Err(Error::State));
    assert_eq!(pair.passive.disconnect(b, ZERO), Err(Error::State));
    assert_eq!(pair.passive.disconnect(b + 1, ZERO), Err(Error::Unknown));
}

/// What a peer hears when a program loses interest, by how far the connection is.
// IB-CM-48, IB-SIDR-4
#[test]
fn destroyed_in_any_state() {
    let mut pair = Pair::new();
    let (_, b) = pair.ask();
    pair.passive.destroy(b, ZERO);
    assert!(matches!(pair.back()[..], [Message::Rej(Rej { message: about::REQ, .. })]));
    pair.end();

    let mut pair = Pair::new();
    let (_, b) = pair.agree();
    pair.passive.destroy(b, ZERO);
    assert!(matches!(pair.back()[..], [Message::Rej(Rej { message: about::OTHER, .. })]));
    assert!(matches!(events(&mut pair.active)[..], [Event::Rejected { .. }]));
    pair.end();

    let mut pair = Pair::new();
    let (a, _) = pair.agree();
    pair.active.destroy(a, ZERO);
    assert!(matches!(pair.forth()[..], [Message::Rej(Rej { message: about::REP, .. })]));
    pair.end();

    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    pair.active.destroy(a, ZERO);
    pair.active.destroy(a, ZERO);
    assert_eq!(pair.active.disconnect(a, ZERO), Err(Error::Unknown));
    assert!(matches!(pair.forth()[..], [Message::Dreq(_)]));
    assert_eq!(events(&mut pair.passive), [Event::Disconnected { connection: b, asked: true }]);
    pair.passive.destroy(b, ZERO);
    assert!(matches!(pair.back()[..], [Message::Drep(_)]));
    pair.now = SECOND * 10;
    pair.active.handle_timeout(pair.now);
    pair.passive.handle_timeout(pair.now);
    assert!(events(&mut pair.active).is_empty() && events(&mut pair.passive).is_empty());
    pair.end();

    let mut pair = Pair::new();
    pair.active.resolve(PASSIVE, &SidrReq { service_id: service(), ..SidrReq::default() }, ZERO).unwrap();
    pair.forth();
    let [Event::DatagramRequest { connection, .. }] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.destroy(connection, ZERO);
    assert!(matches!(pair.back()[..], [Message::SidrRep(SidrRep { status: sidr_status::REJECT, .. })]));
    pair.end();
}

// IB-SIDR-2, IB-SIDR-4, IB-SIDR-5, IB-SIDR-6
#[test]
fn a_datagram_service_is_found() {
    let mut pair = Pair::new();
    let req = SidrReq { service_id: service(), pkey: 0xffff, ..SidrReq::default() };
    let a = pair.active.resolve(PASSIVE, &req, ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let told = events(&mut pair.passive);
    let [Event::DatagramRequest { connection: b, peer: ACTIVE, request }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(**request, SidrReq { request_id: a, ..req });
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(Ignored::State));
    let rep = SidrRep { qpn: PASSIVE_QPN, qkey: 0x0123_4567, ..SidrRep::default() };
    pair.passive.answer(*b, &rep, ZERO).unwrap();
    assert!(pair.passive.is_empty());
    let first = sent(&mut pair.passive);
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert_eq!(sent(&mut pair.passive), first);
    assert_eq!(events(&mut pair.passive), []);
    let reply = SidrRep { request_id: a, service_id: service(), ..rep };
    assert_eq!(first, [(ACTIVE, parse(&bytes).0, reply.into())]);
    let bytes = Message::from(reply).to_mad(0).to_bytes();
    assert_eq!(pair.active.receive(&bytes, STRANGER, ZERO), Err(Ignored::Unknown));
    pair.active.receive(&bytes, PASSIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.active), [Event::DatagramReply { connection: a, reply: Box::new(reply) }]);
    assert_eq!(pair.active.receive(&bytes, PASSIVE, ZERO), Err(Ignored::Unknown));
    pair.end();
}

// IB-SIDR-2, IB-SIDR-3
#[test]
fn a_datagram_service_is_not_found() {
    let mut pair = Pair::new();
    pair.active.resolve(PASSIVE, &SidrReq { service_id: 1, ..SidrReq::default() }, ZERO).unwrap();
    pair.forth();
    let [Message::SidrRep(rep)] = pair.back()[..] else { panic!() };
    assert_eq!((rep.status, rep.service_id), (sidr_status::UNSUPPORTED, 1));
    assert!(matches!(events(&mut pair.active)[..], [Event::DatagramReply { .. }]));

    let a = pair.active.resolve(PASSIVE, &SidrReq::default(), ZERO).unwrap();
    assert_eq!(sent(&mut pair.active).len(), 1);
    assert_eq!(wait(&mut pair.active).len(), usize::from(MAX_RETRIES));
    assert_eq!(events(&mut pair.active), [Event::TimedOut { connection: a }]);
    pair.end();
}

#[test]
fn a_program_connects_to_itself() {
    let mut manager: Manager<u8> = Manager::new(config(ACTIVE));
    manager.listen(service(), 1).unwrap();
    let a = manager.connect(ACTIVE, &req(), ZERO).unwrap();
    let mut b = None;
    let mut told = Vec::new();
    loop {
        while let Some((to, bytes)) = manager.poll_transmit() {
            manager.receive(&bytes, to, ZERO).unwrap();
        }
        let Some(event) = manager.poll_event() else { break };
        match &event {
            Event::Request { connection, .. } => {
                b = Some(*connection);
                manager.accept(*connection, &rep(), ZERO).unwrap();
            }
            Event::Reply { .. } => manager.ready(a).unwrap(),
            Event::Established { .. } => manager.disconnect(a, ZERO).unwrap(),
            Event::Disconnected { connection, asked: true } => manager.disconnect(*connection, ZERO).unwrap(),
            _ => {}
        }
        told.push(event);
    }
    assert_eq!(told.len(), 5);
    assert_eq!(told[4], Event::Disconnected { connection: a, asked: false });
    assert!(b.is_some_and(|b| b != a));
    manager.handle_timeout(SECOND * 10);
    assert!(manager.is_empty());
}

// IB-CM-8, IB-CM-10, IB-CM-49, IB-PKT-59
#[test]
fn what_is_no_message_is_ignored() {
    let mut manager: Manager<u8> = Manager::new(config(ACTIVE));
    let lap = Header::new(class::COMMUNICATION, 2, method::SEND, 0, 0x19);
    assert_eq!(manager.receive(&Mad::new(lap).to_bytes(), PASSIVE, ZERO), Err(Ignored::Unknown));
    let other = Header::new(class::PERFORMANCE, 1, method::GET, 0, 0x10);
    assert_eq!(manager.receive(&Mad::new(other).to_bytes(), PASSIVE, ZERO), Err(Ignored::Malformed));
    assert_eq!(manager.receive(&[], PASSIVE, ZERO), Err(Ignored::Malformed));
    assert_eq!(manager.poll_transmit(), None);
}

proptest! {
    /// Messages about few things, so that they meet connections; whatever they are, memory is bounded and the state
    /// consistent.
    // IB-CM-8, ROCE-40
    #[test]
    fn junk(messages in proptest::collection::vec((0u16..11, any::<[u8; 16]>(), any::<u8>()), 0..200)) {
        let mut manager: Manager<u8> = Manager::new(Config { max_connections: 8, ..config(ACTIVE) });
        manager.listen(0, 3).unwrap();
        let mut now = ZERO;
        for _ in 0..2 {
            manager.connect(PASSIVE, &req(), now).unwrap();
            sent(&mut manager);
        }
        for (kind, bytes, choice) in messages {
            let mut data = [0; 232];
            for (at, byte) in data.iter_mut().enumerate().take(100) {
                *byte = bytes[at % 16] & 1;
            }
            let known: Vec<u32> = manager.connections.keys().copied().collect();
            if let Some(id) = known.get(usize::from(choice) % 9) {
                data[4..8].copy_from_slice(&id.to_be_bytes());
            }
            let header = Header::new(class::COMMUNICATION, 2, method::SEND, u64::from(bytes[0] & 1), 0x10 + kind);
            let _ = manager.receive(&Mad { header, data }.to_bytes(), PASSIVE - (choice & 1), now);
            assert!(manager.transmissions.len() <= 2 && manager.events.len() <= 1);
            while manager.poll_transmit().is_some() {}
            match (manager.poll_event(), choice >> 5) {
                (Some(Event::Request { connection, .. }), 0..3) => {
                    manager.accept(connection, &rep(), now).unwrap();
                }
                (Some(Event::Request { connection, .. }), 3) => {
                    manager.reject(connection, &no(), now).unwrap();
                }
                (Some(Event::Reply { connection, .. }), 0..4) => manager.ready(connection).unwrap(),
                (Some(Event::Disconnected { connection, asked: true }), 0..6) => {
                    manager.disconnect(connection, now).unwrap();
                }
                (_, 6) => {
                    now += SECOND;
                    manager.handle_timeout(now);
                }
                (_, 7) => if let Some(id) = known.first() { manager.destroy(*id, now) },
                _ => {}
            }
            while manager.poll_event().is_some() {}
            while manager.poll_transmit().is_some() {}
            assert!(manager.len() <= 8 && manager.remotes.len() <= 16 && manager.answers.len() <= MAX_ANSWERS);
            assert!(manager.listeners[&0].unanswered <= 3);
            for (id, connection) in &manager.connections {
                assert_eq!(connection.deadline.is_some(), manager.deadlines.iter().any(|(_, of)| of == id));
            }
        }
        for id in manager.connections.keys().copied().collect::<Vec<_>>() {
            manager.destroy(id, now);
        }
        manager.handle_timeout(EVER);
        manager.handle_timeout(EVER * 2);
        while manager.deadline().is_some() {
            manager.handle_timeout(manager.deadline().unwrap());
        }
        assert!(manager.is_empty() && manager.remotes.is_empty() && manager.deadlines.is_empty());
        assert_eq!(manager.listeners[&0].unanswered, 0);
    }
}
