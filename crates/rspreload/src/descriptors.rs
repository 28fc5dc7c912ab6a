//! What is done with descriptors of any kind: closing, copying, and their flags.

use crate::barrier::Barrier;
use crate::{call, epoll, errno, library, table};
use libc::{c_int, c_long, c_uint, c_ulong, c_void};

/// The descriptor is nothing any more: the rsocket that nothing else stands for ends, once what was sent has
/// left.
fn gone(number: Option<c_int>) -> c_int {
    // SAFETY: plain numbers.
    number.map_or(0, |number| unsafe { library::rclose(number) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    let _barrier = Barrier;
    let known = table::find(fd).is_some() || table::is_epoll(fd);
    if !known || !table::is_owner() {
        // SAFETY: plain numbers.
        return unsafe { library::close(fd) };
    }
    if table::is_epoll(fd) {
        epoll::closed(fd);
    }
    let number = table::remove(fd);
    // SAFETY: plain numbers.
    let result = unsafe { library::close(fd) };
    errno::kept(|| gone(number));
    result
}

/// A descriptor is a copy of another now. What it was before, it is no more.
fn copied(from: c_int, to: c_int) {
    errno::kept(|| {
        if table::is_epoll(to) {
            epoll::closed(to);
        }
        let before = table::remove(to);
        if let Some(found) = table::find(from) {
            table::copy(found, to);
        } else if table::is_epoll(from) {
            epoll::copied(from, to);
        }
        gone(before);
    });
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let new = unsafe { library::dup(fd) };
    if new >= 0 && table::is_owner() {
        copied(fd, new);
    }
    new
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let new = unsafe { library::dup2(fd, to) };
    if new >= 0 && fd != to && table::is_owner() {
        copied(fd, new);
    }
    new
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let new = unsafe { library::dup3(fd, to, flags) };
    if new >= 0 && table::is_owner() {
        copied(fd, new);
    }
    new
}

/// The argument, if the command has one, is an integer or a pointer: on the machines that we build for it is
/// passed as a named parameter is.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    let result = unsafe { library::fcntl(fd, command, argument) };
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if table::is_owner() => copied(fd, result),
        libc::F_SETFL => {
            if let Some(found) = table::find(fd) {
                // SAFETY: plain numbers.
                return call::librdmacm(|| unsafe { library::rfcntl(found.number(), command, argument) });
            }
        }
        _ => {}
    }
    result
}

/// fcntl(2) by the name for large files. On our machines there is one size of files, so it does what `fcntl`
/// does.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe { fcntl(fd, command, argument) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let _barrier = Barrier;
    let found = table::find(fd);
    // The ordinary socket would say that nothing has come; how much has, rsockets do not tell.
    if found.is_some() && matches!(request as c_uint as c_ulong, libc::FIONREAD | libc::TIOCOUTQ) {
        return errno::fail(libc::ENOTTY);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { library::ioctl(fd, request, argument) };
    if result == 0
        && request as c_uint as c_ulong == libc::FIONBIO
        && let Some(found) = found
    {
        // SAFETY: the kernel has read the number there; the descriptor's flags are what the rsocket's are to
        // be.
        return call::librdmacm(|| unsafe {
            let status = library::fcntl(fd, libc::F_GETFL, 0);
            library::rfcntl(found.number(), libc::F_SETFL, status.into())
        });
    }
    result
}
