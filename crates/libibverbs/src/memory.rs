//! Memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use adverb_core::memory::Access;
use adverb_core::region::{Advice, MemoryRegion, Reregistration, advise, register_descriptor};

use crate::abi::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_REG_MR_MASK_ADDR,
    IBV_REG_MR_MASK_IOVA, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, ibv_mr, ibv_mr_init_attr,
    ibv_pd, ibv_sge,
};
use crate::domain::DomainObject;
use crate::errno::{Call, fail_null, refusal, set_errno};
use crate::object::Object;
use crate::post::elements;

/// What stands behind a `struct ibv_mr`. The region is replaced by [`ibv_rereg_mr`].
pub struct RegionSide {
    key: u32,
    /// The region. None of an imported one, which another structure stands for.
    region: Mutex<Option<Arc<MemoryRegion>>>,
}

impl RegionSide {
    fn region(&self) -> MutexGuard<'_, Option<Arc<MemoryRegion>>> {
        self.region.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The region's key.
    pub fn key(&self) -> u32 {
        self.key
    }
}

/// A memory region as C sees it.
pub type RegionObject = Object<ibv_mr, RegionSide>;

impl RegionObject {
    /// The C structure around a region. Its handle is the key, for import.
    pub(crate) fn of(
        domain: &DomainObject,
        address: *mut c_void,
        length: usize,
        region: Arc<MemoryRegion>,
    ) -> *mut ibv_mr {
        Self::wrap(domain, address, length, region.key(), Some(region))
    }

    /// The C structure that stands for the region with this key beside the one that was made for it.
    pub(crate) fn imported(
        domain: &DomainObject,
        address: *mut c_void,
        length: usize,
        key: u32,
    ) -> *mut ibv_mr {
        Self::wrap(domain, address, length, key, None)
    }

    fn wrap(
        domain: &DomainObject,
        addr: *mut c_void,
        length: usize,
        key: u32,
        region: Option<Arc<MemoryRegion>>,
    ) -> *mut ibv_mr {
        // SAFETY: a live object.
        let context = unsafe { (*domain.c()).context };
        let c = ibv_mr { context, pd: domain.c(), addr, length, handle: key, lkey: key, rkey: key };
        Self::allocate(c, RegionSide { key, region: Mutex::new(region) }).cast()
    }
}

/// Numbers for the `handle` fields, which mean nothing to this library.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Registers memory (`ibv_reg_mr(3)`).
///
/// # Safety
/// `pd` is NULL or a protection domain; the program answers for what happens to the bytes until
/// deregistration.
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, address, length, address as u64, access as u32) }
}

/// Registers memory under another address (`ibv_reg_mr(3)`).
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, address, length, iova, access as u32) }
}

/// Registers memory under another address, as [`ibv_reg_mr_iova`]. The inline functions of `verbs.h` call it
/// when the access flags may contain optional ones.
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    let access = Access::from_bits_retain(access);
    // SAFETY: the program answers for the bytes.
    let registered =
        unsafe { MemoryRegion::register(&domain.inner.core, address as usize, length as u64, iova, access) };
    match registered {
        Ok(region) => RegionObject::of(domain, address, length, region),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Registers what a descriptor maps (`ibv_reg_dmabuf_mr(3)`). As in rdma-core the address of the result is
/// the offset.
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    let access = Access::from_bits_retain(access as u32);
    match register_descriptor(&domain.inner.core, descriptor, offset, length as u64, iova, access) {
        Ok(region) => RegionObject::of(domain, offset as *mut c_void, length, region),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// A region that is read as zeros and takes everything that is written (`ibv_alloc_null_mr(3)`): NULL and
/// `errno` on failure.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    match MemoryRegion::null(&domain.inner.core) {
        Ok(region) => RegionObject::of(domain, std::ptr::null_mut(), usize::MAX, region),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Registers memory described by a structure (`ibv_reg_mr_ex(3)`): plain memory only.
///
/// # Safety
/// As for [`ibv_reg_mr`]; `attr` is NULL or valid.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return fail_null(libc::EINVAL) };
    if attr.comp_mask & !(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_REG_MR_MASK_ADDR == 0 {
        return fail_null(libc::EINVAL);
    }
    let iova = if attr.comp_mask & IBV_REG_MR_MASK_IOVA != 0 { attr.iova } else { attr.addr as u64 };
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, attr.access as u32) }
}

/// Changes a region (`ibv_rereg_mr(3)`): 0, or an `enum ibv_rereg_mr_err_code` with `errno`. The keys stay;
/// on failure the region is as it was.
///
/// # Safety
/// `mr` is NULL or a region that no request uses; as for [`ibv_reg_mr`] for the new bytes.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let _call = Call::new();
    const ALL: c_int = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let fail = |number: c_int, code: c_int| {
        set_errno(number);
        code
    };
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { RegionObject::get(mr) }) else {
        return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
    };
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    if flags & !ALL != 0 || (moves && (address.is_null() || length == 0)) || (access != 0 && !changes_access)
    {
        return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
    }
    let mut guard = object.inner.region();
    let Some(current) = guard.as_mut() else { return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT) };
    let mut change = Reregistration {
        domain: None,
        bytes: moves.then_some((address as usize, length as u64)),
        access: changes_access.then_some(Access::from_bits_retain(access as u32)),
    };
    if flags & IBV_REREG_MR_CHANGE_PD != 0 {
        // SAFETY: the caller's promise.
        let Some(domain) = (unsafe { DomainObject::get(pd) }) else {
            return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
        };
        change.domain = Some(domain.inner.core.clone());
    }
    // SAFETY: the program answers for the bytes.
    *current = match unsafe { current.reregister(&change) } {
        Ok(region) => region,
        Err(error) => return fail(refusal(&error), IBV_REREG_MR_ERR_CMD),
    };
    let c = object.c();
    // SAFETY: a live object; the program may not use the structure meanwhile.
    unsafe {
        if moves {
            ((*c).addr, (*c).length) = (address, length);
        }
        if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            (*c).pd = pd;
        }
    }
    0
}

/// Advice about memory that will be used soon (`ibv_advise_mr(3)`): an error number.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    let _call = Call::new();
    let advice = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchPresent,
        _ => return libc::EOPNOTSUPP,
    };
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return libc::EINVAL };
    // SAFETY: the list has `count` elements, by the caller's promise.
    let elements = c_int::try_from(count).map(|count| unsafe { elements(list, count) });
    let Ok(Ok(elements)) = elements else { return libc::EINVAL };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || elements.is_empty() {
        return libc::EINVAL;
    }
    let wait = flags & IBV_ADVISE_MR_FLAG_FLUSH != 0;
    advise(&domain.inner.core, advice, wait, elements).map_or_else(|error| refusal(&error), |()| 0)
}

/// Ends a registration (`ibv_reg_mr(3)`): an error number, `EBUSY` while windows are bound to it, `EINVAL`
/// for one that was imported within the process. Of another process's it ends the import alone: the region
/// itself is its exporter's. When it returns, nobody touches the bytes any more.
///
/// # Safety
/// `mr` is NULL or a region that is not used any more.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { RegionObject::get(mr) }) else { return libc::EINVAL };
    // Whoever imported it forgets it instead.
    let Some(region) = object.inner.region().clone() else { return libc::EINVAL };
    if let Err(error) = region.try_deregister() {
        return refusal(&error);
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}
