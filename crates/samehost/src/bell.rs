//! A doorbell that a child of fork closes.

use adverb_core::fork::{self, ForkGeneration};
use adverb_local::Doorbell;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// A doorbell between two processes. A child of fork closes its copy of the descriptor.
pub struct Bell {
    // First, before the descriptor is closed, and its number names another file.
    _noted: ForkClosedFd,
    bell: Doorbell,
}

impl Bell {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        Doorbell::new().map(Self::of)
    }

    /// The bell that another process has passed; none if it is none.
    pub fn from_descriptor(descriptor: OwnedFd) -> Option<Self> {
        Doorbell::from_descriptor(descriptor).map(Self::of)
    }

    fn of(bell: Doorbell) -> Self {
        Self { _noted: ForkClosedFd::of(bell.as_fd().as_raw_fd()), bell }
    }
}

impl Deref for Bell {
    type Target = Doorbell;

    fn deref(&self) -> &Doorbell {
        &self.bell
    }
}

/// A child of fork closes this descriptor, as long as it exists: it goes first.
pub(crate) struct ForkClosedFd(RawFd, ForkGeneration);

impl ForkClosedFd {
    pub(crate) fn of(fd: RawFd) -> Self {
        fork::own_descriptor(fd);
        Self(fd, ForkGeneration::now())
    }
}

impl Drop for ForkClosedFd {
    fn drop(&mut self) {
        if self.1.is_here() {
            fork::disown_descriptor(self.0);
        }
    }
}
