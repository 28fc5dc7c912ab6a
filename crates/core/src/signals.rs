//! Signals that wait, for threads of the engine's own and for calls that nothing may interrupt; and one that does not come.

/// While it lives, the calling thread and the threads that it starts get no signal but the faults of their own instructions, which the kernel
/// would otherwise turn into the end of the process. It ends in the thread that made it.
pub struct Blocked {
    before: libc::sigset_t,
    // The mask is the thread's.
    _here: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// From now on.
    pub fn new() -> Self {
        // SAFETY: signal sets are plain data, filled before use.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before, _here: std::marker::PhantomData }
        }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Writes where nobody may read any more: that is an error, and no signal, whatever the process does about SIGPIPE.
///
/// # Errors
/// Those of `write`.
pub fn without_sigpipe<T>(write: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    // SAFETY: signal sets are plain data, filled before use, and as a time in live locals; the mask is the thread's, and changes back.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let (mut pending, mut before) = (pipe, pipe);
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let is_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let written = write();
        if written.is_err() && !is_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn nobody_dies_of_a_broken_pipe() {
        // In a process of its own: the default action is the process's.
        const DIES: &str = "ADVERB_TEST_PIPE";
        if std::env::var_os(DIES).is_some() {
            // SAFETY: no other thread cares.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let (reader, mut writer) = std::io::pipe().unwrap();
            drop(reader);
            let error = without_sigpipe(|| writer.write_all(b"x")).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
            return;
        }
        let test = "signals::tests::nobody_dies_of_a_broken_pipe";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", test]).env(DIES, "1").output().unwrap();
        assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stdout));
    }
}
