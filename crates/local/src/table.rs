//! The memory keys and queue pairs that a process lets the others of its host use, in memory that it alone
//! writes and they map.
//!
//! The owner publishes an entry, and later withdraws it; another process looks it up by the index and the
//! name that it knows from elsewhere. The transport above says what the words of an entry mean. Before
//! looking, the other process announces the entry ([`HazardSlots`](crate::HazardSlots)); after withdrawing,
//! the owner waits until nobody announces it any more:
//!
//! 1. [`Table::withdraw`]
//! 2. [`announce::barrier`](crate::announce::barrier), for all processes that have the table
//! 3. until it says no, for each of them: [`HazardView::is_announced`](crate::HazardView::is_announced)
//!
//! Then no process uses the memory that the entry stood for, and the entry may be published anew.
//!
//! The memory is sparse: what was never written takes no room but addresses.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::contents::Contents;
pub use crate::contents::{KEYS, PAIRS, SECRETS};
use crate::entry::{Kind, Stamp, WORDS};
use crate::memory::{self, MappedMemory, SEALS as SIZE_SEALS, Words, invalid};
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const NAME: &CStr = c"adverb-table";
/// Only its owner, which has it mapped already, writes it.
const SEALS: libc::c_int = SIZE_SEALS | libc::F_SEAL_FUTURE_WRITE;
const MAGIC: u64 = u64::from_be_bytes(*b"adverbKT");
/// Changes whenever the layout or the meaning of the table does.
const VERSION: u64 = 5;

// SAFETY: atomic words and padding.
unsafe impl Words for Contents {}

/// This process's table.
pub struct Table {
    contents: MappedMemory<Contents>,
    file: File,
}

impl Table {
    /// An empty table, with words about it that its readers need, such as the secret by which a key leads to
    /// its entry.
    pub fn create(secrets: [u64; SECRETS]) -> io::Result<Table> {
        let file = memory::create::<Contents>(NAME)?;
        let contents = MappedMemory::<Contents>::new(&file, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        memory::seal(&file, SEALS)?;
        let header = &contents.header;
        for (word, secret) in header.secrets.iter().zip(secrets) {
            word.store(secret, Relaxed);
        }
        header.version.store(VERSION, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(Table { contents, file })
    }

    /// The descriptor by which other processes open it. They cannot write it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Publishes an entry under a name. It is withdrawn, and no process announces it any more. No other
    /// thread changes it meanwhile.
    ///
    /// # Panics
    /// If there is no such index.
    pub fn publish(&self, kind: Kind, index: usize, name: u32, words: [u64; WORDS]) {
        self.contents.publish(kind, index, name, words);
    }

    /// Takes an entry back, or does nothing if it is not there: no process finds it from now on. A process
    /// that has found it may go on to use it, until the caller has waited for that: see the [module](self).
    ///
    /// # Panics
    /// If there is no such index.
    pub fn withdraw(&self, kind: Kind, index: usize) {
        self.contents.withdraw(kind, index);
    }

    /// Says how much the queue pair that is published at an index has taken in from its peer. The transport
    /// above says what is counted.
    ///
    /// # Panics
    /// If there is no such index.
    #[inline]
    pub fn tell_taken(&self, index: usize, count: u64) {
        self.contents.tell_taken(index, count);
    }
}

/// Another process's table, or this one's own as another process sees it. Its owner may change any of it at
/// any time. These functions read each word once. The caller checks the copy.
pub struct Foreign(MappedMemory<Contents>);

impl Foreign {
    /// Opens a table. An error of the kind `InvalidData` if the descriptor is not that of a table of this
    /// version.
    pub fn open(descriptor: OwnedFd) -> io::Result<Foreign> {
        let file = memory::open::<Contents>(descriptor, SEALS)?;
        let contents = MappedMemory::<Contents>::new(&file, libc::PROT_READ, 0)?;
        let header = &contents.header;
        if header.magic.load(Acquire) != MAGIC || header.version.load(Relaxed) != VERSION {
            return Err(invalid("the memory is no table, or one of another version"));
        }
        Ok(Foreign(contents))
    }

    /// The words of an entry, if it is there under this name, and which publication they are of. If the
    /// caller has announced the entry before, the memory that they stand for stays as it is until the caller
    /// takes the announcement back.
    #[inline]
    pub fn get(&self, kind: Kind, index: usize, name: u32) -> Option<(Stamp, [u64; WORDS])> {
        self.0.get(kind, index, name)
    }

    /// Whether a publication that [`get`](Self::get) has found stands. Then `get` would have answered with
    /// the same words now.
    #[inline]
    pub fn stands(&self, kind: Kind, index: usize, stamp: Stamp) -> bool {
        self.0.stands(kind, index, stamp)
    }

    /// The words that the table was made with.
    pub fn secrets(&self) -> [u64; SECRETS] {
        std::array::from_fn(|index| self.0.header.secrets[index].load(Relaxed))
    }

    /// What the owner has [said](Table::tell_taken) last of the queue pair at an index. All that this counts
    /// has been done to the owner's memory before.
    #[inline]
    pub fn taken(&self, index: usize) -> u64 {
        self.0.taken(index)
    }

    /// Where a queue pair is published. It looks at all that are: the low indices had better be used first,
    /// and again.
    pub fn find(&self, name: u32) -> Option<usize> {
        self.0.find(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::InvalidData;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn descriptor(table: &Table) -> OwnedFd {
        table.descriptor().try_clone_to_owned().unwrap()
    }

    fn pair() -> (Table, Foreign) {
        let table = Table::create([1, 2, 3, u64::MAX]).unwrap();
        let foreign = Foreign::open(descriptor(&table)).unwrap();
        (table, foreign)
    }

    #[test]
    fn a_published_entry_is_found_by_its_index_and_name() {
        let (table, foreign) = pair();
        assert_eq!(foreign.secrets(), [1, 2, 3, u64::MAX]);
        let words = [9, 8, 7, 6, 5, 4, u64::MAX];
        let words_of = |kind, index, name| foreign.get(kind, index, name).map(|(_, words)| words);
        for (kind, last) in [(Kind::Key, KEYS - 1), (Kind::Pair, PAIRS - 1)] {
            for index in [0, 1, last] {
                for name in [0, 0xFFFF_FFFF] {
                    assert_eq!(foreign.get(kind, index, name), None);
                    table.publish(kind, index, name, words);
                    assert_eq!(words_of(kind, index, name), Some(words));
                    assert_eq!(foreign.get(kind, index, !name), None);
                    let (stamp, _) = foreign.get(kind, index, name).unwrap();
                    assert!(foreign.stands(kind, index, stamp) && !foreign.stands(kind, index + 2, stamp));
                    table.withdraw(kind, index);
                    table.withdraw(kind, index);
                    assert!(!foreign.stands(kind, index, stamp));
                    // The same once more is another publication.
                    table.publish(kind, index, name, words);
                    assert!(!foreign.stands(kind, index, stamp));
                    assert_eq!(words_of(kind, index, name), Some(words));
                    table.withdraw(kind, index);
                    assert_eq!(foreign.get(kind, index, name), None);
                }
            }
            table.publish(kind, 5, 1, words);
            for index in [last + 1, last + 6, usize::MAX / 64, usize::MAX] {
                assert_eq!(foreign.get(kind, index, 1), None);
            }
        }
        assert_eq!(words_of(Kind::Key, 5, 1), Some(words));
        table.withdraw(Kind::Pair, 5);
        assert_eq!(words_of(Kind::Key, 5, 1), Some(words));
    }

    #[test]
    fn queue_pairs_are_found_by_name() {
        let (table, foreign) = pair();
        assert_eq!(foreign.find(7), None);
        for (index, name) in [(3, 7), (0, 8), (PAIRS - 1, 9)] {
            table.publish(Kind::Key, index, name, [0; WORDS]);
            assert_eq!(foreign.find(name), None);
            table.publish(Kind::Pair, index, name, [0; WORDS]);
            assert_eq!(foreign.find(name), Some(index));
        }
        table.withdraw(Kind::Pair, 3);
        assert_eq!((foreign.find(7), foreign.find(8)), (None, Some(0)));
    }

    #[test]
    fn the_progress_of_a_queue_pair_is_read_from_the_table() {
        let (table, foreign) = pair();
        for index in [0, 1, PAIRS - 1] {
            assert_eq!(foreign.taken(index), 0);
            table.tell_taken(index, u64::MAX - index as u64);
            assert_eq!(foreign.taken(index), u64::MAX - index as u64);
        }
        assert_eq!(foreign.taken(2), 0);
        for index in [PAIRS, usize::MAX] {
            assert_eq!(foreign.taken(index), 0);
        }
    }

    #[test]
    fn it_takes_the_memory_of_what_is_published() {
        let (table, foreign) = pair();
        for index in 0..64 {
            table.publish(Kind::Key, index, 1, [0; 7]);
        }
        assert!(foreign.get(Kind::Key, 63, 1).is_some());
        let blocks = table.file.metadata().unwrap().blocks();
        // Pages may be large ones.
        assert!(blocks * 512 < size_of::<Contents>() as u64 / 8, "{blocks} blocks");
    }

    #[test]
    fn others_cannot_write_it_or_change_its_size() {
        let (table, _foreign) = pair();
        let file = File::from(descriptor(&table));
        assert!(file.write_at(&[1], 0).is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(1 << 40).is_err());
        assert!(MappedMemory::<Contents>::new(&file, libc::PROT_READ | libc::PROT_WRITE, 0).is_err());
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate(2) on a descriptor of ours.
        let punched = unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), flags, 0, 4096) };
        assert_ne!(punched, 0);
        // Its owner still can.
        table.publish(Kind::Key, 1, 1, [1; 7]);
    }

    #[test]
    fn only_a_sealed_table_is_opened() {
        let open =
            |file: &File| Foreign::open(file.try_clone().unwrap().into()).err().map(|error| error.kind());
        let make = |version: u64, magic: u64| {
            let file = memory::create::<Contents>(NAME).unwrap();
            file.write_at(&magic.to_ne_bytes(), 0).unwrap();
            file.write_at(&version.to_ne_bytes(), 8).unwrap();
            file
        };
        let file = make(VERSION, MAGIC);
        assert_eq!(open(&file), Some(InvalidData), "without seals");
        memory::seal(&file, SIZE_SEALS & !libc::F_SEAL_SEAL).unwrap();
        assert_eq!(open(&file), Some(InvalidData), "others may write it");
        memory::seal(&file, SEALS).unwrap();
        assert_eq!(open(&file), None);
        for (version, magic) in [(VERSION + 1, MAGIC), (VERSION, !MAGIC), (0, 0)] {
            let file = make(version, magic);
            memory::seal(&file, SEALS).unwrap();
            assert_eq!(open(&file), Some(InvalidData), "{version} {magic:x}");
        }
        for size in [0, 4096, size_of::<Contents>() as u64 - 1, size_of::<Contents>() as u64 + 1] {
            let file = make(VERSION, MAGIC);
            file.set_len(size).unwrap();
            memory::seal(&file, SEALS).unwrap();
            assert_eq!(open(&file), Some(InvalidData), "{size} bytes");
        }
        assert_eq!(open(&File::open("/dev/zero").unwrap()), Some(InvalidData), "no memory");
    }

    /// A hostile owner: whatever stands there, look-ups answer.
    #[test]
    fn garbage_is_answered_with_garbage() {
        let (table, foreign) = pair();
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random >> 16
        };
        for secret in &table.contents.header.secrets {
            secret.store(next(), Relaxed);
        }
        table.contents.header.pairs_end.store(u64::MAX, Relaxed);
        assert_eq!(foreign.find(7), None);
        assert_ne!(foreign.secrets(), [1, 2, 3, u64::MAX]);
    }
}
