//! The general services interface: management datagrams to and from queue pair 1 (volume 1, section 13.5).

use crate::lane::Lane;
use crate::local::Carrier;
use crate::lock;
use crate::net::Net;
use crate::observer::{self, Direction};
use crate::route::{PORT, Route};
use crate::socket::Arrival;
use adverb_core::error::Result;
use adverb_wire::ib::header::{Bth, Deth, HeaderWriter, MAX_HEADER};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN, MAD_LEN};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use adverb_wire::ib::packet::Packet;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const UD_SEND: Opcode = Opcode::new(Service::Ud, Operation::SendOnly).expect("datagrams are sent");

/// Headers of a management datagram, and both together.
const HEADERS: usize = size_of::<Bth>() + size_of::<Deth>();
const PACKET: usize = HEADERS + MAD_LEN;

/// Takes the management datagrams of a class. Called with no lock of the transport held.
pub(crate) trait MadHandler: Send + Sync {
    /// A datagram has come; its CRC and Q_Key are right.
    fn mad(&self, mad: &[u8; MAD_LEN], from: MadSource);
}

/// Where a management datagram comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadSource {
    /// Our address that it was sent to.
    pub(crate) local: IpAddr,
    /// The sender's.
    pub(crate) peer: IpAddr,
    /// Index of the interface it came in by.
    pub(crate) scope: u32,
    /// The sender's queue pair.
    pub(crate) queue_pair: u32,
    /// The sender's UDP port: where another adverb hears answers; a kernel listens on 4791 alone.
    pub(crate) peer_port: u16,
    /// Another process has received it and handed it over: it is for this one.
    pub(crate) handed_over: bool,
}

impl MadSource {
    fn of(arrival: &Arrival<'_>) -> Self {
        Self {
            local: arrival.local,
            peer: arrival.source,
            scope: arrival.interface,
            queue_pair: GSI_QPN,
            peer_port: arrival.source_port,
            handed_over: false,
        }
    }

    /// A datagram that a process of this host gives to another one itself, and that would have gone from
    /// `peer` to `local`.
    pub(crate) fn between(local: SocketAddr, peer: IpAddr, peer_port: u16) -> Self {
        let scope = match local {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Self { local: local.ip(), peer, scope, queue_pair: GSI_QPN, peer_port, handed_over: true }
    }

    /// The arrival again, with the datagram alone.
    pub(crate) fn arrival<'a>(&self, mad: &'a [u8; MAD_LEN]) -> Arrival<'a> {
        Arrival {
            source: self.peer,
            source_port: self.peer_port,
            local: self.local,
            local_port: PORT,
            interface: self.scope,
            class: 0,
            hops: 0,
            bytes: mad,
        }
    }
}

/// The general services interface of this process: it checks and sends management datagrams, and hands each
/// to the handler of its class.
#[derive(Default)]
pub(crate) struct Gsi {
    handlers: Mutex<HashMap<u8, Arc<dyn MadHandler>>>,
    psn: AtomicU32,
}

impl Gsi {
    /// Has datagrams of a management class handled.
    pub(crate) fn set_handler(&self, class: u8, handler: Arc<dyn MadHandler>) {
        lock(&self.handlers).insert(class, handler);
    }

    /// Whether an arrival is a management datagram that may be believed: an unreliable datagram with the
    /// right CRC and Q_Key.
    pub(crate) fn check<'a>(arrival: &Arrival<'a>) -> Option<(&'a [u8; MAD_LEN], MadSource)> {
        let packet = Packet::parse(arrival.bytes).ok()?;
        let deth = packet.deth()?;
        // IB-PKT-51, IB-PKT-54, IB-PKT-58
        if packet.opcode() != UD_SEND || deth.qkey.get() != GSI_QKEY {
            return None;
        }
        let mad = <&[u8; MAD_LEN]>::try_from(packet.payload().bytes()?).ok()?;
        let flow = Flow {
            source: arrival.source,
            destination: arrival.local,
            source_port: arrival.source_port,
            destination_port: arrival.local_port,
        };
        if !FlowCrc::new(&flow).verify(arrival.bytes) {
            return None;
        }
        Some((mad, MadSource { queue_pair: deth.source(), ..MadSource::of(arrival) }))
    }

    /// A management datagram that another process has checked and handed over without its packet.
    pub(crate) fn handed_over<'a>(arrival: &Arrival<'a>) -> Option<(&'a [u8; MAD_LEN], MadSource)> {
        let mad = <&[u8; MAD_LEN]>::try_from(arrival.bytes).ok()?;
        Some((mad, MadSource { handed_over: true, ..MadSource::of(arrival) }))
    }

    /// Shows a datagram that has gone from process to process without its packet to the capture, the log or a
    /// watcher.
    #[cold]
    pub(crate) fn show(&self, direction: Direction, arrival: &Arrival<'_>) {
        if let Ok(mad) = arrival.bytes.try_into() {
            observer::handed(direction, arrival, &self.packet(mad));
        }
    }

    /// Hands a datagram to the handler of its class.
    pub(crate) fn deliver(&self, mad: &[u8; MAD_LEN], from: MadSource) {
        // IB-PKT-59
        let handler = lock(&self.handlers).get(&mad[1]).cloned();
        if let Some(handler) = handler {
            handler.mad(mad, from);
        }
    }

    /// Sends a datagram from this process's first lane.
    ///
    /// # Errors
    /// When no socket can be opened. A datagram that the network loses is no error.
    pub(crate) fn send(
        &self,
        net: &Arc<Net>,
        local: IpAddr,
        peer: SocketAddr,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let lane = net.primary()?;
        self.send_from(&lane, local, peer, mad);
        Ok(())
    }

    /// Sends a datagram from a lane, which then hears the answer.
    pub(crate) fn send_from(&self, lane: &Lane, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        let interface = match peer {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let port = if peer.port() == 0 { PORT } else { peer.port() };
        let route = Route { source: local, interface, destination: peer.ip(), port, class: 0, hops: 0 };
        lane.send_packet(&lane.packet_route(route), &Carrier::default(), &self.packet(mad));
    }

    /// The packet of a datagram, from its base transport header on, without CRC.
    pub(crate) fn packet(&self, mad: &[u8; MAD_LEN]) -> [u8; PACKET] {
        let psn = self.psn.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let mut space = [0; MAX_HEADER];
        let mut head = HeaderWriter::new(&mut space);
        // IB-PKT-58, IB-PKT-61
        head.put(&Bth::new(UD_SEND, adverb_wire::ib::header::DEFAULT_PKEY, GSI_QPN, psn));
        head.put(&Deth::new(GSI_QKEY, GSI_QPN));
        let mut packet = [0; PACKET];
        packet[..HEADERS].copy_from_slice(&space[..HEADERS]);
        packet[HEADERS..].copy_from_slice(mad);
        packet
    }
}
