//! Event channels that the program has destroyed, though a thread of it may be about to ask them for an
//! event.
//!
//! Programs with a thread that does nothing but take events (rping before rdma-core 59, for one) destroy the
//! channel at their end without stopping that thread. It mostly waits then, and goes on to wait until the
//! process has ended. But if it is only on its way back to the channel, having just acknowledged the last
//! event, it would find a channel that is none, and most programs exit with an error then, though everything
//! went well. So it waits as if it had come a moment earlier.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use adverb_core::cm::EventChannel;

use crate::abi::rdma_event_channel;
use crate::id::ChannelObject;

/// Channels that are remembered.
const MOST: usize = 16;

/// The memory of a channel: the C structure is readable as long as it is remembered.
type Memory = MaybeUninit<ChannelObject>;

/// A channel that was destroyed. All is atomic: a child of fork may come here while the lock that would be
/// here is held for ever.
struct RetiredChannel {
    /// The memory, from a box; null if there is none.
    object: AtomicPtr<Memory>,
    /// Keeps the memory of what the C structure stood for, from a weak reference: a thread may be looking at
    /// it.
    core: AtomicPtr<EventChannel>,
}

static RETIRED: [RetiredChannel; MOST] =
    [const { RetiredChannel { object: AtomicPtr::new(null_mut()), core: AtomicPtr::new(null_mut()) } }; MOST];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Destroys a channel on which threads wait, and remembers it instead of the one that was destroyed longest
/// ago.
///
/// # Safety
/// As of [`Object::retire`](adverb_libibverbs::object::Object::retire).
pub(crate) unsafe fn retire(channel: *const ChannelObject) {
    let place = &RETIRED[NEXT.fetch_add(1, Ordering::Relaxed) % MOST];
    // SAFETY: it lives, by the caller's promise.
    let core = Arc::downgrade(unsafe { &(*channel).inner }).into_raw().cast_mut();
    let object = channel.cast::<Memory>().cast_mut();
    // Known before it is no channel any more.
    let before = (place.object.swap(object, Ordering::AcqRel), place.core.swap(core, Ordering::AcqRel));
    // SAFETY: the caller's promise.
    match unsafe { ChannelObject::retire(channel) } {
        // The place has it, by the pointer that may free it.
        Some(object) => {
            let _ = place.object.compare_exchange(object, object, Ordering::AcqRel, Ordering::Relaxed);
        }
        // Another thread was first.
        None => _ = place.object.compare_exchange(object, null_mut(), Ordering::AcqRel, Ordering::Relaxed),
    }
    // SAFETY: both came from here, and the thread that swaps them out has them alone. But if a channel is
    // still a channel, its own thread is just destroying it, in the middle of this function: its memory is
    // leaked.
    unsafe {
        if !before.0.is_null() && ChannelObject::get(before.0.cast::<rdma_event_channel>()).is_none() {
            drop(Box::from_raw(before.0));
        }
        if !before.1.is_null() {
            drop(Weak::from_raw(before.1));
        }
    }
}

/// Whether this was a channel on which threads wait.
pub(crate) fn is_known(channel: *mut rdma_event_channel) -> bool {
    !channel.is_null() && RETIRED.iter().any(|place| place.object.load(Ordering::Acquire).cast() == channel)
}
