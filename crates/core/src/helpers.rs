//! The engine's own threads: how many there are, and when they leave the program's memory alone.
//!
//! Pages of a program with one thread can be moved while that thread is inside of a verbs call
//! (`memory::moved`): no other thread of the program writes. The engine's threads must not count as the
//! program's then, and must not write either.

use crate::containment;
use crate::current::Current;
use crate::signals::SignalMask;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// The threads of one engine.
#[derive(Default)]
pub struct Helpers {
    count: AtomicUsize,
    memory: RwLock<()>,
}

/// The threads of the engine of this process, if there is an engine.
pub(crate) static CURRENT: Current<Helpers> = Current::none();

/// A thread of the engine's, until dropped.
pub struct Helper<'a>(&'a Helpers);

thread_local! {
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of the engine's.
pub fn is_helper() -> bool {
    IS_HELPER.get()
}

/// Where data are that the engine keeps of the calling thread, as address and length.
pub(crate) fn thread_data() -> (usize, usize) {
    IS_HELPER.with(|here| (std::ptr::from_ref(here) as usize, size_of::<Cell<bool>>()))
}

/// The engine's threads leave the program's memory alone while it lives.
pub(crate) struct MemoryHold<'a>(#[expect(dead_code, reason = "held for its end")] RwLockWriteGuard<'a, ()>);

impl Helpers {
    /// The calling thread is one of the engine's. It says so itself, first of all: a thread that counts must
    /// not count one that is not there yet.
    pub fn enter(&self) -> Helper<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        IS_HELPER.set(true);
        Helper(self)
    }

    /// A thread of the engine's, on which none of the program's signals is handled. It runs when this
    /// returns.
    ///
    /// The first allocation of a thread maps and unmaps memory for itself. Programs that watch over
    /// registered memory (libfabric, UCX) overwrite the code of libc's munmap(2) as they begin. A thread that
    /// is inside of it at that instant does not survive: so the caller waits for that first allocation.
    ///
    /// # Errors
    /// EAGAIN when the system lets the process have no more threads.
    pub fn spawn(&'static self, name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let _signals = SignalMask::new();
        let called = name.to_owned();
        let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
        let (running, runs) = std::sync::mpsc::channel::<()>();
        let run = move || {
            let _helper = self.enter();
            drop(std::hint::black_box(Box::new(0u64)));
            drop(running);
            containment::contain(&called, work);
        };
        thread.spawn(run)?;
        // It ends with an error: nothing is ever sent.
        let _ = runs.recv();
        Ok(())
    }

    /// Before a thread of the engine touches memory of the program; not across a wait. May be nested.
    pub fn work(&self) -> RwLockReadGuard<'_, ()> {
        self.memory.read().unwrap_or_else(|e| e.into_inner())
    }

    /// How many there are, or fewer.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Keeps them from memory of the program, unless one is busy there for longer than is worth waiting: one
    /// that has no processor meanwhile, say.
    pub(crate) fn hold(&self) -> Option<MemoryHold<'_>> {
        const HOLD_TIMEOUT: Duration = Duration::from_millis(20);
        let mut until = None;
        loop {
            match self.memory.try_write() {
                Ok(guard) => return Some(MemoryHold(guard)),
                Err(TryLockError::Poisoned(error)) => return Some(MemoryHold(error.into_inner())),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
            if Instant::now() > *until.get_or_insert_with(|| Instant::now() + HOLD_TIMEOUT) {
                return None;
            }
        }
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        IS_HELPER.set(false);
        self.0.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_works_while_they_are_held() {
        let helpers = Helpers::default();
        let helper = helpers.enter();
        assert_eq!(helpers.count(), 1);
        let work = helpers.work();
        assert!(helpers.hold().is_none());
        drop(work);
        let held = helpers.hold();
        assert!(held.is_some() && helpers.memory.try_read().is_err());
        drop(held);
        drop(helper);
        assert_eq!(helpers.count(), 0);
    }
}
