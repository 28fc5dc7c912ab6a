//! Signals that wait, for threads of the engine's own and for calls that nothing may interrupt; and one that
//! does not come. Also how handlers of the program's affect a thread that waits.

use std::sync::atomic::{AtomicU32, Ordering};

/// Signals that a thread's own instructions and system calls bring about.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Keeps signals from the calling thread, and from the threads that it starts, until the mask is dropped in
/// the thread that made it. Two kinds still come. One are faults of the threads' own instructions: without a
/// handler, the kernel would end the process. The others are signals of the C library, which it cancels
/// threads by, for one.
pub struct SignalMask {
    before: libc::sigset_t,
    // The mask is the thread's.
    _here: std::marker::PhantomData<*const ()>,
}

impl SignalMask {
    /// From now on.
    pub fn new() -> Self {
        // SAFETY: signal sets are plain data, filled before use.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for signal in FAULTS {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before, _here: std::marker::PhantomData }
        }
    }

    /// The mask that the thread had. A thread that sleeps gives it to ppoll(2), which lets signals in while
    /// it sleeps, and at no other time.
    pub fn before(&self) -> &libc::sigset_t {
        &self.before
    }
}

impl Default for SignalMask {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// How the program's signal handlers end a system call that waits as read(2) does, on a descriptor without a
/// time limit: handlers with SA_RESTART do not, the others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Interruption {
    /// No handler ends the wait. Or there is none.
    Never,
    /// Each handler ends the wait.
    Always,
    /// There are handlers of both kinds, or one that was there for one signal only.
    Depends,
}

impl Interruption {
    /// How the handlers are now that may run in a thread with this signal mask. It takes a system call for
    /// each signal.
    pub fn now(mask: &libc::sigset_t) -> Self {
        const SIGNALS: libc::c_int = 64;
        // SAFETY: a set that has been filled, and numbers of signals.
        let is_blocked = |signal| unsafe { libc::sigismember(mask, signal) == 1 };
        let (mut restart, mut end) = (false, false);
        // Of the C library's own, which come before those, none is a handler of the program's.
        let ordinary = (1..32).chain(libc::SIGRTMIN()..=SIGNALS);
        // Faults come while the thread does not wait.
        for signal in ordinary.filter(|signal| !FAULTS.contains(signal) && !is_blocked(*signal)) {
            // The kernel's form: handler, flags, and words that do not matter here.
            let mut action = [0u64; 4];
            // SAFETY: room for the kernel's structure; nothing changes.
            let known = unsafe {
                let none = std::ptr::null::<u64>();
                libc::syscall(libc::SYS_rt_sigaction, signal, none, action.as_mut_ptr(), 8usize)
            };
            let [handler, flags, ..] = action;
            if known != 0 || [libc::SIG_DFL as u64, libc::SIG_IGN as u64].contains(&handler) {
                continue;
            }
            let has = |flag: libc::c_int| flags & u64::from(flag as u32) != 0;
            restart |= has(libc::SA_RESTART) || has(libc::SA_RESETHAND);
            end |= !has(libc::SA_RESTART) || has(libc::SA_RESETHAND);
        }
        match (restart, end) {
            (true, true) => Self::Depends,
            (false, true) => Self::Always,
            (_, false) => Self::Never,
        }
    }
}

/// The last answer of [`Interruption::now`], which is asked anew now and then. Thread-safe.
#[derive(Debug, Default)]
pub struct Interruptions(AtomicU32);

impl Interruptions {
    /// How the handlers were at most 1023 calls ago, for the calling thread as its mask is.
    pub fn lately(&self) -> Interruption {
        const ALL: [Interruption; 3] = [Interruption::Never, Interruption::Always, Interruption::Depends];
        let known = self.0.load(Ordering::Relaxed);
        let (calls, which) = (known / 4, known % 4);
        if calls > 0 {
            self.0.store((calls - 1) * 4 + which, Ordering::Relaxed);
            return ALL[which as usize];
        }
        // SAFETY: a signal set is plain data, filled before use; the mask stays as it is.
        let mask = unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            mask
        };
        self.anew(&mask)
    }

    /// How the handlers are now for a thread with this signal mask. [`Interruptions::lately`] says so from
    /// now on.
    pub fn anew(&self, mask: &libc::sigset_t) -> Interruption {
        const CALLS: u32 = 1024;
        let now = Interruption::now(mask);
        self.0.store((CALLS - 1) * 4 + now as u32, Ordering::Relaxed);
        now
    }
}

/// Writes to a pipe or socket that has no reader any more, or into a file that may have no more bytes. That
/// is an error, and no signal, however the process treats SIGPIPE and SIGXFSZ.
///
/// # Errors
/// Those of `write`.
pub fn without_sigpipe<T>(write: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    // SAFETY: signal sets are plain data, filled before use, and as a time in live locals; the mask is the
    // thread's, and changes back.
    unsafe {
        let mut both: libc::sigset_t = std::mem::zeroed();
        let (mut pending, mut before, mut new) = (both, both, both);
        libc::sigemptyset(&raw mut both);
        libc::sigemptyset(&raw mut new);
        libc::sigpending(&raw mut pending);
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            libc::sigaddset(&raw mut both, signal);
            if libc::sigismember(&raw const pending, signal) != 1 {
                libc::sigaddset(&raw mut new, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, &raw mut before);
        let written = write();
        if written.is_err() {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const new, std::ptr::null_mut(), &raw const at_once);
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
    fn nobody_dies_of_a_file_that_is_too_large() {
        // In a process of its own: the limit is the process's.
        const DIES: &str = "ADVERB_TEST_LARGE";
        if let Some(name) = std::env::var_os(DIES) {
            let limit = libc::rlimit { rlim_cur: 4, rlim_max: 4 };
            let mut file = std::fs::File::create(name).unwrap();
            // SAFETY: a limit in a live local; no other thread cares about it or the signal.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
            }
            let error = without_sigpipe(|| file.write_all(b"more than that")).unwrap_err();
            std::process::exit(if error.raw_os_error() == Some(libc::EFBIG) { 42 } else { 1 });
        }
        let test = "signals::tests::nobody_dies_of_a_file_that_is_too_large";
        let name = std::env::temp_dir().join(format!("adverb-large-{}", std::process::id()));
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", test]).env(DIES, &name).output().unwrap();
        let _ = std::fs::remove_file(name);
        assert_eq!(output.status.code(), Some(42), "{}", String::from_utf8_lossy(&output.stderr));
    }

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
