//! The sockets of [`adverb_core::seqpacket`], by names of this transport. What a message says is in [`crate::handover`].

pub(crate) use adverb_core::seqpacket::{Connection, Descriptors, Listener, Owner};

/// The abstract name of something of ours.
pub(crate) fn name(of: &str) -> Vec<u8> {
    adverb_core::seqpacket::name(&format!("roce/{of}"))
}
