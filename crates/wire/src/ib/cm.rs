//! Messages of connection management (volume 1, chapter 12).
//!
//! Each message is a plain structure that [`Message::parse`] reads from a management datagram and [`Message::to_mad`]
//! writes to one. Reserved bits are ignored and written as zeros. Private data has no length on the wire: it always
//! fills its field, with zeros behind what the program gave.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use super::mad::{DATA_LEN, Header, Mad, class, method};

/// Version of the class that is spoken here.
// IB-CM-1
pub const CLASS_VERSION: u8 = 2;

/// A value somewhere in the data of a datagram.
trait Field: Sized {
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

/// A structure and its place for each field: byte, bit within the byte (0 is the most significant), width in bits.
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
                Self::get(&[0; DATA_LEN], 0, 0)
            }
        }
    };
}

layout! {
    // IB-CM-6
    /// A path, as REQ describes it. RoCE uses the GIDs, the traffic class, the hop limit and the acknowledgement timeout.
    Path {
        /// LID of the sender's port.
        local_lid: u16 = 0:0, 16;
        /// LID of the receiver's port.
        remote_lid: u16 = 2:0, 16;
        /// GID of the sender's port.
        local_gid: [u8; 16] = 4:0, 128;
        /// GID of the receiver's port.
        remote_gid: [u8; 16] = 20:0, 128;
        /// Flow label, 20 bits.
        flow_label: u32 = 36:0, 20;
        /// Static rate, encoded in 6 bits.
        packet_rate: u8 = 39:2, 6;
        /// Traffic class.
        traffic_class: u8 = 40:0, 8;
        /// Hop limit.
        hop_limit: u8 = 41:0, 8;
        /// Service level, 4 bits.
        service_level: u8 = 42:0, 4;
        /// The path does not leave the subnet.
        subnet_local: bool = 42:4, 1;
        /// How long the sender waits for an acknowledgement before it retransmits, 5 bits: see [`interval`].
        local_ack_timeout: u8 = 43:0, 5;
    }
}

/// The service that a connection has, in the field `transport_service` of [`Req`].
pub mod service {
    /// Reliable connection.
    pub const RC: u8 = 0;
    /// Unreliable connection.
    pub const UC: u8 = 1;
    /// Reliable datagram.
    pub const RD: u8 = 2;
    /// One more, which the field `extended_transport` tells (1 is XRC).
    pub const EXTENDED: u8 = 3;
    /// In the field `extended_transport`: the sender is an initiator of XRC (annex A14).
    pub const XRC: u8 = 1;
}

impl Req {
    /// The sender is an initiator of XRC, and asks for a target.
    pub fn is_extended(&self) -> bool {
        self.transport_service == service::EXTENDED && self.extended_transport == service::XRC
    }
}

impl Rep {
    /// The sender's queue pair. The number of a target of XRC stands in the field of the end-to-end context.
    // IB-XRC-15
    pub fn queue_pair(&self) -> u32 {
        if self.local_qpn == 0 { self.local_eecn } else { self.local_qpn }
    }
}

layout! {
    // IB-CM-3
    /// REQ: asks for a connection.
    Req {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// The service that is asked for: see [`service_id`].
        service_id: u64 = 8:0, 64;
        /// GUID of the sender's adapter.
        local_ca_guid: u64 = 16:0, 64;
        /// Q_Key of the sender's queue pair, for datagrams.
        local_qkey: u32 = 28:0, 32;
        /// The sender's queue pair, 24 bits.
        local_qpn: u32 = 32:0, 24;
        /// How many reads and atomics from the receiver the sender serves at a time.
        responder_resources: u8 = 35:0, 8;
        /// The sender's end-to-end context, 24 bits.
        local_eecn: u32 = 36:0, 24;
        /// How many reads and atomics the sender has in flight at a time.
        initiator_depth: u8 = 39:0, 8;
        /// The receiver's end-to-end context, 24 bits.
        remote_eecn: u32 = 40:0, 24;
        /// How long the receiver may take to answer, 5 bits: see [`interval`].
        remote_response_timeout: u8 = 43:0, 5;
        /// One of [`service`], 2 bits.
        transport_service: u8 = 43:5, 2;
        /// The sender's adapter has end-to-end flow control.
        end_to_end_flow_control: bool = 43:7, 1;
        /// PSN with which the receiver of this message is to begin sending, 24 bits.
        starting_psn: u32 = 44:0, 24;
        /// How long the sender takes to answer, 5 bits: see [`interval`].
        local_response_timeout: u8 = 47:0, 5;
        /// How often the receiver shall retransmit, 3 bits.
        retry_count: u8 = 47:5, 3;
        /// P_Key of the connection.
        pkey: u16 = 48:0, 16;
        /// Greatest payload of a packet, 4 bits: 1 is 256, 5 is 4096 bytes.
        path_mtu: u8 = 50:0, 4;
        /// A reliable datagram channel exists.
        rdc_exists: bool = 50:4, 1;
        /// How often the receiver shall try again when the sender is not ready, 3 bits.
        rnr_retry_count: u8 = 50:5, 3;
        /// How often either side sends a message again, 4 bits.
        max_cm_retries: u8 = 51:0, 4;
        /// The sender's queue pair takes from a shared receive queue.
        srq: bool = 51:4, 1;
        /// The service, where [`service::EXTENDED`] stands, 3 bits.
        extended_transport: u8 = 51:5, 3;
        /// The path.
        primary: Path = 52:0, 352;
        /// The path to migrate to; zeros if there is none.
        alternate: Path = 96:0, 352;
        /// Private data.
        private_data: [u8; 92] = 140:0, 736;
    }
}

/// Which message [`Mra`] and [`Rej`] are about.
pub mod about {
    /// REQ.
    pub const REQ: u8 = 0;
    /// REP.
    pub const REP: u8 = 1;
    /// Another, or none: LAP in an MRA.
    pub const OTHER: u8 = 2;
}

layout! {
    // IB-CM-4
    /// MRA: a message has arrived, and the answer will take longer.
    Mra {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Which message has arrived, one of [`about`], 2 bits.
        message: u8 = 8:0, 2;
        /// How long the answer will take, 5 bits: see [`interval`].
        service_timeout: u8 = 9:0, 5;
        /// Private data.
        private_data: [u8; 222] = 10:0, 1776;
    }
}

layout! {
    /// REJ: there will be no connection.
    Rej {
        /// Communication ID of the sender; 0 if it has none.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Which message is refused, one of [`about`], 2 bits.
        message: u8 = 8:0, 2;
        /// Bytes of `additional_information` that mean something, 7 bits.
        additional_information_len: u8 = 9:0, 7;
        /// Why.
        reason: RejectReason = 10:0, 16;
        /// More about the reason.
        additional_information: [u8; 72] = 12:0, 576;
        /// Private data.
        private_data: [u8; 148] = 84:0, 1184;
    }
}

layout! {
    /// REP: accepts a connection.
    Rep {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Q_Key of the sender's queue pair, for datagrams.
        local_qkey: u32 = 8:0, 32;
        /// The sender's queue pair, 24 bits.
        local_qpn: u32 = 12:0, 24;
        /// The sender's end-to-end context, 24 bits.
        local_eecn: u32 = 16:0, 24;
        /// PSN with which the receiver of this message is to begin sending, 24 bits.
        starting_psn: u32 = 20:0, 24;
        /// How many reads and atomics from the receiver the sender serves at a time.
        responder_resources: u8 = 24:0, 8;
        /// How many reads and atomics the sender has in flight at a time.
        initiator_depth: u8 = 25:0, 8;
        /// How long the sender's adapter takes to acknowledge, 5 bits: see [`interval`].
        target_ack_delay: u8 = 26:0, 5;
        /// Whether the alternate path is accepted, 2 bits: 0 yes, 1 not supported, 2 refused.
        failover_accepted: u8 = 26:5, 2;
        /// The sender's adapter has end-to-end flow control.
        end_to_end_flow_control: bool = 26:7, 1;
        /// How often the receiver shall try again when the sender is not ready, 3 bits.
        rnr_retry_count: u8 = 27:0, 3;
        /// The sender's queue pair takes from a shared receive queue.
        srq: bool = 27:3, 1;
        /// GUID of the sender's adapter.
        local_ca_guid: u64 = 28:0, 64;
        /// Private data.
        private_data: [u8; 196] = 36:0, 1568;
    }
}

layout! {
    /// RTU: the sender of REQ is ready, too.
    Rtu {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Private data.
        private_data: [u8; 224] = 8:0, 1792;
    }
}

layout! {
    /// DREQ: asks to release a connection.
    Dreq {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// The receiver's queue pair, 24 bits.
        remote_qpn: u32 = 8:0, 24;
        /// Private data.
        private_data: [u8; 220] = 12:0, 1760;
    }
}

layout! {
    /// DREP: a connection is released.
    Drep {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Private data.
        private_data: [u8; 224] = 8:0, 1792;
    }
}

layout! {
    /// LAP: asks for another alternate path.
    Lap {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// The receiver's queue pair, 24 bits.
        remote_qpn: u32 = 12:0, 24;
        /// How long the receiver may take to answer, 5 bits: see [`interval`].
        remote_response_timeout: u8 = 15:0, 5;
        /// LID of the sender's port.
        alternate_local_lid: u16 = 20:0, 16;
        /// LID of the receiver's port.
        alternate_remote_lid: u16 = 22:0, 16;
        /// GID of the sender's port.
        alternate_local_gid: [u8; 16] = 24:0, 128;
        /// GID of the receiver's port.
        alternate_remote_gid: [u8; 16] = 40:0, 128;
        /// Flow label, 20 bits.
        alternate_flow_label: u32 = 56:0, 20;
        /// Traffic class.
        alternate_traffic_class: u8 = 59:0, 8;
        /// Hop limit.
        alternate_hop_limit: u8 = 60:0, 8;
        /// Static rate, encoded in 6 bits.
        alternate_packet_rate: u8 = 61:2, 6;
        /// Service level, 4 bits.
        alternate_service_level: u8 = 62:0, 4;
        /// The path does not leave the subnet.
        alternate_subnet_local: bool = 62:4, 1;
        /// How long the sender waits for an acknowledgement, 5 bits: see [`interval`].
        alternate_local_ack_timeout: u8 = 63:0, 5;
        /// Private data.
        private_data: [u8; 168] = 64:0, 1344;
    }
}

layout! {
    /// APR: answers LAP.
    Apr {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// Bytes of `additional_information` that mean something.
        additional_information_len: u8 = 8:0, 8;
        /// What became of it; 0 if the path is taken.
        status: u8 = 9:0, 8;
        /// More about the status.
        additional_information: [u8; 72] = 12:0, 576;
        /// Private data.
        private_data: [u8; 148] = 84:0, 1184;
    }
}

layout! {
    // IB-SIDR-1
    /// SIDR_REQ: asks for the queue pair of a datagram service.
    SidrReq {
        /// The sender's number for this request.
        request_id: u32 = 0:0, 32;
        /// P_Key of the datagrams.
        pkey: u16 = 4:0, 16;
        /// The service that is asked for: see [`service_id`].
        service_id: u64 = 8:0, 64;
        /// Private data.
        private_data: [u8; 216] = 16:0, 1728;
    }
}

/// What SIDR_REP tells, in its field `status`.
pub mod sidr_status {
    /// Queue pair and Q_Key are valid.
    pub const SUCCESS: u8 = 0;
    /// The service ID is not served.
    pub const UNSUPPORTED: u8 = 1;
    /// The program refuses.
    pub const REJECT: u8 = 2;
    /// There is no queue pair.
    pub const NO_QP: u8 = 3;
    /// Another port must be asked.
    pub const REDIRECT: u8 = 4;
    /// The version of the class is not known.
    pub const UNSUPPORTED_VERSION: u8 = 5;
}

layout! {
    /// SIDR_REP: tells the queue pair of a datagram service.
    SidrRep {
        /// The number of the request.
        request_id: u32 = 0:0, 32;
        /// One of [`sidr_status`].
        status: u8 = 4:0, 8;
        /// Bytes of `additional_information` that mean something.
        additional_information_len: u8 = 5:0, 8;
        /// The queue pair, 24 bits.
        qpn: u32 = 8:0, 24;
        /// The service that was asked for.
        service_id: u64 = 12:0, 64;
        /// Q_Key of the queue pair.
        qkey: u32 = 20:0, 32;
        /// More about the status.
        additional_information: [u8; 72] = 24:0, 576;
        /// Private data.
        private_data: [u8; 136] = 96:0, 1088;
    }
}

/// Why REJ refuses (volume 1, section 12.6.7.2). A peer may send any number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl Field for RejectReason {
    fn get(data: &[u8], at: usize, width: usize) -> Self {
        RejectReason(u16::get(data, at, width))
    }

    fn put(&self, data: &mut [u8], at: usize, width: usize) {
        self.0.put(data, at, width);
    }
}

macro_rules! reject_reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl RejectReason {
            $($(#[$doc])* pub const $name: RejectReason = RejectReason($value);)*
        }

        impl fmt::Display for RejectReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.write_str($text),)*
                    other => write!(f, "reason {other}"),
                }
            }
        }
    };
}

reject_reasons! {
    /// There is no queue pair to be had.
    NO_QP = 1, "no queue pair";
    /// There is no end-to-end context to be had.
    NO_EEC = 2, "no end-to-end context";
    /// There are not enough resources.
    NO_RESOURCES = 3, "no resources";
    /// No answer came in time.
    TIMEOUT = 4, "timeout";
    /// The request cannot be served.
    UNSUPPORTED = 5, "unsupported request";
    /// A communication ID is not known.
    INVALID_COMMUNICATION_ID = 6, "invalid communication ID";
    /// A pair of communication IDs is not known.
    INVALID_COMMUNICATION_INSTANCE = 7, "invalid communication instance";
    /// Nobody listens.
    INVALID_SERVICE_ID = 8, "nobody listens there (invalid service ID)";
    /// The service of the queue pair does not fit.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    /// The receiver still has a connection with this queue pair.
    STALE_CONNECTION = 10, "stale connection";
    /// The reliable datagram channel does not exist.
    RDC_NOT_EXISTENT = 11, "no reliable datagram channel";
    /// The GID of the primary path is not the receiver's.
    INVALID_GID = 12, "invalid GID";
    /// Its LID is not.
    INVALID_LID = 13, "invalid LID";
    /// Its service level is not valid.
    INVALID_SERVICE_LEVEL = 14, "invalid service level";
    /// Its traffic class is not valid.
    INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
    /// Its hop limit is not valid.
    INVALID_HOP_LIMIT = 16, "invalid hop limit";
    /// Its rate is not valid.
    INVALID_PACKET_RATE = 17, "invalid packet rate";
    /// The GID of the alternate path is not the receiver's.
    INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
    /// Its LID is not.
    INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
    /// Its service level is not valid.
    INVALID_ALTERNATE_SERVICE_LEVEL = 20, "invalid alternate service level";
    /// Its traffic class is not valid.
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// Its hop limit is not valid.
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// Its rate is not valid.
    INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
    /// Another port manages this.
    PORT_AND_CM_REDIRECTION = 24, "port and CM redirection";
    /// Another port serves this.
    PORT_REDIRECTION = 25, "port redirection";
    /// The path MTU is too large.
    INVALID_MTU = 26, "invalid path MTU";
    /// The receiver needs more responder resources.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The program refuses; its private data may tell why.
    CONSUMER_DEFINED = 28, "refused by the program";
    /// The RNR retry count is not valid.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The communication ID is in use for another connection.
    DUPLICATE_LOCAL_COMMUNICATION_ID = 30, "duplicate local communication ID";
    /// The version of the class is not known.
    INVALID_CLASS_VERSION = 31, "invalid class version";
    /// The flow label of the primary path is not valid.
    INVALID_FLOW_LABEL = 32, "invalid flow label";
    /// The flow label of the alternate path is not valid.
    INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    /// A vendor's option is not supported.
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectReason({}: {self})", self.0)
    }
}

/// What can be wrong with a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It is of another class.
    Class,
    /// It is of another version of the class.
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
            pub fn parse(mad: &Mad) -> Result<Message, Malformed> {
                let header = &mad.header;
                if header.class != class::COMMUNICATION {
                    Err(Malformed::Class)
                } else if header.class_version != CLASS_VERSION {
                    Err(Malformed::Version)
                } else if header.method != method::SEND {
                    Err(Malformed::Method)
                } else {
                    match header.attribute_id.get() {
                        $($attribute => Ok(Message::$name($name::get(&mad.data, 0, 0))),)*
                        _ => Err(Malformed::Attribute),
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
    /// It is released.
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

/// Port spaces of librdmacm: the upper part of a service ID.
// IB-CM-51, IB-CM-52
pub mod port_space {
    /// Connections, RC or UC.
    pub const TCP: u16 = 0x0106;
    /// Datagrams.
    pub const UDP: u16 = 0x0111;
    /// Datagrams over IP over InfiniBand.
    pub const IPOIB: u16 = 0x0002;
    /// Either.
    pub const IB: u16 = 0x013f;
}

/// The service ID that librdmacm gives to a port.
pub const fn service_id(port_space: u16, port: u16) -> u64 {
    (port_space as u64) << 16 | port as u64
}

/// Port space and port of a service ID of librdmacm; `None` for any other.
pub const fn port_of(service_id: u64) -> Option<(u16, u16)> {
    if service_id >> 32 == 0 { Some(((service_id >> 16) as u16, service_id as u16)) } else { None }
}

/// Bytes of [`IpAddresses`].
// IB-CM-53, IB-CM-54, IB-SIDR-7
pub const IP_ADDRESSES_LEN: usize = 36;

/// What librdmacm puts at the start of the private data of REQ and SIDR_REQ: the addresses of a connection by IP
/// (volume 1, annex A11). The port that is connected to is in the service ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpAddresses {
    /// Port of the sender.
    pub source_port: u16,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver, of the same kind.
    pub destination: IpAddr,
}

impl IpAddresses {
    /// The addresses at the start of private data; `None` if the version is not known.
    // IB-CM-55
    pub fn read(private_data: &[u8]) -> Option<IpAddresses> {
        let bytes = private_data.first_chunk::<IP_ADDRESSES_LEN>()?;
        let address = |at: usize| {
            let octets = <[u8; 16]>::get(bytes, 8 * at, 128);
            match bytes[1] >> 4 {
                4 => Some(IpAddr::V4(Ipv4Addr::from(u32::get(&octets, 96, 32)))),
                6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
                _ => None,
            }
        };
        let source_port = u16::get(bytes, 16, 16);
        (bytes[0] == 0).then_some(IpAddresses { source_port, source: address(4)?, destination: address(20)? })
    }

    /// The bytes. If the kinds of the addresses differ, both become IPv6.
    pub fn to_bytes(&self) -> [u8; IP_ADDRESSES_LEN] {
        let mut bytes = [0; IP_ADDRESSES_LEN];
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            bytes[1] = 4 << 4;
            bytes[16..20].copy_from_slice(&source.octets());
            bytes[32..36].copy_from_slice(&destination.octets());
        } else {
            bytes[1] = 6 << 4;
            bytes[4..20].copy_from_slice(&gid(self.source));
            bytes[20..36].copy_from_slice(&gid(self.destination));
        }
        bytes
    }
}

/// The GID that RoCEv2 gives to an IP address: IPv4 addresses are mapped to IPv6 (annex A17).
// ROCE-19
pub const fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Private data that fills its field: what the program gave, and zeros. `None` if it is too long.
// IB-CM-54: too long is refused; IB-CM-57: short is filled with zeros.
pub fn private_data<const N: usize>(given: &[u8]) -> Option<[u8; N]> {
    let mut data = [0; N];
    data.get_mut(..given.len())?.copy_from_slice(given);
    Some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        fn what_is_read_is_written(kind in 0..KINDS, data in proptest::array::uniform32(any::<u64>())) {
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
    fn what_is_no_message_is_refused() {
        for (at, value, error) in [
            (1, 3, Malformed::Class),
            (2, 1, Malformed::Version),
            (3, method::GET, Malformed::Method),
            (17, 0x0f, Malformed::Attribute),
            (17, 0x1b, Malformed::Attribute),
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
