//! A limit on how often something is done for each asker: an address, for example.

use crate::lock;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Mutex;
use std::time::Duration;

/// Askers share so many shares. No other process knows which askers share one.
const SHARES: usize = 256;

/// A limit on how often something is done for an asker: an address, for example. One that asks too often has
/// no effect on most others. Thread-safe, and of a fixed size.
pub(crate) struct Limit {
    /// The time up to which the grants of each share count.
    /// On the heap: a thread with a small stack may make it.
    busy_until: Mutex<Box<[Duration]>>,
    spread: RandomState,
    /// Between two, on average.
    every: Duration,
    /// How many times the thing may be done at once.
    burst: u32,
}

impl Limit {
    /// A limit of so many in a second for each share, and so many at once.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self {
            busy_until: Mutex::new(vec![Duration::ZERO; SHARES].into()),
            spread: RandomState::new(),
            every: Duration::from_secs(1) / per_second,
            burst,
        }
    }

    /// Whether the limited thing may be done once more for an asker.
    pub(crate) fn allows(&self, asker: &impl Hash, now: Duration) -> bool {
        let share = self.spread.hash_one(asker) as usize % SHARES;
        let busy_until = &mut lock(&self.busy_until)[share];
        let begins = now.max(*busy_until);
        let allowed = begins - now < self.every * self.burst;
        if allowed {
            *busy_until = begins + self.every;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn an_address_that_asks_too_often_is_refused_for_a_while() {
        let limit = Limit::new(1000, 10);
        let (greedy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = Duration::from_secs(1);
        assert_eq!((0..100).filter(|_| limit.allows(&greedy, now)).count(), 10);
        let same =
            limit.spread.hash_one(greedy) as usize % SHARES == limit.spread.hash_one(other) as usize % SHARES;
        assert_eq!(limit.allows(&other, now), !same);
        let later = now + Duration::from_millis(if same { 5 } else { 4 });
        assert!((0..100).filter(|_| limit.allows(&greedy, later)).count() <= 5);
        assert!(limit.allows(&greedy, later + Duration::from_millis(2)));
    }
}
