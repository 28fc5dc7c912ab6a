//! Requests and completions, as a watcher sees them.

use std::sync::Arc;

use adverb_core::event::AsyncEventKind;
use adverb_core::qp::{AttributeMask, Attributes, QueuePair, State};
use adverb_core::request::{Completion, SendFlags, Sge, Status};

use crate::abi::{
    IBV_SEND_SIGNALED, ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::cq::QueueObject;
use crate::cq_ex;
use crate::post::elements;
use crate::qp::{PairObject, all, by_number, show_state};
use crate::qp_ex;

/// Which queue a request is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A send queue.
    Send,
    /// A receive queue.
    Receive,
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub struct PostedRequest {
    /// The program's name for it.
    pub wr_id: u64,
    /// Sends, writes and others, or a receive.
    pub role: Role,
    /// The opcode of a request of a send queue, `IBV_WR_*`.
    pub opcode: u32,
    /// The flags of a request of a send queue, `IBV_SEND_*`.
    pub flags: u32,
    /// The sum of its scatter/gather elements.
    pub length: u64,
    /// The address in the peer's memory, of a one-sided operation.
    pub remote_address: u64,
    /// The key of the peer's memory, of a one-sided operation.
    pub rkey: u32,
    /// Whether the request's success is reported.
    pub is_reported: bool,
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct PolledCompletion {
    /// The program's name for the request.
    pub wr_id: u64,
    /// `IBV_WC_*` of a status.
    pub status: u32,
    /// `IBV_WC_*` of an operation. After an error it means nothing, but for [`PolledCompletion::is_receive`].
    pub opcode: u32,
    /// What the transport knows of an error.
    pub vendor_error: u32,
    /// Bytes that were received.
    pub byte_length: u32,
    /// The number of the queue pair.
    pub queue_pair: u32,
}

impl PolledCompletion {
    /// Whether the completion is of a receive.
    pub fn is_receive(&self) -> bool {
        self.opcode & crate::abi::IBV_WC_RECV != 0
    }
}

impl From<&ibv_wc> for PolledCompletion {
    fn from(wc: &ibv_wc) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            vendor_error: wc.vendor_err,
            byte_length: wc.byte_len,
            queue_pair: wc.qp_num,
        }
    }
}

impl From<&Completion> for PolledCompletion {
    fn from(core: &Completion) -> Self {
        Self {
            wr_id: core.wr_id,
            status: core.status as u32,
            opcode: core.opcode as u32,
            vendor_error: core.vendor_error,
            byte_length: core.byte_length,
            queue_pair: core.queue_pair,
        }
    }
}

/// More elements no request has on any device: a longer list is refused, and not read.
pub const MOST_ELEMENTS: i32 = 64;
/// More requests of a list are not looked at: one that goes round has no end, and posting it ends where the
/// queue is full.
pub const MOST_REQUESTS: usize = 1 << 16;

/// A list of elements; none of one that no request may have.
///
/// # Safety
/// The list is as a call wants it, or longer than any request's.
unsafe fn some<'a>(list: *const ibv_sge, count: i32) -> &'a [Sge] {
    if !(0..=MOST_ELEMENTS).contains(&count) {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { elements(list, count) }.unwrap_or_default()
}

fn length(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}

/// How many requests have been posted to the send queue of a queue pair.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub unsafe fn posted(qp: *mut ibv_qp) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe { PairObject::get(qp) }.map(|object| object.inner.core.queues().send.posted())
}

/// Whether every send of a queue pair is reported.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub unsafe fn reports_all(qp: *mut ibv_qp) -> bool {
    // SAFETY: the caller's promise.
    unsafe { PairObject::get(qp) }.is_some_and(|object| object.inner.core.signal_all())
}

/// The requests of an `ibv_post_send`, in their order, each with its elements.
///
/// # Safety
/// `qp` is NULL or a queue pair, and the list is as the call wants it.
pub unsafe fn sends(qp: *mut ibv_qp, list: *const ibv_send_wr, mut each: impl FnMut(&PostedRequest, &[Sge])) {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { PairObject::get(qp) }) else { return };
    let signals_all = object.inner.core.signal_all();
    let (mut next, mut count) = (list, 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() }.filter(|_| count < MOST_REQUESTS) {
        count += 1;
        // SAFETY: the caller's promise.
        let list = unsafe { some(wr.sg_list, wr.num_sge) };
        // SAFETY: the members are integers, and the first two words of both begin alike.
        let (remote_address, rkey) = unsafe {
            match wr.opcode {
                crate::abi::IBV_WR_ATOMIC_CMP_AND_SWP | crate::abi::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey)
                }
                crate::abi::IBV_WR_RDMA_WRITE
                | crate::abi::IBV_WR_RDMA_WRITE_WITH_IMM
                | crate::abi::IBV_WR_RDMA_READ
                | crate::abi::IBV_WR_ATOMIC_WRITE => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
                _ => (0, 0),
            }
        };
        let posted = PostedRequest {
            wr_id: wr.wr_id,
            role: Role::Send,
            opcode: wr.opcode,
            flags: wr.send_flags,
            length: length(list),
            remote_address,
            rkey,
            is_reported: signals_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        };
        each(&posted, list);
        next = wr.next;
    }
}

/// The requests of an `ibv_post_recv` and its likes, in their order, each with its elements.
///
/// # Safety
/// The list is as the call wants it.
pub unsafe fn receives(list: *const ibv_recv_wr, mut each: impl FnMut(&PostedRequest, &[Sge])) {
    let (mut next, mut count) = (list, 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() }.filter(|_| count < MOST_REQUESTS) {
        count += 1;
        // SAFETY: the caller's promise.
        let list = unsafe { some(wr.sg_list, wr.num_sge) };
        let posted = PostedRequest {
            wr_id: wr.wr_id,
            role: Role::Receive,
            opcode: 0,
            flags: 0,
            length: length(list),
            remote_address: 0,
            rkey: 0,
            is_reported: true,
        };
        each(&posted, list);
        next = wr.next;
    }
}

/// The requests that the builders of a queue pair have gathered since `ibv_wr_start`, each with its elements.
/// Inline data has none.
///
/// # Safety
/// The calling thread is between `ibv_wr_start` and `ibv_wr_complete`.
pub unsafe fn gathered(qp: *mut ibv_qp_ex, mut each: impl FnMut(&PostedRequest, &[Sge])) {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { PairObject::get(qp) }) else { return };
    let signals_all = object.inner.core.signal_all();
    // SAFETY: the caller's promise.
    unsafe {
        qp_ex::gathered(qp, |wr_id, opcode, flags, list, length, remote_address, rkey| {
            let posted = PostedRequest {
                wr_id,
                role: Role::Send,
                opcode: opcode as u32,
                flags: flags.bits().into(),
                length,
                remote_address,
                rkey,
                is_reported: signals_all || flags.contains(SendFlags::SIGNALED),
            };
            each(&posted, list);
        });
    }
}

/// The completions that an `ibv_poll_cq` has written.
///
/// # Safety
/// `list` has `count` of them.
pub unsafe fn completed(list: *const ibv_wc, count: usize, mut each: impl FnMut(&PolledCompletion)) {
    for index in 0..count {
        // SAFETY: the caller's promise.
        each(&PolledCompletion::from(unsafe { &*list.add(index) }));
    }
}

/// The completion that the calling thread polls with `ibv_start_poll` or `ibv_next_poll`.
///
/// # Safety
/// The calling thread is between `ibv_start_poll` and `ibv_end_poll`.
pub unsafe fn under_cursor(queue: *mut ibv_cq_ex) -> Option<PolledCompletion> {
    // SAFETY: the caller's promise.
    unsafe { cq_ex::with_current(queue, |completion| PolledCompletion::from(&*completion)) }
}

/// Gives the completion that the calling thread polls another status.
///
/// # Safety
/// As of [`under_cursor`].
pub unsafe fn change_status(queue: *mut ibv_cq_ex, status: Status, vendor_error: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let changed = cq_ex::with_current(queue, |completion| {
            completion.status = status;
            completion.vendor_error = vendor_error;
        });
        if changed.is_some() {
            (*queue).status = status as u32;
        }
    }
}

/// Gives up what the builders of a queue pair have gathered, as `ibv_wr_abort` does.
///
/// # Safety
/// As of [`gathered`]; the builders are no longer the thread's.
pub unsafe fn abandon(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { qp_ex::abort(qp) }
}

/// The queue pair of a completion.
///
/// # Safety
/// `queue` is NULL or a completion queue.
unsafe fn pair(queue: *mut ibv_cq, number: u32) -> Option<Arc<QueuePair>> {
    // SAFETY: the caller's promise.
    let object = unsafe { QueueObject::get(queue) }?;
    by_number(object.inner.core.context(), number)
}

/// Puts the queue pair of a completion into the error state.
///
/// # Safety
/// `queue` is NULL or a completion queue.
pub unsafe fn enter_error(queue: *mut ibv_cq, number: u32) {
    // SAFETY: the caller's promise.
    if let Some(pair) = unsafe { pair(queue, number) } {
        put_into_error(&pair);
    }
}

fn put_into_error(pair: &QueuePair) {
    let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
    if pair.modify(&attributes, AttributeMask::STATE).is_ok() {
        show_state(pair, State::Error);
    }
}

/// The name of a queue pair's device, and the number of the queue pair.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub unsafe fn name_of_pair(qp: *mut ibv_qp) -> Option<(String, u32)> {
    // SAFETY: the caller's promise.
    let pair = unsafe { &PairObject::get(qp)?.inner.core };
    Some((pair.context().device().name().to_owned(), pair.number()))
}

/// The name of a completion queue's device.
///
/// # Safety
/// `queue` is NULL or a completion queue.
pub unsafe fn device_of_queue<'a>(queue: *mut ibv_cq) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    let object = unsafe { QueueObject::get(queue) }?;
    Some(object.inner.core.context().device().name())
}

/// Puts those queue pairs of the process into the error state that are chosen by the name of the device and
/// their number.
pub fn break_pairs(is_chosen: impl Fn(&str, u32) -> bool) {
    each_pair(is_chosen, put_into_error);
}

/// Raises an event about those queue pairs of the process that are chosen in the same way.
pub fn raise_for_pairs(is_chosen: impl Fn(&str, u32) -> bool, kind: AsyncEventKind) {
    each_pair(is_chosen, |pair| pair.queues().raise(kind));
}

fn each_pair(is_chosen: impl Fn(&str, u32) -> bool, work: impl Fn(&QueuePair)) {
    let is_it = |pair: &&Arc<QueuePair>| is_chosen(pair.context().device().name(), pair.number());
    all().iter().filter(is_it).for_each(|pair| work(pair));
}

/// Whether the queue pair of a completion is in the error state.
///
/// # Safety
/// `queue` is NULL or a completion queue.
pub unsafe fn is_in_error(queue: *mut ibv_cq, number: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pair(queue, number) }.is_some_and(|pair| pair.state() == State::Error)
}
