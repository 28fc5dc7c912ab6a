//! Which system calls the threads of the process sleep in, from `/proc/self/task/*/syscall`. Without an allocation, and without a lock: one of the sleepers may
//! hold any.

use super::Refusal;
use crate::fork;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A system call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: [usize; 6],
}

/// The threads of the process.
pub(super) struct Tasks {
    folder: OwnedFd,
    /// Of the first thread, which is the only one of many programs: it is looked at even if the process has no free descriptor.
    first: OwnedFd,
    process: libc::pid_t,
}

impl Tasks {
    /// Makes sure that they can be looked at.
    pub(super) fn open() -> Result<Self, Refusal> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let folder = unsafe { libc::open(c"/proc/self/task".as_ptr(), flags) };
        if folder < 0 {
            return Err(Refusal::system("/proc/self/task"));
        }
        // SAFETY: a fresh descriptor.
        let folder = unsafe { OwnedFd::from_raw_fd(folder) };
        // SAFETY: a C string.
        let first = unsafe { libc::open(c"/proc/self/syscall".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if first < 0 {
            return Err(Refusal::system("/proc/self/syscall"));
        }
        // SAFETY: a fresh descriptor.
        let first = unsafe { OwnedFd::from_raw_fd(first) };
        if read(first.as_raw_fd(), &mut [0; 256]).is_none() {
            return Err(Refusal::system("/proc/self/syscall"));
        }
        [&folder, &first].into_iter().for_each(|own| fork::own_descriptor(own.as_raw_fd()));
        // SAFETY: asks for a number.
        let process = unsafe { libc::getpid() };
        Ok(Self { folder, first, process })
    }

    /// Calls `each` for every thread that sleeps in a system call.
    pub(super) fn each(&self, mut each: impl FnMut(&Call)) {
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
                let mut text = [0; 256];
                if let Some(call) = self.read(name, &mut text).and_then(parse) {
                    each(&call);
                }
            }
        }
    }

    fn read<'a>(&self, name: &[u8], text: &'a mut [u8; 256]) -> Option<&'a [u8]> {
        let digits = std::str::from_utf8(name).ok()?;
        if digits.parse() == Ok(self.process) {
            return read(self.first.as_raw_fd(), text);
        }
        let mut path = [0u8; 32];
        let last = b"/syscall\0";
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
        [&self.folder, &self.first].into_iter().for_each(|own| fork::disown_descriptor(own.as_raw_fd()));
    }
}

fn read(file: RawFd, text: &mut [u8; 256]) -> Option<&[u8]> {
    // SAFETY: fills live memory of this length.
    let length = unsafe { libc::syscall(libc::SYS_pread64, file, text.as_mut_ptr(), text.len(), 0) };
    usize::try_from(length).ok().filter(|length| *length > 0).and_then(|length| text.get(..length))
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
fn parse(text: &[u8]) -> Option<Call> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Call { number, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let call = parse(b"28 0x7f00 0x1000 0x4 0x0 0x0 0xff 0x7ffe 0x7fff\n").unwrap();
        assert_eq!((call.number, call.arguments), (28, [0x7f00, 0x1000, 4, 0, 0, 0xff]));
        for text in [&b"running\n"[..], b"-1 0x1 0x2", b"28 0x1 0x2\n", b""] {
            assert_eq!(parse(text), None);
        }
    }

    #[test]
    fn a_sleeping_thread_is_seen() {
        let mut ends = [0; 2];
        // SAFETY: fills a live local.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let [from, to] = ends;
        let buffer = [0u8; 77];
        let tasks = Tasks::open().unwrap();
        std::thread::scope(|scope| {
            // SAFETY: fills nobody's memory: the other end is closed first.
            scope.spawn(move || unsafe { libc::read(from, buffer.as_ptr().cast_mut().cast(), 77) });
            let mut seen = false;
            while !seen {
                tasks.each(|call| {
                    seen |= call.number == libc::SYS_read
                        && call.arguments[0] == from as usize
                        && call.arguments[2] == 77;
                });
            }
            // SAFETY: a descriptor of the test.
            unsafe { libc::close(to) };
        });
    }
}
