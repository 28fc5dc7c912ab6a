//! Entry points of bytes from other hosts and processes that need no engine, for the fuzz targets, and for
//! the tests of every run with random bytes. Each ends without a panic, and checks its result.

use adverb_wire::ib::mad::MAD_LEN;

/// Management datagrams of our own classes: where a queue pair lives, marks, and where a service lives.
pub fn vendor_mad(bytes: &[u8]) {
    let mut mad = [0; MAD_LEN];
    let length = bytes.len().min(MAD_LEN);
    mad[..length].copy_from_slice(&bytes[..length]);
    crate::locate::try_bytes(&mad);
    crate::manager::try_notice(&mad);
}

/// The effects of management datagrams of our own.
pub fn vendor_effect(bytes: &[u8]) {
    crate::locate::try_effect(bytes);
}

/// The effects of notices that say where a service lives.
pub fn notice_effect(bytes: &[u8]) {
    crate::manager::try_notices(bytes);
}

/// The effects of echoes of marks.
pub fn mark_effect(bytes: &[u8]) {
    crate::peer::try_effect(bytes);
}

/// The record of connections that a program left, and the answers to questions about its peers.
pub fn farewell(bytes: &[u8]) {
    crate::orphans::fuzz_record(bytes);
}

/// Requests for connections and datagram services, and their answers.
pub fn connection_request(bytes: &[u8]) {
    // REQ, REJ, REP, the two of SIDR, and their headers, which random bytes seldom are.
    const KINDS: [u8; 5] = [0x10, 0x12, 0x13, 0x17, 0x18];
    let Some((kind, said)) = bytes.split_first() else { return };
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = KINDS[usize::from(*kind) % KINDS.len()];
    for (place, byte) in mad[24..].iter_mut().zip(said) {
        *place = *byte;
    }
    crate::manager::try_request(&mad);
}

/// Packets that other processes of the host hand over.
pub fn handover(bytes: &[u8]) {
    crate::handover::try_bytes(bytes);
}

/// Messages that processes of this user and of others hand over to one with queue pairs, and their effects.
pub fn handover_effect(bytes: &[u8]) {
    crate::handover::try_effect(bytes);
}

/// Messages of other processes to the holder of the port, and their effects.
pub fn udp_port(bytes: &[u8]) {
    crate::udp_port::try_effect(bytes);
}

/// The list of sockets by whose names queue pair numbers are found.
pub fn numbers(bytes: &[u8]) {
    crate::numbers::try_list(bytes);
}

/// Records of a channel.
pub fn record(bytes: &[u8]) {
    crate::local::try_record(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::random;

    // Random bytes, and now and then small numbers, of which all these formats are full.
    fn garbage(most: usize) -> Vec<u8> {
        let small = random::word() as u8 | 1;
        (0..random::word() as usize % most)
            .map(|_| {
                let word = random::word();
                if word >> 8 & 3 == 0 { word as u8 } else { word as u8 % small.min(9) }
            })
            .collect()
    }

    #[test]
    fn garbage_of_others_does_no_harm() {
        for _ in 0..2000 {
            vendor_mad(&garbage(300));
            vendor_effect(&garbage(300));
            notice_effect(&garbage(300));
            mark_effect(&garbage(600));
            connection_request(&garbage(300));
            handover(&garbage(400));
            record(&garbage(600));
            numbers(&garbage(200));
        }
        for _ in 0..100 {
            farewell(&garbage(1000));
            udp_port(&garbage(200));
        }
        for _ in 0..20 {
            handover_effect(&(0..300).map(|_| random::word() as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_handed_over_message_may_be_longer_than_a_packet() {
        let mut bytes = vec![0; crate::handover::LONGEST];
        bytes[0] = 1;
        handover(&bytes);
        bytes[22..24].fill(0xff);
        bytes[38..40].fill(0xff);
        handover(&bytes);
    }
}
