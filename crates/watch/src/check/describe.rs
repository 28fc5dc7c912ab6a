//! What a new object is called in sentences, and which others it needs.

use super::objects::New;
use super::roles::Thing;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::Arguments;
use adverb_librdmacm::abi::rdma_cm_id;
use std::ffi::CStr;

/// Reads a value of C.
///
/// # Safety
/// It is readable, or the address is 0.
unsafe fn read<T: Copy>(address: usize) -> Option<T> {
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { (address as *const T).read_unaligned() })
}

/// What is known of an object that a call has just made.
///
/// # Safety
/// The object lives, and the arguments are right for the call.
pub(super) unsafe fn describe(thing: Thing, pointer: usize, call: &str, arguments: &Arguments) -> New {
    let (mut uses, mut number) = (Vec::new(), 0);
    // SAFETY: the caller's promise: every object of verbs begins with its context, but for contexts and
    // flows.
    let mut context = unsafe { read::<usize>(pointer) }.unwrap_or(0);
    let address = || format!("{} {pointer:#x}", thing.name());
    // SAFETY: the caller's promise, for all that is read.
    let name = unsafe {
        match thing {
            Thing::Context => {
                context = pointer;
                let device = (*(pointer as *const ibv_context)).device;
                let name = CStr::from_ptr((*device).name.as_ptr()).to_string_lossy();
                format!("open device {name}")
            }
            Thing::Domain => {
                if call == "ibv_alloc_parent_domain"
                    && let Some(attributes) = read::<ibv_parent_domain_init_attr>(arguments[1])
                {
                    uses = vec![attributes.pd as usize, attributes.td as usize];
                }
                address()
            }
            Thing::Region => {
                let region = &*(pointer as *const ibv_mr);
                uses = vec![region.pd as usize];
                if call == "ibv_reg_dm_mr" {
                    uses.push(arguments[1]);
                }
                format!("region with lkey {:#x}", region.lkey)
            }
            Thing::Window => {
                let window = &*(pointer as *const ibv_mw);
                uses = vec![window.pd as usize];
                format!("memory window with rkey {:#x}", window.rkey)
            }
            Thing::CompletionQueue => {
                let queue = pointer as *const ibv_cq;
                uses = vec![(&raw const (*queue).channel).read() as usize];
                number = (&raw const (*queue).handle).read();
                format!("completion queue {number} of {} entries", entries(call, arguments).unwrap_or(0))
            }
            Thing::QueuePair => return pair(pointer),
            Thing::SharedQueue => {
                let queue = pointer as *const ibv_srq;
                uses = vec![(&raw const (*queue).pd).read() as usize];
                if call == "ibv_create_srq_ex"
                    && let Some(attributes) = read::<ibv_srq_init_attr_ex>(arguments[1])
                {
                    if attributes.comp_mask & IBV_SRQ_INIT_ATTR_CQ != 0 {
                        uses.push(attributes.cq as usize);
                    }
                    if attributes.comp_mask & IBV_SRQ_INIT_ATTR_XRCD != 0 {
                        uses.push(attributes.xrcd as usize);
                    }
                }
                address()
            }
            Thing::AddressHandle => {
                uses = vec![(*(pointer as *const ibv_ah)).pd as usize];
                address()
            }
            Thing::Flow => {
                context = (*(pointer as *const ibv_flow)).context as usize;
                uses = vec![arguments[0]];
                address()
            }
            Thing::WorkQueue => {
                if let Some(attributes) = read::<ibv_wq_init_attr>(arguments[1]) {
                    uses = vec![attributes.pd as usize, attributes.cq as usize];
                }
                address()
            }
            Thing::Identifier => {
                let id = pointer as *const rdma_cm_id;
                uses = vec![(&raw const (*id).channel).read() as usize];
                context = 0;
                address()
            }
            Thing::EventChannel => {
                context = 0;
                address()
            }
            Thing::ThreadDomain | Thing::XrcDomain | Thing::DeviceMemory | Thing::Channel | Thing::Table => {
                address()
            }
        }
    };
    New { thing, number, name, context, uses, manager: 0 }
}

/// Memory of a region, and who may write to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) end: u64,
    /// A peer may, by its rkey or through a memory window.
    pub(super) lets_peers_write: bool,
}

/// What is known of a region.
///
/// # Safety
/// It lives, and the arguments are right for the call that has made it, or changed it.
pub(super) unsafe fn region(pointer: usize, call: &str, arguments: &Arguments) -> Region {
    const WRITES: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    let access = match call {
        "ibv_reg_mr" => arguments[3] as u32,
        "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => arguments[4] as u32,
        _ => WRITES,
    };
    // SAFETY: the caller's promise.
    let (start, length) = unsafe {
        let region = &*(pointer as *const ibv_mr);
        (region.addr as u64, region.length as u64)
    };
    Region { start, end: start.saturating_add(length), lets_peers_write: access & WRITES != 0 }
}

/// How many entries a program asks a completion queue for.
///
/// # Safety
/// The arguments are right for the call.
pub(super) unsafe fn entries(call: &str, arguments: &Arguments) -> Option<u32> {
    match call {
        "ibv_create_cq" => Some(arguments[1] as u32),
        "ibv_create_cq_ex" => {
            // SAFETY: the caller's promise.
            unsafe { read::<ibv_cq_init_attr_ex>(arguments[1]) }.map(|attributes| attributes.cqe)
        }
        _ => None,
    }
}

/// Describes a queue pair.
///
/// # Safety
/// It lives.
pub(super) unsafe fn pair(pointer: usize) -> New {
    let pair = pointer as *const ibv_qp;
    // SAFETY: the caller's promise; the mutex beside these fields is not looked at.
    unsafe {
        let field = |place: *const *mut ibv_cq| place.read() as usize;
        let uses = vec![
            (&raw const (*pair).pd).read() as usize,
            field(&raw const (*pair).send_cq),
            field(&raw const (*pair).recv_cq),
            (&raw const (*pair).srq).read() as usize,
        ];
        let context = (&raw const (*pair).context).read() as usize;
        let number = (&raw const (*pair).qp_num).read();
        let name = format!("queue pair {number:#x}");
        New { thing: Thing::QueuePair, number, name, context, uses, manager: 0 }
    }
}

/// The objects that an identifier points to: its shared receive queue, queue pair, completion queues and
/// their channels.
///
/// # Safety
/// It lives.
pub(super) unsafe fn of_identifier(pointer: usize) -> Vec<(usize, Thing)> {
    let id = pointer as *const rdma_cm_id;
    // SAFETY: the caller's promise.
    let all = unsafe {
        [
            ((*id).srq as usize, Thing::SharedQueue),
            ((*id).qp as usize, Thing::QueuePair),
            ((*id).send_cq as usize, Thing::CompletionQueue),
            ((*id).recv_cq as usize, Thing::CompletionQueue),
            ((*id).send_cq_channel as usize, Thing::Channel),
            ((*id).recv_cq_channel as usize, Thing::Channel),
        ]
    };
    all.into_iter().filter(|(pointer, _)| *pointer != 0).collect()
}
