//! Walks through trees (fts(3)): the C library goes from folder to folder with its own calls. So a walk that
//! begins at our files gets the folder's name in front of its roots, and the links of the tree do the rest.
//! Between two calls, the entries that the program sees say their paths without that name.
//!
//! Nothing is kept beside the C library's structures. Two bits of a walk's options say that its roots are
//! such ones, and that entries are shown to the program. An entry's path begins at the walk's memory for it,
//! or behind the folder's name there. Before the first read, the roots still have the names that the C
//! library was given: for `fts_children`, and for the function that sorts them. Roots that are relative are
//! left alone: below a folder of ours, the kernel finds them.

use crate::behind::behind;
use crate::calls::{folder, walked};
use crate::folder::Folder;
use crate::original::Original;
use crate::path::Path;
use crate::place::{Errno, Place};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_short, c_void};

/// The options of fts(3) and its own marks are below these.
const IS_MOVED: c_int = 1 << 29;
const IS_SHOWN: c_int = 1 << 30;

/// `FTS`, and `FTS64`, which is the same where files have lengths of 64 bits.
#[repr(C)]
struct Walk {
    current: *mut Entry,
    children: *mut Entry,
    sorted: *mut c_void,
    device: libc::dev_t,
    path: *mut c_char,
    root: c_int,
    room: c_int,
    sortable: c_int,
    compare: *const c_void,
    options: c_int,
}

/// `FTSENT`, to the last part that matters here.
#[repr(C)]
struct Entry {
    cycle: *mut Entry,
    parent: *mut Entry,
    next: *mut Entry,
    number: c_long,
    pointer: *mut c_void,
    access: *mut c_char,
    path: *mut c_char,
    errno: c_int,
    link: c_int,
    length: u16,
    name_length: u16,
    inode: libc::ino_t,
    device: libc::dev_t,
    links: libc::nlink_t,
    level: c_short,
}

type Open = unsafe extern "C" fn(*const *const c_char, c_int, *const c_void) -> *mut Walk;
type Read = unsafe extern "C" fn(*mut Walk) -> *mut Entry;
type Children = unsafe extern "C" fn(*mut Walk, c_int) -> *mut Entry;
type Close = unsafe extern "C" fn(*mut Walk) -> c_int;

/// The walk, if its roots have the folder's name in front.
///
/// # Safety
/// `walk` is NULL or what `fts_open` has returned.
unsafe fn moved(walk: *mut Walk) -> Option<(&'static Folder, *mut Walk)> {
    let folder = folder()?;
    // SAFETY: the caller's promise.
    let is_moved = !walk.is_null() && unsafe { (*walk).options } & IS_MOVED != 0;
    is_moved.then_some((folder, walk))
}

/// Changes the entries that the program can see: the present one, those above it, and its children, if they
/// were asked for.
///
/// # Safety
/// The walk has returned an entry, and none later that was NULL.
unsafe fn each(walk: *mut Walk, change: impl Fn(&mut Entry)) {
    // SAFETY: the C library keeps these entries until its next call. The entry above a root has a level below
    // zero.
    unsafe {
        let mut above = (*walk).current.as_mut();
        while let Some(entry) = above.filter(|entry| entry.level >= 0) {
            change(entry);
            above = entry.parent.as_mut();
        }
        let mut child = (*walk).children.as_mut();
        while let Some(entry) = child {
            change(entry);
            child = entry.next.as_mut();
        }
    }
}

/// The entries' paths lose the folder's name.
///
/// # Safety
/// As for [`each`].
unsafe fn show(folder: &Folder, walk: *mut Walk) {
    // SAFETY: the caller's promise; the path is a C string.
    unsafe {
        let base = (*walk).path;
        // Another root may be one of the system's.
        if !folder.is_below(CStr::from_ptr(base).to_bytes()) {
            return;
        }
        let length = folder.length();
        let behind = base.add(length);
        each(walk, |entry| {
            if entry.path == base {
                entry.access = if entry.access == base { behind } else { entry.access };
                entry.path = behind;
                entry.length = entry.length.wrapping_sub(length as u16);
            }
        });
        (*walk).options |= IS_SHOWN;
    }
}

/// The entries get back what the C library has put into them. Says whether they were shown.
///
/// # Safety
/// As for [`moved`].
unsafe fn hide(folder: &Folder, walk: *mut Walk) -> bool {
    // SAFETY: the caller's promise. The bit says that the C library has returned an entry last.
    unsafe {
        if (*walk).options & IS_SHOWN == 0 {
            return false;
        }
        (*walk).options &= !IS_SHOWN;
        let base = (*walk).path;
        let length = folder.length();
        let behind = base.add(length);
        each(walk, |entry| {
            if entry.path == behind {
                entry.access = if entry.access == behind { base } else { entry.access };
                entry.path = base;
                entry.length = entry.length.wrapping_add(length as u16);
            }
        });
        true
    }
}

/// The root below the folder, if that is what the path leads to.
fn root(folder: &Folder, path: &[u8]) -> Option<CString> {
    if !path.starts_with(b"/") || !folder.concerns(path) {
        return None;
    }
    // On the heap, since a thread may have little stack.
    let (mut found, mut below) = (Box::new(Path::new()), Box::new(Path::new()));
    let start = walked(folder, Place::Current, path, &mut found)?;
    folder.below(path, &mut below)?;
    let _errno = Errno::keep();
    let is_same = is(found.c_str(start)).is_some_and(|file| Some(file) == is(below.c_str(0)));
    is_same.then(|| below.c_str(0).to_owned())
}

/// Which file is at a path, by its device and number.
fn is(path: &CStr) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: all zero is a valid structure, and the kernel's is the C library's.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let (flags, room) = (libc::AT_SYMLINK_NOFOLLOW, &raw mut status);
        let result = libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), room, flags);
        (result == 0).then_some((status.st_dev, status.st_ino))
    }
}

/// Begins a walk. It takes memory, as the original does.
///
/// # Safety
/// As for fts_open(3).
unsafe fn open(
    original: Open,
    roots: *const *const c_char,
    options: c_int,
    compare: *const c_void,
) -> *mut Walk {
    // SAFETY: the caller passes an array of C strings with NULL at its end.
    unsafe {
        let begin = || {
            let folder = folder().filter(|_| !roots.is_null())?;
            let count = (0..).take_while(|&index| !(*roots.add(index)).is_null()).count();
            let given = std::slice::from_raw_parts(roots, count);
            let replaced = |path: &*const c_char| root(folder, CStr::from_ptr(*path).to_bytes());
            let replaced: Vec<_> = given.iter().map(replaced).collect();
            replaced.iter().any(Option::is_some).then_some((given, replaced))
        };
        let Some((given, replaced)) = begin() else { return original(roots, options, compare) };
        let texts = given.iter().zip(&replaced);
        let mut all: Vec<_> =
            texts.map(|(given, root)| root.as_ref().map_or(*given, |root| root.as_ptr())).collect();
        all.push(std::ptr::null());
        let walk = original(all.as_ptr(), options, compare);
        if let Some(walk) = walk.as_mut() {
            walk.options |= IS_MOVED;
        }
        walk
    }
}

/// # Safety
/// As for fts_read(3).
unsafe fn read(original: Read, walk: *mut Walk) -> *mut Entry {
    // SAFETY: the caller's promise.
    unsafe {
        let Some((folder, walk)) = moved(walk) else { return original(walk) };
        hide(folder, walk);
        let entry = original(walk);
        Place::may_have_moved(folder);
        if !entry.is_null() {
            show(folder, walk);
        }
        entry
    }
}

/// # Safety
/// As for fts_children(3).
unsafe fn children(original: Children, walk: *mut Walk, options: c_int) -> *mut Entry {
    // SAFETY: the caller's promise. The present entry stays what it is.
    unsafe {
        let Some((folder, walk)) = moved(walk) else { return original(walk, options) };
        let was_shown = hide(folder, walk);
        let first = original(walk, options);
        if was_shown {
            show(folder, walk);
        }
        first
    }
}

/// # Safety
/// As for fts_close(3).
unsafe fn close(original: Close, walk: *mut Walk) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some((folder, walk)) = moved(walk) else { return original(walk) };
        hide(folder, walk);
        let result = original(walk);
        Place::may_have_moved(folder);
        result
    }
}

/// Functions of these names, each in front of the original.
macro_rules! walks {
    ($($open:ident $read:ident $children:ident $close:ident;)*) => {
        /// The originals, to be looked up when the library is initialised.
        pub(crate) static ORIGINALS: &[&Original] =
            &[$(&$open::ORIGINAL, &$read::ORIGINAL, &$children::ORIGINAL, &$close::ORIGINAL),*];
        $(
            walks! { $open as Open: (roots: *const *const c_char, options: c_int, compare: *const c_void) -> *mut Walk = open }
            walks! { $read as Read: (walk: *mut Walk) -> *mut Entry = read }
            walks! { $children as Children: (walk: *mut Walk, options: c_int) -> *mut Entry = children }
            walks! { $close as Close: (walk: *mut Walk) -> c_int = close }
        )*
    };
    ($name:ident as $kind:ty: ($($argument:ident: $type:ty),*) -> $result:ty = $by:ident) => {
        mod $name {
            use super::*;
            pub(super) static ORIGINAL: Original = Original::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                let original = behind!(ORIGINAL as $kind);
                // SAFETY: the caller passes what the function of this name takes.
                unsafe { super::$by(original, $($argument),*) }
            }
        }
    };
}

walks! {
    fts_open fts_read fts_children fts_close;
    fts64_open fts64_read fts64_children fts64_close;
}
