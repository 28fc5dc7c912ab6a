//! Where the packets of a connection leave: into its lane's batch, or into a channel to another process of this host.

use super::channel::Channel;
use super::record;
use crate::batch::{Batch, Way};
use crate::observer;
use adverb_core::lock::Guard;
use adverb_core::memory::{Lent, Piece, Span};
use adverb_core::qp::Queues;
use adverb_core::watch;
use adverb_samehost::Tx;
use adverb_wire::ib::header::MAX_HEADER;
use arrayvec::ArrayVec;
use std::sync::Arc;

/// See the module.
pub(crate) enum Outlet<'a> {
    /// By the lane's socket.
    Network(&'a mut Batch),
    /// By a channel.
    Host(Departure<'a>),
}

/// Packets that enter a channel, which nobody else sends by meanwhile. Its lock is held while they are copied, never across a system call.
pub(crate) struct Departure<'a> {
    batch: &'a mut Batch,
    channel: &'a Arc<Channel>,
    tx: Guard<'a, Tx<Box<[u8]>>>,
    published: bool,
}

impl<'a> Outlet<'a> {
    /// By the channel, if there is one.
    #[inline]
    pub(crate) fn new(batch: &'a mut Batch, channel: Option<&'a Arc<Channel>>) -> Self {
        match channel {
            None => Self::Network(batch),
            Some(channel) => {
                let tx = channel.tx.lock();
                Self::Host(Departure { batch, channel, tx, published: false })
            }
        }
    }

    /// Whether another packet fits.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_for(record::LONGEST - record::START)
    }

    /// The same of one with so many bytes of headers and payload.
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

    /// Whether it is a channel, which tells when it has room again: its queue pairs then wait there.
    pub(crate) fn is_channel(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Appends a packet: its headers, and `length` bytes that `fill` writes. On an error of `fill` nothing is appended. There must be room.
    #[inline]
    pub(crate) fn add<E>(
        &mut self,
        way: &Way,
        headers: &[u8],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Network(batch) => batch.add(way, headers, length, fill),
            Self::Host(departure) => departure.add(way, headers, &[], length, fill),
        }
    }

    /// Appends a datagram, in front of which its receiver finds `header`. By a channel only.
    pub(crate) fn add_datagram<E>(
        &mut self,
        way: &Way,
        headers: &[u8],
        header: &[u8; record::ROUTING_HEADER],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Network(_) => unreachable!("the network has such headers of its own"),
            Self::Host(departure) => departure.add(way, headers, header, length, fill),
        }
    }

    /// Appends a packet of a queue pair whose payload the receiver fetches by itself: `locate` says where it lies, and that is lent. By a channel only.
    pub(crate) fn refer<E>(
        &mut self,
        queues: &Queues,
        way: &Way,
        headers: &[u8],
        length: usize,
        locate: impl FnOnce(&mut dyn FnMut(Span<'_>)) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Network(_) => unreachable!("nothing is fetched over a network"),
            Self::Host(departure) => {
                if watch::packets() {
                    observer::sent_within(&way.route, headers, &[], length);
                }
                departure.refer(queues, headers, length, locate)
            }
        }
    }
}

impl Departure<'_> {
    #[inline]
    fn add<E>(
        &mut self,
        way: &Way,
        headers: &[u8],
        before: &[u8],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Tx { producer, outgoing } = &mut *self.tx;
        // What the other process may change at any time is no slice: so there is one more copy, in the cache.
        let payload = &mut outgoing[..length];
        if length > 0 {
            fill(payload)?;
        }
        if watch::packets() {
            observer::sent_within(&way.route, headers, payload, 0);
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
        let mut lent = ArrayVec::<Lent, { record::MOST_PIECES }>::new();
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
