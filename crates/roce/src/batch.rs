//! The batch: packets that a lane is about to send, laid one behind the other, in trains of equal ones, each
//! with its invariant CRC.

use crate::local::Channel;
use crate::route::Route;
use crate::socket::{BURST, Socket, Train};
use adverb_core::{log, wire};
use adverb_wire::ib::header::{ICRC_LEN, MAX_HEADER, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest packet: headers, 4096 bytes, padding, CRC.
pub(crate) const MAX_PACKET: usize = 4096 + 64;
/// Bytes that lie in a batch at most: two of the longest trains, since a message of many packets is to leave
/// in whole ones.
const ROOM: usize = 2 * LONGEST_TRAIN;
/// Room beyond that, and beyond [`BURST`] trains, for the acknowledgements that belong to packets of the
/// batch.
const ROOM_BEHIND: usize = 1 << 10;
/// Longest train in bytes, and in datagrams, that every kernel with segmentation takes.
const LONGEST_TRAIN: usize = 62 << 10;
const MOST_SEGMENTS: usize = 64;

/// The load of a train, as far as it is known of requests before they are packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    bytes: u32,
    /// Another request of the size of the last one does not fit.
    is_full: bool,
}

impl Load {
    /// More requests than fit into any train.
    pub(crate) const MOST: u64 = MOST_SEGMENTS as u64;
    /// A short packet takes one of its places.
    const LEAST: u32 = (LONGEST_TRAIN / MOST_SEGMENTS) as u32;

    pub(crate) fn from_bits(bytes: u32) -> Self {
        Self { bytes, is_full: false }
    }

    pub(crate) fn bits(self) -> u32 {
        self.bytes
    }

    /// A request of `length` bytes.
    #[inline]
    pub(crate) fn add(&mut self, length: u32) {
        let size = (length.min(LONGEST_TRAIN as u32) + MAX_HEADER as u32 / 2).max(Self::LEAST);
        self.bytes += size;
        self.is_full |= self.bytes + size > LONGEST_TRAIN as u32;
    }

    /// Whether the batch had better leave.
    #[inline]
    pub(crate) fn fills_train(self) -> bool {
        self.is_full
    }
}

/// A route, and the part of the invariant CRC that all its packets begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketRoute {
    pub(crate) route: Route,
    crc: FlowCrc,
}

impl PacketRoute {
    /// The route `route` for packets that leave from the UDP port `source_port`.
    pub(crate) fn new(route: Route, source_port: u16) -> Self {
        let flow = Flow {
            source: route.source,
            destination: route.destination,
            source_port,
            destination_port: route.port,
        };
        Self { route, crc: FlowCrc::new(&flow) }
    }
}

/// The outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushOutcome {
    /// Everything has left.
    All,
    /// The socket is full; the rest waits in the batch.
    Full,
}

/// Packets that wait to be sent together.
pub(crate) struct Batch {
    /// Grows as needed, and is used up to `end`.
    bytes: Vec<u8>,
    end: usize,
    trains: Vec<Train>,
    /// Trains that have left.
    sent: usize,
    segments: bool,
    /// The next packet begins a train.
    apart: bool,
    /// Trains about which the wire has been asked.
    judged: usize,
    /// Channels whose other side sleeps, and something has been put into them.
    bells: Vec<Arc<Channel>>,
}

impl Batch {
    pub(crate) fn new(socket: &Socket) -> Self {
        Self {
            bytes: Vec::new(),
            end: 0,
            trains: Vec::with_capacity(2 * BURST),
            sent: 0,
            // The wire is asked about each packet.
            segments: socket.segments() && wire::get().is_none(),
            apart: false,
            judged: 0,
            bells: Vec::new(),
        }
    }

    /// Whether another packet fits.
    pub(crate) fn has_room(&self) -> bool {
        self.end + MAX_PACKET <= ROOM && self.trains.len() < BURST
    }

    /// Whether an acknowledgement fits behind the packets of the batch.
    pub(crate) fn has_room_behind(&self) -> bool {
        self.end + MAX_HEADER + ICRC_LEN <= ROOM + ROOM_BEHIND && self.trains.len() < 2 * BURST
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Whether packets form trains, which the kernel cuts up.
    pub(crate) fn forms_trains(&self) -> bool {
        self.segments
    }

    /// The next packet begins a train, so that a shorter one behind it has a place in the same.
    pub(crate) fn begin_train(&mut self) {
        self.apart = true;
    }

    /// The channel's other side is woken with the next flush.
    pub(crate) fn ring_for(&mut self, channel: &Arc<Channel>) {
        self.bells.push(channel.clone());
    }

    /// Wakes the processes that sleep at the other ends of channels.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.bells.drain(..).for_each(|channel| channel.ring());
    }

    /// Appends a packet: its headers, `length` bytes that `fill` writes, padding, CRC. On an error of `fill`
    /// nothing is appended.
    // IB-PKT-36, IB-PKT-42, ROCE-12, ROCE-13, ROCE-17
    #[inline]
    pub(crate) fn add<E>(
        &mut self,
        packet_route: &PacketRoute,
        headers: &[u8],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.end;
        let body = start + headers.len() + length;
        let end = body + padding(length);
        if self.bytes.len() < end + ICRC_LEN {
            self.bytes.resize(end + ICRC_LEN, 0);
        }
        self.bytes[start..][..headers.len()].copy_from_slice(headers);
        if length > 0 {
            fill(&mut self.bytes[start + headers.len()..body])?;
            self.bytes[body..end].fill(0);
        }
        let size = end + ICRC_LEN - start;
        let joins_any = self.segments && !std::mem::take(&mut self.apart);
        let place = match self.trains.last_mut() {
            Some(train) if joins_any && joins(train, packet_route, start, size) => {
                train.end = end + ICRC_LEN;
                train.count += 1;
                train.count - 1
            }
            _ => {
                let train =
                    Train { route: packet_route.route, start, end: end + ICRC_LEN, segment: size, count: 1 };
                self.trains.push(train);
                0
            }
        };
        // The kernel numbers the datagrams of a train.
        let mut crc = packet_route.crc.seed(place as u16, size);
        crc.begin(&self.bytes[start..end]);
        self.bytes[end..end + ICRC_LEN].copy_from_slice(&crc.finish().to_le_bytes());
        self.end = end + ICRC_LEN;
        Ok(())
    }

    /// Asks about each packet that has been added since: how often it leaves, at most [`BURST`] times. It may
    /// be changed.
    pub(crate) fn judge(&mut self, mut ask: impl FnMut(&Route, &mut [u8]) -> usize) {
        let new = self.trains.split_off(self.judged);
        for train in new {
            let times = ask(&train.route, &mut self.bytes[train.start..train.end]);
            self.trains.extend(std::iter::repeat_n(train, times.min(BURST)));
        }
        self.judged = self.trains.len();
    }

    /// Appends a packet as it is, which has been asked about before. False if there is no room.
    pub(crate) fn add_judged(&mut self, route: &Route, packet: &[u8]) -> bool {
        let (start, end) = (self.end, self.end + packet.len());
        if self.judged < self.trains.len() || !self.has_room() {
            return false;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(packet);
        self.trains.push(Train { route: *route, start, end, segment: packet.len(), count: 1 });
        (self.end, self.judged) = (end, self.trains.len());
        true
    }

    /// Sends the packets of the batch. Returns the number of system calls, too.
    pub(crate) fn flush(&mut self, socket: &Socket) -> (FlushOutcome, u64) {
        let mut calls = 0;
        while self.sent < self.trains.len() {
            calls += 1;
            match socket.send(&self.bytes, &self.trains[self.sent..]) {
                Ok(count) => self.sent += count.max(1),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS) => return (FlushOutcome::Full, calls),
                    _ => {
                        self.cannot_send(&error);
                        self.sent += 1;
                    }
                },
            }
        }
        self.end = 0;
        self.trains.clear();
        (self.sent, self.judged) = (0, 0);
        (FlushOutcome::All, calls)
    }

    /// A datagram that the system refuses is a lost one: the protocol repeats it, or gives up.
    // ROCE-11
    #[cold]
    fn cannot_send(&mut self, error: &io::Error) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let train = self.trains[self.sent];
        if train.count > 1 && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) {
            // The way out cannot compute checksums: no segmentation from here on.
            self.segments = false;
            log!(Info, "segmentation does not work towards {}: {error}", train.route.destination);
        } else if !SAID.swap(true, Ordering::Relaxed) {
            let hint = match error.raw_os_error() {
                Some(libc::EMSGSIZE) => ": the path MTU is larger than the interface's MTU less 80 bytes",
                _ => "",
            };
            let size = train.segment;
            log!(
                Warn,
                "datagrams of {size} bytes to {} cannot be sent: {error}{hint}",
                train.route.destination
            );
        }
    }
}

/// Whether a packet of `size` bytes at `start` continues the train: all are of one size, but the last may be
/// shorter.
fn joins(train: &Train, packet_route: &PacketRoute, start: usize, size: usize) -> bool {
    train.end == start
        && size <= train.segment
        && train.count < MOST_SEGMENTS
        && train.end - train.start == train.segment * train.count
        && start + size - train.start <= LONGEST_TRAIN
        && train.route == packet_route.route
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Buffers;
    use adverb_wire::ib::header::{Bth, HeaderWriter};
    use adverb_wire::ib::opcode::{Opcode, Operation, Service};
    use std::time::{Duration, Instant};

    // ROCE-12, ROCE-13, ROCE-14, ROCE-17, IB-PKT-36
    #[test]
    fn every_datagram_of_every_train_has_a_valid_crc() {
        for address in ["127.0.0.1", "::1"] {
            let address: std::net::IpAddr = address.parse().unwrap();
            let (from, to) = (Socket::bind(0).unwrap(), Socket::bind(0).unwrap());
            assert!(from.reaches(&address), "this host has no {address}");
            let route = Route {
                source: address,
                interface: 0,
                destination: address,
                port: to.port(),
                class: 0,
                hops: 0,
            };
            let packet_route = PacketRoute::new(route, from.port());
            let mut batch = Batch::new(&from);
            let mut space = [0; MAX_HEADER];
            let mut head = HeaderWriter::new(&mut space);
            head.put(&Bth::new(Opcode::new(Service::Uc, Operation::SendOnly).unwrap(), 0xffff, 5, 6));
            let count = head.len();
            let lengths = [1024, 1024, 1024, 7, 1024, 0, 1, 2, 3, 1024];
            for length in lengths {
                batch
                    .add(&packet_route, &space[..count], length, |bytes| {
                        bytes.fill(length as u8);
                        Ok::<(), ()>(())
                    })
                    .unwrap();
            }
            assert!(!from.segments() || batch.trains.len() < lengths.len());
            while batch.flush(&from).0 != FlushOutcome::All {}
            let flow = Flow {
                source: address,
                destination: address,
                source_port: from.port(),
                destination_port: to.port(),
            };
            let (crc, mut seen) = (FlowCrc::new(&flow), 0);
            let mut buffers = Buffers::new();
            let end = Instant::now() + Duration::from_secs(20);
            while seen < lengths.len() {
                assert!(Instant::now() < end, "{seen} datagrams arrived");
                let _ = to.receive(&mut buffers);
                for arrival in buffers.arrivals() {
                    assert!(crc.verify(arrival.bytes), "datagram {seen}");
                    seen += 1;
                }
            }
        }
    }
}
