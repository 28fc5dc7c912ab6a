//! Disconnect requests for the connections of killed processes, the orphans.
//!
//! A kernel ends the connections of a process that is killed. Here only the parent is left to do it:
//! `adverb run` makes a record in a memfd, which its program and the program's children inherit and write
//! their connections into. A process that does so tells the parent by a socket that it has inherited, too.
//! When such a process has ended, also one that another process has started, the parent sends disconnect
//! requests for the connections that it has left.

mod disconnect;
mod watch;

pub use watch::Watch;

use adverb_core::descriptor::set_length;
use adverb_core::{random, setting};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Names the descriptors of the record and of the socket to the program.
const VARIABLE: &str = "ADVERB_RECORD";
const NAME: &CStr = c"adverb-connections";
/// Most connections in the record. A further one gets no disconnect request if its process is killed.
const SLOTS: usize = 1 << 16;
const FREE: u32 = 0;
/// A process is writing the slot. [`SharedRecord::take`] leaves the slot alone: its owner word may be that of
/// the former owner. If the process is killed meanwhile, the slot stays claimed.
const CLAIMED: u32 = 1;
const HELD: u32 = 2;

/// A connection as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Our communication ID, and the peer's.
    pub(crate) local_id: u32,
    pub(crate) remote_id: u32,
    /// The peer's queue pair.
    pub(crate) remote_number: u32,
    /// Our address, and the peer's.
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    /// Interface of link-local addresses.
    pub(crate) scope: u32,
}

/// A slot of the record: a state, the process number of the owner, the entry in words.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    owner: AtomicU32,
    words: [AtomicU32; 12],
    _padding: [AtomicU32; 2],
}

/// The shared memory of the record: 4 MiB.
#[repr(C)]
struct SharedRecord {
    /// The index of the slot that is tried first.
    hint: AtomicU32,
    _padding: [AtomicU32; 15],
    slots: [Slot; SLOTS],
}

/// The record of connections. Thread-safe; shared by processes.
pub struct Record {
    shared: &'static SharedRecord,
    /// By this, processes tell the parent that they write into the record.
    socket: UnixDatagram,
    /// The process ID (high half), and the number of this process in the record (low half). A child of fork
    /// has another process ID, so it draws a number of its own.
    process: AtomicU64,
}

impl Record {
    /// A new record for a program: the value for its environment, and the parent's end.
    ///
    /// # Errors
    /// Those of memfd_create(2), fcntl(2), socketpair(2) and mmap(2). Another one if the memfd cannot have
    /// its length.
    pub fn create() -> io::Result<(String, Watch)> {
        // SAFETY: a constant C string; the descriptor is new.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is fresh, and closed if a step below fails.
        let memory = unsafe { OwnedFd::from_raw_fd(fd) };
        // A limit on the size of files may forbid it.
        set_length(fd, size_of::<SharedRecord>()).map_err(|error| io::Error::other(error.to_string()))?;
        // A process that inherits the memfd, also of another user, cannot cut it short while others look at
        // its bytes.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: our descriptor.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (here, there) = UnixDatagram::pair()?;
        // SAFETY: our descriptor, which children inherit from now on.
        if unsafe { libc::fcntl(there.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let value = format!("{fd},{}", there.as_raw_fd());
        let watch = Watch::new(Self::map(fd)?, here)?;
        // Both stay open in the parent, so that children can inherit them at any time.
        let _ = (memory.into_raw_fd(), there.into_raw_fd());
        Ok((value, watch))
    }

    /// The environment variable that names the record to a program.
    pub const VARIABLE: &str = VARIABLE;

    fn map(fd: RawFd) -> io::Result<&'static SharedRecord> {
        // SAFETY: a fresh shared mapping of the record's size, which the caller knows the memfd to have.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<SharedRecord>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: aligned, never unmapped, and all atomics, for which every byte pattern is valid.
        Ok(unsafe { &*address.cast::<SharedRecord>() })
    }

    /// The record that this process has inherited, if it was started with one.
    pub(crate) fn inherited() -> Option<&'static Record> {
        static RECORD: OnceLock<Option<Record>> = OnceLock::new();
        RECORD.get_or_init(Self::inherit).as_ref()
    }

    fn inherit() -> Option<Self> {
        let value = setting::variable(VARIABLE)?;
        let (fd, socket) = value.split_once(',')?;
        let (fd, socket): (RawFd, RawFd) = (fd.parse().ok()?, socket.parse().ok()?);
        // The program may have closed both, and opened something else with their numbers. Any socket passes
        // the test for the second one.
        let link = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let name = NAME.to_str().ok()?;
        if link(fd)? != Path::new(&format!("/memfd:{name} (deleted)"))
            || !link(socket)?.to_str()?.starts_with("socket:")
        {
            return None;
        }
        // SAFETY: all zero is a valid stat, which the call fills in.
        let size = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut found) != 0 {
                return None;
            }
            found.st_size
        };
        // SAFETY: an open descriptor.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        // Its length is that of the record, and cannot shrink: it is sealed.
        if size != size_of::<SharedRecord>() as libc::off_t || seals & libc::F_SEAL_SHRINK == 0 {
            return None;
        }
        // SAFETY: an open descriptor. The copy is ours alone.
        let socket = unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, 3) };
        if socket < 0 {
            return None;
        }
        // SAFETY: the copy of a moment ago.
        let socket = UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(socket) });
        Some(Self { shared: Self::map(fd).ok()?, socket, process: AtomicU64::new(0) })
    }

    /// The number of this process in the record. The first thread that asks draws it, and tells the parent.
    fn process_number(&self) -> u32 {
        if let Some(number) = self.known_process_number() {
            return number;
        }
        let number = (random::word() as u32).max(1);
        let own = u64::from(std::process::id()) << 32 | u64::from(number);
        let before = self.process.load(Ordering::Relaxed);
        if self.process.compare_exchange(before, own, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // Another thread was first.
            return self.process.load(Ordering::Acquire) as u32;
        }
        watch::announce(&self.socket, number);
        number
    }

    fn known_process_number(&self) -> Option<u32> {
        let own = self.process.load(Ordering::Acquire);
        ((own >> 32) as u32 == std::process::id()).then_some(own as u32)
    }

    /// Records a connection of this process. Returns its slot, for [`Record::forget`]. None if the record is
    /// full: the peer then finds out by itself. Any thread.
    pub(crate) fn note(&self, entry: &Entry) -> Option<u32> {
        let owner = self.process_number();
        let first = self.shared.hint.load(Ordering::Relaxed) as usize;
        for offset in 0..SLOTS {
            let index = (first + offset) % SLOTS;
            let slot = &self.shared.slots[index];
            let claim = slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            slot.owner.store(owner, Ordering::Relaxed);
            for (word, value) in slot.words.iter().zip(words_of(entry)) {
                word.store(value, Ordering::Relaxed);
            }
            slot.state.store(HELD, Ordering::Release);
            self.shared.hint.store(index as u32 + 1, Ordering::Relaxed);
            return Some(index as u32);
        }
        None
    }

    /// A connection of this process has ended: frees the slot that [`Record::note`] returned. Any thread.
    pub(crate) fn forget(&self, index: u32) {
        let Some(slot) = self.shared.slots.get(index as usize) else { return };
        // A child of fork has its parent's connections in a copy of memory only. It has another number, so it
        // frees none of their slots.
        if self.known_process_number() == Some(slot.owner.load(Ordering::Relaxed)) {
            slot.state.store(FREE, Ordering::Release);
            self.shared.hint.store(index, Ordering::Relaxed);
        }
    }
}

impl SharedRecord {
    /// Takes the connections of the processes with these numbers out of the record.
    ///
    /// Caller: knows that these processes have ended.
    fn take(&self, owners: &[u32]) -> Vec<Entry> {
        let mut taken = Vec::new();
        for slot in &self.slots {
            let held = slot.state.load(Ordering::Acquire) == HELD;
            if held && owners.contains(&slot.owner.load(Ordering::Relaxed)) {
                let words: [u32; 12] = std::array::from_fn(|at| slot.words[at].load(Ordering::Relaxed));
                taken.push(entry_of(&words));
                slot.state.store(FREE, Ordering::Release);
            }
        }
        taken
    }
}

fn words_of(entry: &Entry) -> [u32; 12] {
    let mut words = [0; 12];
    words[..4].copy_from_slice(&[entry.local_id, entry.remote_id, entry.remote_number, entry.scope]);
    for (at, address) in [(4, entry.local), (8, entry.peer)] {
        let octets = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        for (word, four) in words[at..at + 4].iter_mut().zip(octets.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*four);
        }
    }
    words
}

fn entry_of(words: &[u32; 12]) -> Entry {
    let address = |at: usize| {
        let mut octets = [0; 16];
        for (four, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(&words[at..at + 4]) {
            *four = word.to_ne_bytes();
        }
        crate::route::canonical(Ipv6Addr::from(octets).into())
    };
    Entry {
        local_id: words[0],
        remote_id: words[1],
        remote_number: words[2],
        scope: words[3],
        local: address(4),
        peer: address(8),
    }
}

/// Fuzzes a record that a program wrote, or any process that has inherited it. Exactly the entries of
/// processes that have ended are taken out of it, each once, and only the peers that they name are told.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_record(bytes: &[u8]) {
    use std::sync::Mutex;
    // The work has a bound for any contents: all slots are looked at, and no more. One record is enough for
    // all runs.
    static SHARED: OnceLock<Mutex<&'static SharedRecord>> = OnceLock::new();
    const LENGTH: usize = size_of::<Slot>() - 8;
    let shared = SHARED.get_or_init(|| {
        let (_, watch) = Record::create().expect("there is a memfd");
        Mutex::new(watch.shared())
    });
    let shared = shared.lock().unwrap_or_else(|e| e.into_inner());
    let [ended, running, rest @ ..] = bytes else { return };
    let (ended, running) = (u32::from(*ended), u32::from(*running) | 0x100);
    let words = |slot: &[u8]| -> Vec<u32> {
        slot.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    };
    let (slots, answers) = rest.split_at(rest.len().min(8 * LENGTH) / LENGTH * LENGTH);
    let written: Vec<_> = slots.chunks_exact(LENGTH).map(words).collect();
    let mut expected = Vec::new();
    for (slot, said) in shared.slots.iter().rev().zip(&written) {
        // Small numbers are states and processes more often than not.
        let (state, owner) = (said[0] % 8, if said[1] & 1 == 0 { ended } else { running });
        slot.state.store(if state > 3 { HELD } else { state }, Ordering::Relaxed);
        slot.owner.store(owner, Ordering::Relaxed);
        for (word, value) in slot.words.iter().zip(&said[2..]) {
            word.store(*value, Ordering::Relaxed);
        }
        if slot.state.load(Ordering::Relaxed) == HELD && owner == ended {
            expected.push(entry_of(said[2..].try_into().expect("as long as a slot")));
        }
    }
    shared.hint.store(written.first().map_or(0, |said| said[0]), Ordering::Relaxed);
    let mut left = shared.take(&[ended]);
    left.reverse();
    assert_eq!(left, expected);
    assert_eq!(shared.take(&[ended]), [], "each once");
    assert!(shared.take(&[running]).len() <= written.len() - left.len());
    for entry in &left {
        assert_eq!(entry_of(&words_of(entry)), *entry);
    }
    for slot in shared.slots.iter().rev().take(written.len()) {
        slot.state.store(FREE, Ordering::Relaxed);
    }
    disconnect::try_entries(&left, answers);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another program's change to the record must not kill a program that looks at it.
    #[test]
    fn the_length_of_the_record_cannot_change() {
        let (value, _watch) = Record::create().unwrap();
        let fd: RawFd = value.split_once(',').unwrap().0.parse().unwrap();
        for length in [0, 2 * size_of::<SharedRecord>()] {
            // SAFETY: an open descriptor.
            assert_eq!(unsafe { libc::ftruncate(fd, length as libc::off_t) }, -1, "{length}");
        }
    }

    #[test]
    fn connections_of_an_ended_process_are_taken_out() {
        let (_, watch) = Record::create().unwrap();
        let (socket, _there) = UnixDatagram::pair().unwrap();
        let record = Record { shared: watch.shared(), socket, process: AtomicU64::new(0) };
        let entry = |local: &str, peer: &str| Entry {
            local_id: 0x1234_5678,
            remote_id: 9,
            remote_number: 0xab_cdef,
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            scope: 0,
        };
        let (written, other) = (entry("10.0.0.1", "10.0.0.2"), entry("fe80::1", "fe80::2"));
        let places = [&written, &other, &written].map(|entry| record.note(entry).unwrap());
        record.forget(places[2]);
        assert_eq!(record.note(&written), Some(places[2]));
        record.forget(places[2]);
        let owner = record.process_number();
        assert_eq!(record.shared.take(&[owner ^ 1]), [], "another process");
        record.process.store(0, Ordering::Relaxed);
        record.forget(places[0]);
        assert_eq!(record.shared.take(&[owner]), [written, other]);
        assert_eq!(record.shared.take(&[owner]), []);
    }
}
