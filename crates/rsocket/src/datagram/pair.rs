//! The queue pairs of a datagram socket, one for each address of this host that it uses, and the peers that
//! it knows.

use super::peers::Peer;
use super::{Datagram, DatagramState};
use crate::options::Options;
use crate::process::Process;
use crate::stream::queue_pair;
use crate::wait::in_turn;
use adverb_core::attributes::gid_of;
use adverb_core::cm::{EventChannel, Identifier, PortSpace, path_to, source_for};
use adverb_core::cq::{CompletionChannel, CompletionQueue};
use adverb_core::error::{Error, PostError, Result};
use adverb_core::memory::Access;
use adverb_core::qp::{Capabilities, QueuePair, Service};
use adverb_core::region::Pages;
use adverb_core::request::{Completion, ReceiveRequest, Sge, Status};
use adverb_proto::rsocket::{MAX_SOURCE, read_source, write_source};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes for one datagram, with what stands in front of it.
pub(super) const SLOT: usize = 2048;
/// What InfiniBand puts before a datagram that is received.
const GRH: usize = 40;
/// Addresses of this host that one socket uses at most.
const MAX_PAIRS: usize = 16;

/// Tells completions of receives from those of sends.
const RECEIVE: u64 = 1 << 63;

/// Slots of each queue pair.
#[derive(Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) sends: u16,
    pub(super) receives: u16,
}

impl Sizes {
    /// As many as queues and buffers both have; afterwards the options say so.
    pub(super) fn of(options: &mut Options) -> Self {
        let slots =
            |requests: u16, buffer: u32| requests.min((buffer / SLOT as u32).min(0xfffe) as u16).max(1);
        let sizes = Self {
            sends: slots(options.send_requests, options.send_buffer),
            receives: slots(options.receive_requests, options.receive_buffer),
        };
        (options.send_requests, options.receive_requests) = (sizes.sends, sizes.receives);
        options.send_buffer = u32::from(sizes.sends) * SLOT as u32;
        options.receive_buffer = u32::from(sizes.receives) * SLOT as u32;
        sizes
    }

    fn total(self) -> u32 {
        u32::from(self.sends) + u32::from(self.receives)
    }
}

/// Where all queue pairs of a socket complete.
pub(super) struct Queue {
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) events: Arc<CompletionChannel>,
    /// Slots to send from that are free.
    pub(super) free: Vec<u16>,
}

/// A queue pair at an address.
pub(super) struct Pair {
    pub(super) address: SocketAddr,
    identifier: Arc<Identifier>,
    pub(super) queue_pair: Arc<QueuePair>,
    pub(super) send: Arc<Pages>,
    pub(super) receive: Arc<Pages>,
    /// What stands in front of every datagram from here.
    pub(super) head: ([u8; MAX_SOURCE], usize),
    /// The most bytes of a datagram with that.
    pub(super) most: usize,
    receives: u16,
}

/// A datagram that nobody has read.
pub(super) enum ArrivedDatagram {
    /// In a slot of a queue pair.
    Slot {
        pair: usize,
        slot: u16,
        source: SocketAddr,
        /// Where the data is in the slot, and how many bytes.
        start: usize,
        length: usize,
    },
    /// By UDP.
    Udp { source: SocketAddr, data: Vec<u8> },
}

impl Datagram {
    /// What is known of the peer at `address`, with which there is something to do; makes the queue pair that
    /// reaches it.
    pub(super) fn peer<'a>(&self, inner: &'a mut DatagramState, address: SocketAddr) -> Result<&'a mut Peer> {
        if inner.peers.get(&address).is_none() {
            let mut bound = self.local_address()?;
            if bound.port() == 0 {
                self.bind_udp(bound)?;
                bound = self.local_address()?;
            }
            let local = source_for(Some(bound), address)?;
            let pair = inner.pair(local, address)?;
            return Ok(inner.peers.add(address, pair));
        }
        let met = inner.peers.meet(&address);
        met.ok_or_else(|| Error::invalid("a peer that is known has an entry"))
    }
}

impl DatagramState {
    /// The queue pair at an address of this host from which `peer` is reached.
    fn pair(&mut self, address: SocketAddr, peer: SocketAddr) -> Result<usize> {
        if let Some(place) = self.pairs.iter().position(|pair| pair.address == address) {
            return Ok(place);
        }
        if self.closed || self.pairs.len() >= MAX_PAIRS {
            return Err(Error::new(libc::ENOBUFS, format!("a socket uses {MAX_PAIRS} addresses at most")));
        }
        let place = self.pairs.len();
        let pair = Pair::new(address, peer, place, &self.options, self.sizes, &mut self.queue)?;
        self.pairs.push(pair);
        Ok(place)
    }

    /// The peer has told its queue pair.
    pub(super) fn found(&mut self, peer: SocketAddr, number: u32) -> Result<()> {
        let traffic_class = self.options.traffic_class();
        let Some(known) = self.peers.meet(&peer) else { return Ok(()) };
        if known.found.is_some_and(|(_, old)| old == number) {
            return Ok(());
        }
        let pair = &self.pairs[known.pair];
        let gids = pair.queue_pair.context().gids();
        let path = path_to(&gids, pair.address, gid_of(peer.ip()), traffic_class)?;
        known.found = Some((path, number));
        Ok(())
    }

    pub(super) fn can_send(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| !queue.free.is_empty())
    }

    pub(super) fn all_sent(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.free.len() >= self.sizes.sends.into())
    }

    /// Takes in what has completed.
    pub(super) fn process(&mut self) {
        self.has_more = in_turn(|| self.take_in());
    }

    /// Takes in a part of what has completed. Whether there may be more.
    fn take_in(&mut self) -> bool {
        // The completions lie on the stack of a program's thread, which may be small.
        const BATCH: usize = 8;
        let Some(queue) = &self.queue else { return false };
        let mut found = [Completion::default(); BATCH];
        let mut count = 0;
        let polled = queue.completions.poll(BATCH, |completion| {
            found[count] = *completion;
            count += 1;
        });
        for completion in &found[..count] {
            if completion.wr_id & RECEIVE == 0 {
                let slot = completion.wr_id as u16;
                if let Some(queue) = &mut self.queue {
                    queue.free.push(slot);
                }
            } else {
                self.received(completion);
            }
        }
        polled.is_ok() && count == BATCH
    }

    fn received(&mut self, completion: &Completion) {
        let (place, slot) = ((completion.wr_id >> 32 & 0xff) as usize, completion.wr_id as u16);
        let Some(pair) = self.pairs.get(place) else { return };
        if completion.status != Status::Success {
            // The queue pair is in error: it would be flushed again and again.
            self.has_failed = true;
            return;
        }
        let length = (completion.byte_length as usize).saturating_sub(GRH).min(SLOT);
        let start = usize::from(slot) * SLOT;
        let mut head = [0; MAX_SOURCE];
        let seen = length.min(MAX_SOURCE);
        pair.receive.read(start, &mut head[..seen]);
        let source = read_source(&head[..seen]);
        // What does not fit is dropped, as with UDP.
        match source.filter(|_| self.arrived.len() < self.sizes.receives.into()) {
            Some(source) => self.arrived.push_back(ArrivedDatagram::Slot {
                pair: place,
                slot,
                source: source.address,
                start: start + source.length,
                length: length - source.length,
            }),
            None => drop(pair.post_receives(place, [slot].into_iter())),
        }
    }
}

impl Pair {
    fn new(
        address: SocketAddr,
        peer: SocketAddr,
        place: usize,
        options: &Options,
        sizes: Sizes,
        queue: &mut Option<Queue>,
    ) -> Result<Self> {
        let channel = EventChannel::new()?;
        let identifier = Identifier::new(Some(&channel), PortSpace::Udp)?;
        identifier.bind(address)?;
        if identifier.device().is_none() {
            // A loopback address is everywhere: what counts is the way to the peer.
            identifier.resolve_address(None, peer, Duration::from_secs(1))?;
        }
        let device = identifier.device().ok_or_else(|| Error::invalid("the address fixes no device"))?;
        let domain = Process::get().domain(&device)?;
        let made = match queue {
            Some(queue) => {
                queue.completions.resize(sizes.total() * (place as u32 + 1))?;
                None
            }
            None => {
                let events = CompletionChannel::new(domain.context())?;
                // SAFETY: fcntl(2) on a descriptor that `events` holds; plain numbers.
                unsafe { libc::fcntl(events.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
                let completions =
                    CompletionQueue::new(domain.context(), sizes.total(), Some(events.clone()))?;
                Some(Queue { completions, events, free: (0..sizes.sends).collect() })
            }
        };
        let Some(used) = made.as_ref().or(queue.as_ref()) else {
            return Err(Error::invalid("the socket has no completion queue"));
        };
        let capabilities = Capabilities {
            max_send_wr: sizes.sends.into(),
            max_recv_wr: sizes.receives.into(),
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: u32::from(options.inline).min(domain.context().attributes().max_inline_data),
        };
        let queue_pair = queue_pair(&domain, &used.completions, capabilities, Service::Ud)?;
        identifier.attach_queue_pair(&queue_pair)?;
        let mtu = device.transport().connections().path_mtu(address.ip()).unwrap_or(SLOT as u32);
        let mut head = [0; MAX_SOURCE];
        let head_length = write_source(address, &mut head);
        let pair = Self {
            address,
            identifier,
            queue_pair,
            send: Pages::new(&domain, usize::from(sizes.sends) * SLOT, Access::empty())?,
            receive: Pages::new(&domain, usize::from(sizes.receives) * SLOT + GRH, Access::LOCAL_WRITE)?,
            head: (head, head_length),
            most: SLOT.min(mtu as usize),
            receives: sizes.receives,
        };
        pair.post_receives(place, 0..sizes.receives)?;
        if let Some(made) = made {
            *queue = Some(made);
        }
        Ok(pair)
    }

    /// Posts slots for datagrams. The headers of InfiniBand all go to one place, where nobody looks.
    pub(super) fn post_receives(&self, place: usize, slots: impl Iterator<Item = u16>) -> Result<()> {
        let base = self.receive.start().as_ptr() as u64;
        let lkey = self.receive.key();
        let grh = Sge { address: base + u64::from(self.receives) * SLOT as u64, length: GRH as u32, lkey };
        self.queue_pair.post_receives(|batch| {
            for slot in slots {
                let address = base + u64::from(slot) * SLOT as u64;
                let sges = [grh, Sge { address, length: SLOT as u32, lkey }];
                let wr_id = RECEIVE | (place as u64) << 32 | u64::from(slot);
                batch.push(&ReceiveRequest { wr_id, sges: &sges })?;
            }
            Ok::<(), PostError>(())
        })?;
        Ok(())
    }

    pub(super) fn end(self) {
        self.identifier.detach_queue_pair();
        self.queue_pair.destroy();
        self.identifier.destroy();
    }
}
