//! The time to wake another process, and to be woken: the least that anything that is driven by events can
//! take.

use super::twin::{self, APART, SharedMemory};
use crate::bench::session::{Times, times};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How a process sleeps and is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Way {
    /// In a read of an event descriptor, as below a completion channel.
    Eventfd,
    /// In futex(2).
    Futex,
}

/// One way, both processes asleep whenever they wait.
pub(in crate::bench) fn ping_pong(way: Way, rounds: usize) -> Result<Times, String> {
    let make =
        || -> std::io::Result<_> { Ok((Bell::new()?, Bell::new()?, SharedMemory::new(2 * APART * 8)?)) };
    let (ping, pong, shared) = make().map_err(|error| error.to_string())?;
    let (here, there) = (shared.word(0), shared.word(APART));
    let mut times = times();
    let theirs = || {
        (1..=rounds as u64).try_for_each(|turn| {
            ping.wait(way, here, turn)?;
            pong.ring(way, there, turn)
        })
    };
    let ours = || {
        (1..=rounds as u64).try_for_each(|turn| {
            let start = Instant::now();
            ping.ring(way, here, turn)?;
            pong.wait(way, there, turn)?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
            Some(())
        })
    };
    twin::run(theirs, ours).map_err(|error| error.to_string())?;
    Ok(times)
}

/// Wakes one process.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> std::io::Result<Self> {
        // SAFETY: plain numbers; the new descriptor is nobody else's.
        unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC) {
                fd if fd < 0 => Err(Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    fn ring(&self, way: Way, word: &AtomicU64, turn: u64) -> Option<()> {
        match way {
            Way::Eventfd => {
                let one = 1u64;
                // SAFETY: eight bytes of a live local; a live descriptor.
                let written = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
                (written == 8).then_some(())
            }
            Way::Futex => {
                word.store(turn, Ordering::SeqCst);
                futex(word, libc::FUTEX_WAKE, 1);
                Some(())
            }
        }
    }

    fn wait(&self, way: Way, word: &AtomicU64, turn: u64) -> Option<()> {
        match way {
            Way::Eventfd => {
                let mut count = 0u64;
                // SAFETY: eight bytes of a live local; a live descriptor.
                let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
                (read == 8).then_some(())
            }
            Way::Futex => {
                while word.load(Ordering::SeqCst) != turn {
                    futex(word, libc::FUTEX_WAIT, (turn - 1) as u32);
                }
                Some(())
            }
        }
    }
}

/// On the lower half of the word; waits for a second at most, and the caller looks again in any case.
fn futex(word: &AtomicU64, operation: i32, value: u32) {
    let limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let low = word.as_ptr().cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")));
    // SAFETY: a word of memory that both processes have, and a live time limit, which FUTEX_WAKE ignores.
    unsafe { libc::syscall(libc::SYS_futex, low, operation, value, &raw const limit) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_wake() {
        for way in [Way::Eventfd, Way::Futex] {
            assert_eq!(ping_pong(way, 50).expect("two processes").len(), 50);
        }
    }
}
