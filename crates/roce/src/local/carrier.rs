//! Where the packets of a connection leave: into its lane's batch, or into a channel to another process of
//! this host.

use super::channel::Channel;
use super::record;
use crate::batch::{Batch, PacketRoute};
use crate::endpoint::Endpoint;
use crate::observer;
use adverb_core::lock::LockGuard;
use adverb_core::memory::{KeyUse, Piece, Span};
use adverb_core::qp::Queues;
use adverb_core::watch;
use adverb_samehost::Tx;
use adverb_wire::ib::header::MAX_HEADER;
use arrayvec::ArrayVec;
use std::sync::Arc;

/// The place where the packets of a connection leave: its lane's batch, or a channel to another process of
/// this host.
pub(crate) enum PacketSink<'a> {
    /// By the lane's socket.
    Network(&'a mut Batch),
    /// By a channel.
    Host(Departure<'a>),
}

/// Packets that enter a channel, which no other thread sends by meanwhile. Its lock is held while they are
/// copied, never across a system call.
pub(crate) struct Departure<'a> {
    batch: &'a mut Batch,
    channel: &'a Arc<Channel>,
    tx: LockGuard<'a, Tx<Box<[u8]>>>,
    published: bool,
}

/// The carrier of packets: a lane's socket, or a channel.
#[derive(Clone, Default)]
pub(crate) struct Carrier(Option<Arc<Channel>>);

impl Carrier {
    pub(super) fn of(channel: &Arc<Channel>) -> Self {
        Self(Some(channel.clone()))
    }

    /// Whether the packets leave by a channel.
    #[inline]
    pub(crate) fn is_within_host(&self) -> bool {
        self.0.is_some()
    }

    /// Where packets enter it.
    #[inline]
    pub(crate) fn sink<'a>(&'a self, batch: &'a mut Batch) -> PacketSink<'a> {
        match &self.0 {
            None => PacketSink::Network(batch),
            Some(channel) => {
                let tx = channel.tx.lock();
                PacketSink::Host(Departure { batch, channel, tx, published: false })
            }
        }
    }

    /// Takes note that the sink has no room. True: the sender waits, and is rung for when there is some. A
    /// lane itself sends for the endpoints that wait for its socket. Unreliable senders do not wait for long.
    pub(crate) fn waits(&self, endpoint: &Endpoint, is_reliable: bool) -> bool {
        match &self.0 {
            None => false,
            Some(channel) if is_reliable => channel.wait(endpoint),
            Some(channel) => channel.wait_briefly(endpoint),
        }
    }

    /// A sender is gone.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        if let Some(channel) = &self.0 {
            channel.forget(endpoint);
        }
    }

    /// Has the process at the other end look. Returns whether it makes sense to wait for room a little
    /// longer, in a thread that has `time` for it.
    pub(crate) fn urge(&self, time: bool) -> bool {
        let hopeful = self.0.as_ref().filter(|channel| channel.hopes(time));
        hopeful.inspect(|channel| channel.wake_peer()).is_some()
    }
}

impl PacketSink<'_> {
    /// Whether another packet fits.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_for(record::LONGEST - record::START)
    }

    /// Whether another packet with so many bytes of headers and payload fits.
    #[inline]
    pub(crate) fn has_room_for(&mut self, bytes: usize) -> bool {
        match self {
            Self::Network(batch) if bytes <= MAX_HEADER => batch.has_room_behind(),
            Self::Network(batch) => batch.has_room(),
            Self::Host(departure) => {
                departure.tx.producer.room().is_some_and(|room| room >= record::START + bytes)
            }
        }
    }

    /// Takes note that there was room again.
    pub(crate) fn is_moving(&self) {
        if let Self::Host(departure) = self {
            departure.channel.is_moving();
        }
    }

    /// Whether the sink has no room, and none is to be expected. Unreliable packets are then lost.
    pub(crate) fn loses(&mut self) -> bool {
        if !matches!(self, Self::Host(departure) if departure.channel.is_stuck()) {
            return false;
        }
        let has_room = self.has_room();
        if has_room {
            self.is_moving();
        }
        !has_room
    }

    /// Appends a packet: its headers, and `length` bytes that `fill` writes. On an error of `fill` nothing is
    /// appended. There must be room.
    #[inline]
    pub(crate) fn add<E>(
        &mut self,
        packet_route: &PacketRoute,
        headers: &[u8],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Network(batch) => batch.add(packet_route, headers, length, fill),
            Self::Host(departure) => departure.add(packet_route, headers, &[], length, fill),
        }
    }

    /// Appends a datagram, in front of which its receiver finds `header`. Receivers from the network make it
    /// themselves.
    pub(crate) fn add_datagram<E>(
        &mut self,
        packet_route: &PacketRoute,
        headers: &[u8],
        header: impl FnOnce() -> [u8; record::ROUTING_HEADER],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Network(batch) => batch.add(packet_route, headers, length, fill),
            Self::Host(departure) => departure.add(packet_route, headers, &header(), length, fill),
        }
    }

    /// Appends a packet of a queue pair: its headers, and `length` bytes that `fill` writes. Within the host,
    /// the receiver fetches long payload itself, and `locate` says where it lies.
    #[inline]
    pub(crate) fn add_payload<E>(
        &mut self,
        queues: &Queues,
        (packet_route, headers, length): (&PacketRoute, &[u8], usize),
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
        locate: impl FnOnce(&mut dyn FnMut(Span<'_>)) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Host(departure) if length > record::LONGEST_HERE => {
                if watch::packets() {
                    observer::sent_within(&packet_route.route, headers, &[], length);
                }
                departure.refer(queues, headers, length, locate)
            }
            _ => self.add(packet_route, headers, length, fill),
        }
    }
}

impl Departure<'_> {
    #[inline]
    fn add<E>(
        &mut self,
        packet_route: &PacketRoute,
        headers: &[u8],
        before: &[u8],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Tx { producer, outgoing } = &mut *self.tx;
        // Memory that the other process may change at any time is no slice: so there is one more copy, in the
        // cache.
        let payload = &mut outgoing[..length];
        if length > 0 {
            fill(payload)?;
        }
        if watch::packets() {
            observer::sent_within(&packet_route.route, headers, payload, 0);
        }
        let behind = record::START + headers.len();
        if let Some(mut slot) = producer.reserve(behind + before.len() + length) {
            slot.write_at(0, &record::here(headers.len(), before.len() + length));
            slot.write_at(record::START, headers);
            slot.write_at(behind, before);
            slot.write_at(behind + before.len(), payload);
            slot.publish();
            self.published = true;
        }
        Ok(())
    }

    fn refer<E>(
        &mut self,
        queues: &Queues,
        headers: &[u8],
        length: usize,
        locate: impl FnOnce(&mut dyn FnMut(Span<'_>)) -> Result<(), E>,
    ) -> Result<(), E> {
        let keys = &queues.engine.keys;
        let is_told = self.channel.neighbour.knows_what_to_map();
        let mut pieces = ArrayVec::<[u8; 16], { record::MOST_PIECES }>::new();
        let mut lent = ArrayVec::<KeyUse, { record::MOST_PIECES }>::new();
        let located = locate(&mut |span| {
            let piece = Piece { address: span.address() as u64, length: span.len() as u64 };
            let one = span.lend();
            let key = one.region().filter(|key| is_told && keys.is_mapped(*key));
            pieces.push(record::piece(piece, key));
            lent.push(one);
        });
        let behind = record::START + headers.len();
        let slot = match located {
            Ok(()) => self.tx.producer.reserve(behind + pieces.as_flattened().len()),
            Err(_) => None,
        };
        let Some(mut slot) = slot else {
            lent.into_iter().for_each(|lent| keys.give_back(lent));
            return located;
        };
        slot.write_at(0, &record::elsewhere(headers.len(), pieces.len(), length));
        slot.write_at(record::START, headers);
        slot.write_at(behind, pieces.as_flattened());
        self.channel.neighbour.loans().add(queues.number, slot, lent);
        self.published = true;
        Ok(())
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if self.published && self.tx.producer.peer_sleeps() {
            // The system call is made where those of the lane are made.
            self.batch.ring_for(self.channel);
        }
    }
}
