//! Memory windows: a part of a region, opened to one peer by a request, and taken back by another one.

use super::{MemoryRegion, ProtectionDomain, RemoteMemory, Rights, resolve};
use crate::{Result, WorkRequest};
use adverb_core::memory::WindowType;
use adverb_core::region;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A memory window of type 2: it opens a part of a [`MemoryRegion`] to the peer of one connection, which is
/// quicker than a registration.
///
/// [`MemoryWindow::bind`] makes the request that opens it. [`WorkRequest::take_back`] closes it, or a peer
/// that gives it up ([`WorkRequest::invalidate`]). The region needs [`Rights::BIND`], and peers need no other
/// right of it.
///
/// ```
/// use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest};
/// # use std::time::Duration;
///
/// # const SOON: Duration = Duration::from_secs(10);
/// # fn main() -> adverb::Result<()> {
/// # let context = Context::open_default()?;
/// # let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
/// # let address = listener.local_address();
/// # let peer = context.clone();
/// # let peer = std::thread::spawn(move || -> adverb::Result<()> {
/// #     let domain = peer.protection_domain()?;
/// #     let completions = peer.completion_queue(16)?;
/// #     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
/// #     queue_pair.post_receive(0, domain.buffer(64)?)?;
/// #     let connection = queue_pair.connect(address, b"", SOON)?;
/// #     let token = completions.wait(SOON)?.success()?;
/// #     let token = RemoteMemory::from_bytes(token.message()).expect("a token");
/// #     connection.post_send(WorkRequest::write(b"within", &token))?;
/// #     completions.wait(SOON)?.success()?;
/// #     connection.post_send(WorkRequest::send(b"done"))?;
/// #     completions.wait(SOON)?.success()?;
/// #     connection.wait_ended(SOON);
/// #     Ok(())
/// # });
/// # let domain = context.protection_domain()?;
/// # let completions = context.completion_queue(16)?;
/// # let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
/// # queue_pair.post_receive(0, domain.buffer(64)?)?;
/// # let connection = listener.accept(SOON)?.accept(queue_pair, b"", SOON)?;
/// let region = domain.memory_region(4096, Rights::BIND)?;
/// let window = domain.memory_window()?;
/// let (bind, token) = window.bind(&region, 1024..2048, Rights::WRITE);
/// connection.post_send(bind)?;
/// completions.wait(SOON)?.success()?;
/// connection.post_send(WorkRequest::send(&token.to_bytes()))?;
/// # completions.wait(SOON)?.success()?;
/// // The peer writes, and says so.
/// # assert_eq!(completions.wait(SOON)?.success()?.message(), b"done");
/// assert_eq!(region.to_vec(1024..1030), b"within");
/// connection.post_send(WorkRequest::take_back(&token))?;
/// # completions.wait(SOON)?.success()?;
/// # drop(connection);
/// # peer.join().unwrap()
/// # }
/// ```
pub struct MemoryWindow {
    core: Arc<region::MemoryWindow>,
    /// The key of the last bind. Its lowest 8 bits are another number each time, so an old token opens
    /// nothing.
    key: AtomicU32,
}

impl MemoryWindow {
    pub(super) fn new(domain: &ProtectionDomain) -> Result<Self> {
        let core = region::MemoryWindow::new(&domain.core, WindowType::Two)?;
        let key = AtomicU32::new(core.key());
        Ok(Self { core, key })
    }

    /// The window lives as long as this.
    pub(crate) fn keep(&self) -> Arc<region::MemoryWindow> {
        self.core.clone()
    }

    /// A token that closes the window as it was bound last, and opens nothing.
    pub(crate) fn last_token(&self) -> RemoteMemory {
        RemoteMemory::new(0, 0, self.key.load(Ordering::Acquire))
    }

    /// A request that opens `range` of `region` to the peer of the connection that it is posted on, as
    /// `rights` say; and the token for the peer. The token opens nothing before the request is complete. A
    /// window that is open must be taken back first: otherwise the request fails
    /// ([`Status::WindowBind`](crate::Status::WindowBind)).
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let region = server.domain().memory_region(4096, Rights::BIND)?;
    /// let window = server.domain().memory_window()?;
    /// let (bind, token) = window.bind(&region, 1024..1032, Rights::WRITE);
    /// server.post_send(bind)?;
    /// server.send_queue().wait(SOON)?.success()?;
    /// // The token is good from here on: it can be sent to the peer.
    /// client.post_send(WorkRequest::write(b"eight by", &token))?;
    /// client.send_queue().wait(SOON)?.success()?;
    /// # client.post_send(WorkRequest::send(b"done"))?;
    /// # server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(region.to_vec(1024..1032), b"eight by");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn bind(
        &self,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        rights: Rights,
    ) -> (WorkRequest<'static>, RemoteMemory) {
        let (start, length) = resolve(range, region.len());
        let next = |key: u32| key & !0xff | key.wrapping_add(1) & 0xff;
        let before = self.key.fetch_update(Ordering::AcqRel, Ordering::Acquire, |key| Some(next(key)));
        let key = next(before.unwrap_or_else(|key| key));
        let whole = region.remote();
        let token = RemoteMemory::new(whole.address() + start as u64, length as u64, key);
        (WorkRequest::bind(token, whole.key(), rights.access().bits()), token)
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").finish_non_exhaustive()
    }
}
