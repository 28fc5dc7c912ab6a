//! The side that asks for a connection, and what both sides do with MRA and REJ.

use std::time::Duration;

use adverb_wire::ib::cm::{Mra, Rej, RejectReason, Rep, Req, Rtu, about, interval};

use super::{
    Connection, Error, Event, IgnoreReason, Kind, LONGEST_INTERVAL, Manager, PEER_TIMEOUT, Remote,
    SERVICE_TIMEOUT, StaleClaim, State,
};

/// Between two requests for a service that nobody offers yet.
const PAUSE: Duration = Duration::from_millis(5);

impl<P: Copy + Ord> Manager<P> {
    /// Asks a peer for a connection. The communication ID and the GUID of `req` are filled in; an answer is
    /// awaited as long as its remote response timeout and its local ACK timeout, which is made for the way
    /// there and back, say.
    pub fn connect(&mut self, peer: P, req: &Req, now: Duration) -> Result<u32, Error> {
        // IB-CM-17
        let round_trip = interval(req.primary.local_ack_timeout.min(LONGEST_INTERVAL));
        let connection = Connection {
            local_qpn: req.local_qpn,
            timeout: interval(req.remote_response_timeout) + round_trip,
            max_retries: req.max_cm_retries,
            round_trip,
            patient_until: now + self.config.patience,
            ..Connection::new(peer, State::ReqSent, req.service_id)
        };
        let id = self.insert(connection)?;
        let transaction_id = self.new_transaction(id);
        self.connections.get_mut(&id).expect("a connection").transaction_id = transaction_id;
        let req = Req { local_communication_id: id, local_ca_guid: self.config.ca_guid, ..*req };
        self.start(id, transaction_id, req, now);
        Ok(id)
    }

    /// Tells the peer, which has accepted, that the queue pair can be used.
    pub fn ready(&mut self, id: u32) -> Result<(), Error> {
        let connection = self.known(id)?;
        if connection.state != State::RepReceived {
            return Err(Error::State);
        }
        connection.state = State::Established;
        self.send_rtu(id);
        Ok(())
    }

    fn send_rtu(&mut self, id: u32) {
        let connection = &self.connections[&id];
        let rtu = Rtu {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            ..Rtu::default()
        };
        self.send(connection.peer, connection.transaction_id, rtu);
    }

    pub(super) fn receive_rep(
        &mut self,
        rep: &Rep,
        transaction_id: u64,
        from: P,
        now: Duration,
        believes: &dyn Fn(StaleClaim) -> bool,
    ) -> Result<(), IgnoreReason> {
        let (id, remote_id) = (rep.remote_communication_id, rep.local_communication_id);
        if let Ok(connection) = self.addressed(id, remote_id, from) {
            return match connection.state {
                // RTU was lost.
                // IB-CM-20
                State::Established => {
                    self.send_rtu(id);
                    Ok(())
                }
                State::RepReceived => {
                    self.send_mra(id, about::REP);
                    Ok(())
                }
                _ => Err(IgnoreReason::State),
            };
        }
        // IB-CM-22
        if !self.answers_request(id, transaction_id, from) {
            return Err(IgnoreReason::Unknown);
        }
        if self.connections[&id].state != State::ReqSent {
            return Err(IgnoreReason::State);
        }
        if remote_id == 0 {
            return Err(IgnoreReason::Malformed);
        }
        let remote = |kind, number| Remote { kind, peer: from, ca_guid: rep.local_ca_guid, number };
        if self.remotes.contains_key(&remote(Kind::CommunicationId, remote_id)) {
            return Err(IgnoreReason::State);
        }
        if let Some(&old) = self.remotes.get(&remote(Kind::QueuePair, rep.queue_pair())) {
            self.check_stale(old, believes)?;
            let rej = Rej {
                local_communication_id: id,
                remote_communication_id: remote_id,
                message: about::REP,
                reason: RejectReason::STALE_CONNECTION,
                ..Rej::default()
            };
            self.send(from, transaction_id, rej);
            self.release_stale(old, now);
            return Ok(());
        }
        self.finish(id, State::RepReceived);
        let connection = self.connections.get_mut(&id).expect("a connection");
        connection.remote_id = remote_id;
        connection.remote_guid = rep.local_ca_guid;
        connection.remote_qpn = rep.queue_pair();
        // IB-CM-19
        connection.round_trip += interval(rep.target_ack_delay.min(LONGEST_INTERVAL));
        self.register(id, Kind::CommunicationId);
        self.register(id, Kind::QueuePair);
        self.tell(id, Event::Reply { connection: id, reply: Box::new(*rep) });
        Ok(())
    }

    /// Says that a message has come, and that the program takes its time.
    pub(super) fn send_mra(&mut self, id: u32, message: u8) {
        let connection = &self.connections[&id];
        let mra = Mra {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            message,
            service_timeout: SERVICE_TIMEOUT,
            ..Mra::default()
        };
        self.send(connection.peer, connection.transaction_id, mra);
    }

    pub(super) fn receive_mra(
        &mut self,
        mra: &Mra,
        transaction_id: u64,
        from: P,
        now: Duration,
    ) -> Result<(), IgnoreReason> {
        let (id, remote_id) = (mra.remote_communication_id, mra.local_communication_id);
        let (state, expected) = match mra.message {
            // The peer's communication ID is known with REP only.
            about::REQ => (State::ReqSent, 0),
            about::REP => (State::RepSent, remote_id),
            _ => return Err(IgnoreReason::State),
        };
        if expected == 0 && !self.answers_request(id, transaction_id, from) {
            return Err(IgnoreReason::Unknown);
        }
        let connection = self.addressed(id, expected, from)?;
        // Only once: a peer must not make this side wait for ever.
        if connection.state != state || connection.delay.is_some() {
            return Err(IgnoreReason::State);
        }
        // IB-CM-18, IB-CM-31
        let delay = interval(mra.service_timeout.min(SERVICE_TIMEOUT)) + connection.round_trip;
        connection.delay = Some(delay);
        let at = now + delay;
        if connection.is_chosen_by_peer {
            connection.until = at + PEER_TIMEOUT;
        }
        self.set_deadline(id, at);
        Ok(())
    }

    pub(super) fn receive_rej(
        &mut self,
        rej: &Rej,
        transaction_id: u64,
        from: P,
        now: Duration,
    ) -> Result<(), IgnoreReason> {
        let id = self.rejected(rej, transaction_id, from)?;
        match self.connections[&id].state {
            State::ReqReceived => {
                self.answered(id);
                self.tell(id, Event::Rejected { connection: id, rejection: Box::new(*rej) });
                self.forget(id, now);
                Ok(())
            }
            State::ReqSent if rej.reason == RejectReason::INVALID_SERVICE_ID && self.is_patient(id, now) => {
                self.ask_later(id, now);
                Ok(())
            }
            // IB-CM-23
            State::ReqSent | State::RepSent if rej.reason != RejectReason::STALE_CONNECTION => {
                self.tell(id, Event::Rejected { connection: id, rejection: Box::new(*rej) });
                self.forget(id, now);
                Ok(())
            }
            State::DreqSent => {
                self.tell(id, Event::Disconnected { connection: id, asked: false });
                self.enter_timewait(id, now);
                Ok(())
            }
            // IB-CM-46
            State::ReqSent | State::RepSent | State::RepReceived | State::Established => {
                self.tell(id, Event::Rejected { connection: id, rejection: Box::new(*rej) });
                self.enter_timewait(id, now);
                Ok(())
            }
            _ => Err(IgnoreReason::State),
        }
    }

    /// Whether a service that nobody offers may still come.
    pub(super) fn is_patient(&self, id: u32, now: Duration) -> bool {
        now < self.connections[&id].patient_until
    }

    /// Sends the request once more in a moment. The peer, which has refused it, remembers nothing.
    pub(super) fn ask_later(&mut self, id: u32, now: Duration) {
        self.connections.get_mut(&id).expect("a connection").retries = 0;
        self.set_deadline(id, now + PAUSE);
    }

    /// The connection that REJ is about. Its transaction is the one of the request in any case, which nobody
    /// but the two sides knows.
    // IB-CM-9, IB-CM-12, IB-CM-13
    fn rejected(&self, rej: &Rej, transaction_id: u64, from: P) -> Result<u32, IgnoreReason> {
        let (named, remote_id) = (rej.remote_communication_id, rej.local_communication_id);
        let known = (rej.reason == RejectReason::TIMEOUT).then(|| {
            // The peer may not know this side's communication ID: it gives its own, and its GUID.
            let (guid, _) = rej.additional_information.split_first_chunk().expect("room for a GUID");
            Remote {
                kind: Kind::CommunicationId,
                peer: from,
                ca_guid: u64::from_be_bytes(*guid),
                number: remote_id,
            }
        });
        let id = known.and_then(|remote| self.remotes.get(&remote).copied()).unwrap_or(named);
        // While REQ is not answered, the peer's communication ID is not known; it may have one or not.
        let belongs = |connection: &Connection<P>| {
            connection.peer == from
                && connection.transaction_id == transaction_id
                && (connection.remote_id == 0 || connection.remote_id == remote_id)
        };
        if self.connections.get(&id).is_some_and(belongs) { Ok(id) } else { Err(IgnoreReason::Unknown) }
    }
}
