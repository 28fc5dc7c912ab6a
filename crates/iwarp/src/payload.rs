//! The memory of payloads, which our requests or the peer's name: opened by its key, read, and changed by
//! atomics.

use crate::endpoint::{Cause, Endpoint, ReadSink};
use crate::kept::KeptReads;
use adverb_core::engine::Engine;
use adverb_core::memory::{Access, AccessError, Span};
use adverb_core::qp::{PayloadError, SendWork};
use adverb_core::request::{Opcode, Sge, Status};
use adverb_proto::iwarp::{
    AtomicOperation, AtomicRequest, Fault, InboundRequest, Outbound, OutstandingReads, ReadRequest,
};
use std::sync::atomic::Ordering;

/// Where the payload of the current message comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload {
    /// The message has no payload.
    None,
    /// A work request's elements or inline data.
    Request(SendWork),
    /// The region that the peer reads.
    Read(InboundRequest, ReadRequest),
}

/// Why payload cannot be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Key(AccessError),
    Memory,
}

impl Failure {
    /// The cause by which the connection ends, when the failure is at `offset` of the message.
    pub(crate) fn cause(self, payload: &Payload, offset: u32) -> Cause {
        match payload {
            Payload::Request(work) => {
                Cause::Request { sequence: work.sequence, status: Status::LocalProtection }
            }
            Payload::Read(inbound, _) => {
                let fault = match self {
                    Self::Key(error) => fault_of(error),
                    Self::Memory => Fault::BaseBounds,
                };
                Cause::Fault(fault, inbound.terminate(fault, offset))
            }
            Payload::None => Cause::Here,
        }
    }
}

/// The protocol's word for a refusal.
pub(crate) fn fault_of(error: AccessError) -> Fault {
    match error {
        AccessError::Key => Fault::InvalidStag,
        AccessError::ProtectionDomain => Fault::StagNotAssociated,
        AccessError::Bounds => Fault::BaseBounds,
        AccessError::Wrap => Fault::ToWrap,
        AccessError::Rights => Fault::AccessRights,
    }
}

/// Opens `length` bytes (all that is left, if not given) of an element from `offset` on.
pub(crate) fn open_element(
    endpoint: &Endpoint,
    sge: Sge,
    offset: u32,
    length: Option<u32>,
    rights: Access,
    domain: u32,
) -> Result<Option<Span<'static>>, AccessError> {
    if sge.length == 0 {
        return Ok(None);
    }
    let length = length.unwrap_or(sge.length - offset);
    let address = sge.address.checked_add(offset.into()).ok_or(AccessError::Wrap)?;
    let engine: &'static Engine = endpoint.queues.engine;
    engine.keys.open_span(sge.lkey, address, length.into(), rights, domain).map(Some)
}

/// Opens the elements of a request that hold `length` bytes from `offset` on, in order, until `take` says no.
/// Returns its last answer.
pub(crate) fn each_element(
    endpoint: &Endpoint,
    work: &SendWork,
    mut offset: u32,
    mut length: u32,
    mut take: impl FnMut(Span<'static>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    for index in 0..work.sges {
        if length == 0 {
            break;
        }
        let sge = endpoint.queues.send.sge(work, index);
        if offset >= sge.length {
            offset -= sge.length;
            continue;
        }
        let here = (sge.length - offset).min(length);
        if let Some(span) =
            open_element(endpoint, sge, offset, Some(here), Access::empty(), endpoint.queues.domain)
                .map_err(Failure::Key)?
            && !take(span)?
        {
            return Ok(false);
        }
        length -= here;
        offset = 0;
    }
    Ok(true)
}

pub(crate) fn open_source(
    endpoint: &Endpoint,
    request: &ReadRequest,
    offset: u32,
    length: u32,
) -> Result<Span<'static>, Failure> {
    let address = request.source_to.wrapping_add(offset.into());
    endpoint
        .queues
        .open_for_peer(request.source_stag, address, length.into(), Access::REMOTE_READ)
        .map_err(Failure::Key)
}

/// Copies payload of the current message from `offset` on.
pub(crate) fn copy_payload(
    endpoint: &Endpoint,
    kept: &KeptReads,
    payload: &Payload,
    offset: u32,
    target: &mut [u8],
) -> Result<(), Failure> {
    match payload {
        Payload::None => Ok(()),
        Payload::Request(work) => endpoint.queues.gather(work, offset, target).map_err(|error| match error {
            PayloadError::Key(error) => Failure::Key(error),
            PayloadError::Fault | PayloadError::Room | PayloadError::Missing(_) => Failure::Memory,
        }),
        Payload::Read(InboundRequest::Read { msn, .. }, _)
            if let Some(bytes) = kept.find(*msn, offset, target.len()) =>
        {
            target.copy_from_slice(bytes);
            Ok(())
        }
        Payload::Read(_, request) => open_source(endpoint, request, offset, target.len() as u32)?
            .read(0, target)
            .map_err(|_| Failure::Memory),
    }
}

/// The request of a read or atomic, entered among the outstanding ones.
pub(crate) fn read_message(
    endpoint: &Endpoint,
    work: &SendWork,
    reads: &mut OutstandingReads<ReadSink>,
    nonce: u64,
) -> Result<Outbound, Status> {
    let sge = if work.sges == 0 { Sge::default() } else { endpoint.queues.send.sge(work, 0) };
    open_element(endpoint, sge, 0, None, Access::LOCAL_WRITE, endpoint.queues.domain)
        .map_err(|_| Status::LocalProtection)?;
    let sink = ReadSink { sequence: Some(work.sequence), sge };
    // A sink STag for this response alone: unpredictable, and never a key of the table (RFC5041-8.2-2,
    // RFC5040-8.1.1-2).
    if work.opcode == Opcode::Read {
        let request = ReadRequest {
            sink_stag: nonce as u32,
            sink_to: nonce >> 32,
            len: work.length,
            source_stag: work.rkey,
            source_to: work.remote_address,
        };
        reads.push_read(&request, sink).map_err(|_| Status::LocalQpOperation)?;
        endpoint.reading.fetch_add(work.length.into(), Ordering::Relaxed);
        return Ok(Outbound::ReadRequest(request));
    }
    if work.length != 8 {
        return Err(Status::LocalLength);
    }
    let operation = match work.opcode {
        Opcode::FetchAdd => AtomicOperation::FetchAdd { add: work.compare_add, mask: 0 },
        _ => AtomicOperation::CompareSwap {
            compare: work.compare_add,
            compare_mask: u64::MAX,
            swap: work.swap,
            swap_mask: u64::MAX,
        },
    };
    let request = AtomicRequest { id: nonce as u32, stag: work.rkey, to: work.remote_address, operation };
    reads.push_atomic(&request, sink).map_err(|_| Status::LocalQpOperation)?;
    Ok(Outbound::AtomicRequest(request))
}

/// Does an atomic operation of the peer.
// RFC7306-5-1
pub(crate) fn execute(endpoint: &Endpoint, request: &AtomicRequest) -> Result<u64, Fault> {
    let span = endpoint
        .queues
        .open_for_peer(request.stag, request.to, 8, Access::REMOTE_ATOMIC)
        .map_err(fault_of)?;
    // RFC7306-5.1.1-1, RFC7306-5.1.2-2
    if !span.address().is_multiple_of(8) {
        return Err(Fault::CatastrophicStream);
    }
    let memory = |_| Fault::BaseBounds;
    match request.operation {
        AtomicOperation::FetchAdd { add, mask: 0 } => span.fetch_add(add).map_err(memory),
        AtomicOperation::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX } => {
            span.compare_swap(compare, swap).map_err(memory)
        }
        // With masks: a loop of compare-and-swap does it in one atomic step.
        operation => {
            let mut seen = span.fetch_add(0).map_err(memory)?;
            loop {
                let before = span.compare_swap(seen, operation.apply(seen)).map_err(memory)?;
                if before == seen {
                    return Ok(before);
                }
                seen = before;
            }
        }
    }
}
