//! Completions with an error: what went wrong, with the numbers that the program needs.

use super::finding::Kind;
use super::flight::Request;
use super::report::Finding;
use super::work::operation;
use adverb_core::memory::{Access, User};
use adverb_core::qp::{QueuePair, Service};
use adverb_core::request::{Cause, Opcode};
use adverb_libibverbs::abi::*;
use adverb_libibverbs::qp::by_number;
use adverb_libibverbs::seam::Completed;
use std::sync::Arc;

/// What a completion with an error says.
pub(super) fn explain(completed: &Completed, request: Option<&Request>, core: &QueuePair) -> Option<Finding> {
    let Completed { wr_id, status, queue_pair, .. } = *completed;
    let name = format!("queue pair {queue_pair:#x}");
    let finding = |kind, text| {
        let finding = Finding::new(kind, queue_pair.into(), text);
        Some(match request {
            Some(request) => finding.at("posted at", request.site),
            None => finding,
        })
    };
    let length = request.map_or(0, |request| request.posted.length);
    let what = || match request {
        Some(request) if !completed.is_receive() => {
            format!("request {wr_id:#x} of {name}, {} of {length} bytes,", operation(request.posted.opcode))
        }
        Some(_) => format!("receive {wr_id:#x} of {name}, of {length} bytes,"),
        None => format!("request {wr_id:#x} of {name}"),
    };
    match status {
        IBV_WC_LOC_LEN_ERR if completed.is_receive() => finding(
            Kind::ReceiveTooSmall,
            format!(
                "receive {wr_id:#x} of {name} has room for {length} bytes, and a longer message has taken it"
            ),
        ),
        IBV_WC_LOC_LEN_ERR => {
            let most = core.context().attributes().max_message;
            finding(Kind::AccessRefused, format!("{} is longer than a message may be: {most} bytes", what()))
        }
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => {
            if completed.vendor_error == Cause::LocalFault as u32 {
                return finding(
                    Kind::BufferFreed,
                    format!(
                        "{} failed: its region is registered, but the pages are not there any more",
                        what()
                    ),
                );
            }
            let why = request.and_then(|request| local(request, completed.is_receive(), core));
            let why = why.unwrap_or_else(|| "a key does not open its bytes".to_owned());
            finding(Kind::AccessRefused, format!("{} failed: {why}", what()))
        }
        IBV_WC_MW_BIND_ERR => finding(
            Kind::AccessRefused,
            format!(
                "{} failed: the window, its region, the range or a right is not one that it may be bound to",
                what()
            ),
        ),
        IBV_WC_REM_ACCESS_ERR => finding(Kind::AccessRefused, remote(&what(), request, core)),
        IBV_WC_REM_INV_REQ_ERR => {
            let sends = |request: &Request| {
                use Opcode::{Send, SendWithImmediate, SendWithInvalidate};
                let opcode = Opcode::from_number(request.posted.opcode);
                matches!(opcode, Some(Send | SendWithImmediate | SendWithInvalidate))
            };
            if request.is_some_and(sends) {
                return finding(
                    Kind::ReceiveTooSmall,
                    format!("{} is longer than the receive that it took at the peer", what()),
                );
            }
            finding(Kind::AccessRefused, remote(&what(), request, core))
        }
        IBV_WC_RNR_RETRY_EXC_ERR => finding(
            Kind::NoReceive,
            format!(
                "{} found no posted receive at the peer, however often it was sent (rnr_retry {})",
                what(),
                core.attributes().rnr_retry
            ),
        ),
        _ => None,
    }
}

/// Why local bytes cannot be used.
fn local(request: &Request, is_receive: bool, core: &QueuePair) -> Option<String> {
    let is_target = is_receive || !request.arrives.is_empty() || {
        use Opcode::{CompareSwap, FetchAdd, Read};
        matches!(Opcode::from_number(request.posted.opcode), Some(Read | CompareSwap | FetchAdd))
    };
    let rights = if is_target { Access::LOCAL_WRITE } else { Access::empty() };
    let queues = core.queues();
    request.elements.iter().filter(|element| element.length > 0).find_map(|element| {
        let (lkey, address, length) = (element.lkey, element.address, element.length);
        let (_, text) =
            queues.engine.keys.explain(lkey, address, length.into(), rights, queues.domain, User::Local)?;
        Some(format!("the {length} bytes at {address:#x} cannot be used: {text}"))
    })
}

/// Why the peer refuses a request, as far as this process can know.
fn remote(what: &str, request: Option<&Request>, core: &QueuePair) -> String {
    let Some(request) = request else { return format!("{what} is refused by the peer") };
    let posted = &request.posted;
    let (address, key) = (posted.remote_address, posted.rkey);
    let refused = format!("{what} at {address:#x} of the peer's key {key:#x} is refused");
    match peer(core).and_then(|peer| why_peer_refuses(request, &peer)) {
        Some(why) => format!("{refused}: {why}"),
        None => format!("{refused} by the peer; adverb run --check says there why"),
    }
}

/// The queue pair at the other end, if it is of this process.
fn peer(core: &QueuePair) -> Option<Arc<QueuePair>> {
    if core.queues().service == Service::Ud {
        return None;
    }
    let ours = core.attributes();
    let peer = by_number(core.context(), ours.destination)?;
    // Numbers of other processes may be the same.
    (peer.attributes().destination == core.number()).then_some(peer)
}

fn why_peer_refuses(request: &Request, peer: &QueuePair) -> Option<String> {
    use Opcode::{CompareSwap, FetchAdd, Read, Write, WriteWithImmediate};
    let posted = &request.posted;
    let (right, flag) = match Opcode::from_number(posted.opcode)? {
        Write | WriteWithImmediate => (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
        Read => (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
        CompareSwap | FetchAdd => (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
        _ => return None,
    };
    if peer.attributes().access & right.bits() == 0 {
        return Some(format!(
            "the peer's queue pair {:#x} has no {flag} in its qp_access_flags",
            peer.number()
        ));
    }
    let queues = peer.queues();
    let length = if right == Access::REMOTE_ATOMIC { 8 } else { posted.length };
    let (address, user) = (posted.remote_address, User::Peer(peer.number()));
    if right == Access::REMOTE_ATOMIC && !address.is_multiple_of(8) {
        return Some("an atomic operation needs an address that is a multiple of 8".to_owned());
    }
    queues.engine.keys.explain(posted.rkey, address, length, right, queues.domain, user).map(|(_, text)| text)
}
