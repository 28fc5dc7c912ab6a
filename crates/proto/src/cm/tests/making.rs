//! Making connections.

use super::*;

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

/// The program listens only after its peer has begun to connect.
#[test]
fn a_service_that_comes_late() {
    let patience = Duration::from_millis(100);
    for listens in [true, false] {
        let mut pair = Pair::new();
        pair.active = Manager::new(Config { patience, ..config(ACTIVE) });
        pair.passive.unlisten(service());
        let a = pair.active.connect(PASSIVE, &req(), ZERO).unwrap();
        for _ in 0..3 {
            let [Message::Req(_)] = pair.forth()[..] else { panic!() };
            let [Message::Rej(_)] = pair.back()[..] else { panic!() };
            assert_eq!(events(&mut pair.active), []);
            pair.now = pair.active.deadline().unwrap();
            assert!(pair.now < patience);
            pair.active.handle_timeout(pair.now);
        }
        if listens {
            pair.passive.listen(service(), 1).unwrap();
            pair.forth();
            let told = events(&mut pair.passive);
            assert!(matches!(told[..], [Event::Request { .. }]), "{told:?}");
        } else {
            pair.now = patience;
            pair.forth();
            let [Message::Rej(rej)] = pair.back()[..] else { panic!() };
            let rejected = Event::Rejected { connection: a, rejection: Box::new(rej) };
            assert_eq!(events(&mut pair.active), [rejected]);
            pair.end();
        }
    }
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
fn an_active_side_that_stops_waiting_tells_the_passive_side() {
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
    let bytes = Message::from(mra).to_mad(pair.active.connections[&a].transaction_id).to_bytes();
    assert_eq!(pair.active.receive(&bytes, PASSIVE, at + long), Err(IgnoreReason::State));
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
    let (a, b) = pair.agree();
    let messages = wait(&mut pair.passive);
    assert_eq!(messages.len(), usize::from(MAX_RETRIES) + 1);
    let Message::Rej(rej) = messages.last().unwrap().1 else { panic!() };
    assert_eq!(rej.reason, RejectReason::TIMEOUT);
    assert_eq!(events(&mut pair.passive), [Event::TimedOut { connection: b }]);
    let transaction = pair.active.connections[&a].transaction_id;
    pair.active.receive(&Message::from(rej).to_mad(transaction).to_bytes(), PASSIVE, ZERO).unwrap();
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
