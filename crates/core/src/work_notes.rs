//! How threads that do not wait for a lock leave their work to its holder.
//!
//! A thread that has something to do takes note of it ([`WorkCount::note`]), and then tries the lock. The
//! holder reads the count of notes when it begins. Once it has let go, it looks whether the count is another
//! one, and if so tries the lock anew. So either the thread with the work gets the lock, or the holder sees
//! its note. Between the two accesses of each side is a full fence: without one, each could miss the other.
//! `model` checks it.

use crate::barrier;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence, fence_behind};

/// Counts the notes that there is work. See the module.
#[derive(Default)]
pub struct WorkCount(AtomicU32);

impl WorkCount {
    /// There is something to do, which has been made visible before. The caller tries the lock afterwards.
    #[inline]
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence_behind();
    }

    /// With the lock, before looking for something to do: for [`WorkCount::since`].
    #[inline]
    pub fn noted(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// After the lock: whether there has been a note since then, so that another thread may have found the
    /// lock taken.
    #[inline]
    pub fn since(&self, noted: u32) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != noted
    }
}

/// A note to the holder of a lock that there may be work of one kind. The holder then looks for that work
/// once more. See the module.
#[derive(Default)]
pub struct WorkNote(AtomicBool);

impl WorkNote {
    /// There may be something to do. The caller tries the lock afterwards.
    #[inline]
    pub fn note(&self) {
        // No plain store: it would hide the note before it, and the work that the earlier note makes visible,
        // from the thread that finds this one.
        self.0.swap(true, Ordering::SeqCst);
        fence_behind();
    }

    /// With the lock, before looking for something to do. Returns whether there was a note, which is gone
    /// now.
    #[inline]
    pub fn begin(&self) -> bool {
        // The second access acquires all that was made visible before the note.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::SeqCst)
    }

    /// After the lock: whether another thread may have found it taken.
    #[inline]
    pub fn is_noted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// A note as [`WorkNote`], for a lock that one thread takes often and others rarely. One of the others finds
/// the lock taken, stores the note, and tries the lock once more. The holder lets the lock go and then looks
/// at the note. So the thread gets the lock, or the holder finds the note. This takes a fence between store
/// and look, and the other thread alone pays for it (`crate::barrier`).
#[derive(Default)]
pub struct RareWorkNote(AtomicBool);

impl RareWorkNote {
    /// There may be something to do, and the lock was taken: the caller tries the lock once more afterwards.
    /// It takes a system call of some microseconds.
    #[cold]
    pub fn note(&self) {
        self.0.store(true, Ordering::SeqCst);
        barrier::heavy();
    }

    /// With the lock, before looking for something to do. Returns whether there was a note, which is gone
    /// now.
    #[inline]
    pub fn begin(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::SeqCst)
    }

    /// After the lock: whether a thread may have found it taken.
    #[inline]
    pub fn is_noted(&self) -> bool {
        barrier::light();
        self.0.load(Ordering::Relaxed)
    }
}

/// The *rounds* of the thread with the first of two locks, and the work of threads with the second lock. Work
/// that comes while a round is under way is too early. Its thread puts it off and goes away. The thread that
/// has ended the round finds that, and goes on with the work. Neither thread waits for the other.
#[derive(Default)]
pub struct Rounds {
    begun: AtomicU64,
    ended: AtomicU64,
    is_put_off: AtomicBool,
}

impl Rounds {
    /// With the first lock: a round begins. Returns its number, for [`Rounds::end`].
    #[inline]
    pub fn begin(&self) -> u64 {
        let round = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(round, Ordering::SeqCst);
        round
    }

    /// With the first lock: this round, and those before it, have ended.
    #[inline]
    pub fn end(&self, round: u64) {
        self.ended.swap(round, Ordering::SeqCst);
        fence_behind();
    }

    /// The last round that has begun.
    #[inline]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// With the second lock: whether this round, and those before it, have ended. If not, the work is put
    /// off.
    #[inline]
    pub fn have_ended(&self, round: u64) -> bool {
        let have_ended = || self.ended.load(Ordering::SeqCst) >= round;
        have_ended() || {
            self.put_off();
            // Either this thread sees the end of the round, or the thread that ends it sees that work is put
            // off.
            have_ended()
        }
    }

    /// With the second lock: its work is put off until the first lock is free. The calling thread tries that
    /// lock once more afterwards.
    pub fn put_off(&self) {
        self.is_put_off.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether work is put off. The calling thread has ended a round ([`Rounds::end`]) or let go of the first
    /// lock, with a full fence behind that. If work is put off, the thread tries the second lock and goes on
    /// with it. Another thread may have that lock, perhaps the one that is putting the work off at this
    /// instant: the note has it look again.
    #[inline]
    pub fn go_on(&self, missed: &WorkNote) -> bool {
        let goes_on = self.is_put_off.load(Ordering::SeqCst) && self.is_put_off.swap(false, Ordering::SeqCst);
        if goes_on {
            missed.note();
        }
        goes_on
    }
}

/// Work that takes many turns, each with the lock. A posting thread that finds the lock taken leaves its
/// requests to the turns, as long as they go on. The thread that takes the last turn looks for all requests
/// that have been left.
#[derive(Default)]
pub struct Turns(AtomicBool);

impl Turns {
    /// With the lock: turns are taken from now on. Returns whether none were before.
    #[inline]
    pub fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// With the lock, before the look for posted requests: no more turns are taken.
    #[inline]
    pub fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
        fence_behind();
    }

    /// Whether turns are taken. With the lock, it stays so; without, it may have changed already.
    #[inline]
    pub fn go_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Without the lock, which was taken: whether the thread that takes the turns will find all that the
    /// caller has posted before.
    #[inline]
    pub fn will_find(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}
