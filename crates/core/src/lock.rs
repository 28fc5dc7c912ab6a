//! A lock for work of a few dozen nanoseconds, mostly with no other thread about.
//!
//! A thread that has taken the lock many times in a row becomes its *favourite*: from then on it takes the
//! lock and lets go by plain stores. So no locked instruction delays its stores on the way to the other
//! processor. Another thread that wants the lock revokes that. It takes the *lock word*, stores that there is
//! no favourite any more, and has all threads of the process pass a barrier (`crate::barrier`). Then it waits
//! until the former favourite has let go. Each time that this happens, more takings in a row are wanted for
//! the next favour, so that a lock of two busy threads is soon an ordinary one.
//!
//! Without a favourite the lock word alone is the lock: one exchange, and a plain store to let go. A thread
//! that finds the lock taken spins for a moment, then counts itself among the sleepers and sleeps. The holder
//! frees the word, then looks whether there are sleepers. Its processor may execute that load before the
//! store that frees the word. Then the holder wakes no thread. So a sleep lasts [`SLEEP`] at most. `model`
//! checks all but the sleep.

use crate::barrier;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence, light_fence};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// Looks before a thread sleeps.
const SPINS: u32 = if cfg!(loom) { 1 } else { 100 };
/// The longest sleep of a thread before it looks again, in nanoseconds.
#[cfg(not(loom))]
const SLEEP: libc::c_long = 100_000;

/// Takings in a row that make a favourite, at first and at most.
const FEW: u32 = if cfg!(loom) { 1 } else { 64 };
const MOST: u32 = 1 << 20;

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// Threads that may be favourites of one lock, in its whole life. So one that sets everything up leaves the
/// favour to others.
const SEATS: usize = if cfg!(loom) { 2 } else { 4 };

/// Stands in the place of a thread, and of a seat, where there is none.
const NO_THREAD: usize = 0;

fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// The calling thread: a number that no other living thread has, and not [`NO_THREAD`].
#[inline]
fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        let thread: usize;
        // SAFETY: the first word behind the thread pointer holds the thread pointer (System V ABI for x86-64,
        // thread-local storage).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) thread, options(pure, readonly, nostack, preserves_flags))
        };
        thread
    }
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    {
        let thread: usize;
        // SAFETY: the register holds the thread pointer, and may be read anywhere.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(pure, nomem, nostack, preserves_flags))
        };
        thread
    }
    #[cfg(all(not(loom), any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64")))))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here) as usize)
    }
    #[cfg(loom)]
    {
        let name = format!("{:?}", loom::thread::current().id());
        name.bytes().filter(u8::is_ascii_digit).fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')) + 1
    }
}

/// The words that a favourite writes. They belong to one thread for good: a former favourite may be kept from
/// its processor in the middle of an attempt, and write there much later.
#[derive(Default)]
struct Seat {
    /// The thread. Set once, with the lock word.
    thread: AtomicUsize,
    /// The thread has the value as the favourite, or is trying to. Set by that thread alone.
    held: AtomicU32,
}

/// A lock for work of a few dozen nanoseconds. A thread that takes it many times in a row gets cheaper access
/// (see the module). A panic leaves the lock free: its value is consistent between any two statements.
pub struct Lock<T> {
    /// Taken by all but the favourite. The thread that has it changes the favourite, and has the value once
    /// no thread holds that from a seat.
    word: AtomicU32,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    /// The seat of the favourite, plus one; or [`NO_THREAD`]. Set with the lock word.
    favourite: AtomicUsize,
    seats: [Seat; SEATS],
    /// Seats that threads have got: the first ones. Set with the lock word.
    given: AtomicU32,
    /// With the lock word: which thread has had it last, how many times in a row, and how many are wanted.
    last: AtomicUsize,
    streak: AtomicU32,
    wanted: AtomicU32,
    /// In a model, which looks at each step of each thread: whether there is ever a favourite.
    #[cfg(loom)]
    favours: bool,
    value: UnsafeCell<T>,
}

// SAFETY: there is one guard at a time, and only the thread that has it reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Lock<T> {
    /// A lock that is free.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            favourite: AtomicUsize::new(NO_THREAD),
            seats: std::array::from_fn(|_| Seat::default()),
            given: AtomicU32::new(0),
            last: AtomicUsize::new(NO_THREAD),
            streak: AtomicU32::new(0),
            wanted: AtomicU32::new(FEW),
            #[cfg(loom)]
            favours: false,
            value: UnsafeCell::new(value),
        }
    }

    /// A lock that is free and has favourites, for models of loom.
    #[cfg(all(loom, test))]
    pub(crate) fn favouring(value: T) -> Self {
        Self { favours: true, ..Self::new(value) }
    }

    /// The value, once no other thread has it. A thread that has it already waits for ever.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        let seat = self.take_as_favourite();
        if seat.is_none() {
            self.take_in_time();
        }
        LockGuard::new(self, seat)
    }

    /// The value, unless a thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        let seat = self.take_as_favourite();
        (seat.is_some() || self.take()).then(|| LockGuard::new(self, seat))
    }

    #[inline(never)]
    fn take_in_time(&self) {
        if !self.take() {
            self.wait();
        }
    }

    #[inline(always)]
    fn take_as_favourite(&self) -> Option<&Seat> {
        #[cfg(loom)]
        if !self.favours {
            return None;
        }
        let favourite = self.favourite.load(Ordering::Relaxed);
        let seat = self.seats.get(favourite.wrapping_sub(1))?;
        // A favourite that has the lock already does not get it again.
        if seat.thread.load(Ordering::Relaxed) != this_thread() || seat.held.load(Ordering::Relaxed) != FREE {
            return None;
        }
        seat.held.store(TAKEN, Ordering::Relaxed);
        // This thread stores `held` and then looks at `favourite`. A thread that ends the favour stores
        // `favourite`, has all other threads pass a barrier, and then looks at `held`. So at least one of the
        // two sees the other's store.
        light_fence();
        // If the favour stands, no other thread has had the value since this one had it last: there is
        // nothing to acquire.
        if self.favourite.load(Ordering::Relaxed) == favourite {
            return Some(seat);
        }
        self.favour_is_over(seat);
        None
    }

    /// The calling thread, which was the favourite, tries the lock word next.
    #[cold]
    fn favour_is_over(&self, seat: &Seat) {
        self.let_go(&seat.held);
        // The thread with the word may have found the seat held by an attempt alone. If this thread finds the
        // word taken now, the other one looks at the seat again.
        fence(Ordering::SeqCst);
    }

    /// Takes the lock word, and the value with it. Not in line, where the favourite's way is to be short.
    #[inline(never)]
    fn take(&self) -> bool {
        loop {
            if !self.take_word() {
                return false;
            }
            #[cfg(loom)]
            if !self.favours {
                return true;
            }
            let is_ordinary = self.favourite.load(Ordering::Relaxed) == NO_THREAD;
            // Few locks have ever had a second favourite: there is one seat to look at.
            let is_free = || {
                self.seats[0].held.load(Ordering::Acquire) == FREE
                    && (self.given.load(Ordering::Relaxed) <= 1 || self.all_seats_are_free())
            };
            if is_ordinary && is_free() || self.end_favour() {
                return true;
            }
            if !self.is_free_after_all() {
                return false;
            }
        }
    }

    /// Whether no thread has the value from a seat. The calling thread then sees all that those threads did
    /// to the value.
    #[inline]
    fn all_seats_are_free(&self) -> bool {
        self.seats.iter().all(|seat| seat.held.load(Ordering::Acquire) == FREE)
    }

    /// The calling thread has let go of the word, since a seat was held. Returns whether no seat is held by
    /// now. Then this thread and one that came to the word meanwhile may both have found the lock taken by
    /// the other's attempt alone.
    #[cold]
    fn is_free_after_all(&self) -> bool {
        fence(Ordering::SeqCst);
        self.all_seats_are_free()
    }

    #[inline]
    fn take_word(&self) -> bool {
        // Acquire: this thread sees all that the last holder did to the value. The model checker does not
        // know that nothing comes between the two halves of a swap. It gets an exchange, which writes nothing
        // where a swap would write the same value again.
        #[cfg(loom)]
        return self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        #[cfg(not(loom))]
        return self.word.swap(TAKEN, Ordering::Acquire) == FREE;
    }

    /// With the lock word: whether the value comes with it. If not, the word is free again, and there is no
    /// favourite but the calling thread.
    #[cold]
    fn end_favour(&self) -> bool {
        let favourite = self.favourite.load(Ordering::Relaxed);
        let seat = self.seats.get(favourite.wrapping_sub(1));
        if seat.is_some_and(|seat| seat.thread.load(Ordering::Relaxed) != this_thread()) {
            self.favourite.store(NO_THREAD, Ordering::Relaxed);
            // Now the favourite sees that it is none any more, or this thread sees below that the favourite
            // holds the value.
            barrier::heavy();
            self.wanted.store((self.wanted.load(Ordering::Relaxed) * 2).min(MOST), Ordering::Relaxed);
        }
        // A favourite that comes here has the value already.
        if self.all_seats_are_free() {
            return true;
        }
        self.let_go(&self.word);
        false
    }

    /// With the lock word, which is free afterwards: a thread that has had it many times in a row becomes the
    /// favourite.
    #[inline(never)]
    fn let_go_of_word(&self) {
        self.count();
        self.let_go(&self.word);
    }

    fn count(&self) {
        #[cfg(loom)]
        if !self.favours {
            return;
        }
        let thread = this_thread();
        if self.last.load(Ordering::Relaxed) != thread {
            self.last.store(thread, Ordering::Relaxed);
            self.streak.store(0, Ordering::Relaxed);
            return;
        }
        let streak = self.streak.load(Ordering::Relaxed) + 1;
        if streak < self.wanted.load(Ordering::Relaxed) {
            self.streak.store(streak, Ordering::Relaxed);
        } else if barrier::is_asymmetric() {
            self.streak.store(0, Ordering::Relaxed);
            self.favour(thread);
        }
    }

    /// With the lock word: the thread is the favourite, if there is a seat for it.
    #[cold]
    fn favour(&self, thread: usize) {
        let is_its = |seat: &Seat| {
            matches!(seat.thread.load(Ordering::Relaxed), NO_THREAD)
                || seat.thread.load(Ordering::Relaxed) == thread
        };
        if let Some(place) = self.seats.iter().position(is_its) {
            self.seats[place].thread.store(thread, Ordering::Relaxed);
            let given = self.given.load(Ordering::Relaxed).max(place as u32 + 1);
            self.given.store(given, Ordering::Relaxed);
            self.favourite.store(place + 1, Ordering::Relaxed);
        }
    }

    /// Whether the lock seems to be free, so that a try is worth while.
    fn looks_free(&self) -> bool {
        #[cfg(loom)]
        if !self.favours {
            return self.word.load(Ordering::Relaxed) == FREE;
        }
        self.word.load(Ordering::Relaxed) == FREE
            && (self.favourite.load(Ordering::Relaxed) != NO_THREAD || self.all_seats_are_free())
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            pause();
            if self.looks_free() && self.take() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.take() {
            #[cfg(loom)]
            pause();
            #[cfg(not(loom))]
            self.sleep();
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(not(loom))]
    fn sleep(&self) {
        let most = libc::timespec { tv_sec: 0, tv_nsec: SLEEP };
        let held = self.seats.iter().map(|seat| &seat.held).find(|held| held.load(Ordering::Relaxed) != FREE);
        let word = held.unwrap_or(&self.word);
        // SAFETY: futex(2) on a live word, with a live time.
        unsafe {
            let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, word.as_ptr(), wait, TAKEN, &raw const most);
        }
    }

    /// Frees one of the two words.
    #[inline]
    fn let_go(&self, word: &AtomicU32) {
        word.store(FREE, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            wake(word);
        }
    }
}

#[cold]
fn wake(_word: &AtomicU32) {
    // In a model no thread sleeps.
    #[cfg(not(loom))]
    // SAFETY: futex(2) on a live word.
    unsafe {
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, _word.as_ptr(), wake, 1);
    }
}

/// Holds a [`Lock`]. It stays with its thread, which may be the favourite.
#[must_use = "the lock is free again when this is dropped"]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    /// The seat by which the favourite holds the lock.
    seat: Option<&'a Seat>,
    stays: PhantomData<*const ()>,
}

// SAFETY: shared, it gives shared references to the value alone.
unsafe impl<T: Sync> Sync for LockGuard<'_, T> {}

impl<'a, T> LockGuard<'a, T> {
    #[inline]
    fn new(lock: &'a Lock<T>, seat: Option<&'a Seat>) -> Self {
        Self { lock, seat, stays: PhantomData }
    }

    /// Lets go, in line: a drop is a call, where the compiler has several of them. No method, so that it
    /// hides none of the value's own.
    #[inline(always)]
    pub fn release(guard: Self) {
        ManuallyDrop::new(guard).let_go();
    }

    #[inline(always)]
    fn let_go(&self) {
        match self.seat {
            Some(seat) => self.lock.let_go(&seat.held),
            None => self.lock.let_go_of_word(),
        }
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the thread that made the guard found the lock free, and no other thread does while the
        // guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard itself is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        // An interpreter takes long.
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 5000 };
        let lock = Lock::new(0u64);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "who did not get it has not set it free");
        drop(held);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut value = lock.lock();
                        let seen = *value;
                        if (round + thread) % 1000 == 0 {
                            // So that others come to sleep.
                            std::thread::yield_now();
                        }
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.try_lock().unwrap(), 4 * u64::from(ROUNDS));
    }

    /// A lock whose favourite is the calling thread, where there can be one.
    fn favoured() -> Lock<u64> {
        barrier::set_up();
        let lock = Lock::new(0);
        (0..=FEW + 1).for_each(|_| *lock.lock() += 1);
        lock
    }

    #[test]
    fn a_favourite_has_it_once_and_others_get_it_when_it_lets_go() {
        let lock = favoured();
        let is_favourite = |lock: &Lock<u64>| lock.favourite.load(Ordering::Relaxed) != NO_THREAD;
        assert_eq!(is_favourite(&lock), barrier::is_asymmetric());
        let held = lock.lock();
        assert!(lock.try_lock().is_none(), "by the favourite itself");
        assert_eq!(is_favourite(&lock), barrier::is_asymmetric(), "it has not been taken away by that");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_lock().is_none(), "by another thread"));
        });
        assert!(!is_favourite(&lock));
        assert!(lock.try_lock().is_none(), "by the former favourite");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *lock.lock());
            while lock.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waits.join().unwrap(), u64::from(FEW) + 2);
        });
        assert!(lock.try_lock().is_some());
    }

    /// Two threads, one of which has the lock nearly always, so that favours come and go.
    #[test]
    fn favours_come_and_go_and_nothing_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 200_000 };
        let lock = favoured();
        let start = *lock.lock();
        std::thread::scope(|scope| {
            let visitor = scope.spawn(|| {
                for round in 0..ROUNDS / 50 {
                    *lock.lock() += 1;
                    lock.wanted.store(FEW, Ordering::Relaxed);
                    if round % 4 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..ROUNDS {
                *lock.lock() += 1;
            }
            visitor.join().unwrap();
        });
        assert_eq!(*lock.lock(), start + ROUNDS + ROUNDS / 50);
    }

    #[test]
    fn a_sleeping_thread_gets_the_lock_in_the_end() {
        let lock = Lock::new(());
        let held = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while lock.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert!(lock.try_lock().is_some());
    }
}
