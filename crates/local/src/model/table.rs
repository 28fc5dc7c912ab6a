//! A table: a reader of an entry gets the words of one publication.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::announce::{HazardSlots, HazardView, barrier};
use crate::contents::Contents;
use crate::entry::{Kind, Stamp, WORDS};
use crate::layout::{SegmentLayout, Which};
use crate::membarrier::Registration;
use crate::view::Sides;

const INDEX: usize = 1;
/// The queue pair goes by the same name all the time: what it says tells one publication from the next.
const NAME: u32 = 7;
const FIRST: [u64; WORDS] = [1; WORDS];
const SECOND: [u64; WORDS] = [2; WORDS];

/// The owner's, which the other process maps.
#[derive(Default)]
struct OwnedTable {
    contents: Contents,
    /// What the first publication stands for, of which loom says when two use it at once.
    memory: UnsafeCell<u64>,
}

// SAFETY: loom ends with an error if the memory is used by two at once.
unsafe impl Sync for OwnedTable {}

impl OwnedTable {
    fn use_memory(&self) {
        // SAFETY: as for `Sync`.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
}

fn sides() -> (HazardSlots, HazardView) {
    let memory = Arc::new(SegmentLayout::default());
    let side = |which| Sides::new(&memory, which, Registration::none());
    (HazardSlots::new(side(Which::Creator)), HazardView::new(side(Which::Opener)))
}

/// What a process has found in an entry.
type EntryContents = Option<(Stamp, [u64; WORDS])>;

fn get(owned: &OwnedTable) -> EntryContents {
    owned.contents.get(Kind::Pair, INDEX, NAME)
}

/// A process reads an entry without an announcement. Then it calls `look` twice with an announcement, and
/// hands it what it has found. Meanwhile the owner withdraws the entry, waits, and publishes it anew.
fn run(look: fn(&OwnedTable, EntryContents)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let (hazard_slots, hazard_view) = sides();
        let owned = Arc::new(OwnedTable::default());
        owned.contents.publish(Kind::Pair, INDEX, NAME, FIRST);
        let theirs = owned.clone();
        let user = thread::spawn(move || {
            let found = get(&theirs);
            for _ in 0..2 {
                let announced = hazard_slots.announce(crate::announce::NOTHING, INDEX as u32);
                look(&theirs, found);
                drop(announced);
            }
        });
        owned.contents.withdraw(Kind::Pair, INDEX);
        barrier([&hazard_view].into_iter());
        while hazard_view.is_announced(Kind::Pair, INDEX) {
            thread::yield_now();
        }
        owned.use_memory();
        owned.contents.publish(Kind::Pair, INDEX, NAME, SECOND);
        user.join().unwrap();
        assert_eq!(owned.contents.find(NAME), Some(INDEX));
    });
}

#[test]
fn words_of_two_publications_are_not_mixed() {
    run(|owned, _| match get(owned) {
        Some((_, FIRST)) => owned.use_memory(),
        Some((_, SECOND)) | None => {}
        Some(words) => panic!("mixed: {words:?}"),
    });
}

/// The words that were found before the announcement may be mixed; then their stamp does not stand.
#[test]
fn a_thread_that_remembers_an_entry_learns_of_its_replacement() {
    run(|owned, found| {
        let Some((stamp, words)) = found else { return };
        if owned.contents.stands(Kind::Pair, INDEX, stamp) {
            match words {
                FIRST => owned.use_memory(),
                SECOND => {}
                words => panic!("mixed: {words:?}"),
            }
        }
    });
}

/// A look-up by name finds a whole entry.
#[test]
fn an_entry_that_is_found_by_name_is_whole() {
    run(|owned, _| {
        if let Some(index) = owned.contents.find(NAME) {
            let found = owned.contents.get(Kind::Pair, index, NAME);
            assert!(matches!(found, Some((_, FIRST | SECOND)) | None));
        }
    });
}
