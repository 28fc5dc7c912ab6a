//! The congestion window towards one peer: how much may be in flight to it.
//!
//! All queue pairs with one peer process share a socket buffer there, often of no more than 50 packets, so
//! they share a window, too. It starts small and grows as acknowledgements arrive, twofold in a round trip at
//! first, by a packet in a round trip later; it halves when a packet was lost or met congestion, and falls to
//! the least when nothing comes back any more. It reacts to trouble at most once in a round trip, for one
//! burst of losses is one event.

use std::time::Duration;

use super::request::PACKET_COST;
use super::requester::{Feedback, Loss};

/// Cost of a large packet, the unit that the window is kept in.
const UNIT: u32 = 4096 + PACKET_COST;
/// The size of the window at the start.
const INITIAL: u32 = 8 * UNIT;
/// Up to here it grows twofold in a round trip at first: short of what a socket buffer of the usual size
/// holds, or the first overshoot alone would lose as much again.
const INITIAL_THRESHOLD: u32 = 32 * UNIT;
/// The size of the window after a timeout.
const LEAST: u32 = 2 * UNIT;
/// The round trip that is assumed while none has been measured.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(1);

/// How much may be in flight to one peer. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Window {
    size: u32,
    limit: u32,
    /// Growth is twofold in a round trip below this, slow above.
    threshold: u32,
    in_flight: u32,
    /// What has been acknowledged since the round began; a round is a window's worth.
    gathered: u32,
    /// The most that was in flight in this round.
    peak: u32,
    smoothed: Option<Duration>,
    least_round_trip: Option<Duration>,
    /// Before this, trouble is part of what has been reacted to.
    deaf_until: Duration,
}

impl Window {
    /// A window that never exceeds `limit`, in the unit of [`super::Outbound::cost`].
    pub fn new(limit: u32) -> Window {
        let limit = limit.max(LEAST);
        Window {
            size: INITIAL.min(limit),
            limit,
            threshold: INITIAL_THRESHOLD.min(limit),
            in_flight: 0,
            gathered: 0,
            peak: 0,
            smoothed: None,
            least_round_trip: None,
            deaf_until: Duration::ZERO,
        }
    }

    /// Sets the most that the window may have from now on.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(LEAST);
        self.size = self.size.min(self.limit);
        self.threshold = self.threshold.min(self.limit);
    }

    /// What still may be sent now; zero means nothing.
    #[inline]
    pub fn room(&self) -> u32 {
        self.size.saturating_sub(self.in_flight)
    }

    /// The size of the window.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// What is in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The smoothed round trip time, once one has been measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest round trip time that was measured.
    pub fn least_round_trip(&self) -> Option<Duration> {
        self.least_round_trip
    }

    /// A packet of this cost has gone out. One may, however large, while there is any room.
    #[inline]
    pub fn sent(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_add(cost);
        self.peak = self.peak.max(self.in_flight);
    }

    /// What a requester has learnt.
    #[inline]
    pub fn learn(&mut self, feedback: &Feedback, now: Duration) {
        if let Some(sample) = feedback.round_trip {
            self.measure(sample);
        }
        if feedback.acknowledged != 0 {
            self.acknowledged(feedback.acknowledged);
        }
        self.released(feedback.rewound);
        match feedback.loss {
            Loss::None | Loss::NotReady => {}
            Loss::Gap => self.congestion(now),
            Loss::Timeout => self.timeout(now),
        }
    }

    /// Packets are no longer in flight, and have not arrived: they are sent again, or their queue pair is
    /// gone.
    pub fn released(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Packets were lost, marked, or did not fit the peer's buffer: halves the window, once in a round trip.
    // IB-RC-REQ-21, ROCE-36
    pub fn congestion(&mut self, now: Duration) {
        if now < self.deaf_until {
            return;
        }
        self.size = (self.size / 2).max(LEAST);
        self.threshold = self.size;
        self.gathered = 0;
        self.deaf_until = now + self.smoothed.unwrap_or(INITIAL_ROUND_TRIP);
    }

    fn timeout(&mut self, now: Duration) {
        self.threshold = (self.size / 2).max(LEAST);
        self.size = LEAST;
        self.gathered = 0;
        self.deaf_until = now + self.smoothed.unwrap_or(INITIAL_ROUND_TRIP);
    }

    fn acknowledged(&mut self, cost: u32) {
        self.released(cost);
        // A window that was not used says nothing about a larger one.
        let used = self.peak >= self.size / 2;
        self.gathered = self.gathered.saturating_add(cost);
        let round = self.gathered >= self.size;
        if round {
            self.gathered = 0;
            self.peak = self.in_flight;
        }
        if used && self.size < self.threshold {
            self.size = self.size.saturating_add(cost);
        } else if used && round {
            self.size = self.size.saturating_add(UNIT);
        }
        self.size = self.size.min(self.limit);
    }

    fn measure(&mut self, sample: Duration) {
        self.smoothed = Some(smooth(self.smoothed, sample));
        self.least_round_trip = Some(self.least_round_trip.map_or(sample, |least| least.min(sample)));
    }
}

/// The usual running average with a weight of an eighth for each sample (RFC 6298).
// IB-RC-REQ-21
pub(super) fn smooth(average: Option<Duration>, sample: Duration) -> Duration {
    average.map_or(sample, |average| (average * 7 + sample) / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 100 * UNIT;
    const ROUND_TRIP: Duration = Duration::from_micros(100);

    /// Fills the window and acknowledges all of it.
    fn round(window: &mut Window) {
        while window.room() > 0 {
            window.sent(UNIT);
        }
        while window.in_flight() > 0 {
            let feedback =
                Feedback { acknowledged: UNIT, round_trip: Some(ROUND_TRIP), ..Feedback::default() };
            window.learn(&feedback, Duration::from_secs(1));
        }
    }

    #[test]
    fn grows_fast_then_slowly_up_to_the_limit() {
        let mut window = Window::new(LIMIT);
        assert_eq!(window.size(), INITIAL);
        round(&mut window);
        assert!(window.size() > INITIAL * 14 / 10, "{}", window.size());
        round(&mut window);
        assert!(window.size() > INITIAL_THRESHOLD * 9 / 10, "{}", window.size());
        round(&mut window);
        let before = window.size();
        round(&mut window);
        assert!(window.size() - before <= 2 * UNIT);
        for _ in 0..100 {
            round(&mut window);
        }
        assert_eq!((window.size(), window.round_trip()), (LIMIT, Some(ROUND_TRIP)));
        assert_eq!(window.least_round_trip(), Some(ROUND_TRIP));
    }

    #[test]
    fn halves_once_in_a_round_trip_and_grows_slowly_afterwards() {
        let mut window = Window::new(LIMIT);
        for _ in 0..100 {
            round(&mut window);
        }
        let now = Duration::from_secs(2);
        window.congestion(now);
        window.congestion(now + ROUND_TRIP / 2);
        assert_eq!(window.size(), LIMIT / 2);
        round(&mut window);
        assert!(window.size() - LIMIT / 2 <= UNIT);
        let lost = Feedback { loss: Loss::Gap, ..Feedback::default() };
        window.learn(&lost, now + ROUND_TRIP);
        assert!(window.size() <= LIMIT / 4 + UNIT);
    }

    #[test]
    fn a_timeout_leaves_the_least() {
        let mut window = Window::new(LIMIT);
        window.sent(INITIAL);
        let feedback = Feedback { rewound: INITIAL, loss: Loss::Timeout, ..Feedback::default() };
        window.learn(&feedback, Duration::from_secs(1));
        assert_eq!((window.size(), window.in_flight(), window.room()), (LEAST, 0, LEAST));
        for round_trip in 0..20 {
            window.congestion(Duration::from_secs(2 + round_trip));
        }
        assert_eq!(window.size(), LEAST);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut window = Window::new(LIMIT);
        for _ in 0..100 {
            window.sent(PACKET_COST);
            let feedback = Feedback { acknowledged: PACKET_COST, ..Feedback::default() };
            window.learn(&feedback, Duration::from_secs(1));
        }
        assert_eq!(window.size(), INITIAL);
    }

    #[test]
    fn a_receiver_that_is_not_ready_is_no_congestion() {
        let mut window = Window::new(LIMIT);
        window.sent(UNIT);
        let feedback = Feedback { rewound: UNIT, loss: Loss::NotReady, ..Feedback::default() };
        window.learn(&feedback, Duration::ZERO);
        assert_eq!((window.size(), window.in_flight()), (INITIAL, 0));
    }
}
