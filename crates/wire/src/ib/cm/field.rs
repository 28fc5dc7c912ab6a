//! Fields of the messages, by bit, and structures of them.

/// A value somewhere in the data of a datagram.
pub(super) trait Field: Sized {
    /// Reads `width` bits, of which `at` is the first; bit 0 is the most significant of the first byte.
    fn get(data: &[u8], at: usize, width: usize) -> Self;

    /// Writes them. The bits must be zeros before.
    // IB-CM-5: a datagram begins as zeros, so what no field writes stays so.
    fn put(&self, data: &mut [u8], at: usize, width: usize);
}

fn get_bits(data: &[u8], at: usize, width: usize) -> u64 {
    let (first, end) = (at / 8, (at + width).div_ceil(8));
    let whole = data[first..end].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    whole >> (8 * end - at - width) & u64::MAX >> (64 - width)
}

fn put_bits(value: u64, data: &mut [u8], at: usize, width: usize) {
    let (first, end) = (at / 8, (at + width).div_ceil(8));
    let mut rest = (value & u64::MAX >> (64 - width)) << (8 * end - at - width);
    for byte in data[first..end].iter_mut().rev() {
        *byte |= rest as u8;
        rest >>= 8;
    }
}

macro_rules! integer_field {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn get(data: &[u8], at: usize, width: usize) -> Self {
                get_bits(data, at, width) as Self
            }

            fn put(&self, data: &mut [u8], at: usize, width: usize) {
                put_bits(u64::from(*self), data, at, width);
            }
        }
    )*};
}

integer_field!(u8 u16 u32 u64);

impl Field for bool {
    fn get(data: &[u8], at: usize, width: usize) -> Self {
        get_bits(data, at, width) != 0
    }

    fn put(&self, data: &mut [u8], at: usize, width: usize) {
        put_bits(u64::from(*self), data, at, width);
    }
}

impl<const N: usize> Field for [u8; N] {
    fn get(data: &[u8], at: usize, _width: usize) -> Self {
        data[at / 8..][..N].try_into().expect("the length was given")
    }

    fn put(&self, data: &mut [u8], at: usize, _width: usize) {
        data[at / 8..][..N].copy_from_slice(self);
    }
}

/// A structure and its place for each field, for a module that has [`Field`]: byte, bit within the byte (0 is
/// the most significant), width in bits.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $byte:literal:$bit:literal, $width:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Field for $name {
            fn get(data: &[u8], at: usize, _width: usize) -> Self {
                $name { $($field: <$type as Field>::get(data, at + 8 * $byte + $bit, $width),)* }
            }

            fn put(&self, data: &mut [u8], at: usize, _width: usize) {
                $(self.$field.put(data, at + 8 * $byte + $bit, $width);)*
            }
        }

        impl Default for $name {
            /// All zeros.
            fn default() -> Self {
                Self::get(&[0; $crate::ib::mad::DATA_LEN], 0, 0)
            }
        }
    };
}

pub(super) use layout;
