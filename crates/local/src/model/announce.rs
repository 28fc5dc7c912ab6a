//! Announcements: nobody uses what an entry stood for once its owner has waited.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::announce::{HazardGuard, HazardSlots, HazardView, barrier};
use crate::entry::{Entry, Kind, WORDS};
use crate::layout::{SegmentLayout, Which};
use crate::membarrier::Registration;
use crate::view::Sides;

/// The owner's: an entry, and the memory that it stands for, of which loom says when two use it at once.
#[derive(Default)]
struct OwnedEntry {
    entry: Entry,
    memory: UnsafeCell<u64>,
}

// SAFETY: loom ends with an error if it is used by two at once.
unsafe impl Sync for OwnedEntry {}

impl OwnedEntry {
    /// Publishes the memory. Its words say under which name.
    fn publish(&self, name: u32) {
        self.entry.publish(name, [name.into(); WORDS]);
    }

    /// Uses the memory, if it is there under this name.
    fn use_as(&self, name: u32) {
        if let Some((_, words)) = self.entry.get(name) {
            assert_eq!(words, [name.into(); WORDS], "words of another publication");
            self.store();
        }
    }

    /// Nobody uses the memory when this is done.
    fn take_back(&self, hazard_view: &HazardView) {
        self.take_back_with(hazard_view, RIGHT.barrier);
    }

    fn take_back_with(&self, hazard_view: &HazardView, barrier: fn(&HazardView)) {
        self.entry.withdraw();
        barrier(hazard_view);
        while hazard_view.is_announced(Kind::Key, 0) {
            thread::yield_now();
        }
    }

    fn store(&self) {
        // SAFETY: as for `Sync`.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
}

fn sides(user: Registration, owner: Registration) -> (HazardSlots, HazardView) {
    let memory = Arc::new(SegmentLayout::default());
    let side = |which, registration| Sides::new(&memory, which, registration);
    (HazardSlots::new(side(Which::Creator, user)), HazardView::new(side(Which::Opener, owner)))
}

/// How the user announces, and what the owner does between withdrawing and looking.
#[derive(Clone, Copy)]
struct Steps {
    announce: fn(&HazardSlots) -> Option<HazardGuard<'_>>,
    barrier: fn(&HazardView),
}

const RIGHT: Steps = Steps {
    announce: |hazard_slots| hazard_slots.announce(0, 0),
    barrier: |hazard_view| barrier(std::iter::once(hazard_view)),
};

/// A thread uses an entry under one name and then under another; the owner takes it back, uses the memory for
/// something else, and publishes it again.
fn run(user: Registration, owner: Registration, steps: Steps) {
    loom::model(move || {
        let (hazard_slots, hazard_view) = sides(user, owner);
        let owned = Arc::new(OwnedEntry::default());
        owned.publish(1);
        let theirs = owned.clone();
        let user = thread::spawn(move || {
            for name in [1, 2] {
                let announced = (steps.announce)(&hazard_slots);
                theirs.use_as(name);
                drop(announced);
            }
        });
        owned.take_back_with(&hazard_view, steps.barrier);
        owned.store();
        owned.publish(2);
        user.join().unwrap();
    });
}

#[test]
fn a_thread_that_uses_an_entry_is_waited_for() {
    let (with, without) = (Registration::model(), Registration::none());
    for (user, owner) in [(without, without), (with, with), (with, without), (without, with)] {
        run(user, owner, RIGHT);
    }
}

/// Two threads of a process share the only word for announcements that is nobody's own.
#[test]
fn so_is_each_of_several_threads() {
    loom::model(|| {
        let (hazard_slots, hazard_view) = sides(Registration::none(), Registration::none());
        let (hazard_slots, owned) = (Arc::new(hazard_slots), Arc::new(OwnedEntry::default()));
        // The two are not to use the memory at once.
        let other = Arc::new(OwnedEntry::default());
        owned.publish(1);
        other.publish(1);
        let users = [&owned, &other].map(|theirs| {
            let (hazard_slots, theirs, key) =
                (hazard_slots.clone(), theirs.clone(), Arc::ptr_eq(theirs, &other).into());
            thread::spawn(move || {
                if let Some(_announced) = hazard_slots.announce(key, 0) {
                    theirs.use_as(1);
                }
            })
        });
        owned.take_back(&hazard_view);
        owned.store();
        for user in users {
            user.join().unwrap();
        }
    });
}

/// A thread whose word nobody else takes.
#[test]
fn so_is_the_holder_of_a_word() {
    loom::model(|| {
        let (hazard_slots, hazard_view) = sides(Registration::none(), Registration::none());
        let owned = Arc::new(OwnedEntry::default());
        owned.publish(1);
        let theirs = owned.clone();
        let user = thread::spawn(move || {
            let mut slot = Arc::new(hazard_slots).reserve().unwrap();
            for name in [1, 2] {
                let _announced = slot.announce(0, 0);
                theirs.use_as(name);
            }
        });
        owned.take_back(&hazard_view);
        owned.store();
        owned.publish(2);
        user.join().unwrap();
    });
}

// That the model finds what it is there to find.

#[test]
#[should_panic(expected = "Causality violation")]
fn a_user_without_a_fence_is_missed() {
    let steps = Steps { announce: |hazard_slots| hazard_slots.announce_without_fence(0, 0), ..RIGHT };
    run(Registration::none(), Registration::none(), steps);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_without_a_barrier_misses_users() {
    run(Registration::none(), Registration::none(), Steps { barrier: |_| {}, ..RIGHT });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_user_that_looks_before_announcing_is_missed() {
    loom::model(|| {
        let (hazard_slots, hazard_view) = sides(Registration::none(), Registration::none());
        let owned = Arc::new(OwnedEntry::default());
        owned.publish(1);
        let theirs = owned.clone();
        let user = thread::spawn(move || {
            let found = theirs.entry.get(1);
            let _announced = hazard_slots.announce(0, 0);
            if found.is_some() {
                theirs.store();
            }
        });
        owned.take_back(&hazard_view);
        owned.store();
        user.join().unwrap();
    });
}
