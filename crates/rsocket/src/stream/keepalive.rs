//! Asking a silent peer whether it lives (SO_KEEPALIVE): an empty write, which the connection of a dead peer
//! does not survive.

use super::{Phase, Stream};
use adverb_core::engine::engine;
use adverb_core::error::Result;
use adverb_core::reactor::{Readiness, Source, Timer};
use adverb_core::request::Data;
use adverb_proto::rsocket::{Message, WriteTo};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The timer of a stream that asks.
#[derive(Default)]
pub(super) struct Keepalive(Mutex<Option<Timer>>);

impl Keepalive {
    fn exchange(&self, timer: Option<Timer>) -> Option<Timer> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(|e| e.into_inner()), timer)
    }

    fn is_on(&self) -> bool {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).is_some()
    }
}

struct Asker(Weak<Stream>);

impl Source for Asker {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Some(stream) = self.0.upgrade() else { return };
        if !stream.keepalive.is_on() {
            return;
        }
        stream.ask();
        if let Err(error) = stream.start_keepalive() {
            adverb_core::log!(Warn, "the keepalive of an rsocket ends: {error}");
        }
    }
}

impl Stream {
    /// Switches it on or off.
    pub(crate) fn set_keepalive(&self, on: bool) -> Result<()> {
        match (on, self.keepalive.is_on()) {
            (true, false) => self.start_keepalive(),
            (false, true) => {
                self.end_keepalive();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The time has changed.
    pub(crate) fn restart_keepalive(&self) -> Result<()> {
        if self.keepalive.is_on() { self.start_keepalive() } else { Ok(()) }
    }

    fn start_keepalive(&self) -> Result<()> {
        let pause = Duration::from_secs(self.keepalive_seconds().into());
        let timer = engine()?.reactor.set_timer(pause, Arc::new(Asker(self.this.clone())))?;
        cancel(self.keepalive.exchange(Some(timer)));
        Ok(())
    }

    pub(super) fn end_keepalive(&self) {
        cancel(self.keepalive.exchange(None));
    }

    /// Asks, unless the program is using the socket at this instant.
    fn ask(&self) {
        let Ok(mut inner) = self.inner.try_lock() else { return };
        if inner.phase != Phase::Open {
            return;
        }
        let Some(link) = &mut inner.link else { return };
        if let Some(id) = link.stream.take_control(Message::Keepalive) {
            // What is wrong, the completions say.
            let _ = link.post(Data::Registered(&[]), WriteTo { address: 0, key: 0 }, None, id);
        }
    }
}

fn cancel(timer: Option<Timer>) {
    if let (Some(timer), Ok(engine)) = (timer, engine()) {
        engine.reactor.cancel_timer(timer);
    }
}
