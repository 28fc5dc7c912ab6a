//! Entry points of bytes from others that need no engine, for the fuzz targets, and for the tests of every
//! run with random bytes. Each ends without a panic, and checks its result.

/// A frame as a raw packet queue pair receives it.
pub fn raw_frame(bytes: &[u8]) {
    crate::flow::try_frame(bytes);
}

/// Questions and answers of processes that import what others export.
pub fn export(bytes: &[u8]) {
    crate::export::try_bytes(bytes);
}

/// A process's answer about its objects.
pub fn objects(bytes: &[u8]) {
    crate::inspect::try_bytes(bytes);
}

/// The page of counters of another process.
pub fn counter_page(bytes: &[u8]) {
    crate::counters::try_bytes(bytes);
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

    /// Bytes that are often those of which lines are made, since others are seldom a line.
    #[test]
    fn garbage_about_objects_and_counters_does_no_harm() {
        const PARTS: [&[u8]; 8] =
            [b"qp", b"\t", b"=", b"number=", b"7", b"\ndevice\tdevice=", b"\x1b[2J", b"\nend\nregions\n"];
        for _ in 0..2_000 {
            let mut bytes: Vec<u8> = (0..random::word() % 12).map(|_| random::word() as u8).collect();
            counter_page(&bytes);
            for _ in 0..random::word() % 40 {
                bytes.extend_from_slice(PARTS[random::word() as usize % PARTS.len()]);
            }
            objects(&bytes);
            counter_page(&bytes);
        }
    }
}
