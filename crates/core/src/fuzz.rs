//! What the fuzz targets feed, and the tests of every run with random bytes: entry points of bytes from others that need no engine. Each ends
//! without a panic, and checks what it has read.

/// A frame as a raw packet queue pair receives it.
pub fn raw_frame(bytes: &[u8]) {
    crate::flow::try_frame(bytes);
}

/// Questions and answers of processes that import what others export.
pub fn export(bytes: &[u8]) {
    crate::export::try_bytes(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn garbage_of_others_does_no_harm() {
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..random::word() % 120).map(|_| random::word() as u8).collect();
            let heads: [&[u8]; 6] = [
                &[8, 0, 0x45],
                &[8, 0, 0x4f],
                &[0x86, 0xdd],
                &[0x81, 0, 0, 1, 8, 0, 0x46],
                &[0x88, 0xa8],
                b"aex1",
            ];
            let head = heads[round % heads.len()];
            let at = if head == b"aex1" { 0 } else { 12 };
            if bytes.len() > at + head.len() {
                bytes[at..at + head.len()].copy_from_slice(head);
            }
            raw_frame(&bytes);
            export(&bytes);
            bytes.truncate(24);
            export(&bytes);
        }
    }
}
