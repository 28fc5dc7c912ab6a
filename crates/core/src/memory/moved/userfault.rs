//! userfaultfd(2): pages that whoever touches them waits for.

use super::Refusal;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;

/// Pages can be protected against writing.
pub(super) const FEATURE_PROTECT: u64 = 1;
/// So can those of memory descriptors.
pub(super) const FEATURE_PROTECT_FILES: u64 = 1 << 12;
/// And pages that nobody has touched yet.
pub(super) const FEATURE_PROTECT_UNPOPULATED: u64 = 1 << 13;
/// Pages can be moved.
pub(super) const FEATURE_MOVE: u64 = 1 << 16;
const WANTED: u64 = FEATURE_PROTECT | FEATURE_PROTECT_FILES | FEATURE_PROTECT_UNPOPULATED | FEATURE_MOVE;

const fn command(direction: u64, number: u64, size: usize) -> libc::c_ulong {
    (direction << 30 | (size as u64) << 16 | 0xaa << 8 | number) as libc::c_ulong
}
const NEW: libc::c_ulong = command(0, 0, 0);
const UFFDIO_API: libc::c_ulong = command(3, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: libc::c_ulong = command(3, 0, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::c_ulong = command(2, 1, size_of::<Range>());
const UFFDIO_WAKE: libc::c_ulong = command(2, 2, size_of::<Range>());
const UFFDIO_COPY: libc::c_ulong = command(3, 3, size_of::<Transfer>());
const UFFDIO_MOVE: libc::c_ulong = command(3, 5, size_of::<Transfer>());
const UFFDIO_WRITEPROTECT: libc::c_ulong = command(3, 6, size_of::<Protect>());
const DONT_WAKE: u64 = 1;
const ALLOW_HOLES: u64 = 2;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Protect {
    range: Range,
    mode: u64,
}

#[repr(C)]
struct Transfer {
    target: u64,
    source: u64,
    length: u64,
    mode: u64,
    done: i64,
}

/// What whoever touches the pages waits for.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// That missing pages come.
    Missing = 1,
    /// That pages may be written.
    Protected = 2,
}

/// One descriptor of userfaultfd(2). When it is closed, everything that was registered with it is as before.
pub(super) struct Userfault {
    descriptor: OwnedFd,
    features: u64,
}

impl Userfault {
    /// Opens one for faults of user code and, if asked for, of the kernel, which takes a privilege or the right to open `/dev/userfaultfd`.
    pub(super) fn open(kernel_faults: bool, with_move: bool) -> Result<Self, Refusal> {
        let open = || {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            let flags = if kernel_faults { flags } else { flags | USER_MODE_ONLY };
            // SAFETY: a system call with plain flags.
            let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
            if fd < 0 && kernel_faults {
                // SAFETY: a C string; the command takes flags.
                unsafe {
                    let device = libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0);
                    if device >= 0 {
                        fd = libc::ioctl(device, NEW, flags);
                        libc::close(device);
                    }
                }
            }
            if fd < 0 {
                return Err(Refusal::system("userfaultfd"));
            }
            // SAFETY: a fresh descriptor.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        // Asked first without any feature, it says which there are.
        let mut features = 0;
        for _ in 0..2 {
            let descriptor = open()?;
            let mut api = Api { api: API, features, ioctls: 0 };
            // SAFETY: the structure that the command takes.
            if unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, &raw mut api) } != 0 {
                return Err(Refusal::system("UFFDIO_API"));
            }
            if features != 0 || api.features & WANTED == 0 {
                return Ok(Self { descriptor, features });
            }
            features = api.features & if with_move { WANTED } else { WANTED & !FEATURE_MOVE };
        }
        Err(Refusal::System("UFFDIO_API", libc::EINVAL))
    }

    pub(super) fn features(&self) -> u64 {
        self.features
    }

    /// # Safety
    /// `argument` is what the command takes.
    unsafe fn control<T>(&self, command: libc::c_ulong, argument: &mut T) -> Result<(), i32> {
        // SAFETY: a live structure, of the right kind by the caller's promise.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), command, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    pub(super) fn register(&self, start: usize, length: usize, mode: Mode) -> Result<(), i32> {
        let range = Range { start: start as u64, length: length as u64 };
        // SAFETY: the structure of the command.
        unsafe { self.control(UFFDIO_REGISTER, &mut Register { range, mode: mode as u64, ioctls: 0 }) }
    }

    /// Ends a registration and the protection of its pages. Without effect where there is none.
    pub(super) fn unregister(&self, start: usize, length: usize) {
        // SAFETY: the structure of the command.
        let _ = unsafe {
            self.control(UFFDIO_UNREGISTER, &mut Range { start: start as u64, length: length as u64 })
        };
    }

    /// Lets whoever waits for the pages try again.
    pub(super) fn wake(&self, start: usize, length: usize) {
        // SAFETY: the structure of the command.
        let _ =
            unsafe { self.control(UFFDIO_WAKE, &mut Range { start: start as u64, length: length as u64 }) };
    }

    /// Whoever writes the pages waits from now on.
    pub(super) fn protect(&self, start: usize, length: usize) -> Result<(), i32> {
        let range = Range { start: start as u64, length: length as u64 };
        // SAFETY: the structure of the command.
        unsafe { self.control(UFFDIO_WRITEPROTECT, &mut Protect { range, mode: 1 }) }
    }

    /// Moves pages to where they are missing, without waking anybody; what is missing at the source is passed over. Returns how many bytes it
    /// came, and why not further: EBUSY for a page that something else uses, too.
    pub(super) fn move_pages(&self, target: usize, source: usize, length: usize) -> (usize, Result<(), i32>) {
        self.transfer(UFFDIO_MOVE, DONT_WAKE | ALLOW_HOLES, target, source, length)
    }

    /// Copies pages to where they are missing, without waking anybody.
    pub(super) fn copy_pages(&self, target: usize, source: usize, length: usize) -> (usize, Result<(), i32>) {
        self.transfer(UFFDIO_COPY, DONT_WAKE, target, source, length)
    }

    fn transfer(
        &self,
        command: libc::c_ulong,
        mode: u64,
        target: usize,
        source: usize,
        length: usize,
    ) -> (usize, Result<(), i32>) {
        let mut done = 0;
        while done < length {
            let mut transfer = Transfer {
                target: (target + done) as u64,
                source: (source + done) as u64,
                length: (length - done) as u64,
                mode,
                done: 0,
            };
            // SAFETY: the structure of both commands.
            let result = unsafe { self.control(command, &mut transfer) };
            done += transfer.done.max(0) as usize;
            match result {
                Ok(()) => {}
                // Part of it, or none because of something that passes.
                Err(libc::EAGAIN) => {}
                Err(errno) => return (done, Err(errno)),
            }
        }
        (done, Ok(()))
    }
}
