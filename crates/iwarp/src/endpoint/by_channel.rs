//! Messages that come through shared memory, and the end of the channel.

use super::{Cause, Endpoint};
use crate::local::record::RecordHead;
use crate::local::{Channel, Inbox};
use crate::lock;
use crate::receive::ArrivalOutcome;
use adverb_core::memory::Source;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// A message has come by the channel, whose receiving lock the calling thread has. True: the caller is to
    /// call [`Endpoint::receive`] once it has let go of that lock.
    #[inline]
    pub(crate) fn arrived(&self, inbox: &Arc<Inbox>, said: &RecordHead, payload: &Source<'_>) -> bool {
        if !inbox.has_waiting()
            && let Ok(mut guard) = self.rx.try_lock()
        {
            let came = match &mut *guard {
                Some(rx) => rx.take_at_once(self, inbox, said, payload),
                None => ArrivalOutcome::TooLate,
            };
            drop(guard);
            match came {
                ArrivalOutcome::TakenIn { looks: true } => {
                    // The caller may find the receive lock taken; its holder then finds the note.
                    self.missed.note();
                    return true;
                }
                // The background thread may have found the receive lock taken by this one.
                ArrivalOutcome::TakenIn { looks: false } | ArrivalOutcome::TooLate => {
                    return self.missed.is_noted();
                }
                ArrivalOutcome::TooEarly => {}
            }
        }
        let mut bytes = vec![0; payload.len()];
        let is_copied = payload.read(&mut bytes).is_ok();
        if !is_copied || !inbox.put((*said, bytes)) {
            self.sends_too_much();
            return false;
        }
        self.waits.store(true, Ordering::SeqCst);
        self.lane.has_waiting();
        // The thread that has the receive lock finds the note after it lets go, or the caller gets the lock.
        self.missed.note();
        true
    }

    /// The peer has sent more than it may: the background thread ends the connection. The calling thread has
    /// the channel's lock, and cannot.
    #[cold]
    fn sends_too_much(&self) {
        self.refuses_peer.store(true, Ordering::SeqCst);
        self.look_soon();
    }

    /// Whether messages wait here.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether all messages of the peer come by TCP.
    pub(crate) fn needs_socket(&self) -> bool {
        self.needs_socket.load(Ordering::Relaxed)
    }

    /// The background thread looks for bytes and messages that have come, and for requests to send.
    #[cold]
    pub(crate) fn look_soon(&self) {
        self.catch_up();
    }

    /// A channel has ended. `is_distrusted`: messages of the peer may be lost.
    pub(crate) fn channel_ended(&self, channel: &Channel, is_distrusted: bool) {
        if !is_distrusted {
            return;
        }
        let goes_by = lock(&self.tx).as_ref().is_some_and(|tx| tx.goes_by(channel));
        if goes_by {
            self.shut(Cause::Lost(io::Error::from_raw_os_error(libc::EPROTO)));
        } else {
            // A thread that has posted while this one had the lock relies on it.
            self.transmit_now();
        }
    }
}

impl adverb_samehost::Sender for Endpoint {
    fn ring(&self) {
        self.transmit_now();
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a thread calls it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::ReceivingThread;
    use crate::fuzz::connected;
    use crate::local::record::RecordKind;

    /// One thread ends the connection, with the receive lock. Another thread brings a message meanwhile.
    #[test]
    fn a_message_for_a_connection_that_ends_meanwhile_does_not_wait_for_ever() {
        connected(|endpoint| {
            let inbox = Arc::new(Inbox::new(1));
            let head = RecordHead { length: 4, ..RecordHead::bare(RecordKind::Send, 1, 0) };
            let mut guard = lock(&endpoint.rx);
            endpoint.end(&mut guard, Cause::Here);
            assert!(endpoint.arrived(&inbox, &head, &Source::Buffer(&[1; 4])));
            drop(guard);
            assert!(endpoint.has_waiting());
            endpoint.receive(ReceivingThread::Poll);
            assert!(!endpoint.has_waiting(), "polls look for it again and again");
        });
    }
}
