//! Where the rings of queues lie: in memory of ours, or in memory from an allocator of the program
//! (`ibv_alloc_parent_domain(3)`).
//!
//! The program gets its memory back when it destroys the queue, while parts of the engine may keep the queue
//! itself a little longer. So memory of ours takes the place of the program's then.

use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::needs_drop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of queue that a ring is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// A queue pair.
    QueuePair = 1,
    /// A work queue.
    WorkQueue = 2,
    /// A shared receive queue.
    SharedReceiveQueue = 4,
    /// A completion queue.
    CompletionQueue = 5,
}

/// The answer of an allocator.
#[derive(Clone, Copy, Debug)]
pub enum Allocation {
    /// Take memory of your own.
    Default,
    /// Take this.
    Given(NonNull<c_void>),
    /// The program's allocator has no memory.
    Failed,
}

/// An allocator of the program for rings. It is called in the call that makes or ends a queue, with no lock
/// held.
///
/// # Safety
/// The memory is as long and aligned as it was asked for, and can be read and written. Only the engine uses
/// it until it is taken back.
pub unsafe trait Allocator: Send + Sync {
    /// Gives `size` bytes at a multiple of `alignment`, a power of two that divides `size`.
    fn allocate(&self, size: usize, alignment: usize, kind: RingKind) -> Allocation;
    /// Takes back memory that it has given.
    fn free(&self, address: NonNull<c_void>, kind: RingKind);
}

/// The allocator of a queue's rings. None: the rings are the engine's own memory.
pub type RingAllocator = Option<Arc<dyn Allocator>>;

/// Alignment of a ring's parts, in bytes: that of a cache line, so that they share none with anything else.
const ALIGNMENT: usize = 64;

/// A fixed number of elements.
pub(crate) struct Storage<T> {
    base: UnsafeCell<NonNull<T>>,
    length: usize,
    blank: fn() -> T,
    /// Whether the elements lie in memory of the program.
    is_given: AtomicBool,
    allocator: RingAllocator,
    kind: RingKind,
}

// SAFETY: it owns its elements, as a box does, and gives references as a box does. The place that says where
// they are changes only in `give_back`, while no other thread uses it.
unsafe impl<T: Send> Send for Storage<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Storage<T> {}

/// Memory that goes back to the program when this is dropped.
#[must_use]
pub(crate) struct RingRelease(Option<(NonNull<c_void>, Arc<dyn Allocator>, RingKind)>);

impl Drop for RingRelease {
    fn drop(&mut self) {
        if let Some((address, allocator, kind)) = self.0.take() {
            allocator.free(address, kind);
        }
    }
}

/// Elements in memory of ours.
fn own<T>(length: usize, blank: fn() -> T) -> NonNull<T> {
    let elements: Box<[T]> = (0..length).map(|_| blank()).collect();
    // SAFETY: a box is never null.
    unsafe { NonNull::new_unchecked(Box::into_raw(elements).cast()) }
}

impl<T> Storage<T> {
    /// Storage for so many elements, all as `blank` makes them.
    ///
    /// # Errors
    /// ENOMEM where the allocator has no memory.
    pub(crate) fn new(
        length: usize,
        blank: fn() -> T,
        allocator: &RingAllocator,
        kind: RingKind,
    ) -> Result<Self> {
        const { assert!(!needs_drop::<T>() && align_of::<T>() <= ALIGNMENT) }
        let size = length * size_of::<T>();
        let given = match allocator {
            Some(allocator) if size > 0 => {
                allocator.allocate(size.next_multiple_of(ALIGNMENT), ALIGNMENT, kind)
            }
            _ => Allocation::Default,
        };
        let base = match given {
            Allocation::Default => own(length, blank),
            Allocation::Failed => {
                return Err(Error::exhausted(format!("the program's allocator has no {size} bytes")));
            }
            Allocation::Given(address) => {
                let base = address.cast::<T>();
                for place in 0..length {
                    // SAFETY: inside of the allocator's memory, which is long and aligned enough, and ours
                    // alone.
                    unsafe { base.add(place).write(blank()) };
                }
                base
            }
        };
        let is_given = AtomicBool::new(matches!(given, Allocation::Given(_)));
        Ok(Self { base: UnsafeCell::new(base), length, blank, is_given, allocator: allocator.clone(), kind })
    }

    /// Elements of ours, blank ones, take the place of those in memory of the program, which it has back when
    /// the result is dropped.
    ///
    /// # Safety
    /// No other thread uses the elements meanwhile.
    pub(crate) unsafe fn give_back(&self) -> RingRelease {
        if !self.is_given.swap(false, Ordering::Relaxed) {
            return RingRelease(None);
        }
        // SAFETY: no other thread looks at it, by the caller's promise.
        let old = unsafe { std::mem::replace(&mut *self.base.get(), own(self.length, self.blank)) };
        RingRelease(self.allocator.clone().map(|allocator| (old.cast(), allocator, self.kind)))
    }
}

impl<T> Deref for Storage<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many elements are there as long as we are, or until `give_back`, whose caller makes sure
        // that no thread is here.
        unsafe { slice::from_raw_parts((*self.base.get()).as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Storage<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and no other thread is here.
        unsafe { slice::from_raw_parts_mut(self.base.get_mut().as_ptr(), self.length) }
    }
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        // SAFETY: no other thread has it.
        drop(unsafe { self.give_back() });
        let elements = std::ptr::slice_from_raw_parts_mut(self.base.get_mut().as_ptr(), self.length);
        // SAFETY: it is in memory of ours now, and came from a box of this length.
        drop(unsafe { Box::from_raw(elements) });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::alloc::{Layout, alloc, dealloc};
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    /// An allocator that counts.
    #[derive(Default)]
    pub(crate) struct Counting {
        pub(crate) given: Mutex<HashMap<usize, (Layout, RingKind)>>,
        pub(crate) asked: AtomicU64,
        /// From so many calls on it has nothing.
        pub(crate) most: Option<u64>,
    }

    // SAFETY: as the heap is.
    unsafe impl Allocator for Counting {
        fn allocate(&self, size: usize, alignment: usize, kind: RingKind) -> Allocation {
            let count = self.asked.fetch_add(1, Ordering::Relaxed);
            if self.most.is_some_and(|most| count >= most) {
                return Allocation::Failed;
            }
            let layout = Layout::from_size_align(size, alignment).unwrap();
            // SAFETY: a size that is not zero.
            let address = unsafe { alloc(layout) };
            // SAFETY: allocated above. No code relies on zeros.
            unsafe { address.write_bytes(0xa5, size) };
            self.given.lock().unwrap().insert(address as usize, (layout, kind));
            Allocation::Given(NonNull::new(address).unwrap().cast())
        }

        fn free(&self, address: NonNull<c_void>, kind: RingKind) {
            let (layout, known) =
                self.given.lock().unwrap().remove(&(address.as_ptr() as usize)).expect("given, and once");
            assert_eq!(kind, known);
            // SAFETY: from `allocate`.
            unsafe { dealloc(address.as_ptr().cast(), layout) };
        }
    }

    #[test]
    fn memory_goes_back_once_and_early() {
        let counting = Arc::new(Counting::default());
        let allocator: RingAllocator = Some(counting.clone());
        let blank = || AtomicU64::new(7);
        let storage = Storage::new(5, blank, &allocator, RingKind::QueuePair).unwrap();
        let held = || counting.given.lock().unwrap().values().map(|given| given.0.size()).sum::<usize>();
        assert!(held() == 64 && storage.iter().all(|word| word.load(Ordering::Relaxed) == 7));
        storage[4].store(8, Ordering::Relaxed);
        // SAFETY: no other thread has it.
        let back = unsafe { storage.give_back() };
        assert_eq!((held(), storage[4].load(Ordering::Relaxed)), (64, 7));
        drop(back);
        // SAFETY: as above.
        drop(unsafe { storage.give_back() });
        assert!(held() == 0 && storage.len() == 5);
        drop(storage);
        drop(Storage::new(9, blank, &allocator, RingKind::QueuePair).unwrap());
        assert_eq!((held(), counting.asked.load(Ordering::Relaxed)), (0, 2));
        assert!(Storage::new(0, blank, &allocator, RingKind::QueuePair).unwrap().is_empty());
    }

    #[test]
    fn nothing_given_is_out_of_memory() {
        let allocator: RingAllocator = Some(Arc::new(Counting { most: Some(0), ..Counting::default() }));
        let refused = Storage::new(1, || 0u8, &allocator, RingKind::CompletionQueue).err().unwrap();
        assert_eq!(refused.errno(), libc::ENOMEM);
    }
}
