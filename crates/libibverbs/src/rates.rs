//! Static rates (`ibv_rate_to_mbps(3)`, `ibv_rate_to_mult(3)`).

use core::ffi::{c_int, c_uint};

/// The rates: the value of `enum ibv_rate`, the multiple of 2.5 Gb/s where it is whole, the data rate in
/// Mb/s.
const RATES: &[(c_uint, Option<c_int>, c_int)] = &[
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `IBV_RATE_MAX`, which stands for every rate that has no name.
const RATE_MAX: c_uint = 0;

/// The multiple of 2.5 Gb/s of a rate, or -1.
pub extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate).and_then(|entry| entry.1).unwrap_or(-1)
}

/// The rate that is `mult` times 2.5 Gb/s, or `IBV_RATE_MAX`.
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|entry| entry.1 == Some(mult)).map_or(RATE_MAX, |entry| entry.0)
}

/// A rate in Mb/s, or -1.
pub extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate).map_or(-1, |entry| entry.2)
}

/// The rate of exactly `mbps` Mb/s, or `IBV_RATE_MAX`.
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|entry| entry.2 == mbps).map_or(RATE_MAX, |entry| entry.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_converts_back() {
        for &(rate, mult, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), rate);
            assert_eq!(ibv_rate_to_mult(rate), mult.unwrap_or(-1));
            if let Some(mult) = mult {
                assert_eq!(mult_to_ibv_rate(mult), rate);
            }
        }
        assert_eq!(
            (ibv_rate_to_mbps(99), mbps_to_ibv_rate(1), mult_to_ibv_rate(-1)),
            (-1, RATE_MAX, RATE_MAX)
        );
    }
}
