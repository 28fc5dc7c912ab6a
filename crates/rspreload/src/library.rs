//! The functions behind ours: the C library's, and librdmacm's, by the names that they have there.

use crate::original::{Original, missing};
use libc::{
    c_int, c_long, c_void, epoll_event, iovec, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use std::ffi::CStr;

/// Functions that look up those of their names once, and call them. What the C library calls variadic takes
/// an integer or a pointer.
macro_rules! behind {
    ($module:ident $next:literal; $($(#[$variadic:ident])? fn $name:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(
            /// The function of this name.
            ///
            /// # Safety
            /// As its manual page says.
            pub(crate) unsafe fn $name($first: $first_type $(, $argument: $type)*) -> $result {
                let address = $module::$name.address();
                if address.is_null() {
                    return missing();
                }
                type Function = behind!(@type $($variadic)? [$first_type] [$($type),*] $result);
                // SAFETY: the function of this name has this type, by its manual page.
                let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
                // SAFETY: the caller's promise.
                unsafe { function($first $(, $argument)*) }
            }
        )*

        #[expect(non_upper_case_globals, reason = "as the functions are called")]
        mod $module {
            use super::*;
            $(pub(super) static $name: Original<$next> = Original::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );)*

            /// Looks all of them up.
            pub(super) fn find_all() {
                for original in [$(&$name),*] {
                    original.address();
                }
            }
        }
    };
    (@type variadic [$first:ty] [$second:ty, $($type:ty),*] $result:ty) => {
        unsafe extern "C-unwind" fn($first, $second, ...) -> $result
    };
    (@type [$first:ty] [$($type:ty),*] $result:ty) => {
        unsafe extern "C-unwind" fn($first $(, $type)*) -> $result
    };
}

/// Looks everything up, so that nothing needs to be in a signal handler or after a fork.
pub(crate) fn find_all() {
    originals::find_all();
    librdmacm::find_all();
}

behind! {
    originals true;

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;

    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendfile(to: c_int, from: c_int, offset: *mut libc::off_t, count: size_t) -> ssize_t;

    #[variadic] fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    #[variadic] fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;

    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *mut libc::timeval) -> c_int;
    fn pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

behind! {
    librdmacm false;

    fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn rbind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn rlisten(socket: c_int, backlog: c_int) -> c_int;
    fn raccept(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rconnect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn rshutdown(socket: c_int, how: c_int) -> c_int;
    fn rclose(socket: c_int) -> c_int;
    fn rgetpeername(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rgetsockname(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rgetsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn rsetsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    #[variadic] fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int;
    fn rread(socket: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    fn rreadv(socket: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn rrecv(socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn rrecvfrom(socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t;
    fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn rwrite(socket: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    fn rwritev(socket: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn rsend(socket: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    fn rsendto(socket: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t;
    fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn rpoll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
}
