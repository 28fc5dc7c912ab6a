//! Byte streams out of a capture file: as much of IP and TCP as that takes.

#[path = "pcapng.rs"]
mod pcapng;

use std::collections::BTreeMap;
use std::path::Path;

use pcapng::{Ip, ip, packets};

/// One direction of a TCP connection.
pub(crate) struct Flow {
    /// Address and port of the sender.
    pub(crate) from: (Vec<u8>, u16),
    /// Address and port of the receiver.
    pub(crate) to: (Vec<u8>, u16),
    /// The bytes that were sent.
    pub(crate) bytes: Vec<u8>,
}

/// The TCP flows of a file, in the order of their first packets.
///
/// # Panics
/// If the file is not what it should be, or has a gap in a flow.
pub(crate) fn flows(path: &Path) -> Vec<Flow> {
    let file = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut flows: Vec<Flow> = Vec::new();
    // For each flow the sequence number of its first byte, and the data by sequence number.
    let mut parts: Vec<(u32, BTreeMap<u32, &[u8]>)> = Vec::new();
    for segment in packets(&file).filter_map(tcp) {
        let known = flows.iter().position(|flow| flow.from == segment.from && flow.to == segment.to);
        let index = known.unwrap_or_else(|| {
            assert!(segment.syn || segment.data.is_empty(), "a connection that was there before");
            flows.push(Flow { from: segment.from.clone(), to: segment.to.clone(), bytes: Vec::new() });
            parts.push((segment.sequence.wrapping_add(1), BTreeMap::new()));
            flows.len() - 1
        });
        if !segment.data.is_empty() {
            let part = parts[index].1.entry(segment.sequence).or_default();
            if segment.data.len() > part.len() {
                *part = segment.data;
            }
        }
    }
    for (flow, (mut next, mut parts)) in flows.iter_mut().zip(parts) {
        while let Some(data) = parts.remove(&next) {
            next = next.wrapping_add(data.len() as u32);
            flow.bytes.extend_from_slice(data);
        }
        assert!(parts.is_empty(), "a gap in a flow");
    }
    flows
}

struct Segment<'a> {
    from: (Vec<u8>, u16),
    to: (Vec<u8>, u16),
    sequence: u32,
    syn: bool,
    data: &'a [u8],
}

/// The TCP segment in an Ethernet frame.
fn tcp(frame: &[u8]) -> Option<Segment<'_>> {
    const TCP: u8 = 6;
    let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let packet = ip(frame)?;
    let Ip { from, to, body: tcp, .. } = packet;
    (packet.protocol() == TCP).then(|| Segment {
        from: (from.to_vec(), half(tcp, 0)),
        to: (to.to_vec(), half(tcp, 2)),
        sequence: u32::from_be_bytes(tcp[4..8].try_into().unwrap()),
        syn: tcp[13] & 2 != 0,
        data: &tcp[(tcp[12] >> 4) as usize * 4..],
    })
}
