//! How a side that goes to sleep and one that has news for it do not miss each other.
//!
//! The sleeper raises a flag, passes a fence, and looks once more for news. The other side brings its news,
//! and then looks at the flag. The later of the two sees the other's store. A flag is only ever changed by
//! swaps: both sides change it, and each is to build on the other's value. [`crate::membarrier`] says which
//! side pays for the fence.

use crate::layout::Flags;
use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::view::{Sides, heavy_fence};

/// Picks one of a side's flags.
pub(crate) type Flag = fn(&Flags) -> &AtomicU64;

/// Raises a flag of this side. News that the other side brings from now on is either seen by loads that
/// follow, or the other side sees the flag. `false` if that cannot be promised this time; the flag is then
/// lowered.
#[cold]
pub(crate) fn raise(sides: &Sides, flag: Flag) -> bool {
    flag(&sides.own().flags.0).swap(1, Relaxed);
    let promised = heavy_fence(std::iter::once(sides));
    if !promised {
        lower(sides, flag);
    }
    promised
}

/// Lowers a flag of this side.
#[inline]
pub(crate) fn lower(sides: &Sides, flag: Flag) {
    flag(&sides.own().flags.0).swap(0, Relaxed);
}

/// After news has been brought to the other side: has it raised the flag? Lowers it, so that only one call is
/// told.
#[inline]
pub(crate) fn take(sides: &Sides, flag: Flag) -> bool {
    sides.light_fence();
    let peer = &sides.peer().flags.0;
    flag(peer).load(Relaxed) != 0 && flag(peer).swap(0, Relaxed) != 0
}
