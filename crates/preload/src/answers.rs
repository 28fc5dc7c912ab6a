//! The C library's functions that answer with a path, or that change where relative paths begin: what they
//! answer is what the kernel would show.

use crate::behind::behind;
use crate::calls::{PathUse, folder, instead};
use crate::folder::Folder;
use crate::original::Original;
use crate::path::Path;
use crate::place::{Errno, Place};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The originals, to be looked up when the library is initialised.
pub(crate) static ORIGINALS: &[&Original] = &[
    &REALPATH,
    &REALPATH_CHK,
    &CANONICALIZE,
    &READLINK,
    &READLINKAT,
    &GETCWD,
    &GETCWD_CHK,
    &CURRENT_NAME,
    &GETWD,
    &CHDIR,
    &FCHDIR,
];

static REALPATH: Original = Original::new(c"realpath");
static REALPATH_CHK: Original = Original::new(c"__realpath_chk");
static CANONICALIZE: Original = Original::new(c"canonicalize_file_name");
static READLINK: Original = Original::new(c"readlink");
static READLINKAT: Original = Original::new(c"readlinkat");
static GETCWD: Original = Original::new(c"getcwd");
static GETCWD_CHK: Original = Original::new(c"__getcwd_chk");
static CURRENT_NAME: Original = Original::new(c"get_current_dir_name");
static GETWD: Original = Original::new(c"getwd");
static CHDIR: Original = Original::new(c"chdir");
static FCHDIR: Original = Original::new(c"fchdir");

/// Takes the folder's name out of a path that a function has written.
///
/// # Safety
/// `path` is NULL or a C string that may be changed.
unsafe fn shown(path: *mut c_char) -> *mut c_char {
    let Some(folder) = folder().filter(|_| !path.is_null()) else { return path };
    // SAFETY: the caller's promise. What is shown ends where the string ends, and goes with the terminator to
    // its beginning.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes();
        let length = bytes.len();
        if let Some(shown) = folder.shown(bytes) {
            let kept = shown.len();
            path.copy_from(path.add(length - kept), kept + 1);
        }
    }
    path
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    let original = behind!(REALPATH as unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char);
    // SAFETY: the caller passes what realpath(3) takes; another path lives until the function has returned.
    unsafe { shown(instead(PathUse::Ask, Place::Current, path, |path| original(path, resolved))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: usize) -> *mut c_char {
    let original =
        behind!(REALPATH_CHK as unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char);
    // SAFETY: as for `realpath`.
    unsafe { shown(instead(PathUse::Ask, Place::Current, path, |path| original(path, resolved, room))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    let original = behind!(CANONICALIZE as unsafe extern "C" fn(*const c_char) -> *mut c_char);
    // SAFETY: as for `realpath`.
    unsafe { shown(instead(PathUse::Ask, Place::Current, path, |path| original(path))) }
}

/// What a link says, without the folder's name; only links of `/proc` have it.
///
/// # Safety
/// `target` has room for `size` bytes, of which `length` were written; `again` reads the link once more.
unsafe fn link(
    target: *mut c_char,
    size: usize,
    length: isize,
    again: impl FnOnce(*mut c_char, usize) -> isize,
) -> isize {
    let (Some(folder), Ok(written)) = (folder(), usize::try_from(length)) else { return length };
    // SAFETY: the caller's promise.
    let text = unsafe { std::slice::from_raw_parts(target.cast::<u8>(), written.min(size)) };
    if !folder.may_show(text) {
        return length;
    }
    // SAFETY: the caller's promise.
    unsafe { whole_link(folder, target, size, length, again) }
}

/// The walk for a link that may lead to our files. A function by itself: it needs more of the stack than
/// links that have nothing to do with us.
///
/// # Safety
/// As for [`link`].
#[inline(never)]
unsafe fn whole_link(
    folder: &Folder,
    target: *mut c_char,
    size: usize,
    length: isize,
    again: impl FnOnce(*mut c_char, usize) -> isize,
) -> isize {
    let mut whole = Path::new();
    let room = whole.room(0);
    let Ok(written) = usize::try_from(again(room.as_mut_ptr().cast(), room.len())) else { return length };
    whole.has(written);
    let Some(shown) = folder.shown(whole.after(0)) else { return length };
    let kept = shown.len().min(size);
    // SAFETY: the caller's promise; the text is in memory of its own.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping(shown.as_ptr(), kept) };
    kept as isize
}

type ReadLink = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
type ReadLinkAt = unsafe extern "C" fn(c_int, *const c_char, *mut c_char, usize) -> isize;

#[unsafe(no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, target: *mut c_char, size: usize) -> isize {
    let original = behind!(READLINK as ReadLink);
    // SAFETY: the caller passes what readlink(2) takes; another path lives until the function has returned.
    unsafe {
        instead(PathUse::Ask, Place::Current, path, |path| {
            link(target, size, original(path, target, size), |room, most| original(path, room, most))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlinkat(from: c_int, path: *const c_char, target: *mut c_char, size: usize) -> isize {
    let original = behind!(READLINKAT as ReadLinkAt);
    // SAFETY: as for `readlink`.
    unsafe {
        instead(PathUse::Ask, Place::of(from), path, |path| {
            let length = original(from, path, target, size);
            link(target, size, length, |room, most| original(from, path, room, most))
        })
    }
}

/// Ends the process as the C library does, by its own means, where a program asks for more than its room.
fn check(size: usize, room: usize) {
    if size > room {
        // SAFETY: takes nothing.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    target: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    check(size, room);
    // SAFETY: as for `readlink`.
    unsafe { readlink(path, target, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __readlinkat_chk(
    from: c_int,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    check(size, room);
    // SAFETY: as for `readlink`.
    unsafe { readlinkat(from, path, target, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(buffer: *mut c_char, size: usize) -> *mut c_char {
    let original = behind!(GETCWD as unsafe extern "C" fn(*mut c_char, usize) -> *mut c_char);
    // SAFETY: the caller passes what getcwd(3) takes.
    let found = unsafe { shown(original(buffer, size)) };
    if !found.is_null() || buffer.is_null() {
        return found;
    }
    // The buffer may have room for what is shown, though it has none for where that lies.
    // SAFETY: the thread's own errno.
    if unsafe { *libc::__errno_location() } != libc::ERANGE {
        return found;
    }
    let Some(folder) = folder() else { return found };
    // SAFETY: as above.
    if unsafe { current(folder, buffer, size) } { buffer } else { found }
}

/// Writes what the process's folder is shown as, if it is one of ours and there is room; by itself for the
/// sake of the stack.
///
/// # Safety
/// The buffer has `size` bytes.
#[inline(never)]
unsafe fn current(folder: &Folder, buffer: *mut c_char, size: usize) -> bool {
    let mut name = Path::new();
    let Some(length) = Place::Current.name(name.room(0)) else { return false };
    name.has(length);
    let Some(shown) = folder.shown(name.after(0)).filter(|shown| shown.len() < size) else { return false };
    // SAFETY: the caller's promise.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(shown.as_ptr(), shown.len());
        *buffer.add(shown.len()) = 0;
    }
    true
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char {
    check(size, room);
    // SAFETY: as for `getcwd`.
    unsafe { getcwd(buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    let original = behind!(CURRENT_NAME as unsafe extern "C" fn() -> *mut c_char);
    // SAFETY: takes nothing; the string is the caller's.
    unsafe { shown(original()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getwd(buffer: *mut c_char) -> *mut c_char {
    let original = behind!(GETWD as unsafe extern "C" fn(*mut c_char) -> *mut c_char);
    // SAFETY: the caller passes what getwd(3) takes.
    unsafe { shown(original(buffer)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    let original = behind!(CHDIR as unsafe extern "C" fn(*const c_char) -> c_int);
    // SAFETY: the caller passes what chdir(2) takes; another path lives until the function has returned.
    let result = unsafe { instead(PathUse::Ask, Place::Current, path, |path| original(path)) };
    if let (0, Some(folder)) = (result, folder()) {
        let _errno = Errno::keep();
        // SAFETY: the kernel has read it as a C string.
        Place::moves(folder, Some(unsafe { CStr::from_ptr(path) }.to_bytes()));
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchdir(descriptor: c_int) -> c_int {
    let original = behind!(FCHDIR as unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: fchdir(2) takes any number.
    let result = unsafe { original(descriptor) };
    if let (0, Some(folder)) = (result, folder()) {
        Place::moves(folder, None);
    }
    result
}
