//! Waiting for rsockets, and meanwhile with another signal mask (ppoll(2)).

use crate::{call, errno, library};
use libc::{c_int, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::mem::MaybeUninit;

/// Another mask, as long as this lives. Signals that it lets through and that the thread blocks stay blocked
/// while the thread sleeps, and a descriptor tells of them: so none comes unnoticed between looking and
/// sleeping.
struct Mask {
    own: sigset_t,
    wanted: sigset_t,
    descriptor: c_int,
}

impl Mask {
    fn new(wanted: &sigset_t) -> Self {
        let (mut own, mut told) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: live sets, initialised before they are read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, wanted, own.as_mut_ptr());
            libc::sigemptyset(told.as_mut_ptr());
            for signal in 1..=libc::SIGRTMAX() {
                if libc::sigismember(own.as_ptr(), signal) == 1 && libc::sigismember(wanted, signal) == 0 {
                    libc::sigaddset(told.as_mut_ptr(), signal);
                }
            }
            let descriptor = libc::signalfd(-1, told.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            Self { own: own.assume_init(), wanted: *wanted, descriptor }
        }
    }

    /// Runs the handlers of the signals that have come.
    fn deliver(&self) {
        // SAFETY: a live set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.wanted, std::ptr::null_mut()) };
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: a live set; a descriptor of nobody else's.
        errno::kept(|| unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.own, std::ptr::null_mut());
            library::close(self.descriptor);
        });
    }
}

/// No signal at all reaches the thread and those that it starts, as long as this lives.
pub(crate) struct SignalMask(sigset_t);

impl SignalMask {
    pub(crate) fn all() -> Self {
        let (mut all, mut own) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: live sets, initialised before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), own.as_mut_ptr());
            Self(own.assume_init())
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: a live set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// rpoll, with a signal mask unless it is NULL: -1 and EINTR when a handler ran. In the list, rsockets have
/// the numbers that librdmacm knows.
///
/// # Safety
/// `mask` is NULL or valid.
pub(crate) unsafe fn wait(list: &mut Vec<pollfd>, milliseconds: c_int, mask: *const sigset_t) -> c_int {
    let poll = |list: &mut Vec<pollfd>| {
        // SAFETY: a live list.
        call::librdmacm(|| unsafe { library::rpoll(list.as_mut_ptr(), list.len() as nfds_t, milliseconds) })
    };
    // SAFETY: the caller's promise.
    let Some(wanted) = (unsafe { mask.as_ref() }) else { return poll(list) };
    let mask = Mask::new(wanted);
    list.push(pollfd { fd: mask.descriptor, events: libc::POLLIN, revents: 0 });
    let ready = poll(list);
    let told = list.pop().is_some_and(|entry| entry.revents != 0);
    match ready - c_int::from(told) {
        0 if told => {
            mask.deliver();
            errno::fail(libc::EINTR)
        }
        _ if ready < 0 => ready,
        others => others,
    }
}

/// Milliseconds, rounded up; -1 for a time that is not there.
///
/// # Safety
/// The time is NULL or valid.
pub(crate) unsafe fn milliseconds(time: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { time.as_ref() }.map_or(-1, |time| {
        let whole = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
        whole.clamp(0, c_int::MAX.into()) as c_int
    })
}

/// A time as poll's younger relatives have it.
pub(crate) fn as_timespec(time: &timeval) -> timespec {
    timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let time = |tv_sec, tv_nsec| timespec { tv_sec, tv_nsec };
        for (time, expected) in
            [(time(0, 0), 0), (time(0, 1), 1), (time(2, 1_000_000), 2001), (time(i64::MAX, 0), c_int::MAX)]
        {
            // SAFETY: a live local.
            assert_eq!(unsafe { milliseconds(&time) }, expected);
        }
        // SAFETY: NULL.
        assert_eq!(unsafe { milliseconds(std::ptr::null()) }, -1);
        assert_eq!(as_timespec(&timeval { tv_sec: 3, tv_usec: 4 }).tv_nsec, 4000);
    }

    #[test]
    fn the_mask_is_what_it_was_before() {
        let masked = |signal| {
            let mut set = MaybeUninit::uninit();
            // SAFETY: asks for the thread's mask.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
                libc::sigismember(set.as_ptr(), signal) == 1
            }
        };
        let mut wanted = MaybeUninit::uninit();
        // SAFETY: a live set, initialised by the first call.
        let wanted = unsafe {
            libc::sigemptyset(wanted.as_mut_ptr());
            libc::sigaddset(wanted.as_mut_ptr(), libc::SIGUSR2);
            wanted.assume_init()
        };
        assert!(!masked(libc::SIGUSR2));
        let mask = Mask::new(&wanted);
        assert!(masked(libc::SIGUSR2) && mask.descriptor >= 0);
        drop(mask);
        assert!(!masked(libc::SIGUSR2));
    }
}
