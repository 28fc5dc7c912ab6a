//! Introductions: datagrams by UDP from and to those who do not know the queue pair yet.

use super::pair::ArrivedDatagram;
use super::{Datagram, DatagramState, udp};
use adverb_core::error::Result;
use adverb_core::reactor::{Readiness, Source};
use adverb_proto::rsocket::{Hello, HelloKind, MAX_HELLO, write_hello};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// Packets that a thread takes in one go.
const BURST: usize = 32;

/// Serves the UDP socket of a datagram socket.
pub(super) struct Introductions(pub(super) Weak<Datagram>);

impl Source for Introductions {
    fn ready(self: Arc<Self>, _: Readiness) {
        let Some(datagram) = self.0.upgrade() else { return };
        let mut inner = datagram.lock();
        if inner.closed {
            return;
        }
        datagram.take_introductions(&mut inner);
    }
}

impl Datagram {
    /// Takes what has come by UDP, at most [`BURST`] packets, and wakes the threads that wait for it.
    pub(super) fn take_introductions(&self, inner: &mut DatagramState) {
        let mut packet = [0; super::pair::SLOT];
        let mut has_come = false;
        for _ in 0..BURST {
            match self.udp.recv_from(&mut packet) {
                Ok((length, peer)) => {
                    has_come = true;
                    if let Err(error) = self.introduced(inner, &packet[..length], peer) {
                        adverb_core::log!(Info, "a datagram of {peer} is dropped: {error}");
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // What an earlier packet has met.
                Err(_) => has_come = true,
            }
        }
        if has_come {
            self.waiters.wake();
        }
    }

    /// A packet has come by UDP.
    fn introduced(&self, inner: &mut DatagramState, packet: &[u8], peer: SocketAddr) -> Result<()> {
        let Some((hello, start)) = inner.peers.heeds(packet, &peer) else { return Ok(()) };
        self.peer(inner, peer)?;
        if hello.kind == HelloKind::Data {
            self.introduce(inner, HelloKind::Answer, peer, &[])?;
        }
        inner.found(peer, hello.queue_pair)?;
        if hello.kind == HelloKind::Data && inner.arrived.len() < inner.sizes.receives.into() {
            inner.arrived.push_back(ArrivedDatagram::Udp { source: peer, data: packet[start..].to_vec() });
        }
        Ok(())
    }

    /// Sends a packet by UDP that names our queue pair.
    pub(super) fn introduce(
        &self,
        inner: &mut DatagramState,
        kind: HelloKind,
        peer: SocketAddr,
        data: &[u8],
    ) -> Result<()> {
        let place = self.peer(inner, peer)?.pair;
        let pair = &inner.pairs[place];
        let hello = Hello { kind, queue_pair: pair.queue_pair.number(), address: pair.address.ip() };
        let mut head = [0; MAX_HELLO];
        let length = write_hello(&hello, &mut head);
        let packet = [&head[..length], data].concat();
        udp(self.udp.send_to(&packet, peer)).map(drop)
    }
}
