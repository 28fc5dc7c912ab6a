//! The state of sharing, under one lock that a fork takes, too.

use super::Refusal;
use super::file::SharedFile;
use super::fork::Copies;
use super::guard::PageGuard;
use super::own::Pieces;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// All that is known of moved memory.
pub(super) struct State {
    pub(super) file: Option<SharedFile>,
    pub(super) guard: Option<PageGuard>,
    pub(super) own: Pieces,
    /// The copies for a child, while a fork is under way.
    pub(super) copies: Copies,
}

static STATE: Mutex<State> = Mutex::new(State::new());
/// The thread that holds the lock.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// The lock, held.
pub(super) struct StateGuard(MutexGuard<'static, State>);

fn me() -> i32 {
    // By its number: the C library has a name for it only since 2.30. SAFETY: takes nothing, and answers with
    // a number.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Waits for the lock. None if this very thread holds it: it is in the middle of a fork.
pub(super) fn lock() -> Option<StateGuard> {
    if HOLDER.load(Ordering::Relaxed) == me() {
        return None;
    }
    let guard = STATE.lock().unwrap_or_else(|e| e.into_inner());
    HOLDER.store(me(), Ordering::Relaxed);
    Some(StateGuard(guard))
}

impl Deref for StateGuard {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for StateGuard {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for StateGuard {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Relaxed);
    }
}

impl State {
    pub(super) const fn new() -> Self {
        Self { file: None, guard: None, own: Pieces::new(), copies: Copies::none() }
    }

    /// The file, made when it is needed.
    pub(super) fn file(&mut self) -> Result<&mut SharedFile, Refusal> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(SharedFile::new()?)),
        }
    }
}
