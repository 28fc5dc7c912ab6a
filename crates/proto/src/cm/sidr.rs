//! Asking for the queue pair of a datagram service (volume 1, section 12.11).

use std::time::Duration;

use adverb_wire::ib::cm::{Message, SidrRep, SidrReq, interval, sidr_status};

use super::{Connection, Error, Event, IgnoreReason, Kind, Manager, Remote, State};

/// How long an answer is awaited, as in [`interval`]: about half a second.
const SIDR_TIMEOUT: u8 = 17;
/// How often a request is sent again. rdma_cm does it 15 times, four seconds apart, which makes one lost
/// datagram felt. In all, this is as long: a program may take its time, and there is no message that says so.
const SIDR_RETRIES: u8 = 127;

impl<P: Copy + Ord> Manager<P> {
    /// Asks a peer for the queue pair of a datagram service. The request ID of `req` is filled in.
    pub fn resolve(&mut self, peer: P, req: &SidrReq, now: Duration) -> Result<u32, Error> {
        let connection = Connection {
            timeout: interval(SIDR_TIMEOUT),
            max_retries: SIDR_RETRIES,
            patient_until: now + self.config.patience,
            ..Connection::new(peer, State::SidrSent, req.service_id)
        };
        let id = self.insert(connection)?;
        // IB-SIDR-2
        let transaction_id = self.new_transaction(id);
        self.connections.get_mut(&id).expect("a connection").transaction_id = transaction_id;
        self.start(id, transaction_id, SidrReq { request_id: id, ..*req }, now);
        Ok(id)
    }

    /// Answers a request. The request ID and the service ID of `rep` are filled in. The request is forgotten.
    pub fn answer(&mut self, id: u32, rep: &SidrRep, now: Duration) -> Result<(), Error> {
        let connection = self.known(id)?;
        if connection.state != State::SidrReceived {
            return Err(Error::State);
        }
        // IB-SIDR-4
        let rep = SidrRep { request_id: connection.remote_id, service_id: connection.service_id, ..*rep };
        let mad = Message::from(rep).to_mad(connection.transaction_id);
        self.answered(id);
        self.send_answer(self.remote(id, Kind::SidrRequest), mad, now);
        self.forget(id, now);
        Ok(())
    }

    pub(super) fn receive_sidr_req(
        &mut self,
        req: &SidrReq,
        transaction_id: u64,
        from: P,
        now: Duration,
    ) -> Result<(), IgnoreReason> {
        // The message has no GUID.
        let remote = Remote { kind: Kind::SidrRequest, peer: from, ca_guid: 0, number: req.request_id };
        if self.repeat_answer(remote, transaction_id, now) {
            return Ok(());
        }
        // IB-SIDR-5
        if self.remotes.contains_key(&remote) {
            return Err(IgnoreReason::State);
        }
        if !self.listeners.contains_key(&req.service_id) {
            let rep = SidrRep {
                request_id: req.request_id,
                service_id: req.service_id,
                // IB-SIDR-3
                status: sidr_status::UNSUPPORTED,
                ..SidrRep::default()
            };
            self.send(from, transaction_id, rep);
            return Ok(());
        }
        if !self.make_room(req.service_id, from, now) {
            return Err(IgnoreReason::Full);
        }
        let connection = Connection {
            transaction_id,
            remote_id: req.request_id,
            ..Connection::new(from, State::SidrReceived, req.service_id)
        };
        let id = self.insert(connection).map_err(|_| IgnoreReason::Full)?;
        self.listeners.get_mut(&req.service_id).expect("found above").ask(from, id);
        self.register(id, Kind::SidrRequest);
        self.tell(id, Event::DatagramRequest { connection: id, peer: from, request: Box::new(*req) });
        Ok(())
    }

    pub(super) fn receive_sidr_rep(
        &mut self,
        rep: &SidrRep,
        transaction_id: u64,
        from: P,
        now: Duration,
    ) -> Result<(), IgnoreReason> {
        let id = rep.request_id;
        if !self.answers_request(id, transaction_id, from) {
            return Err(IgnoreReason::Unknown);
        }
        // IB-SIDR-6
        if self.connections[&id].state != State::SidrSent {
            return Err(IgnoreReason::State);
        }
        if rep.status == sidr_status::UNSUPPORTED && self.is_patient(id, now) {
            self.ask_later(id, now);
            return Ok(());
        }
        self.tell(id, Event::DatagramReply { connection: id, reply: Box::new(*rep) });
        self.forget(id, now);
        Ok(())
    }
}
