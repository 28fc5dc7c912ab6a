//! Work queues, tables of them, and queue pairs that spread frames over them (`ibv_create_wq(3)`,
//! `ibv_create_rwq_ind_table(3)`, `ibv_create_qp_ex(3)`).

use core::ffi::c_int;
use std::sync::Arc;

use adverb_core::error::PostError;
use adverb_core::qp::{QueuePair, Service};
use adverb_core::request::ReceiveRequest;
use adverb_core::rss::{Hash, HashFields, IndirectionTable, KEY_LENGTH, MOST_ENTRIES};
use adverb_core::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};

use crate::abi::{
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QPT_RAW_PACKET,
    IBV_RX_HASH_FUNC_TOEPLITZ, IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_STATE,
    IBV_WQ_INIT_ATTR_FLAGS, IBV_WQS_ERR, IBV_WQS_RDY, IBV_WQS_RESET, IBV_WQT_RQ, ibv_context, ibv_qp,
    ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};
use crate::context::{ContextObject, context};
use crate::cq::QueueObject;
use crate::domain::{DomainObject, Use};
use crate::errno::{Call, fail_null, refusal};
use crate::memory::next_handle;
use crate::object::Object;
use crate::post::{answer, elements};
use crate::qp::allocate;
use crate::refused;
use crate::seam;

/// What stands behind a `struct ibv_wq`.
pub struct WorkSide {
    /// The receives of the work queue.
    pub core: Arc<SharedReceiveQueue>,
    /// The work queue's place among the queues of its domain.
    _domain: Use,
}

/// A work queue as C sees it.
pub type WorkQueueObject = Object<ibv_wq, WorkSide>;

/// A table of work queues as C sees it.
pub type TableObject = Object<ibv_rwq_ind_table, Arc<IndirectionTable>>;

fn has_raw_packets(context: &ContextObject) -> bool {
    context.inner.core.attributes().services.contains(&Service::RawPacket)
}

/// A new work queue: NULL and `errno`, `EOPNOTSUPP` for options and on devices without raw packets.
///
/// # Safety
/// The pointers are NULL or valid.
pub(crate) unsafe extern "C" fn create_wq(
    pointer: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), Some(attr)) = (unsafe { (context(pointer), attr.as_mut()) }) else {
        return fail_null(libc::EINVAL);
    };
    let flags = if attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 { attr.create_flags } else { 0 };
    if !has_raw_packets(context) || attr.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 || flags != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let objects = unsafe { (DomainObject::get(attr.pd), QueueObject::get(attr.cq)) };
    let ((Some(domain), Some(cq)), IBV_WQT_RQ) = (objects, attr.wq_type) else {
        return fail_null(libc::EINVAL);
    };
    let sizes = SharedReceiveQueueAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
    let allocator = domain.inner.ring_allocator();
    match SharedReceiveQueue::new_work_queue(&domain.inner.core, sizes, &cq.inner.core, allocator) {
        Ok(core) => {
            let real = core.attributes();
            (attr.max_wr, attr.max_sge) = (real.max_wr, real.max_sge);
            let mut c = ibv_wq::zeroed();
            (c.context, c.wq_context, c.pd, c.cq) = (pointer, attr.wq_context, attr.pd, attr.cq);
            (c.wq_num, c.handle, c.state) = (core.number(), next_handle(), IBV_WQS_RESET);
            c.post_recv = Some(post_wq_recv);
            seam::watch_work_queue(&mut c);
            WorkQueueObject::allocate(c, WorkSide { core, _domain: domain.inner.enter() }).cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Changes the state of a work queue (`ibv_modify_wq(3)`): an error number.
///
/// # Safety
/// The pointers are NULL or valid.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(object), Some(attr)) = (unsafe { (WorkQueueObject::get(wq), attr.as_ref()) }) else {
        return libc::EINVAL;
    };
    if attr.attr_mask & IBV_WQ_ATTR_FLAGS != 0 {
        return libc::EOPNOTSUPP;
    }
    if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE) != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a field of a live structure.
    let state = unsafe { &mut (*object.c()).state };
    if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != *state {
        return libc::EINVAL;
    }
    if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
        match (*state, attr.wq_state) {
            (IBV_WQS_ERR, IBV_WQS_RDY) => return libc::EINVAL,
            (_, IBV_WQS_RESET | IBV_WQS_RDY | IBV_WQS_ERR) => {}
            _ => return libc::EINVAL,
        }
        object.inner.core.set_ready(attr.wq_state == IBV_WQS_RDY);
        *state = attr.wq_state;
    }
    0
}

/// Ends a work queue: an error number, `EBUSY` while tables have it.
///
/// # Safety
/// `wq` is NULL or a work queue that is not used any more.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { WorkQueueObject::get(wq) }) else { return libc::EINVAL };
    if let Err(error) = object.inner.core.retire() {
        return refusal(&error);
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// `ibv_post_wq_recv(3)`: an error number, and which request it was. Those before it are posted.
pub(crate) unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    // SAFETY: the caller's promise.
    let object = unsafe { WorkQueueObject::get(wq) };
    let mut result = object.ok_or(PostError::Invalid).map(drop);
    // SAFETY: the list consists of valid requests and ends with NULL.
    while let (Some(object), Some(request)) = (object, unsafe { at.as_ref() }) {
        // SAFETY: the lists of the requests are valid while they are posted.
        let sges = unsafe { elements(request.sg_list, request.num_sge) };
        result = sges
            .and_then(|sges| object.inner.core.post_receive(&ReceiveRequest { wr_id: request.wr_id, sges }));
        if let Err(error) = result {
            refused::shared_receive(&object.inner.core, request, error);
            break;
        }
        at = request.next;
    }
    // SAFETY: `bad` is NULL or valid.
    unsafe { answer(result, at, bad) }
}

/// A new table: NULL and `errno`.
///
/// # Safety
/// The pointers are NULL or valid, and the table's list is as long as it says.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    pointer: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), Some(attr)) = (unsafe { (context(pointer), attr.as_ref()) }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask != 0 || !has_raw_packets(context) {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attr.log_ind_tbl_size > MOST_ENTRIES.ilog2() || attr.ind_tbl.is_null() {
        return fail_null(libc::EINVAL);
    }
    let queue = |index| {
        // SAFETY: the caller's promise.
        let found = unsafe { WorkQueueObject::get(*attr.ind_tbl.add(index)) };
        found.map(|object| object.inner.core.clone())
    };
    let queues: Option<Vec<_>> = (0..1 << attr.log_ind_tbl_size).map(queue).collect();
    let Some(queues) = queues else { return fail_null(libc::EINVAL) };
    match IndirectionTable::new(&context.inner.core, queues) {
        Ok(core) => {
            let handle = next_handle() as c_int;
            let c = ibv_rwq_ind_table {
                context: pointer,
                ind_tbl_handle: handle,
                ind_tbl_num: handle,
                comp_mask: 0,
            };
            TableObject::allocate(c, core).cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Ends a table: an error number, `EBUSY` while queue pairs use it.
///
/// # Safety
/// `table` is NULL or a table that is not used any more.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { TableObject::get(table) }) else { return libc::EINVAL };
    if object.inner.users().count() > 0 {
        return libc::EBUSY;
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// A queue pair that spreads frames: NULL and `errno`.
///
/// # Safety
/// `pointer` is NULL or an open context; the objects in `attr` are live, and the key is as long as it says.
pub(crate) unsafe fn create_hashed(pointer: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if !unsafe { context(pointer) }.is_some_and(has_raw_packets) {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let objects =
        unsafe { (context(pointer), DomainObject::get(attr.pd), TableObject::get(attr.rwq_ind_tbl)) };
    let (Some(context), Some(domain), Some(table)) = objects else { return fail_null(libc::EINVAL) };
    let hash = &attr.rx_hash_conf;
    if attr.comp_mask & NEEDED != NEEDED
        || attr.qp_type != IBV_QPT_RAW_PACKET
        || usize::from(hash.rx_hash_key_len) != KEY_LENGTH
        || hash.rx_hash_key.is_null()
    {
        return fail_null(libc::EINVAL);
    }
    let fields = HashFields::from_bits(hash.rx_hash_fields_mask);
    let (Some(fields), IBV_RX_HASH_FUNC_TOEPLITZ) = (fields, hash.rx_hash_function) else {
        return fail_null(libc::EOPNOTSUPP);
    };
    // SAFETY: as long as it says, by the caller's promise.
    let key = unsafe { hash.rx_hash_key.cast::<[u8; KEY_LENGTH]>().read() };
    match QueuePair::new_hashed(&domain.inner.core, &table.inner, Hash { key, fields }) {
        Ok(core) => {
            attr.cap = ibv_qp_cap::zeroed();
            let mut c = ibv_qp_ex::zeroed();
            let base = &mut c.qp_base;
            (base.context, base.qp_context, base.pd) = (pointer, attr.qp_context, attr.pd);
            base.qp_type = attr.qp_type;
            let object = allocate(c, core, context.inner.core.clone(), None, Some(domain.inner.enter()));
            object.inner.core.set_cookie(object.c() as u64);
            object.c().cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}
