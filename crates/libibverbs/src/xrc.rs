//! XRC: domains (`ibv_open_xrcd(3)`), target queue pairs (`ibv_create_qp_ex(3)`, `ibv_open_qp(3)`).

use core::ffi::c_int;
use std::sync::Arc;

use adverb_core::qp::{QueuePair, Service};
use adverb_core::xrc::{FileId, XrcDomain, XrcDomainOptions};

use crate::abi::{
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_RESERVED,
    IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_XRC_RECV, IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::context;
use crate::errno::{Call, errno, fail_null, refusal};
use crate::object::Object;
use crate::qp::{PairObject, allocate};

/// An open XRC domain as C sees it.
pub type XrcDomainObject = Object<ibv_xrcd, Arc<XrcDomain>>;

/// Opens a domain (`ibv_open_xrcd(3)`): NULL and `errno` on failure, as Linux: `EINVAL` for attributes that
/// are missing and for `O_EXCL` where there is a domain, `EAGAIN` where there is none and none shall be made,
/// `EBADF` for a bad descriptor, `EOPNOTSUPP` for unknown attributes and devices without XRC.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn open_xrcd(
    pointer: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const KNOWN: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if !unsafe { has_xrc(pointer) } {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let (Some(context), Some(attr)) = (unsafe { (context(pointer), attr.as_ref()) }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask & !KNOWN != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask != KNOWN || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return fail_null(libc::EINVAL);
    }
    let file = match attr.fd {
        -1 => None,
        fd => match file_id(fd) {
            Some(file) => Some(file),
            None => return fail_null(errno()),
        },
    };
    let options = XrcDomainOptions {
        file,
        create: attr.oflags & libc::O_CREAT != 0,
        exclusive: attr.oflags & libc::O_EXCL != 0,
    };
    match XrcDomain::open(&context.inner.core, options) {
        Ok(core) => XrcDomainObject::allocate(ibv_xrcd { context: pointer }, core).cast(),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Whether the device of a context has XRC. False for what is no context.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub(crate) unsafe fn has_xrc(pointer: *mut ibv_context) -> bool {
    // SAFETY: the caller's promise.
    let found = unsafe { context(pointer) };
    found.is_some_and(|context| context.inner.core.attributes().services.contains(&Service::XrcReceive))
}

/// What a descriptor is open on; None and `errno` if it is not.
fn file_id(fd: c_int) -> Option<FileId> {
    // SAFETY: zeroed memory is a structure of numbers, into which fstat(2) writes.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

/// Closes a domain (`ibv_open_xrcd(3)`): an error number, `EBUSY` while what was made or opened with it is
/// there.
///
/// # Safety
/// `xrcd` is NULL or a domain that is not used any more.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { XrcDomainObject::get(xrcd) }) else { return libc::EINVAL };
    if let Err(error) = object.inner.retire() {
        return refusal(&error);
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// A new target queue pair.
///
/// # Safety
/// `context` is NULL or an open context; the objects in `attr` are live.
pub(crate) unsafe fn create_target(context: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if !unsafe { has_xrc(context) } {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { XrcDomainObject::get(attr.xrcd) }) else { return fail_null(libc::EINVAL) };
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return fail_null(libc::EINVAL);
    }
    match QueuePair::new_target(&domain.inner) {
        Ok(core) => {
            attr.cap = ibv_qp_cap::zeroed();
            // SAFETY: the caller's promise.
            unsafe { handle(context, domain, core, attr.qp_context, true) }
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Another object for a target queue pair of the domain (`ibv_open_qp(3)`): NULL and `errno`, `EINVAL` for
/// attributes that are missing and where the domain has no such queue pair. It counts like the creator's: the
/// queue pair goes with the last of them.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn open_qp(pointer: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return fail_null(libc::EINVAL) };
    if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let domain = unsafe { XrcDomainObject::get(attr.xrcd) };
    let Some(domain) = domain.filter(|_| attr.comp_mask & NEEDED == NEEDED) else {
        return fail_null(libc::EINVAL);
    };
    if attr.qp_type != IBV_QPT_XRC_RECV {
        return fail_null(libc::EINVAL);
    }
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let program = if has_context { attr.qp_context } else { std::ptr::null_mut() };
    match domain.inner.target(attr.qp_num) {
        // SAFETY: the caller's promise.
        Ok(core) => unsafe { handle(pointer, domain, core, program, false) },
        Err(error) => fail_null(refusal(&error)),
    }
}

/// An object for a target queue pair.
///
/// # Safety
/// `pointer` is NULL or an open context.
unsafe fn handle(
    pointer: *mut ibv_context,
    domain: &XrcDomainObject,
    core: Arc<QueuePair>,
    program: *mut core::ffi::c_void,
    is_new: bool,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    let mut c = ibv_qp_ex::zeroed();
    let base = &mut c.qp_base;
    (base.context, base.qp_context, base.qp_type) = (pointer, program, IBV_QPT_XRC_RECV);
    let object: &PairObject = allocate(c, core, context.inner.core.clone(), None, None);
    let address = object.c() as u64;
    if let Err(error) = object.inner.core.enter_handle(address, &domain.inner, is_new) {
        // SAFETY: nobody else knows it.
        unsafe { Object::free(object) };
        return fail_null(refusal(&error));
    }
    if is_new {
        object.inner.core.set_cookie(address);
    }
    object.c().cast()
}
