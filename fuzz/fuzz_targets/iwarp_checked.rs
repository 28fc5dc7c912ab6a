//! A stream with CRC or markers. Input is taken as the stream itself; and as the payload of a valid stream,
//! whose CRCs a fuzzer would not find.
#![no_main]

use adverb_proto::iwarp::{Outbound, Receiver, Sender, Step};
use libfuzzer_sys::fuzz_target;

#[path = "../parameters.rs"]
mod parameters;

/// The payload of everything that is found.
fn run(receiver: &mut Receiver, stream: &[u8]) -> Option<Vec<u8>> {
    let (mut buffer, mut payload) = (stream.to_vec(), Vec::new());
    while !buffer.is_empty() {
        match receiver.next_checked(&mut buffer) {
            Ok(Step::Need(n)) => {
                assert!(n > buffer.len() && n <= Receiver::MAX_FPDU_LEN);
                return None;
            }
            Ok(Step::Segment(arrival)) => {
                payload.extend_from_slice(&buffer[arrival.head_len..][..arrival.payload_len]);
                buffer.drain(..arrival.total_len());
            }
            Err(error) => {
                assert!(!error.terminate.to_string().is_empty());
                return None;
            }
        }
    }
    Some(payload)
}

fuzz_target!(|input: &[u8]| {
    let [choice, high, low, payload @ ..] = input else { return };
    let parameters = parameters::from(if choice & parameters::CHECKED == 0 { choice | 1 } else { *choice });
    run(&mut Receiver::new(&parameters), payload);

    let mut sender = Sender::new(&parameters, u16::from_be_bytes([*high, *low]).into());
    let mut stream = Vec::new();
    sender.begin(Outbound::Write { stag: 1, to: 0, len: payload.len() as u32 }).unwrap();
    while let Some(fpdu) = sender.next_fpdu() {
        let piece = &payload[fpdu.payload().start as usize..fpdu.payload().end as usize];
        sender.seal(&fpdu, piece, &mut stream);
    }
    assert_eq!(run(&mut Receiver::new(&parameters), &stream).as_deref(), Some(payload));
});
