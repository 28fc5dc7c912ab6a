//! Where a queue pair announces what it uses of another process's memory.

use crate::neighbour::Neighbour;
use adverb_local::{HazardGuard, HazardSlot, HazardSlots};
use std::sync::Arc;

/// A word of its own, if there is one, or one that all share.
pub(crate) enum Place {
    Own(HazardSlot),
    Shared(Arc<HazardSlots>),
}

impl Place {
    pub(crate) fn find(neighbour: &Neighbour) -> Self {
        let hazard_slots = neighbour.hazard_slots();
        hazard_slots.reserve().map_or_else(|| Self::Shared(hazard_slots.clone()), Self::Own)
    }

    /// Announces a use. None if too many announce at once.
    #[inline]
    pub(crate) fn announce(&mut self, key: u32, pair: u32) -> Option<HazardGuard<'_>> {
        match self {
            Self::Own(slot) => Some(slot.announce(key, pair)),
            Self::Shared(hazard_slots) => hazard_slots.announce(key, pair),
        }
    }
}
