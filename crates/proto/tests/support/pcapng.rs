//! Packets out of a capture file: as much of pcapng, Ethernet and IP as that takes.

/// The packets of all enhanced packet blocks.
pub(crate) fn packets(file: &[u8]) -> impl Iterator<Item = &[u8]> {
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

/// An IP packet.
pub(crate) struct Ip<'a> {
    /// The header.
    pub(crate) header: &'a [u8],
    /// Address of the sender.
    pub(crate) from: &'a [u8],
    /// Address of the receiver.
    pub(crate) to: &'a [u8],
    /// What follows the header.
    pub(crate) body: &'a [u8],
}

impl Ip<'_> {
    /// The protocol above.
    pub(crate) fn protocol(&self) -> u8 {
        self.header[if self.header[0] >> 4 == 4 { 9 } else { 6 }]
    }
}

/// The IP packet in an Ethernet frame.
pub(crate) fn ip(frame: &[u8]) -> Option<Ip<'_>> {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ip = &frame[14..];
    match half(12) {
        0x0800 => {
            let (header, body) = ip[..half(16) as usize].split_at((ip[0] & 0x0f) as usize * 4);
            Some(Ip { header, from: &ip[12..16], to: &ip[16..20], body })
        }
        0x86dd => {
            let (header, body) = ip[..40 + half(18) as usize].split_at(40);
            Some(Ip { header, from: &ip[8..24], to: &ip[24..40], body })
        }
        _ => None,
    }
}
