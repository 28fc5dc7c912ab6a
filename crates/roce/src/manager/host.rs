//! The transport as the manager sees it.

use super::{Host, Manager, Peer};
use crate::gsi::{MadHandler, MadSource};
use crate::net::Net;
use adverb_core::attributes::Gid;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::reactor::Token;
use adverb_wire::ib::mad::MAD_LEN;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

impl Host for Net {
    fn block(&self) -> Result<u16> {
        Net::block(self)
    }

    fn open(&self) -> Result<()> {
        self.primary().map(drop)
    }

    fn send(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        if let Err(error) = self.gsi.send(&self.this(), local, peer, mad) {
            log!(Warn, "a message to {peer} cannot be sent: {error}");
        }
    }

    fn port_of(&self, address: IpAddr, queue_pair: u32) -> Option<u16> {
        self.locator.port(address, queue_pair)
    }

    fn gids(&self) -> Vec<Gid> {
        self.gids.all()
    }

    fn mtu_of(&self, local: IpAddr) -> Option<u32> {
        self.gids.mtu_of(local)
    }

    fn serve(&self, listener: RawFd) -> Result<Token> {
        self.serve_inlet(listener)
    }

    fn now(&self) -> Duration {
        crate::time::now()
    }
}

impl MadHandler for Manager {
    fn mad(&self, mad: &[u8; MAD_LEN], from: MadSource) {
        self.receive(mad, Peer::new(from.local, from.peer, from.scope));
    }
}
