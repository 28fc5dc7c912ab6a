//! Traffic for tests: records that are counted.

use super::{Channel, Intake, Sender, Traffic};
use adverb_core::counters::Counters;
use adverb_core::engine::{self, Engine};
use adverb_core::error;
use adverb_core::seqpacket::Connection;
use adverb_local::Consumer;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Records of no transport: a channel takes them out, and counts them.
#[derive(Default)]
pub(crate) struct CountedRecords(pub(crate) AtomicUsize);

/// A sender that is told of nothing.
pub(crate) struct Nobody;

impl Sender for Nobody {
    fn ring(&self) {}

    fn this(&self) -> Arc<Self> {
        Arc::new(Self)
    }
}

impl Traffic for CountedRecords {
    type Sender = Nobody;
    type Outgoing = ();
    type Incoming = ();
    type Rest = ();
    const LONGEST: usize = 64;

    fn engine(&self) -> error::Result<&'static Engine> {
        engine::engine()
    }

    fn counters(&self) -> &'static Counters {
        static COUNTERS: OnceLock<Counters> = OnceLock::new();
        COUNTERS.get_or_init(Counters::private)
    }

    fn take_in(channel: &Channel<Self>, consumer: &mut Consumer, (): &mut (), _: usize) -> Intake {
        let mut intake = Intake::default();
        while let Ok(Some(record)) = consumer.peek() {
            record.consume();
            channel.traffic.0.fetch_add(1, Ordering::SeqCst);
            intake.worked = true;
        }
        intake
    }

    fn settle(&self, (): &mut ()) {}

    fn finish(&self, (): ()) {}

    fn tell(&self, _: &Connection, _: &[RawFd]) -> io::Result<()> {
        Ok(())
    }

    fn ended(_: &Channel<Self>, _: bool) {}

    fn forget(&self, (): &mut ()) {}

    fn failed(_: &Channel<Self>) {}
}
