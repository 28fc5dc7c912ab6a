//! The last reading of a list, and how long it is fresh enough.

use std::time::Duration;

/// A reading is kept at least so many times as long as it took. So readings take a small part of the time,
/// however often they are asked for.
const PAUSE: u32 = 10;
/// But no longer than this: a process that is stopped amid a reading would keep the old list for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The last reading of something that takes long to read.
pub(super) struct LastReading<T>(Option<Reading<T>>);

struct Reading<T> {
    value: T,
    /// The time that the reading took.
    took: Duration,
    /// The end of the reading.
    end: Duration,
}

impl<T> LastReading<T> {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// The value that was read last. It is read again if it is at least so old, counted from the end of that
    /// reading, and [`PAUSE`] allows it. Zero: it is read again in any case.
    pub(super) fn get(
        &mut self,
        fresh: Duration,
        clock: impl Fn() -> Duration,
        read: impl FnOnce() -> T,
    ) -> &T {
        let begin = clock();
        let is_fresh =
            |last: &Reading<T>| begin < last.end + fresh.max((last.took * PAUSE).min(LONGEST_PAUSE));
        let reading = match self.0.take().filter(|last| !fresh.is_zero() && is_fresh(last)) {
            Some(last) => last,
            None => {
                let value = read();
                let end = clock();
                Reading { value, took: end.saturating_sub(begin), end }
            }
        };
        &self.0.insert(reading).value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MS: Duration = Duration::from_millis(1);

    /// How many readings there are in so many questions, of which each comes one millisecond after the answer
    /// to the one before.
    fn readings(questions: u32, fresh: Duration, takes: Duration) -> u32 {
        let (mut last, clock, count) = (LastReading::none(), Cell::new(9000 * MS), Cell::new(0));
        for _ in 0..questions {
            clock.set(clock.get() + MS);
            let read = || {
                clock.set(clock.get() + takes);
                count.set(count.get() + 1);
                count.get()
            };
            let value = *last.get(fresh, || clock.get(), read);
            assert_eq!(value, count.get(), "the last one");
        }
        count.get()
    }

    #[test]
    fn a_reading_is_fresh_from_its_end_on_and_ten_times_as_long_as_it_took() {
        assert_eq!(readings(100, 20 * MS, Duration::ZERO), 5);
        assert_eq!(readings(100, 20 * MS, MS), 5, "from its end on");
        assert_eq!(readings(101, 20 * MS, 2 * MS), 6);
        // Readings that take longer than they are fresh do not follow each other at once.
        assert_eq!(readings(1000, 20 * MS, 25 * MS), 4);
        assert_eq!(readings(1001, 20 * MS, 25 * MS), 5);
        assert_eq!(readings(100, Duration::ZERO, 25 * MS), 100);
    }
}
