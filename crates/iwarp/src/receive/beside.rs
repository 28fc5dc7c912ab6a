//! Messages that come through shared memory: each in its place of the stream by TCP, and from there on as if it had come by that.

use super::{Rx, Taken, Until};
use crate::endpoint::{Cause, Endpoint};
use crate::local::Inbox;
use crate::local::record::{START, Said, What};
use adverb_core::log;
use adverb_core::memory::Source;
use adverb_proto::iwarp::Fault;
use std::sync::Arc;

/// What has become of a message that has just come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// It is taken in. `looks`: somebody has to see to what follows.
    TakenIn {
        /// See above.
        looks: bool,
    },
    /// It is to wait.
    TooEarly,
    /// It is for a connection that has ended.
    TooLate,
}

impl Rx {
    /// Takes in a message that has just come, before which nothing waits, if it can be done at once.
    #[inline]
    pub(crate) fn take_at_once(
        &mut self,
        endpoint: &Endpoint,
        inbox: &Arc<Inbox>,
        said: &Said,
        payload: &Source<'_>,
    ) -> Came {
        if !self.inbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, inbox)) {
            return Came::TooLate;
        }
        let is_free = self.placing.is_none()
            && self.next.is_none()
            && self.skip == 0
            && self.postponed.is_none()
            && self.failed.is_none();
        // An invalidation may wait for other processes, and nobody is to wait for the channel meanwhile.
        if !is_free || said.behind > self.came - self.carry.len() as u64 || said.invalidates {
            return Came::TooEarly;
        }
        let mut taken = Taken::default();
        match self.deliver(endpoint, said, payload, &mut taken) {
            Ok(true) => {
                self.tell_taken(0);
                Came::TakenIn { looks: taken.transmit }
            }
            Ok(false) => Came::TooEarly,
            Err(cause) => {
                self.failed = Some(cause);
                Came::TakenIn { looks: true }
            }
        }
    }

    /// Takes in the messages that wait, as far as they come at this place of the stream. Those left may have to wait for longer: see `postponed`.
    pub(super) fn deliver_waiting(
        &mut self,
        endpoint: &Endpoint,
        position: u64,
        taken: &mut Taken,
    ) -> Result<(), Cause> {
        let Some(inbox) = self.inbox.clone() else { return Ok(()) };
        while let Some((said, bytes)) = inbox.take_due(position) {
            taken.received.worked = true;
            if !self.deliver(endpoint, &said, &Source::Buffer(&bytes), taken)? {
                inbox.put_back((said, bytes));
                break;
            }
        }
        Ok(())
    }

    /// Whether messages wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.has_waiting())
    }

    /// Takes out of the channel what the peer has put there before it sent the bytes that have just been received: that comes first.
    #[inline]
    pub(super) fn look_beside(&self) {
        if let Some((channel, _)) = &self.near {
            channel.receive_all_within();
        }
    }

    /// What a message does. False: nothing has happened, and it is to wait (`postponed`).
    fn deliver(
        &mut self,
        endpoint: &Endpoint,
        said: &Said,
        payload: &Source<'_>,
        taken: &mut Taken,
    ) -> Result<bool, Cause> {
        // PRACTICE-ORDER-1
        let round = endpoint.rounds.begun();
        if !endpoint.rounds.have_ended(round) {
            self.postponed = Some(Until::Round(round));
            return Ok(false);
        }
        // PRACTICE-ORDER-2
        if !endpoint.take_reads(&mut taken.transmit) {
            self.postponed = Some(Until::Reads);
            return Ok(false);
        }
        // PRACTICE-RECEIVE-1
        if !self.take_receive(endpoint) {
            self.postponed = Some(Until::Receive);
            return Ok(false);
        }
        let arrival = said.arrival();
        let (number, counters) = (endpoint.queues.number, endpoint.queues.counters);
        log!(
            Packets,
            "queue pair {number:#x} <- {}, {} bytes through shared memory",
            arrival.segment,
            said.length
        );
        counters.rx_frames.add(1);
        counters.rx_local.add(1);
        if said.what == What::Immediate {
            self.written = said.written;
        }
        self.begin(endpoint, &arrival, taken)?;
        if let Some(placing) = self.placing.take() {
            if let Some(work) = self.receive
                && endpoint.queues.scatter_receive(&mut self.reader, &work, 0, payload).is_err()
            {
                return Err(self.refuse(endpoint, &placing, Fault::BaseBounds));
            }
            self.finish(endpoint, &placing, taken)?;
        }
        self.beside += 1;
        if self.inbox.as_ref().is_some_and(|inbox| inbox.take(said.length)) {
            self.tell_progress();
        }
        Ok(true)
    }

    /// The peer may send more. Where the channel is full, the next message has this told.
    #[cold]
    fn tell_progress(&self) {
        let (Some((channel, peer)), Some(inbox)) = (&self.near, &self.inbox) else { return };
        let mut tx = channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(START) else { return };
        slot.write_words(Said::bare(What::Progress, peer.serial, inbox.tell()).words());
        slot.publish();
        // A program whose sends are complete at once may never poll for more than those.
        let sleeps = tx.producer.peer_sleeps();
        drop(tx);
        if sleeps {
            channel.ring();
        }
    }

    /// Says how much has been taken in, but for so many bytes by TCP.
    #[inline]
    pub(super) fn tell_taken(&self, left: usize) {
        if let Some(published) = &self.published {
            published.tell_taken(self.came - (left + self.carry.len()) as u64 + self.beside);
        }
    }
}
