//! Historical helpers that read files of sysfs. Files of this library's devices do not stand there: they are
//! answered here, with the text that the kernel has for its own.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use adverb_core::{setting, sysfs};

use crate::device::devices;

/// The text of a file below `/sys/class/infiniband` or `/sys/class/infiniband_verbs`, if it belongs to a
/// device of this library.
pub fn answer(path: &str) -> Option<String> {
    let known = devices().ok()?;
    let known: Vec<_> = known.iter().map(|device| (device.description(), &**device.transport())).collect();
    sysfs::text(&sysfs::entries(&known, false, setting::host_library().is_some()), path).map(str::to_owned)
}

/// Where sysfs is mounted.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `directory/file` into `buffer`; a trailing newline becomes the terminator. Returns the length,
/// or -1.
///
/// # Safety
/// The strings are terminated, and `buffer` has room for `size` bytes.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    if directory.is_null() || file.is_null() || buffer.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    if let (Ok(directory), Ok(file)) = (directory.to_str(), file.to_str())
        && let Some(text) = answer(&format!("{directory}/{file}"))
    {
        if text.len() >= size {
            return -1;
        }
        // SAFETY: the buffer has room for the text and its terminator.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            *buffer.add(text.len()) = 0;
        }
        return text.len() as c_int;
    }
    let Ok(path) = CString::new([directory.to_bytes(), b"/", file.to_bytes()].concat()) else { return -1 };
    // SAFETY: `path` is a terminated string.
    let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return -1;
    }
    // SAFETY: just opened, owned by nobody else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: the caller's promise about `buffer` and `size`.
    let length = unsafe { libc::read(descriptor.as_raw_fd(), buffer.cast::<c_void>(), size) };
    let Ok(mut length) = usize::try_from(length) else { return -1 };
    if length > 0 {
        // SAFETY: `length` is at most `size`, so both writes stay inside the buffer.
        unsafe {
            if *buffer.add(length - 1) == b'\n' as c_char {
                length -= 1;
                *buffer.add(length) = 0;
            } else if length < size {
                *buffer.add(length) = 0;
            } else {
                // A file as long as the buffer, without a newline: there is no room for the terminator.
                return -1;
            }
        }
    }
    length as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_files_that_do_not_exist() {
        let of = |file: &str| answer(&format!("/sys/class/infiniband/roce0/{file}"));
        assert_eq!(of("node_type").as_deref(), Some("1: CA"));
        assert_eq!(of("ports/1/state").as_deref(), Some("4: ACTIVE"));
        assert_eq!(of("ports/1/gids/0").map(|gid| gid.len()), Some(39));
        assert_eq!(of("ports/1/gid_attrs/types/0").as_deref(), Some("RoCE v2"));
        assert_eq!(of("ports/1/pkeys/0").as_deref(), Some("0xffff"));
        for none in ["ports/2/state", "ports/1/gids/4000", "board_id", "", "node_type/more"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(answer("/sys/class/infiniband_verbs/uverbs0/ibdev").as_deref(), Some("roce0"));
        assert_eq!(answer("/sys/class/net/lo/mtu"), None);
        let mut buffer = [0x7f as c_char; 8];
        let path = c"/sys/class/infiniband/roce0";
        // SAFETY: terminated strings and the buffer's own length.
        let length = unsafe {
            ibv_read_sysfs_file(path.as_ptr(), c"node_type".as_ptr(), buffer.as_mut_ptr(), buffer.len())
        };
        assert_eq!((length, buffer[5], buffer[3]), (5, 0, b'C' as c_char));
        // SAFETY: as above.
        let none =
            unsafe { ibv_read_sysfs_file(path.as_ptr(), c"node_type".as_ptr(), buffer.as_mut_ptr(), 5) };
        assert_eq!(none, -1, "no room for the terminator");
    }

    #[test]
    fn reads_up_to_the_newline() {
        let directory = std::env::temp_dir().join(format!("adverb-sysfs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("file"), "abc\n").expect("a file");
        let path = CString::new(directory.to_str().expect("UTF-8")).expect("no zero");
        let read = |size: usize| {
            let mut buffer = [0x7f as c_char; 8];
            // SAFETY: `size` is at most the buffer's length.
            let length =
                unsafe { ibv_read_sysfs_file(path.as_ptr(), c"file".as_ptr(), buffer.as_mut_ptr(), size) };
            (length, buffer)
        };
        let (length, buffer) = read(8);
        assert_eq!((length, buffer[2], buffer[3], buffer[4]), (3, b'c' as c_char, 0, 0x7f));
        assert_eq!(read(3).0, -1, "no room for a terminator");
        // SAFETY: the strings are terminated; nothing is written.
        let missing = unsafe { ibv_read_sysfs_file(path.as_ptr(), c"none".as_ptr(), [0; 1].as_mut_ptr(), 1) };
        assert_eq!(missing, -1);
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
