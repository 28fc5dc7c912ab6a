//! The responder of a target queue pair.

use super::*;

/// A shared receive queue that the domain does not have.
pub(super) const NOBODYS: u32 = 0xbad;

/// The packet of another service, for this shared receive queue.
fn for_queue(number: u32, ask: Ask) -> Ask {
    Ask { headers: [&number.to_be_bytes()[..], &ask.headers].concat(), ..ask }
}

// IB-XRC-2, IB-XRC-3
#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    let mut bench = Bench::new(Service::Xrc);
    bench.host.receives.extend([1000, 1000]);
    bench.accept(for_queue(5, ask(Opcode::SendFirst, 0, MTU)));
    assert_eq!(bench.host.queue, 5);
    bench.accept(for_queue(5, word(Opcode::SendLastImmediate, 1, 9, 4)));
    bench.accept(for_queue(6, ask(Opcode::SendOnly, 2, 1)));
    assert_eq!(bench.host.queue, 6);
    assert_eq!(bench.said(), [ack(2, 2)]);
}

// IB-XRC-4
#[test]
fn a_queue_that_is_not_of_the_domain_is_refused() {
    for request in [ask(Opcode::SendOnly, 0, 4), reth(Opcode::WriteOnly, 0, 0x100, 4, 4)] {
        let mut bench = Bench::new(Service::Xrc);
        bench.host.receives.push_back(1000);
        assert_eq!(bench.take(for_queue(NOBODYS, request)), Verdict::Refused(NakCode::InvalidRequest));
        assert_eq!((bench.host.receives.len(), bench.host.events.len()), (1, 0));
        assert_eq!(bench.said(), [nak(0, NakCode::InvalidRequest, 0)]);
    }
}

// IB-XRC-5
#[test]
fn a_message_stays_with_its_queue() {
    let mut bench = Bench::new(Service::Xrc);
    bench.host.receives.push_back(1000);
    bench.accept(for_queue(5, ask(Opcode::SendFirst, 0, MTU)));
    let other = for_queue(6, ask(Opcode::SendLast, 1, 4));
    assert_eq!(bench.take(other), Verdict::Refused(NakCode::InvalidRequest));
    let failed = Event::Failed(ReceiveFault::InvalidRequest);
    assert_eq!(bench.host.events, [Event::Placed(0, MTU), failed]);
}

// IB-XRC-4, IB-XRC-6
#[test]
fn reads_carry_the_queue_whose_domain_has_the_key() {
    let mut bench = Bench::new(Service::Xrc);
    bench.accept(for_queue(8, reth(Opcode::ReadRequest, 0, 0x200, 8, 0)));
    bench.accept(for_queue(9, reth(Opcode::ReadRequest, 1, 0x300, 8, 0)));
    let source =
        |address, shared_queue| Some(ReadSource { key: KEY, address, length: 8, shared_queue, kept: None });
    let (first, bytes) = bench.reply().unwrap();
    assert_eq!(first.payload, source(0x200, 8));
    // IB-XRC-2
    assert_eq!(bytes[0], 0xb0);
    // A duplicate of the first does not change where the second reads.
    assert_eq!(bench.take(for_queue(8, reth(Opcode::ReadRequest, 0, 0x200, 8, 0))), Verdict::Duplicate);
    let mut payloads = vec![bench.reply().unwrap().0.payload, bench.reply().unwrap().0.payload];
    payloads.sort_by_key(|source| source.unwrap().address);
    assert_eq!(payloads, [source(0x200, 8), source(0x300, 9)]);
    let nobodys = for_queue(NOBODYS, reth(Opcode::ReadRequest, 0, 0x200, 8, 0));
    assert_eq!(bench.take(nobodys), Verdict::Dropped(DropReason::Unanswerable));
    bench.accept(for_queue(8, reth(Opcode::ReadRequest, 2, 0x200, 8, 0)));
}
