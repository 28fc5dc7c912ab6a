//! membarrier(2): a rare sleeper pays for the memory barrier that a busy producer would need after each
//! record.
//!
//! A producer publishes a record and then looks whether the consumer sleeps; a consumer says that it sleeps
//! and then looks for a record. For one of the two to see the other, the store of each must be visible before
//! its load is made: two full fences, of which the producer's would cost several times as much as the record.
//! With `MEMBARRIER_CMD_GLOBAL_EXPEDITED` the consumer has the kernel make every running thread of the
//! registered processes pass a barrier, and the producer gets by with a plain load. Both processes must have
//! registered, and the kernel must let them: each says so in its flags, and falls back to fences while the
//! other does not.

use std::io;

/// Whether this process takes part in membarrier(2) by `GLOBAL_EXPEDITED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration(bool);

impl Registration {
    /// Registers this process, if the kernel offers that and lets it (a sandbox may not); otherwise it uses
    /// fences. Repeating it is cheap; a program starts unregistered after exec(2).
    pub fn take() -> Registration {
        let wanted = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        let offered = membarrier(libc::MEMBARRIER_CMD_QUERY).is_ok_and(|mask| mask & wanted == wanted);
        Registration(
            offered && membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).is_ok() && barrier(),
        )
    }

    /// Does without: this process and its peers use fences.
    pub fn none() -> Registration {
        Registration(false)
    }

    /// A registration that a model makes believe.
    #[cfg(loom)]
    pub(crate) fn model() -> Registration {
        Registration(true)
    }

    /// Whether the process is registered.
    pub fn is_taken(self) -> bool {
        self.0
    }
}

/// Makes every running thread of every registered process pass a full memory barrier. `false` if the kernel
/// does not.
pub fn barrier() -> bool {
    cfg!(loom) || membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED).is_ok()
}

fn membarrier(command: libc::c_int) -> io::Result<libc::c_int> {
    if cfg!(miri) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: membarrier(2) takes two integers here and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_works_after_a_registration() {
        assert!(!Registration::none().is_taken());
        let registration = Registration::take();
        assert_eq!(registration, Registration::take());
        // Linux has had both since 4.16; where a system forbids them, this test has nothing to say, and says
        // so.
        assert!(registration.is_taken() && barrier(), "membarrier(2) is forbidden here");
    }
}
