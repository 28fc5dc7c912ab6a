//! Any packets to a responder and a requester in any order: no panic, nothing outside of what was checked is
//! touched, each request completes once at most, and what is owed does not grow without bound.
#![no_main]

use std::time::Duration;

use adverb_proto::ib::{
    Access, CompletionStatus, Delivery, Keep, LocalFault, Operation, ReadSource, ReceiveFault, Refusal,
    Remote, Request, Requester, RequesterHost, RequesterOptions, Responder, ResponderHost, ResponderOptions,
    Service, Window, goes_to_requester, psn,
};
use adverb_wire::ib::header::{ICRC_LEN, MAX_HEADER};
use adverb_wire::ib::packet::{Packet, Payload};
use libfuzzer_sys::fuzz_target;

const MTU: u32 = 256;
const LENGTHS: [u32; 4] = [1000, 0, 700, 8];
/// Addresses from zero up to this exist, under every key but zero.
const MEMORY: u64 = 4096;

#[derive(Default)]
struct Host {
    receives: u8,
    room: Option<u64>,
    completed: u64,
    failed: bool,
}

impl Host {
    fn check(&self, key: u32, address: u64, length: u64) {
        assert!(key != 0 && address.checked_add(length).is_some_and(|end| end <= MEMORY));
    }
}

impl ResponderHost for Host {
    fn choose_queue(&mut self, number: u32) -> Result<(), Refusal> {
        if number % 5 == 4 { Err(Refusal::Invalid) } else { Ok(()) }
    }

    fn take_receive(&mut self) -> Option<u64> {
        assert!(self.room.is_none());
        self.receives = self.receives.wrapping_add(1);
        self.room = (self.receives % 4 != 0).then(|| u64::from(self.receives) * 10);
        self.room
    }

    fn place_receive(&mut self, offset: u32, payload: Payload<'_>) -> Result<(), Refusal> {
        assert!(u64::from(offset) + payload.len() as u64 <= self.room.unwrap());
        Ok(())
    }

    fn complete_receive(&mut self, _: Delivery) {
        assert!(self.room.take().is_some());
    }

    fn fail_receive(&mut self, _: ReceiveFault) {
        assert!(self.room.take().is_some());
    }

    fn keep(&mut self, source: &ReadSource) -> Keep {
        self.check(source.key, source.address, source.length.into());
        match source.address % 3 {
            0 => Keep::At(source.length),
            1 => Keep::Needless,
            _ => Keep::Later,
        }
    }

    fn check_remote(&mut self, key: u32, address: u64, length: u32, _: Remote) -> Result<(), Refusal> {
        let inside = address.checked_add(length.into()).is_some_and(|end| end <= MEMORY);
        if key != 0 && inside { Ok(()) } else { Err(Refusal::Access) }
    }

    fn write(&mut self, key: u32, address: u64, payload: Payload<'_>) -> Result<(), Refusal> {
        self.check(key, address, payload.len() as u64);
        Ok(())
    }

    fn fetch_add(&mut self, key: u32, address: u64, _: u64) -> Result<u64, Refusal> {
        assert_eq!(address % 8, 0);
        self.check(key, address, 8);
        Ok(1)
    }

    fn compare_swap(&mut self, key: u32, address: u64, _: u64, _: u64) -> Result<u64, Refusal> {
        self.fetch_add(key, address, 0)
    }

    fn atomic_write(&mut self, key: u32, address: u64, _: [u8; 8]) -> Result<(), Refusal> {
        self.fetch_add(key, address, 0).map(|_| ())
    }

    fn flush(&mut self, key: u32, address: u64, length: u32, _: u8, _: u8) -> Result<(), Refusal> {
        self.check(key, address, length.into());
        Ok(())
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        if key % 3 == 0 { Err(Refusal::Access) } else { Ok(()) }
    }
}

impl RequesterHost for Host {
    fn place(&mut self, sequence: u64, offset: u32, payload: Payload<'_>) -> Result<(), LocalFault> {
        assert!(offset + payload.len() as u32 <= LENGTHS[sequence as usize % 4]);
        if offset == 512 && payload.bytes().and_then(<[u8]>::first) == Some(&9) {
            Err(LocalFault::Protection)
        } else {
            Ok(())
        }
    }

    fn place_atomic(&mut self, sequence: u64, _: u64) -> Result<(), LocalFault> {
        assert_eq!(sequence % 4, 3);
        Ok(())
    }

    fn complete(&mut self, sequence: u64, status: CompletionStatus) {
        assert!(!self.failed && sequence == self.completed);
        self.completed += 1;
        self.failed = status != CompletionStatus::Success;
    }
}

/// A request of each kind in turn: a read, a Send, a write, an atomic; of the latter two only for UC.
fn request(service: Service, sequence: u64) -> Request {
    let kind = if service == Service::Uc { 1 + sequence % 2 } else { sequence % 4 };
    let operation = match kind {
        0 => Operation::Read { address: 0, rkey: 1 },
        1 => Operation::Send { immediate: None, invalidate: None },
        2 => Operation::Write { address: 0, rkey: 1, immediate: Some(1) },
        _ => Operation::FetchAdd { address: 0, rkey: 1, add: 1 },
    };
    let length = LENGTHS[sequence as usize % 4];
    Request { sequence, operation, length, solicited: false, fence: sequence % 5 == 0, shared_queue: 7 }
}

// IB-RC-RSP-31, ROCE-40
fuzz_target!(|input: &[u8]| {
    let Some((&choice, mut rest)) = input.split_first() else { return };
    let service = [Service::Rc, Service::Uc, Service::Xrc][usize::from(choice % 3)];
    let all = Access { write: true, read: true, atomic: true, flush: true };
    let mut responder = Responder::new(ResponderOptions {
        service,
        mtu: MTU,
        expected_psn: psn::MASK,
        destination: 1,
        pkey: 0xffff,
        max_reads: choice >> 6,
        min_rnr_timer: 1,
        access: all,
    });
    let mut requester = Requester::new(RequesterOptions {
        service,
        mtu: MTU,
        first_psn: psn::MASK,
        destination: 1,
        pkey: 0xffff,
        timeout: choice >> 4 & 3,
        retry_count: 7,
        rnr_retry: 7,
        max_reads: 2,
        room: 6,
        read_chunk: if choice & 2 != 0 { 2 * MTU } else { u32::MAX },
    });
    let (mut ours, mut theirs) = (Host::default(), Host::default());
    let mut window = Window::new(1 << 20);
    let mut now = Duration::ZERO;
    let mut pushed = 0;
    let mut buffer = [0; MAX_HEADER];
    // Each piece is a byte that says how long the packet is, one that says when, and the packet, whose PSN is
    // made to lie near what is expected: otherwise next to nothing would get past the first check.
    while let [length, wait, tail @ ..] = rest {
        let (piece, behind) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = behind;
        let mut bytes = piece.to_vec();
        if bytes.len() >= 16 && bytes.len() % 4 == 0 && service.is_reliable() {
            bytes[0] = bytes[0] & 0x1f | if service == Service::Xrc { 0xa0 } else { 0 };
        }
        if bytes.len() >= 16 && wait & 8 != 0 {
            // A packet as long as the MTU.
            bytes.splice(bytes.len() - ICRC_LEN..bytes.len() - ICRC_LEN, [7; MTU as usize]);
        }
        now += Duration::from_millis(u64::from(wait & 7));
        while requester.has_room() {
            requester.push(request(service, pushed));
            pushed += 1;
        }
        for _ in 0..20 {
            let Some(outbound) = requester.poll_transmit(now, window.room(), &mut buffer) else { break };
            if outbound.finished {
                ours.complete(outbound.sequence, CompletionStatus::Success);
            }
            if let Some(source) = outbound.payload {
                assert!(source.offset + source.length <= LENGTHS[source.sequence as usize % 4]);
            }
            if service.is_reliable() {
                window.sent(outbound.cost);
            }
        }
        if let Some(number) = bytes.get(11).map(|&byte| u32::from(byte % 8)) {
            let base = if wait & 16 != 0 { responder.expected_psn() } else { requester.next_psn() };
            let number = psn::add(base, number.wrapping_sub(6) & psn::MASK);
            bytes[9..12].copy_from_slice(&number.to_be_bytes()[1..]);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            if goes_to_requester(&packet) {
                let feedback = requester.receive(&packet, now, &mut ours);
                assert_eq!(feedback.failed, ours.failed && requester.has_failed() && feedback.failed);
                window.learn(&feedback, now);
            } else {
                let _ = responder.receive(&packet, &mut theirs);
            }
        }
        let feedback = requester.handle_timeout(now, &mut ours);
        window.learn(&feedback, now);
        assert!(service == Service::Uc || window.in_flight() == requester.in_flight());
        assert_eq!(theirs.room.is_some(), responder.holds_receive());
        if wait & 32 != 0 {
            for _ in 0..100 {
                let Some(reply) = responder.poll_transmit(&mut buffer) else { break };
                if let Some(source) = reply.payload {
                    assert!(source.length <= MTU);
                    theirs.check(source.key, source.address, source.length.into());
                    if wait & 64 != 0 {
                        let _ = responder.read_failed(&reply, Refusal::Access);
                    }
                }
            }
        }
    }
    // However much was asked for, at most a few responses of at most all the memory are owed.
    let owed = std::iter::from_fn(|| responder.poll_transmit(&mut buffer)).take(1000).count();
    assert!(owed < 1000);
});
