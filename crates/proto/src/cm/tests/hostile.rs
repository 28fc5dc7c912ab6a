//! What does not belong there, and how much of it is kept.

use super::*;

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
            assert_eq!(pair.passive.receive(&bytes, from, ZERO), Err(IgnoreReason::Unknown), "{message:?}");
        }
    }
    assert_eq!(events(&mut pair.passive), []);
    assert_eq!(pair.passive.deadline(), deadline);
    assert!(pair.passive.establish(b).is_ok());
    assert_eq!(pair.passive.establish(d), Err(Error::Unknown));
}

/// Before the peer has said what it calls the connection, an answer has to have the transaction of the
/// request, which who has not seen it does not know.
// IB-CM-11, IB-CM-22
#[test]
fn answers_without_the_transaction_of_the_request_are_ignored() {
    let mut pair = Pair::new();
    let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
    let transaction = sent(&mut pair.active)[0].1;
    let deadline = pair.active.deadline();
    let rej = Rej {
        remote_communication_id: a,
        message: about::REQ,
        reason: RejectReason::CONSUMER_DEFINED,
        ..no()
    };
    let answers = [
        Message::from(rej),
        Mra { remote_communication_id: a, local_communication_id: 5, message: about::REQ, ..Mra::default() }
            .into(),
        Rep { remote_communication_id: a, local_communication_id: 5, ..rep() }.into(),
    ];
    for answer in answers {
        for guess in [0, a.into(), transaction ^ 1 << 32] {
            let bytes = answer.to_mad(guess).to_bytes();
            assert_eq!(pair.active.receive(&bytes, PASSIVE, ZERO), Err(IgnoreReason::Unknown), "{answer:?}");
        }
    }
    assert_eq!((events(&mut pair.active), pair.active.deadline()), (vec![], deadline));
    pair.active.receive(&Message::from(rej).to_mad(transaction).to_bytes(), PASSIVE, ZERO).unwrap();
    assert!(matches!(events(&mut pair.active)[..], [Event::Rejected { .. }]));
}

/// A connection of which the caller knows that it stands is not released because a request names its queue
/// pair or its communication ID. Such a request gets no answer, and is served when it comes again after the
/// connection has ended.
// ROCE-42
#[test]
fn a_request_does_not_release_a_connection_that_stands() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let forged = |local_communication_id, local_qpn| {
        let req = Req { local_communication_id, local_ca_guid: ACTIVE.into(), local_qpn, ..req() };
        Message::from(req).to_mad(99).to_bytes()
    };
    let claim = StaleClaim { local_qpn: PASSIVE_QPN, remote_qpn: ACTIVE_QPN };
    let doubts = |claimed| {
        assert_eq!(claimed, claim);
        false
    };
    let by_number = forged(a ^ 1, ACTIVE_QPN);
    for bytes in [by_number, forged(a, ACTIVE_QPN), forged(a, 0x77)] {
        let received = pair.passive.receive_if(&bytes, ACTIVE, ZERO, &doubts);
        assert_eq!(received, Err(IgnoreReason::Doubted));
    }
    assert_eq!((sent(&mut pair.passive), events(&mut pair.passive)), (vec![], vec![]));
    assert_eq!(pair.passive.deadline(), None);
    // The peer has ended, and the caller has found out: nobody answers its wish to release.
    pair.passive.disconnect(b, ZERO).unwrap();
    sent(&mut pair.passive);
    let received = pair.passive.receive(&by_number, ACTIVE, ZERO);
    assert_eq!((received, sent(&mut pair.passive)), (Err(IgnoreReason::Doubted), vec![]));
    wait(&mut pair.passive);
    events(&mut pair.passive);
    assert_eq!(pair.passive.receive_if(&by_number, ACTIVE, EVER, &doubts), Ok(()));
    assert!(matches!(events(&mut pair.passive)[..], [Event::Request { .. }]));
}

/// A reply does not release it either. It may come from a peer that this side has asked for something else.
// ROCE-42
#[test]
fn a_reply_does_not_release_a_connection_that_stands() {
    let mut pair = Pair::new();
    pair.establish();
    let c = pair.active.connect(PASSIVE, &Req { local_qpn: 0x77, ..req() }, ZERO).unwrap();
    let transaction = sent(&mut pair.active)[0].1;
    let rep =
        Rep { local_communication_id: 5, remote_communication_id: c, local_ca_guid: PASSIVE.into(), ..rep() };
    let bytes = Message::from(rep).to_mad(transaction).to_bytes();
    let received = pair.active.receive_if(&bytes, PASSIVE, ZERO, &|_| false);
    assert_eq!(received, Err(IgnoreReason::Doubted));
    assert_eq!((sent(&mut pair.active), events(&mut pair.active)), (vec![], vec![]));
}

/// A refusal counts only with the transaction of the request, whatever its reason, and whether the connection
/// is being made or stands.
// IB-CM-9, IB-CM-12
#[test]
fn refusals_without_the_transaction_of_the_request_are_ignored() {
    let mut pair = Pair::new();
    let (a, b) = pair.establish();
    let mut timeout = Rej {
        local_communication_id: a,
        message: about::OTHER,
        reason: RejectReason::TIMEOUT,
        additional_information_len: 8,
        ..Rej::default()
    };
    timeout.additional_information[..8].copy_from_slice(&u64::from(ACTIVE).to_be_bytes());
    let other = Rej { local_communication_id: a, remote_communication_id: b, message: about::OTHER, ..no() };
    let transaction = pair.passive.connections[&b].transaction_id;
    for rej in [timeout, other] {
        for guess in [0, b.into(), transaction ^ 1 << 32] {
            let bytes = Message::from(rej).to_mad(guess).to_bytes();
            assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::Unknown), "{rej:?}");
        }
    }
    assert_eq!(events(&mut pair.passive), []);
    let bytes = Message::from(timeout).to_mad(transaction).to_bytes();
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Ok(()));
    assert!(matches!(events(&mut pair.passive)[..], [Event::Rejected { connection, .. }] if connection == b));
}

/// A process that has seen some communication IDs and transactions does not know the next ones.
// IB-CM-14
#[test]
fn one_communication_id_does_not_tell_the_next() {
    let mut manager =
        Manager::new(Config { prefix: 0xabc, prefix_bits: 12, max_connections: 1000, ..config(1) });
    let count = if cfg!(miri) { 20 } else { 500 };
    let mut seen = Vec::new();
    for _ in 0..count {
        let id = manager.connect(PASSIVE, &req(), ZERO).unwrap();
        seen.push((id, sent(&mut manager)[0].1 >> 32));
    }
    let transactions: BTreeSet<u64> = seen.iter().map(|(_, transaction)| *transaction).collect();
    assert!(transactions.len() > count - 10, "{} of {count} differ", transactions.len());
    // Neither by a step nor by a linear congruence.
    let ids: Vec<i64> = seen.iter().map(|(id, _)| i64::from(*id)).collect();
    let steps: BTreeSet<i64> = ids.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.len() > count - 10, "{} steps", steps.len());
    let rest = (1i64 << 20) - 1;
    let factors = ids.windows(3).filter(|three| {
        let [first, second, third] = [three[0], three[1], three[2]].map(|id| id & rest);
        (first * 1_664_525 + 1_013_904_223) & rest == second
            || (second * 1_664_525 + 1_013_904_223) & rest == third
    });
    assert!(factors.count() < 5);
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
    assert_eq!(ask(&mut pair.passive, 5), Err(IgnoreReason::Full));
    let sidr = SidrReq { request_id: 1, service_id: service(), ..SidrReq::default() };
    let bytes = Message::from(sidr).to_mad(1).to_bytes();
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::Full));
    let [Event::Request { connection, .. }, ..] = events(&mut pair.passive)[..] else { panic!() };
    pair.passive.accept(connection, &rep(), ZERO).unwrap();
    assert_eq!(ask(&mut pair.passive, 5), Ok(()));
    assert_eq!(pair.passive.listen(service(), 1), Err(Error::InUse));
}

/// A peer that asks and asks is in its own way: another one that has fewer requests takes the place of its
/// oldest.
// IB-CM-36, ROCE-40
#[test]
fn a_peer_that_asks_for_everything_keeps_nobody_out() {
    let mut pair = Pair::new();
    let mut number = 0;
    let mut ask = |passive: &mut Manager<u8>, peer| {
        number += 1;
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        passive.receive(&Message::from(req).to_mad(number.into()).to_bytes(), peer, ZERO)
    };
    for _ in 0..4 {
        assert_eq!(ask(&mut pair.passive, ACTIVE), Ok(()));
    }
    assert_eq!(ask(&mut pair.passive, ACTIVE), Err(IgnoreReason::Full));
    let first = match events(&mut pair.passive)[..] {
        [Event::Request { connection, .. }, _, _, _] => connection,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(sent(&mut pair.passive), []);
    assert_eq!(ask(&mut pair.passive, STRANGER), Ok(()));
    let [(ACTIVE, 1, Message::Rej(rej))] = &sent(&mut pair.passive)[..] else {
        panic!("the oldest is refused")
    };
    assert_eq!((rej.remote_communication_id, rej.reason), (1, RejectReason::NO_RESOURCES));
    let [Event::Request { peer: STRANGER, .. }] = events(&mut pair.passive)[..] else { panic!() };
    assert_eq!(pair.passive.accept(first, &rep(), ZERO), Err(Error::Unknown), "it comes too late");
    // Two each, and nobody has more than the others.
    let sidr = SidrReq { request_id: 1, service_id: service(), ..SidrReq::default() };
    let bytes = Message::from(sidr).to_mad(1).to_bytes();
    assert_eq!(pair.passive.receive(&bytes, STRANGER, ZERO), Ok(()));
    for peer in [STRANGER, ACTIVE] {
        assert_eq!(ask(&mut pair.passive, peer), Err(IgnoreReason::Full));
    }
    assert_eq!(pair.passive.len(), 4);
}

/// Peers that count as one are one peer where places are shared out, and two peers with everything else.
// IB-CM-36, ROCE-40
#[test]
fn a_peer_with_many_names_has_one_share() {
    let mut passive = Manager::new(config(PASSIVE)).grouped(|peer| [peer & 0xf0, peer]);
    passive.listen(service(), 4).unwrap();
    let mut number = 0;
    let mut ask = |passive: &mut Manager<u8>, peer| {
        number += 1;
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        passive.receive(&Message::from(req).to_mad(number.into()).to_bytes(), peer, ZERO)
    };
    for peer in 0x11..=0x14 {
        assert_eq!(ask(&mut passive, peer), Ok(()));
    }
    assert_eq!(ask(&mut passive, 0x15), Err(IgnoreReason::Full));
    let [Event::Request { .. }, Event::Request { connection: second, peer: 0x12, .. }, ..] =
        events(&mut passive)[..]
    else {
        panic!()
    };
    for peer in [0x21, 0x22] {
        assert_eq!(ask(&mut passive, peer), Ok(()), "the others have all places");
    }
    let refused: Vec<u8> = sent(&mut passive).into_iter().map(|(to, ..)| to).collect();
    assert_eq!(refused, [0x11, 0x12], "the oldest of the group");
    assert_eq!(passive.accept(second, &rep(), ZERO), Err(Error::Unknown));
    // An answer frees a place of the group.
    let [Event::Request { connection, peer: 0x21, .. }, _] = events(&mut passive)[..] else { panic!() };
    assert_eq!(ask(&mut passive, 0x23), Err(IgnoreReason::Full));
    passive.accept(connection, &rep(), ZERO).unwrap();
    assert_eq!(ask(&mut passive, 0x23), Ok(()));
    assert_eq!(ask(&mut passive, 0x23), Err(IgnoreReason::Full));
}

/// The members of a group share out what the group has: one that has all of it keeps no other out, and those
/// that ask little lose nothing.
// IB-CM-36, ROCE-40
#[test]
fn a_member_of_a_group_keeps_no_other_member_out() {
    let mut passive = Manager::new(config(PASSIVE)).grouped(|peer| [peer & 0xf0, peer & 0xfe]);
    passive.listen(service(), 5).unwrap();
    let mut number = 0;
    let mut ask = |passive: &mut Manager<u8>, peer| {
        number += 1;
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        passive.receive(&Message::from(req).to_mad(number.into()).to_bytes(), peer, ZERO)
    };
    let refused =
        |passive: &mut Manager<u8>| sent(passive).into_iter().map(|(to, ..)| to).collect::<Vec<_>>();
    for peer in [0x14, 0x10, 0x11, 0x10, 0x11] {
        assert_eq!(ask(&mut passive, peer), Ok(()));
    }
    assert_eq!(ask(&mut passive, 0x16), Ok(()), "a neighbour has all places");
    assert_eq!(refused(&mut passive), [0x10]);
    assert_eq!(ask(&mut passive, 0x20), Ok(()), "another group has all places");
    assert_eq!(refused(&mut passive), [0x11], "the oldest of the member that has the most");
    assert_eq!(ask(&mut passive, 0x17), Err(IgnoreReason::Full), "nobody has two more");
    assert_eq!(ask(&mut passive, 0x18), Ok(()));
    assert_eq!(refused(&mut passive), [0x10]);
    for peer in [0x10, 0x15, 0x16, 0x19, 0x1a] {
        assert_eq!(ask(&mut passive, peer), Err(IgnoreReason::Full), "all members have one");
    }
    assert_eq!(ask(&mut passive, 0x20), Ok(()));
    assert_eq!(refused(&mut passive), [0x14], "the oldest of all");
    assert_eq!(passive.len(), 5);
}

/// Where the table of connections is full, too, a newcomer that takes the place of another request has one in
/// the table: nobody is refused for nothing.
// IB-CM-36, ROCE-40
#[test]
fn a_place_that_is_taken_is_one_in_the_table() {
    let req = |number| {
        let req = Req { local_communication_id: number, local_qpn: number, ..req() };
        Message::from(req).to_mad(1).to_bytes()
    };
    let sidr = |request_id| {
        let sidr = SidrReq { request_id, service_id: service(), ..SidrReq::default() };
        Message::from(sidr).to_mad(1).to_bytes()
    };
    for [first, second, newcomer] in
        [[req(1), req(2), req(3)], [sidr(1), req(2), req(3)], [req(1), sidr(2), sidr(3)]]
    {
        let mut passive = Manager::new(Config { max_connections: 2, ..config(PASSIVE) });
        passive.listen(service(), 2).unwrap();
        for request in [first, second] {
            assert_eq!(passive.receive(&request, ACTIVE, ZERO), Ok(()));
        }
        assert_eq!(passive.receive(&newcomer, STRANGER, ZERO), Ok(()));
        assert_eq!((events(&mut passive).len(), passive.len()), (3, 2));
    }
    // Where the newcomer could have no place in the table, it takes none.
    let mut passive = Manager::new(Config { max_connections: 2, ..config(PASSIVE) });
    passive.listen(service(), 3).unwrap();
    for number in 1..=2 {
        assert_eq!(passive.receive(&req(number), ACTIVE, ZERO), Ok(()));
    }
    assert_eq!(passive.receive(&req(3), STRANGER, ZERO), Err(IgnoreReason::Full));
    assert_eq!((sent(&mut passive), passive.len()), (vec![], 2));
}

/// A peer may choose how often it is asked, and how long each answer may take, but not to keep this side
/// waiting for many minutes.
// IB-CM-30, ROCE-40
#[test]
fn a_silent_peer_is_given_up_within_bounded_time_whatever_it_chose() {
    for says_that_it_takes_long in [false, true] {
        let mut pair = Pair::new();
        let patient = Req {
            local_communication_id: 7,
            local_response_timeout: 31,
            max_cm_retries: MAX_RETRIES,
            ..req()
        };
        pair.passive.receive(&Message::from(patient).to_mad(1).to_bytes(), ACTIVE, ZERO).unwrap();
        let [Event::Request { connection, .. }] = events(&mut pair.passive)[..] else { panic!() };
        pair.passive.accept(connection, &rep(), ZERO).unwrap();
        let mut limit = PEER_TIMEOUT;
        if says_that_it_takes_long {
            let mra = Mra {
                local_communication_id: 7,
                remote_communication_id: connection,
                message: about::REP,
                service_timeout: 31,
                ..Mra::default()
            };
            pair.passive.receive(&Message::from(mra).to_mad(1).to_bytes(), ACTIVE, ZERO).unwrap();
            limit += interval(SERVICE_TIMEOUT) + interval(19);
        }
        let mut replies = 0;
        let given_up = loop {
            let now = pair.passive.deadline().unwrap();
            replies += sent(&mut pair.passive).len();
            pair.passive.handle_timeout(now);
            if let [event] = &events(&mut pair.passive)[..] {
                assert_eq!(*event, Event::TimedOut { connection });
                break now;
            }
        };
        assert_eq!(given_up, limit);
        // Nobody is given up sooner who chose what rdma_cm chooses.
        assert!(PEER_TIMEOUT >= interval(RESPONSE_TIMEOUT) * (u32::from(MAX_RETRIES) + 1));
        assert!(replies > 1, "the reply may have been lost");
        assert!(pair.passive.is_empty());
    }
}

// IB-CM-11, ROCE-40
#[test]
fn connections_are_bounded_and_numbered() {
    const MOST: usize = if cfg!(miri) { 10 } else { 1000 };
    let mut manager =
        Manager::new(Config { prefix: 0xabc, prefix_bits: 12, max_connections: MOST, ..config(1) });
    let mut ids = BTreeSet::new();
    for _ in 0..MOST {
        ids.insert(manager.connect(PASSIVE, &req(), ZERO).unwrap());
    }
    assert_eq!(ids.len(), MOST);
    assert!(ids.iter().all(|id| id >> 20 == 0xabc));
    assert_eq!(manager.connect(PASSIVE, &req(), ZERO), Err(Error::Full));
    manager.destroy(*ids.first().unwrap(), ZERO);
    assert!(manager.connect(PASSIVE, &req(), ZERO).is_ok());
    assert_eq!(manager.len(), MOST);

    let mut few =
        Manager::new(Config { prefix: 0, prefix_bits: 0, key: [0; 2], max_connections: 1, ..config(1) });
    let id = few.connect(PASSIVE, &req(), ZERO).unwrap();
    assert_ne!(id, 0);
    let bytes = Message::from(req()).to_mad(0).to_bytes();
    few.listen(service(), 1).unwrap();
    assert_eq!(few.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::Malformed));
    let bytes = Message::from(Req { local_communication_id: 1, ..req() }).to_mad(0).to_bytes();
    assert_eq!(few.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::Full));
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

// IB-CM-8, IB-CM-10, IB-CM-49, IB-PKT-59
#[test]
fn datagrams_that_are_no_messages_are_ignored() {
    let mut manager: Manager<u8> = Manager::new(config(ACTIVE));
    let lap = Header::new(class::COMMUNICATION, 2, method::SEND, 0, 0x19);
    assert_eq!(manager.receive(&Mad::new(lap).to_bytes(), PASSIVE, ZERO), Err(IgnoreReason::Unknown));
    let other = Header::new(class::PERFORMANCE, 1, method::GET, 0, 0x10);
    assert_eq!(manager.receive(&Mad::new(other).to_bytes(), PASSIVE, ZERO), Err(IgnoreReason::Malformed));
    assert_eq!(manager.receive(&[], PASSIVE, ZERO), Err(IgnoreReason::Malformed));
    assert_eq!(manager.poll_transmit(), None);
}

/// Messages of a run.
const MOST_JUNK: usize = if cfg!(miri) { 8 } else { 200 };

proptest! {
    /// Messages about few things, so that they meet connections; whatever they are, memory is bounded and the
    /// state consistent.
    // IB-CM-8, ROCE-40
    #[test]
    fn junk(messages in proptest::collection::vec((0u16..11, any::<[u8; 16]>(), any::<u8>()), 0..MOST_JUNK)) {
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
            let bytes = Mad { header, data }.to_bytes();
            let _ = manager.receive_if(&bytes, PASSIVE - (choice & 1), now, &|_| choice & 2 == 0);
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
