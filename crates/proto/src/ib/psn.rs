//! Arithmetic of packet sequence numbers: 24 bits that wrap (volume 1, section 9.7.1).

/// The bits of a packet sequence number.
pub const MASK: u32 = 0x00ff_ffff;
/// No more than this many packet sequence numbers may be outstanding, so that old and new can be told apart.
// IB-RC-REQ-4, IB-RC-RSP-2
pub const WINDOW: u32 = 1 << 23;

/// The number `count` after `psn`.
#[inline]
pub const fn add(psn: u32, count: u32) -> u32 {
    psn.wrapping_add(count) & MASK
}

/// How many numbers lie from `from` up to, not including, `to`.
#[inline]
pub const fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & MASK
}

/// True if `psn` comes before `other`, which is less than half the numbers away.
// IB-RC-REQ-5
#[inline]
pub const fn precedes(psn: u32, other: u32) -> bool {
    distance(other, psn) >= WINDOW
}

/// True if `psn` is one of the `count` numbers from `first` on.
#[inline]
pub const fn within(psn: u32, first: u32, count: u32) -> bool {
    distance(first, psn) < count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_wrap() {
        assert_eq!(add(MASK, 1), 0);
        assert_eq!(distance(MASK, 1), 2);
        assert!(precedes(MASK, 0) && !precedes(0, MASK) && !precedes(5, 5));
        assert!(within(0, MASK, 2) && !within(1, MASK, 2) && !within(0, 0, 0));
    }

    proptest! {
        // IB-RC-REQ-4, IB-RC-REQ-5, IB-RC-RSP-2
        #[test]
        fn order_holds_within_the_window(psn in 0..=MASK, count in 1..WINDOW) {
            let later = add(psn, count);
            prop_assert_eq!(distance(psn, later), count);
            prop_assert!(precedes(psn, later) && !precedes(later, psn));
            prop_assert!(within(psn, psn, count) && !within(later, psn, count));
        }
    }
}
