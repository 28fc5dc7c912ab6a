//! Which threads of this process sleep until a descriptor is readable: the kernel tells of each thread in
//! which system call it is.

use adverb_core::memory::copy_from;
use std::fs;

/// The calling thread.
pub(super) fn thread() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Whether this process has the thread.
pub(super) fn is_there(thread: i32) -> bool {
    std::path::Path::new(&format!("/proc/self/task/{thread}")).exists()
}

/// Whether a thread sleeps until this descriptor is readable.
pub(super) fn waits_for(descriptor: i32) -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    let own = thread().to_string();
    threads.flatten().filter(|entry| entry.file_name().to_str() != Some(own.as_str())).any(|entry| {
        let call = fs::read_to_string(entry.path().join("syscall")).unwrap_or_default();
        sleeps(&call).is_some_and(|sleep| sleep.covers(descriptor))
    })
}

/// A system call that waits for descriptors.
#[derive(Debug, PartialEq, Eq)]
enum Sleep {
    Poll { list: usize, count: usize },
    Select { most: usize, set: usize },
    Epoll(i32),
    Read(i32),
}

/// The system call of a thread, out of its line in /proc.
fn sleeps(line: &str) -> Option<Sleep> {
    let mut words = line.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || {
        let word = words.next()?.trim_start_matches("0x");
        usize::from_str_radix(word, 16).ok()
    };
    let (first, second) = (argument()?, argument()?);
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_poll => return Some(Sleep::Poll { list: first, count: second }),
        libc::SYS_select => return Some(Sleep::Select { most: first, set: second }),
        libc::SYS_epoll_wait => return Some(Sleep::Epoll(first as i32)),
        _ => {}
    }
    match number {
        libc::SYS_ppoll => Some(Sleep::Poll { list: first, count: second }),
        libc::SYS_pselect6 => Some(Sleep::Select { most: first, set: second }),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(Sleep::Epoll(first as i32)),
        libc::SYS_read => Some(Sleep::Read(first as i32)),
        _ => None,
    }
}

impl Sleep {
    fn covers(&self, descriptor: i32) -> bool {
        match *self {
            Self::Read(read) => read == descriptor,
            Self::Epoll(set) => fs::read_to_string(format!("/proc/self/fdinfo/{set}"))
                .is_ok_and(|text| text.lines().any(|line| is_watched(line, descriptor))),
            Self::Select { most, set } => {
                let Ok(place) = usize::try_from(descriptor) else { return false };
                let mut byte = [0];
                // SAFETY: the sleeping thread reads there; if it wakes meanwhile, the copy finds something
                // else, or fails.
                place < most
                    && unsafe { copy_from(&mut byte, set + place / 8) }.is_ok()
                    && byte[0] & 1 << (place % 8) != 0
            }
            Self::Poll { list, count } => (0..count.min(4096)).any(|index| {
                let mut entry = [0; size_of::<libc::pollfd>()];
                // SAFETY: as above.
                let read = unsafe { copy_from(&mut entry, list + index * size_of::<libc::pollfd>()) };
                let number = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
                let events = i16::from_ne_bytes([entry[4], entry[5]]);
                read.is_ok() && number == descriptor && events & libc::POLLIN != 0
            }),
        }
    }
}

/// Whether a line about an epoll set is of this descriptor, and of its bytes that can be read.
fn is_watched(line: &str, descriptor: i32) -> bool {
    let mut words = line.split_whitespace();
    let mut after = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
    let number = after("tfd:").and_then(|word| word.parse::<i32>().ok());
    let events = after("events:").and_then(|word| u32::from_str_radix(word, 16).ok());
    number == Some(descriptor) && events.is_some_and(|events| events & libc::EPOLLIN as u32 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_line_of_the_kernel_is_read() {
        let line = format!("{} 0x7ffc 0x2 0x514 0x0 0x0 0x0 0x7ffd 0x7f00\n", libc::SYS_ppoll);
        assert_eq!(sleeps(&line), Some(Sleep::Poll { list: 0x7ffc, count: 2 }));
        assert_eq!(sleeps(&format!("{} 0x3 0x0 0x1", libc::SYS_read)), Some(Sleep::Read(3)));
        assert!(sleeps("running\n").is_none() && sleeps("-1 0x0 0x0").is_none());
    }

    #[test]
    fn a_descriptor_of_an_epoll_set_counts_while_it_is_watched() {
        let line = "tfd:        5 events:       19 data:      5  pos:0 ino:2 sdev:e";
        assert!(is_watched(line, 5) && !is_watched(line, 4));
        assert!(!is_watched("tfd:        5 events: 40000000 data:      5", 5), "it has had its one event");
        assert!(!is_watched("pos:\t0", 0));
    }

    #[test]
    fn a_thread_that_sleeps_for_a_descriptor_is_found() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (other, _kept) = std::io::pipe().expect("a pipe");
        let descriptor = reader.as_raw_fd();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut list = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
                // SAFETY: a live local.
                unsafe { libc::poll(list.as_mut_ptr(), 1, 60_000) };
            });
            let began = std::time::Instant::now();
            while !waits_for(descriptor) {
                assert!(began.elapsed().as_secs() < 60, "the thread is not found");
                std::thread::yield_now();
            }
            assert!(!waits_for(other.as_raw_fd()));
            drop(writer);
        });
    }
}
