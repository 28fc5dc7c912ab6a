//! Management datagrams (volume 1, chapter 13).
//!
//! A management datagram (MAD) is 256 bytes: a common header, and what the management class of the header
//! makes of the rest. Those of the general services travel as unreliable datagrams between the queue pairs
//! with the number [`GSI_QPN`].

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a management datagram.
// IB-PKT-54
pub const MAD_LEN: usize = 256;
/// Bytes behind the common header.
pub const DATA_LEN: usize = MAD_LEN - 24;
/// Number of the queue pair of the general service interface.
pub const GSI_QPN: u32 = 1;
/// The Q_Key of that queue pair.
// IB-PKT-58
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Version of the common header.
pub const BASE_VERSION: u8 = 1;
/// The class that an OUI in [`Vendor`] divides further: the first of them. The last is 0x4F.
pub const FIRST_VENDOR_CLASS: u8 = 0x30;
/// The last class that an OUI divides further.
pub const LAST_VENDOR_CLASS: u8 = 0x4f;

/// Management classes.
pub mod class {
    /// Subnet management, routed by LID.
    pub const SUBNET_MANAGEMENT: u8 = 0x01;
    /// Subnet administration.
    pub const SUBNET_ADMINISTRATION: u8 = 0x03;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
    /// Device management.
    pub const DEVICE_MANAGEMENT: u8 = 0x06;
    /// Communication management.
    pub const COMMUNICATION: u8 = 0x07;
    /// Subnet management on a directed route.
    pub const SUBNET_DIRECTED_ROUTE: u8 = 0x81;
}

/// Methods.
pub mod method {
    /// Asks for an attribute.
    pub const GET: u8 = 0x01;
    /// Sets an attribute.
    pub const SET: u8 = 0x02;
    /// Sends; a response, if any, is a message of its own.
    pub const SEND: u8 = 0x03;
    /// Answers [`GET`] and [`SET`].
    pub const GET_RESPONSE: u8 = 0x81;
}

/// The common header (volume 1, section 13.4.2).
// IB-PKT-55
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Header {
    /// [`BASE_VERSION`].
    pub base_version: u8,
    /// One of [`class`], or another.
    pub class: u8,
    /// Version of what the class defines.
    pub class_version: u8,
    /// One of [`method`], or another.
    pub method: u8,
    /// Status of a response.
    pub status: U16,
    /// What the class makes of it.
    pub class_specific: U16,
    /// The transaction identifier: the same in all messages of an exchange.
    pub transaction_id: U64,
    /// What the datagram is about.
    pub attribute_id: U16,
    // IB-PKT-56
    reserved: U16,
    /// More about the attribute.
    pub attribute_modifier: U32,
}

impl Header {
    /// A header; what is not given is 0.
    pub const fn new(
        class: u8,
        class_version: u8,
        method: u8,
        transaction_id: u64,
        attribute_id: u16,
    ) -> Header {
        Header {
            base_version: BASE_VERSION,
            class,
            class_version,
            method,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction_id: U64::new(transaction_id),
            attribute_id: U16::new(attribute_id),
            reserved: U16::ZERO,
            attribute_modifier: U32::ZERO,
        }
    }
}

/// A whole management datagram.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Mad {
    /// The common header.
    pub header: Header,
    /// What the class makes of it.
    pub data: [u8; DATA_LEN],
}

impl Mad {
    /// A datagram with zeros behind its header.
    pub const fn new(header: Header) -> Mad {
        Mad { header, data: [0; DATA_LEN] }
    }

    /// The datagram that `bytes` are; `None` if they are not as many as a datagram has, or of another
    /// version.
    // IB-PKT-54, IB-PKT-55: nothing of another length or version is read.
    pub fn parse(bytes: &[u8]) -> Option<&Mad> {
        Mad::ref_from_bytes(bytes).ok().filter(|mad| mad.header.base_version == BASE_VERSION)
    }

    /// The bytes of the datagram.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        zerocopy::transmute!(*self)
    }

    /// What a class between [`FIRST_VENDOR_CLASS`] and [`LAST_VENDOR_CLASS`] makes of the data; `None` for
    /// any other.
    pub fn vendor(&self) -> Option<&Vendor> {
        let vendor = (FIRST_VENDOR_CLASS..=LAST_VENDOR_CLASS).contains(&self.header.class);
        vendor.then_some(zerocopy::transmute_ref!(&self.data))
    }
}

/// The data of a class that a vendor's OUI divides further (volume 1, section 16.5). No datagram of such a
/// class is cut into segments here: the header of that protocol is all zeros.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Vendor {
    segments: [u8; 12],
    reserved: u8,
    /// The organisation whose datagram this is.
    pub oui: [u8; 3],
    /// What the vendor makes of it.
    pub data: [u8; DATA_LEN - 16],
}

impl Vendor {
    /// Data of a vendor's own.
    pub fn new(oui: [u8; 3], data: [u8; DATA_LEN - 16]) -> Vendor {
        Vendor { oui, data, ..Vendor::new_zeroed() }
    }

    /// A datagram with this data.
    pub fn with_header(&self, header: Header) -> Mad {
        Mad { header, data: zerocopy::transmute!(*self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-PKT-54, IB-PKT-55, IB-PKT-56
    #[test]
    fn layout() {
        let mad = Mad::new(Header::new(class::COMMUNICATION, 2, method::SEND, 0x0102_0304_0506_0708, 0x10));
        let bytes = mad.to_bytes();
        assert_eq!(bytes[..24], [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Mad::parse(&bytes), Some(&mad));
        assert_eq!(Mad::parse(&bytes[..255]), None);
        assert_eq!(Mad::parse(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Mad::parse(&[2; 256]), None);
    }

    #[test]
    fn a_vendor_s_own() {
        let vendor = Vendor::new([1, 2, 3], [4; 216]);
        let mad = vendor.with_header(Header::new(0x32, 1, method::GET, 5, 6));
        assert_eq!(mad.to_bytes()[24..42], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 4]);
        assert_eq!(mad.vendor(), Some(&vendor));
        assert_eq!(Mad::new(Header::new(7, 1, 1, 0, 0)).vendor(), None);
    }
}
