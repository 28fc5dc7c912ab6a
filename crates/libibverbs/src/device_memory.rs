//! Device memory (`ibv_alloc_dm(3)`).

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use adverb_core::error::Error;
use adverb_core::log;
use adverb_core::memory::Access;
use adverb_core::region::DeviceMemory;

use crate::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::context;
use crate::domain::DomainObject;
use crate::errno::{Call, fail_null, refusal};
use crate::memory::{RegionObject, next_handle};
use crate::object::Object;

/// Device memory as C sees it.
pub type DeviceMemoryObject = Object<ibv_dm, Arc<DeviceMemory>>;

/// The C structure around device memory of `pointer`'s device.
fn wrap(pointer: *mut ibv_context, core: Arc<DeviceMemory>) -> *mut ibv_dm {
    let c = ibv_dm {
        context: pointer,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle: core.number(),
    };
    DeviceMemoryObject::allocate(c, core).cast()
}

/// Allocates device memory: NULL and `errno` on failure.
pub(crate) unsafe extern "C" fn alloc_dm(
    pointer: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), Some(attr)) = (unsafe { (context(pointer), attr.as_ref()) }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask != 0 {
        return fail_null(libc::EINVAL);
    }
    match DeviceMemory::new(&context.inner.core, attr.length as u64, attr.log_align_req, next_handle()) {
        Ok(core) => wrap(pointer, core),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Frees device memory: an error number, `EBUSY` while regions of it are registered.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { DeviceMemoryObject::get(dm) }) else { return libc::EINVAL };
    if let Err(error) = object.inner.retire() {
        return refusal(&error);
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

fn answer(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| refusal(&error), |()| 0)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    source: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { DeviceMemoryObject::get(dm) }) else { return libc::EINVAL };
    if length == 0 {
        return 0;
    }
    // SAFETY: `length` readable bytes, by the caller's promise.
    answer(object.inner.write(offset, unsafe { std::slice::from_raw_parts(source.cast(), length) }))
}

unsafe extern "C" fn memcpy_from_dm(
    target: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { DeviceMemoryObject::get(dm) }) else { return libc::EINVAL };
    if length == 0 {
        return 0;
    }
    // SAFETY: `length` writable bytes, by the caller's promise.
    answer(object.inner.read(offset, unsafe { std::slice::from_raw_parts_mut(target.cast(), length) }))
}

/// Registers a part of device memory (`ibv_reg_dm_mr(3)`): NULL and `errno` on failure.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(domain), Some(memory)) = (unsafe { (DomainObject::get(pd), DeviceMemoryObject::get(dm)) })
    else {
        return fail_null(libc::EINVAL);
    };
    let access = Access::from_bits_retain(access);
    match memory.inner.register(&domain.inner.core, offset, length as u64, access) {
        Ok(region) => RegionObject::of(domain, std::ptr::null_mut(), length, region),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Makes device memory of an imported device usable through it (`ibv_import_dm(3)`): NULL and `errno` on
/// failure, `EOPNOTSUPP` for that of another process.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_import_dm(pointer: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    if context.inner.remote.is_some() {
        log!(
            Warn,
            "device memory of another process is not imported: import a region of ordinary memory instead"
        );
        return fail_null(libc::EOPNOTSUPP);
    }
    match context.inner.exporter().device_memory(handle) {
        Some(core) => wrap(pointer, core),
        None => fail_null(libc::ENOENT),
    }
}

/// Forgets imported device memory (`ibv_import_dm(3)`); the original stays.
///
/// # Safety
/// `dm` is NULL or imported device memory that is not used any more.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller's promise.
    if let Some(object) = unsafe { DeviceMemoryObject::get(dm) } {
        // SAFETY: nothing refers to it any more.
        unsafe { Object::free(object) };
    }
}
