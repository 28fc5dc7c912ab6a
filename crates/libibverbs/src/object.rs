//! Objects that C holds by pointer: the C structure, then a tag, then what belongs to it here.
//!
//! The tag tells our live objects from foreign and destroyed ones where that is possible at all: a pointer to
//! memory that is not mapped still crashes, as with every C library.

use std::alloc::{Layout, dealloc};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::abi::{
    ibv_ah, ibv_comp_channel, ibv_cq_ex, ibv_device, ibv_dm, ibv_flow, ibv_mr, ibv_mw, ibv_pd, ibv_qp_ex,
    ibv_rwq_ind_table, ibv_srq, ibv_td, ibv_wq, ibv_xrcd, verbs_context,
};

/// A C structure that begins an object.
pub trait Head {
    /// The tag of live objects of this kind.
    const TAG: u64;
}

macro_rules! heads {
    ($($name:ident = $tag:literal,)*) => {
        $(impl Head for $name {
            const TAG: u64 = u64::from_ne_bytes(*$tag);
        })*
    };
}

heads! {
    ibv_device = b"advb-dev",
    verbs_context = b"advb-ctx",
    ibv_pd = b"advb-pd ",
    ibv_td = b"advb-td ",
    ibv_dm = b"advb-dm ",
    ibv_mr = b"advb-mr ",
    ibv_mw = b"advb-mw ",
    ibv_comp_channel = b"advb-chn",
    ibv_cq_ex = b"advb-cq ",
    ibv_qp_ex = b"advb-qp ",
    ibv_srq = b"advb-srq",
    ibv_ah = b"advb-ah ",
    ibv_wq = b"advb-wq ",
    ibv_rwq_ind_table = b"advb-tbl",
    ibv_flow = b"advb-flw",
    ibv_xrcd = b"advb-xrc",
}

/// An object: `C` is what the program sees, `T` what it does not.
#[repr(C)]
pub struct Object<C, T> {
    c: UnsafeCell<C>,
    tag: AtomicU64,
    /// The pointer that the allocation gave: what frees it. A reference to the object may not.
    origin: *mut Self,
    /// Our side of the object.
    pub inner: T,
}

impl<C: Head, T> Object<C, T> {
    /// Allocates an object. It lives until [`Object::free`].
    pub fn allocate(c: C, inner: T) -> *mut Self {
        let new = Self { c: UnsafeCell::new(c), tag: AtomicU64::new(C::TAG), origin: null_mut(), inner };
        let object = Box::into_raw(Box::new(new));
        // SAFETY: just allocated; nobody else knows it.
        unsafe { (*object).origin = object };
        object
    }

    /// The object behind a pointer from C, or `None` for NULL, a misaligned pointer, or what is not a live
    /// object of this kind.
    ///
    /// # Safety
    /// `pointer` is NULL or points to readable memory; the object is not freed while the reference is used.
    #[inline]
    pub unsafe fn get<'a, P>(pointer: *mut P) -> Option<&'a Self> {
        let object = pointer.cast::<Self>();
        if object.is_null() || !object.is_aligned() {
            return None;
        }
        // SAFETY: readable by the caller's promise, and aligned. The tag is read alone, through a raw
        // pointer, until it is known to be ours.
        unsafe {
            let tag = AtomicU64::from_ptr(&raw mut (*object).tag as *mut u64);
            (tag.load(Ordering::Acquire) == C::TAG).then(|| &*object)
        }
    }

    /// The C structure, which the program and this library both write.
    pub fn c(&self) -> *mut C {
        self.c.get()
    }

    /// Makes the object unusable and returns its memory. `false` if another thread was first.
    ///
    /// It takes a pointer: the memory goes during the call, so no reference may be an argument of it, nor of
    /// a function that is still running and was given one.
    ///
    /// # Safety
    /// The object lives, or another thread is just freeing it and its memory is there. No reference to it is
    /// used afterwards.
    pub unsafe fn free(this: *const Self) -> bool {
        // SAFETY: the caller's promise.
        let memory = unsafe { Self::retire(this) };
        let Some(memory) = memory else { return false };
        if KEEPS.load(Ordering::Relaxed) {
            keep(memory.cast(), Layout::new::<Self>());
        } else {
            // SAFETY: of the allocation, and given to this thread alone.
            drop(unsafe { Box::from_raw(memory) });
        }
        true
    }

    /// Makes the object unusable, and leaves its memory to the caller: none if another thread was first. The
    /// value behind the C structure is dropped now, and [`Object::get`] finds no object there. The memory is
    /// a box's. It is no box yet: another thread may still look at the tag, and a box has its memory alone.
    /// # Safety
    /// As of [`Object::free`].
    pub unsafe fn retire(this: *const Self) -> Option<*mut MaybeUninit<Self>> {
        // SAFETY: the memory is there, by the caller's promise; the tag is atomic.
        if unsafe { (*this).tag.swap(0, Ordering::AcqRel) } != C::TAG {
            return None;
        }
        // SAFETY: `allocate` wrote it, and nobody else does; only the thread that took the tag away comes
        // here.
        let object = unsafe { (*this).origin };
        // SAFETY: the pointer of the allocation, and the last user of the object. The C structure is plain
        // data.
        unsafe {
            std::ptr::drop_in_place(&raw mut (*object).inner);
            Some(object.cast::<MaybeUninit<Self>>())
        }
    }
}

/// Whether the memory of objects that are gone stays for a while.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// From now on, the memory of the objects that went last stays, with the C structures in it: a program that
/// still uses one is found out, and finds its context there.
pub fn keep_memory() {
    KEEPS.store(true, Ordering::Relaxed);
}

/// Keeps the memory of an object, and frees that of the one that has been kept for the longest time.
#[cold]
fn keep(memory: *mut u8, layout: Layout) {
    const MOST: usize = 1 << 16;
    static KEPT: Mutex<VecDeque<(usize, Layout)>> = Mutex::new(VecDeque::new());
    // Another thread may have the lock. In a child of fork, it may be held for ever. Then the memory is
    // leaked.
    let Ok(mut kept) = KEPT.try_lock() else { return };
    kept.push_back((memory as usize, layout));
    if kept.len() > MOST
        && let Some((oldest, layout)) = kept.pop_front()
    {
        // SAFETY: the memory of a box of this layout, which nobody uses any more.
        unsafe { dealloc(oldest as *mut u8, layout) };
    }
}

/// The mutex and the condition that C structures embed for the acknowledgement of events.
///
/// Handing an event out counts it; `ibv_ack_*` counts it back and signals; destroying waits until both counts
/// agree (`ibv_ack_cq_events(3)`, `ibv_ack_async_event(3)`).
#[derive(Clone, Copy)]
pub struct Acknowledgement {
    /// The embedded mutex.
    pub mutex: *mut libc::pthread_mutex_t,
    /// The embedded condition.
    pub condition: *mut libc::pthread_cond_t,
    /// The embedded count of acknowledged events.
    pub completed: *mut u32,
}

impl Acknowledgement {
    /// Initializes mutex and condition.
    ///
    /// # Safety
    /// The pointers are valid, and nobody uses them yet.
    pub unsafe fn initialize(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_init(self.mutex, std::ptr::null());
            libc::pthread_cond_init(self.condition, std::ptr::null());
            *self.completed = 0;
        }
    }

    /// Counts `events` acknowledged events and wakes the thread that waits to destroy the object.
    ///
    /// # Safety
    /// The object lives.
    pub unsafe fn acknowledge(&self, events: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(events);
            libc::pthread_cond_signal(self.condition);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until `events` events are acknowledged.
    ///
    /// # Safety
    /// The object lives.
    pub unsafe fn wait_for(&self, events: u32) {
        // SAFETY: the caller's promise; the count is only read under the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while self.completed.read() != events {
                libc::pthread_cond_wait(self.condition, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    type ThreadDomain = Object<ibv_td, Arc<()>>;

    #[test]
    fn a_retired_object_is_found_no_more_and_its_memory_stays() {
        let inner = Arc::new(());
        let object = ThreadDomain::allocate(ibv_td::zeroed(), inner.clone());
        // SAFETY: the memory is there until the end. No reference is used after the object is retired.
        unsafe {
            assert!(ThreadDomain::get(object).is_some_and(|found| Arc::ptr_eq(&found.inner, &inner)));
            assert!(Object::<ibv_xrcd, ()>::get(object).is_none(), "an object of another kind");
            assert!(ThreadDomain::get(object.byte_add(1)).is_none(), "no object begins there");
            let memory = ThreadDomain::retire(object).expect("it lives");
            assert_eq!(Arc::strong_count(&inner), 1, "what belongs to it has gone");
            assert!(ThreadDomain::get(object).is_none());
            assert!(
                ThreadDomain::retire(object).is_none() && !ThreadDomain::free(object),
                "it is retired already"
            );
            drop(Box::from_raw(memory));
        }
        assert_eq!(Arc::strong_count(&inner), 1);
    }

    #[test]
    fn of_two_threads_that_retire_an_object_one_does() {
        /// A pointer that threads share, as programs share it.
        struct SharedPointer(*mut ThreadDomain);
        // SAFETY: the object takes care of threads.
        unsafe impl Sync for SharedPointer {}
        for _ in 0..if cfg!(miri) { 5 } else { 200 } {
            let inner = Arc::new(());
            let shared = SharedPointer(ThreadDomain::allocate(ibv_td::zeroed(), inner.clone()));
            let shared = &shared;
            // SAFETY: who retires it keeps the memory until both have tried.
            let retire = || unsafe { ThreadDomain::retire(shared.0) }.map(|memory| memory as usize);
            let found = std::thread::scope(|scope| {
                let other = scope.spawn(retire);
                [retire(), other.join().unwrap()]
            });
            assert_eq!(found.iter().flatten().count(), 1);
            assert_eq!(Arc::strong_count(&inner), 1, "what belongs to it goes once");
            // SAFETY: the memory that the one was given; nobody uses it any more.
            drop(unsafe { Box::from_raw(shared.0.cast::<MaybeUninit<ThreadDomain>>()) });
        }
    }
}
