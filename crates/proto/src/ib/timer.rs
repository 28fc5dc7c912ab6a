//! The encodings of times in the attributes of queue pairs and in packets.

use std::time::Duration;

/// Codes of the receiver-not-ready timer in units of 10 microseconds (volume 1, section 9.7.5.2.8, table 45).
// IB-PKT-33
const NOT_READY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// An `rnr_retry` of this value means for ever (volume 1, section 9.7.5.2.8).
// IB-RC-REQ-44
pub const RETRY_FOREVER: u8 = 7;

/// How long the requester waits after a receiver-not-ready NAK with this code. Only five bits count.
pub const fn not_ready(code: u8) -> Duration {
    Duration::from_micros(NOT_READY[(code & 0x1f) as usize] as u64 * 10)
}

/// The local acknowledgement timeout with this code, 4.096 microseconds times two to its power; `None` for
/// code 0: never. Only five bits count (volume 1, section 9.7.6.1.3).
// IB-RC-REQ-39
pub const fn acknowledgement(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-PKT-33
    #[test]
    fn not_ready_times_are_those_of_the_table() {
        assert_eq!(not_ready(0), Duration::from_micros(655_360));
        assert_eq!(not_ready(1), Duration::from_micros(10));
        assert_eq!(not_ready(12), Duration::from_micros(640));
        assert_eq!(not_ready(18), Duration::from_micros(5120));
        assert_eq!(not_ready(31), Duration::from_micros(491_520));
        assert_eq!(not_ready(0x21), not_ready(1));
        assert!((1..31).all(|code| not_ready(code) < not_ready(code + 1)));
    }

    // IB-RC-REQ-39
    #[test]
    fn acknowledgement_timeouts_double() {
        assert_eq!(acknowledgement(0), None);
        assert_eq!(acknowledgement(1), Some(Duration::from_nanos(8192)));
        assert_eq!(acknowledgement(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(acknowledgement(31), Some(Duration::from_nanos(4096 << 31)));
    }
}
