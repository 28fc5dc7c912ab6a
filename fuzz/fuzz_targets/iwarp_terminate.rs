//! Terminate messages: any that is understood reads well, and is understood the same when it is sent on.
#![no_main]

use adverb_proto::iwarp::{Outbound, Receiver, Segment, Sender, Step};
use libfuzzer_sys::fuzz_target;

#[path = "../parameters.rs"]
mod parameters;

fuzz_target!(|body: &[u8]| {
    let parameters = parameters::from(!parameters::CHECKED);
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    ulpdu.extend_from_slice(&body[..body.len().min(1000)]);
    let mut frame = (ulpdu.len() as u16).to_be_bytes().to_vec();
    frame.extend_from_slice(&ulpdu);
    let Ok(Step::Segment(arrival)) = Receiver::new(&parameters).next(&frame) else { return };
    let Segment::Terminate(terminate) = arrival.segment else { panic!("{:?}", arrival.segment) };
    assert!(!terminate.to_string().is_empty());

    let fpdu = Sender::new(&parameters, 1448).only(Outbound::Terminate(terminate)).unwrap().unwrap();
    let again = fpdu.without_payload().unwrap();
    let Ok(Step::Segment(arrival)) = Receiver::new(&parameters).next(again) else { panic!("not understood") };
    assert_eq!(arrival.segment, Segment::Terminate(terminate));
});
