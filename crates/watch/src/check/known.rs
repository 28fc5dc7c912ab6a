//! Places that a thread has come from before: a walk of the stack takes microseconds, and most calls of a
//! program come from few places.
//!
//! A place is known by the call and by how deep the stack is. It is the same place if each return address
//! still stands where it stood.

use super::site::{FRAMES, Site};
use std::cell::RefCell;
use std::ops::Range;

/// Places of a thread that are kept.
const PLACES: usize = 64;

/// A place, and where the stack has its return addresses.
#[derive(Clone, Copy, Default)]
struct KnownSite {
    call: usize,
    depth: usize,
    site: Site,
    slots: [usize; FRAMES],
    count: usize,
}

/// What a thread keeps.
struct Places {
    /// Where the thread's stack lies. A program may have others for the thread: nothing is kept of those.
    stack: Range<usize>,
    places: Vec<KnownSite>,
}

thread_local! {
    static PLACES_OF_THREAD: RefCell<Option<Places>> = const { RefCell::new(None) };
}

/// The return addresses of a walk, from the nearest on, each with the place on the stack where it stands.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) site: Site,
    pub(super) slots: [usize; FRAMES],
    pub(super) count: usize,
}

/// The stack of the calling thread.
fn stack() -> Range<usize> {
    let (mut start, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are plain data that the first call fills and the last one ends; all others are
    // live locals.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return 0..0;
        }
        libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut length);
        libc::pthread_attr_destroy(&raw mut attributes);
    }
    let start = start as usize;
    start..start.saturating_add(length)
}

impl KnownSite {
    /// Whether the thread has come here by the same way.
    fn is_here(&self, call: usize, depth: usize) -> bool {
        let stands = |(slot, address): (&usize, &usize)| {
            // SAFETY: it lies on the stack of the calling thread, above what is in use now: `remember` has
            // seen to it.
            unsafe { (*slot as *const usize).read_volatile() == *address }
        };
        (self.call, self.depth) == (call, depth)
            && self.count > 0
            && self.slots.iter().zip(self.site.frames()).take(self.count).all(stands)
    }
}

fn index(call: usize, depth: usize) -> usize {
    (call.wrapping_mul(31) ^ depth >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACES.ilog2())
}

/// The place that the calling thread has come from, if it has been there before. `depth`: an address in the
/// frame of the caller, which is the same function for all calls of one kind.
pub(super) fn find(call: usize, depth: usize) -> Option<Site> {
    let look = |all: &RefCell<Option<Places>>| {
        let all = all.try_borrow().ok()?;
        let known = &all.as_ref()?.places[index(call, depth)];
        known.is_here(call, depth).then_some(known.site)
    };
    // A thread that ends has none any more.
    PLACES_OF_THREAD.try_with(look).ok().flatten()
}

/// Keeps what a walk has found.
pub(super) fn remember(call: usize, depth: usize, walk: &Walk) {
    let Walk { site, slots, count } = *walk;
    let keep = |all: &RefCell<Option<Places>>| {
        let Ok(mut all) = all.try_borrow_mut() else { return };
        // Not by way of the stack, which may be the smallest.
        let new = || Places { stack: stack(), places: vec![KnownSite::default(); PLACES] };
        let all = all.get_or_insert_with(new);
        let is_whole = slots[..count].iter().zip(site.frames()).all(|(slot, address)| {
            let is_there = slot.is_multiple_of(size_of::<usize>())
                && *slot > depth
                && all.stack.contains(slot)
                && all.stack.contains(&depth);
            // SAFETY: on the stack of the calling thread, above what is in use now.
            is_there && unsafe { (*slot as *const usize).read_volatile() } == *address
        });
        if is_whole && count > 0 {
            all.places[index(call, depth)] = KnownSite { call, depth, site, slots, count };
        }
    };
    let _ = PLACES_OF_THREAD.try_with(keep);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_known_is_the_one_that_a_walk_finds() {
        // All code of the test is this library's: the place is where the thread begins.
        for call in [1000, 1001, 1000] {
            let found = Site::of_call(call);
            assert!(found.is_known());
            assert_eq!(found, Site::here());
            let is_kept = PLACES_OF_THREAD.with_borrow(|all| {
                let all = all.as_ref().expect("the thread has places");
                all.places.iter().any(|known| known.call == call && known.site == found)
            });
            assert!(is_kept, "each call walks the stack anew");
        }
    }

    #[test]
    fn another_return_address_is_another_place() {
        let slot = std::hint::black_box(7_usize);
        let mark = 0_usize;
        let depth = (&raw const slot as usize).min(&raw const mark as usize);
        let mut walk = Walk { count: 1, ..Walk::default() };
        walk.slots[0] = (&raw const slot as usize).max(&raw const mark as usize);
        // SAFETY: one of the two locals.
        let stands = unsafe { (walk.slots[0] as *const usize).read_volatile() };
        walk.site = Site::at(stands);
        remember(5, depth, &walk);
        assert_eq!(find(5, depth), Some(walk.site));
        assert_eq!((find(6, depth), find(5, depth + 64)), (None, None));
        walk.site = Site::at(stands + 1);
        remember(9, depth, &walk);
        assert_eq!(find(9, depth), None, "it does not stand there");
    }

    #[test]
    fn a_thread_knows_its_stack() {
        let here = 0_u64;
        assert!(stack().contains(&(&raw const here as usize)));
        let other = std::thread::spawn(stack).join().expect("a thread");
        assert!(!other.contains(&(&raw const here as usize)) && !other.is_empty());
    }
}
