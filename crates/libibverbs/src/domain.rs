//! Protection domains, thread domains and parent domains.

use core::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use adverb_core::error::Error;
use adverb_core::export::Remote;
use adverb_core::memory::RingAllocator;
use adverb_core::region::ProtectionDomain;

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::allocator::Callbacks;
use crate::context::context;
use crate::errno::{Call, fail_null, refusal};
use crate::object::Object;

/// What stands behind a `struct ibv_pd`.
pub struct DomainSide {
    /// The domain; a parent domain shares that of the domain it was made from.
    pub core: Arc<ProtectionDomain>,
    /// Queues in this very domain, and parent domains made from it.
    uses: Uses,
    /// Of a parent domain: it uses the protection domain that it leads to in the end, also where it was made
    /// from another parent domain.
    root: Option<Use>,
    /// Of a parent domain: it uses its thread domain.
    _thread_domain: Option<Use>,
    /// The allocators of a parent domain.
    callbacks: Option<Arc<Callbacks>>,
    /// The domain of another process that it was imported from: its context there, and its number.
    pub remote: Option<(Remote, u32)>,
}

/// How many use an object. They hold a share of the count, not a pointer to the object: so it does not matter
/// to them who goes first in a child of fork, where nothing is refused.
#[derive(Default)]
pub struct Uses(Use);

/// One use; it ends when this is dropped.
#[must_use]
#[derive(Clone, Default)]
pub struct Use(Arc<()>);

impl Uses {
    fn enter(&self) -> Use {
        self.0.clone()
    }

    fn count(&self) -> usize {
        Arc::strong_count(&self.0.0) - 1
    }

    fn is_used(&self) -> bool {
        self.count() > 0
    }
}

impl DomainSide {
    /// A queue in the domain holds this as long as the program has it: `ibv_qp::pd` and its like never
    /// dangle.
    pub(crate) fn enter(&self) -> Use {
        self.uses.enter()
    }

    /// Whether the domain is a parent domain.
    pub(crate) fn is_parent_domain(&self) -> bool {
        self.root.is_some()
    }

    /// The program's allocator for the rings of queues that are made in the domain.
    pub(crate) fn ring_allocator(&self) -> RingAllocator {
        self.callbacks.clone().map(|callbacks| callbacks as _)
    }
}

/// A thread domain as C sees it, and the parent domains that have it.
pub type ThreadDomainObject = Object<ibv_td, Uses>;

/// A protection domain as C sees it.
pub type DomainObject = Object<ibv_pd, DomainSide>;

/// A new protection domain (`ibv_alloc_pd(3)`): NULL and `errno` on failure.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_alloc_pd(pointer: *mut ibv_context) -> *mut ibv_pd {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    match ProtectionDomain::new(&context.inner.core) {
        Ok(core) => {
            // From now on there is something to import.
            let engine = context.inner.core.engine();
            engine.exporter.listen(engine);
            wrap(pointer, core)
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// The C structure around a domain on `pointer`'s device. Its handle is the domain's number, for import.
pub(crate) fn wrap(pointer: *mut ibv_context, core: Arc<ProtectionDomain>) -> *mut ibv_pd {
    let handle = core.number();
    wrap_as(pointer, core, handle, None)
}

/// The C structure around a domain on `pointer`'s device, with the handle `handle`. An imported domain has
/// its owner's number there.
pub(crate) fn wrap_as(
    pointer: *mut ibv_context,
    core: Arc<ProtectionDomain>,
    handle: u32,
    remote: Option<(Remote, u32)>,
) -> *mut ibv_pd {
    let side =
        DomainSide { core, remote, uses: Uses::default(), root: None, _thread_domain: None, callbacks: None };
    DomainObject::allocate(ibv_pd { context: pointer, handle }, side).cast()
}

/// Ends a protection domain (`ibv_alloc_pd(3)`): an error number, `EBUSY` while objects or parent domains use
/// it; a parent domain while queues that were made in it are there.
///
/// # Safety
/// `pd` is NULL or a protection domain that is not used any more.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { DomainObject::get(pd) }) else { return libc::EINVAL };
    let side = &object.inner;
    // Of a parent domain, the regions and windows count for the domain that it was made from.
    let objects = if side.is_parent_domain() { 0 } else { side.core.users().count() };
    // In a child of fork others may have it that are not there.
    if side.core.context().is_here() && (side.uses.is_used() || objects > 0) {
        let others = side.uses.count();
        return refusal(&Error::busy(format!(
            "the protection domain is in use (regions, windows, queues, address handles: {objects}; queues and parent domains that refer to it: \
             {others}): destroy those first"
        )));
    }
    match &side.callbacks {
        Some(callbacks) => callbacks.end(),
        None if side.is_parent_domain() => {}
        None => side.core.retire(),
    }
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// A thread domain (`ibv_alloc_td(3)`): a promise of the program that this library makes no use of.
pub(crate) unsafe extern "C" fn alloc_td(
    pointer: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(_), Some(attr)) = (unsafe { context(pointer) }, unsafe { attr.as_ref() }) else {
        return fail_null(libc::EINVAL);
    };
    if attr.comp_mask != 0 {
        return fail_null(libc::EINVAL);
    }
    ThreadDomainObject::allocate(ibv_td { context: pointer }, Uses::default()).cast()
}

/// Ends a thread domain (`ibv_alloc_td(3)`): an error number, `EBUSY` while parent domains have it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { ThreadDomainObject::get(td) }) else { return libc::EINVAL };
    if object.inner.is_used() {
        return libc::EBUSY;
    }
    // SAFETY: nothing refers to it.
    unsafe { Object::free(object) };
    0
}

/// A parent domain (`ibv_alloc_parent_domain(3)`): the same domain under another handle. Its allocators, if
/// it has both, give the memory of queues that are made in it.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    pointer: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _call = Call::new();
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 1 << 1;
    // SAFETY: the caller's promise.
    let (Some(_), Some(attr)) = (unsafe { context(pointer) }, unsafe { attr.as_ref() }) else {
        return fail_null(libc::EINVAL);
    };
    // PRACTICE-CALL-4
    if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let parent = unsafe { DomainObject::get(attr.pd) };
    // SAFETY: a live object.
    let Some(parent) = parent.filter(|parent| unsafe { (*parent.c()).context } == pointer) else {
        return fail_null(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    let thread_domain = unsafe { ThreadDomainObject::get(attr.td) };
    if !attr.td.is_null() && thread_domain.is_none() {
        return fail_null(libc::EINVAL);
    }
    let program = if attr.comp_mask & PD_CONTEXT == 0 { null_mut() } else { attr.pd_context };
    let callbacks = (attr.comp_mask & ALLOCATORS != 0).then(|| Callbacks::new(attr, program)).flatten();
    let side = DomainSide {
        core: parent.inner.core.clone(),
        uses: Uses::default(),
        root: Some(parent.inner.root.clone().unwrap_or_else(|| parent.inner.enter())),
        _thread_domain: thread_domain.map(|object| object.inner.enter()),
        callbacks: callbacks.clone(),
        remote: parent.inner.remote,
    };
    let handle = side.core.number();
    let object = DomainObject::allocate(ibv_pd { context: pointer, handle }, side).cast();
    if let Some(callbacks) = callbacks {
        callbacks.begin(object);
    }
    object
}
