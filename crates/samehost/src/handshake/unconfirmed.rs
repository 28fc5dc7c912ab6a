//! The time that another process has for the confirmation of its offer.

use super::Side;
use adverb_core::engine;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::seqpacket::Connection;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Half of the time for a confirmation. An initiator looks at a probe first, which takes five seconds at
/// most, and may get no processor for a while.
const HALF_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(10) };

/// How much of its time an offer has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimePassed {
    /// The offer is confirmed, or void.
    Needless,
    /// Half of the time. This process may have been stopped all the time: it takes in first what has come
    /// meanwhile.
    Half,
    /// The whole time. The offer is void, and was of this process.
    All { process: libc::pid_t },
}

/// An offer of another process that this one has accepted.
pub(super) struct UnconfirmedOffer<S: Side> {
    side: Arc<S>,
    from: Weak<Connection>,
}

impl<S: Side> UnconfirmedOffer<S> {
    /// Bounds the time for the confirmation of the offer that has come by a connection.
    ///
    /// # Errors
    /// Where there is no engine.
    pub(super) fn watch(side: &Arc<S>, from: &Arc<Connection>) -> Result<()> {
        let unconfirmed = Arc::new(Self { side: side.clone(), from: Arc::downgrade(from) });
        engine::engine()?.reactor.set_timer(HALF_TIMEOUT, unconfirmed).map(drop)
    }
}

impl<S: Side> Source for UnconfirmedOffer<S> {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Some(from) = self.from.upgrade() else { return };
        let handshakes = &self.side.hub().handshakes;
        match handshakes.time_passes(&from) {
            TimePassed::Needless => {}
            TimePassed::Half => drop(Self::watch(&self.side, &from)),
            TimePassed::All { process } => {
                log!(Warn, "process {process} does not answer: no memory is shared with it");
                // The other learns it by this.
                from.hang_up();
                handshakes.decide(&self.side, process, None);
            }
        }
    }
}
