//! The protocol of rsockets (rsocket(7)): streams and datagrams as sockets have them, over queue pairs.
//!
//! A stream writes straight into a buffer that the peer has lent: RDMA Writes, each followed by a [`Message`]
//! of 32 bits that says how many bytes have come. On InfiniBand the message is the immediate data of the
//! write; where a transport has none (iWARP), it is a Send of its own. The reader gives the buffer back half
//! by half, by writing a new [`Target`] into the sender's memory, and limits how many messages may be under
//! way. Datagrams are those of UD queue pairs, found through a UDP socket at the same address.
//!
//! No document describes it; what is here is what Linux's rsockets send to each other.

mod connect;
mod datagram;
mod message;
mod ring;
mod stream;

pub use connect::{BadConnect, CONNECT_LENGTH, Connect};
pub use datagram::{
    Hello, HelloKind, MAX_HELLO, MAX_SOURCE, Source, SourceFamily, read_hello, read_source, write_hello,
    write_source,
};
pub use message::{Mapping, Message, TARGET_LENGTH, Target, from_scale, to_scale};
pub use ring::Pieces;
pub use stream::{
    CONTROL_REQUESTS, Grant, LOW_WATER, MAX_TRANSFER, Offer, SendOutcome, Settings, ShutdownSide, Stream,
    TARGETS, Violation, WriteTo,
};
