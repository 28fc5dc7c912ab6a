//! The C library's functions that take a path, in front of the originals.

use crate::answers;
use crate::counted;
use crate::folder::Folder;
use crate::fts;
use crate::inside;
use crate::original::{Original, missing};
use crate::path::Path;
use crate::pattern;
use crate::place::{Errno, Place, look, read};
use crate::system;
use libc::{DIR, FILE};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Names the folder with our files.
const VARIABLE: &CStr = c"ADVERB_FILES";

/// The folder, once this library has been initialised.
static FOLDER: OnceLock<Folder> = OnceLock::new();

/// The dynamic linker calls this when it has loaded the library, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = initialise;

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

extern "C" fn initialise() {
    // Looked up here, so that nothing needs to be in a signal handler or after a fork.
    let others =
        [answers::ORIGINALS, inside::ORIGINALS, pattern::ORIGINALS, system::ORIGINALS, fts::ORIGINALS];
    for original in ORIGINALS.iter().chain(others.into_iter().flatten()) {
        original.address();
    }
    // SAFETY: a C string; nobody changes the environment before `main`.
    let value = unsafe { secure_getenv(VARIABLE.as_ptr()) };
    if !value.is_null() {
        // SAFETY: values of the environment are C strings, and this one is copied at once.
        if let Some(folder) = Folder::new(unsafe { CStr::from_ptr(value) }, known) {
            Place::begin(FOLDER.get_or_init(|| folder));
            inside::begin();
        }
    }
}

/// Room for the buses of the devices, 32 with 16 buses each, and the recipes of counters.
const ROOM: usize = 12 << 10;

struct Memory(UnsafeCell<[u8; ROOM]>);

// SAFETY: written to by the initialiser alone, which the dynamic linker calls once, before anybody looks at
// it.
unsafe impl Sync for Memory {}

/// Reads the file with what is to be known.
fn known(file: &CStr) -> &'static [u8] {
    static MEMORY: Memory = Memory(UnsafeCell::new([0; ROOM]));
    // SAFETY: the initialiser alone comes here, once.
    let memory = unsafe { &mut *MEMORY.0.get() };
    read(file, memory);
    memory
}

/// The folder with the devices' files; none where nobody has named one.
pub(crate) fn folder() -> Option<&'static Folder> {
    FOLDER.get()
}

/// What a function does with a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathUse {
    /// The function opens what is there.
    Open,
    /// The function asks about what is there.
    Ask,
    /// The function keeps the path for later, when a relative path may begin elsewhere: absolute paths alone
    /// are looked at.
    Later,
    /// The function starts the program that is there.
    Start,
}

/// Calls a function with what stands in for a path, if anything does, or with the path. A path that is not
/// ours costs no memory.
///
/// # Safety
/// `path` is NULL or a C string.
#[inline(always)]
pub(crate) unsafe fn instead<R>(
    what: PathUse,
    place: Place,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: the caller's promise.
    match unsafe { concerned(what, place, path) } {
        None => call(path),
        Some((folder, bytes)) => elsewhere(folder, what, place, bytes, call),
    }
}

/// Whether something may stand in for a path, by its words alone.
///
/// # Safety
/// `path` is NULL or a C string, and `'a` is no longer than it lives.
unsafe fn concerned<'a>(what: PathUse, place: Place, path: *const c_char) -> Option<(&'a Folder, &'a [u8])> {
    let folder = FOLDER.get()?;
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_concerned = match (what, bytes.first()) {
        (PathUse::Start, _) => Folder::is_command(bytes),
        (_, Some(b'/')) => folder.concerns(bytes),
        (PathUse::Later, _) | (_, None) => false,
        (PathUse::Open | PathUse::Ask, Some(_)) => place.may_matter(folder, bytes),
    };
    is_concerned.then_some((folder, bytes))
}

/// The rest of a call with a path that may be ours. A function by itself: it needs more of the stack than
/// those whose path is not ours.
#[inline(never)]
fn elsewhere<R>(
    folder: &Folder,
    what: PathUse,
    place: Place,
    path: &[u8],
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut found = Path::new();
    let start = match what {
        PathUse::Start => folder.command(&mut found).map(|()| 0),
        PathUse::Open | PathUse::Ask | PathUse::Later => walked(folder, place, path, &mut found),
    };
    match start {
        Some(start) => {
            if what == PathUse::Open && start == 0 {
                inside::opened(folder, found.after(0));
                counted::opened(folder, &found);
            }
            call(found.c_str(start).as_ptr())
        }
        None => call(path.as_ptr().cast()),
    }
}

/// Walks a path. A function by itself, too: the stack that it needs is free again when the path is used.
#[inline(never)]
pub(crate) fn walked(folder: &Folder, place: Place, path: &[u8], found: &mut Path) -> Option<usize> {
    let _errno = Errno::keep();
    let begin = |room: &mut [u8]| {
        let length = place.name(room)?;
        place.is_at(folder, room.get(..length)?);
        Some(length)
    };
    folder.file(path, begin, look, found)
}

/// The type of the function behind.
macro_rules! original {
    (variadic [$($before:ty),*] [$flags:ty, $mode:ty] $result:ty) => {
        unsafe extern "C" fn($($before,)* *const c_char, $flags, ...) -> $result
    };
    ([$($before:ty),*] [$($after:ty),*] $result:ty) => {
        unsafe extern "C" fn($($before,)* *const c_char $(, $after)*) -> $result
    };
}

/// Where a relative path begins: at the folder of a descriptor, or at the process's own.
macro_rules! place {
    () => {
        Place::Current
    };
    ($descriptor:ident) => {
        Place::of($descriptor)
    };
}

/// Functions that call the one behind them with another path where `$instead` knows one; a relative one
/// begins `at` an argument.
///
/// Those that are `variadic` have `...` in C in place of their last argument, an integer, which is only there
/// with certain flags. The calling conventions of Linux on x86-64 and AArch64 pass it as if it were named,
/// and what was not passed is not looked at.
macro_rules! calls {
    ($($instead:ident $(at $at:ident)?: fn $name:ident $([$($before:ident: $before_type:ty),*])?
        (path $(, $after:ident: $after_type:ty)* $(,)?)
    -> $result:ty $(as $variadic:ident)?;)*) => {
        static ORIGINALS: &[&Original] = &[$(&$name::ORIGINAL),*];
        $(
            mod $name {
                use super::*;
                pub(super) static ORIGINAL: Original = Original::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    },
                );

                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name(
                    $($($before: $before_type,)*)? path: *const c_char $(, $after: $after_type)*
                ) -> $result {
                    let address = ORIGINAL.address();
                    if address.is_null() {
                        return missing();
                    }
                    type Function =
                        original!($($variadic)? [$($($before_type),*)?] [$($after_type),*] $result);
                    // SAFETY: the function of this name in the C library has this type, by its manual page.
                    let original = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
                    let call = |path| {
                        // SAFETY: the caller's arguments; another path is a C string that lives until the
                        // function has returned.
                        unsafe { original($($($before,)*)? path $(, $after)*) }
                    };
                    // SAFETY: the caller passes what the function of this name takes: NULL or a C string for
                    // the path.
                    unsafe { instead(PathUse::$instead, place!($($at)?), path, call) }
                }
            }
        )*
    };
}

calls! {
    Open: fn open(path, flags: c_int, mode: c_uint) -> c_int as variadic;
    Open: fn open64(path, flags: c_int, mode: c_uint) -> c_int as variadic;
    Open at folder: fn openat[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    Open at folder: fn openat64[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    Open: fn __open_2(path, flags: c_int) -> c_int;
    Open: fn __open64_2(path, flags: c_int) -> c_int;
    Open at folder: fn __openat_2[folder: c_int](path, flags: c_int) -> c_int;
    Open at folder: fn __openat64_2[folder: c_int](path, flags: c_int) -> c_int;
    Open: fn fopen(path, mode: *const c_char) -> *mut FILE;
    Open: fn fopen64(path, mode: *const c_char) -> *mut FILE;
    Open: fn opendir(path) -> *mut DIR;
    Open: fn scandir(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    Open: fn scandir64(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    Open at folder: fn scandirat[folder: c_int](path, list: *mut c_void, filter: *const c_void,
        compare: *const c_void,
    ) -> c_int;
    Open at folder: fn scandirat64[folder: c_int](path, list: *mut c_void, filter: *const c_void,
        compare: *const c_void,
    ) -> c_int;

    Ask: fn stat(path, status: *mut c_void) -> c_int;
    Ask: fn stat64(path, status: *mut c_void) -> c_int;
    Ask: fn lstat(path, status: *mut c_void) -> c_int;
    Ask: fn lstat64(path, status: *mut c_void) -> c_int;
    Ask at folder: fn fstatat[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    Ask at folder: fn fstatat64[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    Ask at folder: fn statx[folder: c_int](path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    // The same for programs that were built with a C library before 2.33.
    Ask: fn __xstat[version: c_int](path, status: *mut c_void) -> c_int;
    Ask: fn __xstat64[version: c_int](path, status: *mut c_void) -> c_int;
    Ask: fn __lxstat[version: c_int](path, status: *mut c_void) -> c_int;
    Ask: fn __lxstat64[version: c_int](path, status: *mut c_void) -> c_int;
    Ask at folder: fn __fxstatat[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    Ask at folder: fn __fxstatat64[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;

    Ask: fn access(path, mode: c_int) -> c_int;
    Ask: fn eaccess(path, mode: c_int) -> c_int;
    Ask: fn euidaccess(path, mode: c_int) -> c_int;
    Ask at folder: fn faccessat[folder: c_int](path, mode: c_int, flags: c_int) -> c_int;
    Ask: fn getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    Ask: fn lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    Ask: fn listxattr(path, list: *mut c_char, size: usize) -> isize;
    Ask: fn llistxattr(path, list: *mut c_char, size: usize) -> isize;
    Ask at folder: fn name_to_handle_at[folder: c_int](path, handle: *mut c_void, mount: *mut c_int,
        flags: c_int,
    ) -> c_int;

    Later: fn posix_spawn_file_actions_addchdir_np[actions: *mut c_void](path) -> c_int;
    Later: fn posix_spawn_file_actions_addopen[actions: *mut c_void, descriptor: c_int](path, flags: c_int,
        mode: c_uint,
    ) -> c_int;

    Start: fn execve(path, arguments: *const c_void, environment: *const c_void) -> c_int;
    Start: fn execv(path, arguments: *const c_void) -> c_int;
    Start: fn execvp(path, arguments: *const c_void) -> c_int;
    Start: fn execvpe(path, arguments: *const c_void, environment: *const c_void) -> c_int;
    Start: fn posix_spawn[process: *mut c_void](path, actions: *const c_void, attributes: *const c_void,
        arguments: *const c_void, environment: *const c_void,
    ) -> c_int;
    Start: fn posix_spawnp[process: *mut c_void](path, actions: *const c_void, attributes: *const c_void,
        arguments: *const c_void, environment: *const c_void,
    ) -> c_int;
}
