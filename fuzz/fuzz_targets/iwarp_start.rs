//! MPA start-up: any frame is answered, refused, or waited for.
#![no_main]

use std::time::Duration;

use adverb_proto::iwarp::mpa::{
    Config, Initiator, MAX_START_LEN, Reply, Request, Responder, Revision, RtrKinds,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, frame)) = input.split_first() else { return };
    let (now, timeout) = (Duration::ZERO, Duration::from_secs(1));
    let config = Config {
        revision: if choice & 1 == 0 { Revision::One } else { Revision::Two },
        crc: choice & 2 != 0,
        markers: choice & 4 != 0,
        rtr: RtrKinds { send: choice & 8 != 0, write: choice & 16 != 0, read: choice & 32 != 0 },
        large_fpdu: choice & 64 != 0,
        extensions: choice & 128 != 0,
        ..Config::default()
    };
    match Responder::new(now, timeout).receive(frame) {
        Ok(Request::Need(n)) => assert!(n > frame.len() && n <= MAX_START_LEN),
        Ok(Request::Complete { offer, private_data, consumed }) => {
            assert!(consumed <= frame.len() && private_data.len() < consumed);
            let (reply, _) = offer.accept(&config, &[choice; 100]).unwrap();
            assert!(reply.len() <= MAX_START_LEN);
            offer.reject(b"no").unwrap();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let initiator = Initiator::new(&config, b"data", now, timeout).unwrap();
    match initiator.receive(frame) {
        Ok(Reply::Need(n)) => assert!(n > frame.len() && n <= MAX_START_LEN),
        Ok(Reply::Accepted { consumed, .. } | Reply::Rejected { consumed, .. }) => {
            assert!(consumed <= frame.len())
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            error.terminate_frame();
        }
    }
});
