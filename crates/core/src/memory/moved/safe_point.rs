//! Work for which a thread of the program has to lend itself.

use super::Uninterrupted;
use crate::fork::Born;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

type Work = Box<dyn FnOnce() + Send>;

static WAITS: AtomicBool = AtomicBool::new(false);
static WORK: Mutex<Vec<(Born, Work)>> = Mutex::new(Vec::new());

/// Has this done by the next thread of the program that comes by a safe point.
pub fn at_safe_point(work: Work) {
    WORK.lock().unwrap_or_else(|e| e.into_inner()).push((Born::now(), work));
    WAITS.store(true, Ordering::Release);
}

/// The front ends call it as a thread of the program enters the engine for a verb of the fast path: with no lock of the engine's, and no bytes of a
/// region open. One load, while there is nothing to do.
#[inline]
pub fn safe_point() {
    if WAITS.load(Ordering::Relaxed) {
        serve();
    }
}

#[cold]
fn serve() {
    if crate::helpers::is_helper() {
        return;
    }
    let Ok(mut work) = WORK.try_lock() else { return };
    WAITS.store(false, Ordering::Relaxed);
    let taken = std::mem::take(&mut *work);
    drop(work);
    // Nothing of this is the program's: neither errno, nor a signal, nor a point of cancellation.
    let _here = Uninterrupted::new();
    for (born, work) in taken {
        if born.is_here() {
            work();
        } else {
            // A child of fork finds what its parent was to do.
            std::mem::forget(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn work_is_done_once_by_who_comes_by() {
        let here = std::thread::current().id();
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = done.clone();
        at_safe_point(Box::new(move || note.lock().unwrap().push(std::thread::current().id())));
        safe_point();
        safe_point();
        let done = done.lock().unwrap();
        assert!(done.len() == 1 && done[0] == here);
    }
}
