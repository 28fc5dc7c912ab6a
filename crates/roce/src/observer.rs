//! Each packet, for those that want to see it: the capture (`ADVERB_PCAP`), the log (`ADVERB_LOG=packets`),
//! and a watcher (a trace). Callers look at [`adverb_core::watch::packets`] first; nothing here is on the
//! fast path.

use crate::local::Straight;
use crate::route::{PORT, Route};
use crate::socket::Arrival;
use adverb_core::memory::Source;
use adverb_core::watch::{self, Answers, RequestStart};
use adverb_core::{clock, log, pcap, wire};
use adverb_wire::ib::header::{ICRC_LEN, Syndrome, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::mad::GSI_QPN;
use adverb_wire::ib::opcode::Operation;
use adverb_wire::ib::packet::{Packet, Payload};
use std::net::{IpAddr, SocketAddr};

/// Which way a packet goes, seen from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To this peer.
    To(IpAddr),
    /// From this peer.
    From(IpAddr),
}

impl Direction {
    fn parts(self) -> (wire::Direction, IpAddr) {
        match self {
            Self::To(peer) => (wire::Direction::Out, peer),
            Self::From(peer) => (wire::Direction::In, peer),
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::To(peer) => write!(f, "-> {peer}"),
            Self::From(peer) => write!(f, "<- {peer}"),
        }
    }
}

/// The kind of a packet.
pub(crate) fn kind(packet: &Packet<'_>) -> wire::Kind {
    use wire::Kind;
    if packet.bth().destination() == GSI_QPN {
        return Kind::Management;
    }
    match packet.opcode().operation() {
        operation if operation.is_send() => Kind::Send,
        operation if operation.is_write() => Kind::Write,
        operation if operation.is_read_response() => Kind::ReadResponse,
        Operation::AtomicWrite => Kind::Write,
        Operation::ReadRequest => Kind::Read,
        Operation::CompareSwap | Operation::FetchAdd => Kind::Atomic,
        Operation::AtomicAcknowledge => Kind::AtomicResponse,
        Operation::Acknowledge => Kind::Acknowledgement,
        Operation::Flush => Kind::Flush,
        _ => Kind::Other,
    }
}

/// This process's queue pair: packets name the one that they go to.
fn own(direction: wire::Direction, destination: u32) -> Option<u32> {
    (direction == wire::Direction::In).then_some(destination)
}

/// Tells the watcher of a packet, if there is one. `time`: when it came, or was about to leave.
fn tell_watcher(time: u64, direction: Direction, packet: &Packet<'_>, is_within: bool) {
    let Some(watcher) = watch::watcher() else { return };
    let (operation, bth) = (packet.opcode().operation(), packet.bth());
    let position = operation.position();
    let (direction, peer) = direction.parts();
    let acknowledges = packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome(), Syndrome::Ack { .. }));
    let show = |packet: &watch::Packet| watcher.packet(time, packet);
    show(&watch::Packet {
        direction,
        peer,
        kind: kind(packet),
        begins: position.starts(),
        ends: position.ends(),
        takes_receive: position.ends() && (operation.is_send() || packet.immediate().is_some()),
        source: packet.deth().map(|deth| deth.source()),
        queue_pair: own(direction, bth.destination()),
        flow: watch::Flow::Pair(bth.destination()),
        number: bth.psn().into(),
        answers: if acknowledges { Answers::UpTo(bth.psn()) } else { Answers::Nothing },
        length: packet.payload().len() as u32,
        is_within,
    });
}

/// A packet that begins a request is about to leave: its headers.
#[cold]
pub(crate) fn begun(queue_pair: u32, place: u64, headers: &[u8]) {
    let Some(watcher) = watch::watcher() else { return };
    let Ok(packet) = Packet::assemble(headers, Payload::Elsewhere(0)) else { return };
    if packet.opcode().operation().position().starts() {
        let (flow, number) = (watch::Flow::Pair(packet.bth().destination()), packet.bth().psn().into());
        watcher.begun(&RequestStart { queue_pair, place, flow, number });
    }
}

/// A message that leaves, or has come, without headers; `place`: of the request that it is of.
#[cold]
pub(crate) fn straight(direction: Direction, straight: &Straight, request: Option<(u32, u64)>) {
    let Some(watcher) = watch::watcher() else { return };
    let (flow, number) = (watch::Flow::Pair(straight.destination), straight.number.into());
    if let Some((queue_pair, place)) = request {
        watcher.begun(&RequestStart { queue_pair, place, flow, number });
    }
    let (direction, peer) = direction.parts();
    let show = |packet: &watch::Packet| watcher.packet(clock::device(), packet);
    show(&watch::Packet {
        direction,
        peer,
        kind: wire::Kind::Send,
        begins: true,
        ends: true,
        takes_receive: true,
        source: None,
        queue_pair: own(direction, straight.destination),
        flow,
        number,
        answers: straight.acknowledged.map_or(Answers::Nothing, Answers::UpTo),
        length: straight.length,
        is_within: true,
    });
}

/// A datagram that this process has sent by the network. `time`: before it was sent. Its answer may have been
/// taken in by another thread meanwhile.
#[cold]
pub(crate) fn sent(time: u64, from: SocketAddr, to: SocketAddr, identification: u16, bytes: &[u8]) {
    pcap::datagram(from, to, identification, bytes, 0);
    tell_of_datagram(time, Direction::To(to.ip()), bytes);
}

/// A datagram that has come by the network.
#[cold]
pub(crate) fn received(from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
    pcap::datagram(from, to, 0, bytes, 0);
    tell_of_datagram(clock::device(), Direction::From(from.ip()), bytes);
}

fn tell_of_datagram(time: u64, direction: Direction, bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => {
            tell_watcher(time, direction, &packet, false);
            log!(Packets, "{direction}: {packet}");
        }
        Err(why) => log!(Packets, "{direction}: {} bytes that are no packet: {why}", bytes.len()),
    }
}

/// A packet that was sent along `route` through shared memory: its headers, and its payload, of which
/// `missing` bytes are not there.
#[cold]
pub(crate) fn sent_within(route: &Route, headers: &[u8], payload: &[u8], missing: usize) {
    frame((route.source, PORT), (route.destination, PORT), headers, payload, missing);
    let payload = if missing > 0 { Payload::Elsewhere(missing) } else { Payload::Here(payload) };
    if let Ok(packet) = Packet::assemble(headers, payload) {
        tell_within(Direction::To(route.destination), &packet);
    }
}

/// A packet that has come through shared memory from the other end of `route`.
#[cold]
pub(crate) fn received_within(route: &Route, packet: &Packet<'_>, elsewhere: &Source<'_>) {
    let headers = packet.headers().concat();
    let mut payload = Vec::new();
    let mut missing = 0;
    match (packet.payload().bytes(), elsewhere) {
        (Some(bytes), _) => payload.extend_from_slice(bytes),
        (None, Source::Process { .. }) => missing = packet.payload().len(),
        (None, source) => {
            payload.resize(source.len(), 0);
            let _ = source.read(&mut payload);
        }
    }
    frame((route.destination, PORT), (route.source, PORT), &headers, &payload, missing);
    tell_within(Direction::From(route.destination), packet);
}

/// A datagram of a queue pair that has come from `from` to `to` through shared memory, with its payload.
#[cold]
pub(crate) fn received_datagram_within(from: IpAddr, to: IpAddr, packet: &Packet<'_>, payload: &[u8]) {
    frame((from, PORT), (to, PORT), &packet.headers().concat(), payload, 0);
    tell_within(Direction::From(from), packet);
}

/// A management datagram that one process of the host has given to another one itself: its arrival there, and
/// its packet without CRC.
#[cold]
pub(crate) fn handed(direction: Direction, arrival: &Arrival<'_>, packet: &[u8]) {
    frame((arrival.source, arrival.source_port), (arrival.local, arrival.local_port), packet, &[], 0);
    if let Ok(packet) = Packet::assemble(packet, Payload::Here(&[])) {
        tell_watcher(clock::device(), direction, &packet, false);
        log!(Packets, "{direction} from process to process: {packet}");
    }
}

fn tell_within(direction: Direction, packet: &Packet<'_>) {
    tell_watcher(clock::device(), direction, packet, true);
    log!(Packets, "{direction} in shared memory: {packet}");
}

/// Frames for the capture: there are none on the ways within a host, so they are made as the network would
/// have carried them. Payload that stays in its process is left out: such frames are cut off, as by a capture
/// that keeps the beginning of each.
fn frame(from: (IpAddr, u16), to: (IpAddr, u16), headers: &[u8], payload: &[u8], missing: usize) {
    if !pcap::enabled() {
        return;
    }
    let (from, to) = (SocketAddr::from(from), SocketAddr::from(to));
    let mut bytes = [headers, payload].concat();
    if missing == 0 {
        bytes.resize(bytes.len() + padding(payload.len()), 0);
        let flow = Flow {
            source: from.ip(),
            destination: to.ip(),
            source_port: from.port(),
            destination_port: to.port(),
        };
        let mut crc = FlowCrc::new(&flow).seed(0, bytes.len() + ICRC_LEN);
        crc.begin(&bytes);
        bytes.extend_from_slice(&crc.finish().to_le_bytes());
    }
    pcap::datagram(from, to, 0, &bytes, missing);
}
