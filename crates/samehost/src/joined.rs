//! Regions of another process that its program shares by itself ([`Common`]), and that are mapped here
//! because they are used.
//!
//! Memory that the kernel's copy has used a few times is mapped, by a thread that the background thread
//! starts. It is unmapped once its key does not stand for it, or no operation has used it for a while. So the
//! memory is not kept by this process when the other program gives it up. There is a timer as long as
//! anything is mapped.

use crate::lock;
use crate::neighbour_memory::{NeighbourMemory, Region};
use adverb_core::engine;
use adverb_core::memory::common::Common;
use adverb_core::reactor::{Readiness, Source};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// After so many uses by the kernel's copy, each region is mapped.
const WORTH: u32 = 4;
/// Memory that was not used from one look to the next is unmapped.
const LOOK: Duration = Duration::from_millis(250);

/// Whether a region is mapped, and what is to be done about that. Thread-safe.
#[derive(Default)]
pub(crate) struct MappingState {
    common: Mutex<Option<Arc<Common>>>,
    /// Uses by the kernel's copy. From [`WORTH`] on, a thread has asked for the mapping, or it cannot be
    /// mapped.
    uses: AtomicU32,
    /// The region has been used since the last look.
    is_used: AtomicBool,
}

impl MappingState {
    /// The bytes, if they are mapped.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<Common>> {
        let common = lock(&self.common).clone()?;
        self.is_used.store(true, Ordering::Relaxed);
        Some(common)
    }

    /// Whether the bytes are mapped, as it seems.
    pub(crate) fn is_there(&self) -> bool {
        lock(&self.common).is_some()
    }

    /// Counts a use by the kernel's copy. Returns whether the caller is to have the bytes mapped now.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.uses.load(Ordering::Relaxed) < WORTH && self.uses.fetch_add(1, Ordering::Relaxed) + 1 == WORTH
    }

    /// No thread maps them now: the next uses ask again.
    pub(crate) fn ask_again(&self) {
        self.uses.store(0, Ordering::Relaxed);
    }

    /// The region's bytes have been mapped, or cannot be (none).
    pub(crate) fn set(&self, common: Option<Arc<Common>>) {
        self.is_used.store(true, Ordering::Relaxed);
        *lock(&self.common) = common;
    }

    /// The program has something else there: this process does not try again.
    pub(crate) fn leave(&self) {
        let left = lock(&self.common).take();
        drop(left);
    }

    /// A look: whether they stay mapped. `is_published`: their key stands for them.
    pub(crate) fn tidy(&self, is_published: bool) -> bool {
        if !self.is_there() {
            return false;
        }
        let stays = self.is_used.swap(false, Ordering::Relaxed) && is_published;
        if !stays {
            // The next uses have them mapped again.
            self.leave();
            self.uses.store(0, Ordering::Relaxed);
        }
        stays
    }
}

/// A region is mapped, and the background thread looks after it from then on.
pub(crate) struct Joining {
    pub(crate) neighbour_memory: Arc<NeighbourMemory>,
    pub(crate) region: Arc<Region>,
}

impl Source for Joining {
    fn ready(self: Arc<Self>, _: Readiness) {}

    /// By another thread: the file system of a descriptor that it looks at may be slow to answer, or never
    /// answer. Then no other region of that process is mapped, and nothing else waits.
    fn timeout(self: Arc<Self>) {
        if !self.neighbour_memory.begins_to_join() {
            self.region.ask_again();
            return;
        }
        let this = self.clone();
        let join = move || {
            this.region.join(&this.neighbour_memory);
            this.neighbour_memory.has_joined();
            Looking::call(this.region.clone());
        };
        let spawned =
            engine::engine().is_ok_and(|engine| engine.reactor.helpers.spawn("adverb-join", join).is_ok());
        if !spawned {
            self.neighbour_memory.has_joined();
        }
    }
}

/// Looks whether a region is still used.
struct Looking(Arc<Region>);

impl Looking {
    fn call(region: Arc<Region>) {
        let again = engine::engine()
            .and_then(|engine| engine.reactor.set_timer(LOOK, Arc::new(Self(region.clone()))));
        if again.is_err() {
            region.leave_common();
        }
    }
}

impl Source for Looking {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if self.0.tidy_common() {
            Self::call(self.0.clone());
        }
    }
}
