//! Which process of the network namespace a management datagram of connection management is for.
//!
//! Requests name a service, that is a port that a process holds ([`super::ports`]). Everything else names our
//! own communication ID, whose upper bits are the block of the process that chose it.

use super::ports;
use adverb_core::cm::PortSpace;
use adverb_wire::ib::cm::{Message, port_of};
use adverb_wire::ib::mad::{MAD_LEN, Mad, class};
use std::net::SocketAddr;

/// Bits of a communication ID that count within a process.
pub(crate) const COUNTED: u32 = 20;

/// The process or connection that a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// The process with this block.
    Block(u16),
    /// The process that serves this.
    Service(Service),
    /// No certain process: the process that has the datagram answers.
    Here,
}

/// A port of a port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Service {
    /// The port space.
    pub(crate) space: PortSpace,
    /// The port.
    pub(crate) port: u16,
}

impl Service {
    /// The service of a service ID, if it is one of rdma_cm.
    pub(crate) fn of(service_id: u64) -> Option<Self> {
        let (space, port) = port_of(service_id)?;
        Some(Self { space: PortSpace::from_number(space.into())?, port })
    }

    /// The service ID.
    pub(crate) fn id(self) -> u64 {
        adverb_wire::ib::cm::service_id(self.space as u32 as u16, self.port)
    }

    /// The names of the sockets where a request that was sent to a local address may be handed over, best
    /// first.
    pub(crate) fn names(self, mut local: SocketAddr) -> [Vec<u8>; 2] {
        local.set_port(self.port);
        ports::names(self.space, local)
    }
}

/// Finds the process or connection that a datagram is for.
pub(crate) fn route(mad: &[u8; MAD_LEN]) -> Recipient {
    let Some(mad) = Mad::parse(mad).filter(|mad| mad.header.class == class::COMMUNICATION) else {
        return Recipient::Here;
    };
    let service = |id: u64| Service::of(id).map_or(Recipient::Here, Recipient::Service);
    let owner = |id: u32| match (id >> COUNTED) as u16 {
        // No process has it: a refusal that names nobody, for one.
        0 => Recipient::Here,
        block => Recipient::Block(block),
    };
    match Message::parse(mad) {
        Ok(Message::Req(req)) => service(req.service_id),
        Ok(Message::SidrReq(req)) => service(req.service_id),
        Ok(Message::SidrRep(rep)) => owner(rep.request_id),
        Ok(Message::Mra(mra)) => owner(mra.remote_communication_id),
        Ok(Message::Rej(rej)) => owner(rej.remote_communication_id),
        Ok(Message::Rep(rep)) => owner(rep.remote_communication_id),
        Ok(Message::Rtu(rtu)) => owner(rtu.remote_communication_id),
        Ok(Message::Dreq(dreq)) => owner(dreq.remote_communication_id),
        Ok(Message::Drep(drep)) => owner(drep.remote_communication_id),
        Ok(Message::Lap(lap)) => owner(lap.remote_communication_id),
        Ok(Message::Apr(apr)) => owner(apr.remote_communication_id),
        Err(_) => Recipient::Here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::cm::{Dreq, Req, SidrRep};

    fn whom(message: impl Into<Message>) -> Recipient {
        route(&message.into().to_mad(7).to_bytes())
    }

    #[test]
    fn by_service_or_by_block() {
        let service = Service { space: PortSpace::Tcp, port: 7174 };
        assert_eq!(Service::of(service.id()), Some(service));
        assert_eq!(whom(Req { service_id: service.id(), ..Req::default() }), Recipient::Service(service));
        assert_eq!(whom(Req { service_id: 1 << 60, ..Req::default() }), Recipient::Here);
        let id = 0x7ab << COUNTED | 0xf_ffff;
        assert_eq!(whom(Dreq { remote_communication_id: id, ..Dreq::default() }), Recipient::Block(0x7ab));
        assert_eq!(whom(SidrRep { request_id: id, ..SidrRep::default() }), Recipient::Block(0x7ab));
        assert_eq!(whom(Dreq::default()), Recipient::Here);
        assert_eq!(route(&[0; MAD_LEN]), Recipient::Here);
    }
}
