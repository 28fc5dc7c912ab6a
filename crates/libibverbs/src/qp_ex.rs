//! The work request builders (`ibv_wr_post(3)`).
//!
//! From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` one thread owns the builder. Requests are
//! gathered in arrays that keep their memory from one batch to the next, and posted together: all of them,
//! or, after a mistake, none.

use core::ffi::{c_int, c_void};
use std::borrow::Cow;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use adverb_core::error::PostError;
use adverb_core::memory::WindowType;
use adverb_core::qp::{Destination, QueuePair, Service};
use adverb_core::request::{Data, Datagram, Opcode, SendFlags, SendRequest, Sge};

use crate::abi::{
    IBV_SEND_INLINE, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge,
};
use crate::address::HandleObject;
use crate::post::elements;
use crate::qp::PairObject;
use crate::refused::{self, RefusedRequest};
use crate::window;

/// Where the bytes of a gathered request are.
enum Place {
    Elements(Range<usize>),
    Inline(Range<usize>),
}

/// A gathered request.
struct RequestDraft {
    wr_id: u64,
    opcode: Opcode,
    flags: SendFlags,
    remote_address: u64,
    rkey: u32,
    immediate: u32,
    compare_add: u64,
    swap: u64,
    shared_queue: u32,
    destination: Option<Destination>,
    place: Place,
}

#[derive(Default)]
struct Batch {
    requests: Vec<RequestDraft>,
    elements: Vec<Sge>,
    inline: Vec<u8>,
    mistake: Option<Mistake>,
}

/// Why a batch is not posted, and the request that is to blame; the first one, if all are.
struct Mistake {
    error: PostError,
    refused: Option<RefusedRequest>,
}

impl From<PostError> for Mistake {
    fn from(error: PostError) -> Self {
        Self { error, refused: None }
    }
}

impl Batch {
    /// The first mistake counts. `why` says what is wrong where the error does not, and `size` how much there
    /// is of what is too much.
    #[cold]
    #[inline(never)]
    fn mistaken(&mut self, error: PostError, why: Option<&'static str>, size: usize) {
        let last = self.requests.last();
        let (wr_id, opcode) = last.map_or((0, Opcode::Send), |request| (request.wr_id, request.opcode));
        let why = why.map(Cow::from);
        let refused = RefusedRequest {
            wr_id,
            opcode: opcode as u32,
            why,
            sges: size,
            bytes: size as u64,
            is_inline: false,
        };
        self.mistake.get_or_insert(Mistake { error, refused: Some(refused) });
    }
}

/// What was set belongs to no request.
const NO_REQUEST: &str = "no request was begun (ibv_wr_send(3) and others) before this was set";

/// The builder of a queue pair.
pub struct Builder {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    batch: UnsafeCell<Batch>,
    most: usize,
}

impl Builder {
    /// The builder of a queue pair that takes as many requests as its send queue.
    pub fn new(core: &QueuePair) -> Self {
        Self {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            batch: UnsafeCell::default(),
            most: core.capabilities().max_send_wr as usize,
        }
    }
}

/// Sets the builder functions of a new queue pair.
pub(crate) fn fill(c: &mut ibv_qp_ex) {
    c.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(atomic_fetch_add);
    c.wr_bind_mw = Some(bind_mw);
    c.wr_local_inv = Some(local_inv);
    c.wr_rdma_read = Some(rdma_read);
    c.wr_rdma_write = Some(rdma_write);
    c.wr_rdma_write_imm = Some(rdma_write_imm);
    c.wr_send = Some(send);
    c.wr_send_imm = Some(send_imm);
    c.wr_send_inv = Some(send_inv);
    c.wr_send_tso = Some(send_tso);
    c.wr_set_ud_addr = Some(set_ud_addr);
    c.wr_set_xrc_srqn = Some(set_xrc_srqn);
    c.wr_set_inline_data = Some(set_inline_data);
    c.wr_set_inline_data_list = Some(set_inline_data_list);
    c.wr_set_sge = Some(set_sge);
    c.wr_set_sge_list = Some(set_sge_list);
    c.wr_start = Some(start);
    c.wr_complete = Some(complete);
    c.wr_abort = Some(abort);
    c.wr_atomic_write = Some(atomic_write);
    c.wr_flush = Some(flush);
}

/// The extended form of a queue pair that was created with builders (`ibv_qp_to_qp_ex(3)`), otherwise NULL.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    match unsafe { PairObject::get(qp) } {
        Some(object) if object.inner.builder.is_some() => object.c(),
        _ => std::ptr::null_mut(),
    }
}

/// The builder of a queue pair, and the batch being gathered.
///
/// # Safety
/// The caller owns the builder: it is between start and complete or abort.
#[inline]
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a PairObject, &'a Builder, &'a mut Batch)> {
    // SAFETY: the caller's promise.
    let object = unsafe { PairObject::get(qp) }?;
    let builder = object.inner.builder.as_ref()?;
    // SAFETY: the batch belongs to the caller.
    Some((object, builder, unsafe { &mut *builder.batch.get() }))
}

/// Begins a request.
///
/// # Safety
/// The caller owns the builder.
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: Opcode, change: impl FnOnce(&mut RequestDraft)) {
    // SAFETY: the caller's promise.
    let Some((object, builder, batch)) = (unsafe { builder(qp) }) else { return };
    if batch.requests.len() == builder.most {
        batch.mistaken(PostError::QueueFull, None, 0);
        return;
    }
    // SAFETY: fields of a live structure that the program wrote before.
    let (wr_id, flags) = unsafe { ((*object.c()).wr_id, (*object.c()).wr_flags) };
    let end = batch.elements.len();
    let mut request = RequestDraft {
        wr_id,
        opcode,
        flags: SendFlags::from_bits_truncate((flags & !IBV_SEND_INLINE) as u8),
        remote_address: 0,
        rkey: 0,
        immediate: 0,
        compare_add: 0,
        swap: 0,
        shared_queue: 0,
        destination: None,
        place: Place::Elements(end..end),
    };
    change(&mut request);
    batch.requests.push(request);
}

/// Sets the bytes of the request that was begun last.
///
/// # Safety
/// The caller owns the builder.
#[inline]
unsafe fn place(qp: *mut ibv_qp_ex, put: impl FnOnce(&mut Batch) -> Result<Place, (PostError, usize)>) {
    // SAFETY: the caller's promise.
    let Some((_, _, batch)) = (unsafe { builder(qp) }) else { return };
    if batch.mistake.is_some() {
        return;
    }
    match put(batch) {
        Ok(place) => match batch.requests.last_mut() {
            Some(request) => request.place = place,
            None => batch.mistaken(PostError::Invalid, Some(NO_REQUEST), 0),
        },
        Err((error, size)) => batch.mistaken(error, None, size),
    }
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $opcode:ident { $($field:ident: $value:expr),* };)*) => {
        $(pub(crate) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the program calls builders between start and complete.
            unsafe {
                begin(qp, Opcode::$opcode, |_request| {
                    $(_request.$field = $value;)*
                });
            }
        })*
    };
}

operations! {
    atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) = CompareSwap {
        rkey: rkey, remote_address: address, compare_add: compare, swap: swap
    };
    atomic_fetch_add(rkey: u32, address: u64, add: u64) = FetchAdd {
        rkey: rkey, remote_address: address, compare_add: add
    };
    local_inv(key: u32) = LocalInvalidate { immediate: key };
    rdma_read(rkey: u32, address: u64) = Read { rkey: rkey, remote_address: address };
    rdma_write(rkey: u32, address: u64) = Write { rkey: rkey, remote_address: address };
    rdma_write_imm(rkey: u32, address: u64, immediate: u32) = WriteWithImmediate {
        rkey: rkey, remote_address: address, immediate: immediate
    };
    send() = Send {};
    send_imm(immediate: u32) = SendWithImmediate { immediate: immediate };
    send_inv(key: u32) = SendWithInvalidate { immediate: key };
    flush(rkey: u32, address: u64, length: usize, placement: u8, selectivity: u8) = Flush {
        rkey: rkey, remote_address: address, compare_add: length as u64,
        swap: u64::from(placement) | u64::from(selectivity) << 8
    };
}

/// A builder of something that no device here has: the batch will be refused.
///
/// # Safety
/// The caller owns the builder.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    if let Some((_, _, batch)) = unsafe { builder(qp) } {
        batch.mistaken(PostError::Unsupported, None, 0);
    }
}

macro_rules! refused {
    ($($name:ident($($type:ty),*);)*) => {
        $(pub(crate) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, _: $type)*) {
            // SAFETY: the program calls builders between start and complete.
            unsafe { refuse(qp) }
        })*
    };
}

refused! {
    send_tso(*mut c_void, u16, u16);
}

/// Binds a window of type 2.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    key: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program calls builders between start and complete, with live objects.
    unsafe {
        let bind = match info.as_ref() {
            Some(info) => window::request(WindowType::Two, mw, key, info),
            None => Err(PostError::Invalid),
        };
        match (bind, builder(qp)) {
            (Ok(bind), _) => begin(qp, Opcode::BindWindow, |request| {
                (request.rkey, request.immediate) = (bind.rkey, bind.immediate);
                (request.remote_address, request.compare_add) = (bind.remote_address, bind.compare_add);
                request.swap = bind.swap;
            }),
            (Err(error), Some((_, _, batch))) => {
                batch.mistaken(
                    error,
                    Some("a window, or its region, is not one that ibv_wr_bind_mw(3) binds"),
                    0,
                );
            }
            (Err(_), None) => {}
        }
    }
}

/// Writes 8 bytes, which are taken now.
pub(crate) unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    value: *const c_void,
) {
    // SAFETY: the program calls builders between start and complete; the value is valid during the call.
    unsafe {
        begin(qp, Opcode::AtomicWrite, |request| {
            (request.rkey, request.remote_address) = (rkey, address);
        });
        set_inline_data(qp, value.cast_mut(), 8);
    }
}

/// The peer's shared receive queue, for the request that was begun last.
pub(crate) unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: the program calls builders between start and complete.
    let Some((object, _, batch)) = (unsafe { builder(qp) }) else { return };
    match batch.requests.last_mut() {
        // IB-XRC-1
        Some(request) if object.inner.core.queues().service == Service::XrcSend => {
            request.shared_queue = number;
        }
        Some(_) => batch.mistaken(PostError::Invalid, Some("the queue pair is not of XRC"), 0),
        None => batch.mistaken(PostError::Invalid, Some(NO_REQUEST), 0),
    }
}

/// Where the datagram goes that was begun last.
pub(crate) unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, queue_pair: u32, qkey: u32) {
    // SAFETY: the program calls builders between start and complete; the handle lives until then.
    let (Some((object, _, batch)), handle) = (unsafe { (builder(qp), HandleObject::get(ah)) }) else {
        return;
    };
    // IB-UD-8
    let handle = handle.filter(|handle| Arc::ptr_eq(handle.inner.domain(), object.inner.core.domain()));
    match (batch.requests.last_mut(), handle) {
        (Some(request), Some(handle)) => {
            request.destination = Some(Destination { path: *handle.inner.path(), queue_pair, qkey });
        }
        (Some(_), None) => batch.mistaken(PostError::Invalid, Some(refused::NO_HANDLE), 0),
        (None, _) => batch.mistaken(PostError::Invalid, Some(NO_REQUEST), 0),
    }
}

pub(crate) unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    // SAFETY: the program calls builders between start and complete.
    unsafe {
        place(qp, |batch| {
            let first = batch.elements.len();
            batch.elements.push(Sge { address, length, lkey });
            Ok(Place::Elements(first..first + 1))
        });
    }
}

pub(crate) unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the program calls builders between start and complete; the list is valid during the call.
    unsafe {
        place(qp, |batch| {
            let few = c_int::try_from(count).map_err(|_| (PostError::TooManySges, count))?;
            let first = batch.elements.len();
            batch.elements.extend_from_slice(elements(list, few).map_err(|error| (error, count))?);
            Ok(Place::Elements(first..batch.elements.len()))
        });
    }
}

/// Copies inline data: it is taken when it is set.
///
/// # Safety
/// The buffers are readable.
unsafe fn gather(
    batch: &mut Batch,
    most: usize,
    buffers: &[ibv_data_buf],
) -> Result<Place, (PostError, usize)> {
    let first = batch.inline.len();
    for buffer in buffers {
        if buffer.length > most - (batch.inline.len() - first) {
            let all = buffers.iter().fold(0, |sum: usize, buffer| sum.saturating_add(buffer.length));
            return Err((PostError::InlineTooLong, all));
        }
        if buffer.length > 0 {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) };
            batch.inline.extend_from_slice(bytes);
        }
    }
    Ok(Place::Inline(first..batch.inline.len()))
}

pub(crate) unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr: address, length };
    // SAFETY: one buffer.
    unsafe { set_inline_data_list(qp, 1, &raw const buffer) }
}

pub(crate) unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program calls builders between start and complete; the buffers are valid during the call.
    unsafe {
        let most =
            builder(qp).map_or(0, |(object, _, _)| object.inner.core.capabilities().max_inline_data as usize);
        place(qp, |batch| {
            let buffers = if count == 0 { &[][..] } else { std::slice::from_raw_parts(list, count) };
            gather(batch, most, buffers)
        });
    }
}

pub(crate) unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { PairObject::get(qp) }) else { return };
    let Some(builder) = &object.inner.builder else { return };
    // SAFETY: the mutex lives as long as the object; once it is held, the batch is this thread's.
    unsafe {
        libc::pthread_mutex_lock(builder.lock.get());
        clear(&mut *builder.batch.get());
    }
}

fn clear(batch: &mut Batch) {
    batch.requests.clear();
    batch.elements.clear();
    batch.inline.clear();
    batch.mistake = None;
}

pub(crate) unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller owns the builder.
    let Some((object, builder, batch)) = (unsafe { builder(qp) }) else { return libc::EINVAL };
    let core = &object.inner.core;
    let result = match batch.mistake.take() {
        Some(mistake) => Err(mistake),
        None => post(core, batch),
    };
    let result = result.map_err(|mistake| blame(mistake, batch));
    // SAFETY: held since start.
    unsafe { libc::pthread_mutex_unlock(builder.lock.get()) };
    match result {
        Ok(()) => 0,
        Err((error, refused)) => {
            refused::built(core, &refused, error);
            error.errno()
        }
    }
}

/// The request that is to blame.
#[cold]
#[inline(never)]
fn blame(mistake: Mistake, batch: &Batch) -> (PostError, RefusedRequest) {
    let first = || {
        let first = batch.requests.first();
        let (wr_id, opcode) = first.map_or((0, 0), |request| (request.wr_id, request.opcode as u32));
        RefusedRequest { wr_id, opcode, ..RefusedRequest::default() }
    };
    (mistake.error, mistake.refused.unwrap_or_else(first))
}

pub(crate) unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller owns the builder.
    let Some((_, builder, _)) = (unsafe { builder(qp) }) else { return };
    // SAFETY: held since start.
    unsafe { libc::pthread_mutex_unlock(builder.lock.get()) };
}

/// Shows the requests that were gathered: `wr_id`, operation, flags, elements, bytes, address and key at the
/// peer.
///
/// # Safety
/// The caller owns the builder.
pub(crate) unsafe fn gathered(
    qp: *mut ibv_qp_ex,
    mut each: impl FnMut(u64, Opcode, SendFlags, &[Sge], u64, u64, u32),
) {
    // SAFETY: the caller's promise.
    let Some((_, _, batch)) = (unsafe { builder(qp) }) else { return };
    for request in &batch.requests {
        let (list, length, flags) = match &request.place {
            Place::Elements(range) => {
                let list = &batch.elements[range.clone()];
                (list, list.iter().map(|sge| u64::from(sge.length)).sum(), request.flags)
            }
            Place::Inline(range) => (&[][..], range.len() as u64, request.flags | SendFlags::INLINE),
        };
        each(request.wr_id, request.opcode, flags, list, length, request.remote_address, request.rkey);
    }
}

/// Posts all requests of the batch, or none.
fn post(core: &QueuePair, batch: &Batch) -> Result<(), Mistake> {
    core.post_sends(|target| {
        for request in &batch.requests {
            let slice;
            let data = match &request.place {
                Place::Elements(range) => Data::Registered(&batch.elements[range.clone()]),
                Place::Inline(range) => {
                    slice = [&batch.inline[range.clone()]];
                    Data::Inline(&slice)
                }
            };
            let request = SendRequest {
                wr_id: request.wr_id,
                opcode: request.opcode,
                flags: request.flags,
                data,
                remote_address: request.remote_address,
                rkey: request.rkey,
                immediate: request.immediate,
                compare_add: request.compare_add,
                swap: request.swap,
                shared_queue: request.shared_queue,
                datagram: request.destination.as_ref().map(|to| Datagram {
                    path: &to.path,
                    queue_pair: to.queue_pair,
                    qkey: to.qkey,
                }),
            };
            // One alone need not be taken back.
            let alone = batch.requests.len() == 1;
            let posted = if alone { target.post(&request) } else { target.push(&request) };
            if let Err(error) = posted {
                target.abort();
                return Err(Mistake { error, refused: Some(RefusedRequest::of_builder(&request)) });
            }
        }
        Ok(())
    })
}
