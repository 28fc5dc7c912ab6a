//! Queue pairs: creation, attributes, destruction.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use adverb_core::attributes::TransportType;
use adverb_core::cq::CompletionQueue;
use adverb_core::device::Context;
use adverb_core::engine;
use adverb_core::event::AsyncEventKind;
use adverb_core::memory::moved::safe_point;
use adverb_core::qp::{AttributeMask, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State};
use adverb_core::request::Opcode;

use crate::abi::{
    IBV_MIG_MIGRATED, IBV_QP_CUR_STATE, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_PATH_MIG_STATE, IBV_QP_STATE, IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_context, ibv_cq, ibv_ece, ibv_gid, ibv_global_route,
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::address::path;
use crate::cq::QueueObject;
use crate::domain::{DomainObject, Use};
use crate::errno::{Call, fail_null, refusal};
use crate::event;
use crate::grow_list::GrowList;
use crate::memory::next_handle;
use crate::object::{Acknowledgement, Object};
use crate::port::mtu_number;
use crate::qp_ex::{self, Builder};
use crate::srq::SharedObject;
use crate::{seam, wq, xrc};

/// The queue pairs of one engine by their numbers: programs name them so to rdma_cm
/// (`struct rdma_conn_param`).
struct Numbers {
    engine: usize,
    pairs: Mutex<BTreeMap<u32, Weak<QueuePair>>>,
}

static NUMBERS: GrowList<Numbers> = GrowList::new();

fn numbers(core: &Context) -> MutexGuard<'static, BTreeMap<u32, Weak<QueuePair>>> {
    let engine = std::ptr::from_ref(core.engine()) as usize;
    let make = || Ok::<_, Infallible>(Numbers { engine, pairs: Mutex::default() });
    match NUMBERS.find_or_add(|entry| entry.engine == engine, make) {
        Ok(entry) => entry.pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()),
        Err(never) => match never {},
    }
}

/// The queue pair with this number.
pub fn by_number(context: &Context, number: u32) -> Option<Arc<QueuePair>> {
    numbers(context).get(&number)?.upgrade()
}

/// All queue pairs of this process.
pub fn all() -> Vec<Arc<QueuePair>> {
    let Some(engine) = engine::existing() else { return Vec::new() };
    let engine = std::ptr::from_ref(engine) as usize;
    let Some(entry) = NUMBERS.find(|entry| entry.engine == engine) else { return Vec::new() };
    let pairs = entry.pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pairs.values().filter_map(Weak::upgrade).collect()
}

/// Writes a state into the structure of a queue pair, unless the program has destroyed it: `ibv_destroy_qp`
/// may run in another thread, or have run while something else still holds the queue pair.
pub fn show_state(pair: &QueuePair, state: State) {
    if !pair.context().is_here() {
        return;
    }
    // Destroying begins with taking the number away, so nothing here is freed while the numbers are locked.
    let pairs = numbers(pair.context());
    if pairs.get(&pair.number()).is_some_and(|known| std::ptr::eq(known.as_ptr(), pair)) {
        // SAFETY: 0 while it is being made, otherwise the live object.
        if let Some(object) = unsafe { PairObject::get(pair.cookie() as *mut ibv_qp_ex) } {
            // SAFETY: a field of a live structure.
            unsafe { (*object.c()).qp_base.state = state as u32 };
        }
    }
}

/// What stands behind a `struct ibv_qp` or `struct ibv_qp_ex`: all are allocated as the latter.
pub struct PairSide {
    /// The queue pair. Several objects may have the same target queue pair of XRC.
    pub core: Arc<QueuePair>,
    /// The context of this object.
    context: Arc<Context>,
    /// Asynchronous events handed out about it.
    pub async_events: AtomicU32,
    /// The work request builders, if the program asked for them.
    pub builder: Option<Builder>,
    /// The queue pair's place among the queues of its domain, which all but targets of XRC have.
    _domain: Option<Use>,
}

/// A queue pair as C sees it.
pub type PairObject = Object<ibv_qp_ex, PairSide>;

/// Events about queue pairs.
const PAIR_EVENTS: &[AsyncEventKind] = &[
    AsyncEventKind::QpFatal,
    AsyncEventKind::QpRequestError,
    AsyncEventKind::QpAccessError,
    AsyncEventKind::CommunicationEstablished,
    AsyncEventKind::SendQueueDrained,
    AsyncEventKind::PathMigrated,
    AsyncEventKind::PathMigrationError,
    AsyncEventKind::QpLastWqeReached,
];

/// Which operation each bit of `send_ops_flags` asks for.
const SEND_OPERATIONS: &[(u64, Opcode)] = &[
    (IBV_QP_EX_WITH_RDMA_WRITE, Opcode::Write),
    (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, Opcode::WriteWithImmediate),
    (IBV_QP_EX_WITH_SEND, Opcode::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, Opcode::SendWithImmediate),
    (IBV_QP_EX_WITH_RDMA_READ, Opcode::Read),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, Opcode::CompareSwap),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, Opcode::FetchAdd),
    (IBV_QP_EX_WITH_LOCAL_INV, Opcode::LocalInvalidate),
    (IBV_QP_EX_WITH_BIND_MW, Opcode::BindWindow),
    (IBV_QP_EX_WITH_SEND_WITH_INV, Opcode::SendWithInvalidate),
    (IBV_QP_EX_WITH_FLUSH, Opcode::Flush),
    (IBV_QP_EX_WITH_ATOMIC_WRITE, Opcode::AtomicWrite),
];

/// The counters of asynchronous events of a queue pair.
pub(crate) fn acknowledgement(c: *mut ibv_qp_ex) -> Acknowledgement {
    // SAFETY: only addresses of fields are taken.
    unsafe {
        Acknowledgement {
            mutex: &raw mut (*c).qp_base.mutex,
            condition: &raw mut (*c).qp_base.cond,
            completed: &raw mut (*c).qp_base.events_completed,
        }
    }
}

/// A new queue pair (`ibv_create_qp(3)`): NULL and `errno` on failure. The sizes in `attr` become the real
/// ones.
///
/// # Safety
/// The pointers are NULL or live objects.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail_null(libc::EINVAL) };
    // SAFETY: the caller's promise.
    unsafe { create(pd, attr, None) }
}

/// `ibv_create_qp_ex(3)`: NULL and `errno`, `EOPNOTSUPP` for attributes or operations that the device does
/// not have.
///
/// # Safety
/// `attr` is NULL or valid, and the objects in it are live.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_IND_TABLE
        | IBV_QP_INIT_ATTR_RX_HASH
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return fail_null(libc::EINVAL) };
    let flags = if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { attr.create_flags } else { 0 };
    if attr.comp_mask & !KNOWN != 0 || flags != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & (IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH) != 0 {
        // SAFETY: the caller's promise.
        return unsafe { wq::create_hashed(context, attr) };
    }
    if attr.qp_type == IBV_QPT_XRC_RECV {
        // SAFETY: the caller's promise.
        return unsafe { xrc::create_target(context, attr) };
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return fail_null(libc::EINVAL);
    }
    let operations = (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    let mut base = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    // SAFETY: the caller's promise.
    let created = unsafe { create(attr.pd, &mut base, operations) };
    attr.cap = base.cap;
    created
}

/// Creates a queue pair on behalf of both interfaces; with `operations`, its builders are usable.
///
/// # Safety
/// The pointers are NULL or live objects.
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr, operations: Option<u64>) -> *mut ibv_qp {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let domain = unsafe { DomainObject::get(pd) };
    // A queue pair without receives needs no receive completion queue.
    // IB-XRC-7
    let receive_cq = if attr.qp_type == IBV_QPT_XRC_SEND { attr.send_cq } else { attr.recv_cq };
    // SAFETY: the caller's promise.
    let queues = unsafe { (completion_queue(attr.send_cq), completion_queue(receive_cq)) };
    let (Some(domain), (Some(send_cq), Some(receive_cq))) = (domain, queues) else {
        return fail_null(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    let srq = unsafe { SharedObject::get(attr.srq) };
    if srq.is_none() && !attr.srq.is_null() {
        return fail_null(libc::EINVAL);
    }
    let service = match attr.qp_type {
        IBV_QPT_RC => Service::Rc,
        IBV_QPT_UC => Service::Uc,
        IBV_QPT_UD => Service::Ud,
        IBV_QPT_RAW_PACKET => Service::RawPacket,
        IBV_QPT_XRC_SEND => Service::XrcSend,
        IBV_QPT_XRC_RECV => return fail_null(libc::EINVAL),
        _ => return fail_null(libc::EOPNOTSUPP),
    };
    if let Some(wanted) = operations {
        let offered = domain.inner.core.context().attributes().operations;
        let known = SEND_OPERATIONS
            .iter()
            .filter(|(_, operation)| offered.contains(operation) && service.has(*operation));
        let possible = known.fold(0, |bits, (bit, _)| bits | bit);
        if wanted & !possible != 0 {
            return fail_null(libc::EOPNOTSUPP);
        }
    }
    let options = QueuePairOptions {
        send_cq,
        receive_cq,
        srq: srq.map(|object| object.inner.core.clone()),
        capabilities: Capabilities {
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline_data: attr.cap.max_inline_data,
        },
        service,
        signal_all: attr.sq_sig_all != 0,
    };
    let core = match QueuePair::new_in(&domain.inner.core, options, &domain.inner.ring_allocator()) {
        Ok(core) => core,
        Err(error) => return fail_null(refusal(&error)),
    };
    attr.cap = capacities(&core);
    let mut c = ibv_qp_ex::zeroed();
    let base = &mut c.qp_base;
    // SAFETY: a live object.
    base.context = unsafe { (*domain.c()).context };
    (base.qp_context, base.pd) = (attr.qp_context, pd);
    (base.send_cq, base.recv_cq, base.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
    base.qp_type = attr.qp_type;
    let builder = operations.map(|_| {
        qp_ex::fill(&mut c);
        seam::watch_builders(&mut c);
        Builder::new(&core)
    });
    let context = core.context().clone();
    let object = allocate(c, core, context, builder, Some(domain.inner.enter()));
    object.inner.core.set_cookie(std::ptr::from_ref(object) as u64);
    std::ptr::from_ref(object).cast_mut().cast()
}

/// The object of a queue pair, with the fields that each has; the caller has filled in the others.
pub(crate) fn allocate(
    mut c: ibv_qp_ex,
    core: Arc<QueuePair>,
    context: Arc<Context>,
    builder: Option<Builder>,
    domain: Option<Use>,
) -> &'static PairObject {
    let base = &mut c.qp_base;
    (base.handle, base.qp_num, base.state) = (next_handle(), core.number(), core.state() as u32);
    numbers(&context).insert(core.number(), Arc::downgrade(&core));
    let object = PairObject::allocate(
        c,
        PairSide { core, context, async_events: AtomicU32::new(0), builder, _domain: domain },
    );
    // SAFETY: just allocated; nobody else knows it.
    unsafe {
        acknowledgement(object.cast()).initialize();
        &*object
    }
}

/// The core queue of a pointer.
///
/// # Safety
/// `cq` is NULL or a live object.
unsafe fn completion_queue(cq: *mut ibv_cq) -> Option<Arc<CompletionQueue>> {
    // SAFETY: the caller's promise.
    unsafe { QueueObject::get(cq) }.map(|object| object.inner.core.clone())
}

fn capacities(core: &QueuePair) -> ibv_qp_cap {
    let real = core.capabilities();
    ibv_qp_cap {
        max_send_wr: real.max_send_wr,
        max_recv_wr: real.max_recv_wr,
        max_send_sge: real.max_send_sge,
        max_recv_sge: real.max_recv_sge,
        max_inline_data: real.max_inline_data,
    }
}

/// Changes state and attributes (`ibv_modify_qp(3)`): an error number.
///
/// # Safety
/// The pointers are NULL or live.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(object), Some(attr)) = (unsafe { PairObject::get(qp) }, unsafe { attr.as_ref() }) else {
        return libc::EINVAL;
    };
    let Some(core_mask) = AttributeMask::from_bits(mask as u32) else { return libc::EINVAL };
    // IB-QP-12
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != object.inner.core.state() as u32 {
        return libc::EINVAL;
    }
    // There is one path, and a queue pair that has migrated stays on it.
    if mask & IBV_QP_PATH_MIG_STATE != 0 && attr.path_mig_state != IBV_MIG_MIGRATED {
        return libc::EINVAL;
    }
    match object.inner.core.modify(&core_attributes(attr), core_mask) {
        Ok(()) => {
            if mask & IBV_QP_STATE != 0 {
                // SAFETY: a field of a live structure.
                unsafe { (*object.c()).qp_base.state = attr.qp_state };
            }
            // What a peer of this host may reach is moved now: the thread may sleep until the peer is done.
            safe_point();
            0
        }
        Err(error) => error.errno(),
    }
}

/// The attributes of a C structure.
pub fn core_attributes(c: &ibv_qp_attr) -> Attributes {
    Attributes {
        state: State::from_number(c.qp_state),
        // Only 1 to 5 have a meaning; the mask says whether this field is looked at.
        path_mtu: if (1..=5).contains(&c.path_mtu) { 128 << c.path_mtu } else { 0 },
        qkey: c.qkey,
        rq_psn: c.rq_psn,
        sq_psn: c.sq_psn,
        destination: c.dest_qp_num,
        access: c.qp_access_flags,
        path: path(&c.ah_attr),
        pkey_index: c.pkey_index,
        max_rd_atomic: c.max_rd_atomic,
        max_dest_rd_atomic: c.max_dest_rd_atomic,
        min_rnr_timer: c.min_rnr_timer,
        port: c.port_num,
        timeout: c.timeout,
        retry_count: c.retry_cnt,
        rnr_retry: c.rnr_retry,
        sqd_notify: c.en_sqd_async_notify != 0,
        sq_draining: false,
    }
}

/// Reads the attributes (`ibv_query_qp(3)`): an error number. All are filled, whatever the mask says.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { PairObject::get(qp) }) else { return libc::EINVAL };
    if attr.is_null() || init_attr.is_null() {
        return libc::EINVAL;
    }
    let core = &object.inner.core;
    let base = object.c().cast::<ibv_qp>();
    let mut attributes = c_attributes(&core.attributes());
    attributes.cap = capacities(core);
    let iwarp = core.context().attributes().transport == TransportType::Iwarp;
    if iwarp && attributes.qp_state == State::Reset as u32 {
        // iWARP has no RESET: its drivers call what is idle INIT.
        (attributes.qp_state, attributes.cur_qp_state) = (State::Init as u32, State::Init as u32);
    }
    // SAFETY: the object lives; the results are valid by the caller's promise.
    unsafe {
        (*base).state = attributes.qp_state;
        attr.write(attributes);
        init_attr.write(ibv_qp_init_attr {
            qp_context: (*base).qp_context,
            send_cq: (*base).send_cq,
            recv_cq: (*base).recv_cq,
            srq: (*base).srq,
            cap: capacities(core),
            qp_type: (*base).qp_type,
            sq_sig_all: core.signal_all().into(),
        });
    }
    0
}

/// The C structure of attributes; sizes are not part of them.
pub fn c_attributes(from: &Attributes) -> ibv_qp_attr {
    let mut c = ibv_qp_attr::zeroed();
    c.qp_state = from.state.map_or(0, |state| state as u32);
    c.cur_qp_state = c.qp_state;
    c.path_mtu = if from.path_mtu == 0 { 0 } else { mtu_number(from.path_mtu) };
    c.qkey = from.qkey;
    c.rq_psn = from.rq_psn;
    c.sq_psn = from.sq_psn;
    c.dest_qp_num = from.destination;
    c.qp_access_flags = from.access;
    c.ah_attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.path.gid },
            flow_label: from.path.flow_label,
            sgid_index: from.path.source_gid_index,
            hop_limit: from.path.hop_limit,
            traffic_class: from.path.traffic_class,
        },
        dlid: from.path.lid,
        sl: from.path.service_level,
        src_path_bits: from.path.source_path_bits,
        static_rate: from.path.static_rate,
        is_global: from.path.is_global.into(),
        port_num: from.path.port,
    };
    c.pkey_index = from.pkey_index;
    c.en_sqd_async_notify = from.sqd_notify.into();
    c.sq_draining = from.sq_draining.into();
    c.max_rd_atomic = from.max_rd_atomic;
    c.max_dest_rd_atomic = from.max_dest_rd_atomic;
    c.min_rnr_timer = from.min_rnr_timer;
    c.port_num = from.port;
    c.timeout = from.timeout;
    c.retry_cnt = from.retry_count;
    c.rnr_retry = from.rnr_retry;
    c
}

/// Ends a queue pair (`ibv_create_qp(3)`): an error number, `EBUSY` while it is in multicast groups or flows
/// are steered to it. Waits until all events that were handed out are acknowledged.
///
/// # Safety
/// `qp` is NULL or a queue pair that is not used any more.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { PairObject::get(qp) }) else { return libc::EINVAL };
    let core = &object.inner.core;
    // IB-UD-27
    if core.context().is_here() && (core.multicast_groups() > 0 || core.flows().count() > 0) {
        return libc::EBUSY;
    }
    let (context, address) = (&object.inner.context, object.c() as u64);
    if context.is_here() {
        let mut pairs = numbers(context);
        // IB-XRC-13
        let last = core.leave_handle(address);
        if last {
            pairs.remove(&core.number());
        }
        if core.cookie() == address {
            core.set_cookie(0);
        }
        drop(pairs);
        if last {
            core.destroy();
        }
    }
    if context.is_here() {
        // IB-QP-41
        event::withdraw(context, address, PAIR_EVENTS);
        // SAFETY: the object lives until it is freed below.
        unsafe { acknowledgement(object.c()).wait_for(object.inner.async_events.load(Ordering::Acquire)) };
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// Whether received data becomes visible in order (`ibv_query_qp_data_in_order(3)`): it always does, whole
/// messages in ascending addresses.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, _operation: u32, flags: u32) -> c_int {
    const RETURN_CAPS: u32 = 1;
    const DEVICE_ONLY: u32 = 1 << 1;
    const WHOLE_MESSAGE_AND_128_BYTES: c_int = 3;
    // SAFETY: the caller's promise.
    if unsafe { PairObject::get(qp) }.is_none() || flags & !(RETURN_CAPS | DEVICE_ONLY) != 0 {
        return 0;
    }
    if flags & RETURN_CAPS != 0 { WHOLE_MESSAGE_AND_128_BYTES } else { 1 }
}

/// Vendor options (`ibv_set_ece(3)`): there are none.
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

/// Vendor options (`ibv_query_ece(3)`): there are none.
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

/// Joins a multicast group (`ibv_attach_mcast(3)`): an error number. On Ethernet the LID means nothing.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { multicast(qp, gid, QueuePair::attach_multicast) }
}

/// Leaves a multicast group (`ibv_attach_mcast(3)`): an error number, `EINVAL` for a group that it is not in.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { multicast(qp, gid, QueuePair::detach_multicast) }
}

/// # Safety
/// The pointers are NULL or valid.
unsafe fn multicast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    change: fn(&QueuePair, &[u8; 16]) -> adverb_core::error::Result<()>,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(object), Some(gid)) = (unsafe { PairObject::get(qp) }, unsafe { gid.as_ref() }) else {
        return libc::EINVAL;
    };
    change(&object.inner.core, &gid.raw).map_or_else(|error| refusal(&error), |()| 0)
}
