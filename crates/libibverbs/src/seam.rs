//! Where calls can be watched: a trace, or faults. One interface ([`Watcher`]) carries every call of verbs
//! and rdma_cm, with its arguments and its answer; and with them the requests that it posts ([`sends`],
//! [`receives`], [`gathered`]) and the completions that it hands out ([`completed`], [`under_cursor`]).
//!
//! Functions that programs call by name come through [`pass`] while [`ACTIVE`] is true. It is true before the
//! first call, which finds out whether anybody watches. Functions that `verbs.h` calls through the tables of
//! an object are replaced in the tables of watched processes ([`Table`]), so that nothing is looked at in
//! others.

mod tables;
mod work;

use core::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::errno::{errno, write};
use crate::host::{self, ForwardedFunction};

pub use tables::Table;
pub(crate) use tables::{watch_builders, watch_context, watch_polls, watch_work_queue};
pub use work::{
    MOST_ELEMENTS, MOST_REQUESTS, PolledCompletion, PostedRequest, Role, abandon, break_pairs, change_status,
    completed, device_of_queue, enter_error, gathered, is_in_error, name_of_pair, posted, raise_for_pairs,
    receives, reports_all, sends, under_cursor,
};

/// The arguments of a call, in their order. What a function does not have may hold anything, and of an
/// argument that is narrower than a register only the low bits count.
pub type Arguments = [usize; 6];

/// A function of integers and pointers.
pub(crate) type Address = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// A function that can be watched.
pub struct Function {
    /// The function's name in C.
    pub name: &'static str,
    /// A word of the watcher's, 0 at first.
    pub mark: AtomicUsize,
    ours: *const (),
    host: Option<ForwardedFunction>,
}

// SAFETY: the pointer is of a function.
unsafe impl Sync for Function {}

impl Function {
    /// A function of ours, of at most six integers and pointers.
    pub const fn new(name: &'static str, ours: *const ()) -> Self {
        Self { name, mark: AtomicUsize::new(0), ours, host: None }
    }

    /// A function that may be passed on to the host's library.
    pub const fn passed(name: &'static str, ours: *const (), host: ForwardedFunction) -> Self {
        Self { name, mark: AtomicUsize::new(0), ours, host: Some(host) }
    }

    /// Calls it.
    ///
    /// # Safety
    /// The arguments are right for it.
    unsafe fn run(&self, arguments: &Arguments) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(passed) = self.host.as_ref().filter(|_| host::is_active())
                && let Some(answer) = host::pass(passed, arguments)
            {
                return answer;
            }
            let [a, b, c, d, e, f] = *arguments;
            std::mem::transmute::<*const (), Address>(self.ours)(a, b, c, d, e, f)
        }
    }
}

/// What a call answers.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The value that the function returns.
    pub value: usize,
    /// `errno` as the program finds it.
    pub errno: c_int,
}

/// Somebody who watches all calls of the process.
///
/// Both functions are called with no lock of the engine. The thread may be cancelled between them: what a
/// watcher keeps from one to the other is a word.
pub trait Watcher: Sync {
    /// A call begins. An answer takes the place of the call.
    ///
    /// # Safety
    /// The arguments are right for the function.
    unsafe fn begins(&self, function: &'static Function, arguments: &Arguments) -> (usize, Option<Answer>);

    /// The call has ended; its results are where the arguments say. The program gets the answer that is
    /// returned.
    ///
    /// # Safety
    /// The same, and `word` is what [`Watcher::begins`] has returned for this call.
    unsafe fn ended(
        &self,
        function: &'static Function,
        arguments: &Arguments,
        word: usize,
        answer: Answer,
    ) -> Answer;
}

/// Finds out whether anybody watches this process. It may be called several times, and says the same each
/// time.
pub type Start = fn() -> Option<&'static dyn Watcher>;

/// Whether a call by name comes through [`pass`].
pub static ACTIVE: AtomicBool = AtomicBool::new(true);

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const UNWATCHED: u8 = 1;
const WATCHED: u8 = 2;

static WATCHER: AtomicPtr<&'static dyn Watcher> = AtomicPtr::new(null_mut());

/// The watcher, if there is one.
#[inline]
pub(crate) fn watcher() -> Option<&'static dyn Watcher> {
    if STATE.load(Ordering::Acquire) != WATCHED {
        return None;
    }
    // SAFETY: written before the state, and never freed.
    unsafe { WATCHER.load(Ordering::Acquire).as_ref() }.copied()
}

/// Whether calls through tables are watched.
pub(crate) fn is_watched() -> bool {
    watcher().is_some()
}

/// The first call of the process.
#[cold]
fn look(start: Start) {
    match start() {
        Some(watcher) => {
            let new = Box::into_raw(Box::new(watcher));
            if WATCHER.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made here, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
            STATE.store(WATCHED, Ordering::Release);
        }
        None => {
            STATE.store(UNWATCHED, Ordering::Release);
            ACTIVE.store(false, Ordering::SeqCst);
            // The host's library may have come meanwhile.
            if host::is_active() {
                ACTIVE.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// What an exported function does while [`ACTIVE`] is true.
///
/// # Safety
/// The arguments are right for the function.
pub unsafe fn pass(start: Start, function: &'static Function, arguments: &Arguments) -> usize {
    if STATE.load(Ordering::Acquire) == UNKNOWN {
        look(start);
    }
    // SAFETY: the caller's promise.
    unsafe { around(function, arguments) }
}

/// Calls a function, and tells who watches.
///
/// # Safety
/// The arguments are right for the function.
unsafe fn around(function: &'static Function, arguments: &Arguments) -> usize {
    let Some(watcher) = watcher() else {
        // SAFETY: the caller's promise.
        return unsafe { function.run(arguments) };
    };
    let before = errno();
    // SAFETY: the caller's promise. Nothing here has to be dropped: the thread may be cancelled in the call.
    unsafe {
        let (word, instead) = watcher.begins(function, arguments);
        write(before);
        let answer = match instead {
            Some(answer) => answer,
            None => {
                let value = function.run(arguments);
                Answer { value, errno: errno() }
            }
        };
        let answer = watcher.ended(function, arguments, word, answer);
        write(answer.errno);
        answer.value
    }
}
