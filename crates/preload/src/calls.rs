//! The C library's functions that take a path, in front of the originals.

use crate::folder::{Folder, Path};
use crate::original::{Original, missing};
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
    for original in ORIGINALS {
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
}

/// What stands in for a path, if anything does.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn instead(path: *const c_char, choose: fn(&Folder, &[u8]) -> Option<Path>) -> Option<Path> {
    let folder = FOLDER.get()?;
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    choose(folder, unsafe { CStr::from_ptr(path) }.to_bytes())
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

/// Functions that call the one behind them with another path where `Folder::$instead` knows one.
///
/// Those that are `variadic` have `...` in C in place of their last argument, an integer, which is only there with certain flags. The
/// calling conventions of Linux on x86-64 and AArch64 pass it as if it were named, and what was not passed is not looked at.
macro_rules! calls {
    ($($instead:ident: fn $name:ident $([$($before:ident: $before_type:ty),*])?
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
                    let instead = unsafe { instead(path, Folder::$instead) };
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
    file: fn openat[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file: fn openat64[folder: c_int](path, flags: c_int, mode: c_uint) -> c_int as variadic;
    file: fn __open_2(path, flags: c_int) -> c_int;
    file: fn __open64_2(path, flags: c_int) -> c_int;
    file: fn __openat_2[folder: c_int](path, flags: c_int) -> c_int;
    file: fn __openat64_2[folder: c_int](path, flags: c_int) -> c_int;
    file: fn fopen(path, mode: *const c_char) -> *mut FILE;
    file: fn fopen64(path, mode: *const c_char) -> *mut FILE;
    file: fn opendir(path) -> *mut DIR;
    file: fn scandir(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    file: fn scandir64(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    file: fn chdir(path) -> c_int;

    file: fn stat(path, status: *mut c_void) -> c_int;
    file: fn stat64(path, status: *mut c_void) -> c_int;
    file: fn lstat(path, status: *mut c_void) -> c_int;
    file: fn lstat64(path, status: *mut c_void) -> c_int;
    file: fn fstatat[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file: fn fstatat64[folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file: fn statx[folder: c_int](path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    // The same for programs that were built with a C library before 2.33.
    file: fn __xstat[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __xstat64[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __lxstat[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __lxstat64[version: c_int](path, status: *mut c_void) -> c_int;
    file: fn __fxstatat[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;
    file: fn __fxstatat64[version: c_int, folder: c_int](path, status: *mut c_void, flags: c_int) -> c_int;

    file: fn access(path, mode: c_int) -> c_int;
    file: fn eaccess(path, mode: c_int) -> c_int;
    file: fn euidaccess(path, mode: c_int) -> c_int;
    file: fn faccessat[folder: c_int](path, mode: c_int, flags: c_int) -> c_int;
    file: fn getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    file: fn lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    file: fn listxattr(path, list: *mut c_char, size: usize) -> isize;
    file: fn llistxattr(path, list: *mut c_char, size: usize) -> isize;

    file: fn readlink(path, target: *mut c_char, size: usize) -> isize;
    file: fn readlinkat[folder: c_int](path, target: *mut c_char, size: usize) -> isize;
    file: fn __readlink_chk(path, target: *mut c_char, size: usize, room: usize) -> isize;
    file: fn __readlinkat_chk[folder: c_int](path, target: *mut c_char, size: usize, room: usize) -> isize;
    file: fn realpath(path, resolved: *mut c_char) -> *mut c_char;
    file: fn __realpath_chk(path, resolved: *mut c_char, room: usize) -> *mut c_char;
    file: fn canonicalize_file_name(path) -> *mut c_char;

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
