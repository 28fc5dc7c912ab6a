//! The channels of a process, and how the polls of its lanes look at them.

use super::{Channel, Traffic};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, TryLockError};

type List<T> = Arc<Vec<Arc<Channel<T>>>>;

/// The channels of a transport's. Thread-safe.
pub struct Channels<T: Traffic> {
    /// Shared with those who go through them: no thread that does allocates, or holds the lock meanwhile.
    list: RwLock<List<T>>,
    /// Counts the channels that have come and gone.
    version: AtomicU64,
}

impl<T: Traffic> Default for Channels<T> {
    fn default() -> Self {
        Self { list: RwLock::default(), version: AtomicU64::new(0) }
    }
}

impl<T: Traffic> Channels<T> {
    /// Changes when a channel comes or goes.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether there has ever been a channel.
    #[inline]
    pub fn any(&self) -> bool {
        self.version() > 0
    }

    /// The channels that the transport has now.
    pub fn all(&self) -> List<T> {
        self.list.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The channel that ends when this descriptor hangs up.
    pub fn by_connection(&self, connection: RawFd) -> Option<Arc<Channel<T>>> {
        self.all().iter().find(|channel| channel.connection() == Some(connection)).cloned()
    }

    /// Polls look at this one from now on.
    pub fn enter(&self, channel: &Arc<Channel<T>>) {
        Arc::make_mut(&mut self.list.write().unwrap_or_else(|e| e.into_inner())).push(channel.clone());
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes a channel out of the list: polls do not look at it any more.
    pub fn leave(&self, channel: &Channel<T>) {
        let other = |known: &Arc<Channel<T>>| !std::ptr::eq(&**known, channel);
        Arc::make_mut(&mut self.list.write().unwrap_or_else(|e| e.into_inner())).retain(other);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The program is about to sleep: the background thread watches all channels.
    pub fn arm(&self) {
        if self.any() {
            // Not with the list's lock: a channel may be busy for a while, and others want to come in.
            self.all().iter().for_each(|channel| channel.arm());
        }
    }

    /// Takes in the records that came before this call. With no lock held.
    pub fn receive_all(&self) {
        self.all().iter().for_each(|channel| channel.receive_all());
    }
}

/// The channels as a lane last saw them: its polls need no lock that others use.
pub struct ChannelSnapshot<T: Traffic> {
    version: u64,
    list: Vec<Arc<Channel<T>>>,
}

impl<T: Traffic> Default for ChannelSnapshot<T> {
    fn default() -> Self {
        Self { version: 0, list: Vec::new() }
    }
}

impl<T: Traffic> ChannelSnapshot<T> {
    /// A poll of the lane with this address looks at all channels. Returns whether anything had come.
    #[inline]
    pub fn poll(&mut self, channels: &Channels<T>, lane: usize) -> bool {
        if self.version != channels.version() {
            self.refresh(channels);
        }
        let mut worked = false;
        for channel in &self.list {
            worked |= channel.poll(lane);
        }
        worked
    }

    #[cold]
    fn refresh(&mut self, channels: &Channels<T>) {
        // A poll never waits for another thread: a channel is coming or going, and the next poll looks.
        let list = match channels.list.try_read() {
            Ok(list) => list,
            Err(TryLockError::Poisoned(list)) => list.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.version = channels.version();
        self.list.clone_from(&list);
    }
}
