//! Protocol state machines.
#![forbid(unsafe_code)]
