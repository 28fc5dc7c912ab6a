//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use adverb_core::cancel::Deferred;
use adverb_core::memory::{Access, Advice, MemoryRegion, ProtectionDomain, Reregistration, advise};

use crate::abi::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_REG_MR_MASK_ADDR,
    IBV_REG_MR_MASK_IOVA, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, ibv_context, ibv_mr,
    ibv_mr_init_attr, ibv_parent_domain_init_attr, ibv_pd, ibv_sge, ibv_td, ibv_td_init_attr,
};
use crate::context::context;
use crate::errno::{fail_null, set_errno};
use crate::object::Object;
use crate::post::elements;

/// What stands behind a `struct ibv_pd`.
pub struct DomainSide {
    /// The domain; a parent domain shares that of the domain it was made from.
    pub core: Arc<ProtectionDomain>,
    /// Parent domains made from this one.
    children: AtomicU32,
    /// The domain that a parent domain was made from.
    parent: Option<*mut DomainObject>,
}

/// A protection domain as C sees it.
pub type DomainObject = Object<ibv_pd, DomainSide>;

/// What stands behind a `struct ibv_mr`. The region is replaced by [`ibv_rereg_mr`].
pub struct RegionSide {
    region: Mutex<Arc<MemoryRegion>>,
}

impl RegionSide {
    fn region(&self) -> MutexGuard<'_, Arc<MemoryRegion>> {
        self.region.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Its key.
    pub fn key(&self) -> u32 {
        self.region().key()
    }

    /// Its protection domain.
    pub fn domain(&self) -> Arc<ProtectionDomain> {
        self.region().domain().clone()
    }
}

/// A memory region as C sees it.
pub type RegionObject = Object<ibv_mr, RegionSide>;

/// Numbers for the `handle` fields, which mean nothing to this library.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A new protection domain (`ibv_alloc_pd(3)`): NULL and `errno` on failure.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_alloc_pd(pointer: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    match ProtectionDomain::new(&context.inner.core) {
        Ok(core) => {
            let side = DomainSide { core, children: AtomicU32::new(0), parent: None };
            DomainObject::allocate(ibv_pd { context: pointer, handle: next_handle() }, side).cast()
        }
        Err(error) => fail_null(error.errno()),
    }
}

/// Ends a protection domain (`ibv_alloc_pd(3)`): an error number, `EBUSY` while objects or parent domains use it.
///
/// # Safety
/// `pd` is NULL or a protection domain that is not used any more.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { DomainObject::get(pd) }) else { return libc::EINVAL };
    let side = &object.inner;
    let here = side.core.context().is_here();
    let shared = side.children.load(Ordering::Acquire) > 0;
    if let Some(parent) = side.parent {
        // SAFETY: a domain with children is not freed.
        unsafe { (*parent).inner.children.fetch_sub(1, Ordering::Release) };
    } else if here && (shared || side.core.users().count() > 0) {
        return libc::EBUSY;
    }
    // SAFETY: nothing refers to it any more.
    unsafe { object.free() };
    0
}

/// A thread domain (`ibv_alloc_td(3)`): a promise of the program that this library makes no use of.
pub(crate) unsafe extern "C" fn alloc_td(
    pointer: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the caller's promise.
    let (Some(_), Some(attr)) = (unsafe { context(pointer) }, unsafe { attr.as_ref() }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    Object::<ibv_td, ()>::allocate(ibv_td { context: pointer }, ()).cast()
}

/// Ends a thread domain (`ibv_alloc_td(3)`).
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { Object::<ibv_td, ()>::get(td) }) else { return libc::EINVAL };
    // SAFETY: nothing refers to it.
    unsafe { object.free() };
    0
}

/// A parent domain (`ibv_alloc_parent_domain(3)`): the same domain under another handle. The program's allocators are not
/// called: nothing here needs their memory.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    pointer: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 1 << 1;
    // SAFETY: the caller's promise.
    let (Some(_), Some(attr)) = (unsafe { context(pointer) }, unsafe { attr.as_ref() }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let Some(parent) = (unsafe { DomainObject::get(attr.pd) }) else { return fail_null(libc::EINVAL) };
    parent.inner.children.fetch_add(1, Ordering::Relaxed);
    let side = DomainSide {
        core: parent.inner.core.clone(),
        children: AtomicU32::new(0),
        parent: Some(std::ptr::from_ref(parent).cast_mut()),
    };
    DomainObject::allocate(ibv_pd { context: pointer, handle: next_handle() }, side).cast()
}

/// Registers memory (`ibv_reg_mr(3)`).
///
/// # Safety
/// `pd` is NULL or a protection domain; the program answers for what happens to the bytes until deregistration.
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

/// The same, called by headers when the access flags may contain optional ones.
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
    let _whole = Deferred::new();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    let access = Access::from_bits_retain(access);
    // SAFETY: the program answers for the bytes.
    let registered =
        unsafe { MemoryRegion::register(&domain.inner.core, address as usize, length as u64, iova, access) };
    let region = match registered {
        Ok(region) => region,
        Err(error) => return fail_null(error.errno()),
    };
    let c = ibv_mr {
        // SAFETY: a live object.
        context: unsafe { (*domain.c()).context },
        pd,
        addr: address,
        length,
        handle: next_handle(),
        lkey: region.key(),
        rkey: region.key(),
    };
    RegionObject::allocate(c, RegionSide { region: Mutex::new(region) }).cast()
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

/// Changes a region (`ibv_rereg_mr(3)`): 0, or an `enum ibv_rereg_mr_err_code` with `errno`. The keys stay; on failure
/// the region is as it was.
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
    let mut current = object.inner.region();
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
        Err(error) => return fail(error.errno(), IBV_REREG_MR_ERR_CMD),
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
    advise(&domain.inner.core, advice, wait, elements).map_or_else(|error| error.errno(), |()| 0)
}

/// Ends a registration (`ibv_reg_mr(3)`): an error number, `EBUSY` while windows are bound to it. When it returns, nobody touches the bytes any more.
///
/// # Safety
/// `mr` is NULL or a region that is not used any more.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { RegionObject::get(mr) }) else { return libc::EINVAL };
    if let Err(error) = object.inner.region().try_deregister() {
        return error.errno();
    }
    // SAFETY: nothing refers to it any more.
    unsafe { object.free() };
    0
}
