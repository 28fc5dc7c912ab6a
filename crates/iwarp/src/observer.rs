//! Each segment, for those that want to see it: the log (`ADVERB_LOG=packets`), and a watcher (a trace). A
//! capture (`ADVERB_PCAP`) has the bytes of the stream, from [`crate::socket`]. A connection that begins asks
//! [`adverb_core::watch::packets`] once; nothing here is on the fast path.
//!
//! Both ends know a segment by its offset in the stream, and a message through shared memory by how many such
//! messages came before it.

use crate::endpoint::Endpoint;
use crate::local::record::RecordHead;
use crate::lock;
use crate::socket::Socket;
use adverb_core::watch::{self, Answers, Flow, Packet, RequestStart, Stream};
use adverb_core::wire::{Direction, Kind};
use adverb_core::{clock, log};
use adverb_proto::iwarp::{Arrival, Outbound, Segment, Terminate};
use adverb_wire::ddp::{Control, TAGGED_LEN, UNTAGGED_LEN, Untagged};
use adverb_wire::mpa::{LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN};
use adverb_wire::rdmap::Opcode;
use adverb_wire::zerocopy::FromBytes;
use arrayvec::ArrayVec;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The kind of a segment, by the operation in its header.
pub(crate) fn kind(opcode: Opcode) -> Kind {
    match opcode {
        Opcode::Write => Kind::Write,
        Opcode::ReadRequest => Kind::Read,
        Opcode::ReadResponse => Kind::ReadResponse,
        Opcode::AtomicRequest => Kind::Atomic,
        Opcode::AtomicResponse => Kind::AtomicResponse,
        Opcode::Immediate | Opcode::ImmediateSolicited => Kind::Immediate,
        Opcode::Terminate => Kind::Terminate,
        Opcode::Send | Opcode::SendInvalidate | Opcode::SendSolicited | Opcode::SendSolicitedInvalidate => {
            Kind::Send
        }
    }
}

/// The segment that a header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    opcode: Opcode,
    /// Segments of tagged messages do not say whether they are the first.
    begins: Option<bool>,
    ends: bool,
    takes_receive: bool,
    /// Bytes of the program.
    length: u32,
}

impl Head {
    /// The head of a frame, whose header begins with these bytes at this offset of a stream. `None` if they
    /// are no header of ours.
    fn parse(bytes: &[u8], offset: u64, has_markers: bool) -> Option<Self> {
        // Markers stand at multiples of their interval, wherever that is in a frame.
        let is_marker = |at: u64| has_markers && at % (MARKER_INTERVAL as u64) < MARKER_LEN as u64;
        let head: ArrayVec<u8, { LENGTH_LEN + UNTAGGED_LEN }> = bytes
            .iter()
            .zip(offset..)
            .filter_map(|(byte, at)| (!is_marker(at)).then_some(*byte))
            .take(LENGTH_LEN + UNTAGGED_LEN)
            .collect();
        let (length, ulpdu) = head.split_first_chunk::<LENGTH_LEN>()?;
        let length = u32::from(u16::from_be_bytes(*length));
        let (control, _) = Control::ref_from_prefix(ulpdu).ok()?;
        let (opcode, ends) = (Opcode::from_u8(control.opcode())?, control.last());
        if control.tagged() {
            let length = length.saturating_sub(TAGGED_LEN as u32);
            return Some(Self { opcode, begins: None, ends, takes_receive: false, length });
        }
        let (header, _) = Untagged::ref_from_prefix(ulpdu).ok()?;
        let kind = kind(opcode);
        // Other messages are all header.
        let length = if kind == Kind::Send { length.saturating_sub(UNTAGGED_LEN as u32) } else { 0 };
        let takes_receive = ends && matches!(kind, Kind::Send | Kind::Immediate);
        Some(Self { opcode, begins: Some(header.mo.get() == 0), ends, takes_receive, length })
    }

    /// The head of a segment that has come.
    fn of(arrival: &Arrival) -> Self {
        let (begins, ends) = match arrival.segment {
            Segment::Write { last, .. } | Segment::ReadResponse { last, .. } => (None, last),
            Segment::Send { first, last, .. } => (Some(first), last),
            _ => (Some(true), true),
        };
        let takes_receive =
            matches!(arrival.segment, Segment::Send { last: true, .. } | Segment::Immediate { .. });
        let (opcode, length) = (arrival.segment.opcode(), arrival.payload_len as u32);
        Self { opcode, begins, ends, takes_receive, length }
    }
}

/// One direction of a connection, whose segments the log or a watcher sees.
pub(crate) struct StreamObserver {
    direction: Direction,
    stream: Stream,
    has_markers: bool,
    /// A tagged message has begun and not ended.
    is_open: bool,
}

fn address(of: Option<SocketAddr>) -> SocketAddr {
    let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    // Without the parts of an address that mean something at one end alone.
    of.map_or(nobody, |of| SocketAddr::new(of.ip().to_canonical(), of.port()))
}

impl StreamObserver {
    /// The observer of one direction of a connection that begins; None if neither the log nor a watcher wants
    /// to see packets.
    pub(crate) fn of(socket: &Socket, direction: Direction, has_markers: bool) -> Option<Box<Self>> {
        watch::packets().then(|| {
            let (local, peer) = (address(socket.local()), address(socket.peer()));
            let stream = match direction {
                Direction::Out => Stream { from: local, to: peer },
                Direction::In => Stream { from: peer, to: local },
            };
            Box::new(Self { direction, stream, has_markers, is_open: false })
        })
    }

    /// The time at which bytes that are handed to the system from now on leave.
    pub(crate) fn now(&self) -> u64 {
        clock::device()
    }

    /// A message is about to be cut into segments.
    #[cold]
    pub(crate) fn begins(&self, endpoint: &Endpoint, message: &Outbound) {
        log!(Packets, "queue pair {:#x} -> {message}", endpoint.queues.number);
    }

    /// The request at this place of its queue begins with the segment at this offset.
    #[cold]
    pub(crate) fn request_begins(&self, endpoint: &Endpoint, place: u64, offset: u64) {
        begun(endpoint, place, Flow::Stream(self.stream), offset);
    }

    /// The frame at this offset, which begins with these bytes, has left since this time.
    #[cold]
    pub(crate) fn left(&mut self, endpoint: &Endpoint, time: u64, offset: u64, bytes: &[u8]) {
        if let Some(head) = Head::parse(bytes, offset, self.has_markers) {
            self.show(endpoint, time, Flow::Stream(self.stream), offset, &head, Answers::Nothing);
        }
    }

    /// The last message of a stream leaves.
    #[cold]
    pub(crate) fn terminates(
        &mut self,
        endpoint: &Endpoint,
        terminate: &Terminate,
        offset: u64,
        bytes: &[u8],
    ) {
        self.begins(endpoint, &Outbound::Terminate(*terminate));
        self.left(endpoint, self.now(), offset, bytes);
    }

    /// A segment has come: its header.
    #[cold]
    pub(crate) fn came(&mut self, endpoint: &Endpoint, arrival: &Arrival, offset: u64) {
        let Arrival { segment, payload_len, .. } = arrival;
        log!(Packets, "queue pair {:#x} <- {segment}, {payload_len} bytes", endpoint.queues.number);
        let answered = match segment {
            Segment::ReadResponse { last: true, .. } | Segment::AtomicResponse { .. } => {
                lock(&endpoint.reads).front().and_then(|sink| sink.sequence)
            }
            _ => None,
        };
        let answers = answered.map_or(Answers::Nothing, Answers::Place);
        let (flow, time) = (Flow::Stream(self.stream), self.now());
        self.show(endpoint, time, flow, offset, &Head::of(arrival), answers);
    }

    /// A message is about to leave through shared memory; `count` others have before. It is the request at
    /// this place.
    #[cold]
    pub(crate) fn leaves_by_channel(
        &mut self,
        endpoint: &Endpoint,
        said: &RecordHead,
        place: u64,
        count: u64,
    ) {
        begun(endpoint, place, Flow::Beside(self.stream), count);
        self.passes_by_channel(endpoint, said, count);
    }

    /// A message has come through shared memory, or is about to leave.
    #[cold]
    pub(crate) fn passes_by_channel(&mut self, endpoint: &Endpoint, said: &RecordHead, count: u64) {
        let (arrival, number) = (said.arrival(), endpoint.queues.number);
        let arrow = if self.direction == Direction::Out { "->" } else { "<-" };
        let (segment, length) = (arrival.segment, said.length);
        log!(Packets, "queue pair {number:#x} {arrow} {segment}, {length} bytes through shared memory");
        let (flow, time) = (Flow::Beside(self.stream), self.now());
        self.show(endpoint, time, flow, count, &Head::of(&arrival), Answers::Nothing);
    }

    /// Tells the watcher, if there is one.
    fn show(
        &mut self,
        endpoint: &Endpoint,
        time: u64,
        flow: Flow,
        number: u64,
        head: &Head,
        answers: Answers,
    ) {
        // Nothing of another message comes in the middle of a tagged one.
        let begins = head.begins.unwrap_or(!self.is_open);
        if head.begins.is_none() {
            self.is_open = !head.ends;
        }
        let Some(watcher) = watch::watcher() else { return };
        let peer = if self.direction == Direction::Out { self.stream.to } else { self.stream.from };
        let packet = Packet {
            direction: self.direction,
            peer: peer.ip(),
            kind: kind(head.opcode),
            begins,
            ends: head.ends,
            takes_receive: head.takes_receive,
            source: None,
            queue_pair: Some(endpoint.queues.number),
            flow,
            number,
            answers,
            length: head.length,
            is_within: matches!(flow, Flow::Beside(_)),
        };
        watcher.packet(time, &packet);
    }
}

fn begun(endpoint: &Endpoint, place: u64, flow: Flow, number: u64) {
    if let Some(watcher) = watch::watcher() {
        watcher.begun(&RequestStart { queue_pair: endpoint.queues.number, place, flow, number });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_proto::iwarp::mpa::Parameters;
    use adverb_proto::iwarp::{ReadRequest, Receiver, Sender, Step};

    fn parameters(crc: bool, markers: bool) -> Parameters {
        Parameters {
            initiator: true,
            revision: 2,
            crc,
            markers_tx: markers,
            markers_rx: markers,
            ird: None,
            ord: None,
            rtr: None,
            large_fpdu: false,
            extensions: true,
        }
    }

    /// A frame is shown in the same way where it leaves and where it comes: the same offset, kind, length and
    /// end, in every kind of stream.
    #[test]
    fn both_ends_say_the_same_of_a_segment() {
        let read = ReadRequest { sink_stag: 1, sink_to: 2, len: 3, source_stag: 4, source_to: 5 };
        let messages = [
            Outbound::Send { len: 0, invalidate: None, solicited: false },
            Outbound::Write { stag: 1, to: 2, len: 3000 },
            Outbound::Immediate { data: [0; 8], solicited: true },
            Outbound::Send { len: 2999, invalidate: Some(1), solicited: true },
            Outbound::ReadRequest(read),
            Outbound::ReadResponse { sink_stag: 1, sink_to: 2, len: 1001 },
            Outbound::Terminate(Terminate::local(adverb_proto::iwarp::Fault::Crc)),
        ];
        for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
            let parameters = parameters(crc, markers);
            let mut sender = Sender::new(&parameters, 1000);
            let (mut stream, mut sent, mut parts) = (Vec::new(), Vec::new(), 0);
            for message in messages {
                sender.begin(message).unwrap();
                while let Some(fpdu) = sender.next_fpdu() {
                    let offset = stream.len();
                    sender.seal(&fpdu, &vec![0xee; fpdu.payload_len()], &mut stream);
                    let head = Head::parse(&stream[offset..], offset as u64, sender.has_markers());
                    sent.push((offset, head.unwrap()));
                    parts += u32::from(!fpdu.is_last());
                }
            }
            assert!(parts > 5, "messages have several segments");
            let mut receiver = Receiver::new(&parameters);
            let (mut came, mut at) = (Vec::new(), 0);
            while at < stream.len() {
                let window = &mut stream[at..];
                let step = if crc || markers { receiver.next_checked(window) } else { receiver.next(window) };
                let Ok(Step::Segment(arrival)) = step else { panic!("{step:?}") };
                came.push((at, Head::of(&arrival)));
                at += arrival.head_len + arrival.payload_len + arrival.trailer_len;
            }
            assert_eq!(sent, came, "CRC {crc}, markers {markers}");
        }
    }

    #[test]
    fn bytes_that_are_no_header_are_no_segment() {
        for bytes in [&[][..], &[0; 3], &[0, 20, 0x41, 0x4f], &[0xff; 20], &[0, 20, 0x41, 0x43, 0, 0]] {
            assert_eq!(Head::parse(bytes, 0, false), None, "{bytes:x?}");
        }
        // All of it may be a marker.
        assert_eq!(Head::parse(&[0x41; 4], 512, true), None);
    }
}
