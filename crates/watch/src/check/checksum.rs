//! Checksums of the bytes of requests.
//!
//! Of each 16 bytes, one half is multiplied by the other, with what came before: the product of 128 bits is
//! folded to 64. Eight products are under way at a time, so a block of 128 bytes takes little longer than one
//! product. Nobody chooses bytes so that two sums are the same: a program changes them by mistake.

/// Bytes for which all lanes have one product each.
const BLOCK: usize = 128;
const LANES: usize = BLOCK / 16;

/// Each lane has a number of its own, so that bytes in another place make another sum.
const KEYS: [u64; LANES] = [
    0xff51_afd7_ed55_8ccd,
    0xc4ce_b9fe_1a85_ec53,
    0x2127_599b_f432_5c37,
    0x9ae1_6a3b_2f90_404f,
    0xb492_b66f_be98_f273,
    0xcbf2_9ce4_8422_2325,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
];

/// A checksum of bytes that come in pieces.
#[derive(Clone, Copy)]
pub(super) struct Checksum {
    lanes: [u64; LANES],
    length: u64,
}

fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let count = bytes.len().min(8);
    word[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(word)
}

impl Checksum {
    pub(super) fn new() -> Self {
        Self { lanes: KEYS.map(u64::swap_bytes), length: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut lanes = self.lanes;
        let mut blocks = bytes.chunks_exact(BLOCK);
        for block in &mut blocks {
            for (lane, (part, key)) in lanes.iter_mut().zip(block.chunks_exact(16).zip(KEYS)) {
                *lane = fold(word(&part[..8]) ^ *lane, word(&part[8..]) ^ key);
            }
        }
        for (lane, (part, key)) in lanes.iter_mut().zip(blocks.remainder().chunks(16).zip(KEYS)) {
            let (first, second) = part.split_at(part.len().min(8));
            *lane = fold(word(first) ^ *lane, word(second) ^ key);
        }
        self.lanes = lanes;
        self.length += bytes.len() as u64;
    }

    pub(super) fn value(self) -> u64 {
        self.lanes.into_iter().zip(KEYS).fold(self.length, |sum, (lane, key)| fold(sum ^ lane, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::new();
        sum.add(bytes);
        sum.value()
    }

    #[test]
    fn checksums_see_each_byte_and_its_place() {
        let mut bytes = [0_u8; 500];
        let mut seen = vec![sum(&bytes), sum(&bytes[..499])];
        for place in 0..bytes.len() {
            bytes[place] = 1;
            seen.push(sum(&bytes));
            bytes[place] = 0;
        }
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all);
        assert_eq!(sum(&bytes), sum(&[0; 500]));
    }

    #[test]
    fn checksums_see_parts_that_change_places() {
        let bytes: Vec<u8> = (0..512_u32).map(|place| ((place * 37) >> 3) as u8).collect();
        for length in [8, 16, 128] {
            let mut other = bytes.clone();
            other[..2 * length].rotate_left(length);
            assert_ne!(other, bytes);
            assert_ne!(sum(&other), sum(&bytes), "{length}");
        }
    }
}
