//! Many pairs of queue pairs between two hosts. They share the congestion window of each host towards the
//! other, and the buffers of both.

use std::time::Duration;

use adverb_proto::ib::Window;

use super::pair::QueuePairs;
use super::work::Expectations;
use crate::Random;

/// Steps after which two hosts must have come to rest.
const MOST_STEPS: usize = 200_000;

pub(super) struct Hosts {
    pairs: Vec<QueuePairs>,
    /// The window of each host towards the other one.
    windows: [Window; 2],
    busy_until: [Duration; 2],
}

impl Hosts {
    /// Two hosts with these queue pairs, whose runs start at the same time.
    pub(super) fn new(mut pairs: Vec<QueuePairs>) -> Hosts {
        let start = pairs.iter().map(|pair| pair.start).max().unwrap_or_default();
        for pair in &mut pairs {
            (pair.start, pair.now) = (start, start);
        }
        Hosts { pairs, windows: [0, 1].map(|_| Window::new(1 << 20)), busy_until: [Duration::ZERO; 2] }
    }

    /// Lets a pair use everything that all pairs share.
    fn with<R>(&mut self, number: usize, work: impl FnOnce(&mut QueuePairs) -> R) -> R {
        let Hosts { pairs, windows, busy_until } = self;
        let pair = &mut pairs[number];
        let mut swap = |pair: &mut QueuePairs| {
            for (end, window) in pair.ends.iter_mut().zip(windows.iter_mut()) {
                if end.has_window {
                    std::mem::swap(&mut end.window, window);
                }
            }
            std::mem::swap(&mut pair.busy_until, busy_until);
        };
        swap(pair);
        let result = work(pair);
        swap(pair);
        result
    }

    /// Runs until nothing happens any more, with a check after every step.
    pub(super) fn run(&mut self, expected: &[[Expectations; 2]], random: &mut Random) {
        for step in 0..MOST_STEPS {
            // Another pair is the first each time.
            for number in 0..self.pairs.len() {
                self.with((number + step) % expected.len(), |pair| pair.transmit(random));
            }
            let Some(next) = self.pairs.iter().filter_map(QueuePairs::next).min() else { return };
            for (number, expected) in expected.iter().enumerate() {
                self.with(number, |pair| pair.advance(next, random));
                if self.pairs[number].options.service.is_reliable() {
                    self.pairs[number].check(expected);
                }
            }
            self.check_windows();
        }
        panic!("two hosts with {} pairs of queue pairs never come to rest", self.pairs.len());
    }

    /// A window has what the queue pairs have in flight, and nothing of one that has failed.
    fn check_windows(&self) {
        for (side, window) in self.windows.iter().enumerate() {
            let ends = self.pairs.iter().map(|pair| &pair.ends[side]).filter(|end| end.has_window);
            let in_flight: u32 = ends.map(|end| end.requester.in_flight()).sum();
            assert_eq!(window.in_flight(), in_flight, "the window has what is in flight");
        }
    }

    pub(super) fn pairs(&self) -> &[QueuePairs] {
        &self.pairs
    }
}
