//! Looks into the memory of another process, which may withhold it: a page there may be missing as long as that process wishes (userfaultfd(2), a file of FUSE).
//!
//! A thread of its own looks, and the background thread goes on with the result. So a process that withholds its memory stops one thread here, which has
//! nothing else to do and holds no lock.

use crate::lock;
use adverb_core::engine::{self, Engine};
use adverb_core::reactor::{Readiness, Source};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a look may take: as long as a thread may get no processor on a busy machine. After that the memory counts as one that cannot be read.
const LIMIT: Duration = Duration::from_secs(1);
/// Threads that look at the same time. One that gets no answer stays until the other process ends.
const MOST: usize = 256;

static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// The place of a thread that looks, until dropped.
struct LookPlace;

impl LookPlace {
    fn take() -> Option<Self> {
        let is_free = |looking: usize| (looking < MOST).then_some(looking + 1);
        LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).ok()?;
        Some(Self)
    }
}

impl Drop for LookPlace {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

type GoesOn<T> = Box<dyn FnOnce(Option<T>) + Send>;

/// A look, until it is over: either way it goes on in a timer of the background thread.
struct Look<T> {
    found: Mutex<Option<T>>,
    goes_on: Mutex<Option<GoesOn<T>>>,
}

impl<T: Send + 'static> Source for Look<T> {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let goes_on = lock(&self.goes_on).take();
        let found = lock(&self.found).take();
        if let Some(goes_on) = goes_on {
            goes_on(found);
        }
    }
}

/// Calls `goes_on` once with the result of `read`, in the background thread. None, too: the other process withholds its memory, or no thread can look. In the last case
/// `goes_on` is called at once, so the caller holds no lock that it takes.
pub(crate) fn look<T: Send + 'static>(
    read: impl FnOnce() -> Option<T> + Send + 'static,
    goes_on: impl FnOnce(Option<T>) + Send + 'static,
) {
    look_for(LIMIT, read, goes_on);
}

fn look_for<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> Option<T> + Send + 'static,
    goes_on: impl FnOnce(Option<T>) + Send + 'static,
) {
    let look = Arc::new(Look { found: Mutex::new(None), goes_on: Mutex::new(Some(Box::new(goes_on))) });
    let begun = engine::engine()
        .ok()
        .zip(LookPlace::take())
        .is_some_and(|(engine, place)| begin(engine, place, limit, &look, read));
    if !begun {
        look.timeout();
    }
}

/// Has a thread look. False if the system refuses that.
fn begin<T: Send + 'static>(
    engine: &'static Engine,
    place: LookPlace,
    limit: Duration,
    look: &Arc<Look<T>>,
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> bool {
    let reactor = &engine.reactor;
    // First: a thread that looks in vain never comes back.
    if reactor.set_timer(limit, look.clone()).is_err() {
        return false;
    }
    let to = look.clone();
    let work = move || {
        let found = read();
        drop(place);
        // What follows writes to memory that may be the program's, whose pages may be moved meanwhile.
        let _work = reactor.helpers.work();
        *lock(&to.found) = found;
        // Without this timer, that of the limit goes on.
        let _ = reactor.set_timer(Duration::ZERO, to);
    };
    reactor.helpers.spawn("adverb-look", work).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_was_read_goes_on_in_the_background_thread() {
        let (tell, told) = channel();
        look_for(
            Duration::from_secs(3600),
            || Some(5),
            move |found| tell.send((found, std::thread::current().name().map(str::to_owned))).unwrap(),
        );
        assert_eq!(told.recv().unwrap(), (Some(5), Some("adverb".to_owned())));
    }

    #[test]
    fn memory_that_is_withheld_cannot_be_read_and_stops_nobody() {
        let (end, withheld) = channel::<()>();
        let (tell, told) = channel();
        let once = tell.clone();
        let short = Duration::from_millis(1);
        look_for(short, move || Some(withheld.recv().is_err()), move |found| once.send(found).unwrap());
        assert_eq!(told.recv().unwrap(), None);
        // Its thread is still there, and others look.
        look_for(Duration::from_secs(3600), || Some(true), move |found| tell.send(found).unwrap());
        assert_eq!(told.recv().unwrap(), Some(true));
        drop(end);
    }
}
