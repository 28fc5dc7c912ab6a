//! A request that waits for the program's answer.

use super::link::{Handle, Link, New, make_ready};
use super::message::{self, DATAGRAM_LIMITS, Ends, LIMITS, Own};
use super::{Manager, ManagerPeer, gone};
use adverb_core::cm::{
    Agreement, ConnectionParameters, ConnectionSink, IncomingConnection, OutgoingConnection,
    PrivateDataLimits,
};
use adverb_core::error::Result;
use adverb_core::qp::{QueuePair, Service};
use adverb_wire::ib::cm::{RejectReason, Req, sidr_status};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// What the peer asks for.
pub(super) enum IncomingRequest {
    /// A connection.
    Connection {
        /// The request that asked for the connection.
        request: Box<Req>,
        /// What both sides said so far.
        agreement: Agreement,
    },
    /// The queue pair of a datagram service.
    Datagrams,
}

/// A peer's request that waits for the program's answer. Dropping it refuses the request.
pub(super) struct Incoming {
    pub(super) manager: Arc<Manager>,
    pub(super) id: u32,
    pub(super) peer: ManagerPeer,
    pub(super) ends: Ends,
    pub(super) own: Own,
    pub(super) asked: IncomingRequest,
    pub(super) private_data: Vec<u8>,
    pub(super) answered: bool,
}

impl Incoming {
    fn accept_for(
        &mut self,
        queue_pair: Option<Weak<QueuePair>>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let IncomingRequest::Connection { request, agreement } = &self.asked else {
            return self.name_queue_pair(parameters, private_data);
        };
        PrivateDataLimits::check(private_data, LIMITS.accept)?;
        if let Some(queue_pair) = &queue_pair {
            let agreement = Agreement {
                responder_resources: parameters.responder_resources,
                initiator_depth: parameters.initiator_depth,
                ..*agreement
            };
            make_ready(&self.manager, self.id, queue_pair, &agreement)?;
        }
        let reply = message::reply(request, self.own, &parameters, private_data);
        let new = New {
            id: self.id,
            sink,
            queue_pair,
            peer: self.peer,
            local: self.ends.local,
            own: self.own,
            request: None,
            agreement: Some(*agreement),
            remote_id: request.local_communication_id,
        };
        let link = Link::new(new);
        self.manager.accept(&link, &reply)?;
        self.answered = true;
        self.manager.send_out();
        Ok(Box::new(Handle { manager: self.manager.clone(), link }))
    }

    /// IB-SIDR-4
    fn name_queue_pair(
        &mut self,
        parameters: ConnectionParameters,
        private_data: &[u8],
    ) -> Result<Box<dyn OutgoingConnection>> {
        PrivateDataLimits::check(private_data, DATAGRAM_LIMITS.accept)?;
        let status = if parameters.qp_number == 0 { sidr_status::NO_QP } else { sidr_status::SUCCESS };
        let answer = message::found(status, &parameters, private_data);
        self.manager.with(|cm, now| cm.answer(self.id, &answer, now))?.map_err(|error| gone(&error))?;
        self.answered = true;
        self.manager.send_out();
        Ok(Box::new(DatagramAnswer(self.ends.local)))
    }

    fn refuse(&mut self, private_data: &[u8]) -> Result<()> {
        self.answered = true;
        let refused = match self.asked {
            IncomingRequest::Connection { .. } => {
                PrivateDataLimits::check(private_data, LIMITS.reject)?;
                let rejection = message::rejection(RejectReason::CONSUMER_DEFINED, private_data);
                self.manager.with(|cm, now| cm.reject(self.id, &rejection, now))?
            }
            IncomingRequest::Datagrams => {
                PrivateDataLimits::check(private_data, DATAGRAM_LIMITS.reject)?;
                let none = ConnectionParameters::default();
                let answer = message::found(sidr_status::REJECT, &none, private_data);
                self.manager.with(|cm, now| cm.answer(self.id, &answer, now))?
            }
        };
        self.manager.send_out();
        // The peer may have given up: then the refusal is not needed.
        let _ = refused;
        Ok(())
    }
}

impl IncomingConnection for Incoming {
    fn local(&self) -> SocketAddr {
        self.ends.local
    }

    fn peer(&self) -> SocketAddr {
        self.ends.peer
    }

    fn parameters(&self) -> ConnectionParameters {
        match &self.asked {
            IncomingRequest::Connection { request, .. } => message::offered(request),
            IncomingRequest::Datagrams => ConnectionParameters::default(),
        }
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn service(&self) -> Service {
        match &self.asked {
            IncomingRequest::Connection { request, .. } => message::wanted(request),
            IncomingRequest::Datagrams => Service::Ud,
        }
    }

    fn agreement(&self) -> Option<Agreement> {
        match &self.asked {
            IncomingRequest::Connection { agreement, .. } => Some(*agreement),
            IncomingRequest::Datagrams => None,
        }
    }

    fn accept(
        mut self: Box<Self>,
        queue_pair: &Arc<QueuePair>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let parameters = ConnectionParameters { qp_number: queue_pair.number(), ..parameters };
        self.accept_for(Some(Arc::downgrade(queue_pair)), parameters, private_data, sink)
    }

    fn accept_unmanaged(
        mut self: Box<Self>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        self.accept_for(None, parameters, private_data, sink)
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        self.refuse(private_data)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.refuse(&[]);
        }
    }
}

/// The handle on what was said about datagrams: nothing follows.
struct DatagramAnswer(SocketAddr);

impl OutgoingConnection for DatagramAnswer {
    fn local(&self) -> Option<SocketAddr> {
        Some(self.0)
    }

    fn disconnect(&self) -> Result<()> {
        Ok(())
    }
}
