//! How a side that goes to sleep and one that has news for it do not miss each other.
//!
//! The sleeper raises a flag, passes a fence, and looks once more for news; the other side brings its news and then looks at the flag. Whoever
//! is later sees what the other did. A flag is only ever changed by swaps: both sides change it, and each is to build on what the other left. See [`crate::membarrier`] for who pays for the fence.

use crate::layout::Flags;
use crate::membarrier;
use crate::sync::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence, light_fence};
use crate::view::View;

/// Picks one of a side's flags.
pub(crate) type Flag = fn(&Flags) -> &AtomicU64;

/// Raises a flag of this side. News that the other side brings from now on is either seen by loads that follow, or the other side sees the
/// flag. `false` if that cannot be promised this time; the flag is then lowered.
#[cold]
pub(crate) fn raise(view: &View, flag: Flag) -> bool {
    let (own, peer) = (&view.own().flags.0, &view.peer().flags.0);
    flag(own).swap(1, Relaxed);
    // Whoever looks with a plain load has passed a fence since it said that it is registered (`View::new`): either that fence comes after this
    // one, and it sees our flag, or before, and we see here that it is registered.
    fence(SeqCst);
    if !view.is_registered() || peer.membarrier.load(Relaxed) == 0 || membarrier::barrier() {
        return true;
    }
    // The kernel has come to refuse it, as under a seccomp filter that was put in place later. From now on the other side must use fences; it may
    // be between its store and its plain load now, and so only the next attempt counts.
    own.membarrier.store(0, Relaxed);
    lower(view, flag);
    false
}

/// Lowers a flag of this side.
#[inline]
pub(crate) fn lower(view: &View, flag: Flag) {
    flag(&view.own().flags.0).swap(0, Relaxed);
}

/// After news has been brought to the other side: has it raised the flag? Lowers it, so that only one call is told.
#[inline]
pub(crate) fn take(view: &View, flag: Flag) -> bool {
    let peer = &view.peer().flags.0;
    if view.is_registered() && peer.membarrier.load(Relaxed) != 0 {
        light_fence();
    } else {
        fence(SeqCst);
    }
    flag(peer).load(Relaxed) != 0 && flag(peer).swap(0, Relaxed) != 0
}
