//! Sent signals (kill(2), not faults) that arrive only because the thread unblocked them for a copy. The
//! handler keeps them until the copy is over, and sends them again. So they wait until the program takes
//! them.
//!
//! The handler finds what belongs to its thread in a table. A thread-local variable would be allocated in it,
//! at first.

use super::handler::{SIGNALS, index};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Threads that keep signals at the same time. In further ones, signals go to the program at once.
const MOST_THREADS: usize = 256;
/// No thread has the place.
const FREE: usize = 0;
/// A bit that no thread's name has: the thread keeps nothing more.
const CLOSING: usize = 1;

/// The place of a thread that lets faults in.
#[repr(align(64))]
struct Place {
    /// The name of the thread.
    owner: AtomicUsize,
    has: [AtomicBool; SIGNALS.len()],
    /// By signal.
    kept: [UnsafeCell<MaybeUninit<libc::siginfo_t>>; SIGNALS.len()],
}

// SAFETY: what is kept is written and read by the thread that owns the place, and by its handlers, one after
// the other.
unsafe impl Sync for Place {}

static PLACES: [Place; MOST_THREADS] = [const {
    Place {
        owner: AtomicUsize::new(FREE),
        has: [const { AtomicBool::new(false) }; SIGNALS.len()],
        kept: [const { UnsafeCell::new(MaybeUninit::uninit()) }; SIGNALS.len()],
    }
}; MOST_THREADS];

/// The calling thread's name: an address of the C library's, and so neither odd nor [`FREE`]. No system call.
fn own_name() -> usize {
    // SAFETY: takes nothing.
    unsafe { libc::pthread_self() as usize }
}

/// The places, in an order of the thread's own: threads seldom look at one place at the same time.
fn places(name: usize) -> impl Iterator<Item = &'static Place> {
    let first = (name as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (0..MOST_THREADS).map(move |offset| &PLACES[(first as usize + offset) % MOST_THREADS])
}

/// The calling thread keeps the signals that are sent to it, until dropped.
pub(super) struct Keeper(Option<&'static Place>);

impl Keeper {
    pub(super) fn new() -> Self {
        let name = own_name();
        let claim = |place: &&Place| {
            place.owner.compare_exchange(FREE, name, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        Self(places(name).find(claim))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(place) = self.0 else { return };
        // The handler keeps nothing more here.
        place.owner.fetch_or(CLOSING, Ordering::SeqCst);
        let kept: [_; SIGNALS.len()] = std::array::from_fn(|at| {
            // SAFETY: what is kept was written by a handler of this thread, which has returned.
            place.has[at]
                .swap(false, Ordering::SeqCst)
                .then(|| unsafe { (*place.kept[at].get()).assume_init_read() })
        });
        place.owner.store(FREE, Ordering::Release);
        for (signal, info) in SIGNALS.into_iter().zip(kept) {
            if let Some(info) = info {
                send_again(signal, &info);
            }
        }
    }
}

/// Keeps a signal that has been sent to the calling thread, if the thread keeps signals now. Of several ones
/// the first is kept, as the kernel does. For the handler.
pub(super) fn keep(signal: libc::c_int, info: &libc::siginfo_t) -> bool {
    let name = own_name();
    let Some(place) = places(name).find(|place| place.owner.load(Ordering::SeqCst) == name) else {
        return false;
    };
    let at = index(signal);
    if !place.has[at].load(Ordering::SeqCst) {
        // SAFETY: the place is this thread's, and nothing is kept yet.
        unsafe { (*place.kept[at].get()).write(*info) };
        place.has[at].store(true, Ordering::SeqCst);
    }
    true
}

/// Sends a signal as it came: to the thread, or to the process, any thread of which may take it.
#[cold]
fn send_again(signal: libc::c_int, info: &libc::siginfo_t) {
    // SAFETY: plain numbers, and what the kernel has said of the signal.
    unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let info = std::ptr::from_ref(info);
        if (*info).si_code == libc::SI_TKILL {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        } else if libc::syscall(libc::SYS_rt_sigqueueinfo, process, signal, info) != 0 {
            // Only the first thread may say that kill(2) has sent it. In others, the sender is this process.
            libc::kill(process, signal);
        }
    }
}

/// Forgets the threads of the parent, in a child of fork: stores alone.
pub(super) fn forget() {
    for place in &PLACES {
        place.owner.store(FREE, Ordering::Relaxed);
        place.has.iter().for_each(|has| has.store(false, Ordering::Relaxed));
    }
}
