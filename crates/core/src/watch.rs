//! Whether anybody wants to see each packet: a capture (`ADVERB_PCAP`) or the log (`ADVERB_LOG=packets`). Both are behind one look, so that the
//! fast path pays for one branch.

use crate::log::{self, Level};
use crate::pcap;
use std::sync::atomic::{AtomicU8, Ordering};

/// 0: not found out yet.
static STATE: AtomicU8 = AtomicU8::new(0);
const NOBODY: u8 = 1;
const SOMEBODY: u8 = 2;

/// Whether packets are to be shown to anybody. Cheap.
#[inline]
pub fn packets() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => look(),
        state => state == SOMEBODY,
    }
}

#[cold]
fn look() -> bool {
    // Both are found out here, whatever the first says.
    let (captured, logged) = (pcap::enabled(), log::enabled(Level::Packets));
    let state = if captured || logged { SOMEBODY } else { NOBODY };
    STATE.store(state, Ordering::Relaxed);
    state == SOMEBODY
}
