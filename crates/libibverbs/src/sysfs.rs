//! Historical helpers that read files of sysfs. Files of this library's devices do not stand there: they are answered here, with the
//! text that the kernel has for its own (Documentation/ABI/stable/sysfs-class-infiniband).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use adverb_core::attributes::{Gid, GidKind, TransportType};
use adverb_core::device::Device;

use crate::device::devices;
use crate::port::DEFAULT_PKEY;

/// The text of a file below `/sys/class/infiniband` or `/sys/class/infiniband_verbs`, if it belongs to a device of this library.
pub fn answer(path: &str) -> Option<String> {
    let mut parts = path.strip_prefix("/sys/class/")?.split('/').filter(|part| !part.is_empty());
    let (class, name) = (parts.next()?, parts.next()?);
    let file: Vec<_> = parts.collect();
    let known = devices().ok()?;
    match class {
        "infiniband" => of_device(known.iter().find(|device| device.name() == name)?, &file),
        "infiniband_verbs" => {
            let device = known.iter().find(|device| format!("uverbs{}", device.index()) == name)?;
            match file[..] {
                ["ibdev"] => Some(device.name().to_owned()),
                ["abi_version"] => Some("1".to_owned()),
                _ => None,
            }
        }
        _ => None,
    }
}

fn of_device(device: &Device, file: &[&str]) -> Option<String> {
    let attributes = device.transport().attributes();
    let is_ib = attributes.transport == TransportType::Ib;
    Some(match file {
        ["node_type"] => if is_ib { "1: CA" } else { "4: RNIC" }.to_owned(),
        ["node_guid" | "sys_image_guid"] => words(&attributes.node_guid.to_be_bytes()),
        ["node_desc"] => device.name().to_owned(),
        ["fw_ver"] => env!("CARGO_PKG_VERSION").to_owned(),
        ["ports", "1", file @ ..] => return of_port(device, file),
        _ => return None,
    })
}

fn of_port(device: &Device, file: &[&str]) -> Option<String> {
    let port = device.transport().port();
    let gid = |index: &str| -> Option<Option<Gid>> {
        let index: u32 = index.parse().ok().filter(|index| *index < port.gid_table_length)?;
        Some(device.transport().gids().into_iter().find(|gid| gid.index == index))
    };
    Some(match file {
        ["state"] => if port.active { "4: ACTIVE" } else { "1: DOWN" }.to_owned(),
        ["phys_state"] => if port.active { "5: LinkUp" } else { "3: Disabled" }.to_owned(),
        ["link_layer"] => "Ethernet".to_owned(),
        ["rate"] => "40 Gb/sec (4X QDR)".to_owned(),
        ["lid" | "sm_lid"] => "0x0".to_owned(),
        ["lid_mask_count" | "sm_sl"] => "0".to_owned(),
        ["pkeys", "0"] => format!("{DEFAULT_PKEY:#06x}"),
        ["gids", index] => words(&gid(index)?.map_or([0; 16], |gid| gid.bytes)),
        ["gid_attrs", "types", index] => match gid(index)??.kind {
            GidKind::RoceV2 => "RoCE v2",
            GidKind::IbOrRoceV1 => "IB/RoCE v1",
        }
        .to_owned(),
        ["gid_attrs", "ndevs", index] => interface(gid(index)??.interface)?,
        _ => return None,
    })
}

/// Bytes in groups of two, as the kernel prints GUIDs and GIDs.
fn words(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

/// The name of a network interface.
fn interface(index: u32) -> Option<String> {
    let mut name = [0 as c_char; libc::IF_NAMESIZE];
    // SAFETY: room for a name.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the call has written a terminated string.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().ok().map(str::to_owned)
}

/// Where sysfs is mounted.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `directory/file` into `buffer`; a trailing newline becomes the terminator. Returns the length, or -1.
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
