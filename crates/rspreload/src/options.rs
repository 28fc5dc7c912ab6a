//! Options of sockets (setsockopt(2)). The ordinary socket gets them, too: it may have to stand in, and it
//! answers what rsockets do not know.

use crate::barrier::Barrier;
use crate::{call, errno, library, table};
use libc::{c_int, c_void, socklen_t};

/// Whether an option only says how a network is to be used: a program sees no difference if it is not heeded.
fn is_hint(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_REUSEPORT | libc::SO_PRIORITY | libc::SO_DONTROUTE | libc::SO_BUSY_POLL | libc::SO_MARK
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_QUICKACK
                | libc::TCP_CORK
                | libc::TCP_DEFER_ACCEPT
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_FASTOPEN
                | libc::TCP_LINGER2
                | libc::TCP_SYNCNT
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_NOTSENT_LOWAT
        ),
        libc::IPPROTO_IP => matches!(name, libc::IP_TTL | libc::IP_MTU_DISCOVER),
        libc::IPPROTO_IPV6 => {
            matches!(name, libc::IPV6_TCLASS | libc::IPV6_UNICAST_HOPS | libc::IPV6_MTU_DISCOVER)
        }
        _ => false,
    }
}

/// What librdmacm says, unless it does not know the option and the ordinary socket may answer.
fn either(rsocket: impl FnOnce() -> c_int, ordinary: impl FnOnce() -> c_int, may: bool) -> c_int {
    call::librdmacm(|| match rsocket() {
        -1 if may && errno::get() == libc::ENOTSUP => ordinary(),
        result => result,
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    let ordinary = || unsafe { library::setsockopt(fd, level, name, value, length) };
    let Some(found) = table::find(fd) else { return ordinary() };
    // SAFETY: the caller's arguments.
    let rsocket = || match unsafe { library::rsetsockopt(found.number(), level, name, value, length) } {
        0 => {
            errno::kept(ordinary);
            0
        }
        failed => failed,
    };
    either(rsocket, ordinary, is_hint(level, name))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    let ordinary = || unsafe { library::getsockopt(fd, level, name, value, length) };
    let Some(found) = table::find(fd) else { return ordinary() };
    // SAFETY: the caller's arguments.
    let rsocket = || unsafe { library::rgetsockopt(found.number(), level, name, value, length) };
    either(rsocket, ordinary, true)
}
