//! Registered memory: [`Buffer`]s that the program owns alone, [`MemoryRegion`]s that peers reach, and [`RemoteMemory`], the token
//! that names a peer's region.

mod buffer;
mod region;
mod remote;

pub use buffer::{Buffer, Segment};
pub use region::{MemoryRegion, Rights};
pub use remote::RemoteMemory;

use crate::{Context, QueuePair, QueuePairOptions, Result};
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A protection domain: memory and queue pairs of one domain work together, those of two never do. A peer reaches a
/// [`MemoryRegion`] only over queue pairs of the region's own domain. Cheap to clone, thread-safe.
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

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// `length` bytes of registered memory, all zero, that no peer can reach.
    ///
    /// Each call maps and registers whole pages: for many small buffers take one and divide it, with [`ProtectionDomain::buffers`]
    /// or [`Buffer::split_off`].
    ///
    /// # Errors
    /// EINVAL for no bytes or more than the device's `max_mr_size`; ENOMEM when memory or keys have run out.
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        Buffer::new(self, length)
    }

    /// `count` buffers of `length` bytes each, under one registration.
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

    /// `length` bytes of registered memory, all zero, that peers may use as `rights` says, from now until the last clone of the
    /// region is dropped.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn memory_region(&self, length: usize, rights: Rights) -> Result<MemoryRegion> {
        MemoryRegion::new(self, length, rights)
    }

    /// A queue pair that is ready for receives and to be connected.
    ///
    /// # Errors
    /// EINVAL for sizes beyond the device's limits or queues of another context; ENOMEM when the device is full.
    pub fn queue_pair(&self, options: QueuePairOptions) -> Result<QueuePair> {
        QueuePair::new(self, options)
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

/// The same; none where that panics.
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
