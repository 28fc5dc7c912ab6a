//! Why a message refuses.

use core::fmt;

use super::field::Field;

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
    /// The LID of the primary path is not the receiver's.
    INVALID_LID = 13, "invalid LID";
    /// The service level of the primary path is not valid.
    INVALID_SERVICE_LEVEL = 14, "invalid service level";
    /// The traffic class of the primary path is not valid.
    INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
    /// The hop limit of the primary path is not valid.
    INVALID_HOP_LIMIT = 16, "invalid hop limit";
    /// The rate of the primary path is not valid.
    INVALID_PACKET_RATE = 17, "invalid packet rate";
    /// The GID of the alternate path is not the receiver's.
    INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
    /// The LID of the alternate path is not the receiver's.
    INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
    /// The service level of the alternate path is not valid.
    INVALID_ALTERNATE_SERVICE_LEVEL = 20, "invalid alternate service level";
    /// The traffic class of the alternate path is not valid.
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// The hop limit of the alternate path is not valid.
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// The rate of the alternate path is not valid.
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
