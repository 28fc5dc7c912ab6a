//! Where relative paths begin, and how the walk looks at the file system. System calls, since the C library's
//! functions are ours here.

use crate::folder::{Folder, Hint, Kind};
use crate::path::{Path, components};
use libc::c_int;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a relative path begins.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// In the process's folder.
    Current,
    /// In the folder of a descriptor.
    Descriptor(c_int),
}

/// What is known of the process's folder.
static CURRENT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
/// The process's folder is elsewhere: only a path that names our files leads to them.
const ELSEWHERE: u8 = 1;
/// The process's folder is among our files, so that any path may lead to others of them.
const AMONG: u8 = 2;

impl Place {
    /// The folder of the descriptor of a call that takes one.
    pub(crate) fn of(descriptor: c_int) -> Self {
        if descriptor == libc::AT_FDCWD { Self::Current } else { Self::Descriptor(descriptor) }
    }

    /// The program begins. A shell says in `PWD` where it starts its programs.
    pub(crate) fn begin(folder: &Folder) {
        // SAFETY: a C string; nobody changes the environment before `main`, and the value is looked at at
        // once.
        let may_be_among = unsafe {
            let value = libc::getenv(c"PWD".as_ptr());
            !value.is_null() && folder.concerns(CStr::from_ptr(value).to_bytes())
        };
        if may_be_among {
            Self::look_up(folder);
        }
    }

    /// The process goes to another folder, by this name or by a descriptor.
    pub(crate) fn moves(folder: &Folder, to: Option<&[u8]>) {
        let before = CURRENT.swap(UNKNOWN, Ordering::Relaxed);
        let may_be_among = to.is_some_and(|path| {
            folder.hint(path) == Hint::Named || before == AMONG && !path.starts_with(b"/")
        });
        if may_be_among {
            Self::look_up(folder);
        }
    }

    /// The C library may have gone to another folder, of ours or of others.
    pub(crate) fn may_have_moved(folder: &Folder) {
        let _errno = Errno::keep();
        CURRENT.store(UNKNOWN, Ordering::Relaxed);
        Self::look_up(folder);
    }

    #[cold]
    #[inline(never)]
    fn look_up(folder: &Folder) {
        let mut name = Path::new();
        if let Some(length) = Self::Current.name(name.room(0)) {
            name.has(length);
            Self::Current.is_at(folder, name.after(0));
        }
    }

    /// Whether a relative path may lead to our files.
    pub(crate) fn may_matter(self, folder: &Folder, path: &[u8]) -> bool {
        match self {
            Self::Current => match CURRENT.load(Ordering::Relaxed) {
                AMONG => true,
                ELSEWHERE => folder.hint(path) == Hint::Named,
                _ => folder.hint(path) != Hint::None,
            },
            // A path of `..` alone belongs to a walk that returns (fts).
            Self::Descriptor(_) => match folder.hint(path) {
                Hint::Named => true,
                Hint::Up => components(path).any(|part| part != b".."),
                Hint::None => false,
            },
        }
    }

    /// Writes the name of the folder, as the system has it, into the room; its length.
    pub(crate) fn name(self, room: &mut [u8]) -> Option<usize> {
        let length = match self {
            Self::Current => {
                // SAFETY: the room is there, and as long.
                let length = unsafe { libc::syscall(libc::SYS_getcwd, room.as_mut_ptr(), room.len()) };
                // With the terminator.
                length - 1
            }
            Self::Descriptor(descriptor) => {
                let link = descriptor_link(descriptor)?;
                // SAFETY: a C string, and the room is there, and as long.
                unsafe {
                    libc::syscall(
                        libc::SYS_readlinkat,
                        libc::AT_FDCWD,
                        link.as_ptr(),
                        room.as_mut_ptr(),
                        room.len(),
                    )
                }
            }
        };
        let length = usize::try_from(length).ok()?;
        room.get(..length)?.starts_with(b"/").then_some(length)
    }

    /// The folder has this name: keeps in mind which of the next paths must be looked at.
    pub(crate) fn is_at(self, folder: &Folder, name: &[u8]) {
        if matches!(self, Self::Descriptor(_)) {
            return;
        }
        let now = if folder.shown(name).is_some() { AMONG } else { ELSEWHERE };
        // Not if the process has moved meanwhile.
        let _ = CURRENT.compare_exchange(UNKNOWN, now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The link that says where a descriptor leads.
fn descriptor_link(descriptor: c_int) -> Option<[u8; 25]> {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut number = u32::try_from(descriptor).ok()?;
    let digits = link.get_mut(14..14 + number.checked_ilog10().unwrap_or_default() as usize + 1)?;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    Some(link)
}

/// Reads the link at a path, if it is one.
pub(crate) fn look(path: &CStr, room: &mut [u8]) -> Kind {
    let (room, size) = (room.as_mut_ptr(), room.len());
    // SAFETY: a C string, and the room is there, and as long.
    let length = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), room, size) };
    if let Ok(length) = usize::try_from(length) {
        return Kind::Link(length);
    }
    // SAFETY: the thread's own errno.
    match unsafe { *libc::__errno_location() } {
        libc::ENOENT | libc::ENOTDIR => Kind::Nothing,
        _ => Kind::Other,
    }
}

/// Reads a file into memory; what does not fit stays away.
pub(crate) fn read(path: &CStr, memory: &mut [u8]) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string, a descriptor that was just opened, and memory that is there, and as long.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
        if descriptor >= 0 {
            libc::syscall(libc::SYS_read, descriptor, memory.as_mut_ptr(), memory.len());
            libc::syscall(libc::SYS_close, descriptor);
        }
    }
}

/// The thread's errno, which gets its value back.
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) fn keep() -> Self {
        // SAFETY: the thread's own errno.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
