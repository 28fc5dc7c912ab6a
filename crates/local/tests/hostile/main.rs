//! A peer that writes garbage into the segment can spoil records, stop the ring or be found out; it can
//! neither crash the other side nor hold it up, nor have it reach beyond the ring.

mod driver;

use driver::ReadCount;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A small generator of numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn garbage_between_operations() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut seen = ReadCount::default();
    for run in 0..1_000 {
        let steps = 8 * (run % 1_000);
        let input: Vec<u8> = (0..steps).map(|_| (random.next() >> 32) as u8).collect();
        driver::run(&input, &mut seen);
    }
    // The test is one of both.
    assert!(seen.records > 1_000 && seen.corrupt > 1_000, "{} {}", seen.records, seen.corrupt);
}

#[test]
fn garbage_before_the_first_operation() {
    let mut random = Random(1);
    let mut seen = ReadCount::default();
    for _ in 0..100 {
        let (mut sides, intruder) = driver::segment();
        for index in 0..driver::WORDS {
            intruder.word(index).store(random.next(), Relaxed);
        }
        for _ in 0..200 {
            let number = random.next();
            driver::step(
                &mut sides[number as usize & 1],
                (number >> 8) as u8,
                (number >> 16) as usize,
                &mut seen,
            );
        }
    }
    assert!(seen.corrupt > 100, "{}", seen.corrupt);
}

#[test]
fn garbage_during_operations() {
    let (mut sides, intruder) = driver::segment();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What is written is owned by this thread alone: nothing of it is borrowed from the sides.
            let intruder = intruder;
            let mut random = Random(2);
            while !done.load(Relaxed) {
                let number = random.next();
                let word = intruder.word(driver::interesting(&intruder, number as u16));
                driver::spoil(word, (number >> 16) as u8, number >> 24);
            }
        });
        let mut random = Random(3);
        let mut seen = ReadCount::default();
        let (creator, opener) = sides.split_at_mut(1);
        let mut work = |side: &mut _, seen: &mut ReadCount| {
            for _ in 0..100_000 {
                let number = random.next();
                driver::step(side, (number >> 8) as u8, (number >> 16) as usize % 2_000, seen);
            }
        };
        // The other thread may get no processor for a while.
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            work(&mut creator[0], &mut seen);
            work(&mut opener[0], &mut seen);
            if seen.corrupt > 0 || Instant::now() > limit {
                break;
            }
        }
        done.store(true, Relaxed);
        assert!(seen.corrupt > 0, "{}", seen.corrupt);
    });
}
