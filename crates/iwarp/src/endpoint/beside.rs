//! Messages that come through shared memory, and the end of that way.

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
    /// A message has come by the channel. True: the caller is to look for what follows once it has let go of the channel's lock ([`Endpoint::receive`]).
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
                    // The caller may find the receive lock taken.
                    self.missed.note();
                    return true;
                }
                // Another thread may have found it taken.
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
        // The thread that has the receive lock looks for it, or the caller.
        self.missed.note();
        true
    }

    /// The peer has sent more than it may, and is not waited for.
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

    /// The background thread looks for what has come, and for what is to be sent.
    #[cold]
    pub(crate) fn look_soon(&self) {
        self.catch_up();
    }

    /// A channel has ended. `is_distrusted`: what the peer has sent by it may be lost.
    pub(crate) fn channel_ended(&self, channel: &Channel, is_distrusted: bool) {
        if !is_distrusted {
            return;
        }
        let goes_by = lock(&self.tx).as_ref().is_some_and(|tx| tx.goes_by(channel));
        if goes_by {
            self.shut(Cause::Lost(io::Error::from_raw_os_error(libc::EPROTO)));
        } else {
            // A thread that has posted meanwhile has found the lock taken.
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
