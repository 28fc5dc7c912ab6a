//! Memory windows (`ibv_alloc_mw(3)`, `ibv_bind_mw(3)`).

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use adverb_core::error::PostError;
use adverb_core::memory::WindowType;
use adverb_core::region::MemoryWindow;
use adverb_core::request::{Opcode, SendFlags, SendRequest};

use crate::abi::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::domain::DomainObject;
use crate::errno::{Call, fail_null, refusal};
use crate::memory::{RegionObject, next_handle};
use crate::object::Object;
use crate::qp::PairObject;
use crate::refused::{self, RefusedRequest};

/// A memory window as C sees it.
pub type WindowObject = Object<ibv_mw, Arc<MemoryWindow>>;

/// A new window: NULL and `errno` on failure.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    let core_kind = match kind {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return fail_null(libc::EINVAL),
    };
    match MemoryWindow::new(&domain.inner.core, core_kind) {
        Ok(core) => {
            // SAFETY: a live object.
            let context = unsafe { (*domain.c()).context };
            let c = ibv_mw { context, pd, rkey: core.key(), handle: next_handle(), r#type: kind };
            WindowObject::allocate(c, core).cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Ends a window: an error number.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { WindowObject::get(mw) }) else { return libc::EINVAL };
    object.inner.deallocate();
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// Binds a window of type 1: an error number. Its key is another one when this returns, though it opens
/// something only once the request is complete.
// IB-MW-12
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(pair), Some(window), Some(bind)) =
        (unsafe { (PairObject::get(qp), WindowObject::get(mw), bind.as_ref()) })
    else {
        return libc::EINVAL;
    };
    // SAFETY: NULL or a region, by the caller's promise.
    if let Some(region) = unsafe { RegionObject::get(bind.bind_info.mr) }
        // SAFETY: a live object, and its protection domain.
        && unsafe { DomainObject::get((*region.c()).pd) }
            .is_none_or(|domain| domain.inner.core.number() != window.inner.domain().number())
    {
        return libc::EPERM;
    }
    // SAFETY: a live object, which the program leaves alone meanwhile.
    let old = unsafe { (*window.c()).rkey };
    let key = old & !0xff | old.wrapping_add(1) & 0xff;
    // SAFETY: the caller's promise.
    let request = unsafe { request(WindowType::One, mw, key, &bind.bind_info) }.map(|request| SendRequest {
        wr_id: bind.wr_id,
        flags: flags(bind.send_flags),
        ..request
    });
    let posted = request.and_then(|request| pair.inner.core.post_sends(|batch| batch.push(&request)));
    match posted {
        Ok(()) => {
            // SAFETY: as above.
            unsafe { (*window.c()).rkey = key };
            0
        }
        Err(error) => {
            let opcode = Opcode::BindWindow as u32;
            let refused = RefusedRequest { wr_id: bind.wr_id, opcode, ..RefusedRequest::default() };
            refused::built(&pair.inner.core, &refused, error);
            error.errno()
        }
    }
}

/// The flags of a send work request.
pub(crate) fn flags(c: c_uint) -> SendFlags {
    SendFlags::from_bits_truncate(c as u8)
}

/// The request that binds a window of this kind under `key`.
///
/// # Safety
/// The window is NULL or live; so is the region.
pub(crate) unsafe fn request(
    kind: WindowType,
    mw: *mut ibv_mw,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendRequest<'static>, PostError> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { (WindowObject::get(mw), RegionObject::get(info.mr)) };
    let window = window.filter(|window| window.inner.kind() == kind).ok_or(PostError::Invalid)?;
    if region.is_none() && (!info.mr.is_null() || info.addr != 0 || info.length != 0) {
        return Err(PostError::Invalid);
    }
    Ok(SendRequest {
        opcode: Opcode::BindWindow,
        rkey: window.inner.key() & !0xff | key & 0xff,
        immediate: region.map_or(0, |region| region.inner.key()),
        remote_address: info.addr,
        compare_add: info.length,
        swap: info.mw_access_flags.into(),
        ..SendRequest::default()
    })
}
