//! Protection domains, thread domains and parent domains.

use core::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_core::memory::ProtectionDomain;

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::context::context;
use crate::errno::{fail_null, refusal};
use crate::object::Object;

/// What stands behind a `struct ibv_pd`.
pub struct DomainSide {
    /// The domain; a parent domain shares that of the domain it was made from.
    pub core: Arc<ProtectionDomain>,
    /// Parent domains made from this one.
    children: AtomicU32,
    /// The domain that a parent domain was made from.
    parent: Option<*mut DomainObject>,
    /// The thread domain of a parent domain, or NULL.
    thread_domain: *mut ibv_td,
}

/// A thread domain as C sees it, and how many parent domains have it.
pub type ThreadDomainObject = Object<ibv_td, AtomicU32>;

/// A protection domain as C sees it.
pub type DomainObject = Object<ibv_pd, DomainSide>;

/// A new protection domain (`ibv_alloc_pd(3)`): NULL and `errno` on failure.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_alloc_pd(pointer: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    match ProtectionDomain::new(&context.inner.core) {
        Ok(core) => wrap(pointer, core),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// The C structure around a domain on `pointer`'s device. Its handle is the domain's number, for import.
pub(crate) fn wrap(pointer: *mut ibv_context, core: Arc<ProtectionDomain>) -> *mut ibv_pd {
    let handle = core.number();
    let side = DomainSide { core, children: AtomicU32::new(0), parent: None, thread_domain: null_mut() };
    DomainObject::allocate(ibv_pd { context: pointer, handle }, side).cast()
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
        // SAFETY: a domain with children is not freed, nor is a thread domain that has a parent domain.
        unsafe {
            (*parent).inner.children.fetch_sub(1, Ordering::Release);
            if let Some(thread_domain) = ThreadDomainObject::get(side.thread_domain) {
                thread_domain.inner.fetch_sub(1, Ordering::Release);
            }
        }
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
    ThreadDomainObject::allocate(ibv_td { context: pointer }, AtomicU32::new(0)).cast()
}

/// Ends a thread domain (`ibv_alloc_td(3)`): an error number, `EBUSY` while parent domains have it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { ThreadDomainObject::get(td) }) else { return libc::EINVAL };
    if object.inner.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
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
    // SAFETY: the caller's promise.
    let thread_domain = unsafe { ThreadDomainObject::get(attr.td) };
    if !attr.td.is_null() && thread_domain.is_none() {
        return fail_null(libc::EINVAL);
    }
    if let Some(thread_domain) = thread_domain {
        thread_domain.inner.fetch_add(1, Ordering::Relaxed);
    }
    parent.inner.children.fetch_add(1, Ordering::Relaxed);
    let side = DomainSide {
        core: parent.inner.core.clone(),
        children: AtomicU32::new(0),
        parent: Some(std::ptr::from_ref(parent).cast_mut()),
        thread_domain: attr.td,
    };
    let handle = side.core.number();
    DomainObject::allocate(ibv_pd { context: pointer, handle }, side).cast()
}
