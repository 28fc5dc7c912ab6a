//! Patterns of paths (glob(3)): the C library looks for what matches with its own calls, unless it is given
//! others. Here it is given ours.

use crate::behind::behind;
use crate::calls::{PathUse, folder, instead};
use crate::original::Original;
use crate::place::Place;
use std::ffi::{c_char, c_int, c_void};

/// The originals, to be looked up when the library is initialised.
pub(crate) static ORIGINALS: &[&Original] = &[&GLOB, &GLOB64];

static GLOB: Original = Original::new(c"glob");
static GLOB64: Original = Original::new(c"glob64");

/// The functions are there (`GLOB_ALTDIRFUNC`).
const WITH_FUNCTIONS: c_int = 1 << 9;

/// `glob_t`; `glob64_t` is the same where files have lengths of 64 bits.
#[repr(C)]
struct GlobResult {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: unsafe extern "C" fn(*mut c_void),
    read: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    open: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    status_of_link: unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int,
    status: unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int,
}

type Glob = unsafe extern "C" fn(*const c_char, c_int, *const c_void, *mut GlobResult) -> c_int;

unsafe extern "C" fn open(path: *const c_char) -> *mut c_void {
    // SAFETY: the C library passes a C string. This is our own function.
    unsafe { libc::opendir(path).cast() }
}

unsafe extern "C" fn read(folder: *mut c_void) -> *mut c_void {
    // SAFETY: what `open` has returned.
    unsafe { libc::readdir64(folder.cast()).cast() }
}

unsafe extern "C" fn close(folder: *mut c_void) {
    // SAFETY: what `open` has returned, and nobody uses it any more.
    unsafe { libc::closedir(folder.cast()) };
}

/// By a system call, whose structure is the C library's: that one has no such function before 2.33.
unsafe fn status_at(path: *const c_char, status: *mut c_void, flags: c_int) -> c_int {
    let ask = |path: *const c_char| {
        // SAFETY: the caller's arguments; another path is a C string that lives as long.
        unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, status, flags) as c_int }
    };
    // SAFETY: the caller passes a C string.
    unsafe { instead(PathUse::Ask, Place::Current, path, ask) }
}

unsafe extern "C" fn status(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: the C library passes a C string, and room for the structure.
    unsafe { status_at(path, status, 0) }
}

unsafe extern "C" fn status_of_link(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: as for `status`.
    unsafe { status_at(path, status, libc::AT_SYMLINK_NOFOLLOW) }
}

/// Looks with our functions, unless the program has brought its own.
unsafe fn look(
    original: Glob,
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut GlobResult,
) -> c_int {
    if folder().is_none() || found.is_null() || flags & WITH_FUNCTIONS != 0 {
        // SAFETY: the caller's arguments.
        return unsafe { original(pattern, flags, error, found) };
    }
    // SAFETY: the program's structure, whose functions nobody looks at without the flag.
    unsafe {
        (&raw mut (*found).close).write(close);
        (&raw mut (*found).read).write(read);
        (&raw mut (*found).open).write(open);
        (&raw mut (*found).status_of_link).write(status_of_link);
        (&raw mut (*found).status).write(status);
        let result = original(pattern, flags | WITH_FUNCTIONS, error, found);
        (*found).flags &= !WITH_FUNCTIONS;
        result
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut GlobResult,
) -> c_int {
    let original = behind!(GLOB as Glob);
    // SAFETY: the caller passes what glob(3) takes.
    unsafe { look(original, pattern, flags, error, found) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut GlobResult,
) -> c_int {
    let original = behind!(GLOB64 as Glob);
    // SAFETY: as for `glob`.
    unsafe { look(original, pattern, flags, error, found) }
}
