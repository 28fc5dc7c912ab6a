//! Keys: when one has been taken away, no thread uses the bytes.

use super::SharedWord;
use crate::memory::{Access, Keys, PublishedBytes, Publisher, Reader};
use crate::sync::{AtomicBool, Ordering, fence};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

const DOMAIN: u32 = 7;
const NONE: Access = Access::empty();

/// A key table whose readers need not count, and memory of which loom says when two use it at once.
struct World {
    keys: &'static Keys,
    memory: Arc<SharedWord>,
    key: u32,
}

fn barrier() -> bool {
    // As the readers do between announcing and looking.
    fence(Ordering::SeqCst);
    true
}

impl World {
    fn new() -> Self {
        let keys: &'static Keys = Box::leak(Box::new(Keys::new()));
        keys.set_barrier(barrier);
        let key = insert(keys);
        Self { keys, memory: Arc::default(), key }
    }

    /// Takes the key away, and uses the memory for something else.
    fn take_away(&self) {
        self.keys.remove(self.key);
        self.memory.add();
    }
}

fn insert(keys: &Keys) -> u32 {
    keys.insert_for_model(DOMAIN).unwrap()
}

#[test]
fn a_thread_that_uses_a_key_is_waited_for() {
    loom::model(|| {
        let world = World::new();
        let (keys, memory, key) = (world.keys, world.memory.clone(), world.key);
        let user = thread::spawn(move || {
            if let Ok(_span) = keys.open_span(key, 0, 8, NONE, DOMAIN) {
                memory.add();
            }
        });
        world.take_away();
        user.join().unwrap();
        assert!(keys.open_span(key, 0, 8, NONE, DOMAIN).is_err());
    });
}

#[test]
fn a_reader_that_remembers_a_key_is_waited_for() {
    loom::model(|| {
        let world = World::new();
        let (keys, memory, key) = (world.keys, world.memory.clone(), world.key);
        let user = thread::spawn(move || {
            let mut reader = Reader::new(keys);
            for _ in 0..2 {
                if let Ok(_span) = keys.open_again(&mut reader, key, 0, 8, NONE, DOMAIN) {
                    memory.add();
                }
            }
        });
        world.take_away();
        user.join().unwrap();
    });
}

/// A reader that announces another key has done with the one before.
#[test]
fn a_reader_that_opens_another_key_has_done_with_the_one_before() {
    loom::model(|| {
        let world = World::new();
        let (keys, memory, key) = (world.keys, world.memory.clone(), world.key);
        let other = insert(keys);
        let user = thread::spawn(move || {
            let mut reader = Reader::new(keys);
            if let Ok(_span) = keys.open_again(&mut reader, key, 0, 8, NONE, DOMAIN) {
                memory.add();
            }
            assert!(keys.open_again(&mut reader, other, 0, 8, NONE, DOMAIN).is_ok());
        });
        world.take_away();
        user.join().unwrap();
    });
}

/// A reader that remembers a key finds the bytes that it opens now, or nothing.
#[test]
fn a_key_that_opens_other_memory_by_now_is_looked_up_anew() {
    loom::model(|| {
        let world = World::new();
        let (keys, memory, key) = (world.keys, world.memory.clone(), world.key);
        let mut reader = Reader::new(keys);
        drop(keys.open_again(&mut reader, key, 0, 8, NONE, DOMAIN));
        let user = thread::spawn(move || {
            // The new entry is of another domain, and opens nothing to this one.
            if let Ok(_span) = keys.open_again(&mut reader, key, 0, 8, NONE, DOMAIN) {
                memory.add();
            }
        });
        world.keys.replace_for_model(key, DOMAIN + 1);
        world.memory.add();
        user.join().unwrap();
    });
}

/// Another process, which uses published keys as `adverb_local` does: it announces, passes a fence, and
/// looks.
#[derive(Default)]
struct Book {
    is_shown: AtomicBool,
    is_announced: AtomicBool,
}

impl Publisher for Book {
    fn publish(&self, _: u32, _: u32, _: &PublishedBytes) {
        self.is_shown.store(true, Ordering::Release);
    }

    fn retract(&self, _: u32) {
        self.is_shown.store(false, Ordering::Relaxed);
    }

    fn is_used(&self, _: u32, _: Duration) -> bool {
        fence(Ordering::SeqCst);
        self.is_announced.load(Ordering::Acquire)
    }

    fn wait(&self, _: u32) -> bool {
        fence(Ordering::SeqCst);
        while self.is_announced.load(Ordering::Acquire) {
            thread::yield_now();
        }
        true
    }
}

impl Book {
    fn use_memory(&self, memory: &SharedWord) {
        self.is_announced.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_shown.load(Ordering::Acquire) {
            memory.add();
        }
        self.is_announced.store(false, Ordering::Release);
    }
}

/// A key is published, used by another process, and taken away in some manner.
fn published(take_away: fn(&World)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = World::new();
        let book = Arc::new(Book::default());
        world.keys.set_publisher(book.clone());
        let memory = world.memory.clone();
        let user = thread::spawn(move || book.use_memory(&memory));
        let (keys, key) = (world.keys, world.key);
        let publisher = thread::spawn(move || {
            keys.publish(key, None, || true);
        });
        take_away(&world);
        world.memory.add();
        for thread in [user, publisher] {
            thread.join().unwrap();
        }
        assert!(!world.keys.is_published(world.key));
    });
}

#[test]
fn a_process_that_uses_a_published_key_is_waited_for() {
    published(|world| world.keys.remove(world.key));
    published(|world| {
        world.keys.invalidate_locally(world.key, DOMAIN, 1).unwrap();
        while world.keys.has_uses_left(world.key, Duration::ZERO) {
            thread::yield_now();
        }
    });
}

#[test]
fn a_withdrawn_key_is_used_by_no_other_process() {
    loom::model(|| {
        let world = World::new();
        let book = Arc::new(Book::default());
        world.keys.set_publisher(book.clone());
        assert!(world.keys.publish(world.key, None, || true));
        let memory = world.memory.clone();
        let user = thread::spawn(move || book.use_memory(&memory));
        assert!(world.keys.withdraw(world.key));
        world.memory.add();
        user.join().unwrap();
    });
}
