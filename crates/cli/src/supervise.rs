//! Starts a process and stands between it and our own parent: signals go through, stops and the end come
//! back.
//!
//! The program stays in our process group. So the terminal's own signals (Ctrl-C, Ctrl-Z, hang-up) reach it
//! without our help, and only signals that a process sent to us alone are passed on.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What else this process does for others.
pub(crate) trait Stops {
    /// The process is about to be stopped.
    fn about_to_stop(&self);
    /// The process goes on.
    fn goes_on(&self);
}

/// Runs `command` to its end; its exit status, or 128 + N when signal N ended it.
///
/// Changes the signal mask of the calling thread, for good; other threads must block all signals. If this
/// process is killed, the program is, too.
///
/// # Errors
/// When the program could not be started.
pub(crate) fn run(command: &mut Command, stops: &dyn Stops) -> io::Result<u8> {
    let watched = watched_signals();
    let mut before = empty_set();
    // SAFETY: both are valid signal sets, and SIG_BLOCK is a valid operation.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const watched, &raw mut before) };
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec and calls async-signal-safe functions only (sigprocmask,
    // prctl, getppid); it owns the signal set that it points to.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            // Nobody would pass on signals or the end when we are gone.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
    let child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    loop {
        let (signal, from_kernel) = wait_for(&watched)?;
        if signal == libc::SIGCHLD {
            if let Some(status) = child_news(pid, stops)? {
                return Ok(status);
            }
        } else if !from_kernel {
            // SAFETY: takes no pointers. The child has not been waited for, so the ID is still its own.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

/// Everything except what cannot be caught and what a fault in this process itself raises.
fn watched_signals() -> libc::sigset_t {
    let own = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let mut set = empty_set();
    // SAFETY: `set` is a valid signal set, and the numbers are valid signals.
    unsafe {
        libc::sigfillset(&raw mut set);
        for signal in own {
            libc::sigdelset(&raw mut set, signal);
        }
    }
    set
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: sigset_t is a plain array of integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// The next signal, and whether the kernel raised it (for the terminal's group) rather than a process.
fn wait_for(set: &libc::sigset_t) -> io::Result<(libc::c_int, bool)> {
    loop {
        // SAFETY: siginfo_t is plain data, for which zero is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid set and `info` is writable for the call.
        let signal = unsafe { libc::sigwaitinfo(set, &raw mut info) };
        if signal > 0 {
            return Ok((signal, info.si_code == libc::SI_KERNEL));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// What became of the child: its exit status, or none while it lives. A child that the terminal stopped stops
/// us, so that the shell sees the job stopped.
fn child_news(pid: libc::pid_t, stops: &dyn Stops) -> io::Result<Option<u8>> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable for the call.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ if libc::WIFEXITED(status) => return Ok(Some(libc::WEXITSTATUS(status) as u8)),
            _ if libc::WIFSIGNALED(status) => return Ok(Some(128 + libc::WTERMSIG(status) as u8)),
            _ if libc::WIFSTOPPED(status)
                && [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&libc::WSTOPSIG(status)) =>
            {
                stops.about_to_stop();
                // SAFETY: takes no pointers. After SIGCONT to us (the shell's "fg" sends it to the group) we
                // go on.
                unsafe { libc::raise(libc::SIGSTOP) };
                stops.goes_on();
            }
            _ => {}
        }
    }
}
