//! How much gets through when as many operations are on their way as may be.

use super::network;
use super::session::{Session, TargetIs, number, text};
use super::target::Order;
use crate::pair::link::{PEER_TIMEOUT, SHARED, Stream, WORDS, Waiting};
use crate::pair::pattern;
use adverb::WorkRequest;
use std::time::Instant;

/// A one-sided operation that is streamed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OneSided {
    Write,
    Read,
    /// Fetch-and-add, of 8 bytes.
    FetchAdd,
}

/// What is streamed: blocks of so many bytes, so often, which go round in `span` bytes of memory.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) size: usize,
    pub(super) count: usize,
    pub(super) span: usize,
}

impl Blocks {
    /// In as much memory as there is.
    pub(super) fn new(size: usize, count: usize) -> Self {
        Self { size, count, span: SHARED }
    }

    /// In so little memory that it stays in the caches near the processor, as far as it fits there.
    pub(super) fn near(size: usize, count: usize) -> Self {
        Self { size, count, span: (4 * size).clamp(64 << 10, SHARED) }
    }

    /// Where each of them begins.
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| index % (self.span / self.size) * self.size)
    }

    /// Bytes per second, if they have taken the time since `start`.
    pub(super) fn rate(self, start: Instant) -> f64 {
        rate(start, self.size, self.count)
    }
}

impl Session {
    /// Bytes per second over TCP.
    pub(super) fn tcp_stream(&mut self, blocks: Blocks) -> Result<f64, String> {
        let Blocks { size, count, span } = blocks;
        self.target.order(&Order::TakeTcp(size, count, span))?;
        let start = Instant::now();
        self.tcp()?.pour(size, count, span)?;
        let rate = blocks.rate(start);
        self.done()?;
        Ok(rate)
    }

    /// Bytes per second that come through over UDP, of about so many in datagrams of this size.
    pub(super) fn udp_stream(&mut self, datagram: usize, bytes: usize) -> Result<f64, String> {
        self.target.order(&Order::TakeUdp(datagram))?;
        self.udp()?.pour(datagram, bytes).map_err(text)?;
        number(self.target.answer(Instant::now() + 2 * PEER_TIMEOUT)?)
    }

    /// Bytes per second of one-sided operations.
    pub(super) fn one_sided_stream(
        &mut self,
        operation: OneSided,
        target: TargetIs,
        blocks: Blocks,
    ) -> Result<f64, String> {
        self.meanwhile(target, |link, memory| {
            let word = link.there(WORDS..WORDS + 8)?;
            let start = Instant::now();
            let mut stream = Stream::new(link);
            for at in blocks.places() {
                let range = at..at + blocks.size;
                let here = memory.slice(range.clone());
                stream.post(match operation {
                    OneSided::Read => WorkRequest::read(here, &link.there(range)?),
                    OneSided::Write => WorkRequest::write(here, &link.there(range)?),
                    OneSided::FetchAdd => WorkRequest::fetch_add(here, &word, 1),
                })?;
            }
            if operation == OneSided::Write {
                // Answered only when all that is before it has arrived.
                stream.post(WorkRequest::read(memory.slice(..8), &link.there(..8)?))?;
            }
            stream.finish()?;
            Ok(blocks.rate(start))
        })
    }

    /// Bytes per second of messages.
    pub(super) fn send_stream(&mut self, blocks: Blocks) -> Result<f64, String> {
        let link = &self.link;
        let window = link.shape.window();
        debug_assert!(blocks.size <= link.shape.message && blocks.count.is_multiple_of(link.shape.receives));
        self.target.order(&Order::TakeSends(blocks.size, blocks.count))?;
        let start = Instant::now();
        let mut stream = Stream::new(link);
        let mut granted = window;
        for (index, at) in blocks.places().enumerate() {
            if index == granted {
                link.hear(Waiting::Polling, |_| Ok(()))?;
                granted += window / 2;
            }
            stream.post(WorkRequest::send(self.memory.slice(at..at + blocks.size)))?;
        }
        stream.finish()?;
        while granted < blocks.count + window {
            link.hear(Waiting::Polling, |_| Ok(()))?;
            granted += window / 2;
        }
        let rate = blocks.rate(start);
        self.done()?;
        Ok(rate)
    }
}

/// What becomes of the datagrams on the cable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cable {
    /// The cable carries trains of datagrams.
    AsItIs,
    /// The cable carries datagrams one by one.
    Single,
    /// The cable carries datagrams one by one, and loses one in a hundred in each direction.
    Lossy,
}

impl Session {
    /// Changes the cable, of which this session's target has the other end.
    pub(super) fn treat(&mut self, cable: Cable) -> Result<(), String> {
        let (single, losing) = (cable != Cable::AsItIs, cable == Cable::Lossy);
        network::single_datagrams(single)?;
        self.ask(&Order::SingleDatagrams(single))?;
        // Each end loses what comes in there.
        network::lose(losing)?;
        self.ask(&Order::Lose(losing)).map(drop)
    }

    /// Bytes per second of writes of which every byte is looked at afterwards.
    pub(super) fn checked_writes(&mut self, size: usize, count: usize, seed: u64) -> Result<f64, String> {
        debug_assert!(count >= SHARED / size, "all of the memory is written");
        self.ask(&Order::Clear)?;
        self.memory.write(0, &pattern::bytes(SHARED, seed));
        let blocks = Blocks::new(size, count);
        let rate = self.one_sided_stream(OneSided::Write, TargetIs::Sleeping, blocks)?;
        self.ask(&Order::Verify(seed))?;
        Ok(rate)
    }
}

pub(super) fn rate(start: Instant, size: usize, count: usize) -> f64 {
    (size * count) as f64 / start.elapsed().as_secs_f64()
}
