//! Long work under a queue pair's lock, for which no posting or polling thread waits.
//!
//! While the kernel copies, in either direction, a queue pair's lock is held: no other thread is to send,
//! fail or reset it meanwhile. A thread that only posts or polls sees the lock taken, leaves a note, and goes
//! on. The holder, once the lock is free, finds the note and does that thread's work. `model` checks it.

use crate::sync::{AtomicBool, AtomicU32, Ordering, fence_behind};

/// The long work under way on one queue pair. Thread-safe.
#[derive(Default)]
pub struct Busy {
    /// Holders of the lock that do such work, or that let it go a moment ago and have not looked for notes
    /// yet.
    holders: AtomicU32,
    /// A thread has gone away without the lock.
    missed: AtomicBool,
}

impl Busy {
    /// Long work of the holder of the lock.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.holders.fetch_add(1, Ordering::SeqCst);
        let done = work();
        self.holders.fetch_sub(1, Ordering::SeqCst);
        // Before the look for a note.
        fence_behind();
        done
    }

    /// A thread that has not got the lock leaves a note. False: the holder may not find it, since the work is
    /// over, or was none.
    #[cold]
    pub fn leave_note(&self) -> bool {
        let is_busy = || self.holders.load(Ordering::SeqCst) > 0;
        if !is_busy() {
            return false;
        }
        self.missed.store(true, Ordering::SeqCst);
        fence_behind();
        // Either this thread finds the work over, or the holder, which looks after that, finds the note.
        is_busy()
    }

    /// Whether there is a note. A thread asks that has had the lock, and does not hold it any more.
    #[inline]
    pub fn take_note(&self) -> bool {
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::SeqCst)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lock::Lock;

    #[test]
    fn a_note_is_left_in_the_middle_alone() {
        let busy = Busy::default();
        assert!(!busy.leave_note() && !busy.take_note());
        busy.during(|| assert!(busy.leave_note()));
        assert!(busy.take_note() && !busy.take_note() && !busy.leave_note());
    }

    /// The work of each thread is done, by itself or by the thread that has found the note.
    #[test]
    fn nothing_that_was_left_is_forgotten() {
        // An interpreter takes long.
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 20_000 };
        let (busy, lock) = (Busy::default(), Lock::new(()));
        let (wanted, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let look = || seen.fetch_max(wanted.load(Ordering::SeqCst), Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while wanted.load(Ordering::SeqCst) < ROUNDS {
                    if let Some(_held) = lock.try_lock() {
                        busy.during(std::hint::spin_loop);
                    }
                    if busy.take_note() {
                        look();
                    }
                }
            });
            for round in 1..=ROUNDS {
                wanted.store(round, Ordering::SeqCst);
                loop {
                    if lock.try_lock().is_some() {
                        look();
                        break;
                    }
                    if busy.leave_note() {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        });
        if busy.take_note() {
            look();
        }
        assert_eq!(seen.load(Ordering::SeqCst), ROUNDS);
    }
}
