//! Messages of connection management from what programs say, and back.

use super::ManagerPeer;
use adverb_core::attributes::Gid;
use adverb_core::cm::{
    AddressOptions, Agreement, ConnectionParameters, DEFAULT_PKEY, PACKET_LIFE_TIME, PrivateDataLimits,
    path_to,
};
use adverb_core::error::Result;
use adverb_core::qp::Service;
use adverb_proto::cm::MAX_RETRIES;
use adverb_wire::ib::cm::{
    IP_ADDRESSES_LEN, IpAddresses, Path, Rej, RejectReason, Rep, Req, SidrRep, SidrReq, gid, private_data,
    service,
};
use std::net::SocketAddr;

/// Private data of programs on connections. A request has room for 36 bytes more, which are addresses
/// (IB-CM-54).
pub(super) const LIMITS: PrivateDataLimits = PrivateDataLimits { request: 56, accept: 196, reject: 148 };
/// Most bytes of private data in messages that ask for the queue pair of a datagram service, or answer
/// (IB-SIDR-7).
pub(super) const DATAGRAM_LIMITS: PrivateDataLimits =
    PrivateDataLimits { request: 180, accept: 136, reject: 136 };

/// How long the peer may take before it is asked again: 4.096 µs · 2^17, about half a second. Linux has four
/// seconds, which makes one lost datagram felt; a program that takes longer to answer is no problem, since
/// its side then says so (MRA).
const RESPONSE_TIMEOUT: u8 = 17;
/// LIDs mean nothing on Ethernet (IB-CM-7).
const NO_LID: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;
/// 10 Gbit/s.
const PACKET_RATE: u8 = 3;
/// In REP: there is no alternate path (IB-CM-50).
const FAILOVER_UNSUPPORTED: u8 = 1;
/// Retry counts have 3 bits.
const MOST_RETRIES: u8 = 7;

/// Addresses and ports of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// What this side chose by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// First PSN to receive: the peer is told to begin with it.
    pub(super) psn: u32,
    /// Path MTU in bytes.
    pub(super) mtu: u32,
}

/// The code of a path MTU: 1 is 256 bytes.
fn mtu_code(mtu: u32) -> u8 {
    (mtu.max(256).ilog2() - 7) as u8
}

/// The bytes of a code; None if it is none.
pub(super) fn mtu_of_code(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

fn with_addresses<const N: usize>(ends: &Ends, data: &[u8]) -> [u8; N] {
    let addresses =
        IpAddresses { source_port: ends.local.port(), source: ends.local.ip(), destination: ends.peer.ip() };
    let whole = [&addresses.to_bytes()[..], data].concat();
    private_data(&whole).expect("the length was checked against the limit")
}

/// The addresses at the beginning of a request's private data, and the program's part.
pub(super) fn split_addresses(data: &[u8]) -> Option<(IpAddresses, &[u8])> {
    Some((IpAddresses::read(data)?, data.get(IP_ADDRESSES_LEN..)?))
}

/// Asks for a connection.
pub(super) fn request(
    service_id: u64,
    kind: Service,
    ends: &Ends,
    own: Own,
    options: &AddressOptions,
    parameters: &ConnectionParameters,
    data: &[u8],
) -> Req {
    Req {
        service_id,
        local_qpn: parameters.qp_number,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport_service: match kind {
            Service::Uc => service::UC,
            // IB-XRC-15
            Service::XrcSend => service::EXTENDED,
            _ => service::RC,
        },
        extended_transport: if kind == Service::XrcSend { service::XRC } else { 0 },
        end_to_end_flow_control: parameters.flow_control,
        starting_psn: own.psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        // IB-CM-60
        retry_count: parameters.retry_count.min(MOST_RETRIES),
        pkey: DEFAULT_PKEY,
        path_mtu: mtu_code(own.mtu),
        rnr_retry_count: parameters.rnr_retry_count.min(MOST_RETRIES),
        max_cm_retries: MAX_RETRIES,
        srq: parameters.srq,
        primary: Path {
            // IB-CM-6, IB-CM-7
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: gid(ends.local.ip()),
            remote_gid: gid(ends.peer.ip()),
            packet_rate: PACKET_RATE,
            traffic_class: options.type_of_service.unwrap_or(0),
            hop_limit: HOP_LIMIT,
            local_ack_timeout: options.ack_timeout.unwrap_or(PACKET_LIFE_TIME + 1),
            ..Path::default()
        },
        private_data: with_addresses(ends, data),
        ..Req::default()
    }
}

/// Accepts a connection.
pub(super) fn reply(request: &Req, own: Own, parameters: &ConnectionParameters, data: &[u8]) -> Rep {
    // IB-XRC-15
    let (target, number) = (request.is_extended(), parameters.qp_number);
    Rep {
        local_qpn: if target { 0 } else { number },
        local_eecn: if target { number } else { 0 },
        starting_psn: own.psn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        failover_accepted: FAILOVER_UNSUPPORTED,
        end_to_end_flow_control: parameters.flow_control,
        rnr_retry_count: parameters.rnr_retry_count.min(MOST_RETRIES),
        srq: parameters.srq || target,
        private_data: private_data(data).expect("the length was checked against the limit"),
        ..Rep::default()
    }
}

/// Refuses one.
pub(super) fn rejection(reason: RejectReason, data: &[u8]) -> Rej {
    let private_data = private_data(data).expect("the length was checked against the limit");
    Rej { reason, private_data, ..Rej::default() }
}

/// Asks for the queue pair of a datagram service.
pub(super) fn look_up(service_id: u64, ends: &Ends, data: &[u8]) -> SidrReq {
    SidrReq { pkey: DEFAULT_PKEY, service_id, private_data: with_addresses(ends, data), ..SidrReq::default() }
}

/// Tells it, or that there is none.
pub(super) fn found(status: u8, parameters: &ConnectionParameters, data: &[u8]) -> SidrRep {
    SidrRep {
        status,
        qpn: parameters.qp_number,
        qkey: parameters.qkey,
        private_data: private_data(data).expect("the length was checked against the limit"),
        ..SidrRep::default()
    }
}

/// The service of the queue pair that a request asks for.
pub(super) fn wanted(request: &Req) -> Service {
    match request.transport_service {
        service::UC => Service::Uc,
        _ if request.is_extended() => Service::XrcReceive,
        _ => Service::Rc,
    }
}

/// What the sender of a request offers, as the receiver sees it (IB-CM-58).
pub(super) fn offered(request: &Req) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        flow_control: request.end_to_end_flow_control,
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
        srq: request.srq,
        qp_number: request.local_qpn,
        qkey: 0,
    }
}

/// What the sender of a reply grants, as the receiver sees it.
pub(super) fn granted(reply: &Rep) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.end_to_end_flow_control,
        retry_count: 0,
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.srq,
        qp_number: reply.queue_pair(),
        qkey: 0,
    }
}

/// The passive side's view of what both sides said. The acknowledgement timeout and the retry counts are the
/// peer's wish (IB-CM-38).
pub(super) fn agreement_of_request(
    request: &Req,
    own: Own,
    peer: &ManagerPeer,
    gids: &[Gid],
) -> Result<Agreement> {
    Ok(Agreement {
        service: wanted(request),
        path: path_to(gids, peer.local(), gid(peer.address), request.primary.traffic_class)?,
        path_mtu: own.mtu,
        destination: request.local_qpn,
        rq_psn: own.psn,
        sq_psn: request.starting_psn,
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        ack_timeout: request.primary.local_ack_timeout,
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
    })
}

/// The active side's view of what both sides said.
pub(super) fn agreement_of_reply(
    request: &Req,
    reply: &Rep,
    own: Own,
    peer: &ManagerPeer,
    gids: &[Gid],
) -> Result<Agreement> {
    Ok(Agreement {
        service: if request.is_extended() { Service::XrcSend } else { wanted(request) },
        path: path_to(gids, peer.local(), gid(peer.address), request.primary.traffic_class)?,
        path_mtu: own.mtu,
        destination: reply.queue_pair(),
        rq_psn: own.psn,
        sq_psn: reply.starting_psn,
        // As Linux: what the peer says that it will use is served, though less may have been offered.
        responder_resources: reply.initiator_depth,
        // IB-CM-25
        initiator_depth: reply.responder_resources.min(request.initiator_depth),
        ack_timeout: request.primary.local_ack_timeout,
        retry_count: request.retry_count,
        rnr_retry_count: reply.rnr_retry_count,
    })
}

/// What a program is told of a request or a reply: its part of the private data and no byte more, and numbers
/// that their fields hold. What is made of it again says the same.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(mad: &[u8; adverb_wire::ib::mad::MAD_LEN]) {
    use adverb_wire::ib::cm::Message;
    use adverb_wire::ib::mad::Mad;
    let Some(Ok(message)) = Mad::parse(mad).map(Message::parse) else { return };
    let check = |parameters: &ConnectionParameters| {
        assert!(parameters.qp_number < 1 << 24);
        assert!(parameters.retry_count <= MOST_RETRIES && parameters.rnr_retry_count <= MOST_RETRIES);
    };
    match message {
        Message::Req(request) => {
            let offered = offered(&request);
            check(&offered);
            assert!(mtu_of_code(request.path_mtu).is_none_or(|mtu| (256..=4096).contains(&mtu)));
            let Some((addresses, data)) = split_addresses(&request.private_data) else { return };
            assert_eq!(data.len(), LIMITS.request);
            let ends = Ends {
                local: (addresses.source, addresses.source_port).into(),
                peer: (addresses.destination, 0).into(),
            };
            let own = Own { psn: request.starting_psn, mtu: mtu_of_code(request.path_mtu).unwrap_or(256) };
            let said = ConnectionParameters {
                responder_resources: offered.initiator_depth,
                initiator_depth: offered.responder_resources,
                ..offered
            };
            let kind = match wanted(&request) {
                Service::XrcReceive => Service::XrcSend,
                kind => kind,
            };
            let options = AddressOptions::default();
            let again = self::request(request.service_id, kind, &ends, own, &options, &said, data);
            assert_eq!(self::offered(&again), offered);
            assert_eq!(wanted(&again), wanted(&request));
            assert_eq!(split_addresses(&again.private_data), Some((addresses, data)));
            // As an answer to it.
            let reply = reply(&request, own, &said, &data[..data.len().min(LIMITS.accept)]);
            check(&granted(&reply));
        }
        Message::Rep(reply) => {
            check(&granted(&reply));
            assert_eq!(reply.private_data.len(), LIMITS.accept);
        }
        Message::Rej(rejection) => assert_eq!(rejection.private_data.len(), LIMITS.reject),
        Message::SidrReq(request) => {
            if let Some((addresses, data)) = split_addresses(&request.private_data) {
                assert_eq!(data.len(), DATAGRAM_LIMITS.request);
                let ends = Ends {
                    local: (addresses.source, addresses.source_port).into(),
                    peer: (addresses.destination, 0).into(),
                };
                let again = look_up(request.service_id, &ends, data);
                assert_eq!(split_addresses(&again.private_data), Some((addresses, data)));
            }
        }
        Message::SidrRep(answer) => assert_eq!(answer.private_data.len(), DATAGRAM_LIMITS.accept),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes() {
        for (code, mtu) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu_code(mtu), mtu_of_code(code)), (code, Some(mtu)));
        }
        assert_eq!((mtu_of_code(0), mtu_of_code(6)), (None, None));
    }
}
