//! userfaultfd(2): pages that a thread that touches them waits for.

use super::{Facilities, Refusal, page_size};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;

/// The guard's features: memory descriptors can be registered, and a thread that moves, drops or unmaps pages
/// waits.
pub(super) const GUARD_FEATURES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 12;
/// A move's features: pages can be moved.
pub(super) const MOVE_FEATURES: u64 = 1 << 16;

const fn command(direction: u64, number: u64, size: usize) -> libc::c_ulong {
    (direction << 30 | (size as u64) << 16 | 0xaa << 8 | number) as libc::c_ulong
}
const NEW: libc::c_ulong = command(0, 0, 0);
const UFFDIO_API: libc::c_ulong = command(3, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: libc::c_ulong = command(3, 0, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::c_ulong = command(2, 1, size_of::<Range>());
const UFFDIO_WAKE: libc::c_ulong = command(2, 2, size_of::<Range>());
const UFFDIO_MOVE: libc::c_ulong = command(3, 5, size_of::<Transfer>());
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
struct Transfer {
    target: u64,
    source: u64,
    length: u64,
    mode: u64,
    done: i64,
}

/// The kind of access for which a thread waits.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// A thread that touches a missing page waits until the page comes.
    Missing = 1,
    /// A thread that writes to a write-protected page waits until it may. No page is ever protected, so no
    /// thread waits.
    Protected = 2,
}

/// An event: a change that a thread has made to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Moved {
        from: usize,
        to: usize,
        length: usize,
    },
    /// The program has given back the bytes of a range (madvise(2)).
    Removed {
        start: usize,
        end: usize,
    },
    Unmapped {
        start: usize,
        end: usize,
    },
    Other,
}

/// One descriptor of userfaultfd(2), for faults of user code: that takes no privilege. When it is closed,
/// everything that was registered with it is as before.
pub(super) struct Userfault {
    descriptor: OwnedFd,
}

impl Userfault {
    /// Opens one that has these features.
    pub(super) fn open(features: u64) -> Result<Self, Refusal> {
        if Facilities::get().without_userfaultfd {
            return Err(Refusal::System("userfaultfd", libc::EPERM));
        }
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: a system call with plain flags.
        let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if fd < 0 {
            let refusal = Refusal::system("userfaultfd");
            // SAFETY: a C string; the command takes flags.
            unsafe {
                let device = libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0);
                if device >= 0 {
                    fd = libc::ioctl(device, NEW, flags);
                    libc::close(device);
                }
            }
            if fd < 0 {
                return Err(refusal);
            }
        }
        // SAFETY: a fresh descriptor.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: the structure that the command takes.
        match unsafe { libc::ioctl(fd, UFFDIO_API, &raw mut api) } {
            0 => Ok(Self { descriptor }),
            _ => Err(Refusal::system("UFFDIO_API")),
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Waits for an event. False if there is none for all that: something else has ended the call.
    pub(super) fn wait(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure, and no time.
        let ready = unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, 0, 0, 0) };
        ready == 1 && poll.revents & libc::POLLIN != 0
    }

    /// The oldest event, whose caller goes on when this returns.
    pub(super) fn read_event(&self) -> Option<Event> {
        let mut message = [0u64; 4];
        // SAFETY: fills a live local of the size of one `struct uffd_msg`.
        let read = unsafe {
            libc::syscall(libc::SYS_read, self.descriptor(), message.as_mut_ptr(), size_of_val(&message))
        };
        let [kind, first, second, third] = message.map(|word| word as usize);
        (read == size_of_val(&message) as libc::c_long).then_some(match kind as u8 {
            0x14 => Event::Moved { from: first, to: second, length: third },
            0x15 => Event::Removed { start: first, end: second },
            0x16 => Event::Unmapped { start: first, end: second },
            _ => Event::Other,
        })
    }

    /// # Safety
    /// `argument` has the type of the command.
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

    /// Lets the threads that wait for the pages try again.
    pub(super) fn wake(&self, start: usize, length: usize) {
        // SAFETY: the structure of the command.
        let _ =
            unsafe { self.control(UFFDIO_WAKE, &mut Range { start: start as u64, length: length as u64 }) };
    }

    /// Moves pages to where they are missing, without waking any thread; pages missing at the source are
    /// passed over. Returns how many bytes it came, and why not further: EBUSY for a page that something else
    /// uses, too.
    ///
    /// The kernel moves within one mapping of its own (EINVAL otherwise). Two mappings may lie side by side
    /// that are one to the program: a heap that grows after fork(2), in the child. So a move that the kernel
    /// refuses is tried with half of the bytes, down to one page.
    pub(super) fn move_pages(&self, target: usize, source: usize, length: usize) -> (usize, Result<(), i32>) {
        let (mut done, mut piece) = (0, length);
        while done < length {
            piece = piece.min(length - done);
            let mut transfer = Transfer {
                target: (target + done) as u64,
                source: (source + done) as u64,
                length: piece as u64,
                mode: DONT_WAKE | ALLOW_HOLES,
                done: 0,
            };
            // SAFETY: the structure of the command.
            let result = unsafe { self.control(UFFDIO_MOVE, &mut transfer) };
            done += transfer.done.max(0) as usize;
            match result {
                // The rest may lie in one mapping.
                Ok(()) => piece = length,
                // Part of it, or none because of something that passes.
                Err(libc::EAGAIN) => {}
                Err(libc::EINVAL) if piece > page_size() => {
                    piece = (piece / 2).next_multiple_of(page_size());
                }
                Err(errno) => return (done, Err(errno)),
            }
        }
        (done, Ok(()))
    }
}
