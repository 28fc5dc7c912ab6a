//! The C library's functions that take a path, in front of the originals.

use crate::answers;
use crate::folder::Folder;
use crate::inside;
use crate::original::{Original, missing};
use crate::path::Path;
use crate::place::{Errno, Place, look};
use libc::{DIR, FILE};
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
    for original in ORIGINALS.iter().chain(answers::ORIGINALS) {
        original.address();
    }
    // SAFETY: a C string; nobody changes the environment before `main`.
    let value = unsafe { secure_getenv(VARIABLE.as_ptr()) };
    if !value.is_null() {
        // SAFETY: values of the environment are C strings, and this one is copied at once.
        if let Some(folder) = Folder::new(unsafe { CStr::from_ptr(value) }) {
            let _ = FOLDER.set(folder);
        }
    }
    Place::begin();
}

/// The folder with the devices' files; none where nobody has named one.
pub(crate) fn folder() -> Option<&'static Folder> {
    FOLDER.get()
}

/// What stands in for a path, if anything does.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn instead(
    place: Place,
    path: *const c_char,
    choose: fn(Place, &[u8]) -> Option<Path>,
) -> Option<Path> {
    FOLDER.get()?;
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    choose(place, unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// What to open instead of a path that begins at a place, if it is relative.
pub(crate) fn file(place: Place, path: &[u8]) -> Option<Path> {
    let folder = FOLDER.get()?;
    let is_concerned = match path.first() {
        Some(b'/') => Folder::concerns(path),
        Some(_) => place.may_matter(path),
        None => false,
    };
    if is_concerned { walk(folder, place, path) } else { None }
}

/// By itself: it needs more of the stack than what calls it.
#[inline(never)]
fn walk(folder: &Folder, place: Place, path: &[u8]) -> Option<Path> {
    let _errno = Errno::keep();
    let mut from = Path::new();
    if !path.starts_with(b"/") {
        from = place.name()?;
        place.is_at(folder, from.as_bytes());
    }
    let found = folder.file(from.as_bytes(), path, look)?;
    inside::opened(folder, &found);
    Some(found)
}

/// What to start instead of a command.
fn command(_: Place, path: &[u8]) -> Option<Path> {
    FOLDER.get()?.command(path)
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

/// Functions that call the one behind them with another path where `$instead` knows one; a relative one begins `at` an argument.
///
/// Those that are `variadic` have `...` in C in place of their last argument, an integer, which is only there with certain flags. The
/// calling conventions of Linux on x86-64 and AArch64 pass it as if it were named, and what was not passed is not looked at.
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
                    // SAFETY: the caller passes what the function of this name takes: NULL or a C string for the path.
                    let instead = unsafe { instead(place!($($at)?), path, super::$instead) };
                    let path = instead.as_ref().map_or(path, Path::as_ptr);
                    // SAFETY: the caller's arguments; another path is a C string that lives until the function has returned.
                    unsafe { original($($($before,)*)? path $(, $after)*) }
                }
            }
        )*
    };
}

calls! {
    file: fn open(path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file: fn open64(path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file at folder: fn openat[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file at folder: fn openat64[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file: fn __open_2(path, flags: c_int) -> c_int;
    file: fn __open64_2(path, flags: c_int) -> c_int;
    file at folder: fn __openat_2[folder: c_int](path, flags: c_int) -> c_int;
    file at folder: fn __openat64_2[folder: c_int](path, flags: c_int) -> c_int;
    file: fn fopen(path, mode: *const c_char) -> *mut FILE;
    file: fn fopen64(path, mode: *const c_char) -> *mut FILE;
    file: fn opendir(path) -> *mut DIR;
    file: fn scandir(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    file: fn scandir64(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;

    file: fn stat(path, status: *mut c_void) -> c_int;
    file: fn stat64(path, status: *mut c_void) -> c_int;
    file: fn lstat(path, status: *mut c_void) -> c_int;
    file: fn lstat64(path, status: *mut c_void) -> c_int;
    file at folder: fn fstatat[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file at folder: fn fstatat64[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file at folder: fn statx[folder: c_int](path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    // The same for programs that were built with a C library before 2.33.
    file: fn __xstat[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __xstat64[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __lxstat[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __lxstat64[version: c_int](path, status: *mut c_void) -> c_int;
    file at folder: fn __fxstatat[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file at folder: fn __fxstatat64[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;

    file: fn access(path, mode: c_int) -> c_int;
    file: fn eaccess(path, mode: c_int) -> c_int;
    file: fn euidaccess(path, mode: c_int) -> c_int;
    file at folder: fn faccessat[folder: c_int](path, mode: c_int, flags: c_int) -> c_int;
    file: fn getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    file: fn lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    file: fn listxattr(path, list: *mut c_char, size: usize) -> isize;
    file: fn llistxattr(path, list: *mut c_char, size: usize) -> isize;


    file: fn posix_spawn_file_actions_addchdir_np[actions: *mut c_void](path) -> c_int;
    file: fn posix_spawn_file_actions_addopen[actions: *mut c_void, descriptor: c_int](path, flags: c_int,
        mode: c_uint,
    ) -> c_int;

    command: fn execve(path, arguments: *const c_void, environment: *const c_void) -> c_int;
    command: fn execv(path, arguments: *const c_void) -> c_int;
    command: fn execvp(path, arguments: *const c_void) -> c_int;
    command: fn execvpe(path, arguments: *const c_void, environment: *const c_void) -> c_int;
    command: fn posix_spawn[process: *mut c_void](path, actions: *const c_void, attributes: *const c_void,
        arguments: *const c_void, environment: *const c_void,
    ) -> c_int;
    command: fn posix_spawnp[process: *mut c_void](path, actions: *const c_void, attributes: *const c_void,
        arguments: *const c_void, environment: *const c_void,
    ) -> c_int;
}
