//! Datagram services.

use super::*;

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
    assert_eq!(pair.passive.receive(&bytes, ACTIVE, ZERO), Err(IgnoreReason::State));
    let rep = SidrRep { qpn: PASSIVE_QPN, qkey: 0x0123_4567, ..SidrRep::default() };
    pair.passive.answer(*b, &rep, ZERO).unwrap();
    assert!(pair.passive.is_empty());
    let first = sent(&mut pair.passive);
    pair.passive.receive(&bytes, ACTIVE, ZERO).unwrap();
    assert_eq!(sent(&mut pair.passive), first);
    assert_eq!(events(&mut pair.passive), []);
    let reply = SidrRep { request_id: a, service_id: service(), ..rep };
    assert_eq!(first, [(ACTIVE, parse(&bytes).0, reply.into())]);
    let guessed = Message::from(reply).to_mad(0).to_bytes();
    assert_eq!(pair.active.receive(&guessed, PASSIVE, ZERO), Err(IgnoreReason::Unknown));
    let bytes = Message::from(reply).to_mad(parse(&bytes).0).to_bytes();
    assert_eq!(pair.active.receive(&bytes, STRANGER, ZERO), Err(IgnoreReason::Unknown));
    pair.active.receive(&bytes, PASSIVE, ZERO).unwrap();
    assert_eq!(events(&mut pair.active), [Event::DatagramReply { connection: a, reply: Box::new(reply) }]);
    assert_eq!(pair.active.receive(&bytes, PASSIVE, ZERO), Err(IgnoreReason::Unknown));
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
    let messages = wait(&mut pair.active);
    let (last, _) = messages.last().unwrap();
    assert!(messages.len() == 127 && *last > SECOND * 60);
    assert_eq!(events(&mut pair.active), [Event::TimedOut { connection: a }]);
    pair.end();
}
