//! Connecting (connect(2)).

use super::{Phase, Stream, StreamLink, StreamState, not_connected};
use adverb_core::attributes::TransportType;
use adverb_core::cancel::CancellationGuard;
use adverb_core::cm::{ConnectionParameters, EventKind, Parameters};
use adverb_core::error::{Error, Result};
use adverb_proto::rsocket::Connect;
use std::net::SocketAddr;
use std::time::Duration;

/// How long the steps before connecting may take; they take no time.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);

impl Stream {
    /// Connects. On a socket that does not block: EINPROGRESS, and the outcome is found by poll. Connected
    /// already: no effect.
    ///
    /// # Errors
    /// ECONNREFUSED, ETIMEDOUT, ENETUNREACH and others for the connection; ENOTCONN after an earlier failure;
    /// ENOTSUP if the peer is no rsocket; EINVAL on a socket that listens.
    pub fn connect(&self, peer: SocketAddr) -> Result<()> {
        {
            let _whole = CancellationGuard::new();
            let mut inner = self.lock();
            match inner.phase {
                Phase::Idle => {
                    if let Err(error) = self.start(&mut inner, peer) {
                        (inner.phase, inner.error) = (Phase::Refused, error.errno());
                        return Err(error);
                    }
                }
                Phase::Connecting => {}
                Phase::Open => return Ok(()),
                Phase::Listening => return Err(Error::invalid("a socket that listens cannot connect")),
                Phase::Refused | Phase::Disconnected | Phase::Failed => return Err(not_connected()),
            }
        }
        match self.await_connection(0) {
            Err(error) if error.errno() == libc::EAGAIN => {
                Err(Error::new(libc::EINPROGRESS, "the connection is being made"))
            }
            outcome => outcome,
        }
    }

    /// Waits until the connection stands or there is none; for calls on a socket that is still connecting.
    pub(super) fn await_connection(&self, flags: i32) -> Result<()> {
        self.blocking(flags, |inner| {
            if inner.phase == Phase::Connecting {
                self.progress_connect(inner);
            }
            match inner.phase {
                Phase::Connecting => Ok(None),
                Phase::Refused => Err(Error::new(inner.error, "there was no connection to be had")),
                _ => Ok(Some(())),
            }
        })
    }

    fn start(&self, inner: &mut StreamState, peer: SocketAddr) -> Result<()> {
        let identifier = self.identifier();
        identifier.resolve_address(None, peer, STEP_TIMEOUT)?;
        self.step()?;
        if inner.options.route.is_empty() {
            identifier.resolve_route(STEP_TIMEOUT)?;
        } else {
            identifier.set_path()?;
        }
        self.step()?;
        let mut link = StreamLink::new(identifier, &inner.options)?;
        let introduction = link.introduce().bytes();
        let iwarp = link.queue_pair.context().attributes().transport == TransportType::Iwarp;
        inner.link = Some(link);
        let connection = ConnectionParameters {
            // Nothing is read; but iWARP may open its connection with a read.
            initiator_depth: iwarp.into(),
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnectionParameters::default()
        };
        identifier.connect(Some(&Parameters {
            connection,
            private_data: &introduction,
            queue_pair: None,
        }))?;
        inner.phase = Phase::Connecting;
        Ok(())
    }

    /// The outcome of a step that takes no time.
    fn step(&self) -> Result<()> {
        match self.channel.try_get()? {
            Some(event) => event.outcome(),
            None => Ok(()),
        }
    }

    /// Sees whether the peer has answered.
    pub(super) fn progress_connect(&self, inner: &mut StreamState) {
        let outcome = match self.channel.try_get() {
            Ok(None) => return,
            Ok(Some(event)) if event.kind == EventKind::Established => {
                let said = Connect::read(&event.private_data);
                said.map_err(|bad| Error::new(libc::ENOTSUP, bad.to_string()))
            }
            Ok(Some(event)) => Err(event.outcome().err().unwrap_or_else(|| {
                Error::new(libc::ECONNRESET, format!("{} while connecting", event.kind.name()))
            })),
            Err(error) => Err(error),
        };
        match (outcome, &mut inner.link) {
            (Ok(peer), Some(link)) => {
                link.stream.meet(&peer);
                inner.phase = Phase::Open;
            }
            (Ok(_), None) => inner.phase = Phase::Refused,
            (Err(error), _) => {
                adverb_core::log!(Info, "an rsocket finds no connection: {error}");
                (inner.phase, inner.error) = (Phase::Refused, error.errno());
            }
        }
        // They sleep on the descriptor of the attempt, from which nothing comes any more.
        self.waiters.wake();
    }
}
