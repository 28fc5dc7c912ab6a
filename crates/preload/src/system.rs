//! Which file system a file is on: of ours, that of `/sys` or of `/dev`.

use crate::behind::behind;
use crate::calls::{PathUse, folder, instead};
use crate::original::Original;
use crate::path::Path;
use crate::place::{Errno, Place};
use std::ffi::{CStr, c_char, c_int, c_void};

type OfPath = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
type OfDescriptor = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;

/// What the kernel would say of a file of ours, by its name in the folder; nothing of others, of which all is
/// said already.
///
/// # Safety
/// `ask` takes `status`.
unsafe fn ours(name: &[u8], ask: OfPath, status: *mut c_void) {
    let _errno = Errno::keep();
    let Some(shown) = folder().and_then(|folder| folder.shown(name)) else { return };
    let mounted = if shown.starts_with(b"/dev/") { c"/dev" } else { c"/sys" };
    // SAFETY: a C string, and the caller's promise.
    unsafe { ask(mounted.as_ptr(), status) };
}

/// Fills `status` as [`ours`], for a file of ours by its descriptor. A function by itself, since it needs
/// more of the stack.
///
/// # Safety
/// As for [`ours`].
#[inline(never)]
unsafe fn of_descriptor(descriptor: c_int, ask: OfPath, status: *mut c_void) {
    let _errno = Errno::keep();
    let mut name = Path::new();
    if let Some(length) = Place::Descriptor(descriptor).name(name.room(0)) {
        name.has(length);
        // SAFETY: the caller's promise.
        unsafe { ours(name.after(0), ask, status) };
    }
}

/// Functions that fill a structure: of a path, and of a descriptor.
macro_rules! systems {
    ($($path:ident $of_path:ident $descriptor:ident $of_descriptor:ident;)*) => {
        /// The originals, to be looked up when the library is initialised.
        pub(crate) static ORIGINALS: &[&Original] = &[$(&$of_path, &$of_descriptor),*];
        $(
            static $of_path: Original = Original::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($path), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );
            static $of_descriptor: Original = Original::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($descriptor), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $path(path: *const c_char, status: *mut c_void) -> c_int {
                let original = behind!($of_path as OfPath);
                // SAFETY: the caller passes what the function takes; another path is a C string that lives as
                // long.
                unsafe {
                    instead(PathUse::Ask, Place::Current, path, |path| {
                        let result = original(path, status);
                        if result == 0 {
                            ours(CStr::from_ptr(path).to_bytes(), original, status);
                        }
                        result
                    })
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $descriptor(descriptor: c_int, status: *mut c_void) -> c_int {
                let original = behind!($of_descriptor as OfDescriptor);
                // SAFETY: the caller passes what the function takes.
                let result = unsafe { original(descriptor, status) };
                if result == 0 && folder().is_some() {
                    let ask = behind!($of_path as OfPath);
                    // SAFETY: the same structure.
                    unsafe { of_descriptor(descriptor, ask, status) };
                }
                result
            }
        )*
    };
}

systems! {
    statfs STATFS fstatfs FSTATFS;
    statfs64 STATFS64 fstatfs64 FSTATFS64;
    statvfs STATVFS fstatvfs FSTATVFS;
    statvfs64 STATVFS64 fstatvfs64 FSTATVFS64;
}
