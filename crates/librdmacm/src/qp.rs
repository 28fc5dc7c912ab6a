//! The queue pair and the completion queues of an identifier (`rdma_create_qp(3)`).

use core::ffi::c_int;
use std::ptr::null_mut;

use adverb_core::error::{Error, Result};
use adverb_core::qp::{Service, State};
use adverb_libibverbs::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_comp_channel, ibv_cq,
    ibv_ece, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_xrcd,
};
use adverb_libibverbs::cq::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use adverb_libibverbs::errno::{Call, errno, fail};
use adverb_libibverbs::qp::{PairObject, c_attributes, create_qp_ex, ibv_destroy_qp};
use adverb_libibverbs::srq::{create_srq_ex, ibv_destroy_srq};

use crate::abi::rdma_cm_id;
use crate::device::opened;
use crate::id::{IdObject, answer, identifier};

/// The error that a verbs call left in `errno`.
fn verbs_failed(what: &'static str) -> Error {
    Error::new(errno(), what)
}

/// Makes the identifier's queue pair, and completion queues for it where none are given
/// (`rdma_create_qp(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail(libc::EINVAL) };
    let mut full = ibv_qp_init_attr_ex::zeroed();
    (full.qp_context, full.send_cq, full.recv_cq, full.srq) =
        (attr.qp_context, attr.send_cq, attr.recv_cq, attr.srq);
    (full.cap, full.qp_type, full.sq_sig_all) = (attr.cap, attr.qp_type, attr.sq_sig_all);
    full.comp_mask = IBV_QP_INIT_ATTR_PD;
    full.pd = pd;
    // SAFETY: the caller's promise.
    let result = answer(unsafe { create(id, &mut full) });
    (attr.send_cq, attr.recv_cq, attr.srq, attr.cap) = (full.send_cq, full.recv_cq, full.srq, full.cap);
    result
}

/// Makes the identifier's queue pair, with extended attributes (`rdma_create_qp_ex(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail(libc::EINVAL) };
    // SAFETY: the caller's promise.
    answer(unsafe { create(id, attr) })
}

unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let object = unsafe { identifier(id)? };
    let c = object.c();
    // SAFETY: fields of a live structure; the objects in it are live.
    unsafe {
        if !(*c).qp.is_null() {
            return Err(Error::invalid("the identifier has a queue pair already"));
        }
        // The program may have destroyed the one before with ibv_destroy_qp.
        object.inner.core.detach_queue_pair();
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*c).pd;
        } else if (*attr.pd).context != (*c).verbs {
            return Err(Error::invalid(
                "the protection domain belongs to another context than the identifier",
            ));
        }
        let differ =
            |mine: *mut ibv_cq, given: *mut ibv_cq| !mine.is_null() && !given.is_null() && mine != given;
        if differ((*c).send_cq, attr.send_cq) || differ((*c).recv_cq, attr.recv_cq) {
            return Err(Error::invalid("the identifier has other completion queues"));
        }
        let is_target = object.inner.core.service() == Service::XrcReceive;
        if is_target && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null()) {
            attr.xrcd = xrc_domain(object)?;
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let missing = |mine: *mut ibv_cq, given: *mut ibv_cq| mine.is_null() && given.is_null();
        let send = if missing((*c).send_cq, attr.send_cq) { attr.cap.max_send_wr } else { 0 };
        let receive = if missing((*c).recv_cq, attr.recv_cq) { attr.cap.max_recv_wr } else { 0 };
        create_queues(object, send, receive)?;
        if attr.send_cq.is_null() {
            attr.send_cq = (*c).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*c).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*c).srq;
        }
        let qp = create_qp_ex((*c).verbs, attr);
        let Some(pair) = PairObject::get(qp) else {
            let error = verbs_failed("creating a queue pair");
            destroy_queues(object);
            return Err(error);
        };
        if let Err(error) = object.inner.core.attach_queue_pair(&pair.inner.core) {
            ibv_destroy_qp(qp);
            destroy_queues(object);
            return Err(error);
        }
        (*qp).state = pair.inner.core.state() as u32;
        ((*c).qp, (*c).pd) = (qp, attr.pd);
    }
    Ok(())
}

/// The XRC domain of an identifier that is given none.
fn xrc_domain(object: &IdObject) -> Result<*mut ibv_xrcd> {
    let device =
        object.inner.core.device().ok_or_else(|| Error::invalid("the identifier has no device yet"))?;
    opened(&device)?.xrc_domain()
}

/// Makes the completion queues that are missing, each with a channel. Zero entries: none.
///
/// # Safety
/// The object lives and has a context.
unsafe fn create_queues(object: &IdObject, send: u32, receive: u32) -> Result<()> {
    let c = object.c();
    // SAFETY: fields of a live structure.
    let places = unsafe {
        [
            (receive, &raw mut (*c).recv_cq_channel, &raw mut (*c).recv_cq),
            (send, &raw mut (*c).send_cq_channel, &raw mut (*c).send_cq),
        ]
    };
    for (entries, channel, queue) in places {
        if entries == 0 {
            continue;
        }
        // SAFETY: as above.
        unsafe {
            *channel = ibv_create_comp_channel((*c).verbs);
            if !(*channel).is_null() {
                *queue = ibv_create_cq((*c).verbs, entries as c_int, c.cast(), *channel, 0);
            }
            if (*queue).is_null() {
                let error = verbs_failed("creating a completion queue");
                destroy_queues(object);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Ends the identifier's completion queues and their channels.
///
/// # Safety
/// The object lives; nobody uses the queues.
unsafe fn destroy_queues(object: &IdObject) {
    let c = object.c();
    // SAFETY: fields of a live structure; what they point to was made by `create_queues`, or, for a queue
    // that serves both directions, is the same object twice.
    unsafe {
        let (send, receive): (*mut ibv_cq, *mut ibv_cq) = ((*c).send_cq, (*c).recv_cq);
        if !receive.is_null() {
            ibv_destroy_cq(receive);
        }
        if !send.is_null() && send != receive {
            ibv_destroy_cq(send);
        }
        ((*c).send_cq, (*c).recv_cq) = (null_mut(), null_mut());
        let (send, receive): (*mut ibv_comp_channel, *mut ibv_comp_channel) =
            ((*c).send_cq_channel, (*c).recv_cq_channel);
        if !receive.is_null() {
            ibv_destroy_comp_channel(receive);
        }
        if !send.is_null() && send != receive {
            ibv_destroy_comp_channel(send);
        }
        ((*c).send_cq_channel, (*c).recv_cq_channel) = (null_mut(), null_mut());
    }
}

/// Ends the identifier's queue pair, and its completion queues (`rdma_create_qp(3)`).
///
/// # Safety
/// `id` is NULL or an identifier whose queue pair is not used any more.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Ok(object) = (unsafe { identifier(id) }) else { return };
    object.inner.core.detach_queue_pair();
    let c = object.c();
    // SAFETY: fields of a live structure.
    unsafe {
        ibv_destroy_qp((*c).qp);
        (*c).qp = null_mut();
        // Where receives of XRC complete is the business of the shared receive queue.
        if object.inner.core.service() != Service::XrcReceive || (*c).srq.is_null() {
            destroy_queues(object);
        }
    }
}

/// Attributes for a program that changes the state of its queue pair itself (`rdma_init_qp_attr(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(attr), Some(mask)) = (unsafe { (attr.as_mut(), mask.as_mut()) }) else {
        return fail(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id) }.and_then(|object| {
        let state = State::from_number(attr.qp_state);
        let state = state.ok_or_else(|| Error::invalid(format!("there is no state {}", attr.qp_state)))?;
        let (attributes, which) = object.inner.core.queue_pair_attributes(state)?;
        *attr = c_attributes(&attributes);
        *mask = which.bits() as c_int;
        Ok(())
    }))
}

/// Makes the identifier's shared receive queue (`rdma_create_srq(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let object = match unsafe { identifier(id) } {
        Ok(object) if !attr.is_null() => object,
        _ => return fail(libc::EINVAL),
    };
    let mut full = ibv_srq_init_attr_ex::zeroed();
    // SAFETY: valid, as was checked.
    let base = unsafe { &mut *attr };
    (full.srq_context, full.attr) = (base.srq_context, base.attr);
    full.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    let is_target = object.inner.core.service() == Service::XrcReceive;
    full.srq_type = if is_target { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    full.pd = pd;
    // SAFETY: the caller's promise.
    let result = unsafe { create_srq(object, &mut full) };
    base.attr = full.attr;
    answer(result)
}

/// # Safety
/// The objects in `attr` are live.
unsafe fn create_srq(object: &IdObject, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let c = object.c();
    // SAFETY: fields of a live structure; the caller's promise.
    unsafe {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.pd = (*c).pd;
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if attr.srq_type == IBV_SRQT_XRC {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                attr.xrcd = xrc_domain(object)?;
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                if (*c).recv_cq.is_null() {
                    create_queues(object, 0, attr.attr.max_wr)?;
                }
                attr.cq = (*c).recv_cq;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = create_srq_ex((*c).verbs, attr);
        if srq.is_null() {
            return Err(verbs_failed("creating a shared receive queue"));
        }
        ((*c).srq, (*c).pd) = (srq, attr.pd);
    }
    Ok(())
}

/// Makes the identifier's shared receive queue, with extended attributes (`rdma_create_srq_ex(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail(libc::EINVAL) };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id).and_then(|object| create_srq(object, attr)) })
}

/// Ends the identifier's shared receive queue (`rdma_create_srq(3)`).
///
/// # Safety
/// `id` is NULL or an identifier whose shared receive queue is not used any more.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Ok(object) = (unsafe { identifier(id) }) else { return };
    let c = object.c();
    // SAFETY: fields of a live structure.
    unsafe {
        if !(*c).srq.is_null() {
            ibv_destroy_srq((*c).srq);
            (*c).srq = null_mut();
            if object.inner.core.service() == Service::XrcReceive {
                destroy_queues(object);
            }
        }
    }
}

/// Vendor options (`rdma_set_local_ece(3)`): kept for nobody, as no device has any.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promise.
    let bad = unsafe { identifier(id).is_err() || ece.as_ref().is_none_or(|ece| ece.comp_mask != 0) };
    if bad { fail(libc::EINVAL) } else { 0 }
}

/// The peer's vendor options (`rdma_get_remote_ece(3)`): all zero.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (identifier(id), ece.as_mut()) } {
        (Ok(_), Some(ece)) => {
            *ece = ibv_ece::zeroed();
            0
        }
        _ => fail(libc::EINVAL),
    }
}
