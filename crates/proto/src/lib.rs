//! Protocol state machines without I/O.
//!
//! Nothing in this crate opens a socket, reads a clock, spawns a thread, logs, or touches the memory of an
//! application. Bytes and the time come in as arguments; what goes out is bytes to send and statements such
//! as "the next `n` bytes belong at offset `o` of the region with STag `r`". So the same code runs below a
//! socket, in a simulator, under a fuzzer and in Miri. The time is a [`std::time::Duration`] since any fixed
//! instant that the caller has chosen.
//!
//! * [`ib`]: the transport of InfiniBand and RoCE
//! * [`cm`]: its connection management
//! * [`iwarp`]: RDMA over TCP
//! * [`rsocket`]: streams and datagrams over queue pairs
//! * [`keyed`]: numbers that peers cannot guess, from a key that comes in
#![forbid(unsafe_code)]

pub mod cm;
pub mod ib;
pub mod iwarp;
pub mod keyed;
pub mod rsocket;
