//! Memory that the program owns alone, or the engine while a request is in flight.

use super::{Allocation, ExclusiveMemory, MemoryRegion, ProtectionDomain, resolve};
use crate::Result;
use adverb_core::memory::Access;
use adverb_core::request::Sge;
use std::fmt;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::sync::Arc;

/// Registered bytes of the program's own, which no peer can reach: use it as a `[u8]`.
///
/// A request takes the buffer with it and its completion brings it back, so nobody can look at bytes that are
/// being received or change bytes that are being sent.
///
/// ```
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let mut head = domain.buffer(100)?;
/// head.fill(7);
/// let tail = head.split_off(60);
/// assert_eq!((head.len(), tail.len(), tail[0]), (60, 40, 7));
/// # Ok(())
/// # }
/// ```
pub struct Buffer {
    allocation: Arc<Allocation>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub(super) fn new(domain: &ProtectionDomain, length: usize) -> Result<Self> {
        Ok(Self::of(Allocation::new(domain, length, Access::LOCAL_WRITE)?))
    }

    /// All of an allocation, which nobody else uses.
    pub(super) fn of(allocation: Arc<Allocation>) -> Self {
        let length = allocation.length();
        Self { allocation, start: 0, length }
    }

    /// Keeps the bytes before `at`, and returns the others as a buffer of the same registration.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A head and a body of one registration.
    /// let mut head = domain.buffer(1040)?;
    /// let body = head.split_off(16);
    /// assert_eq!((head.len(), body.len()), (16, 1024));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If `at` is more than the length.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.length, "byte {at} of a buffer of {}", self.length);
        let rest =
            Buffer { allocation: self.allocation.clone(), start: self.start + at, length: self.length - at };
        self.length = at;
        rest
    }

    /// Ends the registration, and gives back the memory that [`ProtectionDomain::register_buffer`] has taken.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // The program's own vector, without a copy before the requests or after them.
    /// let vector = vec![7; 4096];
    /// let place = vector.as_ptr();
    /// let buffer = domain.register_buffer(vector)?;
    /// let vector: Vec<u8> = buffer.deregister().expect("no request has a part of it");
    /// assert_eq!((vector.as_ptr(), vector.len()), (place, 4096));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffer again, if another part of it exists or is in flight ([`Buffer::split_off`]), or if the
    /// memory is not of the type `M`.
    pub fn deregister<M: ExclusiveMemory>(self) -> Result<M, Buffer> {
        let (start, length) = (self.start, self.length);
        self.allocation.give_back().map_err(|allocation| Buffer { allocation, start, length })
    }

    /// The part of the buffer that a request is to send from or receive into. The completion brings the whole
    /// buffer back.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let mut buffer = client.domain().buffer(4096)?;
    /// buffer[..5].copy_from_slice(b"hello");
    /// client.post_send(WorkRequest::send(buffer.slice(..5)))?;
    /// assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"hello");
    /// assert_eq!(client.send_queue().wait(SOON)?.success()?.into_buffer().len(), 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Segment {
        let (start, length) = resolve(range, self.length);
        let start = self.start + start;
        Segment { whole: Some((self.start, self.length)), allocation: self.allocation, start, length }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside the live allocation, whose bytes are initialised (pages are zero at
        // first). Buffers of one allocation never overlap, no peer reaches it, and while a request refers to
        // the range there is no `Buffer` of it: so nobody writes.
        unsafe { std::slice::from_raw_parts(self.allocation.start().as_ptr().add(self.start), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `self` is borrowed exclusively, and nobody else has the range.
        unsafe {
            std::slice::from_raw_parts_mut(self.allocation.start().as_ptr().add(self.start), self.length)
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("length", &self.length).finish()
    }
}

/// The local bytes of a request: part of a [`Buffer`], which it owns, or of a [`MemoryRegion`], which it
/// shares.
///
/// ```
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// let segment = domain.buffer(4096)?.slice(..100);
/// assert_eq!(segment.len(), 100);
/// // The request sends 100 bytes, and its completion brings back all of the buffer.
/// let buffer = segment.into_buffer().expect("it was a buffer");
/// assert_eq!(buffer.len(), 4096);
/// # Ok(())
/// # }
/// ```
pub struct Segment {
    allocation: Arc<Allocation>,
    /// The range of the buffer that this was, if it was one.
    whole: Option<(usize, usize)>,
    start: usize,
    length: usize,
}

impl Segment {
    pub(super) fn of_region(allocation: &Arc<Allocation>, start: usize, length: usize) -> Self {
        Self { allocation: allocation.clone(), whole: None, start, length }
    }

    /// Bytes that the request may use.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let buffer = domain.buffer(4096)?;
    /// // A request carries the bytes of its segment, and not those of the whole buffer.
    /// let segment = buffer.slice(100..164);
    /// assert_eq!(segment.len(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let message = domain.buffer(64)?;
    /// // A Send of no bytes is a message all the same: it takes a receive of the peer.
    /// let nothing = message.slice(..0);
    /// assert!(nothing.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The buffer again; none if the segment was part of a [`MemoryRegion`].
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A request that is not to be posted after all:
    /// let segment = domain.buffer(4096)?.slice(..100);
    /// assert_eq!(segment.into_buffer().map(|buffer| buffer.len()), Some(4096));
    /// // A region is still in the hands of the program.
    /// let region = domain.memory_region(4096, Rights::READ)?;
    /// assert!(region.slice(..100).into_buffer().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_buffer(self) -> Option<Buffer> {
        let (start, length) = self.whole?;
        Some(Buffer { allocation: self.allocation, start, length })
    }

    /// Number of its protection domain.
    #[inline]
    pub(crate) fn domain(&self) -> u32 {
        self.allocation.domain()
    }

    /// The part as an element of a work request; none if the length does not fit into one element.
    #[inline]
    pub(crate) fn element(&self) -> Option<Sge> {
        Some(Sge {
            address: self.allocation.start().as_ptr() as u64 + self.start as u64,
            length: u32::try_from(self.length).ok()?,
            lkey: self.allocation.key(),
        })
    }
}

impl From<Buffer> for Segment {
    fn from(buffer: Buffer) -> Self {
        buffer.slice(..)
    }
}

impl From<&MemoryRegion> for Segment {
    fn from(region: &MemoryRegion) -> Self {
        region.slice(..)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("length", &self.length).field("owned", &self.whole.is_some()).finish()
    }
}
