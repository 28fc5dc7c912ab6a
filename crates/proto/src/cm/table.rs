//! The table of connections, what they wait for, and what is sent for them.

use std::time::Duration;

use adverb_wire::ib::cm::{Message, Rej, RejectReason, about};
use adverb_wire::ib::mad::Mad;

use crate::keyed;

use super::connection::{Answer, Connection, Kind, Remote, Room, State};
use super::{ANSWER_LIFETIME, Error, Event, IgnoreReason, MAX_ANSWERS, Manager, PEER_TIMEOUT};

impl<P: Copy + Ord> Manager<P> {
    /// No answer has come.
    pub(super) fn give_up(&mut self, id: u32, now: Duration) {
        let connection = &self.connections[&id];
        match connection.state {
            State::DreqSent => {
                self.tell(id, Event::Disconnected { connection: id, asked: false });
                self.enter_timewait(id, now);
            }
            state => {
                if state != State::SidrSent {
                    // The answer may have been lost on its way, and the peer wait for more.
                    // IB-CM-16, IB-CM-30
                    self.send_rej(id, about::OTHER, RejectReason::TIMEOUT, &Rej::default());
                }
                self.tell(id, Event::TimedOut { connection: id });
                self.forget(id, now);
            }
        }
    }

    /// A new connection; `make` is told its communication ID.
    // IB-CM-11, IB-CM-14
    pub(super) fn insert(&mut self, connection: Connection<P>) -> Result<u32, Error> {
        if self.connections.len() >= self.config.max_connections {
            return Err(Error::Full);
        }
        let rest = u32::MAX >> self.config.prefix_bits;
        let prefix = self.config.prefix.checked_shl(32 - self.config.prefix_bits).unwrap_or(0);
        let id = loop {
            // Every ID comes before any comes again.
            let id = prefix | keyed::number(self.config.key, self.ids, rest.count_ones());
            self.ids = self.ids.wrapping_add(1);
            if id != 0 && !self.connections.contains_key(&id) {
                break id;
            }
        };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// The transaction ID of a new exchange of messages about a connection.
    pub(super) fn new_transaction(&mut self, id: u32) -> u64 {
        self.transactions += 1;
        // A count of its own: those of the communication IDs are 32 bits long.
        let word = keyed::word(self.config.key, 1 << 63 | self.transactions);
        word & 0xffff_ffff_0000_0000 | u64::from(id)
    }

    /// Whether a message answers the request of a connection, of whose peer nothing is known but its address:
    /// its transaction is the one of the request, which nobody else knows.
    // IB-CM-11
    pub(super) fn answers_request(&self, id: u32, transaction_id: u64, from: P) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            connection.peer == from
                && connection.remote_id == 0
                && connection.transaction_id == transaction_id
        })
    }

    /// A connection that the caller knows.
    pub(super) fn known(&mut self, id: u32) -> Result<&mut Connection<P>, Error> {
        self.connections.get_mut(&id).filter(|connection| !connection.destroyed).ok_or(Error::Unknown)
    }

    /// A connection that a message belongs to, by both communication IDs and the sender.
    // IB-CM-12, IB-CM-13
    pub(super) fn addressed(
        &mut self,
        id: u32,
        remote_id: u32,
        from: P,
    ) -> Result<&mut Connection<P>, IgnoreReason> {
        let connection = self.connections.get_mut(&id).ok_or(IgnoreReason::Unknown)?;
        let belongs = connection.remote_id == remote_id && connection.peer == from;
        if belongs { Ok(connection) } else { Err(IgnoreReason::Unknown) }
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, id: u32, now: Duration) {
        self.stop(id);
        self.answered(id);
        let connection = &self.connections[&id];
        if connection.requested {
            // A request that is late must not make another connection.
            let rej = Rej {
                remote_communication_id: connection.remote_id,
                message: about::REQ,
                reason: RejectReason::STALE_CONNECTION,
                ..Rej::default()
            };
            let mad = Message::from(rej).to_mad(connection.transaction_id);
            self.keep_answer(self.remote(id, Kind::CommunicationId), mad, now);
        }
        self.unregister(id, Kind::CommunicationId);
        self.unregister(id, Kind::QueuePair);
        self.unregister(id, Kind::SidrRequest);
        self.connections.remove(&id);
    }

    pub(super) fn remote(&self, id: u32, kind: Kind) -> Remote<P> {
        let connection = &self.connections[&id];
        let number = if kind == Kind::QueuePair { connection.remote_qpn } else { connection.remote_id };
        Remote { kind, peer: connection.peer, ca_guid: connection.remote_guid, number }
    }

    pub(super) fn register(&mut self, id: u32, kind: Kind) {
        self.remotes.insert(self.remote(id, kind), id);
    }

    pub(super) fn unregister(&mut self, id: u32, kind: Kind) {
        let remote = self.remote(id, kind);
        if self.remotes.get(&remote) == Some(&id) {
            self.remotes.remove(&remote);
        }
    }

    /// The request, if it is one, has got its answer: there is room for another one.
    pub(super) fn answered(&mut self, id: u32) {
        let connection = &self.connections[&id];
        if let Some(listener) = self.listeners.get_mut(&connection.service_id) {
            listener.answered(connection.peer, id);
        }
    }

    /// Makes room for a request of a peer for a service that somebody listens for. False if there is none.
    pub(super) fn make_room(&mut self, service_id: u64, peer: P, now: Duration) -> bool {
        match self.listeners[&service_id].room_for(peer) {
            Room::Free => true,
            Room::Full => false,
            Room::InsteadOf(id) => {
                let refusal = Rej { reason: RejectReason::NO_RESOURCES, ..Rej::default() };
                if self.reject(id, &refusal, now).is_err() {
                    // It asks for a datagram service, or the program has no interest in it: its peer may ask
                    // again.
                    self.forget(id, now);
                }
                true
            }
        }
    }

    /// Tells an event, if anybody is interested.
    pub(super) fn tell(&mut self, id: u32, event: Event<P>) {
        if !self.connections[&id].destroyed {
            self.events.push_back(event);
        }
    }

    pub(super) fn set_deadline(&mut self, id: u32, at: Duration) {
        self.stop(id);
        self.connections.get_mut(&id).expect("a connection").deadline = Some(at);
        self.deadlines.insert((at, id));
    }

    /// Sends nothing again.
    pub(super) fn stop(&mut self, id: u32) {
        let connection = self.connections.get_mut(&id).expect("a connection");
        if let Some(at) = connection.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Sends a message until it is answered.
    pub(super) fn start(&mut self, id: u32, transaction_id: u64, message: impl Into<Message>, now: Duration) {
        let connection = self.connections.get_mut(&id).expect("a connection");
        connection.message = Some(Box::new(message.into().to_mad(transaction_id)));
        connection.retries = 0;
        connection.delay = None;
        if connection.is_chosen_by_peer {
            connection.until = now + PEER_TIMEOUT;
        }
        self.transmit_message(id, now);
    }

    /// Sends the message that is to be answered, and waits again.
    pub(super) fn transmit_message(&mut self, id: u32, now: Duration) {
        let connection = &self.connections[&id];
        let mad = **connection.message.as_ref().expect("what waits for an answer has a message");
        let at = (now + connection.delay.unwrap_or(connection.timeout)).min(connection.until);
        self.transmissions.push_back((connection.peer, mad));
        self.set_deadline(id, at);
    }

    /// The message is answered.
    pub(super) fn finish(&mut self, id: u32, state: State) {
        self.stop(id);
        let connection = self.connections.get_mut(&id).expect("a connection");
        connection.message = None;
        connection.state = state;
    }

    /// Sends a message once.
    pub(super) fn send(&mut self, peer: P, transaction_id: u64, message: impl Into<Message>) {
        self.transmissions.push_back((peer, message.into().to_mad(transaction_id)));
    }

    /// Sends REJ for a connection.
    pub(super) fn send_rej(&mut self, id: u32, message: u8, reason: RejectReason, rej: &Rej) {
        let connection = &self.connections[&id];
        let mut rej = Rej {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            message,
            reason,
            ..*rej
        };
        if reason == RejectReason::TIMEOUT {
            // The peer may know this side's communication ID without having told its own.
            let guid = self.config.ca_guid.to_be_bytes();
            rej.additional_information_len = guid.len() as u8;
            rej.additional_information[..guid.len()].copy_from_slice(&guid);
        }
        self.send(connection.peer, connection.transaction_id, rej);
    }

    /// Gives an answer, and keeps it.
    pub(super) fn send_answer(&mut self, to: Remote<P>, mad: Mad, now: Duration) {
        self.keep_answer(to, mad, now);
        self.transmissions.push_back((to.peer, mad));
    }

    pub(super) fn keep_answer(&mut self, to: Remote<P>, mad: Mad, now: Duration) {
        // IB-PKT-60
        self.answers.truncate(MAX_ANSWERS - 1);
        self.answers.push_front(Answer { to, until: now + ANSWER_LIFETIME, mad });
    }

    /// Gives an answer again; true if there is one.
    // IB-CM-28, IB-SIDR-5
    pub(super) fn repeat_answer(&mut self, to: Remote<P>, transaction_id: u64, now: Duration) -> bool {
        while self.answers.back().is_some_and(|answer| answer.until <= now) {
            self.answers.pop_back();
        }
        let same =
            |answer: &&Answer<P>| answer.to == to && answer.mad.header.transaction_id.get() == transaction_id;
        let answer = self.answers.iter().find(same).map(|answer| answer.mad);
        self.transmissions.extend(answer.map(|mad| (to.peer, mad)));
        answer.is_some()
    }
}
