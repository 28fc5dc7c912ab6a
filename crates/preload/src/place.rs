//! Where relative paths begin, and how the walk looks at the file system. System calls, since the C library's functions are ours here.

use crate::folder::{Folder, Hint, Kind};
use crate::path::{Path, components};
use libc::c_int;
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
/// It is elsewhere: only a path that names our files leads to them.
const ELSEWHERE: u8 = 1;
/// It may be in `/sys` or `/dev`, so that any path may lead to our files.
const NEAR: u8 = 2;

impl Place {
    /// The folder of the descriptor of a call that takes one.
    pub(crate) fn of(descriptor: c_int) -> Self {
        if descriptor == libc::AT_FDCWD { Self::Current } else { Self::Descriptor(descriptor) }
    }

    /// The program begins. A shell says in `PWD` where it starts its programs.
    pub(crate) fn begin() {
        // SAFETY: a C string; nobody changes the environment before `main`, and the value is looked at at once.
        let near = unsafe {
            let value = libc::getenv(c"PWD".as_ptr());
            !value.is_null() && is_near(std::ffi::CStr::from_ptr(value).to_bytes())
        };
        CURRENT.store(if near { NEAR } else { UNKNOWN }, Ordering::Relaxed);
    }

    /// The process goes to another folder, by this name or by a descriptor.
    pub(crate) fn moves(to: Option<&[u8]>) {
        let before = CURRENT.load(Ordering::Relaxed);
        let now = match to {
            Some(path) if is_near(path) => NEAR,
            Some(path) if !path.starts_with(b"/") && before == NEAR => NEAR,
            _ => UNKNOWN,
        };
        CURRENT.store(now, Ordering::Relaxed);
    }

    /// Whether a relative path may lead to our files.
    pub(crate) fn may_matter(self, path: &[u8]) -> bool {
        match (self, Folder::hint(path)) {
            (_, Hint::Named) => true,
            (Self::Current, hint) => match CURRENT.load(Ordering::Relaxed) {
                NEAR => true,
                ELSEWHERE => false,
                _ => hint == Hint::Up,
            },
            // Who goes up from folder to folder, and nowhere else, goes back to where he came from (fts).
            (Self::Descriptor(_), hint) => hint == Hint::Up && components(path).any(|part| part != b".."),
        }
    }

    /// The name of the folder, as the system has it.
    pub(crate) fn name(self) -> Option<Path> {
        let mut name = Path::new();
        let (room, size) = name.room();
        let length = match self {
            Self::Current => {
                // SAFETY: the room is there, and as long.
                let length = unsafe { libc::syscall(libc::SYS_getcwd, room, size) };
                // With the terminator.
                length - 1
            }
            Self::Descriptor(descriptor) => {
                let link = descriptor_link(descriptor)?;
                // SAFETY: a C string, and the room is there, and as long.
                unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), room, size) }
            }
        };
        name.has(usize::try_from(length).ok().filter(|length| *length > 0)?);
        name.as_bytes().starts_with(b"/").then_some(name)
    }

    /// The folder has this name: keeps in mind that the next path need not be looked at.
    pub(crate) fn is_at(self, folder: &Folder, name: &[u8]) {
        if matches!(self, Self::Current) && folder.shown(name).is_none() && !is_near(name) {
            // Not if the process has moved meanwhile into a folder that is near.
            let _ = CURRENT.compare_exchange(UNKNOWN, ELSEWHERE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

fn is_near(path: &[u8]) -> bool {
    let parts = [&b"/sys"[..], b"/dev"];
    let is_in =
        |part: &[u8]| path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
    path == b"/" || parts.into_iter().any(is_in)
}

/// The link that says where a descriptor leads.
fn descriptor_link(descriptor: c_int) -> Option<Path> {
    let mut digits = [0; 10];
    let mut number = u32::try_from(descriptor).ok()?;
    let mut start = digits.len();
    loop {
        start = start.checked_sub(1)?;
        *digits.get_mut(start)? = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    Path::of(&[b"/proc/self/fd/", digits.get(start..)?])
}

/// Reads the link at a path, if it is one.
pub(crate) fn look(path: &Path, target: &mut Path) -> Kind {
    let (room, size) = target.room();
    // SAFETY: a C string, and the room is there, and as long.
    let length = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), room, size) };
    if let Ok(length) = usize::try_from(length) {
        target.has(length);
        return Kind::Link;
    }
    target.has(0);
    // SAFETY: the thread's own errno.
    match unsafe { *libc::__errno_location() } {
        libc::ENOENT | libc::ENOTDIR => Kind::Nothing,
        _ => Kind::Other,
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
