//! Making sockets and connections: the descriptor is the kernel's, what stands behind it is librdmacm's.

use crate::barrier::Barrier;
use crate::{call, configuration, epoll, errno, library, start, table};
use libc::{c_int, sockaddr, socklen_t};

/// An rsocket with the sizes of the environment; negative if there is none to be had.
fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: plain numbers.
    let number = call::librdmacm(|| unsafe { library::rsocket(domain, kind, protocol) });
    if number >= 0 {
        start::close_at_exit();
        for (option, value) in &configuration::get().sizes {
            let size = size_of_val(value) as socklen_t;
            // SAFETY: a live value of that size. One that is refused leaves the default.
            unsafe {
                library::rsetsockopt(
                    number,
                    configuration::SOL_RDMA,
                    *option,
                    (&raw const *value).cast(),
                    size,
                )
            };
        }
    }
    number
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let fd = unsafe { library::socket(domain, kind, protocol) };
    if fd < 0 || call::is_within() || !configuration::get().wants(domain, kind, protocol) {
        return fd;
    }
    errno::kept(|| {
        let number = rsocket(domain, kind, protocol);
        if number >= 0 && !table::insert(fd, number) {
            // SAFETY: plain numbers.
            unsafe { library::rclose(number) };
        }
    });
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let _barrier = Barrier;
    let Some(found) = table::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { library::bind(fd, address, length) };
    };
    // SAFETY: the caller's arguments.
    let result = call::librdmacm(|| unsafe { library::rbind(found.number(), address, length) });
    if result == 0 {
        table::set_bound(fd);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe { accept4(fd, address, length, 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let _barrier = Barrier;
    let Some(found) = table::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { library::accept4(fd, address, length, flags) };
    };
    // First the descriptor: a program that has no more of them loses no connection.
    // SAFETY: a live local of that size; plain numbers.
    let new = unsafe {
        let (mut domain, mut size) = (libc::AF_INET, size_of::<c_int>() as socklen_t);
        library::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &mut size);
        library::socket(domain, libc::SOCK_STREAM | flags, 0)
    };
    if new < 0 {
        return new;
    }
    let number = found.receiving(fd, || {
        // SAFETY: the caller's arguments.
        call::librdmacm(|| unsafe { library::raccept(found.number(), address, length) })
    });
    if number >= 0 && flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: plain numbers.
        unsafe { library::rfcntl(number, libc::F_SETFL, libc::O_NONBLOCK.into()) };
    }
    if number >= 0 && table::insert(new, number) {
        return new;
    }
    // SAFETY: plain numbers, of nobody else's.
    errno::kept(|| unsafe {
        library::close(new);
        if number >= 0 {
            library::rclose(number);
        }
    });
    if number >= 0 { errno::fail(libc::EMFILE) } else { number }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let _barrier = Barrier;
    if let Some(found) = table::find(fd) {
        // SAFETY: the caller's arguments.
        let result = call::librdmacm(|| unsafe { library::rconnect(found.number(), address, length) });
        let goes_on = result != 0 && errno::get() == libc::EINPROGRESS;
        if result == 0 || errno::get() == libc::EINTR || goes_on && !is_refused(found.number()) {
            return result;
        }
        become_ordinary(fd, found);
    }
    // SAFETY: the caller's arguments.
    unsafe { library::connect(fd, address, length) }
}

/// Whether a connection that is being made is refused soon: a peer whom RDMA reaches answers at once, and one
/// where nobody listens is asked again for half a second. Later a program that does not wait is told of it,
/// and nothing else is tried. Time in which this process is kept from its processor is hardly counted: mostly
/// the answer is kept from it, too.
fn is_refused(number: c_int) -> bool {
    const LOOKS: usize = 100;
    const LOOK_MS: c_int = 10;
    let mut entry = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
    // SAFETY: a live local.
    let mut look = || unsafe { library::rpoll(&mut entry, 1, LOOK_MS) };
    let answered = errno::kept(|| (0..LOOKS).map(|_| look()).find(|found| *found != 0));
    answered.is_some_and(|found| found > 0) && entry.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Nobody is there whom RDMA reaches: the descriptor is an ordinary socket, with the address that the program
/// chose. Its options and flags it has already.
fn become_ordinary(fd: c_int, found: table::Rsocket) {
    // SAFETY: all zero is a valid address of no family.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as socklen_t;
    // SAFETY: live locals.
    let bound = found.is_bound()
        && unsafe { library::rgetsockname(found.number(), (&raw mut address).cast(), &mut length) } == 0;
    epoll::hand_over(fd, found);
    // SAFETY: plain numbers, and live locals.
    unsafe {
        if let Some(number) = table::remove(fd) {
            library::rclose(number);
        }
        if bound {
            library::bind(fd, (&raw const address).cast(), length);
        }
    }
}
