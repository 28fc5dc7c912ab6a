//! The faults of a network and of the machines at its ends.

use std::time::Duration;

/// A time in which something does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The beginning of the time, since the start of the run.
    pub(crate) start: Duration,
    pub(crate) length: Duration,
}

impl Span {
    pub(crate) fn end(self) -> Duration {
        self.start + self.length
    }

    pub(crate) fn has(self, time: Duration) -> bool {
        self.start <= time && time < self.end()
    }
}

/// The packets of which end get lost in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) span: Span,
    /// True for an end whose packets get lost.
    pub(crate) from: [bool; 2],
}

/// A time in which the path of both ends carries only short packets, as behind a tunnel. Nobody tells the
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Narrowing {
    pub(crate) span: Span,
    /// The bytes of the longest packet that gets through.
    pub(crate) longest: usize,
}

/// A part of the work of an end that needs a turn of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Send,
    /// Packets wait for the end meanwhile.
    Receive,
    Timers,
}

/// An end whose thread gets no turn for one part of its work, while other parts go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Starvation {
    pub(crate) span: Span,
    pub(crate) end: usize,
    pub(crate) of: Turn,
}

/// An end that does nothing for a time, as a process that has been stopped. Packets wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freeze {
    pub(crate) span: Span,
    pub(crate) end: usize,
}

/// A leap of the clock of one end, as after its machine was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leap {
    /// The time of the leap, since the start of the run.
    pub(crate) at: Duration,
    pub(crate) by: Duration,
    pub(crate) end: usize,
}

/// The time in which both ends are processes of one host that have a channel in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nearness {
    pub(crate) span: Span,
    /// Whether what is in the channel at the end is lost.
    pub(crate) loses: bool,
    /// The most nanoseconds that a record waits in the channel until its receiver looks.
    pub(crate) wait: usize,
    /// How far ticks are late at both ends, whose clock is the coarse one of the system. None for the exact
    /// clock.
    pub(crate) tick_lag: Option<Duration>,
    /// The longest read whose bytes the responder takes when it arrives. Others read when the answer leaves,
    /// and nothing that changes memory is sent behind them.
    pub(crate) longest_kept: Option<u32>,
}

/// A span of this length lasts for good.
pub(crate) const FOR_GOOD: Duration = Duration::from_secs(1000);

impl Nearness {
    fn is_for_good(&self) -> bool {
        self.span.start == Duration::ZERO && self.span.length >= FOR_GOOD
    }
}

/// What the network and the machines do. Numbers are per mille of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lose: usize,
    pub(crate) repeat: usize,
    /// Packets that come up to 100 µs later.
    pub(crate) delay: usize,
    /// Packets that come up to 20 ms later, behind others that were sent much later.
    pub(crate) late: usize,
    /// A packet that is damaged does not pass the check of the invariant CRC.
    pub(crate) damage: usize,
    /// Acknowledgements that somebody repeats with the number of a packet that was never sent.
    pub(crate) forge: usize,
    pub(crate) outages: Vec<Outage>,
    pub(crate) narrowings: Vec<Narrowing>,
    pub(crate) freezes: Vec<Freeze>,
    pub(crate) starvations: Vec<Starvation>,
    pub(crate) leaps: Vec<Leap>,
    pub(crate) nearness: Option<Nearness>,
    /// The path MTU of the second end, where programs have not agreed on one.
    pub(crate) other_mtu: Option<u32>,
}

impl Faults {
    /// Whether each packet comes exactly once, and in order.
    pub(crate) fn lets_all_through(&self) -> bool {
        self.keeps_order()
            && [self.lose, self.damage] == [0; 2]
            && self.outages.is_empty()
            && self.narrowings.is_empty()
            && self.other_mtu.is_none()
            && self.nearness.is_none_or(|nearness| nearness.is_for_good())
    }

    /// Whether no packet overtakes another one, or comes twice.
    pub(crate) fn keeps_order(&self) -> bool {
        [self.repeat, self.delay, self.late] == [0; 3]
    }

    /// Whether the peer of an end may seem to be gone for as long as a request is repeated whose longest
    /// packet has up to so many bytes.
    pub(crate) fn may_silence(&self, side: usize, longest: usize) -> bool {
        // An end that cannot send has nothing to wait for, and late timers give up later.
        let hears_less = |starvation: &Starvation| match starvation.of {
            Turn::Send => starvation.end != side,
            Turn::Receive => true,
            Turn::Timers => false,
        };
        !self.outages.is_empty()
            || !self.freezes.is_empty()
            || self.narrowings.iter().any(|path| longest > path.longest)
            || self.starvations.iter().any(hears_less)
    }

    /// When an end has its next turn that has none now, by the time since the start of the run.
    pub(crate) fn next_turn(&self, side: usize, turn: Turn, since: Duration) -> Option<Duration> {
        let freezes = self.freezes.iter().filter(|freeze| freeze.end == side).map(|freeze| freeze.span);
        let starvations = self.starvations.iter();
        let starvations = starvations.filter(|starvation| starvation.end == side && starvation.of == turn);
        let spans = freezes.chain(starvations.map(|starvation| starvation.span));
        spans.filter(|span| span.has(since)).map(Span::end).max()
    }

    /// How far the clock of an end has leapt, by the time since the start of the run.
    pub(crate) fn leapt(&self, side: usize, since: Duration) -> Duration {
        let past = self.leaps.iter().filter(|leap| leap.end == side && leap.at <= since);
        past.map(|leap| leap.by).sum()
    }

    /// When the clock of an end leaps next.
    pub(crate) fn next_leap(&self, side: usize, since: Duration) -> Option<Duration> {
        let coming = self.leaps.iter().filter(|leap| leap.end == side && leap.at > since);
        coming.map(|leap| leap.at).min()
    }

    /// Whether a packet of an end gets lost on the path.
    pub(crate) fn stops(&self, side: usize, length: usize, since: Duration) -> bool {
        let is_cut = |outage: &Outage| outage.from[side] && outage.span.has(since);
        let is_too_long = |path: &Narrowing| length > path.longest && path.span.has(since);
        self.outages.iter().any(is_cut) || self.narrowings.iter().any(is_too_long)
    }
}
