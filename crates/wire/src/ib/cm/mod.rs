//! Messages of connection management (volume 1, chapter 12).
//!
//! Each message is a plain structure that [`Message::parse`] reads from a management datagram and
//! [`Message::to_mad`] writes to one. Reserved bits are ignored and written as zeros. Private data has no
//! length on the wire: it always fills its field, with zeros behind what the program gave.

use core::time::Duration;

use super::mad::{Header, Mad, class, method};
use field::Field;

mod alternate;
mod connection;
mod datagram;
mod field;
mod names;
mod reason;

pub use alternate::{Apr, Lap};
pub use connection::{Drep, Dreq, Mra, Path, Rej, Rep, Req, Rtu, about, service};
pub use datagram::{SidrRep, SidrReq, sidr_status};
pub use names::{IP_ADDRESSES_LEN, IpAddresses, gid, port_of, port_space, private_data, service_id};
pub use reason::RejectReason;

/// Version of the class that is spoken here.
// IB-CM-1
pub const CLASS_VERSION: u8 = 2;

/// What can be wrong with a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatagramError {
    /// The datagram is of another class.
    Class,
    /// The datagram is of another version of the class.
    Version,
    /// The method is not Send.
    Method,
    /// There is no such message.
    Attribute,
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal;)*) => {
        /// A message of connection management.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        impl Message {
            /// The message in a datagram.
            // IB-CM-1, IB-CM-10
            pub fn parse(mad: &Mad) -> Result<Message, DatagramError> {
                let header = &mad.header;
                if header.class != class::COMMUNICATION {
                    Err(DatagramError::Class)
                } else if header.class_version != CLASS_VERSION {
                    Err(DatagramError::Version)
                } else if header.method != method::SEND {
                    Err(DatagramError::Method)
                } else {
                    match header.attribute_id.get() {
                        $($attribute => Ok(Message::$name($name::get(&mad.data, 0, 0))),)*
                        _ => Err(DatagramError::Attribute),
                    }
                }
            }

            /// A datagram with the message.
            pub fn to_mad(&self, transaction_id: u64) -> Mad {
                let (attribute, put): (u16, &dyn Fn(&mut [u8])) = match self {
                    $(Message::$name(message) => ($attribute, &|data| message.put(data, 0, 0)),)*
                };
                let header =
                    Header::new(class::COMMUNICATION, CLASS_VERSION, method::SEND, transaction_id, attribute);
                let mut mad = Mad::new(header);
                put(&mut mad.data);
                mad
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

messages! {
    /// Asks for a connection.
    // IB-CM-2
    Req = 0x10;
    /// The answer will take longer.
    Mra = 0x11;
    /// There will be no connection.
    Rej = 0x12;
    /// Accepts a connection.
    Rep = 0x13;
    /// Ready to use it.
    Rtu = 0x14;
    /// Asks to release a connection.
    Dreq = 0x15;
    /// Answers that a connection is released.
    Drep = 0x16;
    /// Asks for the queue pair of a datagram service.
    SidrReq = 0x17;
    /// Tells it.
    SidrRep = 0x18;
    /// Asks for another alternate path.
    Lap = 0x19;
    /// Answers that.
    Apr = 0x1a;
}

/// The time that a timeout field of 5 bits stands for: 4.096 microseconds, doubled `exponent` times.
// IB-CM-17, IB-RC-REQ-39
pub const fn interval(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << (exponent & 31))
}

#[cfg(test)]
mod tests {
    use super::super::mad::DATA_LEN;
    use super::*;

    use core::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    const KINDS: u16 = 11;

    /// A datagram of each message, all reserved bits set as in `data`.
    fn mad(kind: u16, data: [u8; DATA_LEN]) -> Mad {
        Mad {
            data,
            ..Mad::new(Header::new(class::COMMUNICATION, CLASS_VERSION, method::SEND, 7, 0x10 + kind))
        }
    }

    proptest! {
        // IB-CM-2, IB-CM-6, IB-CM-8: any bytes are a message, and none harms.
        #[test]
        fn a_message_is_written_as_it_was_read(kind in 0..KINDS, data in proptest::array::uniform32(any::<u64>())) {
            let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_be_bytes()).take(DATA_LEN).collect();
            let message = Message::parse(&mad(kind, bytes.try_into().unwrap())).unwrap();
            let again = message.to_mad(7);
            prop_assert_eq!(Message::parse(&again), Ok(message));
            prop_assert_eq!(again.header, mad(kind, [0; DATA_LEN]).header);
        }
    }

    // IB-CM-4, IB-CM-5, IB-SIDR-1
    #[test]
    fn only_reserved_bits_are_lost() {
        // Reserved bits of each message, as the standard's tables have them.
        let reserved = [32 + 32 + (6 + 3 + 3) * 2, 6 + 3, 6 + 1, 8 + 8 + 8 + 4, 0, 8, 0, 16, 16 + 8, 0, 16];
        for kind in 0..KINDS {
            let full = Message::parse(&mad(kind, [0xff; DATA_LEN])).unwrap().to_mad(7);
            let lost: u32 = full.data.iter().map(|byte| byte.count_zeros()).sum();
            if kind == 9 {
                // LAP: four bytes, three bits, four bytes, four, two, three and three bits.
                assert_eq!(lost, 32 + 3 + 32 + 4 + 2 + 3 + 3);
            } else {
                assert_eq!(lost, reserved[kind as usize], "{full:?}");
            }
        }
    }

    // IB-CM-3, IB-CM-6
    #[test]
    fn fields_are_where_they_belong() {
        let req = Req {
            local_communication_id: 0x0102_0304,
            service_id: service_id(port_space::TCP, 7174),
            local_qpn: 0x11,
            responder_resources: 2,
            initiator_depth: 3,
            remote_response_timeout: 20,
            transport_service: service::UC,
            end_to_end_flow_control: true,
            starting_psn: 0xabcdef,
            local_response_timeout: 20,
            retry_count: 7,
            path_mtu: 3,
            rnr_retry_count: 6,
            max_cm_retries: 15,
            srq: true,
            primary: Path { flow_label: 0x12345, packet_rate: 3, local_ack_timeout: 18, ..Path::default() },
            ..Req::default()
        };
        let data = Message::from(req).to_mad(0).data;
        assert_eq!(data[..4], [1, 2, 3, 4]);
        assert_eq!(data[8..16], [0, 0, 0, 0, 1, 6, 0x1c, 0x06]);
        assert_eq!(data[32..40], [0, 0, 0x11, 2, 0, 0, 0, 3]);
        assert_eq!(data[40..52], [0, 0, 0, 0xa3, 0xab, 0xcd, 0xef, 0xa7, 0, 0, 0x36, 0xf8]);
        assert_eq!(data[88..96], [0x12, 0x34, 0x50, 3, 0, 0, 0, 18 << 3]);
    }

    // IB-CM-1, IB-CM-2, IB-CM-10
    #[test]
    fn a_datagram_that_is_no_message_is_refused() {
        for (at, value, error) in [
            (1, 3, DatagramError::Class),
            (2, 1, DatagramError::Version),
            (3, method::GET, DatagramError::Method),
            (17, 0x0f, DatagramError::Attribute),
            (17, 0x1b, DatagramError::Attribute),
        ] {
            let mut bytes = mad(0, [0; DATA_LEN]).to_bytes();
            bytes[at] = value;
            assert_eq!(Message::parse(Mad::parse(&bytes).unwrap()), Err(error));
        }
    }

    // IB-CM-53, IB-CM-55
    #[test]
    fn addresses() {
        let ipv4 = IpAddresses {
            source_port: 0x1234,
            source: IpAddr::from([10, 0, 0, 1]),
            destination: IpAddr::from([10, 0, 0, 2]),
        };
        let bytes = ipv4.to_bytes();
        assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(bytes[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        assert_eq!(IpAddresses::read(&bytes), Some(ipv4));
        let ipv6 = IpAddresses { source: IpAddr::from([0xfd00, 1, 2, 3, 4, 5, 6, 7]), ..ipv4 };
        let mixed =
            IpAddresses { destination: IpAddr::V6(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped()), ..ipv6 };
        assert_eq!(IpAddresses::read(&ipv6.to_bytes()), Some(mixed));

        assert_eq!(IpAddresses::read(&bytes[..35]), None);
        for (at, value) in [(0, 1), (1, 0x50)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(IpAddresses::read(&bytes), None);
        }
    }

    // IB-CM-17, IB-CM-51, IB-CM-52, IB-CM-54, IB-CM-57
    #[test]
    fn numbers() {
        assert_eq!(interval(0), Duration::from_nanos(4096));
        assert_eq!(interval(20).as_millis(), 4294);
        assert_eq!(service_id(port_space::TCP, 0x1c06), 0x0106_1c06);
        assert_eq!(port_of(0x0111_0007), Some((port_space::UDP, 7)));
        assert_eq!(port_of(1 << 32), None);
        assert_eq!(RejectReason::CONSUMER_DEFINED.to_string(), "refused by the program");
        assert_eq!(RejectReason(99).to_string(), "reason 99");
        assert_eq!(private_data::<4>(&[1, 2]), Some([1, 2, 0, 0]));
        assert_eq!(private_data::<4>(&[0; 5]), None);
    }
}
