//! The RoCEv2 transport: InfiniBand packets over unprivileged UDP sockets.
#![allow(dead_code)]

mod route;
mod socket;
