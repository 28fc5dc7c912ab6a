//! Calls that name a socket and have the same arguments for librdmacm: sending, receiving, and the rest.

use crate::barrier::Barrier;
use crate::table::Rsocket;
use crate::{call, epoll, errno, library, table};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

impl Rsocket {
    /// A call that may take something that has come.
    pub(crate) fn receiving<T>(self, fd: c_int, call: impl FnOnce() -> T) -> T {
        self.touching(fd, libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP, call)
    }

    /// A call that may use up room for sending.
    fn sending<T>(self, fd: c_int, call: impl FnOnce() -> T) -> T {
        self.touching(fd, libc::EPOLLOUT | libc::EPOLLWRNORM, call)
    }

    /// A call that uses up neither what has come nor room for sending.
    fn asking<T>(self, _: c_int, call: impl FnOnce() -> T) -> T {
        call()
    }

    fn touching<T>(self, fd: c_int, events: c_int, call: impl FnOnce() -> T) -> T {
        let result = call();
        // An entry may have been made meanwhile.
        if table::find(fd).is_some_and(Self::is_edge) {
            errno::kept(|| epoll::touched(fd, events as u32));
        }
        result
    }
}

/// Functions of the C library: for an rsocket, the one of librdmacm is called.
macro_rules! forward {
    ($($kind:ident: fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty => $instead:ident;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $type),*) -> $result {
            let _barrier = Barrier;
            match table::find(fd) {
                Some(found) => found.$kind(fd, || {
                    // SAFETY: the caller's arguments; both functions take the same.
                    call::librdmacm(|| unsafe { library::$instead(found.number(), $($argument),*) })
                }),
                // SAFETY: the caller's arguments.
                None => unsafe { library::$name(fd, $($argument),*) },
            }
        }
    )*};
}

forward! {
    asking: fn listen(backlog: c_int) -> c_int => rlisten;
    asking: fn shutdown(how: c_int) -> c_int => rshutdown;
    asking: fn getpeername(address: *mut sockaddr, length: *mut socklen_t) -> c_int => rgetpeername;
    asking: fn getsockname(address: *mut sockaddr, length: *mut socklen_t) -> c_int => rgetsockname;
    receiving: fn read(buffer: *mut c_void, length: size_t) -> ssize_t => rread;
    receiving: fn readv(parts: *const iovec, count: c_int) -> ssize_t => rreadv;
    receiving: fn recv(buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t => rrecv;
    receiving: fn recvfrom(buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t => rrecvfrom;
    receiving: fn recvmsg(message: *mut msghdr, flags: c_int) -> ssize_t => rrecvmsg;
    sending: fn write(buffer: *const c_void, length: size_t) -> ssize_t => rwrite;
    sending: fn writev(parts: *const iovec, count: c_int) -> ssize_t => rwritev;
    sending: fn send(buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t => rsend;
    sending: fn sendto(buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t => rsendto;
    sending: fn sendmsg(message: *const msghdr, flags: c_int) -> ssize_t => rsendmsg;
}

/// A compiler that knows how large a buffer is calls these (_FORTIFY_SOURCE).
macro_rules! checked {
    ($($name:ident => $plain:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, length: size_t, room: size_t $(, $argument: $type)*
        ) -> ssize_t {
            let _barrier = Barrier;
            if length > room {
                overflow();
            }
            // SAFETY: the caller's arguments.
            unsafe { $plain(fd, buffer, length $(, $argument)*) }
        }
    )*};
}

checked! {
    __read_chk => read();
    __recv_chk => recv(flags: c_int);
    __recvfrom_chk => recvfrom(flags: c_int, address: *mut sockaddr, size: *mut socklen_t);
}

/// Ends the program, which was about to write beyond a buffer.
pub(crate) fn overflow() -> ! {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    // SAFETY: takes nothing, and does not return.
    unsafe { __chk_fail() }
}

/// A file over an rsocket: in pieces, through memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: size_t,
) -> ssize_t {
    let _barrier = Barrier;
    if table::find(to).is_none() {
        // SAFETY: the caller's arguments.
        return unsafe { library::sendfile(to, from, offset, count) };
    }
    const PIECE: usize = 1 << 16;
    let mut piece = vec![0u8; PIECE.min(count)];
    // SAFETY: NULL or the caller's; plain numbers.
    let start = unsafe { offset.as_ref().copied().unwrap_or_else(|| libc::lseek(from, 0, libc::SEEK_CUR)) };
    if start < 0 {
        return -1;
    }
    let mut done = 0;
    let mut failed = false;
    while done < count && !failed {
        let wanted = piece.len().min(count - done);
        // SAFETY: as many bytes as the piece has at least.
        let sent = unsafe {
            match libc::pread(from, piece.as_mut_ptr().cast(), wanted, start + done as libc::off_t) {
                n if n > 0 => write(to, piece.as_ptr().cast(), n as usize),
                n => n,
            }
        };
        failed = sent < 0;
        if sent <= 0 {
            break;
        }
        done += sent as usize;
    }
    let end = start + done as libc::off_t;
    // SAFETY: NULL or the caller's; plain numbers.
    match unsafe { offset.as_mut() } {
        Some(offset) => *offset = end,
        // SAFETY: plain numbers.
        None => drop(unsafe { libc::lseek(from, end, libc::SEEK_SET) }),
    }
    if failed && done == 0 { -1 } else { done as ssize_t }
}

/// sendfile(2) by the name for large files. On our machines there is one size of files, so it does what
/// `sendfile` does.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: size_t,
) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe { sendfile(to, from, offset, count) }
}
