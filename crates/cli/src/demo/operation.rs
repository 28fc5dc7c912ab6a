//! What the demonstration does, operation by operation. Each has an active side, which posts the requests,
//! and a passive side, whose memory or receives they meet; both run at the same time, and both check every
//! byte that they can see.

use crate::pair::link::{Link, MESSAGE, RECEIVES, Stream, WORDS, Waiting, poll_until};
use crate::pair::pattern::{self, check};
use adverb::{Completion, MemoryRegion, Opcode, Rights, Segment, WorkRequest};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An operation that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Operation {
    Send,
    SendImmediate,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
}

/// What one side has seen of an operation.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct SideResult {
    /// Bytes compared with what they had to be, all equal.
    pub(super) checked: u64,
    /// Median time of an 8-byte operation, in nanoseconds.
    pub(super) latency: Option<u64>,
    /// Bytes per second in blocks of 64 KiB.
    pub(super) rate: Option<f64>,
}

impl Operation {
    /// All operations, in the order in which they are shown.
    pub(super) const ALL: &[Operation] = &[
        Self::Send,
        Self::SendImmediate,
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::SendInvalidate,
    ];

    /// What verbs call it, and what it is done to.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "Send a message",
            Self::SendImmediate => "Send with immediate data",
            Self::SendInvalidate => "Send with Invalidate of a key",
            Self::Write => "Write into the other's memory",
            Self::WriteImmediate => "Write with immediate data",
            Self::Read => "Read the other's memory",
            Self::FetchAdd => "Fetch-and-add to a number there",
            Self::CompareSwap => "Compare-and-swap of a number there",
        }
    }

    /// What the device calls it.
    pub(super) fn opcode(self) -> Opcode {
        match self {
            Self::Send => Opcode::Send,
            Self::SendImmediate => Opcode::SendWithImmediate,
            Self::SendInvalidate => Opcode::SendWithInvalidate,
            Self::Write => Opcode::Write,
            Self::WriteImmediate => Opcode::WriteWithImmediate,
            Self::Read => Opcode::Read,
            Self::FetchAdd => Opcode::FetchAdd,
            Self::CompareSwap => Opcode::CompareSwap,
        }
    }

    /// Whether the operation's time is that of one way, rather than there and back.
    pub(super) fn is_one_way(self) -> bool {
        !matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }
}

/// Lengths that are checked byte by byte.
const LENGTHS: &[usize] = &[0, 1, 7, 8, 64, 1000, 4096, 65_535, MESSAGE];
/// Longer lengths that are checked byte by byte, for operations that need no receive.
const LONG: &[usize] = &[300_001, 1 << 20];
const LONGEST: usize = 1 << 20;
/// Messages in flight, at most.
const WINDOW: usize = RECEIVES / 2;

/// How often is done what is timed: the same for both sides. A slow machine (an emulated one, say) has no
/// time for as much as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effort(usize);

impl Effort {
    /// Little, to see how fast the machine is.
    pub(super) const LEAST: Self = Self(1);
    const MOST: Self = Self(100);
    /// How long an operation may take.
    const AIM: Duration = Duration::from_secs(1);

    /// For a machine that needs so long for the least.
    pub(super) fn fitting(least: Duration) -> Self {
        let times = Self::AIM.as_nanos() / least.as_nanos().max(1);
        Self(times.clamp(1, Self::MOST.0 as u128) as usize)
    }

    /// Round trips that are timed.
    pub(super) fn rounds(self) -> usize {
        self.0 * 10
    }

    /// Round trips before those.
    fn warm_up(self) -> usize {
        self.0
    }

    /// Blocks of 64 KiB that are timed: a whole number of half windows, and enough for all that the other
    /// side offers.
    fn blocks(self) -> usize {
        RECEIVES.max(self.0 * WINDOW / 2)
    }

    fn rate(self, took: Duration) -> f64 {
        (self.blocks() * MESSAGE) as f64 / took.as_secs_f64()
    }
}
/// Values by which neighbouring blocks differ: where they begin in the pattern.
const OFFSETS: usize = 512;

/// The memory that a side brings to the demonstration.
pub(super) struct Stage {
    pattern: Vec<u8>,
    /// The pattern, ready to be sent from.
    source: MemoryRegion,
    /// Where reads go.
    sink: MemoryRegion,
}

impl Stage {
    pub(super) fn new(link: &Link) -> Result<Self, String> {
        let pattern = pattern::bytes(LONGEST + OFFSETS * 8, 1);
        let make = |length| link.domain().memory_region(length, Rights::empty());
        let (source, sink) = make(pattern.len())
            .and_then(|source| Ok((source, make(RECEIVES * MESSAGE)?)))
            .map_err(|error| format!("memory for the demonstration: {error}"))?;
        source.write(0, &pattern);
        Ok(Self { pattern, source, sink })
    }

    /// What block `index` has to contain.
    fn expected(&self, index: usize, length: usize) -> &[u8] {
        let start = index * 13 % OFFSETS * 8;
        &self.pattern[start..start + length]
    }

    /// The bytes of block `index` in the registered source, to be sent or written.
    fn block(&self, index: usize, length: usize) -> Segment {
        let start = index * 13 % OFFSETS * 8;
        self.source.slice(start..start + length)
    }
}

/// Where block `index` lies in the shared memory.
fn place(index: usize) -> usize {
    index % RECEIVES * MESSAGE
}

/// The side that posts the requests.
pub(super) fn active(
    link: &Link,
    stage: &Stage,
    operation: Operation,
    effort: Effort,
) -> Result<SideResult, String> {
    match operation {
        Operation::Send | Operation::SendImmediate | Operation::WriteImmediate => {
            active_messages(link, stage, operation, effort)
        }
        Operation::SendInvalidate => give_back(link),
        Operation::Write => active_write(link, stage, effort),
        Operation::Read => active_read(link, stage, effort),
        Operation::FetchAdd | Operation::CompareSwap => active_atomic(link, stage, operation, effort),
    }
}

/// The side that they meet.
pub(super) fn passive(
    link: &Link,
    stage: &Stage,
    operation: Operation,
    effort: Effort,
) -> Result<SideResult, String> {
    match operation {
        Operation::Send | Operation::SendImmediate | Operation::WriteImmediate => {
            passive_messages(link, stage, operation, effort)
        }
        Operation::SendInvalidate => grant_and_lose(link),
        Operation::Write => passive_write(link, stage, effort),
        Operation::Read => passive_read(link, stage),
        Operation::FetchAdd | Operation::CompareSwap => passive_atomic(link, operation),
    }
}

// Messages: what takes a receive of the other side.

fn message(
    link: &Link,
    operation: Operation,
    index: usize,
    bytes: Segment,
) -> Result<WorkRequest<'static>, String> {
    Ok(match operation {
        Operation::Send => WorkRequest::send(bytes),
        Operation::SendImmediate => WorkRequest::send(bytes).immediate(index as u32),
        _ => WorkRequest::write(bytes, &link.there(place(index)..)?).immediate(index as u32),
    })
}

fn check_message(
    link: &Link,
    operation: Operation,
    index: usize,
    expected: &[u8],
    completion: &Completion,
) -> Result<u64, String> {
    if operation != Operation::Send && completion.immediate != Some(index as u32) {
        return Err(format!("message {index} came with the number {:?}", completion.immediate));
    }
    let what = format!("message {index}");
    if operation == Operation::WriteImmediate {
        let start = place(index);
        check(&what, &link.shared.to_vec(start..start + expected.len()), expected)
    } else {
        check(&what, completion.message(), expected)
    }
}

fn active_messages(
    link: &Link,
    stage: &Stage,
    operation: Operation,
    effort: Effort,
) -> Result<SideResult, String> {
    for (index, length) in LENGTHS.iter().enumerate() {
        link.run(message(link, operation, index, stage.block(index, *length))?)?;
        link.hear_verdict()?;
    }
    let latency = ping(effort, || {
        link.run(message(link, operation, 0, stage.block(0, 8))?)?;
        link.hear(Waiting::Polling, |_| Ok(()))
    })?;
    let start = Instant::now();
    let mut stream = Stream::new(link);
    let mut granted = WINDOW;
    for index in 0..effort.blocks() {
        if index == granted {
            link.hear(Waiting::Polling, |_| Ok(()))?;
            granted += WINDOW / 2;
        }
        stream.post(message(link, operation, index, stage.block(index, MESSAGE))?)?;
    }
    stream.finish()?;
    while granted < effort.blocks() + WINDOW {
        link.hear(Waiting::Polling, |_| Ok(()))?;
        granted += WINDOW / 2;
    }
    let took = start.elapsed();
    link.hear_verdict()?;
    Ok(SideResult { checked: 0, latency: Some(latency / 2), rate: Some(effort.rate(took)) })
}

fn passive_messages(
    link: &Link,
    stage: &Stage,
    operation: Operation,
    effort: Effort,
) -> Result<SideResult, String> {
    let mut checked = 0;
    for (index, length) in LENGTHS.iter().enumerate() {
        let verdict = link.hear(Waiting::Polling, |completion| {
            check_message(link, operation, index, stage.expected(index, *length), completion)
        });
        checked += link.tell_verdict(verdict)?;
    }
    pong(effort, || {
        link.hear(Waiting::Polling, |_| Ok(()))?;
        link.run(message(link, operation, 0, stage.block(0, 8))?).map(drop)
    })?;
    let mut verdict = Ok(());
    for index in 0..effort.blocks() {
        let result = link.hear(Waiting::Polling, |completion| {
            Ok(check_message(link, operation, index, stage.expected(index, MESSAGE), completion))
        })?;
        match result {
            Ok(bytes) => checked += bytes,
            wrong => verdict = verdict.and(wrong.map(drop)),
        }
        if (index + 1) % (WINDOW / 2) == 0 {
            link.tell(b"more")?;
        }
    }
    link.tell_verdict(verdict)?;
    Ok(SideResult { checked, ..SideResult::default() })
}

// One-sided: the passive side's program does nothing.

fn active_write(link: &Link, stage: &Stage, effort: Effort) -> Result<SideResult, String> {
    for (index, length) in LENGTHS.iter().chain(LONG).enumerate() {
        // Not at the beginning of a block, so that every alignment occurs.
        let there = link.there(index..index + length)?;
        link.run(WorkRequest::write(stage.block(index, *length), &there))?;
        link.tell(b"look")?;
        link.hear_verdict()?;
    }
    let there = link.there(WORDS..WORDS + 8)?;
    meet(link)?;
    let mut turn = 0u64;
    let latency = ping(effort, || {
        turn += 1;
        link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))?;
        poll_until(link, || word(link).load(Ordering::Acquire) == turn)
    })?;
    link.settle()?;
    let start = Instant::now();
    let mut stream = Stream::new(link);
    for index in 0..effort.blocks() {
        let there = link.there(place(index)..)?;
        stream.post(WorkRequest::write(stage.block(index, MESSAGE), &there))?;
    }
    stream.finish()?;
    link.tell(b"last")?;
    link.hear(Waiting::Polling, |_| Ok(()))?;
    let took = start.elapsed();
    link.hear_verdict()?;
    Ok(SideResult { checked: 0, latency: Some(latency / 2), rate: Some(effort.rate(took)) })
}

fn passive_write(link: &Link, stage: &Stage, effort: Effort) -> Result<SideResult, String> {
    let mut checked = 0;
    for (index, length) in LENGTHS.iter().chain(LONG).enumerate() {
        link.hear(Waiting::Polling, |_| Ok(()))?;
        let found = link.shared.to_vec(index..index + length);
        checked += link.tell_verdict(check("a write", &found, stage.expected(index, *length)))?;
    }
    let there = link.there(WORDS..WORDS + 8)?;
    meet(link)?;
    let mut turn = 0u64;
    pong(effort, || {
        turn += 1;
        poll_until(link, || word(link).load(Ordering::Acquire) == turn)?;
        link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))
    })?;
    link.settle()?;
    link.hear(Waiting::Polling, |_| Ok(()))?;
    link.tell(b"seen")?;
    checked +=
        link.tell_verdict((effort.blocks() - RECEIVES..effort.blocks()).try_fold(0, |sum, index| {
            let found = link.shared.to_vec(place(index)..place(index) + MESSAGE);
            Ok(sum + check(&format!("written block {index}"), &found, stage.expected(index, MESSAGE))?)
        }))?;
    Ok(SideResult { checked, ..SideResult::default() })
}

fn active_read(link: &Link, stage: &Stage, effort: Effort) -> Result<SideResult, String> {
    link.hear(Waiting::Polling, |_| Ok(()))?;
    let mut checked = 0;
    let mut read = |place: usize, length: usize, expected: &[u8]| {
        let there = link.there(place..place + length)?;
        link.run(WorkRequest::read(stage.sink.slice(..length), &there))?;
        checked += check("a read", &stage.sink.to_vec(..length), expected)?;
        stage.sink.write(0, &vec![0; length]);
        Ok::<(), String>(())
    };
    for length in LENGTHS {
        read(0, *length, stage.expected(0, *length))?;
    }
    for length in LONG {
        let expected: Vec<u8> =
            (0..RECEIVES).flat_map(|index| stage.expected(index, MESSAGE)).take(*length).copied().collect();
        read(0, *length, &expected)?;
    }
    let word = link.there(..8)?;
    let latency = ping(effort, || link.run(WorkRequest::read(stage.sink.slice(..8), &word)).map(drop))?;
    let start = Instant::now();
    let mut stream = Stream::new(link);
    for index in 0..effort.blocks() {
        let (from, to) = (place(index), place(index) + MESSAGE);
        stream.post(WorkRequest::read(stage.sink.slice(from..to), &link.there(from..to)?))?;
    }
    stream.finish()?;
    let took = start.elapsed();
    for index in 0..RECEIVES {
        let found = stage.sink.to_vec(place(index)..place(index) + MESSAGE);
        checked += check(&format!("read block {index}"), &found, stage.expected(index, MESSAGE))?;
    }
    stage.sink.write(0, &vec![0; stage.sink.len()]);
    link.tell(b"done")?;
    Ok(SideResult { checked, latency: Some(latency), rate: Some(effort.rate(took)) })
}

fn passive_read(link: &Link, stage: &Stage) -> Result<SideResult, String> {
    for index in 0..RECEIVES {
        link.shared.write(place(index), stage.expected(index, MESSAGE));
    }
    link.tell(b"look")?;
    link.hear(Waiting::Polling, |_| Ok(()))?;
    Ok(SideResult::default())
}

/// The number there begins with this, so that every byte of it counts.
const FIRST: u64 = 0xfedc_ba98_7654_3210;

fn active_atomic(
    link: &Link,
    stage: &Stage,
    operation: Operation,
    effort: Effort,
) -> Result<SideResult, String> {
    link.hear(Waiting::Polling, |_| Ok(()))?;
    let there = link.there(WORDS..WORDS + 8)?;
    let result = || stage.sink.slice(..8);
    let (mut now, mut checked) = (FIRST, 0);
    let mut expect = |expected: u64| {
        let found = stage.sink.words()[0].load(Ordering::Acquire);
        checked += check("the number there", &found.to_ne_bytes(), &expected.to_ne_bytes())?;
        Ok::<(), String>(())
    };
    if operation == Operation::CompareSwap {
        // Not N: nothing is swapped.
        link.run(WorkRequest::compare_swap(result(), &there, FIRST + 1, 0))?;
        expect(FIRST)?;
    }
    let latency = ping(effort, || {
        let next = now.wrapping_add(0x0101_0101_0101_0101);
        link.run(match operation {
            Operation::FetchAdd => WorkRequest::fetch_add(result(), &there, next.wrapping_sub(now)),
            _ => WorkRequest::compare_swap(result(), &there, now, next),
        })?;
        expect(now)?;
        now = next;
        Ok(())
    })?;
    link.tell(&now.to_be_bytes())?;
    link.hear_verdict()?;
    Ok(SideResult { checked, latency: Some(latency), rate: None })
}

fn passive_atomic(link: &Link, operation: Operation) -> Result<SideResult, String> {
    word(link).store(FIRST, Ordering::Release);
    link.tell(b"look")?;
    let verdict = link.hear(Waiting::Polling, |completion| {
        let found = word(link).load(Ordering::Acquire).to_be_bytes();
        Ok(check(operation.name(), &found, completion.message()))
    })?;
    Ok(SideResult { checked: link.tell_verdict(verdict)?, ..SideResult::default() })
}

// A right that is given for a while.

fn give_back(link: &Link) -> Result<SideResult, String> {
    let granted = link.hear(Waiting::Polling, |completion| {
        adverb::RemoteMemory::from_bytes(completion.message()).ok_or_else(|| "no token arrived".to_owned())
    })?;
    let target = link.domain().buffer(granted.len() as usize).map_err(|error| error.to_string())?;
    let completion = link.run(WorkRequest::read(target, &granted))?;
    let expected = pattern::bytes(granted.len() as usize, 2);
    let checked = check("the granted memory", completion.message(), &expected)?;
    link.run(WorkRequest::send(b"thanks").invalidate(&granted))?;
    link.hear_verdict()?;
    Ok(SideResult { checked, ..SideResult::default() })
}

fn grant_and_lose(link: &Link) -> Result<SideResult, String> {
    let granted = link.domain().memory_region(4096, Rights::READ).map_err(|error| error.to_string())?;
    granted.write(0, &pattern::bytes(granted.len(), 2));
    link.tell(&granted.remote().to_bytes())?;
    let verdict = link.hear(Waiting::Polling, |completion| {
        Ok(match completion.invalidated {
            Some(key) if key == granted.remote().key() => Ok(()),
            other => Err(format!("the message invalidated {other:?}")),
        })
    })?;
    link.tell_verdict(verdict)?;
    Ok(SideResult::default())
}

// Helpers.

/// The single word in the shared memory that this side watches.
fn word(link: &Link) -> &AtomicU64 {
    &link.shared.words()[WORDS / 8]
}

/// Both sides clear their word and know that the other one has.
fn meet(link: &Link) -> Result<(), String> {
    word(link).store(0, Ordering::Release);
    link.tell(b"meet")?;
    link.hear(Waiting::Polling, |_| Ok(()))
}

/// Times a round trip again and again: the median, in nanoseconds.
fn ping(effort: Effort, mut once: impl FnMut() -> Result<(), String>) -> Result<u64, String> {
    let mut times = Vec::with_capacity(effort.rounds());
    for round in 0..effort.warm_up() + effort.rounds() {
        let start = Instant::now();
        once()?;
        if round >= effort.warm_up() {
            times.push(start.elapsed().as_nanos() as u64);
        }
    }
    times.sort_unstable();
    Ok(times[effort.rounds() / 2])
}

/// The other half of [`ping`].
fn pong(effort: Effort, mut once: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    (0..effort.warm_up() + effort.rounds()).try_for_each(|_| once())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_does_less_of_what_is_timed() {
        assert_eq!(Effort::fitting(Duration::from_millis(1)), Effort::MOST);
        assert_eq!(Effort::fitting(Duration::ZERO), Effort::MOST);
        assert_eq!(Effort::fitting(Duration::from_millis(200)), Effort(5));
        assert_eq!(Effort::fitting(Duration::from_secs(7)), Effort::LEAST);
        assert_eq!(Effort::MOST.rounds(), 1000);
        for effort in [Effort::LEAST, Effort::MOST] {
            assert!(effort.blocks() >= RECEIVES && effort.blocks().is_multiple_of(WINDOW / 2));
        }
    }
}
