//! Executes one request of an unreliable service: a message that fails at the receiver is dropped, and the
//! sender never hears of it.

use super::execute::{self, GRH, gather, slices};
use super::fabric::Fabric;
use super::{Execution, MTU, NullEndpoint, lock};
use crate::qp::{Destination, SendCursor, SendWork, Service};
use crate::request::{Completion, CompletionFlags, Status};
use std::sync::Arc;

/// The queue pair number of datagrams to a group.
const MULTICAST: u32 = 0xff_ffff;

pub(super) fn execute(
    own: &NullEndpoint,
    fabric: &Fabric,
    cursor: &mut SendCursor,
    work: &SendWork,
) -> Execution {
    // A datagram is one packet.
    if own.queues.service == Service::Ud && work.length > MTU {
        own.queues.fail_send(cursor, work.sequence, Status::LocalLength);
        return Execution::Well;
    }
    // The sender's own memory comes first: a mistake in it stops the send queue.
    let mut bytes = vec![0; work.length as usize];
    for (offset, length) in slices(work.length as usize) {
        if let Err(failure) = gather(own, work, offset, &mut bytes[offset..offset + length]) {
            own.queues.fail_send(cursor, work.sequence, failure.sender);
            return Execution::Well;
        }
    }
    let mut executed = Execution::Well;
    match own.queues.service {
        Service::Ud => deliver_datagram(own, fabric, work, &bytes),
        _ => {
            let destination = lock(&own.attributes).destination;
            let peer = fabric.find(destination).filter(|peer| {
                peer.queues.service == Service::Uc && lock(&peer.attributes).destination == own.queues.number
            });
            if let Some(peer) = peer {
                executed = execute::deliver(own, peer, work);
            }
        }
    }
    own.queues.complete_send(work.sequence, Status::Success);
    executed
}

fn deliver_datagram(own: &NullEndpoint, fabric: &Fabric, work: &SendWork, bytes: &[u8]) {
    let to = own.queues.send.destination(work);
    let members = match to.queue_pair {
        MULTICAST => fabric.members(&to.path.gid),
        number => fabric.find(number).into_iter().collect(),
    };
    let own_qkey = lock(&own.attributes).qkey;
    let qkey = if to.qkey >> 31 == 1 { own_qkey } else { to.qkey };
    for member in members {
        if member.queues.service == Service::Ud {
            receive_datagram(own, &member, work, &to, qkey, bytes);
        }
    }
}

fn receive_datagram(
    own: &NullEndpoint,
    peer: &Arc<NullEndpoint>,
    work: &SendWork,
    to: &Destination,
    qkey: u32,
    bytes: &[u8],
) {
    let _turn = lock(&peer.receive);
    if !execute::receives(peer) || lock(&peer.attributes).qkey != qkey {
        return;
    }
    let Some(receive) = peer.queues.take_receive() else { return };
    let message = [&header(to, bytes.len())[..], bytes].concat();
    let completion = execute::completion(peer, &receive, work, message.len() as u32, Status::Success);
    let status = if message.len() as u64 > receive.room {
        Status::LocalLength
    } else if execute::scatter_receive(peer, &receive, 0, &message).is_err() {
        Status::LocalProtection
    } else {
        Status::Success
    };
    let completion = Completion {
        status,
        flags: completion.flags | CompletionFlags::GRH,
        source_queue_pair: own.queues.number,
        ..completion
    };
    let solicited = work.flags.contains(crate::request::SendFlags::SOLICITED);
    peer.queues.complete_receive(&receive, completion, solicited);
}

/// The IPv4 header that lies in the last 20 of the first 40 bytes; all endpoints have one address.
fn header(to: &Destination, length: usize) -> [u8; GRH] {
    let mut header = [0; GRH];
    let v4 = &mut header[20..];
    v4[0] = 0x45;
    v4[1] = to.path.traffic_class;
    v4[2..4].copy_from_slice(&(length as u16 + 20).to_be_bytes());
    v4[8] = to.path.hop_limit;
    v4[9] = 17;
    v4[12..16].copy_from_slice(&[127, 0, 0, 1]);
    v4[16..20].copy_from_slice(&to.path.gid[12..]);
    let sum: u32 = v4.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    v4[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}
