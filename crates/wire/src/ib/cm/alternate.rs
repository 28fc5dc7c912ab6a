//! Messages about the path that a connection may migrate to.

use super::field::{Field, layout};

layout! {
    /// LAP: asks for another alternate path.
    Lap {
        /// Communication ID of the sender.
        local_communication_id: u32 = 0:0, 32;
        /// Communication ID of the receiver.
        remote_communication_id: u32 = 4:0, 32;
        /// The receiver's queue pair, 24 bits.
        remote_qpn: u32 = 12:0, 24;
        /// How long the receiver may take to answer, 5 bits: see [`interval`](super::interval).
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
        /// How long the sender waits for an acknowledgement, 5 bits: see [`interval`](super::interval).
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
