//! The allocators of a parent domain (`ibv_alloc_parent_domain(3)`): the program gives the memory in which
//! the rings of its queues lie.
//!
//! They are called in the calls that make a queue, enlarge it, and end it; on behalf of queue pairs, shared
//! receive queues and work queues that are made in the parent domain, and of completion queues whose
//! attributes name it.

use core::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use adverb_core::log;
use adverb_core::memory::{Allocation, Allocator, RingKind};

use crate::abi::{ibv_parent_domain_init_attr, ibv_pd};

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

type Allocate = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// The call-backs of one parent domain.
pub struct Callbacks {
    /// The parent domain, which they are told; NULL before it is there and after it has ended.
    domain: AtomicPtr<ibv_pd>,
    allocate: Allocate,
    free: Free,
    program: *mut c_void,
}

// SAFETY: the functions and the pointer are the program's, which creates and destroys objects of a domain in
// any thread.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

/// What call-backs are told that the memory is for: a driver in the upper half, as in rdma-core, of which
/// ours is none that has a number (`RDMA_DRIVER_UNKNOWN`), and in the lower half the numbers that mlx5 gives
/// its own.
fn resource_type(kind: RingKind) -> u64 {
    kind as u64
}

impl Callbacks {
    /// The call-backs in the attributes of a new parent domain, if both are there.
    pub(crate) fn new(attr: &ibv_parent_domain_init_attr, program: *mut c_void) -> Option<Arc<Self>> {
        let (allocate, free) = (attr.alloc?, attr.free?);
        Some(Arc::new(Self { domain: AtomicPtr::new(null_mut()), allocate, free, program }))
    }

    /// The parent domain is there.
    pub(crate) fn begin(&self, domain: *mut ibv_pd) {
        self.domain.store(domain, Ordering::Release);
    }

    /// The parent domain ends: queues that outlive it use memory of ours.
    pub(crate) fn end(&self) {
        self.domain.store(null_mut(), Ordering::Release);
    }
}

// SAFETY: what the program's allocator gives is as it was asked for, by the man page, and aligned: that is
// looked at.
unsafe impl Allocator for Callbacks {
    fn allocate(&self, size: usize, alignment: usize, kind: RingKind) -> Allocation {
        let domain = self.domain.load(Ordering::Acquire);
        if domain.is_null() {
            return Allocation::Default;
        }
        // SAFETY: the program's function, with what it is promised.
        let address = unsafe { (self.allocate)(domain, self.program, size, alignment, resource_type(kind)) };
        if address.addr() == USE_DEFAULT {
            return Allocation::Default;
        }
        let Some(address) = NonNull::new(address) else {
            log!(Warn, "the allocator of a parent domain has no {size} bytes for a queue");
            return Allocation::Failed;
        };
        if !address.addr().get().is_multiple_of(alignment) {
            log!(
                Warn,
                "the allocator of a parent domain gave {address:p}: no multiple of {alignment}, as asked for"
            );
            self.free(address, kind);
            return Allocation::Failed;
        }
        Allocation::Given(address)
    }

    fn free(&self, address: NonNull<c_void>, kind: RingKind) {
        let domain = self.domain.load(Ordering::Acquire);
        // Only in a child of fork does memory outlive its domain: where a thread that is not there had the
        // queue when it was destroyed.
        if domain.is_null() {
            return;
        }
        // SAFETY: the program's function, with what the other one gave, once.
        unsafe { (self.free)(domain, self.program, address.as_ptr(), resource_type(kind)) };
    }
}
