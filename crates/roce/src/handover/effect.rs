//! Messages that other processes hand over to this one, and their effect on its queue pairs, their memory,
//! and its tables.

use super::*;
use crate::endpoint::Endpoint;
use crate::lock;
use crate::net::{Feed, Net};
use crate::seqpacket::Connection;
use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Shape, Side, path};
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::reactor::{READABLE, Source};
use adverb_core::request::Status;
use adverb_local::{Doorbell, Segment};
use adverb_proto::ib::{DatagramHeader, write_datagram};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, ICRC_LEN, MAX_HEADER, Reth, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::mad::{Header, MAD_LEN, Mad, Vendor, class, method};
use adverb_wire::ib::opcode::{Opcode, Operation, Service as WireService};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Receives that are posted at once at most; bytes of each, with the routing header in front.
const SLOTS: usize = 8;
const SLOT: usize = 128;
const GRH: usize = 40;
/// The registered memory, and the part in its middle that a peer may write to.
const ARENA: usize = 4096;
const WRITABLE: std::ops::Range<usize> = 2048..2560;

/// The peer of the reliable connection: an address of the loopback that no process has.
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PEER_NUMBER: u32 = 0x00_1234;
const PSN: u32 = 77;
const TEST_TIMEOUT: Duration = Duration::from_secs(9);

/// A process with two queue pairs: one for datagrams, and one whose peer does not live.
struct Process {
    net: Arc<Net>,
    datagrams: Side,
    connected: Side,
    memory: Memory,
    writable: Memory,
}

impl Process {
    fn new() -> Self {
        let install = || adverb_core::engine::install(&[crate::FACTORY]);
        let site = Site::new(install, "roce0", "127.0.0.1").by_attributes();
        let home = Home::new(&site);
        let shape = || Shape { receives: SLOTS as u32, ..Shape::default() };
        let datagrams = Side::unconnected(&home, shape(), Service::Ud);
        datagrams.begin();
        let connected = Side::unconnected(&home, shape(), Service::Rc);
        connected.begin();
        let attributes = Attributes {
            path: path(&home.context, site.address),
            path_mtu: 1024,
            destination: PEER_NUMBER,
            rq_psn: PSN,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..Attributes::default()
        };
        let peer = Attributes {
            path: adverb_core::qp::Path {
                gid: adverb_core::attributes::gid_of(PEER.into()),
                ..attributes.path
            },
            ..attributes
        };
        let mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        connected.to(State::Rtr, mask, &peer);
        let endpoint = |side: &Side| side.queue_pair.endpoint().clone().as_any().downcast::<Endpoint>();
        let net = endpoint(&datagrams).expect("it is of this transport").net.clone();
        let memory = Memory::new(&home.domain, ARENA, Access::LOCAL_WRITE);
        let writable = Memory::new(&home.domain, ARENA, Access::LOCAL_WRITE | Access::REMOTE);
        Self { net, datagrams, connected, memory, writable }
    }
}

/// A connection by which another process has come.
struct Other {
    feed: Arc<Feed>,
    here: Arc<Connection>,
    there: Connection,
}

impl Other {
    fn new(net: &Arc<Net>, trusted: bool) -> Self {
        let [here, there] = Connection::pair().expect("two sockets");
        let here = Arc::new(here);
        Self { feed: Feed::of(net, here.clone(), trusted), here, there }
    }

    /// The other process says something, which this process takes in.
    fn says(&self, message: &[u8], descriptors: &[&OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(|it| it.as_raw_fd()).collect();
        self.there.send_with(&[message], &descriptors).expect("there is room");
        self.feed.clone().ready(READABLE);
    }

    fn hears(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 512];
        self.there.receive(&mut buffer).ok().map(<[u8]>::to_vec)
    }
}

fn opcode(service: WireService, operation: Operation) -> Opcode {
    Opcode::new(service, operation).expect("there is such a packet")
}

/// The CRC of packets with the addresses of this one.
fn crc_of(arrival: &Arrival<'_>) -> FlowCrc {
    FlowCrc::new(&Flow {
        source: arrival.source,
        destination: arrival.local,
        source_port: arrival.source_port,
        destination_port: arrival.local_port,
    })
}

/// A packet with its CRC.
fn sealed(headers: &[u8], payload: &[u8], arrival: &Arrival<'_>) -> Vec<u8> {
    let mut packet = [headers, payload, &[0; 3][..padding(payload.len())]].concat();
    let mut crc = crc_of(arrival).seed(0, packet.len() + ICRC_LEN);
    crc.begin(&packet);
    packet.extend_from_slice(&crc.finish().to_le_bytes());
    packet
}

/// Messages of two processes, of which one is of our user.
pub(crate) fn try_effect(bytes: &[u8]) {
    static PROCESS: OnceLock<Mutex<Process>> = OnceLock::new();
    let process = lock(PROCESS.get_or_init(|| Mutex::new(Process::new())));
    let Process { net, datagrams, connected, memory, writable } = &*process;
    let connections = net.other_users.count();
    let own: Vec<u32> = sorted(net);
    let number = datagrams.queue_pair.number();
    let mut others = [true, false].map(|trusted| Other::new(net, trusted));
    // The expected contents of memory, and the receives that wait.
    let mut expected = memory.fill(5);
    let untouched = writable.fill(6);
    let mut receives: VecDeque<(u64, usize)> = VecDeque::new();
    let mut posted = 0;
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for step in bytes.as_chunks::<8>().0 {
        let [choice, who, wrong, length, word @ ..] = *step;
        let word = u32::from_le_bytes(word);
        let trusted = who & 7 != 7;
        let other = &others[usize::from(!trusted)];
        // Answers go there: nothing leaves this host.
        let source = IpAddr::from([127, 0, 0, 3 + (who >> 3)]);
        let mut arrival = Arrival {
            source,
            source_port: 49_152,
            local,
            local_port: 4791,
            interface: 1,
            class: who,
            hops: 64,
            bytes: &[],
        };
        match choice & 15 {
            0..=2 => {
                if receives.len() < SLOTS {
                    let slot = receives.back().map_or(0, |(_, slot)| (slot + 1) % SLOTS);
                    datagrams.post_receive(posted, &[memory.sge(slot * SLOT, SLOT)]);
                    receives.push_back((posted, slot));
                    posted += 1;
                }
            }
            3..=6 => {
                let header = DatagramHeader {
                    destination: if wrong & 7 == 1 { number ^ 1 << (word % 12) } else { number },
                    source: word & 0xff_ffff,
                    qkey: adverb_core::conformance::fixture::QKEY ^ u32::from(wrong & 7 == 2),
                    pkey: DEFAULT_PKEY,
                    psn: 1,
                    solicited: false,
                    immediate: None,
                    length: length.into(),
                };
                let mut space = [0; MAX_HEADER];
                let headers = write_datagram(&header, &mut space);
                let payload = vec![wrong ^ choice; length.into()];
                let mut packet = sealed(&space[..headers], &payload, &arrival);
                if wrong & 7 == 3 {
                    // Behind the part of the headers that the CRC leaves out.
                    let at = headers + word as usize % (packet.len() - headers);
                    packet[at] ^= 1 << (word & 7);
                    // One change in 2^15 is not seen, because the receiver is not told the identification.
                    while crc_of(&arrival).verify(&packet) {
                        packet[at] = packet[at].wrapping_add(1);
                    }
                }
                if wrong & 7 == 4 {
                    arrival.local = Ipv4Addr::new(224, 0, 1, 1).into();
                }
                other.says(&[&head(HandoverKind::Packet, &arrival)[..], &packet].concat(), &[]);
                let is_right = trusted && !matches!(wrong & 7, 1..=4);
                let receive = if is_right { receives.pop_front() } else { None };
                let mut found = Vec::new();
                datagrams
                    .receives
                    .poll(4, |done| found.push((done.wr_id, done.status, done.byte_length)))
                    .unwrap();
                match receive {
                    Some((wr_id, slot)) => {
                        let (there, fits) = (GRH + payload.len(), GRH + payload.len() <= SLOT);
                        let status = if fits { Status::Success } else { Status::LocalLength };
                        assert_eq!(
                            found.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
                            [(wr_id, status)]
                        );
                        assert!(!fits || found[0].2 as usize == there);
                        let is = memory.bytes();
                        let place = slot * SLOT..(slot + 1) * SLOT;
                        // The header is the arrival's, also if the packet says something else. Bytes that do
                        // not fit stay where they are.
                        let filled = if fits { place.start + GRH..place.start + there } else { 0..0 };
                        assert!(is[filled.clone()].iter().all(|byte| payload.first() == Some(byte)));
                        let taken = if fits { place.start..filled.end.max(place.start + GRH) } else { place };
                        expected[taken.clone()].copy_from_slice(&is[taken]);
                    }
                    None => assert_eq!(found, []),
                }
            }
            7 | 8 => {
                // A write with the right key and number, which does not come from the peer, or not through a
                // process of our user.
                let from_peer = !trusted && wrong & 1 == 0;
                arrival.source = if from_peer { PEER.into() } else { source };
                let bth = Bth::new(
                    opcode(WireService::Rc, Operation::WriteOnly),
                    DEFAULT_PKEY,
                    connected.queue_pair.number(),
                    PSN,
                );
                let mut space = [0; MAX_HEADER];
                let to = writable.address(WRITABLE.start + usize::from(wrong));
                let reth = Reth::new(to, writable.region.key(), length.into());
                let headers =
                    HeaderWriter::new(&mut space).put(&bth.with_pad_for(length.into())).put(&reth).len();
                let packet = sealed(&space[..headers], &vec![0xff; length.into()], &arrival);
                other.says(&[&head(HandoverKind::Packet, &arrival)[..], &packet].concat(), &[]);
            }
            9 => {
                // Where does a queue pair live?
                let mut question = Vendor::new([0x02, 0xad, 0x7b], [0; _]);
                let about = if wrong & 1 == 0 { number } else { number ^ 1 << (word % 12) };
                question.data[..4].copy_from_slice(&about.to_be_bytes());
                let get = if wrong & 2 == 0 { method::GET } else { method::GET_RESPONSE };
                let mad = question.with_header(Header::new(0x3d, 1, get, word.into(), 1)).to_bytes();
                let kind = if wrong & 4 == 0 { HandoverKind::Locate } else { HandoverKind::Management };
                // The connected queue pair asks for its peer, and gives up at any time. Other entries stay.
                let known =
                    || [arrival.source, arrival.local].map(|address| net.locator.known(address, about));
                let before = known();
                other.says(&[&head(kind, &arrival)[..], &mad].concat(), &[]);
                assert_eq!(known(), before, "nobody has asked");
            }
            10 => {
                let mut mad = [0; MAD_LEN];
                let message = Header::new(
                    class::COMMUNICATION,
                    2,
                    method::SEND,
                    word.into(),
                    0x10 + u16::from(wrong % 11),
                );
                mad.copy_from_slice(&Mad { header: message, data: [length; _] }.to_bytes());
                other.says(&[&head(HandoverKind::Management, &arrival)[..], &mad].concat(), &[]);
            }
            11 | 12 => {
                // An offer of memory, a message that follows it, or anything else about a channel.
                let mut said = vec![1 + wrong % 7; 33];
                said[1..5].copy_from_slice(&word.to_ne_bytes());
                let message = [&head(HandoverKind::Channel, &arrival)[..], &said].concat();
                let offered = Segment::create().expect("memory").1;
                let bell = || {
                    Doorbell::new().expect("a doorbell").as_fd().try_clone_to_owned().expect("a descriptor")
                };
                let bells = [bell(), bell()];
                let descriptors = [&offered, &bells[0], &bells[1]];
                let before = net.local.sizes().1;
                other.says(&message, &descriptors[..usize::from(length & 3)]);
                let mut answer = other.hears();
                // The answer to an offer comes once a thread has looked at the other's memory.
                let begin = Instant::now();
                while answer.is_none() && net.local.sizes().1 > before {
                    assert!(begin.elapsed() < TEST_TIMEOUT, "no answer");
                    std::thread::yield_now();
                    answer = other.hears();
                }
                if !trusted && wrong % 7 == 0 {
                    let answer = answer.expect("an offer is answered");
                    assert_eq!(answer[HEAD], 5, "refused");
                }
            }
            13 => {
                // Anything. Messages to join or leave groups belong to `udp_port`.
                let mut message = head(HandoverKind::Packet, &arrival).to_vec();
                message[0] = match wrong {
                    3 | 4 => 0,
                    kind => kind,
                };
                message[1..4].copy_from_slice(&[word as u8; 3]);
                message.resize(HEAD + usize::from(length), word as u8);
                other.says(&message, &[]);
            }
            _ => {
                let hung_up = usize::from(!trusted);
                others[hung_up].feed.end(&others[hung_up].here);
                others[hung_up] = Other::new(net, trusted);
            }
        }
        while others.iter().any(|other| other.hears().is_some()) {}
        assert!(memory.bytes() == expected, "{choice} changed memory");
        assert!(writable.bytes() == untouched, "{choice} changed what only the peer may");
        assert_eq!(sorted(net), own, "queue pairs come and go by their program alone");
        assert_eq!(net.other_users.count(), connections + 1);
        let (verdicts, open, channels) = net.local.sizes();
        assert!(verdicts <= 1 && open <= 1 && channels <= 1, "{verdicts} {open} {channels}");
    }
    for other in &others {
        other.feed.end(&other.here);
    }
    drop(others);
    assert_eq!(net.other_users.count(), connections);
    // A channel ends with the connection that it came by.
    let limit = Instant::now() + TEST_TIMEOUT;
    while net.local.sizes().2 > 0 {
        assert!(Instant::now() < limit, "a channel is left");
        std::thread::yield_now();
    }
    assert_eq!(net.local.sizes().1, 0);
    net.local.hub.handshakes.forget_all();
    // The receives that are left come back.
    datagrams.to(State::Error, M::empty(), &Attributes::default());
    let mut left = 0;
    while left < receives.len() {
        left += datagrams.receives.poll(SLOTS, |done| assert_eq!(done.status, Status::Flushed)).unwrap();
        assert!(Instant::now() < limit, "{left} of {}", receives.len());
    }
    datagrams.to(State::Reset, M::empty(), &Attributes::default());
    datagrams.begin();
    assert_eq!(connected.queue_pair.state(), State::Rtr);
}

fn sorted(net: &Net) -> Vec<u32> {
    let mut numbers: Vec<u32> = net.endpoints().keys().copied().collect();
    numbers.sort_unstable();
    numbers
}
