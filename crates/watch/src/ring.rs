//! A trace in a ring: a mapped file of a fixed size, which threads fill without a system call, and of which
//! the oldest records are overwritten.
//!
//! The file has a head, a list of the processes that write, and chunks. A thread owns a chunk and appends its
//! records there. When the chunk is full, the thread takes the next one in turn that no living thread owns. A
//! record counts once the chunk says that it is used up to there, so that a killed program leaves whole
//! records. Another process may cut the file at any time: all bytes are written by the routine that survives
//! this, and then the trace ends.

pub(crate) mod layout;
pub mod read;
pub(crate) mod record;
pub(crate) mod trace;

use crate::format::Process;
use crate::output::forks;
use adverb_core::memory::{Fault, compare_swap, copy_from, copy_to, fetch_add, install_fault_handler};
use adverb_core::signals::without_sigpipe;
use adverb_core::{log, setting};
use layout::{CHUNK, CHUNK_HEAD, Head, OWNED, TAKEN};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The ring of this process.
pub(crate) struct Ring {
    base: usize,
    chunks: u64,
    name: String,
    ended: AtomicBool,
    /// The number of forks with which the process has entered its name.
    entered: AtomicU32,
    /// The namespace of its number then; 0 if the system does not say.
    namespace: AtomicU64,
}

/// The chunk of a thread, and in which child of fork it has got it.
#[derive(Clone, Copy)]
struct Chunk {
    address: usize,
    state: u64,
    used: usize,
    born: u32,
}

/// Gives the chunk back when the thread ends.
struct Owner(Cell<Option<Chunk>>);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(chunk) = self.0.take() {
            chunk.release();
        }
    }
}

thread_local! {
    static OWNER: Owner = const { Owner(Cell::new(None)) };
}

impl Chunk {
    /// Brings all pages of the chunk in at once: the first stores to them, one by one, would cost more than
    /// three times as much.
    fn populate(&self) {
        // By the kernel itself, not by the C library: programs that watch over registered memory replace its
        // function. SAFETY: this advice changes no byte. Where it fails, the stores bring the pages in, or
        // find that the file has been cut.
        unsafe { libc::syscall(libc::SYS_madvise, self.address, CHUNK, libc::MADV_POPULATE_WRITE) };
    }

    fn release(self) {
        if self.born == forks() {
            let free = (self.state & !OWNED).to_ne_bytes();
            // SAFETY: the state of a chunk that this thread owns, in a mapping that stays.
            let _ = unsafe { copy_to(self.address, &free) };
        }
    }
}

/// Gives back the chunk of the calling thread, which ends.
pub(crate) fn release() {
    let _ = OWNER.try_with(|owner| owner.0.take().map(Chunk::release));
}

impl Ring {
    /// Opens the file, which it makes if it is not there, or joins the processes that write into it.
    ///
    /// # Errors
    /// If it cannot be written, or is no ring.
    pub(crate) fn open(file: &str) -> io::Result<Self> {
        install_fault_handler();
        let name = setting::file(file);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&name)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("a ring is a file"));
        }
        // One of several processes makes it, as far as the file system has locks.
        let _ = file.lock();
        let ready = prepare(&file);
        let _ = file.unlock();
        let head = ready?;
        let length = head.length();
        // SAFETY: a new mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Self {
            base: base as usize,
            chunks: head.chunks,
            name,
            ended: AtomicBool::new(false),
            entered: AtomicU32::new(u32::MAX),
            namespace: AtomicU64::new(0),
        };
        ring.enter_process().map_err(|Fault| io::Error::other("the file has been cut"))?;
        Ok(ring)
    }

    /// Enters this process into the list, once after each fork.
    fn enter_process(&self) -> Result<(), Fault> {
        let forks = forks();
        if self.entered.swap(forks, Ordering::Relaxed) == forks {
            return Ok(());
        }
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |status| status.ino());
        self.namespace.store(namespace, Ordering::Relaxed);
        // SAFETY: a word of the head, in a mapping that stays.
        let place = unsafe { fetch_add(self.base + layout::PROCESSES_AT, 1)? };
        match layout::process_at(place) {
            None => Ok(()),
            // SAFETY: the place of this process in the list.
            Some(at) => unsafe { copy_to(self.base + at, &layout::process(&Process::own())) },
        }
    }

    /// Appends a record of the calling thread. Its length is a multiple of eight, and its first word is not
    /// zero.
    pub(crate) fn append(&self, thread: u32, record: &[u8]) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        if let Err(Fault) = self.try_append(thread, record)
            && !self.ended.swap(true, Ordering::Relaxed)
        {
            log::say(format_args!("the trace ends here: {} has been cut", self.name));
        }
    }

    fn try_append(&self, thread: u32, record: &[u8]) -> Result<(), Fault> {
        // A thread that ends has no place for one any more, and gives it back at once.
        let owned = OWNER.try_with(|owner| owner.0.take()).unwrap_or_default();
        // What the parent's thread owns is the parent's.
        let owned = owned.filter(|chunk| chunk.born == forks());
        let has_room = |chunk: &Chunk| chunk.used + record.len() <= CHUNK;
        let chunk = match owned {
            Some(chunk) if has_room(&chunk) => Some(chunk),
            _ if CHUNK_HEAD + record.len() > CHUNK => {
                self.lose()?;
                owned
            }
            full => {
                full.into_iter().for_each(Chunk::release);
                let taken = self.take(thread)?;
                // Not the first chunk of a thread, which may have little to say.
                taken.filter(|_| full.is_some()).inspect(Chunk::populate);
                taken
            }
        };
        let Some(mut chunk) = chunk else { return self.lose() };
        if has_room(&chunk) {
            // SAFETY: the chunk is this thread's, and the record fits. The last word is written last, and
            // before what counts it.
            unsafe {
                copy_to(chunk.address + chunk.used, record)?;
                chunk.used += record.len();
                copy_to(chunk.address + layout::USED_AT, &(chunk.used as u64).to_ne_bytes())?;
            }
        }
        if OWNER.try_with(|owner| owner.0.set(Some(chunk))).is_err() {
            chunk.release();
        }
        Ok(())
    }

    fn lose(&self) -> Result<(), Fault> {
        // SAFETY: a word of the head.
        unsafe { fetch_add(self.base + layout::LOST_AT, 1) }.map(drop)
    }

    /// A chunk that nobody owns, the oldest first. None if living threads own all of them.
    fn take(&self, thread: u32) -> Result<Option<Chunk>, Fault> {
        self.enter_process()?;
        for _ in 0..self.chunks {
            // SAFETY: words of the head and of a chunk, in a mapping that stays.
            unsafe {
                let turn = fetch_add(self.base + layout::NEXT_AT, 1)?;
                let address = self.base + layout::chunk_at(turn % self.chunks);
                let mut head = [0; CHUNK_HEAD];
                copy_from(&mut head, address)?;
                let (before, owner) = (layout::word(&head, 0), layout::word(&head, layout::OWNER_AT));
                let namespace = self.namespace.load(Ordering::Relaxed);
                let is_known = namespace != 0 && layout::word(&head, layout::NAMESPACE_AT) == namespace;
                if before & OWNED != 0 && (!is_known || is_alive(owner as u32)) {
                    continue;
                }
                // First a state in which it has no records, so that no reader takes those of before for new
                // ones.
                let taken = (turn + 1) << 2 | TAKEN;
                if compare_swap(address, before, taken)? != before {
                    continue;
                }
                let owner = u64::from(std::process::id()) | u64::from(thread) << 32;
                copy_to(address + layout::OWNER_AT, &owner.to_ne_bytes())?;
                copy_to(address + layout::NAMESPACE_AT, &namespace.to_ne_bytes())?;
                copy_to(address + layout::USED_AT, &(CHUNK_HEAD as u64).to_ne_bytes())?;
                let state = (turn + 1) << 2 | OWNED;
                copy_to(address, &state.to_ne_bytes())?;
                return Ok(Some(Chunk { address, state, used: CHUNK_HEAD, born: forks() }));
            }
        }
        Ok(None)
    }
}

fn is_alive(process: u32) -> bool {
    // SAFETY: no signal is sent.
    let found = unsafe { libc::kill(process as libc::pid_t, 0) };
    found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Gives a new file its size and its head; of one that is a ring already, reads the head.
fn prepare(file: &File) -> io::Result<Head> {
    use std::os::unix::fs::FileExt as _;
    if file.metadata()?.len() > 0 {
        let mut bytes = [0; layout::HEAD];
        file.read_exact_at(&mut bytes, 0)?;
        let head = Head::parse(&bytes).ok_or_else(|| io::Error::other("it is no ring"))?;
        let is_whole = file.metadata()?.len() >= head.length() as u64;
        return if is_whole { Ok(head) } else { Err(io::Error::other("it has been cut")) };
    }
    let size = setting::variable(crate::setting::SIZE).and_then(|text| text.trim().parse().ok());
    let head = Head::of_size(size.unwrap_or(layout::DEFAULT_MIB));
    // All of it has its place on the disk: a store to the mapping finds no full disk.
    without_sigpipe(|| {
        // SAFETY: an open file.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, head.length() as libc::off_t) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    })
    .and_then(|()| file.write_all_at(&head.bytes(), 0))
    .inspect_err(|_| _ = file.set_len(0))?;
    Ok(head)
}

#[cfg(test)]
mod tests;
