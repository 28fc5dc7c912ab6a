//! rsocket(7): the calls of sockets, with an r in front. Those that may wait are cancellation points.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::slice;

use adverb_core::containment::Barrier;
use adverb_core::error::{Error, Result};
use adverb_libibverbs::device::devices;
use adverb_libibverbs::errno::fail;
use adverb_rsocket::{Socket, Vector, find};
use libc::{iovec, msghdr, pollfd, sockaddr, socklen_t, ssize_t};

use crate::address;

/// The value of a call, or -1 and `errno`.
fn answer<T: TryInto<isize>>(result: Result<T>) -> isize {
    match result {
        Ok(value) => value.try_into().unwrap_or(isize::MAX),
        Err(error) => fail(error.errno()) as isize,
    }
}

/// The value of a call that returns 0 when it ends well, or -1 and `errno`.
fn done(result: Result<()>) -> c_int {
    answer(result.map(|()| 0isize)) as c_int
}

/// The address behind a pointer.
///
/// # Safety
/// `pointer` is NULL or points to `length` readable bytes.
unsafe fn read_address(pointer: *const sockaddr, length: socklen_t) -> Result<SocketAddr> {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    if pointer.is_null() {
        return Err(Error::new(libc::EFAULT, "there is no address"));
    }
    if (length as usize) < FAMILY {
        return Err(Error::invalid("the address is too short"));
    }
    // SAFETY: the family is there.
    let family = c_int::from(unsafe { std::ptr::read_unaligned(&raw const (*pointer).sa_family) });
    let needed = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(Error::new(libc::EAFNOSUPPORT, format!("address family {family}"))),
    };
    if (length as usize) < needed {
        return Err(Error::invalid(format!("an address of {length} bytes: the family has {needed}")));
    }
    // SAFETY: the whole structure is there.
    unsafe { address::read(pointer) }.ok_or_else(|| Error::invalid("this is not an address"))
}

/// Writes an address as accept(2) does: as much as fits, and how long it is.
///
/// # Safety
/// `length` is NULL or valid, and then `pointer` is NULL or points to so many bytes.
unsafe fn write_address(found: SocketAddr, pointer: *mut sockaddr, length: *mut socklen_t) {
    let (storage, whole) = address::storage(found);
    // SAFETY: the caller's promise; the storage is longer than any address.
    unsafe {
        if length.is_null() {
            return;
        }
        if !pointer.is_null() {
            let count = whole.min(*length) as usize;
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), pointer.cast(), count);
        }
        *length = whole;
    }
}

/// A new socket (`socket(2)`).
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // The first call decides which devices there are.
    answer(devices().and_then(|_| adverb_rsocket::socket(domain, kind, protocol))) as c_int
}

/// `bind(2)`.
///
/// # Safety
/// `pointer` is NULL or points to `length` bytes.
pub unsafe extern "C" fn rbind(socket: c_int, pointer: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    done(find(socket).and_then(|socket| socket.bind(unsafe { read_address(pointer, length)? })))
}

/// `listen(2)`.
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    done(find(socket).and_then(|socket| socket.listen(backlog)))
}

/// `accept(2)`.
///
/// # Safety
/// `length` is NULL or valid, and then `pointer` is NULL or points to so many bytes.
pub unsafe extern "C-unwind" fn raccept(
    socket: c_int,
    pointer: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let _barrier = Barrier;
    answer(find(socket).and_then(|socket| socket.accept()).map(|(number, peer)| {
        // SAFETY: the caller's promise.
        unsafe { write_address(peer, pointer, length) };
        number
    })) as c_int
}

/// `connect(2)`.
///
/// # Safety
/// `pointer` is NULL or points to `length` bytes.
pub unsafe extern "C-unwind" fn rconnect(
    socket: c_int,
    pointer: *const sockaddr,
    length: socklen_t,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    done(find(socket).and_then(|socket| socket.connect(unsafe { read_address(pointer, length)? })))
}

/// `shutdown(2)`.
pub extern "C-unwind" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let _barrier = Barrier;
    done(find(socket).and_then(|socket| socket.shutdown(how)))
}

/// `close(2)`.
pub extern "C-unwind" fn rclose(socket: c_int) -> c_int {
    let _barrier = Barrier;
    done(adverb_rsocket::close(socket))
}

/// Memory for one buffer of a call.
fn part(buffer: *const c_void, length: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: length }
}

/// The parts of an I/O vector; EINVAL for a number of them that there cannot be.
///
/// # Safety
/// `parts` points to `count` structures.
unsafe fn parts<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec]> {
    const MOST: usize = 1024;
    if count > MOST {
        return Err(Error::invalid(format!("{count} parts of an I/O vector: at most {MOST}")));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if parts.is_null() {
        return Err(Error::new(libc::EFAULT, "there is no I/O vector"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(parts, count) })
}

/// Receives into the parts.
///
/// # Safety
/// The memory may be written.
unsafe fn receive(
    socket: c_int,
    parts: &[iovec],
    flags: c_int,
    from: impl FnOnce(Option<SocketAddr>),
) -> Result<usize> {
    // SAFETY: the caller's promise.
    let mut data = unsafe { Vector::new(parts)? };
    let (count, peer) = find(socket)?.receive(&mut data, flags)?;
    from(peer);
    Ok(count)
}

/// Sends the parts.
///
/// # Safety
/// The memory may be read.
unsafe fn send(socket: c_int, parts: &[iovec], flags: c_int, to: Option<SocketAddr>) -> Result<usize> {
    // SAFETY: the caller's promise.
    let mut data = unsafe { Vector::new(parts)? };
    find(socket)?.send(&mut data, flags, to)
}

/// `recv(2)`.
///
/// # Safety
/// The program gave the memory to be written.
pub unsafe extern "C-unwind" fn rrecv(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    answer(unsafe { receive(socket, &[part(buffer, length)], flags, |_| ()) })
}

/// `recvfrom(2)`.
///
/// # Safety
/// As [`rrecv`]; `address_length` is NULL or valid, and then `pointer` is NULL or points to so many bytes.
pub unsafe extern "C-unwind" fn rrecvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    pointer: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let _barrier = Barrier;
    let write = |peer: Option<SocketAddr>| {
        if let (Some(peer), false) = (peer, pointer.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { write_address(peer, pointer, address_length) };
        }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { receive(socket, &[part(buffer, length)], flags, write) })
}

/// `recvmsg(2)`. There is no control data.
///
/// # Safety
/// The message and what it names are valid; the program gave the memory to be written.
pub unsafe extern "C-unwind" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { message.as_mut() }) else { return fail(libc::EFAULT) as ssize_t };
    if !message.msg_control.is_null() && message.msg_controllen != 0 {
        return fail(libc::ENOTSUP) as ssize_t;
    }
    let (name, name_length) = (message.msg_name.cast::<sockaddr>(), &raw mut message.msg_namelen);
    let write = |peer: Option<SocketAddr>| {
        if let (Some(peer), false) = (peer, name.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { write_address(peer, name, name_length) };
        }
    };
    message.msg_flags = 0;
    // SAFETY: the caller's promise.
    answer(unsafe {
        parts(message.msg_iov, message.msg_iovlen).and_then(|parts| receive(socket, parts, flags, write))
    })
}

/// `send(2)`.
///
/// # Safety
/// The program gave the memory to be read.
pub unsafe extern "C-unwind" fn rsend(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    answer(unsafe { send(socket, &[part(buffer, length)], flags, None) })
}

/// `sendto(2)`.
///
/// # Safety
/// As [`rsend`]; `pointer` is NULL or points to `address_length` bytes.
pub unsafe extern "C-unwind" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    pointer: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    answer(unsafe {
        destination(pointer, address_length).and_then(|to| send(socket, &[part(buffer, length)], flags, to))
    })
}

/// The address of a message, if it has one.
///
/// # Safety
/// `pointer` is NULL or points to `length` bytes.
unsafe fn destination(pointer: *const sockaddr, length: socklen_t) -> Result<Option<SocketAddr>> {
    if pointer.is_null() || length == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { read_address(pointer, length) }.map(Some)
}

/// `sendmsg(2)`. There is no control data.
///
/// # Safety
/// The message and what it names are valid; the program gave the memory to be read.
pub unsafe extern "C-unwind" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { message.as_ref() }) else { return fail(libc::EFAULT) as ssize_t };
    if !message.msg_control.is_null() && message.msg_controllen != 0 {
        return fail(libc::ENOTSUP) as ssize_t;
    }
    // SAFETY: the caller's promise.
    answer(unsafe {
        destination(message.msg_name.cast(), message.msg_namelen).and_then(|to| {
            parts(message.msg_iov, message.msg_iovlen).and_then(|parts| send(socket, parts, flags, to))
        })
    })
}

/// `read(2)`.
///
/// # Safety
/// As [`rrecv`].
pub unsafe extern "C-unwind" fn rread(socket: c_int, buffer: *mut c_void, length: usize) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    unsafe { rrecv(socket, buffer, length, 0) }
}

/// `readv(2)`.
///
/// # Safety
/// The vector is valid; the program gave the memory to be written.
pub unsafe extern "C-unwind" fn rreadv(socket: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    answer(unsafe {
        parts(vector, usize::try_from(count).unwrap_or(usize::MAX))
            .and_then(|parts| receive(socket, parts, 0, |_| ()))
    })
}

/// `write(2)`.
///
/// # Safety
/// As [`rsend`].
pub unsafe extern "C-unwind" fn rwrite(socket: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    unsafe { rsend(socket, buffer, length, 0) }
}

/// `writev(2)`.
///
/// # Safety
/// The vector is valid; the program gave the memory to be read.
pub unsafe extern "C-unwind" fn rwritev(socket: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let _barrier = Barrier;
    // SAFETY: the caller's promise.
    answer(unsafe {
        parts(vector, usize::try_from(count).unwrap_or(usize::MAX))
            .and_then(|parts| send(socket, parts, 0, None))
    })
}

/// `getpeername(2)`.
///
/// # Safety
/// `length` is valid, and `pointer` is NULL or points to so many bytes.
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    pointer: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| socket.peer_address()).map(|found| {
        // SAFETY: the caller's promise.
        unsafe { write_address(found, pointer, length) }
    }))
}

/// `getsockname(2)`.
///
/// # Safety
/// `length` is valid, and `pointer` is NULL or points to so many bytes.
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    pointer: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| socket.local_address()).map(|found| {
        // SAFETY: the caller's promise.
        unsafe { write_address(found, pointer, length) }
    }))
}

/// `setsockopt(2)`.
///
/// # Safety
/// `value` is NULL or points to `length` bytes.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| {
        if value.is_null() {
            return Err(Error::new(libc::EFAULT, "the option has no value"));
        }
        // SAFETY: the caller's promise.
        socket.set_option(level, name, unsafe { slice::from_raw_parts(value.cast(), length as usize) })
    }))
}

/// `getsockopt(2)`.
///
/// # Safety
/// `length` is NULL or valid, and `value` is NULL or points to so many bytes.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| {
        if value.is_null() || length.is_null() {
            return Err(Error::new(libc::EFAULT, "there is no room for the option's value"));
        }
        let found = socket.option(level, name)?;
        // SAFETY: the caller's promise.
        unsafe {
            let count = found.len().min(*length as usize);
            std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), count);
            *length = count as socklen_t;
        }
        Ok(())
    }))
}

/// `fcntl(2)`. The third argument, if the command has one, is an int; on the machines that we build for it is
/// passed as a further parameter is.
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_int) -> c_int {
    answer(find(socket).and_then(|socket| socket.control(command, argument))) as c_int
}

fn no_mappings() -> Error {
    Error::invalid("a datagram socket has no mappings")
}

/// Maps memory for the peer (rsocket(7)): the offset.
///
/// # Safety
/// The program gave the memory to be written by the peer until it is unmapped.
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    answer(find(socket).and_then(|socket| match socket {
        // SAFETY: the caller's promise.
        Socket::Stream(stream) => unsafe { stream.map(buffer as usize, length, protection, offset) },
        Socket::Datagram(_) => Err(no_mappings()),
    })) as libc::off_t
}

/// Takes a mapping back (rsocket(7)).
pub extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, length: usize) -> c_int {
    done(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.unmap(buffer as usize, length),
        Socket::Datagram(_) => Err(no_mappings()),
    }))
}

/// Writes into what the peer has mapped (rsocket(7)).
///
/// # Safety
/// The program gave the memory to be read.
pub unsafe extern "C-unwind" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let _barrier = Barrier;
    let parts = [part(buffer, length)];
    answer(find(socket).and_then(|socket| match socket {
        // SAFETY: the caller's promise.
        Socket::Stream(stream) => stream.write_mapped(&mut unsafe { Vector::new(&parts)? }, offset, flags),
        Socket::Datagram(_) => Err(no_mappings()),
    })) as usize
}

/// `poll(2)`, for sockets of ours and ordinary descriptors together.
///
/// # Safety
/// As for poll(2).
pub unsafe extern "C-unwind" fn rpoll(list: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    let _barrier = Barrier;
    let list = if list.is_null() || count == 0 {
        &mut []
    } else {
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts_mut(list, count as usize) }
    };
    answer(adverb_rsocket::poll(list, timeout)) as c_int
}

/// `select(2)`, for sockets of ours and ordinary descriptors together. The time left is not written back.
///
/// # Safety
/// As for select(2).
pub unsafe extern "C-unwind" fn rselect(
    count: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    let _barrier = Barrier;
    const MOST: c_int = libc::FD_SETSIZE as c_int;
    if !(0..=MOST).contains(&count) {
        return fail(libc::EINVAL);
    }
    let sets = [
        (readable, libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
        (writable, libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
        (exceptional, 0, !(libc::POLLIN | libc::POLLOUT)),
    ];
    let mut list = Vec::new();
    for fd in 0..count {
        let mut entry = pollfd { fd, events: 0, revents: 0 };
        let mut wanted = false;
        for (set, events, _) in sets {
            // SAFETY: NULL or the program's set; `fd` is in its range.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                entry.events |= events;
                wanted = true;
            }
        }
        if wanted {
            list.push(entry);
        }
    }
    // SAFETY: NULL or the program's.
    let timeout = unsafe { timeout.as_ref() }.map_or(-1, |time| {
        let milliseconds = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec + 999) / 1000);
        milliseconds.clamp(0, c_int::MAX.into()) as c_int
    });
    if let Err(error) = adverb_rsocket::poll(&mut list, timeout) {
        return fail(error.errno());
    }
    if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return fail(libc::EBADF);
    }
    let mut found = 0;
    for (set, _, shown) in sets {
        if set.is_null() {
            continue;
        }
        for entry in &list {
            // SAFETY: the program's set; the descriptor is in its range.
            unsafe {
                if libc::FD_ISSET(entry.fd, set) && entry.revents & shown != 0 {
                    found += 1;
                } else {
                    libc::FD_CLR(entry.fd, set);
                }
            }
        }
    }
    found
}

/// Epoll over rsockets: there is none. -1 and `ENOSYS`.
pub extern "C" fn repoll_create(_flags: c_int) -> c_int {
    fail(libc::ENOSYS)
}

/// Refuses with an error number, since there is no epoll over rsockets ([`repoll_create`]).
pub extern "C" fn repoll_ctl(_set: c_int, _operation: c_int, _socket: c_int, _event: *mut c_void) -> c_int {
    libc::EINVAL
}

/// Refuses with an error number, since there is no epoll over rsockets ([`repoll_create`]).
pub extern "C" fn repoll_wait(_set: c_int, _events: *mut c_void, _most: c_int, _timeout: c_int) -> c_int {
    libc::EINVAL
}
