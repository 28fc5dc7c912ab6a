//! Byte streams out of a capture file: as much of pcapng, Ethernet, IP and TCP as that takes.

use std::collections::BTreeMap;
use std::path::Path;

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

/// The packets of all enhanced packet blocks.
fn packets(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    const ENHANCED_PACKET: u32 = 6;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < file.len() {
            let (kind, block, len) = (word(at), at, word(at + 4) as usize);
            at += len;
            if kind == ENHANCED_PACKET {
                let captured = word(block + 20) as usize;
                assert_eq!(captured, word(block + 24) as usize, "a packet that was cut off");
                return Some(&file[block + 28..block + 28 + captured]);
            }
        }
        None
    })
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
    let ip = &frame[14..];
    let (protocol, from, to, tcp) = match half(frame, 12) {
        0x0800 => {
            let header = (ip[0] & 0x0f) as usize * 4;
            (ip[9], &ip[12..16], &ip[16..20], &ip[header..half(ip, 2) as usize])
        }
        0x86dd => (ip[6], &ip[8..24], &ip[24..40], &ip[40..40 + half(ip, 4) as usize]),
        _ => return None,
    };
    (protocol == TCP).then(|| Segment {
        from: (from.to_vec(), half(tcp, 0)),
        to: (to.to_vec(), half(tcp, 2)),
        sequence: u32::from_be_bytes(tcp[4..8].try_into().unwrap()),
        syn: tcp[13] & 2 != 0,
        data: &tcp[(tcp[12] >> 4) as usize * 4..],
    })
}
