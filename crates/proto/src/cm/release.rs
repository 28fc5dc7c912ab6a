//! How connections end.

use std::time::Duration;

use adverb_wire::ib::cm::{Drep, Dreq, Rej, RejectReason, SidrRep, about, sidr_status};

use super::{Error, Event, IgnoreReason, Kind, Manager, StaleClaim, State};

impl<P: Copy + Ord> Manager<P> {
    /// Releases a connection, or agrees to the peer's wish to.
    pub fn disconnect(&mut self, id: u32, now: Duration) -> Result<(), Error> {
        match self.known(id)?.state {
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => {
                self.send_drep(id);
                self.enter_timewait(id, now);
            }
            _ => return Err(Error::State),
        }
        Ok(())
    }

    /// Has no interest in a connection any more, whatever its state: the peer is told what it has to know,
    /// and no event of the connection comes. Without effect if there is no such connection.
    // IB-CM-48
    pub fn destroy(&mut self, id: u32, now: Duration) {
        let Ok(connection) = self.known(id) else { return };
        let refusal = Rej { reason: RejectReason::CONSUMER_DEFINED, ..Rej::default() };
        match connection.state {
            State::ReqSent => {
                self.send_rej(id, about::OTHER, RejectReason::TIMEOUT, &refusal);
                self.forget(id, now);
            }
            State::ReqReceived | State::RepReceived => {
                self.reject(id, &refusal, now).expect("this can be rejected in these states");
            }
            State::RepSent => {
                self.send_rej(id, about::OTHER, refusal.reason, &refusal);
                self.enter_timewait(id, now);
            }
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => {
                self.send_drep(id);
                self.enter_timewait(id, now);
            }
            State::SidrSent => self.forget(id, now),
            State::SidrReceived => {
                let rep = SidrRep { status: sidr_status::REJECT, ..SidrRep::default() };
                self.answer(id, &rep, now).expect("this can be answered in this state");
            }
            State::DreqSent | State::Timewait => {}
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.destroyed = true;
        }
    }

    /// Sends each request to release that has no answer once more, in front of its time: the process exits,
    /// and does not repeat it later.
    pub fn repeat_releases(&mut self, now: Duration) {
        let unanswered =
            self.connections.iter().filter(|(_, connection)| connection.state == State::DreqSent);
        let unanswered: Vec<u32> = unanswered.map(|(id, _)| *id).collect();
        for id in unanswered {
            self.transmit_message(id, now);
        }
    }

    fn send_dreq(&mut self, id: u32, now: Duration) {
        self.finish(id, State::DreqSent);
        // IB-CM-9
        let transaction_id = self.new_transaction(id);
        let connection = &self.connections[&id];
        let dreq = Dreq {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            remote_qpn: connection.remote_qpn,
            ..Dreq::default()
        };
        self.start(id, transaction_id, dreq, now);
    }

    fn send_drep(&mut self, id: u32) {
        let connection = &self.connections[&id];
        let drep = Drep {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            ..Drep::default()
        };
        self.send(connection.peer, connection.release_transaction_id, drep);
    }

    /// Asks the caller whether a connection may be stale, because a message says so.
    ///
    /// # Errors
    /// If the message is to have no effect: the caller does not believe it, or the connection is about to
    /// end, and the message can be served afterwards.
    // ROCE-42
    pub(super) fn check_stale(
        &self,
        id: u32,
        believes: &dyn Fn(StaleClaim) -> bool,
    ) -> Result<(), IgnoreReason> {
        let connection = &self.connections[&id];
        let claim = StaleClaim { local_qpn: connection.local_qpn, remote_qpn: connection.remote_qpn };
        let counts = match connection.state {
            // IB-CM-34
            State::Timewait => true,
            State::DreqSent => false,
            _ => believes(claim),
        };
        if counts { Ok(()) } else { Err(IgnoreReason::Doubted) }
    }

    /// The peer uses the queue pair of a connection for another one: it has lost this one.
    // IB-CM-33
    pub(super) fn release_stale(&mut self, id: u32, now: Duration) {
        if self.connections[&id].state == State::Established {
            self.send_dreq(id, now);
        }
    }

    /// Waits until no packet of the connection can be under way any more.
    pub(super) fn enter_timewait(&mut self, id: u32, now: Duration) {
        // IB-CM-45
        self.finish(id, State::Timewait);
        // The peer is free to use its queue pair for another connection.
        self.unregister(id, Kind::QueuePair);
        let at = now + self.connections[&id].round_trip;
        self.set_deadline(id, at);
    }

    pub(super) fn receive_dreq(
        &mut self,
        dreq: &Dreq,
        transaction_id: u64,
        from: P,
        now: Duration,
    ) -> Result<(), IgnoreReason> {
        let id = dreq.remote_communication_id;
        let Ok(connection) = self.addressed(id, dreq.local_communication_id, from) else {
            // IB-CM-43
            // Forgotten, so released.
            let drep = Drep {
                local_communication_id: id,
                remote_communication_id: dreq.local_communication_id,
                ..Drep::default()
            };
            self.send(from, transaction_id, drep);
            return Err(IgnoreReason::Unknown);
        };
        // IB-CM-44
        if connection.local_qpn != dreq.remote_qpn {
            return Err(IgnoreReason::State);
        }
        let state = connection.state;
        if !matches!(state, State::RepSent | State::Established | State::DreqSent | State::Timewait) {
            return Err(IgnoreReason::State);
        }
        connection.release_transaction_id = transaction_id;
        match state {
            // IB-CM-42
            // Both sides want it.
            State::DreqSent => {
                self.send_drep(id);
                self.tell(id, Event::Disconnected { connection: id, asked: false });
                self.enter_timewait(id, now);
            }
            // DREP was lost.
            State::Timewait => self.send_drep(id),
            _ => {
                // IB-CM-41
                self.finish(id, State::DreqReceived);
                self.tell(id, Event::Disconnected { connection: id, asked: true });
            }
        }
        Ok(())
    }

    pub(super) fn receive_drep(&mut self, drep: &Drep, from: P, now: Duration) -> Result<(), IgnoreReason> {
        let id = drep.remote_communication_id;
        if self.addressed(id, drep.local_communication_id, from)?.state != State::DreqSent {
            return Err(IgnoreReason::State);
        }
        self.tell(id, Event::Disconnected { connection: id, asked: false });
        self.enter_timewait(id, now);
        Ok(())
    }
}
