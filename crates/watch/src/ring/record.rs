//! Records of a ring. All are words. Requests with their elements, and completions, are written as far as
//! they are shown; other arguments are tokens ([`crate::writer`]).

mod post;

use crate::calls::{CALLS, Call, Returns, Work};
use crate::decode;
use crate::format::TransportEvent;
use crate::requests::Queue;
use crate::writer::{Style, TokenContents, Writer};
use adverb_core::watch::{Answers, Flow, Packet, RequestStart, Stream};
use adverb_core::wire::{Direction, Kind as PacketKind};
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{Answer, PolledCompletion, PostedRequest, Role};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::layout::word;
use post::read_post;
pub(crate) use post::{PostEnd, PostHead, begin_post, end_post, write_receive, write_send};

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Call = 1,
    Sends,
    Receives,
    Completions,
    /// Polls that found nothing.
    Run,
    Packet,
    RequestStart,
}

impl RecordKind {
    const ALL: [Self; 7] = [
        Self::Call,
        Self::Sends,
        Self::Receives,
        Self::Completions,
        Self::Run,
        Self::Packet,
        Self::RequestStart,
    ];
}

/// Appends words. The first one, which says what the record is, is complete at its end.
pub(crate) struct Words<'a> {
    bytes: &'a mut Vec<u8>,
    first: u64,
}

impl<'a> Words<'a> {
    pub(crate) fn begin(bytes: &'a mut Vec<u8>, kind: RecordKind, index: usize) -> Self {
        bytes.clear();
        bytes.extend_from_slice(&[0; 8]);
        Self { bytes, first: kind as u64 | (index as u64 & 0xffff) << 8 }
    }

    pub(crate) fn word(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn pair(&mut self, low: u32, high: u32) -> &mut Self {
        self.word(u64::from(low) | u64::from(high) << 32)
    }

    /// Bytes of a value of C.
    pub(crate) fn copy<T: Copy>(&mut self, value: &T) -> &mut Self {
        let length = size_of::<T>();
        // SAFETY: a value that lives, of plain words without padding between them that would matter: padding
        // is shown nowhere.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), length) };
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The record is complete.
    pub(crate) fn end(self) {
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
        Self::set_first(self.bytes, self.first);
    }

    /// Writes the first word of a whole record: what it is, and its length.
    fn set_first(bytes: &mut [u8], what: u64) {
        let first = what | (bytes.len() as u64) << 32;
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
    }
}

/// What stands in a record of a call.
pub(crate) struct CallRecord<'a> {
    pub(crate) index: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) answer: Answer,
    pub(crate) times: u64,
    pub(crate) fault: Option<u64>,
    pub(crate) queue: Option<Queue>,
    pub(crate) place: Option<u64>,
    pub(crate) posted: Vec<PostedRequest>,
    /// Of posts that failed: so many requests were posted.
    pub(crate) taken: usize,
    pub(crate) completed: Vec<PolledCompletion>,
    /// Requests of builders, and a completion under the cursor, are shown beside the arguments.
    pub(crate) shows_work: bool,
    arguments: CallContents<'a>,
    /// What the call returned, as tokens; of calls that return a number, nothing.
    pub(crate) result: &'a [u8],
}

enum CallContents<'a> {
    Tokens(&'a [u8]),
    Sends { queue: u32, requests: Vec<ibv_send_wr>, _elements: Vec<ibv_sge>, bad: usize },
    Receives { queue: u32, requests: Vec<ibv_recv_wr>, _elements: Vec<ibv_sge>, bad: usize },
    Poll { queue: u32, second: usize, found: Vec<ibv_wc> },
}

/// Writes a call of any kind.
pub(crate) fn write_call(bytes: &mut Vec<u8>, call: &CallRecord<'_>) {
    let mut words = Words::begin(bytes, RecordKind::Call, call.index);
    let (kind, number) = match call.queue {
        None => (0, 0),
        Some(Queue::Sends(pair)) => (1, pair.into()),
        Some(Queue::Receives(pair)) => (2, pair.into()),
        Some(Queue::Shared(address)) => (3, address as u64),
    };
    words.word(call.start).word(call.end).word(call.answer.value as u64);
    words.pair(call.answer.errno as u32, call.taken as u32).word(call.times).word(call.fault.unwrap_or(0));
    words.pair(kind, call.shows_work.into()).word(number).word(call.place.map_or(0, |place| place + 1));
    words.pair(call.posted.len() as u32, call.completed.len() as u32);
    for posted in &call.posted {
        let is_receive = u64::from(posted.role == Role::Receive);
        words.word(posted.wr_id).pair(posted.opcode, posted.flags).word(posted.length);
        words.word(posted.remote_address).pair(posted.rkey, 0);
        words.word(is_receive | u64::from(posted.is_reported) << 1);
    }
    for one in &call.completed {
        words.word(one.wr_id).pair(one.status, one.opcode).pair(one.vendor_error, one.byte_length);
        words.word(one.queue_pair.into());
    }
    if let CallContents::Tokens(tokens) = call.arguments {
        words.pair(tokens.len() as u32, call.result.len() as u32).bytes(tokens).bytes(call.result);
    }
    words.end();
}

impl<'a> CallRecord<'a> {
    /// A call whose arguments are tokens.
    pub(crate) fn of_tokens(
        index: usize,
        (start, end): (u64, u64),
        answer: Answer,
        tokens: &'a [u8],
    ) -> Self {
        Self {
            index,
            start,
            end,
            answer,
            times: 1,
            fault: None,
            queue: None,
            place: None,
            posted: Vec::new(),
            taken: 0,
            completed: Vec::new(),
            shows_work: false,
            arguments: CallContents::Tokens(tokens),
            result: &[],
        }
    }

    /// The result of the call, if that is more than a number.
    pub(crate) fn result(&self, call: &Call, style: Style) -> Option<Vec<u8>> {
        let mut writer = Writer::new(style);
        if self.result.is_empty() {
            // Only in a damaged ring: nobody follows the pointer of another process.
            let is_followed = matches!(call.returns, Returns::Object(_) | Returns::Value(_));
            writer.pointer(self.answer.value);
            return is_followed.then_some(writer.bytes);
        }
        writer.replay(self.result, TokenContents::Value);
        Some(writer.bytes)
    }

    /// The arguments of the call, as the writer of a format writes them.
    pub(crate) fn arguments(&self, call: &Call, style: Style, failed: bool) -> Vec<u8> {
        let mut writer = Writer::new(style);
        // Objects as far as they are shown; the lists point to what lives here.
        let mut pair = ibv_qp::zeroed();
        let mut shared = ibv_srq::zeroed();
        let mut queue = ibv_cq::zeroed();
        let words = match &self.arguments {
            CallContents::Tokens(tokens) => {
                writer.replay(tokens, TokenContents::Parts);
                return writer.bytes;
            }
            CallContents::Sends { queue, requests, bad, .. } => {
                pair.qp_num = *queue;
                [&raw const pair as usize, list(requests), std::ptr::from_ref(bad) as usize]
            }
            CallContents::Receives { queue, requests, bad, .. } => {
                (pair.qp_num, shared.handle) = (*queue, *queue);
                let object = match call.name {
                    "ibv_post_recv" => &raw const pair as usize,
                    _ => &raw const shared as usize,
                };
                [object, list(requests), std::ptr::from_ref(bad) as usize]
            }
            CallContents::Poll { queue: handle, second, found } => {
                queue.handle = *handle;
                [&raw const queue as usize, *second, found.as_ptr() as usize]
            }
        };
        let arguments = [words[0], words[1], words[2], 0, 0, 0];
        let seen = decode::CallOutcome { arguments: &arguments, value: self.answer.value, failed };
        for ((name, form), word) in call.arguments.iter().zip(arguments) {
            form.write(writer.key(name.trim_start_matches("r#")), word, seen);
        }
        writer.bytes
    }
}

/// Where a list of requests begins. There may be none, and a vector without elements has an address
/// nevertheless.
fn list<T>(requests: &[T]) -> usize {
    if requests.is_empty() { 0 } else { requests.as_ptr() as usize }
}

/// A record that has been read.
pub(crate) enum Record<'a> {
    Call(CallRecord<'a>),
    TransportEvent(u64, TransportEvent),
}

/// The length of the record that begins here, if there can be one.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    let length = (word(bytes, 0) >> 32) as usize;
    (length >= 16 && length.is_multiple_of(8) && length <= bytes.len()).then_some(length)
}

/// When what a record is of has begun.
pub(crate) fn time(bytes: &[u8]) -> u64 {
    word(bytes, 8)
}

/// Reads words and values one after the other.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    fn pair(&mut self) -> Option<(u32, u32)> {
        self.word().map(|word| (word as u32, (word >> 32) as u32))
    }

    fn value<T: Copy>(&mut self) -> Option<T> {
        let (first, rest) = self.0.split_at_checked(size_of::<T>())?;
        self.0 = rest;
        // SAFETY: as many bytes, of a structure of C of which all bytes are values.
        Some(unsafe { first.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// Reads a record. None of one that is wrong.
pub(crate) fn read(bytes: &[u8]) -> Option<Record<'_>> {
    let first = word(bytes, 0);
    let kind = RecordKind::ALL.into_iter().find(|kind| *kind as u64 == first & 0xff)?;
    let index = (first >> 8 & 0xffff) as usize;
    let mut cursor = Cursor(bytes.get(8..length(bytes)?)?);
    match kind {
        RecordKind::Packet => read_packet(&mut cursor, index)
            .map(|(time, packet)| Record::TransportEvent(time, TransportEvent::Packet(packet))),
        RecordKind::RequestStart => read_begun(&mut cursor, index)
            .map(|(time, begun)| Record::TransportEvent(time, TransportEvent::RequestStart(begun))),
        // What a record is of is shown as its call has it: they must fit.
        _ if !CALLS.get(index).is_some_and(|call| fits(kind, call)) => None,
        RecordKind::Call => read_call(&mut cursor, index).map(Record::Call),
        RecordKind::Sends | RecordKind::Receives => read_post(&mut cursor, kind, index).map(Record::Call),
        RecordKind::Completions | RecordKind::Run => read_poll(&mut cursor, first, index).map(Record::Call),
    }
}

fn fits(kind: RecordKind, call: &Call) -> bool {
    match kind {
        RecordKind::Sends => call.name == "ibv_post_send",
        RecordKind::Receives => matches!(call.name, "ibv_post_recv" | "ibv_post_srq_recv"),
        RecordKind::Completions => call.name == "ibv_poll_cq",
        RecordKind::Run => call.is_poll(),
        RecordKind::Call | RecordKind::Packet | RecordKind::RequestStart => true,
    }
}

/// An index that fits a kind of records: the one that `choice` chooses of these.
#[cfg(any(test, fuzzing))]
pub(crate) fn index_for(kind: u8, choice: u8) -> usize {
    let choice = usize::from(choice);
    match RecordKind::ALL.into_iter().find(|known| *known as u8 == kind) {
        None | Some(RecordKind::Packet | RecordKind::RequestStart) => choice % 4,
        Some(kind) => {
            let all: Vec<_> = (0..CALLS.len()).filter(|index| fits(kind, &CALLS[*index])).collect();
            all[choice * all.len() / 256]
        }
    }
}

fn read_call<'a>(cursor: &mut Cursor<'a>, index: usize) -> Option<CallRecord<'a>> {
    let (start, end, value) = (cursor.word()?, cursor.word()?, cursor.word()?);
    let (errno, taken) = cursor.pair()?;
    let (times, fault) = (cursor.word()?, cursor.word()?);
    let ((kind, shows_work), number) = (cursor.pair()?, cursor.word()?);
    let place = cursor.word()?;
    let (posted, completed) = cursor.pair()?;
    let posted = (0..posted).map(|_| read_posted(cursor)).collect::<Option<Vec<_>>>()?;
    let completed = (0..completed).map(|_| read_completed(cursor)).collect::<Option<Vec<_>>>()?;
    let (length, result) = cursor.pair()?;
    let (tokens, rest) = cursor.0.split_at_checked(length as usize)?;
    let result = rest.get(..result as usize)?;
    let queue = match kind {
        1 => Some(Queue::Sends(number as u32)),
        2 => Some(Queue::Receives(number as u32)),
        3 => Some(Queue::Shared(number as usize)),
        _ => None,
    };
    let answer = Answer { value: value as usize, errno: errno as i32 };
    Some(CallRecord {
        times,
        fault: (fault != 0).then_some(fault),
        queue,
        place: place.checked_sub(1),
        posted,
        taken: taken as usize,
        completed,
        shows_work: shows_work != 0,
        result,
        ..CallRecord::of_tokens(index, (start, end), answer, tokens)
    })
}

fn read_posted(cursor: &mut Cursor<'_>) -> Option<PostedRequest> {
    let (wr_id, (opcode, flags), length) = (cursor.word()?, cursor.pair()?, cursor.word()?);
    let (remote_address, (rkey, _), bits) = (cursor.word()?, cursor.pair()?, cursor.word()?);
    let role = if bits & 1 != 0 { Role::Receive } else { Role::Send };
    Some(PostedRequest {
        wr_id,
        role,
        opcode,
        flags,
        length,
        remote_address,
        rkey,
        is_reported: bits & 2 != 0,
    })
}

fn read_completed(cursor: &mut Cursor<'_>) -> Option<PolledCompletion> {
    let (wr_id, (status, opcode)) = (cursor.word()?, cursor.pair()?);
    let ((vendor_error, byte_length), queue_pair) = (cursor.pair()?, cursor.word()? as u32);
    Some(PolledCompletion { wr_id, status, opcode, vendor_error, byte_length, queue_pair })
}

/// The bytes of a short completion, of which only its name, operation, length, queue pair and flags are not
/// zero. Most are short.
const SHORT: usize = 24;
/// In the first word of a record: its completions are short.
const ARE_SHORT: u64 = 1 << 24;

fn is_short(wc: &ibv_wc) -> bool {
    wc.status | wc.vendor_err | wc.imm_data | wc.src_qp == 0
        && wc.pkey_index | wc.slid == 0
        && wc.sl | wc.dlid_path_bits == 0
}

/// Writes the completions that a poll has found.
pub(crate) fn write_completions(
    bytes: &mut Vec<u8>,
    index: usize,
    (start, end): (u64, u64),
    (queue, most): (u32, u32),
    found: &[ibv_wc],
) {
    let mut words = Words::begin(bytes, RecordKind::Completions, index);
    words.word(start).word(end).pair(queue, most);
    if found.iter().all(is_short) {
        words.first |= ARE_SHORT;
        for wc in found {
            words.word(wc.wr_id).pair(wc.opcode, wc.byte_len).pair(wc.qp_num, wc.wc_flags);
        }
    } else {
        found.iter().for_each(|wc| _ = words.copy(wc));
    }
    words.end();
}

/// Reads them, to the end of the record.
fn read_completions(cursor: &mut Cursor<'_>, are_short: bool) -> Option<Vec<ibv_wc>> {
    let size = if are_short { SHORT } else { size_of::<ibv_wc>() };
    let count = cursor.0.len() / size;
    let read = |_| {
        if !are_short {
            return cursor.value();
        }
        let mut wc = ibv_wc::zeroed();
        wc.wr_id = cursor.word()?;
        ((wc.opcode, wc.byte_len), (wc.qp_num, wc.wc_flags)) = (cursor.pair()?, cursor.pair()?);
        Some(wc)
    };
    (0..count).map(read).collect()
}

/// Writes polls that have found nothing. `second`: the word of their second argument.
pub(crate) fn write_run(
    bytes: &mut Vec<u8>,
    index: usize,
    (start, end): (u64, u64),
    (queue, second): (u32, u64),
    times: u64,
    value: u64,
) {
    let mut words = Words::begin(bytes, RecordKind::Run, index);
    words.word(start).word(end).word(value).pair(queue, 0).word(second).word(times);
    words.end();
}

fn read_poll<'a>(cursor: &mut Cursor<'a>, first: u64, index: usize) -> Option<CallRecord<'a>> {
    let (start, end) = (cursor.word()?, cursor.word()?);
    let (queue, second, times, value, mut found);
    if first & 0xff == RecordKind::Run as u64 {
        value = cursor.word()?;
        // A list of completions would be shown, and there is none.
        if value != 0 && CALLS[index].work == Work::Completions {
            return None;
        }
        queue = cursor.pair()?.0;
        (second, times, found) = (cursor.word()? as usize, cursor.word()?, Vec::new());
    } else {
        let (handle, most) = cursor.pair()?;
        (queue, second, times) = (handle, most as usize, 1);
        found = read_completions(cursor, first & ARE_SHORT != 0)?;
        value = found.len() as u64;
    }
    let completed = found.iter().map(PolledCompletion::from).collect();
    let answer = Answer { value: value as usize, errno: 0 };
    // Of a poll that found nothing, the list is shown as empty.
    found.reserve(1);
    let arguments = CallContents::Poll { queue, second, found };
    Some(CallRecord {
        times,
        completed,
        arguments,
        ..CallRecord::of_tokens(index, (start, end), answer, &[])
    })
}

/// Bits of a packet.
const IN: u64 = 1;
const BEGINS: u64 = 2;
const ENDS: u64 = 4;
const TAKES_RECEIVE: u64 = 8;
const WITHIN: u64 = 16;
const HAS_SOURCE: u64 = 32;
const ACKNOWLEDGES: u64 = 64;
const V6: u64 = 128;
/// Beyond the kind, which has eight.
const PLACE: u64 = 1 << 16;

/// Kinds of flows, where records of calls have the call's place in its list.
const PAIR: usize = 0;
const STREAM: usize = 1;
const BESIDE: usize = 2;

fn bit(is_set: bool, bit: u64) -> u64 {
    if is_set { bit } else { 0 }
}

/// Which kind of flow it is, and its stream, if it has one.
fn flow_parts(flow: Flow) -> (usize, Option<Stream>) {
    match flow {
        Flow::Pair(_) => (PAIR, None),
        Flow::Stream(stream) => (STREAM, Some(stream)),
        Flow::Beside(stream) => (BESIDE, Some(stream)),
    }
}

fn write_ip(words: &mut Words<'_>, ip: IpAddr, port: u16) {
    match ip {
        IpAddr::V4(v4) => words.pair(u32::from_ne_bytes(v4.octets()), port.into()),
        IpAddr::V6(v6) => words.bytes(&v6.octets()).word(port.into()),
    };
}

/// Writes what a transport has shown.
pub(crate) fn write_seen(bytes: &mut Vec<u8>, time: u64, seen: &TransportEvent) {
    match seen {
        TransportEvent::Packet(packet) => {
            let (index, stream) = flow_parts(packet.flow);
            let mut words = Words::begin(bytes, RecordKind::Packet, index);
            let kind = PacketKind::ALL.iter().position(|(_, kind)| *kind == packet.kind).unwrap_or(0);
            let bits = bit(packet.direction == Direction::In, IN)
                | bit(packet.begins, BEGINS)
                | bit(packet.ends, ENDS)
                | bit(packet.takes_receive, TAKES_RECEIVE)
                | bit(packet.is_within, WITHIN)
                | bit(packet.source.is_some(), HAS_SOURCE)
                | bit(matches!(packet.answers, Answers::UpTo(_)), ACKNOWLEDGES)
                | bit(matches!(packet.answers, Answers::Place(_)), PLACE)
                | bit(packet.peer.is_ipv6(), V6)
                | (kind as u64) << 8
                | u64::from(packet.length) << 32;
            words.word(time).word(bits);
            match (packet.flow, stream) {
                (Flow::Pair(destination), _) => {
                    let acknowledged = if let Answers::UpTo(number) = packet.answers { number } else { 0 };
                    words.pair(packet.source.unwrap_or(0), destination);
                    words.pair(packet.number as u32, acknowledged);
                    write_ip(&mut words, packet.peer, 0);
                }
                (_, Some(stream)) => {
                    let place = if let Answers::Place(place) = packet.answers { place } else { 0 };
                    words.word(packet.number).word(packet.queue_pair.unwrap_or(0).into()).word(place);
                    write_stream(&mut words, stream);
                }
                (_, None) => {}
            }
            words.end();
        }
        TransportEvent::RequestStart(begun) => {
            let (index, stream) = flow_parts(begun.flow);
            let mut words = Words::begin(bytes, RecordKind::RequestStart, index);
            let destination = if let Flow::Pair(destination) = begun.flow { destination } else { 0 };
            words.word(time).word(begun.place).pair(begun.queue_pair, destination).word(begun.number);
            if let Some(stream) = stream {
                words.word(bit(stream.from.is_ipv6(), V6));
                write_stream(&mut words, stream);
            }
            words.end();
        }
    }
}

/// Both addresses are of one family.
fn write_stream(words: &mut Words<'_>, stream: Stream) {
    for address in [stream.from, stream.to] {
        write_ip(words, address.ip(), address.port());
    }
}

fn read_address(cursor: &mut Cursor<'_>, bits: u64) -> Option<SocketAddr> {
    let (ip, port) = match bits & V6 {
        0 => {
            let (ip, port) = cursor.pair()?;
            (IpAddr::from(Ipv4Addr::from(ip.to_ne_bytes())), port)
        }
        _ => (IpAddr::from(Ipv6Addr::from(cursor.value::<[u8; 16]>()?)), cursor.word()? as u32),
    };
    Some(SocketAddr::new(ip, port as u16))
}

/// The flow of this kind. `None`: there is no such kind.
fn read_flow(cursor: &mut Cursor<'_>, index: usize, bits: u64) -> Option<Flow> {
    let stream = Stream { from: read_address(cursor, bits)?, to: read_address(cursor, bits)? };
    match index {
        STREAM => Some(Flow::Stream(stream)),
        BESIDE => Some(Flow::Beside(stream)),
        _ => None,
    }
}

fn read_packet(cursor: &mut Cursor<'_>, index: usize) -> Option<(u64, Packet)> {
    let (time, bits) = (cursor.word()?, cursor.word()?);
    let direction = if bits & IN != 0 { Direction::In } else { Direction::Out };
    let mut packet = Packet {
        direction,
        peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        kind: PacketKind::ALL.get((bits >> 8 & 0xff) as usize)?.1,
        begins: bits & BEGINS != 0,
        ends: bits & ENDS != 0,
        takes_receive: bits & TAKES_RECEIVE != 0,
        source: None,
        queue_pair: None,
        flow: Flow::Pair(0),
        number: 0,
        answers: Answers::Nothing,
        length: (bits >> 32) as u32,
        is_within: bits & WITHIN != 0,
    };
    if index == PAIR {
        let ((source, destination), (sequence, acknowledged)) = (cursor.pair()?, cursor.pair()?);
        packet.peer = read_address(cursor, bits)?.ip();
        packet.source = (bits & HAS_SOURCE != 0).then_some(source);
        // Such a packet names the queue pair that it goes to, and no other.
        packet.queue_pair = (direction == Direction::In).then_some(destination);
        (packet.flow, packet.number) = (Flow::Pair(destination), sequence.into());
        if bits & ACKNOWLEDGES != 0 {
            packet.answers = Answers::UpTo(acknowledged);
        }
        return Some((time, packet));
    }
    (packet.number, packet.queue_pair) = (cursor.word()?, Some(cursor.word()? as u32));
    let place = cursor.word()?;
    if bits & PLACE != 0 {
        packet.answers = Answers::Place(place);
    }
    packet.flow = read_flow(cursor, index, bits)?;
    if let Flow::Stream(stream) | Flow::Beside(stream) = packet.flow {
        packet.peer = if direction == Direction::In { stream.from } else { stream.to }.ip();
    }
    Some((time, packet))
}

fn read_begun(cursor: &mut Cursor<'_>, index: usize) -> Option<(u64, RequestStart)> {
    let (time, place, (queue_pair, destination)) = (cursor.word()?, cursor.word()?, cursor.pair()?);
    let number = cursor.word()?;
    let flow = match index {
        PAIR => Flow::Pair(destination),
        _ => {
            let bits = cursor.word()?;
            read_flow(cursor, index, bits)?
        }
    };
    Some((time, RequestStart { queue_pair, place, flow, number }))
}
