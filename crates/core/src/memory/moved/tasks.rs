//! Which threads of the process sleep until an event of userfaultfd(2) is read, and in which system calls, from `/proc/self/task/*`. Without an allocation, and without a lock: one of the sleepers may
//! hold any.

use super::Refusal;
use crate::fork;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A system call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) thread: libc::pid_t,
    pub(super) number: i64,
    pub(super) arguments: [usize; 6],
}

/// The threads of the process.
pub(super) struct Tasks {
    folder: OwnedFd,
    /// Two files of the first thread, which is the only one of many programs: it is looked at even if the process has no free descriptor.
    first: [OwnedFd; 2],
    process: libc::pid_t,
}

/// Files of a thread.
#[derive(Clone, Copy)]
enum File {
    /// The system call that it sleeps in.
    Call = 0,
    /// The function of the kernel that it sleeps in.
    Place = 1,
}

impl File {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Call => b"/syscall\0",
            Self::Place => b"/wchan\0",
        }
    }
}

/// What is in the name of every function of the kernel that waits for the reading of an event.
const EVENT: &[u8] = b"userfaultfd";

type Text = [u8; 256];

impl Tasks {
    /// Makes sure that they can be looked at.
    pub(super) fn open() -> Result<Self, Refusal> {
        let open = |path: &std::ffi::CStr, flags| {
            // SAFETY: a C string.
            let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_RDONLY | libc::O_CLOEXEC) };
            if fd < 0 {
                return Err(Refusal::system("/proc/self"));
            }
            // SAFETY: a fresh descriptor.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        let folder = open(c"/proc/self/task", libc::O_DIRECTORY)?;
        let first = [open(c"/proc/self/syscall", 0)?, open(c"/proc/self/wchan", 0)?];
        for file in &first {
            if read(file.as_raw_fd(), &mut [0; 256]).is_none() {
                return Err(Refusal::system("/proc/self"));
            }
        }
        // SAFETY: asks for a number.
        let process = unsafe { libc::getpid() };
        let tasks = Self { folder, first, process };
        tasks.descriptors().for_each(fork::own_descriptor);
        Ok(tasks)
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        std::iter::once(&self.folder).chain(&self.first).map(AsRawFd::as_raw_fd)
    }

    /// Calls `each` for every thread that sleeps in a system call of those wanted, and there until an event of userfaultfd(2) is read.
    pub(super) fn each(&self, is_wanted: impl Fn(i64) -> bool, mut each: impl FnMut(&Call)) {
        let folder = self.folder.as_raw_fd();
        let mut entries = [0u8; 4096];
        // SAFETY: moves the position of our own descriptor.
        unsafe { libc::syscall(libc::SYS_lseek, folder, 0, libc::SEEK_SET) };
        loop {
            // SAFETY: fills a live local.
            let read =
                unsafe { libc::syscall(libc::SYS_getdents64, folder, entries.as_mut_ptr(), entries.len()) };
            let Some(mut left) = usize::try_from(read).ok().and_then(|read| entries.get(..read)) else {
                return;
            };
            if left.is_empty() {
                return;
            }
            while let Some((name, rest)) = next_name(left) {
                left = rest;
                // Twice: what it does is certain once it has been seen to wait.
                if self.call(name).is_some_and(|call| is_wanted(call.number))
                    && self.waits_for_event(name)
                    && let Some(call) = self.call(name)
                {
                    each(&call);
                }
            }
        }
    }

    fn call(&self, name: &[u8]) -> Option<Call> {
        parse(thread(name)?, self.read(name, File::Call, &mut [0; 256])?)
    }

    fn waits_for_event(&self, name: &[u8]) -> bool {
        let mut text = [0; 256];
        let place = self.read(name, File::Place, &mut text).unwrap_or_default();
        place.windows(EVENT.len()).any(|part| part == EVENT)
    }

    fn read<'a>(&self, name: &[u8], file: File, text: &'a mut Text) -> Option<&'a [u8]> {
        if thread(name)? == self.process {
            return read(self.first[file as usize].as_raw_fd(), text);
        }
        let mut path = [0u8; 32];
        let last = file.name();
        path.get_mut(..name.len())?.copy_from_slice(name);
        path.get_mut(name.len()..name.len() + last.len())?.copy_from_slice(last);
        // SAFETY: the path ends with a zero.
        let file = unsafe {
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            libc::syscall(libc::SYS_openat, self.folder.as_raw_fd(), path.as_ptr(), flags) as RawFd
        };
        if file < 0 {
            return None;
        }
        let text = read(file, text);
        // SAFETY: a descriptor of ours.
        unsafe { libc::syscall(libc::SYS_close, file) };
        text
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.descriptors().for_each(fork::disown_descriptor);
    }
}

fn read(file: RawFd, text: &mut Text) -> Option<&[u8]> {
    // SAFETY: fills live memory of this length.
    let length = unsafe { libc::syscall(libc::SYS_pread64, file, text.as_mut_ptr(), text.len(), 0) };
    usize::try_from(length).ok().filter(|length| *length > 0).and_then(|length| text.get(..length))
}

fn thread(name: &[u8]) -> Option<libc::pid_t> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// The name of the first entry (`struct linux_dirent64`) that is a number, and what follows.
fn next_name(mut entries: &[u8]) -> Option<(&[u8], &[u8])> {
    loop {
        let length = u16::from_ne_bytes(entries.get(16..18)?.try_into().ok()?);
        let (entry, rest) = entries.split_at_checked(length.into())?;
        let name = entry.get(19..)?.split(|byte| *byte == 0).next()?;
        if name.first()?.is_ascii_digit() {
            return Some((name, rest));
        }
        entries = rest;
    }
}

/// `number 0xargument ... 0xstack 0xcode`. None for a thread that runs, or is in no system call.
fn parse(thread: libc::pid_t, text: &[u8]) -> Option<Call> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Call { thread, number, arguments })
}

#[cfg(test)]
mod tests {
    use super::super::userfault::{Event, GUARD_FEATURES, Mode, Userfault};
    use super::*;

    #[test]
    fn lines_are_read() {
        let call = parse(5, b"28 0x7f00 0x1000 0x4 0x0 0x0 0xff 0x7ffe 0x7fff\n").unwrap();
        assert_eq!((call.thread, call.number), (5, 28));
        assert_eq!(call.arguments, [0x7f00, 0x1000, 4, 0, 0, 0xff]);
        for text in [&b"running\n"[..], b"-1 0x1 0x2", b"28 0x1 0x2\n", b""] {
            assert_eq!(parse(5, text), None);
        }
    }

    /// One that sleeps elsewhere is not seen.
    #[test]
    fn a_thread_that_sleeps_until_an_event_is_read_is_seen() {
        const LENGTH: usize = 4096;
        let faults = Userfault::open(GUARD_FEATURES).unwrap();
        let tasks = Tasks::open().unwrap();
        let mut ends = [0; 2];
        // SAFETY: fills a live local; fresh pages.
        let page = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0) as usize
        };
        faults.register(page, LENGTH, Mode::Protected).unwrap();
        let [from, to] = ends;
        std::thread::scope(|scope| {
            // SAFETY: drops the pages of the test.
            scope.spawn(move || unsafe { libc::madvise(page as *mut _, LENGTH, libc::MADV_DONTNEED) });
            scope.spawn(move || {
                let mut byte = 0u8;
                // SAFETY: waits for a byte in a live local until the other end is closed.
                unsafe { libc::read(from, (&raw mut byte).cast(), 1) }
            });
            let mut seen = false;
            while !seen {
                tasks.each(
                    |_| true,
                    |call| {
                        assert_ne!(call.number, libc::SYS_read);
                        seen |= call.number == libc::SYS_madvise && call.arguments[..2] == [page, LENGTH];
                    },
                );
            }
            assert_eq!(faults.read_event(), Some(Event::Removed { start: page, end: page + LENGTH }));
            // SAFETY: a descriptor of the test.
            unsafe { libc::close(to) };
        });
    }
}
