//! The side that is asked for a connection.

use std::time::Duration;

use adverb_wire::ib::cm::{Message, Rej, RejectReason, Rep, Req, Rtu, about, interval, service};

use super::{
    Connection, Error, Event, IgnoreReason, Kind, LONGEST_INTERVAL, Manager, Remote, SHORTEST_INTERVAL,
    StaleClaim, State,
};

impl<P: Copy + Ord> Manager<P> {
    /// Accepts a request. The communication IDs and the GUID of `rep` are filled in.
    pub fn accept(&mut self, id: u32, rep: &Rep, now: Duration) -> Result<(), Error> {
        let connection = self.known(id)?;
        if connection.state != State::ReqReceived {
            return Err(Error::State);
        }
        connection.state = State::RepSent;
        connection.local_qpn = rep.queue_pair();
        let transaction_id = connection.transaction_id;
        let rep = Rep {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            local_ca_guid: self.config.ca_guid,
            ..*rep
        };
        self.answered(id);
        self.start(id, transaction_id, rep, now);
        Ok(())
    }

    /// Refuses a request, or a reply to one. Of `rej`, the reason, the additional information and the private
    /// data are sent. The connection is forgotten.
    pub fn reject(&mut self, id: u32, rej: &Rej, now: Duration) -> Result<(), Error> {
        match self.known(id)?.state {
            State::ReqReceived => {
                self.answered(id);
                let connection = self.connections.get_mut(&id).expect("a connection");
                connection.requested = false;
                let rej = Rej {
                    local_communication_id: 0,
                    remote_communication_id: connection.remote_id,
                    message: about::REQ,
                    ..*rej
                };
                // IB-PKT-57
                let mad = Message::from(rej).to_mad(connection.transaction_id);
                // IB-CM-37
                self.send_answer(self.remote(id, Kind::CommunicationId), mad, now);
                self.forget(id, now);
            }
            State::RepReceived => {
                // IB-CM-21
                self.send_rej(id, about::REP, rej.reason, rej);
                self.forget(id, now);
            }
            _ => return Err(Error::State),
        }
        Ok(())
    }

    /// The queue pair has received something from the peer: it is ready, whether or not RTU comes. Without
    /// effect if that is known.
    // IB-CM-30
    pub fn establish(&mut self, id: u32) -> Result<(), Error> {
        match self.known(id)?.state {
            State::RepSent => {
                self.established(id);
                Ok(())
            }
            State::Established => Ok(()),
            _ => Err(Error::State),
        }
    }

    fn established(&mut self, id: u32) {
        self.finish(id, State::Established);
        self.tell(id, Event::Established { connection: id });
    }

    pub(super) fn receive_rtu(&mut self, rtu: &Rtu, from: P) -> Result<(), IgnoreReason> {
        let id = rtu.remote_communication_id;
        // IB-CM-32
        if self.addressed(id, rtu.local_communication_id, from)?.state != State::RepSent {
            return Err(IgnoreReason::State);
        }
        self.established(id);
        Ok(())
    }

    pub(super) fn receive_req(
        &mut self,
        req: &Req,
        transaction_id: u64,
        from: P,
        now: Duration,
        believes: &dyn Fn(StaleClaim) -> bool,
    ) -> Result<(), IgnoreReason> {
        if req.local_communication_id == 0 {
            return Err(IgnoreReason::Malformed);
        }
        let remote = |kind, number| Remote { kind, peer: from, ca_guid: req.local_ca_guid, number };
        let remote_id = remote(Kind::CommunicationId, req.local_communication_id);
        if self.repeat_answer(remote_id, transaction_id, now) {
            return Ok(());
        }
        if let Some(&id) = self.remotes.get(&remote_id) {
            return self.receive_req_again(id, req, transaction_id, now, believes);
        }
        if let Some(&old) = self.remotes.get(&remote(Kind::QueuePair, req.local_qpn)) {
            self.check_stale(old, believes)?;
            // IB-CM-33
            self.refuse(req, transaction_id, from, RejectReason::STALE_CONNECTION);
            self.release_stale(old, now);
            return Ok(());
        }
        if !self.listeners.contains_key(&req.service_id) {
            // IB-CM-26
            self.refuse(req, transaction_id, from, RejectReason::INVALID_SERVICE_ID);
            return Ok(());
        }
        if !matches!(req.transport_service, service::RC | service::UC) && !req.is_extended() {
            // IB-CM-35
            self.refuse(req, transaction_id, from, RejectReason::INVALID_TRANSPORT_TYPE);
            return Ok(());
        }
        // IB-CM-36
        if !self.make_room(req.service_id, from, now) {
            return Err(IgnoreReason::Full);
        }
        let connection = Connection {
            transaction_id,
            requested: true,
            remote_id: req.local_communication_id,
            remote_guid: req.local_ca_guid,
            remote_qpn: req.local_qpn,
            timeout: interval(req.local_response_timeout.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)),
            max_retries: req.max_cm_retries,
            is_chosen_by_peer: true,
            round_trip: interval(req.primary.local_ack_timeout.min(LONGEST_INTERVAL)),
            ..Connection::new(from, State::ReqReceived, req.service_id)
        };
        let id = self.insert(connection).map_err(|_| IgnoreReason::Full)?;
        self.listeners.get_mut(&req.service_id).expect("found above").ask(from, id);
        self.register(id, Kind::CommunicationId);
        self.register(id, Kind::QueuePair);
        // IB-CM-27
        self.tell(id, Event::Request { connection: id, peer: from, request: Box::new(*req) });
        Ok(())
    }

    /// A connection with this communication ID of the peer is there already.
    fn receive_req_again(
        &mut self,
        id: u32,
        req: &Req,
        transaction_id: u64,
        now: Duration,
        believes: &dyn Fn(StaleClaim) -> bool,
    ) -> Result<(), IgnoreReason> {
        let connection = &self.connections[&id];
        let peer = connection.peer;
        if connection.transaction_id != transaction_id || connection.remote_qpn != req.local_qpn {
            // Not the same request: the peer has lost the connection, and begins anew.
            self.check_stale(id, believes)?;
            self.refuse(req, transaction_id, peer, RejectReason::STALE_CONNECTION);
            self.release_stale(id, now);
            return Ok(());
        }
        match connection.state {
            // IB-CM-28, IB-CM-29
            State::ReqReceived => self.send_mra(id, about::REQ),
            // REP may be lost, or on its way. Its own time goes on.
            State::RepSent => {
                let mad = **connection.message.as_ref().expect("REP is sent until it is answered");
                self.transmissions.push_back((peer, mad));
            }
            // IB-CM-34
            State::Timewait => self.refuse(req, transaction_id, peer, RejectReason::STALE_CONNECTION),
            _ => return Err(IgnoreReason::State),
        }
        Ok(())
    }

    /// Refuses a request without a connection.
    fn refuse(&mut self, req: &Req, transaction_id: u64, peer: P, reason: RejectReason) {
        let rej = Rej {
            remote_communication_id: req.local_communication_id,
            message: about::REQ,
            reason,
            ..Rej::default()
        };
        self.send(peer, transaction_id, rej);
    }
}
