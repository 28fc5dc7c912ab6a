//! Frames for `ADVERB_PCAP`: there are none on the way through shared memory, so they are made as the network would have carried them. Payload that
//! stays in its process is left out: such frames are cut off, as by a capture that keeps the beginning of each.

use crate::route::{PORT, Route};
use adverb_core::memory::Source;
use adverb_core::pcap;
use adverb_wire::ib::header::{ICRC_LEN, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::packet::Packet;
use std::net::{IpAddr, SocketAddr};

/// A packet that was sent along `route`: its headers, and its payload, of which `missing` bytes are not there.
#[cold]
pub(super) fn sent(route: &Route, headers: &[u8], payload: &[u8], missing: usize) {
    write(route.source, route.destination, headers, payload, missing);
}

/// A packet that has come from the other end of `route`.
#[cold]
pub(crate) fn received(route: &Route, packet: &Packet<'_>, elsewhere: &Source<'_>) {
    let headers = packet.headers().concat();
    let mut payload = Vec::new();
    let mut missing = 0;
    match (packet.payload().bytes(), elsewhere) {
        (Some(bytes), _) => payload.extend_from_slice(bytes),
        (None, Source::Process { .. }) => missing = packet.payload().len(),
        (None, source) => {
            payload.resize(source.len(), 0);
            let _ = source.read(&mut payload);
        }
    }
    write(route.destination, route.source, &headers, &payload, missing);
}

/// A datagram that has come from `from` to `to`, with its payload.
#[cold]
pub(crate) fn received_datagram(from: IpAddr, to: IpAddr, packet: &Packet<'_>, payload: &[u8]) {
    write(from, to, &packet.headers().concat(), payload, 0);
}

fn write(from: IpAddr, to: IpAddr, headers: &[u8], payload: &[u8], missing: usize) {
    let mut bytes = [headers, payload].concat();
    if missing == 0 {
        bytes.resize(bytes.len() + padding(payload.len()), 0);
        let flow = Flow { source: from, destination: to, source_port: PORT, destination_port: PORT };
        let mut crc = FlowCrc::new(&flow).seed(0, bytes.len() + ICRC_LEN);
        crc.begin(&bytes);
        bytes.extend_from_slice(&crc.finish().to_le_bytes());
    }
    pcap::datagram(SocketAddr::new(from, PORT), SocketAddr::new(to, PORT), 0, &bytes, missing);
}
