//! Unreliable datagrams: one packet each, to the destination of an address handle (volume 1, section 9.8.3).

use crate::batch::{Batch, PacketRoute};
use crate::endpoint::{Endpoint, Turn, Via};
use crate::host;
use crate::local::{self, Carrier};
use crate::locate::{Location, LocationQuery};
use crate::net::MULTICAST;
use crate::observer;
use crate::peer::{Peer, SentTotals};
use crate::route::{PORT, Route};
use crate::socket::Arrival;
use adverb_core::heard::{self, EngineFinding};
use adverb_core::memory::{Reader, Source};
use adverb_core::qp::{Attributes, Destination, Path, PayloadError, SendCursor, SendWork, State, Transition};
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Opcode, SendFlags, Status};
use adverb_core::watch;
use adverb_proto::ib::{DatagramHeader, DropReason, PACKET_COST, check_datagram, write_datagram};
use adverb_wire::ib::header::{DEFAULT_PKEY, ICRC_LEN, MAX_HEADER, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::packet::Packet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Room for the global routing header in front of a received datagram.
// IB-UD-12
const GRH: usize = local::ROUTING_HEADER;
/// Where the last datagram went.
struct Last {
    path: Path,
    number: u32,
    /// How many answers, and channels, there were when the route was chosen.
    version: (u64, u64),
    peer_route: PeerRoute,
}

/// How datagrams reach a destination: by which route, to which process, by which carrier.
#[derive(Clone)]
struct PeerRoute {
    packet_route: PacketRoute,
    /// The process that the datagrams go to. None for groups, and within the host.
    peer: Option<Arc<Peer>>,
    carrier: Carrier,
}

/// A queue pair of datagrams in RTR or later.
pub(crate) struct DatagramLink {
    qkey: u32,
    /// The longest datagram.
    mtu: u32,
    psn: u32,
    /// Most datagrams go where the last one went.
    last: Option<Last>,
    /// The last flow that came in.
    incoming: Option<(Flow, FlowCrc)>,
}

impl DatagramLink {
    pub(crate) fn new(qkey: u32, mtu: u32) -> Self {
        Self { qkey, mtu, psn: 0, last: None, incoming: None }
    }

    /// The program moves the queue pair from state to state.
    pub(crate) fn modify(&mut self, transition: Transition, attributes: &Attributes) {
        self.qkey = attributes.qkey;
        if transition.from == State::Rtr {
            // IB-UD-7
            self.psn = attributes.sq_psn;
        }
    }

    /// The sequence number that is next.
    pub(crate) fn query(&self, attributes: &mut Attributes) {
        if attributes.state > Some(State::Rtr) {
            attributes.sq_psn = self.psn;
        }
    }

    /// Sends up to `most` datagrams, of those that were posted before `until`. A function of its own, as that
    /// of a connection ([`crate::link::Link::send`]).
    #[inline(never)]
    pub(crate) fn send(
        &mut self,
        endpoint: &Endpoint,
        (cursor, until): (&mut SendCursor, u64),
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        for _ in 0..most {
            // PRACTICE-ORDER-1
            let Some(work) = queues.send.peek(cursor).filter(|work| work.sequence < until) else {
                return turn;
            };
            if !batch.has_room() {
                break;
            }
            let status = match self.send_one(endpoint, &work, batch, now, space) {
                Ok(true) => {
                    cursor.advance();
                    // IB-UD-6
                    queues.complete_send(work.sequence, Status::Success);
                    continue;
                }
                Ok(false) => return turn,
                Err(status) => status,
            };
            queues.fail_send(cursor, work.sequence, status);
            turn.stopped = true;
            return turn;
        }
        turn.more = true;
        turn
    }

    /// Sends a datagram; false if it is not known yet where its destination lives.
    fn send_one(
        &mut self,
        endpoint: &Endpoint,
        work: &SendWork,
        batch: &mut Batch,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> Result<bool, Status> {
        // IB-UD-2
        if work.length > self.mtu {
            return Err(Status::LocalLength);
        }
        let queues = &endpoint.queues;
        let destination = queues.send.destination(work);
        let Some(peer_route) = self.peer_route(endpoint, &destination)? else { return Ok(false) };
        let PeerRoute { packet_route, peer, carrier } = &peer_route;
        let admits = |peer: &Peer| peer.unreliable_room() > 0 && peer.begin();
        if let Some(peer) = peer
            && !admits(peer)
        {
            peer.wait(endpoint, packet_route.route);
            // An echo that came meanwhile has found no waiting sender to ring.
            if !admits(peer) {
                return Ok(false);
            }
        }
        let header = DatagramHeader {
            destination: destination.queue_pair,
            source: queues.number,
            // The highest bit says that the queue pair's own is meant (volume 1, section 10.2.5).
            // IB-UD-4
            qkey: if destination.qkey & 1 << 31 != 0 { self.qkey } else { destination.qkey },
            pkey: DEFAULT_PKEY,
            psn: self.psn,
            solicited: work.flags.contains(SendFlags::SOLICITED),
            immediate: (work.opcode == Opcode::SendWithImmediate).then_some(u32::from_be(work.immediate)),
            length: work.length as usize,
        };
        let count = write_datagram(&header, space);
        let (head, length) = (&space[..count], work.length as usize);
        if watch::packets() {
            observer::begun(queues.number, work.sequence, head);
        }
        let fill = |target: &mut [u8]| queues.gather(work, 0, target);
        let counters = queues.counters;
        let mut sink = carrier.sink(batch);
        if carrier.is_within_host() {
            if !sink.loses() && !sink.has_room() {
                drop(sink);
                return Ok(
                    !carrier.waits(endpoint, false) && self.send_one(endpoint, work, batch, now, space)?
                );
            }
            counters.tx_local.add(1);
        }
        let bytes = count + length + padding(length) + ICRC_LEN;
        let header = || header_along(&packet_route.route, bytes);
        sink.add_datagram(packet_route, head, header, length, fill).map_err(|_: PayloadError| {
            peer.iter().for_each(|peer| peer.not_begun(endpoint, packet_route.route));
            Status::LocalProtection
        })?;
        drop(sink);
        self.psn = (self.psn + 1) & 0xff_ffff;
        if let Some(peer) = peer {
            let sent = SentTotals { cost: work.length + PACKET_COST, begun: 1 };
            peer.charge(&endpoint.net, batch, packet_route, sent, now);
        }
        counters.tx_frames.add(1);
        counters.tx_messages.add(1);
        counters.tx_bytes.add(work.length.into());
        Ok(true)
    }

    /// The route to a destination, kept as long as the next message goes to the same one. None while it is
    /// not known where that lives.
    fn peer_route(
        &mut self,
        endpoint: &Endpoint,
        destination: &Destination,
    ) -> Result<Option<PeerRoute>, Status> {
        let net = &endpoint.net;
        let number = destination.queue_pair;
        let version = (net.locator.version(), net.local.hub.channels.version());
        if let Some(last) = &self.last
            && last.path == destination.path
            && last.number == number
            && last.version == version
        {
            return Ok(Some(last.peer_route.clone()));
        }
        let mut route = endpoint.gids.route_of(&destination.path).map_err(|_| Status::LocalQpOperation)?;
        let (mut peer, mut carrier) = (None, Carrier::default());
        if number == MULTICAST || route.destination.is_multicast() {
            route.port = PORT;
        } else if let Some(known) = net.local.reach(net, &route, number) {
            carrier = known;
        } else {
            let (lane, own) = (&endpoint.lane, endpoint.number());
            let wanted = LocationQuery { local: route.source, peer: route.peer(), number };
            match net.locator.find(net, lane, wanted, own, false) {
                Location::At(place) => {
                    route.port = place.port;
                    let known = net.peers.of(route.destination, place.port);
                    known.learn_place(place);
                    peer = Some(known);
                }
                Location::Asking => return Ok(None),
            }
        }
        let peer_route = PeerRoute { packet_route: endpoint.lane.packet_route(route), peer, carrier };
        self.last = Some(Last { path: destination.path, number, version, peer_route: peer_route.clone() });
        Ok(Some(peer_route))
    }

    /// The queue pair goes to error or away.
    pub(crate) fn stop(&self, endpoint: &Endpoint) {
        if let Some(last) = &self.last {
            last.peer_route.carrier.forget(endpoint);
        }
    }

    /// Takes in a datagram, or drops it silently.
    pub(crate) fn receive(&mut self, endpoint: &Endpoint, packet: &Packet<'_>, via: Via<'_>) {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        let to_group = match via {
            Via::Network(arrival) => arrival.local.is_multicast(),
            Via::Host(..) => false,
        };
        // IB-PKT-53
        if to_group != (packet.bth().destination() == MULTICAST) {
            counters.misaddressed.add(1);
            return;
        }
        let datagram = match check_datagram(packet, self.qkey) {
            Ok(datagram) => datagram,
            Err(DropReason::QueueKey) => {
                counters.wrong_qkey.add(1);
                if heard::is_heard()
                    && let Some(header) = packet.deth()
                    && (matches!(via, Via::Host(..))
                        || matches!(via, Via::Network(arrival) if self.verify(arrival)))
                {
                    let (has, wanted) = (header.qkey.get(), self.qkey);
                    heard::tell(queues.number, EngineFinding::WrongQkey { has, wanted });
                }
                return;
            }
            Err(_) => {
                counters.dropped.add(1);
                return;
            }
        };
        // The routing header, and how many bytes of it have come with the payload.
        let (payload, mut header, along) = match via {
            Via::Network(arrival) => {
                if !self.verify(arrival) {
                    counters.damaged.add(1);
                    return;
                }
                let payload = Source::Buffer(datagram.payload.bytes().unwrap_or_default());
                (payload, routing_header(arrival), 0)
            }
            Via::Host(from) => (host::source(datagram.payload, from.elsewhere), [0; GRH], GRH),
        };
        // A process of this host may say any length, and nothing is allocated or read for more than a
        // datagram has.
        let has_length = (GRH..=local::LONGEST_DATAGRAM).contains(&payload.len());
        if along > 0 && !(has_length && payload.read(&mut header).is_ok()) {
            counters.damaged.add(1);
            return;
        }
        if along > 0 && watch::packets() {
            show(packet, &header, &payload);
        }
        // IB-UD-11, IB-UD-17
        let Some(work) = queues.take_receive() else {
            counters.no_receive.add(1);
            return;
        };
        let length = GRH + payload.len() - along;
        let mut completion = Completion {
            wr_id: work.wr_id,
            status: Status::Success,
            opcode: CompletionOpcode::Receive,
            // IB-UD-14
            flags: CompletionFlags::GRH,
            byte_length: length as u32,
            immediate: 0,
            queue_pair: queues.number,
            // IB-UD-15
            source_queue_pair: datagram.source,
            vendor_error: 0,
            service_level: header_kind(&header),
            path_bits: 0,
            timestamp: 0,
        };
        if let Some(immediate) = datagram.immediate {
            completion.flags |= CompletionFlags::WITH_IMMEDIATE;
            completion.immediate = immediate.to_be();
        }
        let placed = if along > 0 {
            queues.scatter_receive(&mut Reader::default(), &work, 0, &payload)
        } else {
            queues
                .scatter_receive(&mut Reader::default(), &work, 0, &Source::Buffer(&header))
                .and_then(|()| queues.scatter_receive(&mut Reader::default(), &work, GRH as u64, &payload))
        };
        match placed {
            Ok(()) => {
                counters.rx_messages.add(1);
                counters.rx_sends.add(1);
                counters.rx_bytes.add((length - GRH) as u64);
            }
            // IB-UD-16
            Err(PayloadError::Room) => completion.status = Status::LocalLength,
            Err(_) => completion.status = Status::LocalProtection,
        }
        queues.complete_receive(&work, completion, datagram.solicited);
    }

    fn verify(&mut self, arrival: &Arrival<'_>) -> bool {
        let flow = Flow {
            source: arrival.source,
            destination: arrival.local,
            source_port: arrival.source_port,
            destination_port: arrival.local_port,
        };
        let crc = match &self.incoming {
            Some((known, crc)) if *known == flow => *crc,
            _ => {
                let crc = FlowCrc::new(&flow);
                self.incoming = Some((flow, crc));
                crc
            }
        };
        crc.verify(arrival.bytes)
    }
}

/// RoCE has no service levels. In their place, adapters report the kind of header in front of a datagram,
/// which the bytes alone do not tell. Programs such as UCX rely on it: 2 means an IPv4 header, 1 an IPv6
/// header, 8 more that UDP follows.
fn header_kind(header: &[u8; GRH]) -> u8 {
    const UDP: u8 = 8;
    UDP | if header[0] == 0 { 2 } else { 1 }
}

/// Shows a datagram that has come from a process of this host.
#[cold]
fn show(packet: &Packet<'_>, header: &[u8; GRH], payload: &Source<'_>) {
    let mut bytes = vec![0; payload.len()];
    let _ = payload.read(&mut bytes);
    let address = |at: usize| -> IpAddr {
        match header[0] {
            0 => <[u8; 4]>::try_from(&header[32 + at * 4..][..4]).expect("four bytes").into(),
            _ => <[u8; 16]>::try_from(&header[8 + at * 16..][..16]).expect("sixteen bytes").into(),
        }
    };
    observer::received_datagram_within(address(0), address(1), packet, &bytes[GRH..]);
}

/// The hop limit of a datagram whose sender does not ask for one.
const HOPS: u8 = 64;

/// The global routing header in front of a datagram that goes along `route` within the host. `bytes`: the
/// length of its headers, payload and CRC.
fn header_along(route: &Route, bytes: usize) -> [u8; GRH] {
    let hops = if route.hops == 0 { HOPS } else { route.hops };
    header_of(route.source, route.destination, route.class, hops, bytes)
}

/// The routing header in front of a received datagram. A socket does not show the header, so it is made again
/// from the packet's addresses and fields.
fn routing_header(arrival: &Arrival<'_>) -> [u8; GRH] {
    header_of(arrival.source, arrival.local, arrival.class, arrival.hops, arrival.bytes.len())
}

/// The IPv6 header, or 20 unused bytes and the IPv4 header (annex A17.4.5.1).
fn header_of(source: IpAddr, local: IpAddr, class: u8, hops: u8, bytes: usize) -> [u8; GRH] {
    const UDP: u8 = 17;
    let mut header = [0; GRH];
    // A datagram that a process of this host hands over may be longer than any packet.
    let length = u16::try_from(bytes + 8).unwrap_or(u16::MAX);
    match (source, local) {
        (IpAddr::V4(source), IpAddr::V4(local)) => {
            let ip = &mut header[20..];
            ip[0] = 0x45;
            ip[1] = class;
            ip[2..4].copy_from_slice(&length.saturating_add(20).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = hops;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&local.octets());
            // IB-UD-13
            let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        }
        (source, local) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            header[0] = 0x60 | class >> 4;
            header[1] = class << 4;
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header[6] = UDP;
            header[7] = hops;
            header[8..24].copy_from_slice(&octets(source));
            header[24..40].copy_from_slice(&octets(local));
        }
    }
    header
}

/// The header that is made for any arrival agrees with it.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_arrival(arrival: &Arrival<'_>) {
    let header = routing_header(arrival);
    let length = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let bytes = arrival.bytes.len() + 8;
    match (arrival.source, arrival.local) {
        (IpAddr::V4(source), IpAddr::V4(local)) => {
            assert_eq!(
                (header_kind(&header), header[20], header[28], header[21]),
                (10, 0x45, arrival.hops, arrival.class)
            );
            assert_eq!(header[32..], [source.octets(), local.octets()].concat());
            assert_eq!(length(22), (bytes + 20).min(usize::from(u16::MAX)));
            let sum: u32 = (20..40).step_by(2).map(|at| length(at) as u32).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        }
        _ => {
            assert_eq!((header_kind(&header), header[0] >> 4, header[7]), (9, 6, arrival.hops));
            assert_eq!(header[0] << 4 | header[1] >> 4, arrival.class);
            assert_eq!(length(4), bytes.min(usize::from(u16::MAX)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use adverb_core::conformance::Site;
    use adverb_core::conformance::fixture::{Home, QKEY, Shape, Side, path};
    use adverb_core::qp::{AttributeMask, Service};
    use adverb_core::request::{Datagram, SendRequest};
    use std::net::Ipv4Addr;

    fn arrival(source: &str, local: &str) -> [u8; GRH] {
        routing_header(&Arrival {
            source: source.parse().unwrap(),
            source_port: 1,
            local: local.parse().unwrap(),
            local_port: PORT,
            interface: 1,
            class: 0x2e,
            hops: 63,
            bytes: &[0; 100],
        })
    }

    #[test]
    fn the_header_of_ipv4_has_a_right_checksum() {
        let header = arrival("10.0.0.1", "10.0.0.2");
        assert_eq!(header[..20], [0; 20]);
        let sum: u32 = header[20..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(header[20..24], [0x45, 0x2e, 0, 128]);
        assert_eq!(header[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    }

    #[test]
    fn the_header_of_ipv6() {
        let header = arrival("fd00::1", "fd00::2");
        assert_eq!(header[..8], [0x62, 0xe0, 0, 0, 0, 108, 17, 63]);
        assert_eq!((header[8], header[23], header[39]), (0xfd, 1, 2));
    }

    /// A request that is posted while the lane acknowledges a message may be about that message: it goes with
    /// the next turn.
    // PRACTICE-ORDER-1
    #[test]
    fn nothing_is_sent_that_was_posted_after_the_turn_began() {
        let install = || adverb_core::engine::install(&[crate::FACTORY]);
        let site = Site::new(install, "roce0", "127.0.0.1").by_attributes();
        let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Ud);
        side.begin();
        // Its own turns send nothing there.
        side.to(State::Sqd, AttributeMask::empty(), &Attributes::default());
        let own = path(&side.context, site.address);
        let group = Ipv4Addr::new(239, 255, 123, 1);
        let to = Path { gid: adverb_core::attributes::gid_of(group.into()), ..own };
        let datagram = Some(Datagram { path: &to, queue_pair: MULTICAST, qkey: QKEY });
        for wr_id in 0..4 {
            side.queue_pair.post_send(&SendRequest { wr_id, datagram, ..SendRequest::default() }).unwrap();
        }
        let endpoint = side.queue_pair.endpoint().clone().as_any().downcast::<Endpoint>();
        let endpoint = endpoint.expect("it is of this transport");
        let mut link = DatagramLink::new(QKEY, 1024);
        let (mut cursor, mut batch) = (SendCursor::default(), Batch::new(&Socket::bind(0).unwrap()));
        for until in [0, 1, 1, 3, 4, 4] {
            let turn = link.send(
                &endpoint,
                (&mut cursor, until),
                &mut batch,
                16,
                Duration::ZERO,
                &mut [0; MAX_HEADER],
            );
            assert_eq!((cursor.sequence(), u64::from(link.psn), turn), (until, until, Turn::default()));
        }
    }
}
