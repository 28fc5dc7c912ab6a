//! Shared receive queues (`ibv_create_srq(3)`).

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_core::error::Result;
use adverb_core::event::AsyncEventKind;
use adverb_core::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_pd, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::cq::QueueObject;
use crate::domain::{DomainObject, Use};
use crate::errno::{Call, fail_null, refusal};
use crate::event;
use crate::memory::next_handle;
use crate::object::{Acknowledgement, Object};
use crate::xrc::{XrcDomainObject, has_xrc};

/// What stands behind a `struct ibv_srq`.
pub struct SharedSide {
    /// The queue.
    pub core: Arc<SharedReceiveQueue>,
    /// Asynchronous events handed out about it.
    pub async_events: AtomicU32,
    /// The queue's place among the queues of its domain.
    _domain: Use,
}

/// A shared receive queue as C sees it.
pub type SharedObject = Object<ibv_srq, SharedSide>;

/// The counters of asynchronous events of a queue.
pub(crate) fn acknowledgement(c: *mut ibv_srq) -> Acknowledgement {
    // SAFETY: only addresses of fields are taken.
    unsafe {
        Acknowledgement {
            mutex: &raw mut (*c).mutex,
            condition: &raw mut (*c).cond,
            completed: &raw mut (*c).events_completed,
        }
    }
}

/// A new queue (`ibv_create_srq(3)`): NULL and `errno` on failure. The sizes in `attr` become the real ones;
/// the limit in it is not looked at.
///
/// # Safety
/// The pointers are NULL or live objects.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(domain), Some(attr)) = (unsafe { DomainObject::get(pd) }, unsafe { attr.as_mut() }) else {
        return fail_null(libc::EINVAL);
    };
    let core =
        SharedReceiveQueue::new_in(&domain.inner.core, sizes(&attr.attr), domain.inner.ring_allocator());
    finish(domain, core, attr.srq_context, &mut attr.attr)
}

fn sizes(attr: &ibv_srq_attr) -> SharedReceiveQueueAttributes {
    SharedReceiveQueueAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 }
}

/// The object of a new queue; the sizes in `attr` become the real ones.
fn finish(
    domain: &DomainObject,
    core: Result<Arc<SharedReceiveQueue>>,
    program: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> *mut ibv_srq {
    let core = match core {
        Ok(core) => core,
        Err(error) => return fail_null(refusal(&error)),
    };
    let real = core.attributes();
    (attr.max_wr, attr.max_sge) = (real.max_wr, real.max_sge);
    let mut c = ibv_srq::zeroed();
    // SAFETY: a live object.
    c.context = unsafe { (*domain.c()).context };
    (c.srq_context, c.pd, c.handle) = (program, domain.c(), next_handle());
    let side = SharedSide { core, async_events: AtomicU32::new(0), _domain: domain.inner.enter() };
    let object = SharedObject::allocate(c, side);
    // SAFETY: just allocated; nobody else knows it.
    unsafe {
        acknowledgement(object.cast()).initialize();
        (*object).inner.core.set_cookie(object as u64);
    }
    object.cast()
}

/// `ibv_create_srq_ex(3)`: basic queues and those of XRC, `EOPNOTSUPP` for the others.
///
/// # Safety
/// The pointers are NULL or live objects.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail_null(libc::EINVAL) };
    let basic = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == IBV_SRQT_BASIC;
    if !basic && attr.srq_type == IBV_SRQT_XRC {
        // SAFETY: the caller's promise.
        return unsafe { if has_xrc(context) { create_extended(attr) } else { fail_null(libc::EOPNOTSUPP) } };
    }
    if !basic || attr.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        return fail_null(libc::EINVAL);
    }
    let mut base = ibv_srq_init_attr { srq_context: attr.srq_context, attr: attr.attr };
    // SAFETY: the caller's promise.
    let created = unsafe { ibv_create_srq(attr.pd, &mut base) };
    attr.attr = base.attr;
    created
}

/// A queue of XRC.
///
/// # Safety
/// The objects in `attr` are live.
unsafe fn create_extended(attr: &mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    const NEEDED: u32 =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let _call = Call::new();
    if attr.comp_mask & !NEEDED != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let objects =
        unsafe { (DomainObject::get(attr.pd), XrcDomainObject::get(attr.xrcd), QueueObject::get(attr.cq)) };
    let (NEEDED, (Some(domain), Some(xrc_domain), Some(cq))) = (attr.comp_mask, objects) else {
        return fail_null(libc::EINVAL);
    };
    let core = SharedReceiveQueue::new_extended(
        &domain.inner.core,
        sizes(&attr.attr),
        &xrc_domain.inner,
        &cq.inner.core,
        domain.inner.ring_allocator(),
    );
    finish(domain, core, attr.srq_context, &mut attr.attr)
}

/// Changes the size and arms the limit (`ibv_modify_srq(3)`): an error number. On an error nothing has
/// changed.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(object), Some(attr)) = (unsafe { SharedObject::get(srq) }, unsafe { attr.as_ref() }) else {
        return libc::EINVAL;
    };
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return libc::EINVAL;
    }
    let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    object.inner.core.modify(max_wr, limit).map_or_else(|error| refusal(&error), |()| 0)
}

/// Sizes and the limit that is armed (`ibv_query_srq(3)`): an error number.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(object), Some(attr)) = (unsafe { SharedObject::get(srq) }, unsafe { attr.as_mut() }) else {
        return libc::EINVAL;
    };
    let real = object.inner.core.attributes();
    *attr = ibv_srq_attr { max_wr: real.max_wr, max_sge: real.max_sge, srq_limit: real.limit };
    0
}

/// Ends a queue (`ibv_create_srq(3)`): an error number, `EBUSY` while queue pairs use it. Waits until all
/// events that were handed out are acknowledged.
///
/// # Safety
/// `srq` is NULL or a queue that is not used any more.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { SharedObject::get(srq) }) else { return libc::EINVAL };
    let core = &object.inner.core;
    if let Err(error) = core.retire() {
        return refusal(&error);
    }
    if core.context().is_here() {
        let kinds = [AsyncEventKind::SrqError, AsyncEventKind::SrqLimitReached];
        event::withdraw(core.context(), object.c() as u64, &kinds);
        // SAFETY: the object lives until it is freed below.
        unsafe { acknowledgement(object.c()).wait_for(object.inner.async_events.load(Ordering::Acquire)) };
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// The number of a queue (`ibv_get_srq_num(3)`): an error number.
///
/// # Safety
/// The pointers are NULL or valid.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(object), Some(number)) = (unsafe { SharedObject::get(srq) }, unsafe { number.as_mut() }) else {
        return libc::EINVAL;
    };
    *number = object.inner.core.number();
    0
}
