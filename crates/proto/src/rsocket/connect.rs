//! What the two sides of a stream tell each other in the private data of the connection.

use super::message::{Target, from_scale, to_scale};

/// Bytes of the private data.
pub const CONNECT_LENGTH: usize = 40;

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const MAPPINGS: u8 = 2;

/// One side's introduction. Its numbers travel in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Whether the memory of this side has the most significant byte first.
    pub big_endian: bool,
    /// Messages that it takes before it says more.
    pub credits: u16,
    /// Entries of its table of mappings, behind the targets.
    pub mappings: u16,
    /// Where this side wants new targets written; `length` is their number.
    pub targets: Target,
    /// The first target for data.
    pub data: Target,
}

/// Why an introduction is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConnect {
    /// The private data is too short.
    #[error("the peer's private data is too short for rsockets")]
    Short,
    /// Another version, or no rsocket at all.
    #[error("the peer is no rsocket of version 1 (it says {0})")]
    Version(u8),
    /// Values that cannot work.
    #[error("the peer has no place for targets or credits")]
    Nothing,
}

impl Connect {
    /// The private data that says this.
    pub fn bytes(&self) -> [u8; CONNECT_LENGTH] {
        let mut out = [0; CONNECT_LENGTH];
        out[0] = VERSION;
        out[1] = MAPPINGS | if self.big_endian { BIG_ENDIAN } else { 0 };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = to_scale(self.mappings);
        for (at, target) in [(8, &self.targets), (24, &self.data)] {
            out[at..at + 8].copy_from_slice(&target.address.to_be_bytes());
            out[at + 8..at + 12].copy_from_slice(&target.key.to_be_bytes());
            out[at + 12..at + 16].copy_from_slice(&target.length.to_be_bytes());
        }
        out
    }

    /// Reads private data, which may be padded.
    pub fn read(bytes: &[u8]) -> Result<Self, BadConnect> {
        let bytes: &[u8; CONNECT_LENGTH] = bytes.first_chunk().ok_or(BadConnect::Short)?;
        if bytes[0] != VERSION {
            return Err(BadConnect::Version(bytes[0]));
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let target = |at: usize| Target {
            address: u64::from(word(at)) << 32 | u64::from(word(at + 4)),
            key: word(at + 8),
            length: word(at + 12),
        };
        let found = Self {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            mappings: if bytes[1] & MAPPINGS != 0 { from_scale(bytes[7]) } else { 0 },
            targets: target(8),
            data: target(24),
        };
        if found.targets.length == 0 || found.credits == 0 {
            return Err(BadConnect::Nothing);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Connect {
        Connect {
            big_endian: false,
            credits: 384,
            mappings: 128,
            targets: Target { address: 0x7f00_1122_3344_5566, key: 0xa1a2_a3a4, length: 2 },
            data: Target { address: 0x7f00_aabb_ccdd_eeff, key: 0xb1b2_b3b4, length: 65_536 },
        }
    }

    #[test]
    fn the_private_data_is_that_of_linux() {
        let bytes = sample().bytes();
        assert_eq!(bytes[..8], [1, 2, 1, 128, 0, 0, 0, 128]);
        assert_eq!(bytes[8..16], [0x7f, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66]);
        assert_eq!(bytes[16..24], [0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 2]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        let mut padded = bytes.to_vec();
        padded.extend([0; 16]);
        assert_eq!(Connect::read(&padded), Ok(sample()));
    }

    #[test]
    fn other_private_data_is_refused() {
        let good = sample().bytes();
        assert_eq!(Connect::read(&good[..39]), Err(BadConnect::Short));
        let mut other = good;
        other[0] = 2;
        assert_eq!(Connect::read(&other), Err(BadConnect::Version(2)));
        for nothing in
            [Connect { credits: 0, ..sample() }, Connect { targets: Target::default(), ..sample() }]
        {
            assert_eq!(Connect::read(&nothing.bytes()), Err(BadConnect::Nothing));
        }
        // An older side without a table of mappings.
        let mut older = good;
        older[1] = 0;
        assert_eq!(Connect::read(&older).map(|found| found.mappings), Ok(0));
    }
}
