//! The lanes by which a thread has found messages that are not acknowledged yet.
//!
//! A delayed acknowledgement waits on its own lane, where it goes in front of everything else. By another
//! lane, its thread may send an answer to the message, and the peer would see that first. So the
//! acknowledgement leaves before. The thread that finds the message is not always the thread that has taken
//! it in. That may be the background thread, or a poll of another queue, which may lose its processor before
//! it acknowledges.
// PRACTICE-ORDER-1

use std::cell::Cell;

thread_local! {
    /// A bit for each lane of the process.
    static LANES: Cell<u32> = const { Cell::new(0) };
}

/// Places of lanes are below this.
pub(crate) const PLACES: usize = u32::BITS as usize;

/// A poll of this thread has found something, and acknowledgements wait on the lane at this place.
#[inline]
pub(crate) fn note(place: usize) {
    LANES.set(LANES.get() | 1 << place);
}

/// The thread sends by the lane at this place: the bits of all others on which some may wait. They are
/// forgotten.
#[inline]
pub(crate) fn take_others(place: usize) -> u32 {
    let (all, own) = (LANES.get(), 1 << place);
    if all & !own != 0 {
        LANES.set(all & own);
    }
    all & !own
}

#[cfg(test)]
mod tests {
    use super::*;

    // PRACTICE-ORDER-1
    #[test]
    fn lanes_with_waiting_acknowledgements_are_named_once() {
        for place in [3, 0, 31] {
            note(place);
        }
        assert_eq!(take_others(3), 1 | 1 << 31);
        assert_eq!(take_others(3), 0);
        std::thread::spawn(|| assert_eq!(take_others(0), 0, "of another thread")).join().unwrap();
        assert_eq!(take_others(0), 1 << 3);
    }
}
