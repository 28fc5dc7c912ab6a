//! Executes one send request: both the requester's and the responder's part.

use super::{Execution, NullEndpoint, lock};
use crate::event::AsyncEventKind;
use crate::memory::{Access, AccessError, Fault};
use crate::qp::{LocalOutcome, ReceiveWork, SendWork, State};
use crate::reactor::Source;
use crate::request::{Completion, CompletionFlags, CompletionOpcode, Opcode, SendFlags, Sge, Status};
use std::sync::Arc;

/// Copies go in slices of this many bytes, so that taking a key back never waits for long.
const SLICE: usize = 64 << 10;

/// Room that every receive of datagrams begins with.
pub(super) const GRH: usize = 40;

/// Why a request failed: its own status, and that of the receive that it had taken.
pub(super) struct Failure {
    pub(super) sender: Status,
    receiver: Option<(ReceiveWork, Status)>,
    /// The peer refused access to its memory: it counts the refusal, and its program gets an event.
    refused: bool,
}

impl Failure {
    fn local(sender: Status) -> Self {
        Self { sender, receiver: None, refused: false }
    }

    fn remote(sender: Status) -> Self {
        Self { sender, receiver: None, refused: true }
    }
}

pub(super) type Outcome<T> = Result<T, Failure>;

/// Executes `work` of `own`, which is reliable, against `peer`.
pub(super) fn execute(own: &NullEndpoint, peer: Option<Arc<NullEndpoint>>, work: &SendWork) -> Execution {
    let Some(peer) = peer else {
        own.queues.complete_send(work.sequence, Status::RetryExceeded);
        return Execution::Broken(None);
    };
    // One request at a time is executed at a responder. So the thread with this lock knows that no other
    // thread uses the responder's memory and completion queue.
    let turn = lock(&peer.receive);
    let failure = match run(own, &peer, work) {
        Ok(receive) => {
            // Before the peer's program can answer it.
            // PRACTICE-ORDER-1
            own.queues.complete_send(work.sequence, Status::Success);
            if let Some(receive) = receive {
                report(&peer, &receive, work);
            }
            return Execution::Well;
        }
        Err(failure) => failure,
    };
    // A connection ends on both sides; queue pairs that attributes connect stop where a mistake was made.
    let stops_peer = own.fabric.is_none() || failure.refused || failure.receiver.is_some();
    if let Some((receive, status)) = failure.receiver {
        peer.queues.complete_receive(&receive, completion(&peer, &receive, work, 0, status), false);
    }
    drop(turn);
    own.queues.enter_error();
    if stops_peer && peer.queues.enter_error() && failure.refused {
        peer.queues.counters.refused.add(1);
        peer.queues.raise(AsyncEventKind::QpAccessError);
    }
    own.queues.complete_send(work.sequence, failure.sender);
    Execution::Broken(stops_peer.then_some(peer))
}

/// Executes `work` of `own`, which concerns keys alone.
pub(super) fn execute_locally(own: &NullEndpoint, work: &SendWork) -> Execution {
    let again = || -> Arc<dyn Source> { own.this.upgrade().expect("somebody calls it") };
    let LocalOutcome::Done(status) = own.queues.execute_locally(work, again) else { return Execution::Later };
    own.queues.complete_send(work.sequence, status);
    if status == Status::Success { Execution::Well } else { Execution::Broken(None) }
}

/// Executes `work` of `own`, which is unreliable.
pub(super) fn deliver(own: &NullEndpoint, peer: Arc<NullEndpoint>, work: &SendWork) -> Execution {
    let turn = lock(&peer.receive);
    let (receive, status) = match run(own, &peer, work) {
        Err(Failure { receiver: Some(failed), .. }) => failed,
        Ok(Some(receive)) => {
            report(&peer, &receive, work);
            return Execution::Well;
        }
        _ => return Execution::Well,
    };
    peer.queues.complete_receive(&receive, completion(&peer, &receive, work, 0, status), false);
    drop(turn);
    if status != Status::LocalProtection {
        return Execution::Well;
    }
    peer.queues.enter_error();
    Execution::Delivered(peer)
}

/// Whether messages come to it.
pub(super) fn receives(peer: &NullEndpoint) -> bool {
    matches!(peer.queues.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe)
}

/// Returns the receive that it has filled, which is to be [reported](report) before the caller lets go of the
/// peer's receive lock.
fn run(own: &NullEndpoint, peer: &NullEndpoint, work: &SendWork) -> Outcome<Option<ReceiveWork>> {
    if !receives(peer) {
        let status = if own.fabric.is_some() { Status::RetryExceeded } else { Status::Flushed };
        return Err(Failure::local(status));
    }
    match work.opcode {
        Opcode::Write => write(own, peer, work).map(|()| None),
        Opcode::WriteWithImmediate => {
            write(own, peer, work)?;
            take(peer).map(Some)
        }
        Opcode::Send | Opcode::SendWithImmediate | Opcode::SendWithInvalidate => {
            send(own, peer, work).map(Some)
        }
        Opcode::Read => read(own, peer, work).map(|()| None),
        Opcode::CompareSwap | Opcode::FetchAdd => atomic(own, peer, work).map(|()| None),
        Opcode::LocalInvalidate | Opcode::BindWindow | Opcode::Flush | Opcode::AtomicWrite => {
            Err(Failure::local(Status::LocalQpOperation))
        }
    }
}

fn take(peer: &NullEndpoint) -> Outcome<ReceiveWork> {
    peer.queues.take_receive().ok_or_else(|| Failure::local(Status::RnrRetryExceeded))
}

fn report(peer: &NullEndpoint, receive: &ReceiveWork, work: &SendWork) {
    let completion = completion(peer, receive, work, work.length, Status::Success);
    let solicited = work.flags.contains(SendFlags::SOLICITED);
    peer.queues.complete_receive(receive, completion, solicited);
}

pub(super) fn completion(
    peer: &NullEndpoint,
    receive: &ReceiveWork,
    work: &SendWork,
    length: u32,
    status: Status,
) -> Completion {
    let (opcode, flags) = match work.opcode {
        Opcode::WriteWithImmediate => {
            (CompletionOpcode::ReceiveWriteWithImmediate, CompletionFlags::WITH_IMMEDIATE)
        }
        Opcode::SendWithImmediate => (CompletionOpcode::Receive, CompletionFlags::WITH_IMMEDIATE),
        Opcode::SendWithInvalidate => (CompletionOpcode::Receive, CompletionFlags::WITH_INVALIDATE),
        _ => (CompletionOpcode::Receive, CompletionFlags::empty()),
    };
    Completion {
        wr_id: receive.wr_id,
        status,
        opcode,
        flags,
        byte_length: if work.opcode == Opcode::WriteWithImmediate { work.length } else { length },
        immediate: if flags.is_empty() { 0 } else { work.immediate },
        queue_pair: peer.queues.number,
        ..Completion::default()
    }
}

/// Walks over `length` bytes of the elements from `offset` on, in pieces that lie in one element and are at
/// most a slice long.
fn pieces(sges: &[Sge], mut offset: usize, mut length: usize) -> impl Iterator<Item = Sge> {
    let mut found = Vec::new();
    for sge in sges {
        let size = sge.length as usize;
        if offset >= size {
            offset -= size;
            continue;
        }
        while offset < size && length > 0 {
            let part = (size - offset).min(length).min(SLICE);
            found.push(Sge { address: sge.address + offset as u64, length: part as u32, lkey: sge.lkey });
            offset += part;
            length -= part;
        }
        offset = 0;
    }
    found.into_iter()
}

/// Reads bytes of the request's own data.
pub(super) fn gather(own: &NullEndpoint, work: &SendWork, offset: usize, target: &mut [u8]) -> Outcome<()> {
    if work.flags.contains(SendFlags::INLINE) {
        own.queues.send.copy_inline(work, offset, target);
        return Ok(());
    }
    let mut done = 0;
    for piece in pieces(&own_sges(own, work), offset, target.len()) {
        let length = piece.length as usize;
        let keys = &own.queues.engine.keys;
        keys.open_span(
            piece.lkey,
            piece.address,
            u64::from(piece.length),
            Access::empty(),
            own.queues.domain,
        )
        .map_err(|_| Failure::local(Status::LocalProtection))?
        .read(0, &mut target[done..done + length])
        .map_err(|Fault| Failure::local(Status::LocalProtection))?;
        done += length;
    }
    Ok(())
}

/// Writes bytes into registered elements.
fn scatter(
    endpoint: &NullEndpoint,
    sges: &[Sge],
    domain: u32,
    offset: usize,
    source: &[u8],
) -> Result<(), Option<AccessError>> {
    let mut done = 0;
    for piece in pieces(sges, offset, source.len()) {
        let length = piece.length as usize;
        let keys = &endpoint.queues.engine.keys;
        let rights = Access::LOCAL_WRITE;
        keys.open_span(piece.lkey, piece.address, u64::from(piece.length), rights, domain)
            .map_err(Some)?
            .write(0, &source[done..done + length])
            .map_err(|Fault| None)?;
        done += length;
    }
    Ok(())
}

/// Writes into the elements of a receive.
pub(super) fn scatter_receive(
    peer: &NullEndpoint,
    receive: &ReceiveWork,
    offset: usize,
    source: &[u8],
) -> Result<(), Option<AccessError>> {
    let sges: Vec<Sge> = (0..receive.sges).map(|index| peer.queues.receive_sge(receive, index)).collect();
    scatter(peer, &sges, receive.domain, offset, source)
}

fn own_sges(own: &NullEndpoint, work: &SendWork) -> Vec<Sge> {
    (0..work.sges).map(|index| own.queues.send.sge(work, index)).collect()
}

pub(super) fn slices(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(SLICE).map(move |offset| (offset, SLICE.min(length - offset)))
}

fn send(own: &NullEndpoint, peer: &NullEndpoint, work: &SendWork) -> Outcome<ReceiveWork> {
    let receive = take(peer)?;
    let failed = |status, receiver_status| Failure {
        sender: status,
        receiver: Some((receive, receiver_status)),
        refused: false,
    };
    if u64::from(work.length) > receive.room {
        return Err(failed(Status::RemoteInvalidRequest, Status::LocalLength));
    }
    let mut bytes = vec![0; SLICE.min(work.length as usize)];
    for (offset, length) in slices(work.length as usize) {
        gather(own, work, offset, &mut bytes[..length])
            .map_err(|failure| failed(failure.sender, Status::Flushed))?;
        scatter_receive(peer, &receive, offset, &bytes[..length])
            .map_err(|_| failed(Status::RemoteOperation, Status::LocalProtection))?;
    }
    if work.opcode == Opcode::SendWithInvalidate {
        peer.queues
            .invalidate_for_peer(work.immediate, peer.queues.domain)
            .map_err(|_| failed(Status::RemoteOperation, Status::LocalAccess))?;
    }
    Ok(receive)
}

/// Checks that the peer's memory is open for the whole operation, before a byte of it is touched.
fn check_remote(peer: &NullEndpoint, work: &SendWork, length: u64, rights: Access) -> Outcome<()> {
    if length == 0 {
        return Ok(());
    }
    if peer.queues.access() & rights.bits() != rights.bits() {
        return Err(Failure::remote(Status::RemoteAccess));
    }
    peer.queues
        .open_for_peer(work.rkey, work.remote_address, length, rights)
        .map(drop)
        .map_err(|_| Failure::remote(Status::RemoteAccess))
}

fn write(own: &NullEndpoint, peer: &NullEndpoint, work: &SendWork) -> Outcome<()> {
    let rights = Access::REMOTE_WRITE;
    check_remote(peer, work, work.length.into(), rights)?;
    let mut bytes = vec![0; SLICE.min(work.length as usize)];
    for (offset, length) in slices(work.length as usize) {
        gather(own, work, offset, &mut bytes[..length])?;
        let (address, size) = (work.remote_address + offset as u64, length as u64);
        peer.queues
            .open_for_peer(work.rkey, address, size, rights)
            .map_err(|_| Failure::remote(Status::RemoteAccess))?
            .write(0, &bytes[..length])
            .map_err(|Fault| Failure::remote(Status::RemoteAccess))?;
    }
    Ok(())
}

fn read(own: &NullEndpoint, peer: &NullEndpoint, work: &SendWork) -> Outcome<()> {
    let rights = Access::REMOTE_READ;
    check_remote(peer, work, work.length.into(), rights)?;
    let sges = own_sges(own, work);
    let mut bytes = vec![0; SLICE.min(work.length as usize)];
    for (offset, length) in slices(work.length as usize) {
        let (address, size) = (work.remote_address + offset as u64, length as u64);
        peer.queues
            .open_for_peer(work.rkey, address, size, rights)
            .map_err(|_| Failure::remote(Status::RemoteAccess))?
            .read(0, &mut bytes[..length])
            .map_err(|Fault| Failure::remote(Status::RemoteAccess))?;
        scatter(own, &sges, own.queues.domain, offset, &bytes[..length])
            .map_err(|_| Failure::local(Status::LocalProtection))?;
    }
    Ok(())
}

fn atomic(own: &NullEndpoint, peer: &NullEndpoint, work: &SendWork) -> Outcome<()> {
    if !work.remote_address.is_multiple_of(8) || work.length != 8 {
        return Err(Failure::remote(Status::RemoteInvalidRequest));
    }
    let rights = Access::REMOTE_ATOMIC;
    check_remote(peer, work, 8, rights)?;
    let span = peer
        .queues
        .open_for_peer(work.rkey, work.remote_address, 8, rights)
        .map_err(|_| Failure::remote(Status::RemoteAccess))?;
    let before = match work.opcode {
        Opcode::FetchAdd => span.fetch_add(work.compare_add),
        _ => span.compare_swap(work.compare_add, work.swap),
    };
    let before = before.map_err(|Fault| Failure::remote(Status::RemoteAccess))?;
    drop(span);
    scatter(own, &own_sges(own, work), own.queues.domain, 0, &before.to_ne_bytes())
        .map_err(|_| Failure::local(Status::LocalProtection))
}
