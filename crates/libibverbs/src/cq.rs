//! Completion channels and completion queues.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_core::cq::{CompletionChannel, CompletionQueue};
use adverb_core::event::AsyncEventKind;
use adverb_core::memory::moved::safe_point;
use adverb_core::request::Completion;

use crate::abi::{
    IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_moderate_cq,
    ibv_modify_cq_attr, ibv_wc,
};
use crate::context::context;
use crate::cq_ex::Cursor;
use crate::domain::{DomainObject, Use};
use crate::errno::{Call, Waiting, fail, fail_null, refusal};
use crate::event;
use crate::memory::next_handle;
use crate::object::{Acknowledgement, Object};

/// A completion channel as C sees it.
pub type ChannelObject = Object<ibv_comp_channel, Arc<CompletionChannel>>;

/// What stands behind a `struct ibv_cq` or `struct ibv_cq_ex`: all are allocated as the latter.
pub struct QueueSide {
    /// The queue.
    pub core: Arc<CompletionQueue>,
    /// Asynchronous events handed out about it.
    pub async_events: AtomicU32,
    /// Where an extended poll stands.
    pub cursor: Cursor,
    /// The parent domain that it was made with.
    _domain: Option<Use>,
}

/// A completion queue as C sees it.
pub type QueueObject = Object<ibv_cq_ex, QueueSide>;

/// The counters of completion events of a queue.
fn completion_acknowledgement(c: *mut ibv_cq_ex) -> Acknowledgement {
    // SAFETY: only addresses of fields are taken.
    unsafe {
        Acknowledgement {
            mutex: &raw mut (*c).mutex,
            condition: &raw mut (*c).cond,
            completed: &raw mut (*c).comp_events_completed,
        }
    }
}

/// The counters of asynchronous events of a queue: same mutex and condition.
pub(crate) fn async_acknowledgement(c: *mut ibv_cq_ex) -> Acknowledgement {
    // SAFETY: only the address of a field is taken.
    let completed = unsafe { &raw mut (*c).async_events_completed };
    Acknowledgement { completed, ..completion_acknowledgement(c) }
}

/// A new channel (`ibv_create_comp_channel(3)`).
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_create_comp_channel(pointer: *mut ibv_context) -> *mut ibv_comp_channel {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    match CompletionChannel::new(&context.inner.core) {
        Ok(core) => {
            let c = ibv_comp_channel { context: pointer, fd: core.descriptor(), refcnt: 0 };
            ChannelObject::allocate(c, core).cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Ends a channel (`ibv_create_comp_channel(3)`): an error number, `EBUSY` while completion queues report on
/// it.
///
/// # Safety
/// `channel` is NULL or a channel that is not used any more.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { ChannelObject::get(channel) }) else { return libc::EINVAL };
    if let Err(error) = object.inner.retire() {
        return refusal(&error);
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// Creates a queue on behalf of both interfaces, in the parent domain, if there is one; `finish` completes
/// the structure that C will see.
///
/// # Safety
/// `pointer` and `channel` are NULL or live objects.
pub(crate) unsafe fn create(
    pointer: *mut ibv_context,
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    domain: Option<&DomainObject>,
    finish: impl FnOnce(&mut ibv_cq_ex),
) -> *mut QueueObject {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    // SAFETY: the caller's promise.
    let core_channel = unsafe { ChannelObject::get(channel) };
    if vector != 0 || (!channel.is_null() && core_channel.is_none()) {
        return fail_null(libc::EINVAL);
    }
    let core = match CompletionQueue::new_in(
        &context.inner.core,
        entries,
        core_channel.map(|object| object.inner.clone()),
        domain.and_then(|object| object.inner.ring_allocator()),
    ) {
        Ok(core) => core,
        Err(error) => return fail_null(refusal(&error)),
    };
    let mut c = ibv_cq_ex::zeroed();
    (c.context, c.channel, c.cq_context) = (pointer, channel, cq_context);
    c.handle = next_handle();
    c.cqe = core.capacity() as c_int;
    finish(&mut c);
    let side = QueueSide {
        core,
        async_events: AtomicU32::new(0),
        cursor: Cursor::default(),
        _domain: domain.map(|object| object.inner.enter()),
    };
    let object = QueueObject::allocate(c, side);
    // SAFETY: just allocated; nobody else knows it. The counter of the channel is only ever read by programs.
    unsafe {
        completion_acknowledgement(object.cast()).initialize();
        (*object).inner.core.set_cookie(object as u64);
        if let Some(channel) = core_channel {
            (*channel.c()).refcnt = channel.inner.queues() as c_int;
        }
    }
    object
}

/// A new completion queue (`ibv_create_cq(3)`).
///
/// # Safety
/// `pointer` and `channel` are NULL or live objects.
pub unsafe extern "C" fn ibv_create_cq(
    pointer: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let (Ok(entries), Ok(vector)) = (u32::try_from(entries), u32::try_from(vector)) else {
        return fail_null(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    unsafe { create(pointer, entries, cq_context, channel, vector, None, |_| ()) }.cast()
}

/// Changes the room of a queue (`ibv_resize_cq(3)`): an error number.
///
/// # Safety
/// `cq` is NULL or a completion queue.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return libc::EINVAL };
    let Ok(entries) = u32::try_from(entries) else { return libc::EINVAL };
    match object.inner.core.resize(entries) {
        Ok(()) => {
            // SAFETY: a field of a live structure.
            unsafe { (*object.c()).cqe = object.inner.core.capacity() as c_int };
            0
        }
        Err(error) => refusal(&error),
    }
}

/// Spares events (`ibv_modify_cq(3)`): an error number.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(object), Some(attr)) = (unsafe { (QueueObject::get(cq), attr.as_ref()) }) else {
        return libc::EINVAL;
    };
    if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
        return libc::EOPNOTSUPP;
    }
    let ibv_moderate_cq { cq_count, cq_period } = attr.moderate;
    object.inner.core.moderate(cq_count, cq_period).map_or_else(|error| refusal(&error), |()| 0)
}

/// Ends a queue (`ibv_create_cq(3)`): an error number, `EBUSY` while queue pairs complete on it. Waits until
/// all events that were handed out are acknowledged.
///
/// # Safety
/// `cq` is NULL or a completion queue that is not used any more.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return libc::EINVAL };
    let core = &object.inner.core;
    if let Err(error) = core.retire() {
        return refusal(&error);
    }
    if core.context().is_here() {
        event::withdraw(core.context(), object.c() as u64, &[AsyncEventKind::CqError]);
        // SAFETY: the object lives until it is freed below.
        unsafe {
            completion_acknowledgement(object.c()).wait_for(core.delivered_events());
            async_acknowledgement(object.c()).wait_for(object.inner.async_events.load(Ordering::Acquire));
        }
    }
    // SAFETY: the channel outlives its queues.
    let channel = unsafe { ChannelObject::get((*object.c()).channel) };
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    if let Some(channel) = channel {
        // SAFETY: a field of a live structure.
        unsafe { (*channel.c()).refcnt = channel.inner.queues() as c_int };
    }
    0
}

/// Waits for the next event of a channel (`ibv_get_cq_event(3)`): -1 and `errno` on failure, `EAGAIN` if the
/// descriptor was made non-blocking. A cancellation point.
///
/// # Safety
/// `channel` is NULL or a channel; `cq` and `cq_context` are valid.
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let call = Waiting::begin();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { ChannelObject::get(channel) }) else { return fail(libc::EINVAL) };
    if cq.is_null() || cq_context.is_null() {
        return fail(libc::EINVAL);
    }
    match object.inner.wait() {
        Ok(queue) => {
            let found = queue.cookie() as *mut ibv_cq;
            // SAFETY: a queue with an event that is not acknowledged is not freed; the results are valid by
            // the caller's promise.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            call.succeeded()
        }
        Err(error) => fail(refusal(&error)),
    }
}

/// Acknowledges events (`ibv_get_cq_event(3)`).
///
/// # Safety
/// `cq` is NULL or a completion queue.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    // SAFETY: the caller's promise.
    if let Some(object) = unsafe { QueueObject::get(cq) } {
        // SAFETY: it lives.
        unsafe { completion_acknowledgement(object.c()).acknowledge(events) };
    }
}

/// `ibv_poll_cq(3)`: the number of completions, or a negative error number.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, target: *mut ibv_wc) -> c_int {
    safe_point();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return -libc::EINVAL };
    let Ok(most) = usize::try_from(most) else { return -libc::EINVAL };
    let mut place = target;
    let polled = object.inner.core.poll(most, |completion| {
        // SAFETY: at most `most` completions come, and the caller has room for them.
        unsafe {
            place.write(work_completion(completion));
            place = place.add(1);
        }
    });
    match polled {
        Ok(count) => count as c_int,
        Err(error) => -error.errno(),
    }
}

#[inline]
fn work_completion(core: &Completion) -> ibv_wc {
    // Copies field by field. A poll has just stored these fields one by one, and a wider load would wait
    // until all stores have left the store buffer (failed store forwarding).
    let field = |field: &u32| {
        // SAFETY: a reference.
        unsafe { std::ptr::from_ref(field).read_volatile() }
    };
    ibv_wc {
        wr_id: core.wr_id,
        status: core.status as u32,
        opcode: core.opcode as u32,
        vendor_err: core.vendor_error,
        byte_len: field(&core.byte_length),
        imm_data: field(&core.immediate),
        qp_num: field(&core.queue_pair),
        src_qp: field(&core.source_queue_pair),
        wc_flags: core.flags.bits().into(),
        pkey_index: 0,
        slid: 0,
        sl: core.service_level,
        dlid_path_bits: core.path_bits,
    }
}

/// `ibv_req_notify_cq(3)`: an error number.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return libc::EINVAL };
    match object.inner.core.arm(solicited_only != 0) {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}
