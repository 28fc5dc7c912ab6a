//! Memory of another process of this host, to and from which the kernel copies at this one's request: the way
//! to memory that cannot be mapped.
//!
//! Short pieces go by the memory file of the other process (/proc/PID/mem). It belongs to that address space
//! and to no other, so a program that takes over the process (execve(2)) or its number is out of reach.
//! Longer pieces are faster by process_vm_writev(2) and process_vm_readv(2), which name a process by number.
//! So each such call begins with a word at the *gate* ([`gate`]), a page of the other process at an address
//! that it has drawn by lot. Where the gate is missing the kernel stops there, before it has touched anything
//! else.
//!
//! The last bytes become visible last: programs poll the last byte, and the kernel promises no order within
//! one buffer.

use super::keys::Span;
use super::moved::page_size;
pub use super::ways::SHORT;
use super::ways::{self, Call};
use crate::descriptor;
use crate::fork::{self, ForkGeneration};
use crate::log;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The bytes that become visible last.
const TAIL: usize = 8;
/// The word at the gate.
const WORD: usize = 8;

/// The kernel has not copied, or not all of it. It is not known which bytes of the other memory have been
/// touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRefusal;

/// Another process, or this one, as far as copies need it. Thread-safe. A copy touches memory of that process
/// alone, also if its owner lies about it.
#[derive(Debug)]
pub struct Process {
    number: libc::pid_t,
    file: Option<ForkClosedFile>,
    gate: Option<u64>,
    /// The system does not permit copies: no thread asks again.
    is_closed: AtomicBool,
    /// The list of its mappings, once a thread has asked for it.
    maps: OnceLock<Option<ForkClosedFile>>,
}

/// A file of ours, which a child of fork closes.
#[derive(Debug)]
struct ForkClosedFile(File);

impl ForkClosedFile {
    fn new(file: File) -> Self {
        fork::own_descriptor(file.as_raw_fd());
        Self(file)
    }
}

impl Drop for ForkClosedFile {
    fn drop(&mut self) {
        fork::disown_descriptor(self.0.as_raw_fd());
    }
}

/// A direction, seen from here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Them,
    Us,
}

fn iovec(base: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base as usize as *mut libc::c_void, iov_len: length }
}

impl Process {
    /// The process with this number, which has the word `mark` at `mark_at`, and its gate at `gate` (0: it
    /// has none). None if the system gives no way.
    pub fn open(number: libc::pid_t, (mark_at, mark): (u64, u64), gate: u64) -> Option<Self> {
        if number <= 0 || !ways::has_kernel_copy() {
            return None;
        }
        let name = format!("/proc/{number}/mem");
        let open = || {
            File::options().read(true).write(true).custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY).open(name)
        };
        // Marked at once: the reads below may take as long as the other process wishes, and a child of fork
        // is not to have the file.
        let file = if ways::has_memory_file() { open().ok().map(ForkClosedFile::new) } else { None };
        let mut process =
            Self { number, file, gate: None, is_closed: AtomicBool::new(false), maps: OnceLock::new() };
        let mut found = [0; WORD];
        // Another process may have the number by now. One that is related has the mark, but not the gate.
        let mut gate_word = [0; WORD];
        let reads =
            |at, word: &mut [u8; WORD]| process.by_file(To::Us, at, word.as_mut_ptr() as usize, WORD).is_ok();
        let is_the_one = reads(mark_at, &mut found)
            && found == mark.to_ne_bytes()
            && (gate == 0 || reads(gate, &mut gate_word));
        if !is_the_one {
            process.file = None;
        }
        process.gate = Some(gate).filter(|gate| *gate != 0 && process.passes(*gate));
        let opens = process.file.is_some() || process.gate.is_some();
        if !opens {
            log!(Info, "the kernel does not copy to and from memory of process {number}: packets go there");
        }
        opens.then_some(process)
    }

    /// The descriptor of the process's memory file, if that could be opened.
    #[cfg(test)]
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.file.as_ref().map(|ForkClosedFile(file)| file.as_raw_fd())
    }

    /// The number of the process.
    pub(super) fn number(&self) -> libc::pid_t {
        self.number
    }

    /// The list of its mappings, for questions about one (PROCMAP_QUERY). It belongs to the address space, as
    /// the memory file does.
    pub(super) fn maps(&self) -> Option<&File> {
        let open = || {
            let gate = self.gate?;
            let maps = File::open(format!("/proc/{}/maps", self.number)).ok()?;
            let maps = ForkClosedFile::new(descriptor::out_of_the_way(maps.into()).into());
            // The list is certainly of that process if the process has its number afterwards, and still runs
            // the program that was met.
            self.passes(gate).then_some(maps)
        };
        self.maps.get_or_init(open).as_ref().map(|ForkClosedFile(maps)| maps)
    }

    /// Whether copies can be had. `by_file`: the memory file may be used, too, which knows no protection of
    /// pages.
    #[inline]
    pub fn copies(&self, by_file: bool) -> bool {
        self.call(0, by_file).is_some()
    }

    /// The call by which so many bytes are copied, if any.
    #[inline]
    fn call(&self, length: usize, by_file: bool) -> Option<Call> {
        let is_open = !self.is_closed.load(Ordering::Relaxed);
        is_open.then(|| ways::call(length, by_file, self.file.is_some(), self.gate.is_some())).flatten()
    }

    /// Copies bytes to `address` there.
    ///
    /// # Errors
    /// The memory is not there, or may not be written, or the process is not there any more, or the system
    /// does not permit it.
    pub fn write(&self, address: u64, bytes: &[u8], by_file: bool) -> Result<(), CopyRefusal> {
        self.copy(To::Them, address, bytes.as_ptr() as usize, bytes.len(), by_file)
    }

    /// Fills bytes from `address` there.
    ///
    /// # Errors
    /// As of [`Process::write`].
    pub fn read(&self, address: u64, bytes: &mut [u8], by_file: bool) -> Result<(), CopyRefusal> {
        self.copy(To::Us, address, bytes.as_mut_ptr() as usize, bytes.len(), by_file)
    }

    /// Copies a span of the program's memory to `address` there.
    ///
    /// # Errors
    /// As of [`Process::write`], and if the program's memory is not there.
    pub fn write_from(&self, address: u64, span: &Span<'_>, by_file: bool) -> Result<(), CopyRefusal> {
        self.copy(To::Them, address, span.address(), span.len(), by_file)
    }

    /// Fills a span of the program's memory from `address` there.
    ///
    /// # Errors
    /// As of [`Process::write_from`].
    pub fn read_into(&self, address: u64, span: &Span<'_>, by_file: bool) -> Result<(), CopyRefusal> {
        self.copy(To::Us, address, span.address(), span.len(), by_file)
    }

    /// `here` are bytes of the engine, or of a span that is open: in both directions the kernel finds out
    /// whether they are there.
    fn copy(
        &self,
        to: To,
        address: u64,
        here: usize,
        length: usize,
        by_file: bool,
    ) -> Result<(), CopyRefusal> {
        let call = self.call(length, by_file).ok_or(CopyRefusal)?;
        // No process has memory behind that.
        if address.checked_add(length as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(CopyRefusal);
        }
        let copied = match (call, self.gate) {
            (Call::Number, Some(gate)) => self.by_number(to, gate, address, here, length),
            _ => self.by_file(to, address, here, length),
        };
        copied.map_err(|errno| {
            // A filter of system calls, or a rule about tracing, that was not there when the two met.
            if matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
                && !self.is_closed.swap(true, Ordering::Relaxed)
            {
                log!(Info, "the kernel does not copy to and from memory of process {} any more", self.number);
            }
            CopyRefusal
        })
    }

    /// By the memory file. The error is a number of the system, or 0 for fewer bytes than were asked for.
    fn by_file(&self, to: To, address: u64, here: usize, length: usize) -> Result<(), i32> {
        let file = self.file.as_ref().ok_or(libc::EBADF)?.0.as_raw_fd();
        // Each piece is a copy of its own, in order.
        let tail = if to == To::Them && length > TAIL { TAIL } else { 0 };
        let pieces = [iovec(here as u64, length - tail), iovec((here + length - tail) as u64, tail)];
        let (offset, pieces) = (address as libc::off64_t, pieces.as_ptr());
        // Not by libc's functions, at which a thread may be cancelled. SAFETY: the pieces are bytes of the
        // engine's or of an open span, which may be written for a read; the kernel checks whether they are
        // there. The bytes in the other process are its own affair: it has said that we may.
        let done = unsafe {
            match to {
                To::Them if tail > 0 => {
                    libc::syscall(libc::SYS_pwritev, file, pieces, 2usize, offset, 0usize)
                }
                To::Them => libc::syscall(libc::SYS_pwrite64, file, here, length, offset),
                To::Us => libc::syscall(libc::SYS_pread64, file, here, length, offset),
            }
        };
        judge(done, length)
    }

    /// By the number of the process, through its gate.
    fn by_number(&self, to: To, gate: u64, address: u64, here: usize, length: usize) -> Result<(), i32> {
        let mut word = [0u8; WORD];
        let body = length - length.min(TAIL);
        let local = [iovec(word.as_mut_ptr() as u64, WORD), iovec(here as u64, length)];
        let remote = [iovec(gate, WORD), iovec(address, body), iovec(address + body as u64, length - body)];
        let call = if to == To::Them { libc::SYS_process_vm_writev } else { libc::SYS_process_vm_readv };
        // SAFETY: as in `by_file`. The kernel takes the other's pieces one after the other, and stops at the
        // first that is not there.
        let done = unsafe {
            let (local, remote, flags) = (local.as_ptr(), remote.as_ptr(), 0usize);
            libc::syscall(call, self.number, local, 2usize, remote, 3usize, flags)
        };
        judge(done, WORD + length)
    }

    /// Whether the gate is there.
    fn passes(&self, gate: u64) -> bool {
        let mut word = [0u8; WORD];
        self.by_number(To::Us, gate, gate, word.as_mut_ptr() as usize, WORD).is_ok()
    }
}

fn judge(done: libc::c_long, length: usize) -> Result<(), i32> {
    match done {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        done if done as usize == length => Ok(()),
        _ => Err(0),
    }
}

/// The address of this process's gate, 0 if there is none: a page at an address drawn by lot. As good as
/// certainly, another program has nothing there. A child of fork, or another child of the same parent, may
/// get the number of this process one day. It has nothing there either: no child inherits the page, and each
/// draws its own.
pub fn gate() -> u64 {
    static GATE: AtomicPtr<(ForkGeneration, u64)> = AtomicPtr::new(std::ptr::null_mut());
    let known = GATE.load(Ordering::Acquire);
    // SAFETY: null, or leaked below and never freed.
    if let Some((born, gate)) = unsafe { known.as_ref() }
        && born.is_here()
    {
        return *gate;
    }
    let gate = draw_gate();
    let made = Box::into_raw(Box::new((ForkGeneration::now(), gate)));
    match GATE.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => gate,
        Err(other) => {
            // SAFETY: no other thread has seen ours; another thread of this process has published its own,
            // which is never freed.
            unsafe {
                drop(Box::from_raw(made));
                libc::syscall(libc::SYS_munmap, gate, page_size());
                (*other).1
            }
        }
    }
}

fn draw_gate() -> u64 {
    const TRIES: u32 = 16;
    let page = page_size() as u64;
    let place = || {
        // From 4 GiB on up to 64 TiB: every 64-bit system has such addresses for programs, with few
        // exceptions, which do without.
        let address = (crate::random::word() % (1 << 46)).max(1 << 32) / page * page;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        // Not by libc's functions, in whose place programs put theirs.
        // SAFETY: a fresh mapping where nothing is.
        let found = unsafe {
            libc::syscall(libc::SYS_mmap, address, page as usize, protection, flags, -1isize, 0usize)
        } as u64;
        if found as i64 <= 0 {
            return None;
        }
        // SAFETY: freshly mapped, and no other thread knows of it.
        let is_ours_alone =
            || unsafe { libc::syscall(libc::SYS_madvise, found, page as usize, libc::MADV_DONTFORK) == 0 };
        if found == address && is_ours_alone() {
            return Some(address);
        }
        // A kernel that does not know the flag has taken the address for a hint.
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_munmap, found, page as usize) };
        None
    };
    (0..TRIES).find_map(|_| place()).unwrap_or(0)
}

/// Whether all pages of a range of this process may be read, and written if `to_write`, as far as the system
/// tells. The memory file knows no protection, so only then its copies have the effect of loads and stores.
pub(super) fn may_be_copied(address: usize, length: u64, to_write: bool) -> bool {
    let Some(end) = (address as u64).checked_add(length) else { return false };
    let Ok(maps) = File::open("/proc/self/maps") else { return false };
    let mut at = address as u64;
    for line in BufReader::with_capacity(64 << 10, maps).lines() {
        let Some((start, stop, protection)) = line.ok().as_deref().and_then(mapping) else { return false };
        if stop <= at {
            continue;
        }
        let may = protection[0] == b'r' && (!to_write || protection[1] == b'w');
        if start > at || !may {
            return false;
        }
        at = stop;
        if at >= end {
            return true;
        }
    }
    false
}

/// Whether the system tells the protection of this process's pages.
pub(super) fn tells_protection() -> bool {
    File::open("/proc/self/maps").is_ok()
}

/// First byte, end, and protection, of a line of /proc/PID/maps.
fn mapping(line: &str) -> Option<(u64, u64, [u8; 2])> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?, rest.as_bytes().first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copy;
    use crate::memory::far::far_address;

    fn pages(count: usize, protection: i32) -> usize {
        // SAFETY: a fresh anonymous mapping.
        let pages = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(far_address(), count << 12, protection, flags, -1, 0)
        };
        assert_ne!(pages, libc::MAP_FAILED);
        pages as usize
    }

    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn own(gate: u64) -> Process {
        let mark = crate::random::word();
        Process::open(std::process::id() as libc::pid_t, (&raw const mark as u64, mark), gate).unwrap()
    }

    /// Copies of every kind: by the file, by number, and by each where the other cannot be had.
    fn ways() -> Vec<(Process, bool)> {
        let mut without_file = own(gate());
        without_file.file = None;
        vec![(own(gate()), true), (own(gate()), false), (own(0), true), (without_file, true)]
    }

    #[test]
    fn bytes_are_copied_there_and_back() {
        for (process, by_file) in ways() {
            for length in [1, 7, 8, 9, 63, SHORT - 1, SHORT, SHORT + 1, 8191, 3 << 12] {
                let target = pages(4, BOTH) + 5;
                let sent: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
                process.write(target as u64, &sent, by_file).unwrap();
                let mut back = vec![0; length + 1];
                // SAFETY: pages of this test.
                unsafe { copy::copy_from(&mut back, target) }.unwrap();
                assert!(back[..length] == sent && back[length] == 0, "{length} bytes");
                back.fill(0);
                process.read(target as u64, &mut back[..length], by_file).unwrap();
                assert!(back[..length] == sent, "{length} bytes");
            }
        }
    }

    #[test]
    fn copies_of_memory_that_is_not_there_are_refused() {
        let hole = pages(2, BOTH);
        // SAFETY: the second page is ours and unused.
        unsafe { libc::munmap((hole + 4096) as *mut _, 4096) };
        for (process, by_file) in ways() {
            for length in [8, 16, SHORT + 1] {
                let mut bytes = vec![0; length];
                for address in [0, hole as u64 + 4096 - 4, i64::MAX as u64 - 4, u64::MAX - 4, u64::MAX] {
                    assert_eq!(
                        process.write(address, &bytes, by_file),
                        Err(CopyRefusal),
                        "{length} {address:x}"
                    );
                    assert_eq!(process.read(address, &mut bytes, by_file), Err(CopyRefusal));
                }
            }
            process.write(hole as u64, &[1; 8], by_file).unwrap();
        }
    }

    #[test]
    fn read_only_pages_are_not_written_without_the_memory_file() {
        let target = pages(2, libc::PROT_READ);
        let process = own(gate());
        for length in [8, SHORT, SHORT + 1] {
            assert_eq!(process.write(target as u64, &vec![1; length], false), Err(CopyRefusal));
            process.read(target as u64, &mut vec![1; length], false).unwrap();
        }
        let mut back = [1; 64];
        process.read(target as u64, &mut back, false).unwrap();
        assert_eq!(back, [0; 64]);
    }

    /// As after execve(2), or where another process has the number.
    #[test]
    fn nothing_is_touched_where_the_gate_is_missing() {
        let target = pages(2, BOTH);
        let gate = pages(1, BOTH);
        let process = own(gate as u64);
        process.write(target as u64, &[1; 4096], false).unwrap();
        // SAFETY: the page is ours and unused.
        unsafe { libc::munmap(gate as *mut _, 4096) };
        assert_eq!(process.write(target as u64, &[2; 4096], false), Err(CopyRefusal));
        assert_eq!(process.read(target as u64, &mut [0; 4096], false), Err(CopyRefusal));
        let mut back = [0; 4096];
        // SAFETY: a page of this test.
        unsafe { copy::copy_from(&mut back, target) }.unwrap();
        assert_eq!(back, [1; 4096]);
    }

    /// As where a worker ends, and another worker of the same server gets its number.
    #[test]
    fn relatives_are_not_taken_for_each_other() {
        crate::fork::install_handler(crate::engine::forget);
        let (parents, mark) = (gate(), crate::random::word());
        let (mut told, mut go) = ([0; 2], [0; 2]);
        // SAFETY: fills live locals; the child makes system calls and maps a page.
        let child = unsafe {
            assert!(libc::pipe(told.as_mut_ptr()) == 0 && libc::pipe(go.as_mut_ptr()) == 0);
            let child = libc::fork();
            if child == 0 {
                let own = draw_gate();
                libc::write(told[1], (&raw const own).cast(), 8);
                let mut byte = 0u8;
                libc::close(go[1]);
                libc::read(go[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
            child
        };
        let mut childs = 0u64;
        // SAFETY: a live local.
        assert_eq!(unsafe { libc::read(told[0], (&raw mut childs).cast(), 8) }, 8);
        // The child has the mark.
        let open = |gate| Process::open(child, (&raw const mark as u64, mark), gate);
        let (wrong, right) = (open(parents), open(childs));
        // SAFETY: ends our own child.
        unsafe {
            libc::close(go[1]);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(wrong.is_none(), "the gate of its parent is not there");
        assert!(right.is_some() && childs != parents, "it has one of its own");
    }

    #[test]
    fn a_process_is_known_by_its_mark() {
        let own = std::process::id() as libc::pid_t;
        let mark = crate::random::word();
        assert!(Process::open(own, (&raw const mark as u64, !mark), 0).is_none());
        assert!(Process::open(own, (8, mark), 0).is_none());
        assert!(Process::open(0, (&raw const mark as u64, mark), gate()).is_none());
        let process = Process::open(own, (8, mark), gate()).unwrap();
        assert!(process.descriptor().is_none(), "the file is somebody else's, for all we know");
        assert!(process.copies(false));
    }

    #[test]
    fn the_gate_is_one_and_has_been_drawn_by_lot() {
        assert_eq!(gate(), gate());
        assert!(gate() >= 1 << 32 && gate() < 1 << 46);
    }

    #[test]
    fn protection_is_looked_up() {
        let area = pages(4, BOTH);
        // SAFETY: pages of this test.
        unsafe { libc::mprotect((area + (2 << 12)) as *mut _, 4096, libc::PROT_READ) };
        let may = |from: usize, length, to_write| may_be_copied(area + from, length, to_write);
        assert!(may(0, 8192, true) && may(5, 8187, true) && may(0, 4 << 12, false));
        assert!(!may(0, 8193, true) && !may(8192, 1, true) && !may_be_copied(1, 8, false));
        assert!(may(3 << 12, 4096, true) && !may_be_copied(usize::MAX - 8, 8, false));
        // SAFETY: as above.
        unsafe { libc::munmap((area + 4096) as *mut _, 4096) };
        assert!(may(0, 4096, true) && !may(0, 4097, false) && !may(4096, 1, false));
    }
}
