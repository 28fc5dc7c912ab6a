//! Releasing connections.

use super::*;

// IB-CM-9, IB-CM-41, IB-CM-43, IB-CM-45
#[test]
fn a_wish_to_release_that_comes_again() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    pair.active.disconnect(a, ZERO).unwrap();
    let (_, bytes) = pair.active.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.passive), [Event::Disconnected { connection: b, asked: true }]);
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::State));
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
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::Unknown));
    assert_eq!(sent(&mut pair.passive), first);
}

// IB-CM-47
#[test]
fn a_wish_to_release_without_an_answer_is_repeated_when_the_process_exits() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    pair.active.disconnect(a, ZERO).unwrap();
    let lost = pair.active.poll_transmit().unwrap();
    pair.active.repeat_releases(ZERO);
    assert_eq!(pair.active.poll_transmit(), Some(lost));
    assert_eq!(pair.active.poll_transmit(), None);
    pair.passive.receive(&lost.1, ACTIVE, ZERO).unwrap();
    pair.passive.disconnect(b, ZERO).unwrap();
    let answer = pair.passive.poll_transmit().unwrap().1;
    pair.active.receive(&answer, PASSIVE, ZERO).unwrap();
    pair.active.repeat_releases(ZERO);
    assert_eq!(pair.active.poll_transmit(), None);
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
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::State));
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
    let mut again = Manager::new(Config { key: [99; 2], ..config(ACTIVE) });
    let c = again.connect(PASSIVE, &req(), ZERO).unwrap();
    let (_, bytes) = again.poll_transmit().unwrap();
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    let messages = sent(&mut pair.passive);
    let [(ACTIVE, refused, Message::Rej(rej)), (ACTIVE, transaction_id, Message::Dreq(dreq))] = messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((rej.remote_communication_id, rej.reason), (c, RejectReason::STALE_CONNECTION));
    assert_eq!(dreq.remote_communication_id, a);
    assert_eq!(events(&mut pair.passive), []);

    let bytes = Message::from(rej).to_mad(refused).to_bytes();
    again.receive(&bytes, PASSIVE, ZERO).unwrap();
    assert!(matches!(events(&mut again)[..], [Event::Rejected { .. }]));
    again.handle_timeout(EVER);
    assert_eq!(events(&mut again), [Event::TimewaitExit { connection: c }]);

    let bytes = Message::from(dreq).to_mad(transaction_id).to_bytes();
    assert_eq!(again.receive(&bytes, PASSIVE, ZERO), Err(IgnoreReason::Unknown));
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
    pair.passive = Manager::new(Config { key: [99; 2], ..config(PASSIVE) });
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
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::State));
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

// IB-CM-46
#[test]
fn a_refusal_ends_an_established_connection() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let rej = Rej { local_communication_id: a, remote_communication_id: b, message: about::OTHER, ..no() };
    let transaction = pair.passive.connections[&b].transaction_id;
    pair.passive.receive(&Message::from(rej).to_mad(transaction).to_bytes(), ACTIVE, ZERO).unwrap();
    assert!(matches!(events(&mut pair.passive)[..], [Event::Rejected { .. }]));
    pair.passive.handle_timeout(EVER);
    assert_eq!(events(&mut pair.passive), [Event::TimewaitExit { connection: b }]);
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
