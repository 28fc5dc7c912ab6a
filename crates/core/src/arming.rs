//! Whether a completion queue is armed, and which of its completions no event has told of.
//!
//! A program arms the queue, polls it once more, and sleeps until there is an event. Arming and adding a
//! completion both take the ring's lock, so that a completion either finds the queue armed or is found when
//! it is armed. The thread that takes the arming away raises the event, without the lock. So each arming
//! raises one event at most. `model` checks it.

use crate::sync::{AtomicU8, Ordering};

const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED: u8 = 2;

/// The arming of one completion queue. Thread-safe.
pub(crate) struct Arming(AtomicU8);

/// The kinds of arming (bits, 1 << `ARMED` for example) by which some entries in a ring would have raised the
/// event, and have not. Under the ring's lock.
#[derive(Default)]
pub(crate) struct UnnotifiedKinds(u8);

impl UnnotifiedKinds {
    /// The entries have gone, or an event has told of them.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.0 = 0;
    }
}

impl Default for Arming {
    fn default() -> Self {
        Self(AtomicU8::new(UNARMED))
    }
}

impl Arming {
    /// Arms it for the next completion, or for the next one that is urgent. True: an event is due at once,
    /// and it is not armed. With the ring's lock.
    pub(crate) fn arm(&self, unheard: &mut UnnotifiedKinds, urgent_only: bool) -> bool {
        let wanted = if urgent_only { ARMED_SOLICITED } else { ARMED };
        let due = unheard.0 & 1 << wanted != 0;
        if due {
            unheard.forget();
            self.disarm();
        } else {
            self.0.fetch_max(wanted, Ordering::AcqRel);
        }
        due
    }

    /// Whether the next completion, or the next urgent one, raises an event.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != UNARMED
    }

    /// No thread waits for an event any more.
    pub(crate) fn disarm(&self) {
        self.0.store(UNARMED, Ordering::Release);
    }

    /// A completion has been added, with the ring's lock. True: an event is due, if [`Arming::take`] says so
    /// then, without the lock.
    #[inline]
    pub(crate) fn completed(&self, unheard: &mut UnnotifiedKinds, urgent: bool) -> bool {
        let armed = self.0.load(Ordering::Acquire);
        let wakes = armed == ARMED || armed == ARMED_SOLICITED && urgent;
        if !wakes {
            unheard.0 |= 1 << ARMED | u8::from(urgent) << ARMED_SOLICITED;
        }
        wakes
    }

    /// Takes the arming away. True: it was armed, and the event is the caller's to raise.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(UNARMED, Ordering::AcqRel) != UNARMED
    }
}
