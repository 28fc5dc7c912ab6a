//! Messages that begin and end a connection.

use super::field::{Field, layout};
use super::reason::RejectReason;

layout! {
    // IB-CM-6
    /// A path, as REQ describes it. RoCE uses the GIDs, the traffic class, the hop limit and the
    /// acknowledgement timeout.
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
        /// How long the sender waits for an acknowledgement before it retransmits, 5 bits: see
        /// [`interval`](super::interval).
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
    /// One more type of service, which the field `extended_transport` tells (1 is XRC).
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
        /// The service that is asked for: see [`service_id`](super::service_id).
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
        /// How long the receiver may take to answer, 5 bits: see [`interval`](super::interval).
        remote_response_timeout: u8 = 43:0, 5;
        /// One of [`service`], 2 bits.
        transport_service: u8 = 43:5, 2;
        /// The sender's adapter has end-to-end flow control.
        end_to_end_flow_control: bool = 43:7, 1;
        /// PSN with which the receiver of this message is to begin sending, 24 bits.
        starting_psn: u32 = 44:0, 24;
        /// How long the sender takes to answer, 5 bits: see [`interval`](super::interval).
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
        /// How long the answer will take, 5 bits: see [`interval`](super::interval).
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
        /// The reason.
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
        /// How long the sender's adapter takes to acknowledge, 5 bits: see [`interval`](super::interval).
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
