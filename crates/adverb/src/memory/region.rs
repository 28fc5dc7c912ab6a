//! Memory that peers reach.

use super::{Allocation, NotRegistered, ProtectionDomain, RemoteMemory, Segment, StableMemory, resolve};
use crate::Result;
use adverb_core::memory::Access;
use bitflags::bitflags;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

bitflags! {
    /// The rights of peers: with a [`MemoryRegion`], or over a [`QueuePair`](crate::QueuePair). A request
    /// must be permitted by both.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// let rights = Rights::READ | Rights::ATOMIC;
    /// assert!(rights.contains(Rights::READ) && !rights.contains(Rights::WRITE));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// RDMA Read.
        ///
        /// ```
        /// use adverb::{Rights, Status, WorkRequest};
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
        /// # fn main() -> adverb::Result<()> {
        /// # let (client, _server, region, there) = ends_with_region(Rights::READ)?;
        /// // A table that peers look at, and do not change:
        /// client.post_send(WorkRequest::read(client.domain().buffer(64)?, &there))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::Success);
        /// // A Write changes nothing, and ends the connection.
        /// client.post_send(WorkRequest::write(b"no", &there))?;
        /// assert!(client.wait_ended(SOON).is_some());
        /// assert_eq!(region.to_vec(..2), [0; 2]);
        /// # Ok(())
        /// # }
        /// ```
        const READ = 1;
        /// RDMA Write.
        ///
        /// ```
        /// use adverb::{Rights, Status, WorkRequest};
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
        /// # fn main() -> adverb::Result<()> {
        /// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE)?;
        /// // A mailbox, in which no peer sees the letters of the others:
        /// client.post_send(WorkRequest::write(b"a letter", &there))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::Success);
        /// client.post_send(WorkRequest::read(client.domain().buffer(8)?, &there))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::RemoteAccess);
        /// # Ok(())
        /// # }
        /// ```
        const WRITE = 1 << 1;
        /// Atomic operations.
        ///
        /// ```
        /// use adverb::{Rights, Status, WorkRequest};
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
        /// # fn main() -> adverb::Result<()> {
        /// # let (client, _server, region, there) = ends_with_region(Rights::ATOMIC)?;
        /// // A counter that peers add to, and do not overwrite:
        /// client.post_send(WorkRequest::fetch_add(client.domain().buffer(8)?, &there, 5))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::Success);
        /// client.post_send(WorkRequest::write(&[0; 8], &there))?;
        /// assert!(client.wait_ended(SOON).is_some());
        /// assert_eq!(region.to_vec(..8), 5_u64.to_ne_bytes());
        /// # Ok(())
        /// # }
        /// ```
        const ATOMIC = 1 << 2;
        /// Flushes ([`WorkRequest::flush`](crate::WorkRequest::flush)).
        ///
        /// ```
        /// use adverb::{Rights, WorkRequest};
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
        /// # fn main() -> adverb::Result<()> {
        /// # let (client, _server, region, there) = ends_with_region(Rights::WRITE | Rights::FLUSH)?;
        /// # if !client.domain().context().attributes().operations.contains(&adverb::Opcode::Flush) {
        /// #     return Ok(());
        /// # }
        /// // The region has both rights: a Flush is about earlier Writes.
        /// client.post_send(WorkRequest::write(b"a record", &there).unsignalled())?;
        /// client.post_send(WorkRequest::flush(&there))?;
        /// client.send_queue().wait(SOON)?.success()?;
        /// assert_eq!(region.to_vec(..8), b"a record");
        /// # Ok(())
        /// # }
        /// ```
        const FLUSH = 1 << 3;
        /// Memory windows may open parts of the region ([`MemoryWindow`](crate::MemoryWindow)). A right of
        /// this program, not of peers.
        ///
        /// ```
        /// use adverb::{Rights, Status, WorkRequest};
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
        /// # fn main() -> adverb::Result<()> {
        /// # let (client, server, region, there) = ends_with_region(Rights::BIND)?;
        /// let window = server.domain().memory_window()?;
        /// let (bind, token) = window.bind(&region, 64..128, Rights::READ);
        /// server.post_send(bind)?;
        /// server.send_queue().wait(SOON)?.success()?;
        /// // The peer reaches the part that the window opens, and nothing by the region itself.
        /// client.post_send(WorkRequest::read(client.domain().buffer(64)?, &token))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::Success);
        /// client.post_send(WorkRequest::read(client.domain().buffer(64)?, &there))?;
        /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::RemoteAccess);
        /// # Ok(())
        /// # }
        /// ```
        const BIND = 1 << 4;
    }
}

impl Rights {
    pub(crate) fn access(self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, self.contains(Self::READ));
        access.set(Access::REMOTE_WRITE, self.contains(Self::WRITE));
        access.set(Access::REMOTE_ATOMIC, self.contains(Self::ATOMIC));
        access.set(Access::FLUSH_GLOBAL, self.contains(Self::FLUSH));
        access.set(Access::MW_BIND, self.contains(Self::BIND));
        access
    }
}

/// Registered bytes that peers may read, write or update at any moment, as far as its [`Rights`] go, without
/// this program taking part. Clones are the same region; peers are refused from the moment when the last
/// clone is dropped.
///
/// Since the bytes may change under the program's eyes there is no `&[u8]` of them: they are copied in and
/// out, or accessed as atomic words. The last word of a message that a peer writes becomes visible last, and
/// everything of an earlier message becomes visible before anything of a later one. So a program that sees
/// the last word (with [`Ordering::Acquire`]) sees all before it. Thread-safe.
///
/// ```
/// use adverb::Rights;
/// use std::sync::atomic::Ordering;
///
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let region = domain.memory_region(4096, Rights::READ | Rights::ATOMIC)?;
/// region.write(100, b"peers may read this");
/// region.words()[0].store(42, Ordering::Release);
/// assert_eq!(region.to_vec(100..105), b"peers");
///
/// // What a peer needs to know, to be sent to it somehow:
/// let token = region.remote().to_bytes();
/// assert_eq!(token.len(), adverb::RemoteMemory::BYTES);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryRegion {
    allocation: Arc<Allocation>,
    rights: Rights,
}

impl MemoryRegion {
    pub(super) fn new(domain: &ProtectionDomain, length: usize, rights: Rights) -> Result<Self> {
        let allocation = Allocation::new(domain, length, Access::LOCAL_WRITE | rights.access())?;
        Ok(Self::of(allocation, rights))
    }

    pub(super) fn of(allocation: Arc<Allocation>, rights: Rights) -> Self {
        Self { allocation, rights }
    }

    /// Ends the registration, and gives back the memory that [`ProtectionDomain::register`] has taken. From
    /// then on peers are refused.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.register(vec![7; 64], Rights::READ)?;
    /// let clone = region.clone();
    /// let region = region.deregister::<Vec<u8>>().expect_err("there is another clone");
    /// drop(clone);
    /// let vector: Vec<u8> = region.deregister().expect("this is the last clone");
    /// assert_eq!(vector, [7; 64]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The region again, if there is another clone, if a request in flight uses a part of it, or if the
    /// memory is not of the type `M`.
    pub fn deregister<M: StableMemory>(self) -> Result<M, MemoryRegion> {
        let rights = self.rights;
        self.allocation.give_back().map_err(|allocation| MemoryRegion { allocation, rights })
    }

    /// Changes the rights of peers; the key stays (`ibv_rereg_mr`). When it returns, no peer has the old
    /// rights any more.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.register(vec![0; 4096], Rights::WRITE)?;
    /// let key = region.remote().key();
    /// let region = region.reregister(Rights::READ)?;
    /// assert_eq!((region.rights(), region.remote().key()), (Rights::READ, key));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EBUSY while another clone exists, a request in flight uses a part, or windows are bound. EOPNOTSUPP
    /// for memory of this crate: only memory of the program can be changed. The region comes back in the
    /// error.
    pub fn reregister(self, rights: Rights) -> Result<MemoryRegion, NotRegistered<MemoryRegion>> {
        let before = self.rights;
        match self.allocation.change(Access::LOCAL_WRITE | rights.access()) {
            Ok(allocation) => Ok(Self { allocation, rights }),
            Err((error, allocation)) => {
                Err(NotRegistered { error, memory: Self { allocation, rights: before } })
            }
        }
    }

    /// The length in bytes.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(4096, Rights::READ)?;
    /// // A table of records of 64 bytes:
    /// let records = region.len() / 64;
    /// assert_eq!(records, 64);
    /// assert_eq!(region.remote().len(), region.len() as u64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.allocation.length()
    }

    /// Whether there are none: never so.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A region of no bytes is refused when it is made.
    /// assert!(domain.memory_region(0, Rights::READ).is_err());
    /// assert!(!domain.memory_region(1, Rights::READ)?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What peers may do.
    ///
    /// ```
    /// use adverb::{MemoryRegion, RemoteMemory, Rights};
    ///
    /// /// The token for a peer that is to write, of a region that permits this.
    /// fn mailbox(region: &MemoryRegion) -> Option<RemoteMemory> {
    ///     region.rights().contains(Rights::WRITE).then(|| region.remote())
    /// }
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// assert!(mailbox(&domain.memory_region(64, Rights::WRITE)?).is_some());
    /// assert!(mailbox(&domain.memory_region(64, Rights::READ)?).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The token by which peers name the region: send it to those who may use it.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(4096, Rights::READ)?;
    /// // For a peer that may read the second half:
    /// let token = region.remote().slice(2048..).expect("the region has so much");
    /// assert_eq!((token.len(), token.key()), (2048, region.remote().key()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remote(&self) -> RemoteMemory {
        let address = self.allocation.start().as_ptr() as u64;
        RemoteMemory::new(address, self.len() as u64, self.allocation.key())
    }

    /// Part of the region, as the local bytes of a request of this side.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let region = client.domain().memory_region(4096, Rights::empty())?;
    /// region.write(100, b"from the middle");
    /// client.post_send(WorkRequest::send(region.slice(100..115)))?;
    /// assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"from the middle");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Segment {
        let (start, length) = resolve(range, self.len());
        Segment::of_region(&self.allocation, start, length)
    }

    /// The bytes as atomic words of 8, in the machine's byte order; the last word may have bytes past
    /// [`MemoryRegion::len`].
    ///
    /// Of memory that the program has registered itself, only whole words count. There are none if that
    /// memory does not begin at a multiple of 8: then use [`MemoryRegion::word`].
    ///
    /// ```
    /// use adverb::Rights;
    /// use std::sync::atomic::Ordering;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A counter for each of 16 peers.
    /// let region = domain.memory_region(16 * 8, Rights::ATOMIC)?;
    /// let total: u64 = region.words().iter().map(|word| word.load(Ordering::Acquire)).sum();
    /// assert_eq!((region.words().len(), total), (16, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.allocation.start().as_ptr();
        let count = match self.allocation.is_padded() {
            true => self.len().div_ceil(8),
            false if start.addr().is_multiple_of(8) => self.len() / 8,
            false => 0,
        };
        if count == 0 {
            return &[];
        }
        // SAFETY: the bytes are live as long as `self`, initialised and aligned; pages are mapped up to a
        // multiple of 8. Nothing in this program accesses them but by these atomic words; the engine's copies
        // are not Rust accesses.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), count) }
    }

    /// The 8 bytes from `offset` on as an atomic word, in the machine's byte order. None if they pass the
    /// end, or if their address is no multiple of 8.
    ///
    /// ```
    /// use adverb::Rights;
    /// use std::sync::atomic::Ordering;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(64, Rights::READ)?;
    /// let sequence = region.word(56).expect("the last eight bytes");
    /// sequence.fetch_add(1, Ordering::Release);
    /// assert!(region.word(60).is_none() && region.word(4).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let inside = offset.checked_add(8).is_some_and(|end| end <= self.len());
        // SAFETY: the address lies within the live allocation.
        let place = inside.then(|| unsafe { self.allocation.start().as_ptr().add(offset) });
        let place = place.filter(|place| place.addr().is_multiple_of(8))?;
        // SAFETY: eight live, initialised, aligned bytes, which nothing in this program accesses but by
        // atomic words.
        Some(unsafe { &*place.cast::<AtomicU64>() })
    }

    /// Where the parts of a range begin that are accessed together: an aligned word of 8, or a part of one.
    /// `part` gets the offset and the number of bytes of each.
    fn parts(&self, offset: usize, length: usize, mut part: impl FnMut(usize, usize)) {
        let start = self.allocation.start().as_ptr().addr();
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let count = (8 - (start + at) % 8).min(end - at);
            part(at, count);
            at += count;
        }
    }

    /// The word around the byte at `offset`, and which byte of the word that is. None if bytes of the word
    /// are not the region's: these may be somebody else's.
    fn word_around(&self, offset: usize) -> Option<(&AtomicU64, usize)> {
        let start = self.allocation.start().as_ptr();
        let inside = (start.addr() + offset) % 8;
        let first = offset.checked_sub(inside)?;
        if self.allocation.is_padded() {
            return Some((&self.words()[first / 8], inside));
        }
        Some((self.word(first)?, inside))
    }

    /// One byte of a word that is not the region's alone.
    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len());
        // SAFETY: a live, initialised byte. Whether a byte belongs to a whole word of the region never
        // changes, so all accesses of this program to this one are of a byte.
        unsafe { AtomicU8::from_ptr(self.allocation.start().as_ptr().add(offset)) }
    }

    /// Copies the bytes from `offset` on into `target`. A peer that writes meanwhile may be seen half way,
    /// never within an aligned word of 8.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(64, Rights::WRITE)?;
    /// region.write(10, b"somewhere");
    /// let mut copy = [0; 4];
    /// region.read(10, &mut copy);
    /// assert_eq!(&copy, b"some");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        resolve(offset..offset.saturating_add(target.len()), self.len());
        self.parts(offset, target.len(), |at, count| {
            let part = &mut target[at - offset..at - offset + count];
            match self.word_around(at) {
                Some((word, inside)) => {
                    let word = word.load(Ordering::Acquire).to_ne_bytes();
                    part.copy_from_slice(&word[inside..inside + count]);
                }
                None => {
                    for (place, byte) in (at..).zip(part) {
                        *byte = self.byte(place).load(Ordering::Acquire);
                    }
                }
            }
        });
    }

    /// Copies `source` to the bytes from `offset` on, in ascending order. Nothing beside them is touched,
    /// even if a peer changes their neighbours meanwhile.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::READ)?;
    /// // The owner of a table changes it while peers read.
    /// region.write(64, b"the second record");
    /// let record = there.slice(64..81).expect("the region has so much");
    /// client.post_send(WorkRequest::read(client.domain().buffer(17)?, &record))?;
    /// let copy = client.send_queue().wait(SOON)?.success()?.into_buffer();
    /// assert_eq!(&copy[..], b"the second record");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn write(&self, offset: usize, source: &[u8]) {
        resolve(offset..offset.saturating_add(source.len()), self.len());
        self.parts(offset, source.len(), |at, count| {
            let part = &source[at - offset..at - offset + count];
            match (self.word_around(at), <[u8; 8]>::try_from(part)) {
                (Some((word, _)), Ok(whole)) => word.store(u64::from_ne_bytes(whole), Ordering::Release),
                (Some((word, inside)), Err(_)) => {
                    let merge = |old: u64| {
                        let mut word = old.to_ne_bytes();
                        word[inside..inside + count].copy_from_slice(part);
                        Some(u64::from_ne_bytes(word))
                    };
                    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, merge);
                }
                (None, _) => {
                    for (place, byte) in (at..).zip(part) {
                        self.byte(place).store(*byte, Ordering::Release);
                    }
                }
            }
        });
    }

    /// A copy of the bytes of `range`.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(64, Rights::WRITE)?;
    /// region.write(0, b"all of it");
    /// assert_eq!((region.to_vec(..3), region.to_vec(..).len()), (b"all".to_vec(), 64));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Vec<u8> {
        let (start, length) = resolve(range, self.len());
        let mut bytes = vec![0; length];
        self.read(start, &mut bytes);
        bytes
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("length", &self.len()).field("rights", &self.rights).finish()
    }
}
