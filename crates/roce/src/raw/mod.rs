//! Raw packet queue pairs: whole Ethernet frames through a packet socket (packet(7)), which takes
//! CAP_NET_RAW.
//!
//! Each queue pair has a socket of its own on the interface of the device's first GID. Rules steer arriving
//! frames (`adverb_core::flow`): each socket sees every frame, and keeps those that the rules of the process
//! give to its queue pair. An adapter also brings frames from one of its queue pairs to another. No interface
//! but the loopback does, so they are handed over here. The host's own network stack sees frames that match a
//! rule nevertheless.

mod endpoint;
mod impaired;
mod socket;
mod steering;

pub(crate) use endpoint::RawEndpoint;
pub(crate) use steering::Steering;
