//! Numbers that nobody guesses who does not know the key: SipHash-2-4 (Aumasson and Bernstein, 2012) of a
//! count.

/// A secret of its owner, from a source of random bits.
pub type Key = [u64; 2];

/// The word that belongs to `count`. Of other counts it tells nothing.
pub fn word(key: Key, count: u64) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // Eight bytes, and the length.
    for block in [count, 8 << 56] {
        state[3] ^= block;
        rounds(&mut state, 2);
        state[0] ^= block;
    }
    state[2] ^= 0xff;
    rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn rounds([a, b, c, d]: &mut [u64; 4], count: usize) {
    for _ in 0..count {
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

/// The number below `1 << bits` that belongs to `count`: of as many counts in a row, each number once. Up to
/// 32 bits.
pub fn number(key: Key, count: u32, bits: u32) -> u32 {
    // A Feistel network over an even number of bits, walked on until the result is one.
    let half = bits.div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut value = u64::from(count) & ((1u64 << bits) - 1);
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..6 {
            (left, right) = (right, left ^ word(key, (round + 1) << 40 | right) & mask);
        }
        value = left << half | right;
        if value < 1 << bits {
            return value as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The vector of eight bytes of the authors.
    #[test]
    fn words_are_those_of_the_published_function() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(word(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn every_number_comes_once_and_none_tells_the_next() {
        for bits in [1, 2, 7, 12, 13] {
            let numbers: HashSet<u32> = (0..1 << bits).map(|count| number([1, 2], count, bits)).collect();
            assert_eq!(numbers.len(), 1 << bits);
            assert!(numbers.iter().all(|number| *number < 1 << bits));
        }
        let steps: HashSet<u32> = (0..1000)
            .map(|count| number([1, 2], count + 1, 20).wrapping_sub(number([1, 2], count, 20)))
            .collect();
        assert!(steps.len() > 990, "{} different steps", steps.len());
    }
}
