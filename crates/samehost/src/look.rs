//! Looks into the memory of another process, which may withhold it: a page there may be missing as long as
//! that process wishes (userfaultfd(2), a file of FUSE).
//!
//! A thread of its own looks, and the background thread goes on with the result. So a process that withholds
//! its memory stops one thread here, which has nothing else to do and holds no lock. Further looks at that
//! process wait for this thread.

use crate::handshake::began;
use crate::lock;
use adverb_core::engine::{self, Engine};
use adverb_core::fork::ForkGeneration;
use adverb_core::helpers::Helpers;
use adverb_core::reactor::{Readiness, Source};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, RwLockReadGuard};
use std::time::Duration;

/// How long a look may take: as long as a thread may get no processor on a busy machine. After that the
/// memory counts as one that cannot be read.
const LIMIT: Duration = Duration::from_secs(5);
/// Processes at which threads look at the same time, one thread each. A thread that gets no answer stays
/// until the other process ends.
const MOST_THREADS: usize = 256;
/// Looks that wait for the thread that looks at the same process.
const MOST_WAITING: usize = 16;

/// A process, and when it began: its number may be another one's later.
type LookedProcess = (libc::pid_t, Option<u64>);
/// What keeps the program's pages where they are ([`Helpers::work`]).
type PagesStay = RwLockReadGuard<'static, ()>;
/// A look, which lets pages be moved while it waits for the other process.
type Work = Box<dyn FnOnce(PagesStay) -> PagesStay + Send>;

/// The threads that look. Lives for ever.
struct Looks {
    born: ForkGeneration,
    /// Of each process at which a thread looks: the looks that wait for that thread.
    threads: Mutex<HashMap<LookedProcess, VecDeque<Work>>>,
}

static LOOKS: AtomicPtr<Looks> = AtomicPtr::new(std::ptr::null_mut());

/// The threads of this process. A child of fork has none of its parent's, one of which may have held the
/// lock: it begins anew.
fn looks() -> &'static Looks {
    loop {
        let known = LOOKS.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or leaked and never freed.
        if let Some(looks) = unsafe { known.as_ref() }
            && looks.born.is_here()
        {
            return looks;
        }
        let fresh = Looks { born: ForkGeneration::now(), threads: Mutex::default() };
        let made = Box::into_raw(Box::new(fresh));
        if LOOKS.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `made` came from Box::into_raw, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl Looks {
    /// Has a thread look: at once, or after those that look at the same process. False if there are too many
    /// of either, or if the system refuses a thread.
    fn begin(&'static self, looked: LookedProcess, helpers: &'static Helpers, work: Work) -> bool {
        let mut threads = lock(&self.threads);
        let has_room = threads.len() < MOST_THREADS;
        match threads.get_mut(&looked) {
            Some(waiting) => {
                let has_room = waiting.len() < MOST_WAITING;
                waiting.extend(has_room.then_some(work));
                return has_room;
            }
            None if has_room => threads.insert(looked, VecDeque::new()),
            None => return false,
        };
        drop(threads);
        let has_begun = helpers.spawn("adverb-look", move || self.run(looked, helpers, work)).is_ok();
        if !has_begun {
            // Looks that wait by now go on at their limit.
            lock(&self.threads).remove(&looked);
        }
        has_begun
    }

    fn run(&self, looked: LookedProcess, helpers: &'static Helpers, mut work: Work) {
        let mut stay = helpers.work();
        loop {
            stay = work(stay);
            let mut threads = lock(&self.threads);
            match threads.get_mut(&looked).and_then(VecDeque::pop_front) {
                Some(next) => work = next,
                None => {
                    threads.remove(&looked);
                    return;
                }
            }
        }
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

/// Calls `goes_on` once with the result of `read`, which reads memory of `process`, in the background thread.
/// None, too: the other process withholds its memory, or no thread can look. In the last case `goes_on` is
/// called at once, so the caller holds no lock that it takes.
pub(crate) fn look<T: Send + 'static>(
    process: libc::pid_t,
    read: impl FnOnce() -> Option<T> + Send + 'static,
    goes_on: impl FnOnce(Option<T>) + Send + 'static,
) {
    look_for(process, LIMIT, read, goes_on);
}

fn look_for<T: Send + 'static>(
    process: libc::pid_t,
    limit: Duration,
    read: impl FnOnce() -> Option<T> + Send + 'static,
    goes_on: impl FnOnce(Option<T>) + Send + 'static,
) {
    let look = Arc::new(Look { found: Mutex::new(None), goes_on: Mutex::new(Some(Box::new(goes_on))) });
    let looked = (process, began(process));
    let begun = engine::engine().is_ok_and(|engine| begin(engine, looked, limit, &look, read));
    if !begun {
        look.timeout();
    }
}

/// Has a thread look. False if that is refused.
fn begin<T: Send + 'static>(
    engine: &'static Engine,
    looked: LookedProcess,
    limit: Duration,
    look: &Arc<Look<T>>,
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> bool {
    let reactor = &engine.reactor;
    // The timer comes first: the read may block for ever.
    let Ok(timer) = reactor.set_timer(limit, look.clone()) else { return false };
    let to = look.clone();
    let work = move |stay: PagesStay| {
        if lock(&to.goes_on).is_none() {
            // Its limit has passed while it waited for another look.
            return stay;
        }
        drop(stay);
        let found = read();
        // What follows writes to memory that may be the program's, whose pages may be moved meanwhile.
        let stay = reactor.helpers.work();
        *lock(&to.found) = found;
        // Without this timer, that of the limit goes on.
        let _ = reactor.set_timer(Duration::ZERO, to);
        stay
    };
    let has_begun = looks().begin(looked, &reactor.helpers, Box::new(work));
    if !has_begun {
        reactor.cancel_timer(timer);
    }
    has_begun
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::conformance::fixture::in_a_child;
    use std::sync::RwLock;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);

    /// The number of a process that does not exist, one for each test.
    fn process(number: libc::pid_t) -> libc::pid_t {
        libc::pid_t::MAX - number
    }

    #[test]
    fn the_result_of_a_look_is_handled_in_the_background_thread() {
        let (tell, told) = channel();
        look_for(
            process(1),
            LONG,
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
        look_for(
            process(2),
            SHORT,
            move || Some(withheld.recv().is_err()),
            move |found| once.send(found).unwrap(),
        );
        assert_eq!(told.recv().unwrap(), None);
        // Its thread is still there, and others look.
        look_for(process(3), LONG, || Some(true), move |found| tell.send(found).unwrap());
        assert_eq!(told.recv().unwrap(), Some(true));
        drop(end);
    }

    /// A process may hang up and come again as often as it likes.
    #[test]
    fn a_process_that_withholds_its_memory_has_one_thread() {
        let gate = Arc::new(RwLock::new(()));
        let withheld = gate.write().unwrap();
        let (tell, told) = channel();
        let (begin, begun) = channel();
        let waiting = || lock(&looks().threads).get(&(process(4), None)).map_or(0, VecDeque::len);
        let mut refused = 0;
        for _ in 0..MOST_THREADS {
            let (tell, begin, gate, before) = (tell.clone(), begin.clone(), gate.clone(), waiting());
            let read = move || {
                begin.send(()).unwrap();
                drop(gate.read());
                Some(true)
            };
            look_for(process(4), LONG, read, move |found| tell.send(found).unwrap());
            // Until a thread looks, or the look waits, or is refused.
            while begun.try_recv().is_err() && waiting() == before {
                if let Ok(answer) = told.try_recv() {
                    assert_eq!(answer, None);
                    refused += 1;
                    break;
                }
                std::thread::yield_now();
            }
        }
        let (tell_other, told_other) = channel();
        look_for(process(5), LONG, || Some(true), move |found| tell_other.send(found).unwrap());
        assert_eq!(told_other.recv().unwrap(), Some(true), "there is a thread for another process");
        assert_eq!(refused, MOST_THREADS - 1 - MOST_WAITING);
        // Once it withholds nothing, its memory is read like any other.
        drop(withheld);
        assert!((0..=MOST_WAITING).all(|_| told.recv().unwrap() == Some(true)));
    }

    /// Both transports look at a process as they meet it.
    #[test]
    fn a_look_waits_for_another_one_at_the_same_process() {
        let gate = Arc::new(RwLock::new(()));
        let withheld = gate.write().unwrap();
        let (tell, told) = channel();
        for value in 0..2 {
            let (tell, gate) = (tell.clone(), gate.clone());
            let read = move || {
                drop(gate.read());
                Some(value)
            };
            look_for(process(6), LONG, read, move |found| tell.send(found).unwrap());
        }
        drop(withheld);
        let mut both = [told.recv().unwrap(), told.recv().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [Some(0), Some(1)]);
    }

    #[test]
    fn a_child_of_fork_has_none_of_its_parents_threads() {
        let (end, withheld) = channel::<()>();
        let (begin, begun) = channel();
        let read = move || {
            begin.send(()).unwrap();
            Some(withheld.recv().is_err())
        };
        look_for(process(7), LONG, read, |_| ());
        begun.recv().unwrap();
        in_a_child(|| {
            let looks = looks();
            assert!(looks.threads.try_lock().is_ok_and(|threads| threads.is_empty()));
        });
        drop(end);
    }
}
