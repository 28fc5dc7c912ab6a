//! The end of a stream (shutdown(2), close(2)).

use super::{Phase, Stream, StreamLink, StreamState, not_connected};
use crate::wait::sleep_until;
use adverb_core::cancel::CancellationGuard;
use adverb_core::cm::Identifier;
use adverb_core::error::{Error, Result};
use adverb_proto::rsocket::{Message, ShutdownSide};

/// Where the end of a direction stands.
enum Ending {
    /// The peer is to be told.
    Say(Message),
    /// What was sent is on its way.
    Leaving,
}

impl Stream {
    /// Ends a direction, or both: the peer is told. Waits until everything has left, even on a socket that
    /// does not block.
    ///
    /// # Errors
    /// EINVAL for a direction that there is not; ENOTCONN.
    pub fn shutdown(&self, how: i32) -> Result<()> {
        let which = match how {
            libc::SHUT_RD => ShutdownSide::Read,
            libc::SHUT_WR => ShutdownSide::Write,
            libc::SHUT_RDWR => ShutdownSide::Both,
            _ => return Err(Error::invalid(format!("there is no direction {how}"))),
        };
        self.end_keepalive();
        let message = {
            let mut inner = self.lock();
            match inner.phase {
                Phase::Open => inner.link()?.stream.shut(which),
                Phase::Disconnected | Phase::Failed => return Ok(()),
                _ => return Err(not_connected()),
            }
        };
        self.finish(message);
        self.waiters.wake();
        Ok(())
    }

    /// Tells the peer, and lets everything leave, before the socket is closed.
    pub(crate) fn shut_for_close(&self) {
        self.end_keepalive();
        let message = {
            let mut inner = self.lock();
            let open = inner.phase == Phase::Open;
            inner.link.as_mut().filter(|_| open).and_then(|link| link.stream.shut(ShutdownSide::Both))
        };
        if message.is_some() {
            self.finish(message);
        }
    }

    /// Says the last word, and waits until everything has left or the connection has ended.
    fn finish(&self, message: Option<Message>) {
        let mut ending = message.map_or(Ending::Leaving, Ending::Say);
        let mut step = || {
            let _whole = CancellationGuard::new();
            let mut inner = self.lock();
            inner.process();
            inner.end_step(&mut ending)
        };
        if step() {
            return;
        }
        loop {
            // A signal does not cut off what was sent.
            let done = sleep_until(std::slice::from_ref(&self), &mut [], None, |_| step().then_some(()));
            if matches!(done, Ok(Some(()))) || done.is_err_and(|error| error.errno() != libc::EINTR) {
                return;
            }
        }
    }

    /// Gives everything back. Other threads find a socket that is at its end.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.stop_listening();
        inner.phase = match inner.phase {
            Phase::Failed => Phase::Failed,
            _ => Phase::Disconnected,
        };
        inner.close_mappings();
        match inner.link.take() {
            Some(link) => link.end(&self.identifier),
            None => self.identifier.destroy(),
        }
        drop(inner);
        self.waiters.wake();
    }
}

impl StreamState {
    /// Whether the end is reached.
    fn end_step(&mut self, ending: &mut Ending) -> bool {
        let Some(link) = &mut self.link else { return true };
        if self.phase != Phase::Open {
            return true;
        }
        if let Ending::Say(message) = *ending
            && let Some(id) = link.stream.take_control(message)
        {
            if link.post_message(message, id).is_err() {
                return true;
            }
            *ending = Ending::Leaving;
        }
        matches!(ending, Ending::Leaving) && link.stream.all_sent()
    }
}

impl StreamLink {
    /// Ends queue pair and connection.
    pub(super) fn end(self, identifier: &Identifier) {
        identifier.detach_queue_pair();
        self.queue_pair.destroy();
        identifier.destroy();
    }
}
