//! Makes rsockets (rsocket(7)) of a program's sockets.
//!
//! The dynamic linker loads this library before the C library, whose calls for sockets it stands in front of,
//! as rdma-core's library of the same name does; this one also knows `accept4`, `dup`, epoll, and the calls
//! that wait with a signal mask. What is an rsocket goes to librdmacm's functions, everything else to the
//! originals.
//!
//! The descriptor that a program sees is an ordinary socket of the family and type that it asked for, and
//! [`table`] says which rsocket stands behind it. So a call that is not known here fails as on a socket
//! without a peer; the descriptor's own flags and its copies are the kernel's business; and when a peer is
//! not reached over RDMA, the entry is removed, and the ordinary socket connects in its place.
//!
//! What is called for every descriptor of a program, in signal handlers and after a fork, takes no lock and
//! allocates nothing, unless the descriptor is an rsocket.

#![cfg_attr(test, allow(dead_code, reason = "in a test nobody calls what stands in front of the C library"))]

mod barrier;
mod call;
mod configuration;
mod descriptors;
mod epoll;
mod errno;
mod library;
mod options;
mod original;
mod poll;
mod select;
mod signals;
mod socket;
mod start;
mod table;
mod transfer;
