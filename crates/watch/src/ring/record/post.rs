//! Records of posts: what is shown of their requests, and how the post ended, if it did not take all of them.
//!
//! Most traffic is of these, and a new page of the file costs more than the words in it: a Write of one
//! element takes 88 bytes.

use super::{CallContents, CallRecord, Cursor, RecordKind, Words};
use crate::requests::Queue;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{Answer, MOST_ELEMENTS, PostedRequest, Role};

/// What stands in front of the requests of a post, and is known before the post.
pub(crate) struct PostHead {
    pub(crate) start: u64,
    /// A queue pair's number, or the handle of a shared receive queue.
    pub(crate) queue: u32,
    /// The address of a shared receive queue; 0 of a queue pair.
    pub(crate) address: u64,
    pub(crate) reports_all: bool,
    pub(crate) place: u64,
}

/// What is known after a post.
pub(crate) struct PostEnd {
    pub(crate) end: u64,
    pub(crate) answer: Answer,
    pub(crate) taken: usize,
    pub(crate) fault: u64,
    pub(crate) bad: u64,
}

/// A bit of a post's record: the queue pair reports all requests.
const REPORTS_ALL: u32 = 1;
/// A bit: the address of the queue stands before the requests.
const HAS_ADDRESS: u32 = 2;
/// A bit: four words stand behind the requests. They say what the post has answered: it did not take all
/// requests, or is a fault.
const HAS_END: u32 = 4;
/// The number of requests stands in the bits from this one on.
const COUNT: u32 = 8;
/// Where the bits stand in a record.
const BITS_AT: usize = 28;
/// Where the duration of the call stands.
const LASTED_AT: usize = 32;

/// Writes the beginning of a post's record. [`end_post`] writes the rest.
pub(crate) fn begin_post(words: &mut Words<'_>, head: &PostHead) {
    let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    let bits = bit(head.reports_all, REPORTS_ALL) | bit(head.address != 0, HAS_ADDRESS);
    // `end_post` writes the duration into the last word.
    words.word(head.start).word(head.place).pair(head.queue, bits).word(0);
    if head.address != 0 {
        words.word(head.address);
    }
}

/// What the target of an operation is.
enum Aim {
    Memory,
    Atomic,
    None,
}

fn aim(opcode: u32) -> Aim {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ | IBV_WR_ATOMIC_WRITE => {
            Aim::Memory
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Aim::Atomic,
        _ => Aim::None,
    }
}

/// Whether elements can be copied, and a request has so many.
fn has_elements(list: *const ibv_sge, count: i32) -> bool {
    (0..=MOST_ELEMENTS).contains(&count) && !(list.is_null() && count != 0)
}

/// Writes a request of a send queue. False if it is one that is written in another way.
///
/// # Safety
/// It is as the call wants it.
pub(crate) unsafe fn write_send(words: &mut Words<'_>, wr: &ibv_send_wr) -> bool {
    let is_short = wr.opcode <= u8::MAX.into() && wr.send_flags <= u16::MAX.into();
    if !is_short || wr.opcode == IBV_WR_BIND_MW || !has_elements(wr.sg_list, wr.num_sge) {
        return false;
    }
    words.word(wr.wr_id).pair(wr.opcode | (wr.num_sge as u32) << 8 | wr.send_flags << 16, wr.imm_data);
    // SAFETY: the members are integers; the caller's promise.
    unsafe {
        match aim(wr.opcode) {
            Aim::Memory => _ = words.word(wr.wr.rdma.remote_addr).word(wr.wr.rdma.rkey.into()),
            Aim::Atomic => {
                let atomic = wr.wr.atomic;
                words.word(atomic.remote_addr).word(atomic.rkey.into());
                words.word(atomic.compare_add).word(atomic.swap);
            }
            Aim::None => {}
        }
        write_elements(words, wr.sg_list, wr.num_sge);
    }
    true
}

/// Writes a receive. False if it is one that is written in another way.
///
/// # Safety
/// It is as the call wants it.
pub(crate) unsafe fn write_receive(words: &mut Words<'_>, wr: &ibv_recv_wr) -> bool {
    if !has_elements(wr.sg_list, wr.num_sge) {
        return false;
    }
    words.word(wr.wr_id).word(wr.num_sge as u64);
    // SAFETY: the caller's promise.
    unsafe { write_elements(words, wr.sg_list, wr.num_sge) };
    true
}

/// Writes the elements of a request.
///
/// # Safety
/// The list has `count` elements.
unsafe fn write_elements(words: &mut Words<'_>, list: *const ibv_sge, count: i32) {
    for index in 0..count as usize {
        // SAFETY: the caller's promise.
        words.copy(unsafe { &*list.add(index) });
    }
}

/// Writes how many requests a post has, and how it ended, into its record.
pub(crate) fn end_post(bytes: &mut Vec<u8>, count: usize, end: &PostEnd) {
    let half =
        |bytes: &[u8], at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let mut bits = half(bytes, BITS_AT) | (count as u32) << COUNT;
    let lasted = end.end.saturating_sub(super::time(bytes));
    if end.answer.value != 0 || end.fault != 0 {
        bits |= HAS_END;
        let errno = u64::from(end.answer.errno as u32) | (end.taken as u64) << 32;
        for word in [end.answer.value as u64, errno, end.fault, end.bad] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let first = half(bytes, 0);
        Words::set_first(bytes, first.into());
    }
    bytes[BITS_AT..BITS_AT + 4].copy_from_slice(&bits.to_ne_bytes());
    bytes[LASTED_AT..LASTED_AT + 8].copy_from_slice(&lasted.to_ne_bytes());
}

/// Elements that have been read, of all requests: the list may move while it grows.
#[derive(Default)]
struct Elements {
    all: Vec<ibv_sge>,
    /// Where those of each request begin.
    firsts: Vec<usize>,
}

impl Elements {
    /// Reads so many: the sum of their lengths.
    fn read(&mut self, cursor: &mut Cursor<'_>, count: i32) -> Option<u64> {
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST_ELEMENTS as usize)?;
        let first = self.all.len();
        self.firsts.push(first);
        for _ in 0..count {
            self.all.push(cursor.value()?);
        }
        Some(self.all[first..].iter().map(|sge| u64::from(sge.length)).sum())
    }

    /// The elements of a request that has `count` of them.
    fn of(&self, request: usize, count: i32) -> *mut ibv_sge {
        if count == 0 { std::ptr::null_mut() } else { self.all[self.firsts[request]..].as_ptr().cast_mut() }
    }
}

fn read_send(cursor: &mut Cursor<'_>) -> Option<ibv_send_wr> {
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = cursor.word()?;
    let (short, imm_data) = cursor.pair()?;
    (wr.opcode, wr.num_sge, wr.send_flags) = (short & 0xff, (short >> 8 & 0xff) as i32, short >> 16);
    wr.imm_data = imm_data;
    match aim(wr.opcode) {
        Aim::Memory => {
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (cursor.word()?, cursor.word()? as u32);
        }
        Aim::Atomic => {
            let (remote_addr, rkey) = (cursor.word()?, cursor.word()? as u32);
            let (compare_add, swap) = (cursor.word()?, cursor.word()?);
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
        }
        Aim::None => {}
    }
    (wr.opcode != IBV_WR_BIND_MW).then_some(wr)
}

fn read_receive(cursor: &mut Cursor<'_>) -> Option<ibv_recv_wr> {
    let mut wr = ibv_recv_wr::zeroed();
    wr.wr_id = cursor.word()?;
    wr.num_sge = i32::try_from(cursor.word()?).ok()?;
    Some(wr)
}

pub(super) fn read_post<'a>(
    cursor: &mut Cursor<'a>,
    kind: RecordKind,
    index: usize,
) -> Option<CallRecord<'a>> {
    let (start, place) = (cursor.word()?, cursor.word()?);
    let ((queue, bits), lasted) = (cursor.pair()?, cursor.word()?);
    let address = if bits & HAS_ADDRESS != 0 { cursor.word()? } else { 0 };
    let mut posted = Vec::new();
    let mut elements = Elements::default();
    let (mut sends, mut receives) = (Vec::<ibv_send_wr>::new(), Vec::<ibv_recv_wr>::new());
    for _ in 0..bits >> COUNT {
        let (role, wr_id, opcode, flags, is_reported, length);
        if kind == RecordKind::Sends {
            let wr = read_send(cursor)?;
            (role, wr_id, opcode, flags) = (Role::Send, wr.wr_id, wr.opcode, wr.send_flags);
            is_reported = bits & REPORTS_ALL != 0 || wr.send_flags & IBV_SEND_SIGNALED != 0;
            length = elements.read(cursor, wr.num_sge)?;
            sends.push(wr);
        } else {
            let wr = read_receive(cursor)?;
            (role, wr_id, opcode, flags, is_reported) = (Role::Receive, wr.wr_id, 0, 0, true);
            length = elements.read(cursor, wr.num_sge)?;
            receives.push(wr);
        }
        posted.push(PostedRequest {
            wr_id,
            role,
            opcode,
            flags,
            length,
            remote_address: 0,
            rkey: 0,
            is_reported,
        });
    }
    let (mut value, mut errno, mut taken, mut fault, mut bad) = (0, 0, posted.len(), 0, 0);
    if bits & HAS_END != 0 {
        value = cursor.word()?;
        let (low, high) = cursor.pair()?;
        (errno, taken) = (low as i32, high as usize);
        (fault, bad) = (cursor.word()?, cursor.word()? as usize);
    }
    // The lists point to what has been read, and to nothing else.
    for index in (0..sends.len()).rev() {
        sends[index].sg_list = elements.of(index, sends[index].num_sge);
        sends[index].next =
            sends.get(index + 1).map_or(std::ptr::null_mut(), |wr| std::ptr::from_ref(wr).cast_mut());
    }
    for index in (0..receives.len()).rev() {
        receives[index].sg_list = elements.of(index, receives[index].num_sge);
        receives[index].next =
            receives.get(index + 1).map_or(std::ptr::null_mut(), |wr| std::ptr::from_ref(wr).cast_mut());
    }
    let _elements = elements.all;
    let (owner, arguments) = if kind == RecordKind::Sends {
        (Queue::Sends(queue), CallContents::Sends { queue, requests: sends, _elements, bad })
    } else {
        let owner = if address == 0 { Queue::Receives(queue) } else { Queue::Shared(address as usize) };
        (owner, CallContents::Receives { queue, requests: receives, _elements, bad })
    };
    let answer = Answer { value: value as usize, errno };
    Some(CallRecord {
        fault: (fault != 0).then_some(fault),
        queue: Some(owner),
        place: (kind == RecordKind::Sends).then_some(place),
        posted,
        taken,
        arguments,
        ..CallRecord::of_tokens(index, (start, start.saturating_add(lasted)), answer, &[])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::find;
    use crate::ring::record::{self, Record};
    use crate::writer::Style;

    /// A send with elements, as a program posts it.
    fn send(opcode: u32, list: &mut [ibv_sge]) -> ibv_send_wr {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags, wr.imm_data) = (7, opcode, IBV_SEND_SIGNALED, 0x1234);
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as i32);
        wr.wr.atomic = ibv_send_wr_atomic { remote_addr: 0x5000, compare_add: 3, swap: 4, rkey: 5 };
        if matches!(aim(opcode), Aim::Memory) {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 0x5000, rkey: 0x66 };
        }
        wr
    }

    fn record(wr: &ibv_send_wr, end: &PostEnd) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut words = Words::begin(&mut bytes, RecordKind::Sends, find("ibv_post_send").expect("a call"));
        let head = PostHead { start: 100, queue: 0x11, address: 0, reports_all: false, place: 9 };
        begin_post(&mut words, &head);
        // SAFETY: a live request with its list.
        let is_written = unsafe { write_send(&mut words, wr) };
        words.end();
        end_post(&mut bytes, 1, end);
        is_written.then_some(bytes)
    }

    fn end(value: usize, fault: u64) -> PostEnd {
        PostEnd { end: 130, answer: Answer { value, errno: 12 }, taken: 0, fault, bad: 0xabc }
    }

    fn text(bytes: &[u8]) -> (CallRecord<'_>, String) {
        let Some(Record::Call(call)) = record::read(bytes) else { panic!("a record") };
        let failed = call.answer.value != 0;
        let arguments = call.arguments(&crate::calls::CALLS[call.index], Style::Text, failed);
        (call, String::from_utf8(arguments).expect("text"))
    }

    #[test]
    fn requests_are_shown_as_they_were() {
        let mut list = [ibv_sge { addr: 0x1000, length: 8, lkey: 0x22 }; 2];
        for (opcode, count, shown) in [
            (IBV_WR_RDMA_WRITE, 1, "remote_addr=0x5000, rkey=0x66"),
            (IBV_WR_SEND_WITH_IMM, 2, "imm_data=0x34120000"),
            (IBV_WR_ATOMIC_CMP_AND_SWP, 1, "remote_addr=0x5000, rkey=0x5, compare_add=3, swap=4"),
            (IBV_WR_SEND, 0, "sg_list=[]"),
        ] {
            let bytes = record(&send(opcode, &mut list[..count]), &end(0, 0)).expect("it is short");
            let (call, text) = text(&bytes);
            assert!(text.contains(shown) && text.contains("wr_id=7"), "{text}");
            assert_eq!(text.matches("lkey=0x22").count(), count, "{text}");
            assert_eq!((call.start, call.end, call.taken, call.place), (100, 130, 1, Some(9)));
            assert_eq!((call.posted[0].length, call.posted[0].is_reported), (8 * count as u64, true));
        }
        let bytes = record(&send(IBV_WR_RDMA_WRITE, &mut list[..1]), &end(0, 0)).expect("it is short");
        assert_eq!(bytes.len(), 88, "as the comment says");
    }

    #[test]
    fn posts_that_did_not_take_all_say_what_they_answered() {
        let mut list = [ibv_sge { addr: 0x1000, length: 8, lkey: 0x22 }];
        let wr = send(IBV_WR_SEND, &mut list);
        for (value, fault) in [(12, 0), (12, 3), (0, 3)] {
            let bytes = record(&wr, &end(value, fault)).expect("it is short");
            let (call, text) = text(&bytes);
            assert_eq!((call.answer.value, call.taken), (value, 0));
            assert_eq!(call.fault, (fault != 0).then_some(fault));
            assert_eq!(text.contains("bad_wr=0xabc"), value != 0, "{text}");
        }
    }

    #[test]
    fn requests_with_strange_numbers_are_written_in_another_way() {
        let mut list = [ibv_sge { addr: 0x1000, length: 8, lkey: 0x22 }];
        let wr = send(IBV_WR_SEND, &mut list);
        let strange = [
            ibv_send_wr { opcode: 0x1000, ..wr },
            ibv_send_wr { send_flags: 1 << 16, ..wr },
            ibv_send_wr { num_sge: MOST_ELEMENTS + 1, ..wr },
            ibv_send_wr { num_sge: -1, ..wr },
            ibv_send_wr { sg_list: std::ptr::null_mut(), ..wr },
            ibv_send_wr { opcode: IBV_WR_BIND_MW, ..wr },
        ];
        for wr in strange {
            assert!(record(&wr, &end(0, 0)).is_none());
        }
    }
}
