//! Whether a program that has posted a long operation polls, or computes first. And the cost of another
//! thread that carries the operation out meanwhile.
//!
//! A thread that polls carries the operation out itself, which is faster than to wake another thread for it.
//! One that computes wants it carried out meanwhile. The past says which: how long the program stayed away
//! after its last long posts, until it polled or posted again. One short stay tells more than many long ones,
//! since a thread that polls may lose its processor, too.
//!
//! A thread that is woken comes late: after microseconds where a processor is free, after milliseconds where
//! none is. The poster carries out an operation that takes no longer than that. Of a longer one the poster
//! carries out what takes half of that time, while the other thread comes: then both the poster and the
//! operation are late by that half.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A program that polls does not stay away longer than this, as a rule.
const LONG: Duration = Duration::from_micros(20);
/// So many long stays in a row tell that the program computes.
const ENOUGH: u32 = 2;
/// The delay that is expected of a thread that has not been woken yet.
const LATE: Duration = Duration::from_micros(30);
/// After so many posts of a program that computes, the speeds of the poster and of the other thread are
/// measured anew.
const RETRY: u32 = 64;

/// Whether a program that has posted a long operation polls or computes, and the cost of another thread that
/// carries it out. A mistake costs time alone, so the words need no order among each other. Thread-safe.
pub(crate) struct Habit {
    /// A long operation is being posted.
    posting: AtomicBool,
    /// Since when, and how many of its bytes the poster carries out at most: 0 if others do.
    since: AtomicU64,
    bytes: AtomicU32,
    /// When the program went after such a post, in nanoseconds; 0: it has come back since.
    left: AtomicU64,
    /// Long stays in a row.
    stays: AtomicU32,
    /// Nanoseconds that a poster takes for 1 MiB, and that the other thread is late by.
    price: AtomicU64,
    late: AtomicU64,
    posts: AtomicU32,
}

impl Default for Habit {
    fn default() -> Self {
        Self {
            posting: AtomicBool::new(false),
            since: AtomicU64::new(0),
            bytes: AtomicU32::new(0),
            left: AtomicU64::new(0),
            stays: AtomicU32::new(0),
            price: AtomicU64::new(0),
            late: AtomicU64::new(LATE.as_nanos() as u64),
            posts: AtomicU32::new(0),
        }
    }
}

const MIB: u64 = 1 << 20;

/// Nanoseconds since some instant.
fn word(now: Duration) -> u64 {
    (now.as_nanos() as u64).max(1)
}

impl Habit {
    /// A long operation is being posted, of which the poster would carry out so many bytes.
    pub(crate) fn posts(&self, now: Duration, bytes: u32) {
        self.comes(now);
        self.since.store(word(now), Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.posting.store(true, Ordering::Relaxed);
    }

    /// Whether one is being posted.
    #[inline]
    pub(crate) fn is_posting(&self) -> bool {
        self.posting.load(Ordering::Relaxed)
    }

    /// How many bytes of an operation of so many the poster carries out while another thread is woken for it.
    /// None: no thread is woken.
    pub(crate) fn share(&self, length: u32) -> Option<u32> {
        if self.stays.load(Ordering::Relaxed) < ENOUGH {
            return None;
        }
        let (price, late) = (self.price.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed));
        if self.posts.fetch_add(1, Ordering::Relaxed) % RETRY == RETRY - 1 {
            self.late.store(late / 2, Ordering::Relaxed);
            return None;
        }
        let takes = price * u64::from(length) / MIB;
        if takes <= late {
            return None;
        }
        self.bytes.store(0, Ordering::Relaxed);
        Some((u64::from(length) * (late / 2) / takes) as u32)
    }

    /// The other thread has come, so long after it was called.
    pub(crate) fn came(&self, after: Duration) {
        let (late, step) = (self.late.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed) / 8);
        // By steps to where half of all times are shorter: a long one now and then says little.
        let is_more = after.as_nanos() as u64 > late;
        self.late.store(if is_more { late + step + 1 } else { late - step }, Ordering::Relaxed);
    }

    /// The post ends.
    pub(crate) fn leaves(&self, now: Duration) {
        let bytes = u64::from(self.bytes.load(Ordering::Relaxed));
        if let Some(price) =
            (word(now).saturating_sub(self.since.load(Ordering::Relaxed)) * MIB).checked_div(bytes)
        {
            self.price.store(price, Ordering::Relaxed);
        }
        self.posting.store(false, Ordering::Relaxed);
        self.left.store(word(now), Ordering::Relaxed);
    }

    /// The program polls, or posts another long operation.
    pub(crate) fn comes(&self, now: Duration) {
        let left = self.left.swap(0, Ordering::Relaxed);
        if left == 0 {
            return;
        }
        let is_long = word(now).saturating_sub(left) >= word(LONG);
        let stays = self.stays.load(Ordering::Relaxed);
        self.stays.store(if is_long { (stays + 1).min(ENOUGH) } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = MIB as u32;

    fn at(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    /// Posts of 1 MiB that take 100 µs each, followed by a stay of so many microseconds.
    fn after(stays: &[u64]) -> Habit {
        let (habit, mut now) = (Habit::default(), Duration::from_secs(5));
        for stay in stays {
            habit.posts(now, BYTES);
            assert!(habit.is_posting());
            now += at(100);
            habit.leaves(now);
            assert!(!habit.is_posting());
            now += at(*stay);
            habit.comes(now);
        }
        habit
    }

    fn computes(habit: &Habit) -> bool {
        habit.share(BYTES).is_some()
    }

    #[test]
    fn two_long_stays_tell_that_it_computes_and_a_short_one_that_it_does_not() {
        assert!(!computes(&after(&[])) && !computes(&after(&[100])));
        assert!(computes(&after(&[100, 100])) && computes(&after(&[100, 20, 1000, 1_000_000])));
        assert!(!computes(&after(&[100, 19, 100])) && !computes(&after(&[100, 100, 100, 1])));
        assert!(computes(&after(&[1, 100, 100])));
    }

    /// The time within the post does not count, nor what comes without a post before it.
    #[test]
    fn only_the_first_return_after_a_long_post_counts() {
        let habit = Habit::default();
        habit.comes(at(0));
        habit.posts(at(0), BYTES);
        habit.leaves(at(100));
        habit.comes(at(101));
        habit.comes(at(500));
        habit.posts(at(900), BYTES);
        assert!(!computes(&habit));
        habit.leaves(at(1000));
        habit.posts(at(1100), BYTES);
        habit.leaves(at(1200));
        habit.posts(at(1300), BYTES);
        assert!(computes(&habit), "a program that posts again without a poll");
    }

    #[test]
    fn the_poster_does_what_takes_half_of_the_time_that_the_other_thread_is_late() {
        let habit = after(&[100, 100]);
        // 30 µs at 100 µs for a MiB.
        assert_eq!(habit.share(BYTES), Some(BYTES * 15 / 100));
        assert_eq!(habit.share(4 * BYTES), Some(4 * BYTES * 15 / 400));
        assert_eq!(habit.share(BYTES * 3 / 10), None, "it takes no longer than the other is late");
        (0..50).for_each(|_| habit.came(at(90)));
        assert!(habit.share(BYTES).is_some_and(|share| share.abs_diff(BYTES * 45 / 100) < BYTES / 10));
        (0..50).for_each(|_| habit.came(at(5000)));
        assert_eq!(habit.share(16 * BYTES), None, "nobody has a processor for it");
    }

    /// A shared operation says nothing about the poster's own speed.
    #[test]
    fn the_price_is_that_of_posts_without_help_and_both_are_looked_at_again() {
        let habit = after(&[100, 100]);
        habit.posts(at(0), BYTES);
        let share = habit.share(BYTES);
        habit.leaves(at(1));
        habit.posts(at(100), BYTES);
        assert_eq!(habit.share(BYTES), share);
        (0..50).for_each(|_| habit.came(at(5000)));
        let mut tries = 0;
        while habit.share(BYTES).is_none() {
            tries += 1;
            assert!(tries < 10 * RETRY);
        }
        assert!(tries > RETRY);
    }
}
