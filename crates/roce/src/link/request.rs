//! What the protocol calls a request of the program.

use crate::endpoint::Endpoint;
use adverb_core::qp::SendWork;
use adverb_core::request::Opcode;
use adverb_proto::ib::{CompletionStatus, MAX_MESSAGE, Operation};
use adverb_wire::ib::header::Feth;

/// The bytes of the peer's memory or receive that a request is about. A flush says so by itself, since it has
/// no data of its own.
pub(super) fn length(work: &SendWork) -> u32 {
    match work.opcode {
        Opcode::Flush => u32::try_from(work.compare_add).unwrap_or(u32::MAX),
        _ => work.length,
    }
}

/// What the protocol calls a request, and why it cannot be made.
pub(super) fn operation(endpoint: &Endpoint, work: &SendWork) -> (Operation, Option<CompletionStatus>) {
    let (address, rkey) = (work.remote_address, work.rkey);
    let immediate = Some(u32::from_be(work.immediate));
    // IB-RC-REQ-12
    let eight = (work.length != 8).then_some(CompletionStatus::LocalLength);
    let long = (work.length > MAX_MESSAGE).then_some(CompletionStatus::LocalLength);
    match work.opcode {
        Opcode::Write => (Operation::Write { address, rkey, immediate: None }, long),
        Opcode::WriteWithImmediate => (Operation::Write { address, rkey, immediate }, long),
        Opcode::SendWithImmediate => (Operation::Send { immediate, invalidate: None }, long),
        Opcode::SendWithInvalidate => {
            (Operation::Send { immediate: None, invalidate: Some(work.immediate) }, long)
        }
        Opcode::Read => (Operation::Read { address, rkey }, long),
        Opcode::CompareSwap => {
            let (compare, swap) = (work.compare_add, work.swap);
            (Operation::CompareSwap { address, rkey, compare, swap }, eight)
        }
        Opcode::FetchAdd => (Operation::FetchAdd { address, rkey, add: work.compare_add }, eight),
        Opcode::AtomicWrite => {
            let mut value = [0; 8];
            let fault = eight.or_else(|| {
                let read = endpoint.queues.gather(work, 0, &mut value);
                read.is_err().then_some(CompletionStatus::LocalProtection)
            });
            (Operation::AtomicWrite { address, rkey, value }, fault)
        }
        Opcode::Flush => {
            let [placement, selectivity, ..] = work.swap.to_le_bytes();
            let placements = Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE;
            let exists = placement != 0 && placement & !placements == 0 && selectivity <= Feth::REGION;
            let fault = (!exists).then_some(CompletionStatus::LocalOperation);
            let long = (work.compare_add > u64::from(u32::MAX)).then_some(CompletionStatus::LocalLength);
            (Operation::Flush { address, rkey, placement, selectivity }, fault.or(long))
        }
        Opcode::Send | Opcode::LocalInvalidate | Opcode::BindWindow => {
            (Operation::Send { immediate: None, invalidate: None }, long)
        }
    }
}
