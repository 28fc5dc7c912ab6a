//! What memory itself does: a copy, and a line that goes from one processor's cache to another's.

use super::twin::{self, APART, SharedMemory, spin};
use crate::bench::session::{Times, times};
use crate::bench::stream::Blocks;
use crate::pair::link::SHARED;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes per second of a plain copy.
pub(in crate::bench) fn copy(blocks: Blocks) -> f64 {
    // Not zero: every page of both is there before anything is timed.
    let (source, mut target) = (vec![1u8; SHARED], vec![2u8; SHARED]);
    let start = Instant::now();
    for at in blocks.places() {
        target[at..at + blocks.size].copy_from_slice(&source[at..at + blocks.size]);
        std::hint::black_box(&mut target);
    }
    blocks.rate(start)
}

/// One way between two processes: bytes are copied into memory of both, and then a word is changed on which
/// the other one spins. Of 8 bytes there is nothing but the word.
pub(in crate::bench) fn ping_pong(size: usize, rounds: usize) -> Result<Times, String> {
    let head = 2 * APART * 8;
    let shared = SharedMemory::new(head + 2 * size).map_err(|error| error.to_string())?;
    let bytes = vec![1u8; size];
    let (ping, pong) = (shared.word(0), shared.word(APART));
    let put = |place| {
        if size > 8 {
            shared.put(head + place * size, &bytes);
        }
    };
    let mut times = times();
    let theirs = || {
        (1..=rounds as u64).try_for_each(|turn| {
            spin(|| ping.load(Ordering::Acquire) == turn)?;
            put(1);
            pong.store(turn, Ordering::Release);
            Some(())
        })
    };
    let ours = || {
        (1..=rounds as u64).try_for_each(|turn| {
            let start = Instant::now();
            put(0);
            ping.store(turn, Ordering::Release);
            spin(|| pong.load(Ordering::Acquire) == turn)?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
            Some(())
        })
    };
    twin::run(theirs, ours).map_err(|error| error.to_string())?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_timed() {
        for size in [8, 4096] {
            let times = ping_pong(size, 50).expect("two processes");
            assert_eq!(times.len(), 50);
        }
    }
}
