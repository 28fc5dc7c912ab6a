//! Completions with an error: what went wrong, with the numbers that the program needs.

use super::finding::Kind;
use super::flight::Request;
use super::report::Finding;
use super::waits::{refusal, refusal_of, sent_last, too_long, unheard_last_retry};
use super::work::operation;
use adverb_core::memory::{Access, AccessError, User};
use adverb_core::qp::{QueuePair, Service};
use adverb_core::request::{Cause, Opcode};
use adverb_libibverbs::abi::*;
use adverb_libibverbs::qp::by_number;
use adverb_libibverbs::seam::PolledCompletion;
use std::sync::Arc;

/// What a completion with an error says.
pub(super) fn explain(
    completed: &PolledCompletion,
    request: Option<&Request>,
    core: &QueuePair,
) -> Option<Finding> {
    let PolledCompletion { wr_id, status, queue_pair, .. } = *completed;
    let name = format!("queue pair {queue_pair:#x}");
    let length = request.map_or(0, |request| request.posted.length);
    let what = match request {
        Some(request) if !completed.is_receive() => {
            format!("request {wr_id:#x} of {name}, {} of {length} bytes", operation(request.posted.opcode))
        }
        Some(_) => format!("receive {wr_id:#x} of {name}, of {length} bytes"),
        None => format!("request {wr_id:#x} of {name}"),
    };
    let new = |kind, text| Finding::of_pair(kind, queue_pair, text).request(wr_id);
    let finding = match status {
        IBV_WC_LOC_LEN_ERR if completed.is_receive() => new(
            Kind::ReceiveTooSmall,
            format!(
                "{} has taken receive {wr_id:#x} of {name}, which has room for {length} bytes",
                message(queue_pair, core)
            ),
        ),
        IBV_WC_LOC_LEN_ERR => {
            let most = core.context().attributes().max_message;
            new(Kind::AccessRefused, format!("{what}, is longer than a message may be: {most} bytes"))
                .remedy("send long data in several messages; the device's max_msg_sz is the limit of each")
        }
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR if completed.vendor_error == Cause::LocalFault as u32 => {
            new(
                Kind::BufferFreed,
                format!("{what}, failed: its region is registered, but the pages are not there any more"),
            )
        }
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => {
            match request.and_then(|request| local(&what, request, completed.is_receive(), core)) {
                Some((text, remedy)) => new(Kind::AccessRefused, text).remedy(remedy),
                None => new(Kind::AccessRefused, format!("{what}, failed: a key does not open its bytes")),
            }
        }
        IBV_WC_MW_BIND_ERR => new(
            Kind::AccessRefused,
            format!("{what}, failed: the window, its region, the range or a right does not permit the bind"),
        ),
        IBV_WC_REM_INV_REQ_ERR if request.is_some_and(is_send) => {
            new(Kind::ReceiveTooSmall, format!("{what}, is longer than the receive that it took at the peer"))
        }
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR => {
            let (text, remedy) = remote(&what, request, core);
            let finding = new(Kind::AccessRefused, text);
            match remedy {
                Some(remedy) => finding.remedy(remedy),
                None => finding,
            }
        }
        IBV_WC_RNR_RETRY_EXC_ERR => new(
            Kind::NoReceive,
            format!(
                "{what}, found no receive at the peer, however often it was sent (rnr_retry {})",
                core.attributes().rnr_retry
            ),
        ),
        IBV_WC_RETRY_EXC_ERR => new(
            Kind::RetriesRunOut,
            format!(
                "{what}, has failed: queue pair {:#x} of the peer has not answered, though it was sent {} times more (retry_cnt)",
                core.attributes().destination,
                core.attributes().retry_count
            ),
        ),
        // Both ends are this queue pair: it was in error before the answer came.
        IBV_WC_WR_FLUSH_ERR if peer(core).is_some_and(|peer| peer.number() == queue_pair) => {
            let (why, remedy) = refusal(queue_pair)?;
            new(Kind::AccessRefused, format!("{what}, failed: {why}")).remedy(remedy)
        }
        _ => return None,
    };
    Some(match request {
        Some(request) => finding.at("posted at", request.site),
        None => finding,
    })
}

/// The last retry of a request that has failed by now, if the thread for waits had no processor since.
pub(super) fn last_retry(completed: &PolledCompletion, request: Option<&Request>) -> Option<Finding> {
    if completed.status != IBV_WC_RNR_RETRY_EXC_ERR {
        return None;
    }
    let retries = unheard_last_retry(completed.queue_pair)?;
    let finding = sent_last(completed.queue_pair, completed.wr_id, retries, true);
    Some(match request {
        Some(request) => finding.at("posted at", request.site),
        None => finding,
    })
}

/// A message that was too long for a receive of a queue pair.
fn message(queue_pair: u32, core: &QueuePair) -> String {
    let Some((bytes, is_whole, _)) = too_long(queue_pair) else { return "a longer message".to_owned() };
    let least = if is_whole { "" } else { "at least " };
    let header = if core.queues().service == Service::Ud {
        " (40 of them are for the global route header, which each receive of a UD queue pair begins with)"
    } else {
        ""
    };
    format!("a message of {least}{bytes} bytes{header}")
}

fn is_send(request: &Request) -> bool {
    use Opcode::{Send, SendWithImmediate, SendWithInvalidate};
    matches!(Opcode::from_number(request.posted.opcode), Some(Send | SendWithImmediate | SendWithInvalidate))
}

/// What a program does about an access of its peer that was refused: by the key table, or by the queue pair
/// itself.
pub(super) fn remedy_of(error: Option<AccessError>, rights: Access) -> String {
    match error {
        Some(error) => remedy(error, rights, false),
        None => format!("set {} in qp_access_flags when the queue pair goes to INIT", words(rights)),
    }
}

fn words(rights: Access) -> String {
    let words: Vec<_> = rights.iter_names().map(|(name, _)| format!("IBV_ACCESS_{name}")).collect();
    words.join(" and ")
}

/// What a program does about an access that was refused.
fn remedy(error: AccessError, rights: Access, is_local: bool) -> String {
    match error {
        AccessError::Key if is_local => {
            "set the lkey of each element to that of a region that lives".to_owned()
        }
        AccessError::Key => {
            "use the rkey that the peer's region has now, in the byte order in which the peer sent it"
                .to_owned()
        }
        AccessError::ProtectionDomain => {
            "register the region in the protection domain of the queue pair that uses it".to_owned()
        }
        AccessError::Rights => {
            format!("register the region with {}", words(rights))
        }
        AccessError::Bounds | AccessError::Wrap => {
            "keep the address and the length within the region of this key, use the key of the region that has these bytes, or register a longer one".to_owned()
        }
    }
}

/// Why local bytes cannot be used, and what to do about it.
fn local(what: &str, request: &Request, is_receive: bool, core: &QueuePair) -> Option<(String, String)> {
    use Opcode::{CompareSwap, FetchAdd, Read};
    let brings = matches!(Opcode::from_number(request.posted.opcode), Some(Read | CompareSwap | FetchAdd));
    let rights = if is_receive || brings { Access::LOCAL_WRITE } else { Access::empty() };
    let queues = core.queues();
    request.elements.iter().filter(|element| element.length > 0).find_map(|element| {
        let (lkey, address, length) = (element.lkey, element.address, element.length);
        let (error, why) =
            queues.engine.keys.explain(lkey, address, length.into(), rights, queues.domain, User::Local)?;
        let text =
            format!("the {length} bytes at {address:#x} with lkey {lkey:#x} cannot be used by {what}: {why}");
        Some((text, remedy(error, rights, true)))
    })
}

/// Why the peer refuses a request, as far as this process can know, and what to do about it.
fn remote(what: &str, request: Option<&Request>, core: &QueuePair) -> (String, Option<String>) {
    let Some(request) = request else { return (format!("{what} is refused by the peer"), None) };
    let posted = &request.posted;
    let refused = format!("{what}, at {:#x} with rkey {:#x}, is refused", posted.remote_address, posted.rkey);
    let told = refusal_of(posted.remote_address, posted.rkey);
    let peer = peer(core);
    match peer.as_ref().and_then(|peer| why_peer_refuses(request, peer)) {
        Some((why, remedy)) => {
            // What the engine has told of the peer's queue pair is the same.
            if let (None, Some(peer)) = (told, &peer) {
                refusal(peer.number());
            }
            (format!("{refused}: {why}"), Some(remedy))
        }
        None => {
            let (why, remedy) = told.map_or_else(
                || {
                    let remedy =
                        "compare address, length and rkey with the peer's region, and its rights with the operation";
                    (" by the peer, whose own adverb run --check says why".to_owned(), remedy.to_owned())
                },
                |(why, remedy)| (format!(": {why}"), remedy),
            );
            (format!("{refused}{why}"), Some(remedy))
        }
    }
}

/// The queue pair at the other end, if it is of this process.
pub(super) fn peer(core: &QueuePair) -> Option<Arc<QueuePair>> {
    if core.queues().service == Service::Ud {
        return None;
    }
    let ours = core.attributes();
    let peer = by_number(core.context(), ours.destination)?;
    // Numbers of other processes may be the same.
    (peer.attributes().destination == core.number()).then_some(peer)
}

fn why_peer_refuses(request: &Request, peer: &QueuePair) -> Option<(String, String)> {
    use Opcode::{CompareSwap, FetchAdd, Read, Write, WriteWithImmediate};
    let posted = &request.posted;
    let (right, flag) = match Opcode::from_number(posted.opcode)? {
        Write | WriteWithImmediate => (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
        Read => (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
        CompareSwap | FetchAdd => (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
        _ => return None,
    };
    if peer.attributes().access & right.bits() == 0 {
        return Some((
            format!("the peer's queue pair {:#x} has no {flag} in its qp_access_flags", peer.number()),
            format!("set {flag} in qp_access_flags when the queue pair goes to INIT"),
        ));
    }
    let (address, user) = (posted.remote_address, User::Peer(peer.number()));
    if right == Access::REMOTE_ATOMIC && !address.is_multiple_of(8) {
        return Some((
            "an atomic operation needs an address that is a multiple of 8".to_owned(),
            "align the variable to 8 bytes".to_owned(),
        ));
    }
    let queues = peer.queues();
    let length = if right == Access::REMOTE_ATOMIC { 8 } else { posted.length };
    let explained = queues.engine.keys.explain(posted.rkey, address, length, right, queues.domain, user);
    explained.map(|(error, text)| (text, remedy(error, right, false)))
}
