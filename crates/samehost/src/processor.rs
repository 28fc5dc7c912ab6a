//! Whether a thread has a processor beside another one's.

use std::sync::atomic::{AtomicI32, Ordering};

/// The thread may use several processors.
const SEVERAL: i32 = -1;
/// The thread has not looked yet.
const UNKNOWN: i32 = -2;

/// The only processor that a thread may use, if there is but one. Thread-safe.
pub(crate) struct Processor(AtomicI32);

impl Default for Processor {
    fn default() -> Self {
        Self(AtomicI32::new(UNKNOWN))
    }
}

impl Processor {
    /// The calling thread is the one that is meant: looks which processors it may use now.
    pub(crate) fn learn(&self) {
        self.0.store(only().unwrap_or(SEVERAL), Ordering::Relaxed);
    }

    /// Whether the calling thread runs on it. As long as it is not known, threads may use the same ones.
    pub(crate) fn is_this(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            SEVERAL => false,
            UNKNOWN => only().is_some(),
            // SAFETY: asks for a number.
            only => only == unsafe { libc::sched_getcpu() },
        }
    }
}

/// The processor that the calling thread may use, if there is but one.
fn only() -> Option<i32> {
    // SAFETY: a set is plain bits, for which zero is a valid value; its size goes along, and the call fills
    // it. The macros read within it.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        // A machine with more processors than a set has bits answers with an error, and has several.
        if libc::sched_getaffinity(0, size, &raw mut allowed) != 0 || libc::CPU_COUNT(&allowed) != 1 {
            return None;
        }
        (0..libc::CPU_SETSIZE).find(|processor| libc::CPU_ISSET(*processor as usize, &allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the calling thread use this processor alone.
    fn keep(processor: i32) {
        // SAFETY: as in `only`; a thread may always do with less.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        }
    }

    #[test]
    fn a_thread_that_may_use_one_processor_has_none_beside_who_runs_there() {
        let processor = Processor::default();
        let is_one = only().is_some();
        assert_eq!(processor.is_this(), is_one, "nobody knows yet");
        // SAFETY: asks for a number.
        let here = unsafe { libc::sched_getcpu() };
        let kept_there = |look: fn(&Processor) -> bool| {
            std::thread::scope(|scope| {
                let kept = scope.spawn(|| {
                    keep(here);
                    look(&processor)
                });
                kept.join().unwrap()
            })
        };
        assert!(kept_there(Processor::is_this), "nobody knows yet, and there is one processor");
        kept_there(|processor| {
            processor.learn();
            true
        });
        assert!(kept_there(Processor::is_this));
        processor.learn();
        assert_eq!(processor.is_this(), is_one);
        assert_eq!(kept_there(Processor::is_this), is_one, "it may use several");
    }
}
