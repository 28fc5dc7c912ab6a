//! A communication manager under any messages, calls and times: what it keeps is bounded, and it always comes
//! to an end.
#![no_main]

use std::time::Duration;

use adverb_proto::cm::{Config, Event, Manager};
use adverb_wire::ib::cm::{CLASS_VERSION, Rej, RejectReason, Rep, Req, SidrRep, SidrReq};
use adverb_wire::ib::mad::{Header, Mad, class, method};
use libfuzzer_sys::fuzz_target;

const MAX_CONNECTIONS: usize = 16;
const BACKLOG: usize = 4;

// IB-CM-8, ROCE-40
fuzz_target!(|input: &[u8]| {
    let mut manager: Manager<u8> = Manager::new(Config {
        prefix: 0,
        prefix_bits: 24,
        key: [1; 2],
        ca_guid: 1,
        max_connections: MAX_CONNECTIONS,
        patience: Duration::from_millis(100),
    });
    manager.listen(0, BACKLOG).unwrap();
    let mut now = Duration::ZERO;
    let mut input = input;
    // Each step is a choice, a number of bytes, and the bytes.
    while let [choice, len, rest @ ..] = input {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        let id = bytes.first().copied().map_or(0, u32::from);
        let req = Req { local_qpn: id, max_cm_retries: 2, ..Req::default() };
        let rej = Rej { reason: RejectReason::CONSUMER_DEFINED, ..Rej::default() };
        match choice % 16 {
            0 => {
                let _ = manager.connect(choice >> 6, &req, now);
            }
            1 => {
                let _ = manager.resolve(choice >> 6, &SidrReq::default(), now);
            }
            2 => {
                let _ = manager.accept(id, &Rep { local_qpn: id, ..Rep::default() }, now);
            }
            3 => {
                let _ = manager.reject(id, &rej, now);
            }
            4 => {
                let _ = manager.ready(id);
            }
            5 => {
                let _ = manager.establish(id);
            }
            6 => {
                let _ = manager.disconnect(id, now);
            }
            7 => {
                let _ = manager.answer(id, &SidrRep::default(), now);
            }
            8 => manager.destroy(id, now),
            9 => {
                now += Duration::from_millis(1 << (choice >> 4));
                manager.handle_timeout(now);
            }
            10 => {
                let _ = manager.receive_if(bytes, choice >> 6, now, &|_| choice & 0x10 == 0);
            }
            _ => {
                let attribute = 0x10 + u16::from(id as u8 % 11);
                let header =
                    Header::new(class::COMMUNICATION, CLASS_VERSION, method::SEND, 1 << 32, attribute);
                let mut mad = Mad::new(header);
                let len = bytes.len().min(mad.data.len());
                mad.data[..len].copy_from_slice(&bytes[..len]);
                let _ = manager.receive_if(&mad.to_bytes(), choice >> 6, now, &|_| choice & 0x10 == 0);
            }
        }
        let mut sent = 0;
        while manager.poll_transmit().is_some() {
            sent += 1;
        }
        assert!(sent <= 2 * MAX_CONNECTIONS);
        while let Some(event) = manager.poll_event() {
            assert!(!matches!(event, Event::Request { connection: 0, .. }));
        }
        assert!(manager.len() <= MAX_CONNECTIONS);
        assert!(choice % 16 != 9 || manager.deadline().is_none_or(|at| at > now));
    }
    for id in 0..=u8::MAX {
        manager.destroy(id.into(), now);
    }
    // Whatever is still under way ends by itself.
    for _ in 0..64 * MAX_CONNECTIONS {
        let Some(at) = manager.deadline() else { break };
        manager.handle_timeout(at);
        while manager.poll_transmit().is_some() {}
        assert!(manager.poll_event().is_none());
    }
    assert!(manager.is_empty());
});
