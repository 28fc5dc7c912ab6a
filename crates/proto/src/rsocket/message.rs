//! The 32-bit messages, and the structures that are written into the peer's memory.

/// What one message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes have been written where the last ones ended.
    Data(u32),
    /// The peer may send messages up to, and without, this number.
    Credits(u16),
    /// An entry of the table of mappings was written.
    Mapping(u16),
    /// Nothing follows, and nothing is read any more.
    Disconnect,
    /// Nothing; the connection lives.
    Keepalive,
    /// Nothing follows.
    Shutdown,
}

const SHIFT: u32 = 29;
const VALUE: u32 = (1 << SHIFT) - 1;

const DATA: u32 = 0;
/// Reserved for data of which more follows; stands for data.
const DATA_MORE: u32 = 1;
const TARGET: u32 = 4;
const MAPPING: u32 = 6;
const CONTROL: u32 = 7;

const DISCONNECT: u32 = 0;
const KEEPALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

impl Message {
    /// The message as a number.
    pub fn word(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(length) => (DATA, length & VALUE),
            Self::Credits(limit) => (TARGET, limit.into()),
            Self::Mapping(index) => (MAPPING, index.into()),
            Self::Disconnect => (CONTROL, DISCONNECT),
            Self::Keepalive => (CONTROL, KEEPALIVE),
            Self::Shutdown => (CONTROL, SHUTDOWN),
        };
        kind << SHIFT | value
    }

    /// What a number says; `None` if nothing that is defined.
    pub fn from_word(word: u32) -> Option<Self> {
        let value = word & VALUE;
        Some(match word >> SHIFT {
            DATA | DATA_MORE => Self::Data(value),
            // The number counts on beyond 16 bits; what matters are the lower ones.
            TARGET => Self::Credits(value as u16),
            MAPPING => Self::Mapping(value as u16),
            CONTROL => match value {
                DISCONNECT => Self::Disconnect,
                KEEPALIVE => Self::Keepalive,
                SHUTDOWN => Self::Shutdown,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Memory of a peer that may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// First byte.
    pub address: u64,
    /// The key of the memory.
    pub key: u32,
    /// Bytes, or entries of a table.
    pub length: u32,
}

/// Bytes of a target.
pub const TARGET_LENGTH: usize = 16;

/// Which order of bytes a structure has: that of the machine in whose memory it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Big,
    Little,
}

impl Order {
    pub(super) const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    pub(super) fn u64(self, value: u64) -> [u8; 8] {
        if self == Self::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(super) fn u32(self, value: u32) -> [u8; 4] {
        if self == Self::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }
}

impl Target {
    pub(super) fn bytes(&self, order: Order) -> [u8; TARGET_LENGTH] {
        let mut out = [0; TARGET_LENGTH];
        out[..8].copy_from_slice(&order.u64(self.address));
        out[8..12].copy_from_slice(&order.u32(self.key));
        out[12..].copy_from_slice(&order.u32(self.length));
        out
    }

    /// Reads one that the peer has written into our memory: it has our order of bytes.
    pub fn read(bytes: &[u8; TARGET_LENGTH]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (first, _) = bytes.split_at(8);
        Self { address: first.try_into().map_or(0, u64::from_ne_bytes), key: word(8), length: word(12) }
    }
}

/// An entry of the table of mappings (riomap): memory that the peer offers under an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// What the peer calls the first byte.
    pub offset: u64,
    /// The memory.
    pub target: Target,
}

impl Mapping {
    /// Bytes of an entry.
    pub const LENGTH: usize = 8 + TARGET_LENGTH;

    pub(super) fn bytes(&self, order: Order) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[..8].copy_from_slice(&order.u64(self.offset));
        out[8..].copy_from_slice(&self.target.bytes(order));
        out
    }

    /// Reads one that the peer has written into our memory.
    pub fn read(bytes: &[u8; Self::LENGTH]) -> Self {
        let (first, rest) = bytes.split_at(8);
        Self {
            offset: first.try_into().map_or(0, u64::from_ne_bytes),
            target: rest.try_into().map_or_else(|_| Target::default(), Target::read),
        }
    }

    /// The memory from `offset` on, if the mapping holds that byte.
    pub fn at(&self, offset: u64) -> Option<Target> {
        let skip = offset.checked_sub(self.offset).filter(|skip| *skip < self.target.length.into())?;
        Some(Target {
            address: self.target.address.wrapping_add(skip),
            key: self.target.key,
            length: self.target.length - skip as u32,
        })
    }
}

const SCALE_BIT: u32 = 1 << 7;

/// The size of a table of mappings as one byte: up to 128 as it is, else in steps of 256.
pub fn to_scale(value: u16) -> u8 {
    let value = u32::from(value);
    (if value <= SCALE_BIT { value } else { SCALE_BIT | value >> 8 }) as u8
}

/// The size that such a byte says.
pub fn from_scale(scale: u8) -> u16 {
    let scale = u32::from(scale);
    (if scale <= SCALE_BIT { scale } else { (scale & !SCALE_BIT) << 8 }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_linux() {
        for (message, word) in [
            (Message::Data(65_536), 0x0001_0000),
            (Message::Credits(0x123), 0x8000_0123),
            (Message::Mapping(5), 0xc000_0005),
            (Message::Disconnect, 0xe000_0000),
            (Message::Keepalive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ] {
            assert_eq!(message.word(), word);
            assert_eq!(Message::from_word(word), Some(message));
        }
        assert_eq!(Message::from_word(0x8001_0005), Some(Message::Credits(5)));
        assert_eq!(Message::from_word(0x2000_0007), Some(Message::Data(7)));
        for word in [0x4000_0000, 0x6000_0000, 0xa000_0000, 0xe000_0003, u32::MAX] {
            assert_eq!(Message::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn structures_have_the_readers_order() {
        let target = Target { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 0x2122_2324 };
        let big = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(target.bytes(Order::Big), big);
        assert_eq!(Target::read(&target.bytes(Order::NATIVE)), target);
        let mapping = Mapping { offset: 9, target };
        assert_eq!(Mapping::read(&mapping.bytes(Order::NATIVE)), mapping);
    }

    #[test]
    fn a_mapping_knows_its_bytes() {
        let target = Target { address: 1000, key: 7, length: 10 };
        let mapping = Mapping { offset: 50, target };
        assert_eq!(mapping.at(49), None);
        assert_eq!(mapping.at(50), Some(target));
        assert_eq!(mapping.at(59), Some(Target { address: 1009, key: 7, length: 1 }));
        assert_eq!(mapping.at(60), None);
    }

    #[test]
    fn sizes_of_tables() {
        for (value, scaled) in
            [(0, 0), (1, 1), (128, 128), (256, 256), (300, 256), (1024, 1024), (32_512, 32_512)]
        {
            assert_eq!(from_scale(to_scale(value)), scaled, "{value}");
        }
    }
}
