//! How long an operation takes, alone on its way.

use super::session::{Session, TargetIs, Times, text, times};
use super::target::{Order, Watching};
use super::yardstick::udp::Service;
use crate::pair::link::{Link, WORDS, Waiting};
use adverb::{MemoryRegion, Payload, WorkRequest};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An operation whose round trip is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundTrip {
    Read,
    /// A write, and a read of the same word behind it, which shows that it has arrived.
    WriteThenRead,
    FetchAdd,
    CompareSwap,
}

/// The longest payload that is taken along by copy when it is posted.
pub(super) const INLINE: usize = 64;

/// The bytes of a message: copied when it is posted if they are few, else from memory.
pub(super) fn payload<'a>(memory: &MemoryRegion, size: usize, bytes: &'a mut [u8; INLINE]) -> Payload<'a> {
    if size <= INLINE { Payload::from(&bytes[..size]) } else { memory.slice(..size).into() }
}

/// A write of `turn` behind other bytes, `size` in all, to the start of the peer's memory.
pub(super) fn post_turn(link: &Link, memory: &MemoryRegion, size: usize, turn: u64) -> Result<(), String> {
    let mut bytes = [0; INLINE];
    match size <= INLINE {
        true => bytes[size - 8..size].copy_from_slice(&turn.to_ne_bytes()),
        false => memory.words()[size / 8 - 1].store(turn, Ordering::Relaxed),
    }
    let there = link.there(..size)?;
    link.post(WorkRequest::write(payload(memory, size, &mut bytes), &there))
}

impl Session {
    /// So many bytes over TCP: one way, and there and back.
    pub(super) fn tcp_latency(&mut self, size: usize, rounds: usize) -> Result<(Times, Times), String> {
        self.target.order(&Order::ReturnTcp(size, rounds))?;
        let (mut one_way, mut round_trip) = (times(), times());
        self.tcp()?.ping(size, rounds, |took| {
            one_way.saturating_record(took / 2);
            round_trip.saturating_record(took);
        })?;
        self.done()?;
        Ok((one_way, round_trip))
    }

    /// Eight bytes over UDP, acknowledged: one way, and there and back.
    pub(super) fn udp_latency(&mut self, service: Service, rounds: usize) -> Result<(Times, Times), String> {
        self.target.order(&Order::ReturnUdp(service, rounds))?;
        let (mut one_way, mut round_trip) = (times(), times());
        let pinged = self.udp()?.ping(service, rounds as u64, |took| {
            one_way.saturating_record(took / 2);
            round_trip.saturating_record(took);
        });
        pinged.map_err(text)?;
        self.done()?;
        Ok((one_way, round_trip))
    }

    /// A datagram there and back, one way.
    pub(super) fn datagram_latency(&mut self, size: usize, rounds: usize) -> Result<Times, String> {
        self.target.order(&Order::ReturnDatagrams(size, rounds))?;
        let mut times = times();
        self.udp()?.throw(size, rounds, |took| times.saturating_record(took / 2)).map_err(text)?;
        self.done()?;
        Ok(times)
    }

    /// Messages, one way, both sides polling.
    pub(super) fn send_latency(&mut self, size: usize, rounds: usize) -> Result<Times, String> {
        self.target.order(&Order::ReturnSends(size, rounds))?;
        let mut times = times();
        let mut bytes = [1; INLINE];
        for _ in 0..rounds {
            let start = Instant::now();
            self.link.run(WorkRequest::send(payload(&self.memory, size, &mut bytes)))?;
            let answer = self.link.heard()?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
            self.link.offer_again(answer)?;
        }
        self.done()?;
        Ok(times)
    }

    /// Blocks written into each other's memory, one way, both sides looking at the last word of theirs.
    pub(super) fn write_latency(
        &mut self,
        watching: Watching,
        size: usize,
        rounds: usize,
    ) -> Result<Times, String> {
        let link = &self.link;
        let word = &link.shared.words()[size / 8 - 1];
        word.store(0, Ordering::Release);
        self.target.order(&Order::ReturnWrites(size, rounds, watching))?;
        link.hear(Waiting::Polling, |_| Ok(()))?;
        let mut times = times();
        for turn in 1..=rounds as u64 {
            let start = Instant::now();
            post_turn(link, &self.memory, size, turn)?;
            watching.posted(link)?;
            watching.wait(link, || word.load(Ordering::Acquire) == turn)?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
        }
        link.settle()?;
        self.done()?;
        Ok(times)
    }

    /// There and back; this side polls. Only reads have a size; all others are of 8 bytes.
    pub(super) fn round_trip(
        &mut self,
        operation: RoundTrip,
        target: TargetIs,
        size: usize,
        rounds: usize,
    ) -> Result<Times, String> {
        self.meanwhile(target, |link, memory| {
            let there = link.there(WORDS..WORDS + 8)?;
            let block = if size == 8 { there } else { link.there(..size)? };
            let mut times = times();
            for turn in 0..rounds as u64 {
                let start = Instant::now();
                let result = || memory.slice(..8);
                match operation {
                    RoundTrip::Read => link.run(WorkRequest::read(memory.slice(..size), &block))?,
                    RoundTrip::FetchAdd => link.run(WorkRequest::fetch_add(result(), &there, 1))?,
                    RoundTrip::CompareSwap => {
                        link.run(WorkRequest::compare_swap(result(), &there, turn, 1))?
                    }
                    RoundTrip::WriteThenRead => {
                        link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))?;
                        link.post(WorkRequest::read(result(), &there))?;
                        link.sent()?;
                        link.sent()?
                    }
                };
                times.saturating_record(start.elapsed().as_nanos() as u64);
                if operation == RoundTrip::WriteThenRead && memory.words()[0].load(Ordering::Acquire) != turn
                {
                    return Err("a read overtook the write before it".into());
                }
            }
            Ok(times)
        })
    }
}
