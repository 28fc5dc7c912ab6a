//! rsocket(7): sockets over RDMA. There are none yet, so no descriptor is one: creating fails with `ENOSYS`, and the calls
//! that work on any descriptor leave it to the kernel.

use core::ffi::c_int;

use adverb_libibverbs::errno::fail;

/// Every call that needs a socket of this kind: -1 and `ENOSYS`.
pub extern "C" fn absent() -> isize {
    fail(libc::ENOSYS) as isize
}

macro_rules! absent {
    ($($name:ident)*) => {
        $(pub use absent as $name;)*
    };
}

absent! {
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten rread rreadv
    rrecv rrecvfrom rrecvmsg rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev repoll_create repoll_ctl
    repoll_wait
}

/// poll(2): none of the descriptors can be a socket of ours.
///
/// # Safety
/// As for poll(2).
pub unsafe extern "C" fn rpoll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { cancellable::poll(descriptors, count, timeout) }
}

/// select(2): none of the descriptors can be a socket of ours.
///
/// # Safety
/// As for select(2).
pub unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { cancellable::select(count, readable, writable, exceptional, timeout) }
}

/// Functions of libc in which a thread may be cancelled, which unwinds through the caller.
mod cancellable {
    use core::ffi::c_int;

    unsafe extern "C-unwind" {
        pub(super) fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
        pub(super) fn select(
            count: c_int,
            readable: *mut libc::fd_set,
            writable: *mut libc::fd_set,
            exceptional: *mut libc::fd_set,
            timeout: *mut libc::timeval,
        ) -> c_int;
    }
}
