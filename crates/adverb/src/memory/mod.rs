//! Registered memory: [`Buffer`]s that the program owns alone, [`MemoryRegion`]s that peers reach, and
//! [`RemoteMemory`], the token that names a peer's region.

mod allocation;
mod buffer;
mod program;
mod region;
mod remote;
mod segments;
mod window;

pub(crate) use allocation::Allocation;
pub use buffer::{Buffer, Segment};
pub use program::{ExclusiveMemory, FileMapping, Mapping, NotRegistered, StableMemory};
pub use region::{MemoryRegion, Rights};
pub use remote::RemoteMemory;
pub(crate) use segments::Elements;
pub use segments::Segments;
pub use window::MemoryWindow;

use crate::queue_pair::begin;
use crate::{
    Context, DatagramQueuePair, Error, QueuePair, QueuePairOptions, Result, SharedReceiveQueue,
    UnreliableQueuePair, XrcInitiator,
};
use adverb_core::memory::Access;
use adverb_core::qp::Service;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: memory and queue pairs of one domain work together, those of two never do. A peer
/// reaches a [`MemoryRegion`] only over queue pairs of the region's own domain. Cheap to clone, thread-safe.
///
/// ```
/// use adverb::{Context, QueuePairOptions, Rights};
///
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// let domain = context.protection_domain()?;
/// // Memory of this program's requests, in one registration:
/// let buffers = domain.buffers(16, 4096)?;
/// // Memory for peers:
/// let region = domain.memory_region(1 << 20, Rights::READ | Rights::WRITE)?;
/// // And a queue pair over which peers reach the region:
/// let completions = context.completion_queue(256)?;
/// let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
/// for (id, buffer) in (0..).zip(buffers) {
///     queue_pair.post_receive(id, buffer)?;
/// }
/// assert_eq!(queue_pair.in_flight(), 16);
/// # drop(region);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ProtectionDomain {
    context: Context,
    pub(crate) core: Arc<adverb_core::region::ProtectionDomain>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let core = adverb_core::region::ProtectionDomain::new(&context.0)?;
        Ok(Self { context: context.clone(), core })
    }

    /// The domain's number in the engine.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.core.number()
    }

    /// The context it belongs to.
    ///
    /// ```
    /// use adverb::{ProtectionDomain, QueuePair, QueuePairOptions};
    ///
    /// /// A queue pair, of a domain alone: the completion queue comes from the same context.
    /// fn queue_pair(domain: &ProtectionDomain) -> adverb::Result<QueuePair> {
    ///     let completions = domain.context().completion_queue(64)?;
    ///     domain.queue_pair(QueuePairOptions::new(&completions))
    /// }
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// assert!(queue_pair(&domain)?.send_queue().capacity() >= 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// `length` bytes of registered memory, all zero, that no peer can reach.
    ///
    /// Each call maps and registers whole pages: for many small buffers take one and divide it, with
    /// [`ProtectionDomain::buffers`] or [`Buffer::split_off`].
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A message is written where it is sent from.
    /// let mut buffer = domain.buffer(64)?;
    /// buffer[..5].copy_from_slice(b"hello");
    /// assert_eq!((&buffer[..5], buffer[5..].iter().all(|byte| *byte == 0)), (&b"hello"[..], true));
    /// assert!(domain.buffer(0).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for no bytes or more than the device's `max_mr_size`; ENOMEM when memory or keys have run out.
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        Buffer::new(self, length)
    }

    /// `count` buffers of `length` bytes each, under one registration.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let buffers = domain.buffers(100, 64)?;
    /// assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [64; 100]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`] for all the bytes together.
    pub fn buffers(&self, count: usize, length: usize) -> Result<Vec<Buffer>> {
        let mut rest = self.buffer(count.saturating_mul(length))?;
        let mut buffers = Vec::with_capacity(count);
        for _ in 1..count {
            let next = rest.split_off(length);
            buffers.push(std::mem::replace(&mut rest, next));
        }
        buffers.push(rest);
        Ok(buffers)
    }

    /// `length` bytes of registered memory, all zero, that peers may use as `rights` says, from now until the
    /// last clone of the region is dropped.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // A table that peers read, and a mailbox that they write to.
    /// let table = domain.memory_region(1 << 16, Rights::READ)?;
    /// let mailbox = domain.memory_region(4096, Rights::WRITE)?;
    /// assert_ne!(table.remote().key(), mailbox.remote().key());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn memory_region(&self, length: usize, rights: Rights) -> Result<MemoryRegion> {
        MemoryRegion::new(self, length, rights)
    }

    /// Registers memory of the program as a [`Buffer`], which no peer can reach. [`Buffer::deregister`] gives
    /// it back.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`]; the memory comes back in the error.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let mut buffer = domain.register_buffer(vec![7; 100])?;
    /// buffer[0] = 8;
    /// let vector: Vec<u8> = buffer.deregister().expect("nobody else has a part of it");
    /// assert_eq!((vector.len(), vector[0], vector[99]), (100, 8, 7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_buffer<M: ExclusiveMemory>(&self, memory: M) -> Result<Buffer, NotRegistered<M>> {
        let allocation = Allocation::of(self, memory, Access::LOCAL_WRITE);
        let refused = |(error, memory): (adverb_core::error::Error, M)| NotRegistered {
            error: Error::from(error),
            memory,
        };
        allocation.map(Buffer::of).map_err(refused)
    }

    /// Registers memory of the program as a [`MemoryRegion`], which peers may use as `rights` says.
    /// [`MemoryRegion::deregister`] gives it back.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`]; the memory comes back in the error.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.register(vec![0; 4096], Rights::WRITE)?;
    /// region.write(0, b"as a peer does it");
    /// let vector: Vec<u8> = region.deregister().expect("this is the last clone");
    /// assert_eq!(&vector[..9], b"as a peer");
    /// # Ok(())
    /// # }
    /// ```
    pub fn register<M: StableMemory>(
        &self,
        memory: M,
        rights: Rights,
    ) -> Result<MemoryRegion, NotRegistered<M>> {
        let allocation = Allocation::of(self, memory, Access::LOCAL_WRITE | rights.access());
        let refused = |(error, memory): (adverb_core::error::Error, M)| NotRegistered {
            error: Error::from(error),
            memory,
        };
        allocation.map(|allocation| MemoryRegion::of(allocation, rights)).map_err(refused)
    }

    /// Registers `length` bytes at `start` that the caller keeps.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`]; EFAULT for bytes that are not mapped.
    ///
    /// # Safety
    /// Until the last clone of the region, and every request that uses a part of it, is gone, all of this
    /// holds:
    ///
    /// - The bytes stay mapped, initialised, readable and writable. A leaked clone ([`std::mem::forget`])
    ///   never goes.
    /// - No reference to the bytes exists in this program, other than to atomic words.
    /// - The program accesses them from other threads by atomic operations only.
    ///
    /// ```
    /// use adverb::Rights;
    /// use std::ptr::NonNull;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// static COUNTER: AtomicU64 = AtomicU64::new(5);
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let start = NonNull::from(&COUNTER).cast();
    /// // SAFETY: a static stays for ever, and all accesses to it are atomic.
    /// let region = unsafe { domain.register_raw(start, 8, Rights::ATOMIC)? };
    /// region.word(0).unwrap().fetch_add(1, Ordering::Relaxed);
    /// assert_eq!(COUNTER.load(Ordering::Relaxed), 6);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn register_raw(
        &self,
        start: NonNull<u8>,
        length: usize,
        rights: Rights,
    ) -> Result<MemoryRegion> {
        let access = Access::LOCAL_WRITE | rights.access();
        // SAFETY: the caller's promise; the region accesses the bytes by atomic operations alone.
        let allocation = unsafe { Allocation::raw(self, start, length, access)? };
        Ok(MemoryRegion::of(allocation, rights))
    }

    /// A queue pair that is ready for receives and to be connected.
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// let domain = context.protection_domain()?;
    /// let queue_pair = domain.queue_pair(QueuePairOptions::new(&context.completion_queue(256)?))?;
    /// // It takes receives before it is connected, so no message of the peer comes too early.
    /// queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// assert_eq!((queue_pair.in_flight(), queue_pair.is_connected()), (1, false));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for sizes beyond the device's limits or queues of another context; ENOMEM when the device is
    /// full.
    pub fn queue_pair(&self, options: QueuePairOptions) -> Result<QueuePair> {
        let rights = options.rights;
        QueuePair::new(self, options, Service::Rc, |core| begin(core, rights))
    }

    /// A memory window, which opens nothing yet.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let region = domain.memory_region(1 << 20, Rights::BIND)?;
    /// // One registration, and a window for each client: a window is opened and closed by a request.
    /// let (one, other) = (domain.memory_window()?, domain.memory_window()?);
    /// let (_, of_one) = one.bind(&region, ..4096, Rights::READ);
    /// let (_, of_other) = other.bind(&region, 4096..8192, Rights::READ);
    /// assert!(![of_other.key(), region.remote().key()].contains(&of_one.key()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EOPNOTSUPP on a device without windows; ENOMEM when it is full.
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        MemoryWindow::new(self)
    }

    /// A queue of at least `max_receives` receives that several queue pairs share, each of at most
    /// `max_scatter` segments.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // For a thousand clients that are seldom busy at once: 256 receives for all of them together.
    /// let shared = domain.shared_receive_queue(256, 1)?;
    /// for buffer in domain.buffers(256, 4096)? {
    ///     shared.post_receive(0, buffer)?;
    /// }
    /// assert!(shared.capacity() >= 256);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for sizes beyond the device's limits; ENOMEM when the device is full.
    pub fn shared_receive_queue(&self, max_receives: u32, max_scatter: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self, max_receives, max_scatter)
    }

    /// A queue pair of the service UC, which is connected by numbers.
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// let completions = domain.context().completion_queue(256)?;
    /// let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// // The numbers for the peer, which makes such a queue pair, too.
    /// let address = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// assert_ne!(address.number, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::queue_pair`]; EOPNOTSUPP on a device without the service, as `iwarp0`.
    pub fn unreliable_queue_pair(&self, options: QueuePairOptions) -> Result<UnreliableQueuePair> {
        let rights = options.rights;
        QueuePair::new(self, options, Service::Uc, |core| begin(core, rights)).map(UnreliableQueuePair)
    }

    /// The sending end of an XRC connection. The options of receives mean nothing.
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// // It receives nothing, so its completion queue has room for the sends alone.
    /// let sends = domain.context().completion_queue(128)?;
    /// let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// assert_ne!(initiator.raw_address("127.0.0.1".parse().unwrap())?.number, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::queue_pair`]; EOPNOTSUPP on a device without the service, as `iwarp0`.
    pub fn xrc_initiator(&self, options: QueuePairOptions) -> Result<XrcInitiator> {
        let rights = options.rights;
        QueuePair::new(self, options, Service::XrcSend, |core| begin(core, rights)).map(XrcInitiator)
    }

    /// A queue pair of datagrams (UD). Those who send to it must know `qkey`.
    ///
    /// ```
    /// use adverb::{AddressHandle, DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 0x1234)?;
    /// queue_pair.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// // A datagram with another key is lost.
    /// for (text, key) in [(b"lost!", 0x1235), (b"found", 0x1234)] {
    ///     queue_pair.post_send(DatagramRequest::send(text, &way, queue_pair.number(), key).unsignalled())?;
    /// }
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(received.datagram(), Some(&b"found"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::queue_pair`]; EOPNOTSUPP on a device without the service, as `iwarp0`.
    pub fn datagram_queue_pair(&self, options: QueuePairOptions, qkey: u32) -> Result<DatagramQueuePair> {
        DatagramQueuePair::new(self, options, qkey)
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("number", &self.core.number()).finish()
    }
}

/// First byte and length of `range` in something of `length` bytes.
///
/// # Panics
/// When the range passes its end or ends before it begins, as for slices.
#[track_caller]
pub(crate) fn resolve(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let (start, end) = bounds(range, length);
    assert!(start <= end && end <= length, "bytes {start}..{end} of memory that has {length}");
    (start, end - start)
}

/// First byte and length of `range` in something of `length` bytes, as [`resolve`]. None where [`resolve`]
/// panics.
pub(crate) fn try_resolve(range: impl RangeBounds<usize>, length: usize) -> Option<(usize, usize)> {
    // The last byte that there could be has no byte behind it.
    if matches!(range.end_bound(), Bound::Included(&usize::MAX)) {
        return None;
    }
    let (start, end) = bounds(range, length);
    (start <= end && end <= length).then(|| (start, end - start))
}

fn bounds(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => length,
    };
    (start, end)
}
