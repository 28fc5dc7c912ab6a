//! Which threads of the process sleep until an event of userfaultfd(2) is read, and in which system calls,
//! from `/proc/self/task/*`. Without an allocation, and without a lock: one of the sleepers may hold any.

use super::Refusal;
use crate::fork;
use crate::setting;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A system call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: [usize; 6],
}

/// The state of a thread.
enum State {
    /// On a processor, or about to be.
    Runs,
    /// Asleep outside of a system call.
    Sleeps,
    Calls(Call),
}

/// Threads that ran when they were looked at. One of them may wait for an event, and have been woken for a
/// moment, because the event of another was read. It takes less than [`Runners::ENOUGH`] of processor time to
/// sleep again. A thread that has run for longer does something else.
pub(super) struct Runners {
    /// Made when the guard starts, which allocates nothing later.
    all: Box<[Runner]>,
    count: usize,
    /// In the look that is under way, one ran that has not run for long enough.
    may_wait: bool,
}

/// Room for a list of threads, so many that few programs have more.
pub(super) type Entries = Box<[u8]>;

pub(super) fn entries() -> Entries {
    vec![0; 64 << 10].into()
}

#[derive(Clone, Copy)]
struct Runner {
    thread: libc::pid_t,
    /// The thread's processor time at the last look, and the part of it that counts, in nanoseconds.
    time: u64,
    counted: u64,
}

impl Runners {
    const MOST: usize = 2048;
    /// About a hundred times as long as it takes.
    const ENOUGH: u64 = 200_000;
    /// Counted between two looks at most: a processor that is taken away from its virtual machine for a while
    /// counts as processor time, too.
    const STEP: u64 = 20_000;

    pub(super) fn nobody() -> Self {
        let runner = Runner { thread: 0, time: 0, counted: 0 };
        Self { all: vec![runner; Self::MOST].into(), count: 0, may_wait: false }
    }

    /// Memory that they use, as address and length.
    pub(super) fn own(&self) -> (usize, usize) {
        (self.all.as_ptr() as usize, size_of_val(&*self.all))
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        (self.count, self.may_wait) = (0, false);
    }

    /// Whether one of the threads that ran in the last look may wait for an event.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait
    }

    fn note(&mut self, thread: libc::pid_t) {
        // It has ended.
        let Some(time) = processor_time(thread) else { return };
        self.count_time(thread, time);
    }

    fn count_time(&mut self, thread: libc::pid_t, time: u64) {
        let known = self.all.iter_mut().take(self.count).find(|runner| runner.thread == thread);
        let counted = match known {
            Some(runner) => {
                runner.counted += time.saturating_sub(runner.time).min(Self::STEP);
                runner.time = time;
                runner.counted
            }
            None => {
                // So many do not run at once; and the guard is not to wait for ever.
                let Some(place) = self.all.get_mut(self.count) else { return };
                *place = Runner { thread, time, counted: 0 };
                self.count += 1;
                0
            }
        };
        self.may_wait |= counted < Self::ENOUGH;
    }
}

/// Processor time of a thread of this process, in nanoseconds.
fn processor_time(thread: libc::pid_t) -> Option<u64> {
    // As pthread_getcpuclockid(3) makes it: CPUCLOCK_SCHED of one thread.
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a live structure.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The threads of the process.
pub(super) struct Tasks {
    folder: OwnedFd,
    /// Two files of the first thread, which is the only one of many programs: it is looked at even if the
    /// process has no free descriptor.
    first: [OwnedFd; 2],
    process: libc::pid_t,
    /// Off in tests: as on a kernel that does not say where threads sleep.
    has_places: bool,
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

/// A part of the name of every function of the kernel that waits for the reading of an event.
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
        let has_places = !setting::without("wchan");
        let tasks = Self { folder, first, process, has_places };
        tasks.descriptors().for_each(fork::own_descriptor);
        Ok(tasks)
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        std::iter::once(&self.folder).chain(&self.first).map(AsRawFd::as_raw_fd)
    }

    /// Calls `each` for every thread that sleeps in a system call of those wanted, and there until an event
    /// of userfaultfd(2) is read; notes the other threads that run.
    // Apart from the others, so that no frame is large.
    #[inline(never)]
    pub(super) fn each(
        &self,
        entries: &mut Entries,
        is_wanted: impl Fn(i64) -> bool,
        mut each: impl FnMut(&Call),
        runners: &mut Runners,
    ) {
        runners.may_wait = false;
        let before = self.count();
        let (mut pieces, mut count) = (0, 0);
        // SAFETY: asks for a number.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
        let folder = self.folder.as_raw_fd();
        // SAFETY: moves the position of our own descriptor.
        unsafe { libc::syscall(libc::SYS_lseek, folder, 0, libc::SEEK_SET) };
        loop {
            let (at, length) = (entries.as_mut_ptr(), entries.len());
            // SAFETY: fills live memory of this length.
            let read = unsafe { libc::syscall(libc::SYS_getdents64, folder, at, length) };
            let read = usize::try_from(read).ok().and_then(|read| entries.get(..read));
            let mut left = read.unwrap_or_default();
            if left.is_empty() {
                break;
            }
            pieces += 1;
            while let Some((name, rest)) = next_name(left) {
                left = rest;
                count += 1;
                let Some(thread) = thread(name).filter(|thread| *thread != own) else { continue };
                match self.look_at(name, &is_wanted) {
                    Some(State::Calls(call)) => each(&call),
                    Some(State::Runs) => runners.note(thread),
                    // It sleeps elsewhere, or has ended.
                    Some(State::Sleeps) | None => {}
                }
            }
        }
        // Where threads end between two parts of the list, the kernel may pass over others: once more, then.
        runners.may_wait |= pieces != 1 && (before != Some(count) || self.count() != Some(count));
    }

    /// How many threads there are.
    fn count(&self) -> Option<usize> {
        // SAFETY: all zeros is a valid stat, filled by the call.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            // Two links are the folder's own.
            (libc::fstat(self.folder.as_raw_fd(), &raw mut status) == 0)
                .then(|| (status.st_nlink as usize).saturating_sub(2))
        }
    }

    /// A call only if it is of those wanted and sleeps until an event is read.
    #[inline(never)]
    fn look_at(&self, name: &[u8], is_wanted: impl Fn(i64) -> bool) -> Option<State> {
        let first = self.state(name)?;
        let State::Calls(call) = first else { return Some(first) };
        if !is_wanted(call.number) {
            return Some(State::Sleeps);
        }
        let waits = self.waits_for_event(name);
        // Twice: its call is certain once the thread has been seen to wait. A thread that was between two
        // places may have begun to wait meanwhile.
        match self.state(name)? {
            State::Calls(again) if waits && again == call => Some(State::Calls(call)),
            _ if waits => Some(State::Runs),
            State::Calls(again) if again == call && !self.waits_for_event(name) => Some(State::Sleeps),
            _ => Some(State::Runs),
        }
    }

    fn state(&self, name: &[u8]) -> Option<State> {
        parse(self.read(name, File::Call, &mut [0; 256])?)
    }

    fn waits_for_event(&self, name: &[u8]) -> bool {
        if !self.has_places {
            return false;
        }
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

/// The name of the first entry (`struct linux_dirent64`) that is a number, and the entries behind it.
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

/// `running`, or `-1 ...`, or `number 0xargument ... 0xstack 0xcode`.
fn parse(text: &[u8]) -> Option<State> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number = match words.next()? {
        "running" => return Some(State::Runs),
        "-1" => return Some(State::Sleeps),
        number => number.parse().ok()?,
    };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(State::Calls(Call { number, arguments }))
}

#[cfg(test)]
mod tests {
    use super::super::userfault::{Event, GUARD_FEATURES, Mode, Userfault};
    use super::*;
    use crate::memory::until::until;

    #[test]
    fn lines_are_read() {
        let Some(State::Calls(call)) = parse(b"28 0x7f00 0x1000 0x4 0x0 0x0 0xff 0x7ffe 0x7fff\n") else {
            panic!("a call")
        };
        assert_eq!((call.number, call.arguments), (28, [0x7f00, 0x1000, 4, 0, 0, 0xff]));
        assert!(matches!(parse(b"running\n"), Some(State::Runs)));
        assert!(matches!(parse(b"-1 0x1 0x2"), Some(State::Sleeps)));
        for text in [&b"28 0x1 0x2\n"[..], b"", b"28"] {
            assert!(parse(text).is_none());
        }
    }

    /// Threads that run are waited for until they have run for long enough, little by little.
    #[test]
    fn a_running_thread_may_wait_until_it_has_run_for_a_while() {
        let mut runners = Runners::nobody();
        let mut looks = 0;
        loop {
            runners.may_wait = false;
            // A second of processor time at each look, of which little counts.
            runners.count_time(7, 1_000_000_000 * looks);
            if !runners.may_wait() {
                break;
            }
            looks += 1;
        }
        assert_eq!(looks, Runners::ENOUGH / Runners::STEP);
        // It gets no processor.
        for _ in 0..100 {
            runners.may_wait = false;
            runners.count_time(8, 5);
            assert!(runners.may_wait());
        }
        // SAFETY: asks for a number.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
        let before = processor_time(own).unwrap();
        assert!(until(|| processor_time(own).unwrap() != before));
        assert_eq!(processor_time(1), None, "of another process");
    }

    /// A thread that sleeps elsewhere is not seen.
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
            let (mut seen, mut runners, mut entries) = (false, Runners::nobody(), entries());
            let is_seen = until(|| {
                tasks.each(
                    &mut entries,
                    |_| true,
                    |call| {
                        assert_ne!(call.number, libc::SYS_read);
                        seen |= call.number == libc::SYS_madvise && call.arguments[..2] == [page, LENGTH];
                    },
                    &mut runners,
                );
                seen
            });
            // Both threads end, also after a failure.
            let event = faults.read_event();
            // SAFETY: a descriptor of the test.
            unsafe { libc::close(to) };
            assert_eq!((is_seen, event), (true, Some(Event::Removed { start: page, end: page + LENGTH })));
        });
    }
}
