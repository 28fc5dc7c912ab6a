//! Messages that find the queue pair of a datagram service.

use super::field::{Field, layout};

layout! {
    // IB-SIDR-1
    /// SIDR_REQ: asks for the queue pair of a datagram service.
    SidrReq {
        /// The sender's number for this request.
        request_id: u32 = 0:0, 32;
        /// P_Key of the datagrams.
        pkey: u16 = 4:0, 16;
        /// The service that is asked for: see [`service_id`](super::service_id).
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
