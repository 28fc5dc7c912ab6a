//! Sends and receives.

use super::fixture::{Memory, Pair, Site, TEST_TIMEOUT, signalled};
use crate::error::PostError;
use crate::memory::Access;
use crate::region::ProtectionDomain;
use crate::request::{
    Completion, CompletionFlags, CompletionOpcode, Data, Opcode, SendFlags, SendRequest, Status,
};
use std::time::Instant;

/// Messages gathered from two elements and scattered to two others, from none to many bytes.
// IB-RC-REQ-8, IB-RC-REQ-9, IB-RC-RSP-33
pub fn sends_of_every_size(site: &Site) {
    const ROOM: usize = 20_000;
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, ROOM), Memory::open(&pair.server.domain, ROOM));
    let bytes = from.fill(3);
    for (round, length) in
        [0, 1, 2, 3, 7, 8, 63, 64, 1000, 1459, 4096, 4097, 10_000, 19_999].into_iter().enumerate()
    {
        let wr_id = round as u64;
        to.set(&[]);
        let (cut, other_cut) = (length / 3, length / 2);
        pair.server.post_receive(wr_id, &[to.sge(0, other_cut), to.sge(other_cut, ROOM - other_cut)]);
        let sges = [from.sge(0, cut), from.sge(cut, length - cut)];
        pair.client.post(wr_id, Opcode::Send, &sges, (0, 0));
        let sent = pair.client.sent_well(wr_id);
        assert_eq!(sent.opcode, CompletionOpcode::Send);
        let received = pair.server.received_well(wr_id);
        assert_eq!((received.opcode, received.byte_length as usize), (CompletionOpcode::Receive, length));
        assert_eq!(received.flags, CompletionFlags::empty());
        let found = to.bytes();
        assert_eq!(found[..length], bytes[..length], "{length} bytes");
        assert!(found[length..].iter().all(|byte| *byte == 0), "bytes behind {length}");
    }
    // No element at all is a message of no bytes, and the other way round, too.
    pair.client.post_receive(1, &[]);
    pair.server.post(1, Opcode::Send, &[], (0, 0));
    pair.server.sent_well(1);
    assert_eq!(pair.client.received_well(1).byte_length, 0);
}

/// Inline data is taken when the post returns.
// IB-RC-REQ-20
pub fn inline_sends(site: &Site) {
    let pair = Pair::connect(site);
    let most = pair.client.queue_pair.capabilities().max_inline_data as usize;
    if most == 0 {
        return;
    }
    let to = Memory::open(&pair.server.domain, most + 1);
    for length in [0, 1, most / 2, most] {
        let mut data: Vec<u8> = (0..length).map(|n| n as u8 | 0x80).collect();
        let sent = data.clone();
        pair.server.post_receive(7, &[to.all()]);
        let (head, tail) = data.split_at(length / 3);
        let request = SendRequest { wr_id: 8, data: Data::Inline(&[head, tail]), ..signalled(&[], (0, 0)) };
        pair.client.queue_pair.post_send(&request).unwrap();
        data.fill(0);
        assert_eq!(pair.server.received_well(7).byte_length as usize, length);
        assert_eq!(to.bytes()[..length], sent);
        pair.client.sent_well(8);
    }
    let long = vec![0; most + 1];
    let request = SendRequest { data: Data::Inline(&[&long]), ..signalled(&[], (0, 0)) };
    assert_eq!(pair.client.queue_pair.post_send(&request), Err(PostError::InlineTooLong));
    let nowhere = [crate::request::Sge { address: 8, length: 1, lkey: 0 }];
    let request = SendRequest { data: Data::InlineAt(&nowhere), ..signalled(&[], (0, 0)) };
    assert_eq!(pair.client.queue_pair.post_send(&request), Err(PostError::Fault));
    // The answer of a read or an atomic has no place inline.
    let (from, mut place) = (Memory::open(&pair.server.domain, 8), [0u8; 8]);
    let here = [crate::request::Sge { address: place.as_mut_ptr() as u64, length: 8, lkey: 0 }];
    for opcode in [Opcode::Read, Opcode::FetchAdd, Opcode::CompareSwap] {
        if site.can(&[opcode]) {
            let named = signalled(&[], (from.address(0), from.region.key()));
            for data in [Data::InlineAt(&here), Data::Inline(&[&[0; 8]])] {
                let request = SendRequest { opcode, data, ..named };
                assert_eq!(pair.client.queue_pair.post_send(&request), Err(PostError::Invalid), "{opcode:?}");
            }
        }
    }
}

/// Immediate data with sends and writes.
// IB-RC-REQ-10, IB-RC-RSP-38
pub fn immediate_data(site: &Site) {
    if !site.can(&[Opcode::SendWithImmediate, Opcode::WriteWithImmediate]) {
        return;
    }
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, 300), Memory::open(&pair.server.domain, 300));
    let bytes = from.fill(4);
    for length in [0, 300] {
        for (opcode, received_as) in [
            (Opcode::SendWithImmediate, CompletionOpcode::Receive),
            (Opcode::WriteWithImmediate, CompletionOpcode::ReceiveWriteWithImmediate),
        ] {
            to.set(&[]);
            let receive_room = if opcode == Opcode::SendWithImmediate { &[to.all()][..] } else { &[] };
            pair.server.post_receive(5, receive_room);
            let immediate = 0x0102_0304_u32.to_be();
            let sges = [from.sge(0, length)];
            let request = SendRequest {
                wr_id: 6,
                opcode,
                immediate,
                ..signalled(&sges, (to.address(0), to.region.key()))
            };
            pair.client.queue_pair.post_send(&request).unwrap();
            pair.client.sent_well(6);
            let received = pair.server.received_well(5);
            assert_eq!(received.opcode, received_as);
            assert_eq!(received.flags, CompletionFlags::WITH_IMMEDIATE);
            assert_eq!(received.immediate, immediate);
            if opcode == Opcode::SendWithImmediate {
                assert_eq!(received.byte_length as usize, length);
            }
            assert_eq!(to.bytes()[..length], bytes[..length], "{opcode:?} of {length}");
        }
    }
}

/// The peer's key is useless afterwards, and its program is told.
// IB-RC-RSP-39, IB-QP-46
pub fn send_with_invalidate(site: &Site) {
    if !site.can(&[Opcode::SendWithInvalidate]) {
        return;
    }
    let pair = Pair::connect(site);
    let from = Memory::open(&pair.client.domain, 16);
    let (to, victim) = (Memory::open(&pair.server.domain, 16), Memory::open(&pair.server.domain, 16));
    let sent = from.fill(5);
    pair.server.post_receive(1, &[to.all()]);
    let key = victim.region.key();
    let sges = [from.all()];
    let request = SendRequest {
        wr_id: 2,
        opcode: Opcode::SendWithInvalidate,
        immediate: key,
        ..signalled(&sges, (0, 0))
    };
    pair.client.queue_pair.post_send(&request).unwrap();
    pair.client.sent_well(2);
    let received = pair.server.received_well(1);
    assert_eq!((received.flags, received.immediate), (CompletionFlags::WITH_INVALIDATE, key));
    assert_eq!(to.bytes(), sent);
    pair.client.post(3, Opcode::Write, &[from.all()], (victim.address(0), key));
    pair.ended();
    assert_eq!(victim.bytes(), [0; 16]);
}

/// A message that does not fit its receive breaks the connection, and writes nothing behind the receive.
// IB-RC-RSP-26, IB-RC-RSP-29
pub fn a_message_too_long(site: &Site) {
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, 64), Memory::open(&pair.server.domain, 64));
    from.fill(6);
    pair.server.post_receive(1, &[to.sge(0, 32)]);
    pair.client.post(2, Opcode::Send, &[from.all()], (0, 0));
    let received = pair.server.received();
    assert_eq!(received.wr_id, 1);
    assert_ne!(received.status, Status::Success);
    assert_eq!(to.bytes()[32..], [0; 32]);
    pair.ended();
}

/// A message without a receive breaks the connection.
pub fn no_receive(site: &Site) {
    let pair = Pair::connect(site);
    let from = Memory::open(&pair.client.domain, 64);
    pair.client.post(2, Opcode::Send, &[from.all()], (0, 0));
    pair.ended();
}

/// Keys of another protection domain, of nothing, too long elements, and a receive into memory that is
/// read-only.
// IB-RC-REQ-18, IB-RC-RSP-27, IB-QP-32, IB-QP-42
pub fn wrong_local_keys(site: &Site) {
    for case in ["foreign domain", "no key", "past the end"] {
        let pair = Pair::connect(site);
        let other = ProtectionDomain::new(&pair.client.context).unwrap();
        let (own, foreign) = (Memory::open(&pair.client.domain, 64), Memory::open(&other, 64));
        let to = Memory::open(&pair.server.domain, 64);
        own.fill(7);
        foreign.fill(8);
        pair.server.post_receive(1, &[to.all()]);
        let mut sge = own.all();
        match case {
            "foreign domain" => sge = foreign.all(),
            "no key" => sge.lkey ^= 0x5a5a_5a00,
            _ => sge.address += 1,
        }
        pair.client.post(2, Opcode::Send, &[sge], (0, 0));
        let sent = pair.client.sent();
        assert_eq!((sent.wr_id, sent.status), (2, Status::LocalProtection), "{case}");
        pair.ended();
        assert_eq!(pair.server.received().status, Status::Flushed, "{case}");
        assert_eq!(to.bytes(), [0; 64], "{case}");
    }
    let pair = Pair::connect(site);
    let from = Memory::open(&pair.client.domain, 64);
    from.fill(9);
    let to = Memory::new(&pair.server.domain, 64, Access::REMOTE_READ);
    pair.server.post_receive(1, &[to.all()]);
    pair.client.post(2, Opcode::Send, &[from.all()], (0, 0));
    let received = pair.server.received();
    assert!(!matches!(received.status, Status::Success), "{received:?}");
    pair.ended();
    assert_eq!(to.bytes(), [0; 64]);
}

/// One thread that polls both ends and never sleeps.
pub fn ping_pong_by_polling(site: &Site) {
    let pair = Pair::connect(site);
    let (client, server) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    let deadline = Instant::now() + TEST_TIMEOUT;
    let wait = |queue: &crate::cq::CompletionQueue| -> Completion {
        loop {
            let mut found = None;
            queue.poll(1, |entry| found = Some(*entry)).unwrap();
            if let Some(found) = found {
                assert_eq!(found.status, Status::Success);
                return found;
            }
            assert!(Instant::now() < deadline, "a completion does not come");
            std::thread::yield_now();
        }
    };
    for round in 0..300u64 {
        pair.client.post_receive(round, &[client.all()]);
        pair.server.post_receive(round, &[server.all()]);
        client.set(&round.to_ne_bytes());
        pair.client.post(round, Opcode::Send, &[client.all()], (0, 0));
        assert_eq!(wait(&pair.server.receives).wr_id, round);
        assert_eq!(server.bytes(), round.to_ne_bytes());
        server.set(&(!round).to_ne_bytes());
        pair.server.post(round, Opcode::Send, &[server.all()], (0, 0));
        assert_eq!(wait(&pair.client.receives).wr_id, round);
        assert_eq!(client.bytes(), (!round).to_ne_bytes());
        assert_eq!(wait(&pair.client.sends).wr_id, round);
        assert_eq!(wait(&pair.server.sends).wr_id, round);
    }
}

/// Two threads that sleep on their channels.
pub fn ping_pong_by_events(site: &Site) {
    const ROUNDS: u64 = 200;
    let pair = Pair::connect(site);
    let sides = [(&pair.client, true), (&pair.server, false)].map(|(side, first)| {
        let (out, back) = (Memory::open(&side.domain, 8), Memory::open(&side.domain, 8));
        side.post_receive(0, &[back.all()]);
        (side, first, out, back)
    });
    std::thread::scope(|scope| {
        for (side, first, out, back) in sides {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let send = || {
                        out.set(&round.to_ne_bytes());
                        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
                        let sges = [out.all()];
                        let request = SendRequest { wr_id: round, flags, ..signalled(&sges, (0, 0)) };
                        side.queue_pair.post_send(&request).unwrap();
                        side.sent_well(round);
                    };
                    if first {
                        send();
                    }
                    side.received_well(round);
                    assert_eq!(back.bytes(), round.to_ne_bytes());
                    side.post_receive(round + 1, &[back.all()]);
                    if !first {
                        send();
                    }
                }
            });
        }
    });
}
