//! The process begins anew, with the same program, arguments and process ID, as if a supervisor had started
//! it again.

use super::FAULT;
use adverb_core::engine;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr::null;

/// Starts again with these rules in place of the ones before. Returns only if that cannot be.
pub(super) fn restart(rules: &str) -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let arguments: Vec<CString> = std::fs::read("/proc/self/cmdline")?
        .split_inclusive(|byte| *byte == 0)
        .filter_map(|argument| CString::new(argument.strip_suffix(&[0]).unwrap_or(argument)).ok())
        .collect();
    let variables: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != FAULT)
        .chain((!rules.is_empty()).then(|| (FAULT.into(), rules.into())))
        .filter_map(|(name, value)| {
            CString::new([name.into_vec(), OsString::into_vec(value)].join(&b'=')).ok()
        })
        .collect();
    // As a kernel does for a process that has ended: what was sent arrives, and connections end.
    if let Some(engine) = engine::existing() {
        engine.devices().iter().for_each(|device| device.transport().at_exit());
    }
    close_sockets()?;
    let program = CString::new(program.as_os_str().as_bytes())?;
    let list = |strings: &[CString]| -> Vec<_> {
        strings.iter().map(|string| string.as_ptr()).chain([null()]).collect()
    };
    let (arguments, variables) = (list(&arguments), list(&variables));
    // The thread may have blocked signals, which a program that starts has not.
    // SAFETY: a live local that is filled.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    // SAFETY: strings that live as long as the call, in arrays that end with NULL.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// Sockets of the program are closed as it starts: their ports would be in use. What `adverb run` has given
/// it stays.
fn close_sockets() -> io::Result<()> {
    let record = std::env::var("ADVERB_RECORD").unwrap_or_default();
    let kept: Vec<RawFd> = record.split(',').filter_map(|number| number.parse().ok()).collect();
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"socket:"));
        if let Some(number) = number.filter(|number| *number > 2 && is_socket && !kept.contains(number)) {
            // SAFETY: plain numbers.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
