//! System calls that other libraries put themselves in front of.
//!
//! rdma-core's librspreload makes rsockets of every socket that a program opens, and newer ones take over
//! epoll, too. What the engine opens for itself must be the kernel's. So inside of this library, and only
//! there, these names are our own: they go straight to the kernel.

use core::ffi::{c_int, c_long};

/// Defines `name`, hidden: whatever is linked into this library calls it, and nobody else sees it.
macro_rules! hidden {
    ($($name:literal = $function:path),* $(,)?) => {
        $(
            #[cfg(target_arch = "x86_64")]
            hidden!(@emit $name, $function, "endbr64", "jmp {function}");
            #[cfg(target_arch = "aarch64")]
            hidden!(@emit $name, $function, "bti c", "b {function}");
        )*
    };
    (@emit $name:literal, $function:path, $landing:literal, $jump:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.adverb_", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            $landing,
            $jump,
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    };
}

hidden! {
    "socket" = socket,
    "epoll_create1" = epoll_create,
    "epoll_ctl" = epoll_control,
    "epoll_wait" = epoll_wait,
}

extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

extern "C" fn epoll_create(flags: c_int) -> c_int {
    // SAFETY: a plain number.
    unsafe { libc::syscall(libc::SYS_epoll_create1, flags) as c_int }
}

/// # Safety
/// As epoll_ctl(2).
unsafe extern "C" fn epoll_control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, set, operation, fd, event) as c_int }
}

/// # Safety
/// As epoll_wait(2).
unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    milliseconds: c_int,
) -> c_int {
    let no_mask: c_long = 0;
    // SAFETY: the caller's promise; no signal mask.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, set, events, most, milliseconds, no_mask, 8usize) as c_int }
}
