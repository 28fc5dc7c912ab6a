//! Packet formats.
#![forbid(unsafe_code)]
