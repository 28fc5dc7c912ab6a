//! The packets that a channel ([`adverb_samehost::Channel`]) carries: those of all connections between two
//! processes of this host.

use super::delivery::{Delivery, reach_straight};
use super::record::{self, Lease, Parts as Carried, RecordCopy};
use crate::endpoint::Endpoint;
use crate::net::Net;
use crate::rx_burst::RxBurst;
use crate::time;
use adverb_core::counters::Counters;
use adverb_core::engine::Engine;
use adverb_core::error::Result;
use adverb_core::memory::{Claim, Source};
use adverb_core::seqpacket::Connection;
use adverb_local::Consumer;
use adverb_samehost::{Intake, LastRegion, LookupCache, Parts, Side, Traffic};
use adverb_wire::ib::packet::{self, Packet};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Records that are taken in at most before others get their turn.
const MOST_RECORDS_AT_ONCE: usize = 64;
/// Bytes that are fetched at most, and a packet more.
const MOST_FETCHED: usize = 256 << 10;

/// The channel by which two processes of one host send each other packets without the network.
pub(crate) type Channel = adverb_samehost::Channel<Packets>;

/// The traffic of RoCE in a channel ([`adverb_samehost::Channel`]): the packets of all connections between
/// two processes of this host.
pub(crate) struct Packets {
    net: Arc<Net>,
    /// Reliable connections that go by the channel.
    reliable: AtomicU32,
}

/// The state under the channel's receiving lock.
pub(crate) struct Incoming {
    burst: RxBurst,
    copied: RecordCopy,
    last_region: LastRegion,
    /// Queue pairs that packets were for.
    known: LookupCache<Arc<Endpoint>>,
}

impl Incoming {
    /// A new receiving side. A function by itself, as it is large before it is on the heap.
    #[inline(never)]
    fn new(counts_alone: bool) -> Box<Self> {
        Box::new(Self {
            burst: RxBurst::counting(counts_alone),
            copied: RecordCopy::new(),
            last_region: LastRegion::default(),
            known: LookupCache::default(),
        })
    }
}

impl Packets {
    /// A channel, watched by the background thread from now on.
    pub(super) fn open(net: &Arc<Net>, parts: Parts) -> Result<Arc<Channel>> {
        let packets = Self { net: net.clone(), reliable: AtomicU32::new(0) };
        let counts_alone = net.local.counts_alone();
        let incoming = Incoming::new(counts_alone);
        let scratch = vec![0; record::LONGEST_HERE].into();
        Channel::new(packets, (scratch, incoming), parts, counts_alone)
    }

    /// One more reliable connection goes by the channel, or (`false`) one fewer.
    pub(crate) fn count_reliable(&self, more: bool) {
        if more {
            self.reliable.fetch_add(1, Ordering::Relaxed);
        } else {
            self.reliable.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl adverb_samehost::Sender for Endpoint {
    fn ring(&self) {
        Self::ring(self);
    }

    fn this(&self) -> Arc<Self> {
        Self::this(self)
    }
}

impl Traffic for Packets {
    type Sender = Endpoint;
    /// Payload on its way into the channel.
    type Outgoing = Box<[u8]>;
    type Incoming = Incoming;
    type Rest = ();
    const LONGEST: usize = record::LONGEST;

    fn engine(&self) -> Result<&'static Engine> {
        self.net.engine()
    }

    fn counters(&self) -> &'static Counters {
        self.net.counters()
    }

    /// The address of the lane says where acknowledgements may be delayed.
    #[inline]
    fn take_in(channel: &Channel, consumer: &mut Consumer, incoming: &mut Incoming, lane: usize) -> Intake {
        let Self { net, reliable } = channel.traffic();
        let Incoming { burst, copied, last_region, known } = incoming;
        burst.polled = lane;
        let (mut taken, mut fetched, mut held) = (0, 0, false);
        let now = time::late();
        let has_gone = channel.has_gone();
        // A record may wait for its program only where the channel carries no reliable connection: the peer
        // of one waits for acknowledgements.
        let may_hold = !has_gone && reliable.load(Ordering::Relaxed) == 0;
        // Another program may be in the process of one that has gone.
        let process = (channel.neighbour.reads() && !has_gone).then_some(channel.neighbour.process());
        while taken < MOST_RECORDS_AT_ONCE && fetched < MOST_FETCHED {
            match consumer.peek() {
                Ok(None) => break,
                Err(_) => {
                    channel.break_off();
                    break;
                }
                Ok(Some(record)) => {
                    if let Some((straight, _)) = record::take_straight(&record) {
                        let number = straight.destination;
                        let Some(endpoint) = known.find(net.changes(), number, || net.endpoint(number))
                        else {
                            net.counters().unknown.add(1);
                            record.consume();
                            taken += 1;
                            continue;
                        };
                        match reach_straight(
                            endpoint,
                            channel,
                            record,
                            MOST_RECORDS_AT_ONCE - taken,
                            now,
                            burst,
                        ) {
                            0 => {
                                held = true;
                                break;
                            }
                            count => taken += count,
                        }
                        continue;
                    }
                    let lease = Lease::new(&record);
                    if let Some(Carried { head, payload, source }) =
                        copied.parse(&lease, process, |key| last_region.find(&channel.neighbour, key))
                        && let Some(number) = packet::destination(head)
                        && let Ok(packet) = Packet::assemble(head, payload)
                    {
                        // Found with no lock that others wait for: the kernel may copy, and wait for a page.
                        match known.find(net.changes(), number, || net.endpoint(number)) {
                            Some(endpoint) if may_hold && endpoint.behind.holds(endpoint, &packet, now) => {
                                held = true;
                                break;
                            }
                            Some(endpoint) => {
                                let came = Delivery { channel, elsewhere: &source, acknowledged: None };
                                if !came.reach(endpoint, &packet, now, burst) {
                                    held = true;
                                    break;
                                }
                                if matches!(source, Source::Process { .. }) {
                                    fetched += source.len();
                                }
                            }
                            None => net.counters().unknown.add(1),
                        }
                    } else {
                        net.counters().damaged.add(1);
                    }
                    if lease.was_mapped() {
                        net.counters().rx_mapped.add(1);
                    }
                    lease.end();
                    drop(lease);
                    record.consume();
                    taken += 1;
                }
            }
        }
        burst.count_all();
        let one_sided = std::mem::take(&mut burst.one_sided);
        Intake { worked: taken > 0, one_sided, long: fetched >= MOST_FETCHED, held }
    }

    #[inline]
    fn settle(&self, incoming: &mut Incoming) {
        for endpoint in incoming.burst.ready.drain(..) {
            endpoint.ring();
        }
    }

    #[inline]
    fn finish(&self, (): ()) {}

    /// A poll has taken it in, and an answer may be pending.
    fn found_nothing(&self) {
        self.net.all_lanes().for_each(|lane| lane.acknowledge_soon());
    }

    fn abandoned(&self) {
        self.net.all_lanes().for_each(|lane| lane.settle());
    }

    fn tell(&self, connection: &Connection, descriptors: &[RawFd]) -> io::Result<()> {
        self.net.local.hub.handshakes.tell(connection, descriptors)
    }

    fn ended(channel: &Channel, _: bool) {
        let net = &channel.traffic().net;
        net.forget(channel);
        net.all_lanes().for_each(|lane| lane.forget_channels());
    }

    fn forget(&self, incoming: &mut Incoming) {
        incoming.last_region.forget();
    }

    fn failed(channel: &Channel) {
        // Not with the table's lock: this waits for those of queue pairs.
        let all: Vec<Arc<Endpoint>> = channel.traffic().net.endpoints().values().cloned().collect();
        all.iter().filter(|endpoint| endpoint.beside.goes_by(channel)).for_each(|endpoint| endpoint.ring());
    }
}
