//! Packet formats of the protocols that adverb speaks.
//!
//! Every header is a `#[repr(C)]` structure of unaligned big-endian fields. A reference to one is taken from
//! a byte slice with [`zerocopy::FromBytes::ref_from_prefix`], which checks the length once and copies
//! nothing; after that no accessor can fail. A header is written with [`zerocopy::IntoBytes`]. Nothing here
//! allocates or keeps state: which header follows which, and whether its values make sense, is decided in
//! `adverb-proto`.
//!
//! * [`mpa`]: framing of iWARP on TCP (RFC 5044, RFC 6581)
//! * [`ddp`]: the DDP segment headers (RFC 5041)
//! * [`ib`]: packets of InfiniBand's transport, its invariant CRC, and its management datagrams
//! * [`rdmap`]: the RDMAP control field and message headers (RFC 5040, RFC 7306)
#![forbid(unsafe_code)]

pub mod ddp;
pub mod ib;
pub mod mpa;
pub mod rdmap;

pub use zerocopy;
