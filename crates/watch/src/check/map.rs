//! Tables by addresses and numbers that the engine has chosen: nobody can choose them so that they meet in
//! one place.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by addresses or numbers.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;

/// Spreads addresses and numbers.
#[derive(Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // Tables look at the lowest bits, too, and those depend on the lowest of the address alone.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_size_are_spread() {
        let all: std::collections::HashSet<_> = (0..1024_usize)
            .map(|place| {
                let mut spread = AddressHasher::default();
                spread.write_usize(0x7f00_0000_0000 + place * 512);
                spread.finish() & 0x3ff
            })
            .collect();
        assert!(all.len() > 512, "{}", all.len());
    }
}
