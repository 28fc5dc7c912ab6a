//! Opening and closing devices (`ibv_open_device(3)`), and the tables of operations that headers call
//! directly.

use core::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use adverb_core::device::{Context, Device};
use adverb_core::error::Result;
use adverb_core::export::Remote;

use crate::abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::device::{device_object, device_of};
use crate::errno::{Call, fail_null, refusal};
use crate::object::Object;
use crate::{
    cq, cq_ex, device, device_memory, domain, flow, host, import, memory, port, post, qp, seam, srq, window,
    wq, xrc,
};

/// What stands behind a `struct ibv_context`.
pub struct ContextSide {
    /// The open device.
    pub core: Arc<Context>,
    /// The context that this one was imported from.
    exporter: Option<Arc<Context>>,
    /// The context of another process that it was imported from.
    pub remote: Option<Remote>,
}

impl ContextSide {
    /// The context whose objects can be imported through this one.
    pub fn exporter(&self) -> &Arc<Context> {
        self.exporter.as_ref().unwrap_or(&self.core)
    }
}

/// An open device as C sees it: the program's pointer leads to the `context` field of the extended structure.
pub type ContextObject = Object<verbs_context, ContextSide>;

/// The object of a pointer from C, or `None` for NULL and for what is not an open context.
///
/// # Safety
/// `pointer` is NULL or points to an `ibv_context` inside a `verbs_context`, ours or another library's.
#[inline]
pub unsafe fn context<'a>(pointer: *mut ibv_context) -> Option<&'a ContextObject> {
    if pointer.is_null() {
        return None;
    }
    let base = pointer.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: the caller's promise.
    unsafe { ContextObject::get(base) }
}

/// The pointer that programs hold.
pub fn context_pointer(object: &ContextObject) -> *mut ibv_context {
    // SAFETY: a field of a live structure.
    unsafe { &raw mut (*object.c()).context }
}

/// Opens a device for use inside the library: the C structure around a core context.
pub fn open(device: &Arc<Device>) -> Result<*mut ibv_context> {
    let _call = Call::new();
    let core = device.open()?;
    let (descriptor, identity) = import::command_descriptor(&core);
    if let Some(identity) = identity {
        core.set_identity(identity);
    }
    Ok(wrap(core, None, None, descriptor))
}

/// Opens the device of `exporter` again, for the command descriptor of that context.
pub(crate) fn import(exporter: Arc<Context>, descriptor: c_int) -> Result<*mut ibv_context> {
    let _call = Call::new();
    let core = exporter.device().open()?;
    Ok(wrap(core, Some(exporter), None, descriptor))
}

/// Opens the device of a context of another process, for the command descriptor of that.
pub(crate) fn import_remote(
    device: &Arc<Device>,
    remote: Remote,
    descriptor: c_int,
) -> Result<*mut ibv_context> {
    let _call = Call::new();
    Ok(wrap(device.open()?, None, Some(remote), descriptor))
}

/// The C structure around a context.
fn wrap(
    core: Arc<Context>,
    exporter: Option<Arc<Context>>,
    remote: Option<Remote>,
    descriptor: c_int,
) -> *mut ibv_context {
    let mut c = verbs_context::zeroed();
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(port::query_port);
    c.query_device_ex = Some(device::query_device_ex);
    c.modify_cq = Some(cq::modify_cq);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.ibv_create_flow = Some(flow::create_flow);
    c.ibv_destroy_flow = Some(flow::destroy_flow);
    c.create_wq = Some(wq::create_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.destroy_wq = Some(wq::destroy_wq);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.open_qp = Some(xrc::open_qp);
    c.query_rt_values = Some(device::query_rt_values);
    c.get_srq_num = Some(srq::get_srq_num);
    c.reg_mr_ex = Some(memory::ibv_reg_mr_ex);
    c.alloc_dm = Some(device_memory::alloc_dm);
    c.free_dm = Some(device_memory::free_dm);
    c.reg_dm_mr = Some(device_memory::reg_dm_mr);
    c.alloc_null_mr = Some(memory::alloc_null_mr);
    c.advise_mr = Some(memory::advise_mr);
    c.alloc_td = Some(domain::alloc_td);
    c.dealloc_td = Some(domain::dealloc_td);
    c.alloc_parent_domain = Some(domain::alloc_parent_domain);
    c.context = ibv_context {
        device: device_object(core.device()),
        ops: operations(),
        cmd_fd: descriptor,
        async_fd: core.events().descriptor(),
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: VERBS_ABI_IS_EXTENDED,
    };
    seam::watch_context(&mut c);
    let object = ContextObject::allocate(c, ContextSide { core, exporter, remote });
    // SAFETY: just allocated.
    context_pointer(unsafe { &*object })
}

fn operations() -> ibv_context_ops {
    let mut ops = ibv_context_ops::zeroed();
    ops._compat_query_device = Some(device::ibv_query_device);
    ops._compat_query_port = Some(port::ibv_query_port);
    ops.alloc_mw = Some(window::alloc_mw);
    ops.bind_mw = Some(window::bind_mw);
    ops.dealloc_mw = Some(window::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops
}

/// Opens a device (`ibv_open_device(3)`): NULL and `errno` on failure.
///
/// # Safety
/// `device` is NULL or points to a readable `ibv_device`.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller's promise.
    if host::is_active() && unsafe { host::owns(device as usize) } {
        // SAFETY: the caller's promise.
        return unsafe { host::open(device) };
    }
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { device_of(device) }) else { return fail_null(libc::EINVAL) };
    open(&object.inner.device).unwrap_or_else(|error| fail_null(refusal(&error)))
}

/// Closes a device (`ibv_open_device(3)`). Objects that were not destroyed stay as they are until the process
/// ends.
///
/// # Safety
/// `pointer` is NULL or an open context that is not used any more.
pub unsafe extern "C" fn ibv_close_device(pointer: *mut ibv_context) -> c_int {
    // SAFETY: the caller's promise.
    if host::is_active() && unsafe { host::owns(pointer as usize) } {
        // SAFETY: the caller's promise.
        return unsafe { host::close(pointer) };
    }
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { context(pointer) }) else { return -1 };
    if object.inner.core.objects() > 0 && object.inner.core.is_here() {
        // Objects keep pointers to the context: it must not go away under them.
        return 0;
    }
    // SAFETY: nothing refers to it any more, and the descriptor is its own.
    unsafe {
        libc::close((*object.c()).context.cmd_fd);
        Object::free(object);
    }
    0
}
