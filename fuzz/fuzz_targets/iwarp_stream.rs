//! A stream without CRC and markers: what it is cut into makes no difference, and nothing makes it fall over.
#![no_main]

use adverb_proto::iwarp::{Receiver, Segment, Step, StreamError};
use libfuzzer_sys::fuzz_target;

#[path = "../parameters.rs"]
mod parameters;

/// Everything found in a stream that comes in pieces of one size.
fn run(receiver: &mut Receiver, stream: &[u8], piece: usize) -> (Vec<Segment>, Option<StreamError>) {
    let (mut found, mut at, mut there) = (Vec::new(), 0, 0);
    loop {
        match receiver.next(&stream[at..there.max(at)]) {
            Ok(Step::Need(n)) => {
                assert!(n > there.saturating_sub(at) && n <= Receiver::MAX_HEAD_LEN);
                if there >= stream.len() {
                    return (found, None);
                }
                there = (there.max(at) + piece).min(stream.len());
            }
            Ok(Step::Segment(arrival)) => {
                found.push(arrival.segment);
                at += arrival.total_len();
                if at > stream.len() {
                    return (found, None);
                }
            }
            Err(error) => return (found, Some(error)),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, stream)) = input.split_first() else { return };
    let parameters = parameters::from(choice & !parameters::CHECKED);
    let whole = run(&mut Receiver::new(&parameters), stream, usize::MAX / 2);
    for piece in [1, 2, 3, 17] {
        assert!(run(&mut Receiver::new(&parameters), stream, piece) == whole);
    }
});
