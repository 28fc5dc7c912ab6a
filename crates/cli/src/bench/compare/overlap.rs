//! Whether a long write goes on while its poster computes.

use crate::bench::ROCE;
use crate::bench::result::{Sample, Section, Unit};
use crate::bench::session::{Place, Session, TargetIs, text};
use crate::pair::link::{Link, SHARED};
use adverb::{MemoryRegion, WorkRequest};
use std::hint::black_box;
use std::time::{Duration, Instant};

const COMPUTATION: &str = "computation";
const BESIDE: &str = "computation, a write beside it";

/// Computes for as long as a write takes, without and with such a write under way. Of two processors the
/// other one is free for it: the target sleeps.
pub(super) fn add(rounds: u16, section: &mut Section) -> Result<(), String> {
    let mut session = Session::start(ROCE, Place::Here, false)?;
    for _ in 0..rounds {
        let (alone, both) = once(&mut session, SHARED)?;
        let nanoseconds = |time: Duration| time.as_nanos() as f64;
        let sample = |name: &str, time| Sample::new(name, SHARED, Unit::Nanoseconds, nanoseconds(time));
        section.add(sample(COMPUTATION, alone).into_yardstick());
        section.add(sample(BESIDE, both).against(COMPUTATION, SHARED));
    }
    Ok(())
}

/// Computes without and with a write of 1 MiB or 4 MiB under way, as [`add`], and prints a line for each
/// length. For `benches/overlap`.
pub(in crate::bench) fn print(rounds: usize) -> Result<(), String> {
    let mut session = Session::start(ROCE, Place::Here, false)?;
    for _ in 0..rounds {
        for length in [SHARED / 4, SHARED] {
            let (alone, both) = once(&mut session, length)?;
            println!("{length} {} {}", alone.as_nanos(), both.as_nanos());
        }
    }
    Ok(())
}

/// How long a computation takes alone, and beside a write of `length` bytes that takes as long.
fn once(session: &mut Session, length: usize) -> Result<(Duration, Duration), String> {
    session.meanwhile(TargetIs::Sleeping, |link, memory| measure(link, memory, length))
}

fn measure(link: &Link, memory: &MemoryRegion, length: usize) -> Result<(Duration, Duration), String> {
    const TIMES: usize = 15;
    let there = link.there(..length)?;
    let post = || link.post(WorkRequest::write(memory.slice(..length), &there));
    // The first ones bring the memory into reach.
    for _ in 0..TIMES {
        post()?;
        link.sent()?;
        std::thread::yield_now();
    }
    let write = median(TIMES, || {
        post()?;
        link.sent().map(drop)
    })?;
    let steps = steps(write);
    let alone = median(TIMES, || {
        compute(steps);
        Ok(())
    })?;
    let both = median(TIMES, || {
        post()?;
        compute(steps);
        link.sent().map(drop)
    })?;
    Ok((alone, both))
}

fn median(times: usize, mut work: impl FnMut() -> Result<(), String>) -> Result<Duration, String> {
    let one = |_| {
        let start = Instant::now();
        work().map(|()| start.elapsed())
    };
    let mut found = (0..times).map(one).collect::<Result<Vec<_>, _>>().map_err(text)?;
    found.sort_unstable();
    Ok(found[times / 2])
}

/// Something that needs a processor and no memory.
fn compute(steps: u64) {
    let mut value = 1u64;
    for step in 0..steps {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step);
    }
}

/// How many steps take so long.
fn steps(time: Duration) -> u64 {
    const SOME: u64 = 100_000;
    let start = Instant::now();
    compute(SOME);
    let took = start.elapsed().as_nanos().max(1);
    (u128::from(SOME) * time.as_nanos() / took).max(1) as u64
}
