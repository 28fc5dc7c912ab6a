//! Calls, as profiles see them: what each asks a device for.

use super::{Pair, Profile, Request};
use crate::check::flight::{self, Flight};
use crate::check::report::Finding;
use crate::check::roles::Act;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{self, Arguments, PostedRequest};
use adverb_librdmacm::abi::rdma_addrinfo;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads a value of C.
///
/// # Safety
/// It is readable, or the address is 0.
unsafe fn read<T: Copy>(address: usize) -> Option<T> {
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { (address as *const T).read_unaligned() })
}

/// The queue pair that a call creates.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn created_pair(call: &str, arguments: &Arguments) -> Option<Pair> {
    // The beginning of both structures is the same.
    let place = match call {
        "ibv_create_qp" | "ibv_create_qp_ex" | "rdma_create_qp_ex" => 1,
        "rdma_create_qp" => 2,
        "rdma_create_ep" => 3,
        _ => return None,
    };
    // SAFETY: the caller's promise.
    let attributes: ibv_qp_init_attr = unsafe { read(arguments[place]) }?;
    let service = match call {
        // rdma_create_ep(3): the service is that of the addresses, whatever the attributes say.
        // SAFETY: the caller's promise.
        "rdma_create_ep" => unsafe { read::<rdma_addrinfo>(arguments[1]) }?.ai_qp_type as u32,
        _ => attributes.qp_type,
    };
    Some(Pair { service, capacity: attributes.cap, has_shared_queue: !attributes.srq.is_null() })
}

/// The rights of the region that a call registers.
fn registered(call: &str, arguments: &Arguments) -> Option<u32> {
    match call {
        "ibv_reg_mr" => Some(arguments[3] as u32),
        "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => Some(arguments[4] as u32),
        _ => None,
    }
}

/// The program has asked which kinds of GIDs there are.
static KNOWS_KINDS: AtomicBool = AtomicBool::new(false);

fn knows_kinds() -> bool {
    KNOWS_KINDS.load(Ordering::Relaxed)
}

/// What a call relies on that a profile does not have.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn missing(profile: &Profile, call: &str, act: Act, arguments: &Arguments) -> Vec<String> {
    let mut found = Vec::new();
    // SAFETY: the caller's promise, in all that follows.
    unsafe {
        if let Some(pair) = created_pair(call, arguments) {
            found = profile.pair(&pair);
        }
        found.extend(registered(call, arguments).and_then(|access| profile.region(access)));
        match call {
            "ibv_create_cq" => found.extend(profile.completion_queue(arguments[1] as u32)),
            "ibv_create_cq_ex" => {
                let attributes = read::<ibv_cq_init_attr_ex>(arguments[1]);
                found.extend(attributes.and_then(|attributes| profile.completion_queue(attributes.cqe)));
            }
            "ibv_create_srq" | "ibv_create_srq_ex" => {
                // The beginning of both structures is the same.
                let attributes = read::<ibv_srq_init_attr>(arguments[1]);
                found.extend(attributes.and_then(|attributes| profile.shared_queue(&attributes.attr)));
            }
            "ibv_alloc_mw" => found.extend(profile.window()),
            "ibv_create_ah" => {
                let attributes = (arguments[1] as *const ibv_ah_attr).as_ref();
                found.extend(attributes.and_then(|attributes| profile.address(attributes, knows_kinds())));
            }
            // It knows them, or the manager or a completion has told it which one to use.
            "ibv_query_gid_type"
            | "_ibv_query_gid_ex"
            | "_ibv_query_gid_table"
            | "rdma_init_qp_attr"
            | "rdma_get_cm_event"
            | "ibv_init_ah_from_wc" => {
                KNOWS_KINDS.store(true, Ordering::Relaxed);
            }
            "ibv_modify_qp" => {
                if let Some(attributes) = (arguments[1] as *const ibv_qp_attr).as_ref() {
                    let mask = arguments[2] as i32;
                    for (bit, wanted) in [
                        (IBV_QP_MAX_QP_RD_ATOMIC, attributes.max_rd_atomic),
                        (IBV_QP_MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic),
                    ] {
                        found.extend(profile.reads(wanted.into()).filter(|_| mask & bit != 0));
                    }
                    let port = (mask & IBV_QP_PORT != 0).then_some(attributes.port_num);
                    found.extend(port.and_then(|port| profile.port(port)));
                    if mask & IBV_QP_AV != 0 {
                        found.extend(profile.connection());
                        found.extend(profile.address(&attributes.ah_attr, knows_kinds()));
                    }
                }
            }
            _ => {}
        }
        let mut each = |posted: &PostedRequest, elements: &[_]| {
            let request = Request {
                opcode: posted.opcode,
                flags: posted.flags,
                elements: elements.len() as u32,
                length: posted.length,
                remote_address: posted.remote_address,
            };
            if found.is_empty()
                && let Some(text) = profile.request(&request)
            {
                found.push(format!("request {:#x}: {text}", posted.wr_id));
            }
        };
        match act {
            Act::PostSends => {
                seam::sends(arguments[0] as *mut ibv_qp, arguments[1] as *const ibv_send_wr, &mut each);
            }
            Act::PostBuilt => seam::gathered(arguments[0] as *mut ibv_qp_ex, &mut each),
            _ => {}
        }
    }
    found
}

/// The findings of a call that is about to be made.
///
/// # Safety
/// The arguments are right for the call, and its objects live.
pub(crate) unsafe fn look(
    profiles: &[&'static Profile],
    call: &'static str,
    act: Act,
    arguments: &Arguments,
) -> Vec<Finding> {
    let all = profiles.iter().filter_map(|profile| {
        // SAFETY: the caller's promise.
        let found = unsafe { missing(profile, call, act, arguments) };
        let text = format!("{call} asks for {}", found.join("; and for "));
        let finding = Finding::new(profile.kind, 0, text);
        (!found.is_empty()).then(|| match found.as_slice() {
            [address] if address.starts_with("sgid_index") => finding.remedy(
                "ask ibv_query_gid_ex for the kind of each GID, and choose one of IBV_GID_TYPE_ROCE_V2",
            ),
            _ => finding,
        })
    });
    all.collect()
}

/// Finds a request from this serial on that writes to bytes of the peer to which a Write of another queue
/// pair is under way.
pub(crate) fn unordered(
    profiles: &[&'static Profile],
    flight: &Flight,
    pair: usize,
    first: u64,
) -> Option<Finding> {
    let profile = profiles.iter().find(|profile| profile.is_strict())?;
    let writes = |request: &&flight::Request| {
        matches!(request.posted.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM)
            && request.posted.length > 0
    };
    let own = flight.pairs.get(&pair)?;
    let new = own.sends.iter().rev().take_while(|request| request.serial >= first).filter(writes);
    for request in new {
        let PostedRequest { wr_id, rkey, remote_address, length, .. } = request.posted;
        let meets = |other: &&flight::Request| {
            let PostedRequest { rkey: key, remote_address: address, length: bytes, .. } = other.posted;
            key == rkey
                && address < remote_address.saturating_add(length)
                && remote_address < address.saturating_add(bytes)
        };
        let others = flight.pairs.iter().filter(|(other, queue)| **other != pair && queue.sends.is_certain());
        let found = others
            .flat_map(|(_, queue)| {
                queue.sends.iter().filter(writes).filter(meets).map(|other| (queue.number, other))
            })
            .next();
        if let Some((number, other)) = found {
            let text = format!(
                "request {wr_id:#x} of queue pair {:#x} writes to bytes of the peer, and request {:#x} of queue pair {number:#x} to the same: \
                 adapters promise no order across queue pairs",
                own.number, other.posted.wr_id
            );
            let remedy =
                "post both requests to one queue pair, or post the second after the completion of the first";
            return Some(
                Finding::new(profile.kind, pair as u64, text)
                    .pair(own.number)
                    .request(wr_id)
                    .remedy(remedy)
                    .at("the other was posted at", other.site),
            );
        }
    }
    None
}

/// Finds a request from this serial on that sends bytes which a Read or an atomic operation before it only
/// brings.
pub(crate) fn unfenced(
    profiles: &[&'static Profile],
    flight: &Flight,
    pair: usize,
    first: u64,
) -> Option<Finding> {
    let profile = profiles.iter().find(|profile| profile.is_strict())?;
    let mut reads: Vec<&flight::Request> = Vec::new();
    let own = flight.pairs.get(&pair)?;
    for request in own.sends.iter() {
        let PostedRequest { opcode, flags, wr_id, .. } = request.posted;
        if flags & IBV_SEND_FENCE != 0 {
            reads.clear();
        }
        match opcode {
            IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                reads.push(request);
                continue;
            }
            _ if flags & IBV_SEND_INLINE != 0 || request.serial < first => continue,
            _ => {}
        }
        if let Some(read) = reads.iter().find(|read| share_bytes(read, request)) {
            let text = format!(
                "request {wr_id:#x} sends bytes that request {:#x} before it brings, without IBV_SEND_FENCE: adapters may send what was there before",
                read.posted.wr_id
            );
            let remedy =
                "set the fence flag IBV_SEND_FENCE, or post the request after the completion of the other";
            return Some(
                Finding::new(profile.kind, pair as u64, text)
                    .pair(own.number)
                    .request(wr_id)
                    .remedy(remedy)
                    .at("the other was posted at", read.site),
            );
        }
    }
    None
}

fn share_bytes(one: &flight::Request, other: &flight::Request) -> bool {
    one.elements.iter().any(|a| {
        other.elements.iter().any(|b| {
            a.lkey == b.lkey
                && a.address < b.address.saturating_add(b.length.into())
                && b.address < a.address.saturating_add(a.length.into())
        })
    })
}
