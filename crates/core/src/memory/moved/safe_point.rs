//! Work for which a thread of the program has to lend itself.

use super::InterruptionGuard;
use crate::current::Current;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

type Work = Box<dyn FnOnce() + Send>;

/// Work that waits for a thread of the program. A part of the engine: a child of fork has none of its
/// parent's.
#[derive(Default)]
pub struct SafePoints(Mutex<Vec<Work>>);

/// The safe points of the engine of this process, if there is an engine.
static CURRENT: Current<SafePoints> = Current::none();
static WAITS: AtomicBool = AtomicBool::new(false);

impl SafePoints {
    /// Makes these the safe points of the engine of this process.
    pub(crate) fn begin(&'static self) {
        CURRENT.set(self);
        // Another thread may have put work here since the engine was published, and a third may have cleared
        // `WAITS` and found no safe points. It is stored after `CURRENT`: a thread that reads true here finds
        // them.
        WAITS.store(true, Ordering::Release);
    }

    /// In a child of fork: stores alone.
    pub(crate) fn forget() {
        CURRENT.forget();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Work>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Has the work done by the next thread of the program that passes a safe point. Perhaps no thread ever does:
/// so the caller must bound the work that waits here.
pub fn at_safe_point(points: &SafePoints, work: Work) {
    points.lock().push(work);
    WAITS.store(true, Ordering::Release);
}

/// The front ends call it where a thread of the program enters or leaves the engine: with no lock of the
/// engine's, and no bytes of a region open. One load, while there is nothing to do.
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
    // Before the look: work that comes after it is seen by the next thread.
    WAITS.swap(false, Ordering::AcqRel);
    let Some(points) = CURRENT.get() else { return };
    let taken = std::mem::take(&mut *points.lock());
    // Nothing of this is the program's: neither errno, nor a signal, nor a point of cancellation.
    let _here = InterruptionGuard::new();
    for work in taken {
        work();
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
        crate::null::tests::site();
        let engine = crate::engine::engine().unwrap();
        at_safe_point(
            &engine.safe_points,
            Box::new(move || note.lock().unwrap().push(std::thread::current().id())),
        );
        safe_point();
        safe_point();
        let done = done.lock().unwrap();
        assert!(done.len() == 1 && done[0] == here);
    }
}
