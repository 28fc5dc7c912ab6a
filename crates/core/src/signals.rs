//! Signals that wait: for threads of the engine's own, and for calls that nothing may interrupt.

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
