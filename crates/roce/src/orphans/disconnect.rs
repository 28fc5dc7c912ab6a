//! Disconnect requests in the name of processes that are gone (IB-CM-47).
//!
//! They go to UDP port 4791 of the peer's host. If its holder is an adverb and has told where the peer's
//! queue pair lives, they go there, too, since the holder may be of another user than the peer.

use super::Entry;
use crate::gsi::{Gsi, MadSource};
use crate::handover::{HandoverKind, head};
use crate::locate::{self, Place};
use crate::numbers::{FRESH, block_of, owners};
use crate::route::{PORT, canonical};
use crate::socket::Arrival;
use adverb_core::random;
use adverb_wire::ib::cm::{Dreq, Message};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, Deth, HeaderWriter, ICRC_LEN, MAX_HEADER};
use adverb_wire::ib::icrc::{Flow, seed};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN, MAD_LEN};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The operation of every management datagram.
const UD_SEND: Opcode = Opcode::new(Service::Ud, Operation::SendOnly).expect("datagrams are sent");
/// A request may be lost, or come while port 4791 changes hands: pauses after which it is repeated.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
    Duration::from_millis(200),
    Duration::from_millis(300),
];
/// Disconnect requests to one peer, once its UDP port is known.
const MOST_DISCONNECTS: u32 = 2;

/// A peer that is to get a disconnect request.
struct Peer<'a> {
    entry: &'a Entry,
    /// The UDP port that the peer lives behind, and how many requests were sent there.
    port: Option<u16>,
    sent: u32,
}

/// All peers that are to get a request, and the transaction of the question about the first, which no other
/// process can guess.
struct Peers<'a> {
    all: Vec<Peer<'a>>,
    first: u64,
}

impl<'a> Peers<'a> {
    fn new(left: &'a [Entry]) -> Self {
        let all = left.iter().map(|entry| Peer { entry, port: None, sent: 0 }).collect();
        Self { all, first: random::word() }
    }

    /// Takes in a datagram, if it is an answer to a question of ours.
    fn take_answer(&mut self, mad: &[u8; MAD_LEN], from: IpAddr) {
        if let Some((transaction, number, port)) = locate::answer(mad)
            && let Some(peer) = self.all.get_mut(transaction.wrapping_sub(self.first) as usize)
            && (peer.entry.peer, peer.entry.remote_number) == (from, number)
        {
            peer.port = Some(port);
        }
    }
}

/// Our sockets, by address and interface.
type Sockets = HashMap<(IpAddr, u32), UdpSocket>;

/// Sends the peers of these connections their disconnect requests. Takes most of a second if they do not
/// answer.
pub(super) fn send_all(left: &[Entry]) {
    let mut sockets = Sockets::new();
    for entry in left {
        // A peer that is not reached finds out by itself, later.
        if let Ok(socket) = bind(entry) {
            sockets.entry((entry.local, entry.scope)).or_insert(socket);
        }
    }
    let mut peers = Peers::new(left);
    for pause in PAUSES {
        for (index, peer) in peers.all.iter_mut().enumerate().filter(|(_, peer)| peer.sent < MOST_DISCONNECTS)
        {
            if let Some(socket) = sockets.get(&(peer.entry.local, peer.entry.scope)) {
                let _ = peer.send_to(socket, peers.first.wrapping_add(index as u64));
            }
        }
        if peers.all.iter().all(|peer| peer.sent >= MOST_DISCONNECTS) {
            return;
        }
        std::thread::sleep(pause);
        for socket in sockets.values() {
            receive(socket, &mut peers);
        }
    }
}

/// A socket of an entry's own address.
fn bind(entry: &Entry) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(entry.at(entry.local, 0))?;
    socket.set_nonblocking(true)?;
    // Unconnected and without fragments, it sends the identification 0, which the CRC needs to be known.
    let probe: libc::c_int = libc::IP_PMTUDISC_PROBE;
    // SAFETY: our descriptor, and a live local of the length that is given.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const probe).cast(),
            size_of_val(&probe) as libc::socklen_t,
        )
    };
    Ok(socket)
}

impl Entry {
    fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, self.scope).into(),
        }
    }
}

impl Peer<'_> {
    /// Sends a disconnect request to the port that the peer lives behind. If that is not known, sends it to
    /// port 4791, and asks for the port.
    fn send_to(&mut self, socket: &UdpSocket, transaction: u64) -> io::Result<()> {
        let entry = self.entry;
        self.sent += u32::from(self.port.is_some());
        let port = self.port.unwrap_or(PORT);
        send(socket, entry, port, &request(entry))?;
        if self.port.is_some() {
            return Ok(());
        }
        let question = locate::question(transaction, entry.remote_number, 0, Place::STANDARD_PORT);
        send(socket, entry, PORT, &question)?;
        if entry.local == entry.peer {
            // The process that holds port 4791 of this host may be stopped.
            let own = socket.local_addr()?.port();
            let from = MadSource::between(entry.at(entry.peer, PORT), entry.local, own);
            for owner in owners(block_of(entry.remote_number), FRESH)? {
                owner.send(&[&head(HandoverKind::Locate, &from.arrival(&question))[..], &question])?;
            }
        }
        Ok(())
    }
}

/// Receives the answers that have come.
fn receive(socket: &UdpSocket, peers: &mut Peers<'_>) {
    let Ok(own) = socket.local_addr() else { return };
    let mut bytes = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        let arrival = Arrival {
            source: canonical(from.ip()),
            source_port: from.port(),
            local: canonical(own.ip()),
            local_port: own.port(),
            interface: 0,
            class: 0,
            hops: 0,
            bytes: &bytes[..length],
        };
        if let Some((mad, source)) = Gsi::check(&arrival) {
            peers.take_answer(mad, source.peer);
        }
    }
}

/// The disconnect request.
fn request(entry: &Entry) -> [u8; MAD_LEN] {
    let request = Dreq {
        local_communication_id: entry.local_id,
        remote_communication_id: entry.remote_id,
        remote_qpn: entry.remote_number,
        ..Dreq::default()
    };
    Message::from(request).to_mad(u64::from(entry.local_id) << 32 | 1).to_bytes()
}

fn send(socket: &UdpSocket, entry: &Entry, port: u16, mad: &[u8; MAD_LEN]) -> io::Result<()> {
    let flow = Flow {
        source: entry.local,
        destination: entry.peer,
        source_port: socket.local_addr()?.port(),
        destination_port: port,
    };
    socket.send_to(&packet(mad, &flow), entry.at(entry.peer, port)).map(drop)
}

/// The packet of a management datagram.
fn packet(mad: &[u8; MAD_LEN], flow: &Flow) -> Vec<u8> {
    let mut space = [0; MAX_HEADER];
    let mut head = HeaderWriter::new(&mut space);
    head.put(&Bth::new(UD_SEND, DEFAULT_PKEY, GSI_QPN, 0));
    head.put(&Deth::new(GSI_QKEY, GSI_QPN));
    let length = head.len();
    let mut packet = [&space[..length], &mad[..]].concat();
    let mut crc = seed(flow, 0, packet.len() + ICRC_LEN);
    crc.begin(&packet);
    packet.extend_from_slice(&crc.finish().to_le_bytes());
    packet
}

/// Tries any entries of a record. Each request is one that its peer understands, and only an answer to our
/// question tells where the peer lives.
#[cfg(any(test, fuzzing))]
pub(super) fn try_entries(left: &[Entry], answers: &[u8]) {
    use adverb_wire::ib::mad::Mad;
    let mut peers = Peers::new(left);
    for entry in left {
        let parsed = Mad::parse(&request(entry)).map(Message::parse);
        let Some(Ok(Message::Dreq(request))) = parsed else { panic!("{parsed:?}") };
        assert_eq!(request.local_communication_id, entry.local_id);
        assert_eq!(request.remote_communication_id, entry.remote_id);
        assert_eq!(request.remote_qpn, entry.remote_number & 0xff_ffff);
        assert_eq!((entry.at(entry.peer, PORT).ip(), entry.at(entry.peer, PORT).port()), (entry.peer, PORT));
        if entry.local.is_ipv4() == entry.peer.is_ipv4() {
            let (source, destination) = (entry.local, entry.peer);
            let flow = Flow { source, destination, source_port: 1, destination_port: PORT };
            let packet = packet(&self::request(entry), &flow);
            let (bytes, scope) = (&packet[..], entry.scope);
            let arrival = Arrival {
                source,
                source_port: 1,
                local: destination,
                local_port: PORT,
                interface: scope,
                class: 0,
                hops: 64,
                bytes,
            };
            assert!(Gsi::check(&arrival).is_some());
        }
    }
    for answer in answers.chunks(MAD_LEN) {
        let mut mad = [0; MAD_LEN];
        mad[..answer.len()].copy_from_slice(answer);
        let Some((transaction, number, port)) = locate::answer(&mad) else { continue };
        for from in left.iter().map(|entry| entry.peer) {
            let before: Vec<_> = peers.all.iter().map(|peer| peer.port).collect();
            peers.take_answer(&mad, from);
            for (index, (peer, before)) in peers.all.iter().zip(before).enumerate() {
                let is_asked = transaction == peers.first.wrapping_add(index as u64)
                    && (from, number) == (peer.entry.peer, peer.entry.remote_number);
                assert_eq!(peer.port, if is_asked { Some(port) } else { before });
            }
        }
    }
    // The answer that is waited for.
    for (index, entry) in left.iter().enumerate() {
        let transaction = peers.first.wrapping_add(index as u64);
        let answer = locate::answer_for(transaction, entry.remote_number, 77);
        peers.take_answer(&answer, entry.peer);
        assert_eq!(peers.all[index].port, Some(77));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::mad::Mad;

    #[test]
    fn the_request_is_one_that_peers_believe() {
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().unwrap();
            let entry = Entry {
                local_id: 0x1234_5678,
                remote_id: 9,
                remote_number: 0xab_cdef,
                local: host,
                peer: host,
                scope: 0,
            };
            let flow = Flow { source: host, destination: host, source_port: 5000, destination_port: PORT };
            let arrival = Arrival {
                source: host,
                source_port: 5000,
                local: host,
                local_port: PORT,
                interface: 1,
                class: 0,
                hops: 64,
                bytes: &packet(&request(&entry), &flow),
            };
            let (mad, _) = Gsi::check(&arrival).unwrap();
            let message = Message::parse(Mad::parse(mad).unwrap()).unwrap();
            let Message::Dreq(request) = message else { panic!("{message:?}") };
            assert_eq!((request.remote_communication_id, request.remote_qpn), (9, 0xab_cdef));
        }
    }
}
