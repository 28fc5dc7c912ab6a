//! Management datagrams: what is understood is understood the same when it is made again.
#![no_main]

use adverb_wire::ib::cm::{IpAddresses, Message};
use adverb_wire::ib::mad::{MAD_LEN, Mad};
use libfuzzer_sys::fuzz_target;

// IB-CM-8, IB-PKT-59, ROCE-40
fuzz_target!(|input: &[u8]| {
    assert!(input.len() == MAD_LEN || Mad::parse(input).is_none());
    // Shorter input is as good as one that ends with zeros.
    let mut bytes = [0; MAD_LEN];
    let len = input.len().min(MAD_LEN);
    bytes[..len].copy_from_slice(&input[..len]);
    let Some(mad) = Mad::parse(&bytes) else { return };
    assert_eq!(mad.to_bytes(), bytes);
    if let Some(vendor) = mad.vendor() {
        let again = vendor.with_header(mad.header);
        assert_eq!(again.vendor(), Some(vendor));
    }
    let Ok(message) = Message::parse(mad) else { return };
    let again = message.to_mad(mad.header.transaction_id.get());
    assert_eq!(Message::parse(&again), Ok(message));
    let private_data = match &message {
        Message::Req(req) => &req.private_data[..],
        Message::SidrReq(req) => &req.private_data,
        _ => return,
    };
    if let Some(addresses) = IpAddresses::read(private_data) {
        assert_eq!(IpAddresses::read(&addresses.to_bytes()), Some(addresses));
    }
});
