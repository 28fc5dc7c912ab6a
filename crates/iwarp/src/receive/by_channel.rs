//! Messages that come through shared memory: each in its place of the stream by TCP, and from there on as if
//! it had come by that.

use super::{Rx, TakeEffect, Until};
use crate::endpoint::{Cause, Endpoint};
use crate::local::record::{RecordHead, RecordKind};
use crate::local::{Channel, Inbox, RecordOutcome, tell};
use adverb_core::memory::Source;
use adverb_proto::iwarp::Fault;
use std::sync::Arc;

/// The outcome of the attempt to take in a message as soon as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalOutcome {
    /// The message is taken in.
    TakenIn {
        /// Whether the caller has to call [`Endpoint::receive`], which sends, rings or ends the connection as
        /// the message demands.
        looks: bool,
    },
    /// The message is to wait in the inbox.
    TooEarly,
    /// The message is for a connection that has ended.
    TooLate,
}

impl Rx {
    /// Takes in a message of the channel in place, if no other message and no byte of the stream waits before
    /// it. The calling thread has the channel's receiving lock and the connection's receive lock.
    #[inline]
    pub(crate) fn take_at_once(
        &mut self,
        endpoint: &Endpoint,
        inbox: &Arc<Inbox>,
        said: &RecordHead,
        payload: &Source<'_>,
    ) -> ArrivalOutcome {
        if !self.inbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, inbox)) {
            return ArrivalOutcome::TooLate;
        }
        let is_free = self.placing.is_none()
            && self.next.is_none()
            && self.skip == 0
            && self.postponed.is_none()
            && self.failed.is_none();
        let position = self.came - self.carry.len() as u64;
        // An invalidation may wait for other processes. Meanwhile no other connection is to wait for the
        // channel's lock, which this thread has.
        if !is_free || said.behind > position || said.invalidates {
            return ArrivalOutcome::TooEarly;
        }
        let mut taken = TakeEffect::default();
        let delivered = self.deliver(endpoint, said, payload, position, &mut taken);
        // The caller calls `Endpoint::receive`, also where the message is to wait.
        self.owes_send |= taken.transmit;
        match delivered {
            Ok(true) => {
                self.tell_taken(0);
                ArrivalOutcome::TakenIn { looks: self.owes_send || self.owes_ring }
            }
            Ok(false) => ArrivalOutcome::TooEarly,
            Err(cause) => {
                self.failed = Some(cause);
                ArrivalOutcome::TakenIn { looks: true }
            }
        }
    }

    /// Takes in the messages that wait, as far as they come at this place of the stream. If one of them
    /// cannot be taken in yet, `postponed` says why.
    pub(super) fn deliver_waiting(
        &mut self,
        endpoint: &Endpoint,
        position: u64,
        taken: &mut TakeEffect,
    ) -> Result<(), Cause> {
        let Some(inbox) = self.inbox.clone() else { return Ok(()) };
        while let Some((said, bytes)) = inbox.take_due(position) {
            taken.received.worked = true;
            if !self.deliver(endpoint, &said, &Source::Buffer(&bytes), position, taken)? {
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

    /// Takes the records out of the channel: the peer has put some there before it sent the bytes that this
    /// thread has received, and those come first.
    #[inline]
    pub(super) fn drain_channel(&self, endpoint: &Endpoint) {
        if let Some((channel, _)) = &self.near {
            channel.receive_all_within(endpoint);
        }
    }

    /// Takes in a message at this place of the stream. False: nothing has happened, and the message is to
    /// wait (`postponed`).
    fn deliver(
        &mut self,
        endpoint: &Endpoint,
        said: &RecordHead,
        payload: &Source<'_>,
        position: u64,
        taken: &mut TakeEffect,
    ) -> Result<bool, Cause> {
        let arrival = said.arrival();
        // No peer that keeps the rules sends it behind its place, or in the middle of a Send by TCP, whose
        // receive this one would take.
        if said.behind != position || self.receive.is_some() {
            return Err(Cause::Fault(Fault::InvalidOffset, arrival.terminate(Fault::InvalidOffset)));
        }
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
        let counters = endpoint.queues.counters;
        if let Some(observed) = &mut self.observed {
            observed.passes_by_channel(endpoint, said, self.by_channel);
        }
        counters.rx_frames.add(1);
        counters.rx_local.add(1);
        if said.kind == RecordKind::Immediate {
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
        self.by_channel += 1;
        if self.inbox.as_ref().is_some_and(|inbox| inbox.take(said.length)) {
            self.tell_progress(endpoint);
        }
        Ok(true)
    }

    /// Tells the peer how much has been taken in, so that it may send more. A peer that waits only for this
    /// may sleep: then it is woken.
    #[cold]
    fn tell_progress(&mut self, endpoint: &Endpoint) {
        let (Some((channel, peer)), Some(inbox)) = (&self.near, &self.inbox) else { return };
        match tell(channel, RecordKind::Progress, peer.serial, inbox) {
            RecordOutcome::Polls => {}
            // To ring takes a system call, and other threads may wait for the locks that this one has.
            RecordOutcome::Sleeps => self.owes_ring = true,
            RecordOutcome::Full => {
                inbox.put_off_progress();
                // If the channel has room again by now, it calls no sender: the background thread tries
                // again.
                if !channel.wait(endpoint) {
                    endpoint.look_soon();
                }
            }
        }
    }

    /// The channel whose other side is to be woken. The caller rings once it has let go of all locks.
    pub(super) fn takes_ring(&mut self) -> Option<Arc<Channel>> {
        let owes_ring = std::mem::take(&mut self.owes_ring);
        self.near.as_ref().filter(|_| owes_ring).map(|(channel, _)| channel.clone())
    }

    /// Publishes to the peer's process how much has been taken in: all but `left` bytes of those received by
    /// TCP.
    #[inline]
    pub(super) fn tell_taken(&self, left: usize) {
        if let Some(published) = &self.published {
            published.tell_taken(self.came - (left + self.carry.len()) as u64 + self.by_channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::ReceivingThread;
    use crate::fuzz::connected;
    use crate::socket::Socket;
    use adverb_core::memory::Reader;
    use adverb_proto::iwarp::Receiver;
    use adverb_proto::iwarp::mpa::Parameters;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    /// The receiving side of a connection by which nothing has come yet, and the other end of its socket.
    fn receiving(endpoint: &Endpoint) -> (Rx, Arc<Inbox>, UnixStream) {
        let (own, peer) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let parameters = Parameters {
            initiator: true,
            revision: 2,
            crc: false,
            markers_tx: false,
            markers_rx: false,
            ird: None,
            ord: None,
            rtr: None,
            large_fpdu: false,
            extensions: true,
        };
        let inbox = Arc::new(Inbox::new(1));
        let reader = Reader::new(&endpoint.queues.engine.keys);
        let socket = Arc::new(Socket::own(own.into_raw_fd()));
        let rx = Rx::new(socket, Receiver::new(&parameters), &[], Some(inbox.clone()), reader);
        (rx, inbox, peer)
    }

    fn message(behind: u64) -> RecordHead {
        RecordHead { behind, length: 4, ..RecordHead::bare(RecordKind::Send, 1, 0) }
    }

    /// A thread that posts finds the transmit lock taken by one that takes in a message.
    #[test]
    fn a_thread_sends_the_posts_that_came_while_it_held_the_transmit_lock() {
        connected(|endpoint| {
            let (mut rx, inbox, _peer) = receiving(endpoint);
            endpoint.has_untaken.store(true, Ordering::Relaxed);
            let came = rx.take_at_once(endpoint, &inbox, &message(0), &Source::Buffer(&[1; 4]));
            assert_eq!(came, ArrivalOutcome::TakenIn { looks: true });
            assert!(rx.take_in(endpoint, ReceivingThread::Poll).transmit);
            assert!(!rx.take_in(endpoint, ReceivingThread::Poll).transmit);
        });
    }

    #[test]
    fn a_message_in_the_middle_of_a_send_ends_the_connection() {
        connected(|endpoint| {
            let (mut rx, inbox, _peer) = receiving(endpoint);
            rx.receive = endpoint.queues.take_receive();
            assert!(rx.receive.is_some());
            let came = rx.take_at_once(endpoint, &inbox, &message(0), &Source::Buffer(&[1; 4]));
            assert_eq!(came, ArrivalOutcome::TakenIn { looks: true });
            assert!(rx.receive.is_some(), "it is to be flushed");
            let cause = rx.take_in(endpoint, ReceivingThread::Poll).cause;
            assert!(matches!(cause, Some(Cause::Fault(Fault::InvalidOffset, _))), "{cause:?}");
        });
    }

    #[test]
    fn a_message_that_says_a_place_which_is_over_ends_the_connection() {
        connected(|endpoint| {
            let (mut rx, inbox, _peer) = receiving(endpoint);
            rx.came = 8;
            assert!(inbox.put((message(7), vec![1; 4])));
            let cause = rx.take_in(endpoint, ReceivingThread::Poll).cause;
            assert!(matches!(cause, Some(Cause::Fault(Fault::InvalidOffset, _))), "{cause:?}");
        });
    }

    /// By the time TCP fails, a message waits: here for the end of a round of the sending side.
    #[test]
    fn a_message_that_waits_comes_before_the_failure_of_tcp() {
        connected(|endpoint| {
            let (mut rx, inbox, _peer) = receiving(endpoint);
            let round = endpoint.rounds.begin();
            assert!(inbox.put((message(0), vec![1; 4])));
            rx.loses(std::io::Error::from_raw_os_error(libc::ECONNRESET));
            assert!(rx.take_in(endpoint, ReceivingThread::Poll).cause.is_none() && rx.has_final_frames());
            endpoint.rounds.end(round);
            let cause = rx.take_in(endpoint, ReceivingThread::Poll).cause;
            assert!(matches!(cause, Some(Cause::Lost(_))), "{cause:?}");
            assert!(!rx.has_waiting() && rx.by_channel == 1);
        });
    }
}
