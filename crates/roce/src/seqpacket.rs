//! The sockets of [`adverb_core::seqpacket`], by names of this transport. [`crate::handover`] has the form of
//! their messages.

pub(crate) use adverb_core::seqpacket::{Connection, Descriptors, Listener, Owner};

/// The abstract name of something of ours.
pub(crate) fn name(of: &str) -> Vec<u8> {
    adverb_core::seqpacket::name(&format!("roce/{of}"))
}
