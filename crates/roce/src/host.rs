//! The host of the protocol, as that calls it: memory, receives and completions of one queue pair.

use crate::local::Near;
use adverb_core::memory::{Access, AccessError, CopyError, Missing, Reader, Source, Span};
use adverb_core::qp::{PayloadError, Queues, ReceiveWork, Service, SharedQueues};
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Opcode, SendFlags, Status};
use adverb_proto::ib::{
    CompletionStatus, Delivery, DeliveryKind, Keep, LocalFault, Operation, ReadSource, ReceiveFault, Refusal,
    Remote, Request, RequesterHost, ResponderHost,
};
use adverb_wire::ib::header::Feth;
use adverb_wire::ib::packet::Payload;
use std::cell::Cell;
use std::collections::VecDeque;

/// The completion status of a request.
pub(crate) fn status(status: CompletionStatus) -> Status {
    match status {
        CompletionStatus::Success => Status::Success,
        CompletionStatus::LocalProtection => Status::LocalProtection,
        CompletionStatus::LocalLength => Status::LocalLength,
        CompletionStatus::LocalOperation => Status::LocalQpOperation,
        CompletionStatus::BadResponse => Status::BadResponse,
        CompletionStatus::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        CompletionStatus::RemoteAccess => Status::RemoteAccess,
        CompletionStatus::RemoteOperation => Status::RemoteOperation,
        CompletionStatus::RetryExceeded => Status::RetryExceeded,
        CompletionStatus::RnrRetryExceeded => Status::RnrRetryExceeded,
    }
}

fn local(error: PayloadError) -> LocalFault {
    match error {
        PayloadError::Room => LocalFault::Length,
        PayloadError::Key(_) | PayloadError::Fault => LocalFault::Protection,
        PayloadError::Missing(Missing::Lost) => LocalFault::Lost,
        PayloadError::Missing(Missing::Gone) => LocalFault::Gone,
    }
}

/// The host of a requester.
pub(crate) struct Requests<'a> {
    pub(crate) queues: &'a Queues,
    /// Where the payload is that does not lie in the packet.
    pub(crate) elsewhere: &'a Source<'a>,
    /// The way within the host, if they go there.
    pub(crate) near: Option<&'a Near>,
}

/// There is no payload but in the packet.
pub(crate) const NOWHERE: Source<'static> = Source::Buffer(&[]);

/// Where a packet's payload is.
#[inline]
pub(crate) fn source<'a>(payload: Payload<'a>, elsewhere: &Source<'a>) -> Source<'a> {
    match payload {
        Payload::Here(bytes) => Source::Buffer(bytes),
        Payload::Elsewhere(_) => *elsewhere,
    }
}

impl RequesterHost for Requests<'_> {
    fn place(&mut self, sequence: u64, offset: u32, payload: Payload<'_>) -> Result<(), LocalFault> {
        self.queues.counters.rx_bytes.add(payload.len() as u64);
        let work = self.queues.send.read(sequence);
        self.queues.scatter_result(&work, offset, &source(payload, self.elsewhere)).map_err(local)
    }

    fn place_atomic(&mut self, sequence: u64, original: u64) -> Result<(), LocalFault> {
        // In the byte order of this host, as adapters with IBV_ATOMIC_HCA do it.
        // IB-RC-REQ-32
        self.place(sequence, 0, Payload::Here(&original.to_ne_bytes()))
    }

    fn complete(&mut self, sequence: u64, end: CompletionStatus) {
        if end != CompletionStatus::Success {
            // The program may use the memory of a failed request for something else: no process reads it any
            // more. Our own use ends first: the memory may be lent to ourselves.
            self.elsewhere.finish();
            if let Some(near) = self.near {
                near.take_back(self.queues);
            }
            // A thread that sees the failure finds the queue pair in error.
            // IB-QP-9
            if self.queues.service != Service::Uc {
                self.queues.enter_error();
            }
        }
        self.queues.complete_send(sequence, status(end));
    }

    #[inline]
    fn complete_run(&mut self, first: u64, count: u32) {
        self.queues.complete_sends(first, count);
    }

    fn recall(&mut self, sequence: u64) -> Request {
        let work = self.queues.send.read(sequence);
        let immediate = (work.opcode == Opcode::SendWithImmediate).then(|| u32::from_be(work.immediate));
        Request {
            sequence,
            operation: Operation::Send { immediate, invalidate: None },
            length: work.length,
            solicited: work.flags.contains(SendFlags::SOLICITED),
            fence: false,
            shared_queue: work.shared_queue,
        }
    }
}

/// Bytes of reads that are taken before their answers are sent, since something behind them is about to
/// change them.
// PRACTICE-ORDER-2
pub(crate) struct KeptReads {
    /// The bytes of each, oldest first, and their place.
    reads: VecDeque<(u32, Box<[u8]>)>,
    /// The sum of the bytes of all kept reads.
    length: usize,
    /// The place of the next.
    next: u32,
    /// A longer read is never kept: the peer knows that it is answered by saying where its bytes are.
    pub(crate) longest: u32,
}

impl KeptReads {
    /// The most bytes that are kept, for one queue pair. As much as another adverb has under way over a
    /// network.
    const MOST: usize = 1 << 20;

    pub(crate) fn new() -> Self {
        Self { reads: VecDeque::new(), length: 0, next: 0, longest: u32::MAX }
    }

    fn has_room(&self, length: usize) -> bool {
        self.length + length <= Self::MOST
    }

    /// Keeps the bytes of a read. Returns their place.
    fn push(&mut self, bytes: Box<[u8]>) -> u32 {
        let place = self.next;
        self.next = place.wrapping_add(bytes.len() as u32);
        self.length += bytes.len();
        self.reads.push_back((place, bytes));
        place
    }

    /// The bytes that are kept at this place, of one read.
    pub(crate) fn at(&self, place: u32, length: u32) -> Option<&[u8]> {
        self.reads.iter().find_map(|(start, bytes)| {
            bytes.get(place.wrapping_sub(*start) as usize..)?.get(..length as usize)
        })
    }

    /// All bytes before this place have been sent, or never will be.
    pub(crate) fn sent(&mut self, place: u32) {
        while let Some((start, bytes)) = self.reads.front()
            && place.wrapping_sub(*start) as i32 >= bytes.len() as i32
        {
            self.length -= bytes.len();
            self.reads.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Forgets all kept reads: nothing of them is sent any more.
    pub(crate) fn clear(&mut self) {
        self.reads = VecDeque::new();
        self.length = 0;
    }
}

/// The host of a responder.
pub(crate) struct Responses<'a> {
    pub(crate) queues: &'a Queues,
    /// Where the payload is that does not lie in the packet.
    elsewhere: &'a Source<'a>,
    /// The receive that the current message has taken.
    pub(crate) taken: &'a mut Option<ReceiveWork>,
    /// The reader that opens the memory of receives.
    reader: &'a mut Reader,
    /// The key of memory that the peer has used without our program's taking part.
    pub(crate) used: Option<u32>,
    /// The protection domain of the peer's keys.
    domain: u32,
    /// Of a target queue pair, the shared receive queues that messages may name.
    shared: Option<SharedQueues<'a>>,
    /// No other thread counts packets that come in ([`adverb_core::counters::Counter::count`]).
    pub(crate) counts_alone: bool,
    /// The bytes that are kept of reads.
    kept: &'a mut KeptReads,
    /// A receive has completed.
    pub(crate) has_completed: bool,
    /// The log has been told of a refusal.
    pub(crate) is_told: Cell<bool>,
}

fn refusal(error: AccessError) -> Refusal {
    match error {
        AccessError::Key
        | AccessError::ProtectionDomain
        | AccessError::Bounds
        | AccessError::Wrap
        | AccessError::Rights => Refusal::Access,
    }
}

impl<'a> Responses<'a> {
    pub(crate) fn new(
        queues: &'a Queues,
        elsewhere: &'a Source<'a>,
        taken: &'a mut Option<ReceiveWork>,
        reader: &'a mut Reader,
        kept: &'a mut KeptReads,
    ) -> Self {
        Self {
            queues,
            elsewhere,
            taken,
            reader,
            used: None,
            domain: queues.domain,
            shared: queues.shared_queues(),
            counts_alone: false,
            kept,
            has_completed: false,
            is_told: Cell::new(false),
        }
    }
}

impl Responses<'_> {
    fn open(&self, key: u32, address: u64, length: usize, rights: Access) -> Result<Span<'_>, Refusal> {
        let (queues, length, domain) = (self.queues, length as u64, self.domain);
        queues.engine.keys.open_for_peer(key, address, length, rights, domain, queues.number).map_err(
            |error| {
                queues.counters.refused.add(1);
                self.is_told.set(true);
                queues.refuse_memory(key, address, length, rights, domain, error);
                refusal(error)
            },
        )
    }

    fn complete(&mut self, status: Status, delivered: Delivery) {
        let Some(work) = self.taken.take() else { return };
        self.has_completed = true;
        let (flags, immediate) = match (delivered.immediate, delivered.invalidated) {
            (Some(immediate), _) => (CompletionFlags::WITH_IMMEDIATE, immediate.to_be()),
            (None, Some(key)) => (CompletionFlags::WITH_INVALIDATE, key),
            (None, None) => (CompletionFlags::empty(), 0),
        };
        let completion = Completion {
            wr_id: work.wr_id,
            status,
            opcode: match delivered.kind {
                DeliveryKind::Send => CompletionOpcode::Receive,
                DeliveryKind::WriteWithImmediate => CompletionOpcode::ReceiveWriteWithImmediate,
            },
            flags,
            byte_length: delivered.length,
            immediate,
            queue_pair: self.queues.number,
            source_queue_pair: 0,
            vendor_error: 0,
            service_level: 0,
            path_bits: 0,
            timestamp: 0,
        };
        self.queues.complete_receive(&work, completion, delivered.solicited);
    }

    /// Ends the receive that a message has taken, if one has.
    pub(crate) fn give_up(&mut self, status: Status) {
        let nothing = Delivery {
            length: 0,
            immediate: None,
            invalidated: None,
            kind: DeliveryKind::Send,
            solicited: false,
        };
        self.complete(status, nothing);
    }
}

/// The right that a peer needs.
fn right(access: Remote) -> Access {
    match access {
        Remote::Write => Access::REMOTE_WRITE,
        Remote::Read => Access::REMOTE_READ,
        Remote::Atomic => Access::REMOTE_ATOMIC,
        // IB-RC-RSP-46
        Remote::Flush { placement, .. } => {
            let right = |asked: u8, right| if placement & asked != 0 { right } else { Access::empty() };
            right(Feth::GLOBAL_VISIBILITY, Access::FLUSH_GLOBAL)
                | right(Feth::PERSISTENCE, Access::FLUSH_PERSISTENT)
        }
    }
}

/// The address of eight bytes for an atomic operation, or why not.
fn aligned<'a>(span: Span<'a>) -> Result<Span<'a>, Refusal> {
    // IB-RC-RSP-24
    if span.address().is_multiple_of(8) { Ok(span) } else { Err(Refusal::Invalid) }
}

impl ResponderHost for Responses<'_> {
    fn choose_queue(&mut self, number: u32) -> Result<(), Refusal> {
        let shared = self.shared.as_ref();
        let domain = shared.and_then(|held| self.queues.choose_shared_queue(held, number));
        self.domain = domain.ok_or(Refusal::Invalid)?;
        Ok(())
    }

    #[cold]
    fn keep(&mut self, source: &ReadSource) -> Keep {
        let length = source.length as usize;
        if source.length > self.kept.longest {
            return Keep::Needless;
        }
        if !self.kept.has_room(length) {
            return Keep::Later;
        }
        // IB-XRC-6
        let domain = match &self.shared {
            None => Some(self.queues.domain),
            Some(held) => Queues::shared_queue_domain(held, source.shared_queue),
        };
        let Queues { engine, number, .. } = self.queues;
        let rights = Access::REMOTE_READ;
        let span = domain.and_then(|domain| {
            let length = u64::from(source.length);
            engine.keys.open_for_peer(source.key, source.address, length, rights, domain, *number).ok()
        });
        let mut bytes = vec![0; length].into_boxed_slice();
        match span.map(|span| span.read(0, &mut bytes)) {
            Some(Ok(())) => Keep::At(self.kept.push(bytes)),
            // The thread that answers the read finds the same, and refuses it.
            _ => Keep::Later,
        }
    }

    #[inline]
    fn take_receive(&mut self) -> Option<u64> {
        let work = self.queues.take_receive()?;
        *self.taken = Some(work);
        Some(work.room)
    }

    #[inline]
    fn place_receive(&mut self, offset: u32, payload: Payload<'_>) -> Result<(), Refusal> {
        let work = self.taken.as_ref().ok_or(Refusal::Operational)?;
        self.queues.counters.rx_bytes.count(payload.len() as u64, self.counts_alone);
        let source = source(payload, self.elsewhere);
        self.queues.scatter_receive(self.reader, work, offset.into(), &source).map_err(|error| match error {
            PayloadError::Missing(_) => Refusal::Missing,
            _ => Refusal::Operational,
        })
    }

    #[inline]
    fn complete_receive(&mut self, delivered: Delivery) {
        let (counters, sends) = (self.queues.counters, delivered.kind == DeliveryKind::Send);
        counters.rx_messages.count(1, self.counts_alone);
        counters.rx_sends.count(sends.into(), self.counts_alone);
        self.complete(Status::Success, delivered);
    }

    fn forbidden(&mut self, access: Remote) {
        self.is_told.set(true);
        self.queues.refuse_right(right(access));
    }

    fn too_long(&mut self, message: u32, is_whole: bool) {
        self.is_told.set(true);
        let room = self.taken.as_ref().map_or(0, |work| work.room);
        self.queues.refuse_length(message.into(), is_whole, room);
    }

    fn fail_receive(&mut self, fault: ReceiveFault) {
        self.give_up(match fault {
            ReceiveFault::Length => Status::LocalLength,
            ReceiveFault::Protection => Status::LocalProtection,
            ReceiveFault::InvalidRequest => Status::RemoteInvalidRequest,
        });
    }

    fn check_remote(&mut self, key: u32, address: u64, length: u32, access: Remote) -> Result<(), Refusal> {
        let counters = self.queues.counters;
        let rights = right(access);
        let length = match access {
            // Of a whole region the packet's address and length mean nothing.
            Remote::Flush { selectivity: Feth::REGION, .. } => 0,
            _ => length,
        };
        self.used = Some(key);
        // IB-RC-RSP-21
        let span = self.open(key, address, length as usize, rights)?;
        match access {
            Remote::Write => counters.rx_writes.add(1),
            Remote::Atomic => {
                aligned(span)?;
                counters.rx_atomics.add(1);
            }
            Remote::Read | Remote::Flush { .. } => {}
        }
        Ok(())
    }

    fn accept_read(&mut self, length: u32) {
        self.queues.counters.rx_reads.add(1);
        self.queues.counters.tx_bytes.add(length.into());
    }

    #[inline]
    fn write(&mut self, key: u32, address: u64, payload: Payload<'_>) -> Result<(), Refusal> {
        self.used = Some(key);
        self.queues.counters.rx_bytes.add(payload.len() as u64);
        let span = self.open(key, address, payload.len(), Access::REMOTE_WRITE)?;
        if payload.is_empty() {
            return Ok(());
        }
        span.place(&source(payload, self.elsewhere), 0).map_err(|error| match error {
            CopyError::Fault => Refusal::Access,
            CopyError::Missing(_) => Refusal::Missing,
        })
    }

    fn fetch_add(&mut self, key: u32, address: u64, add: u64) -> Result<u64, Refusal> {
        let span = aligned(self.open(key, address, 8, Access::REMOTE_ATOMIC)?)?;
        span.fetch_add(add).map_err(|_| Refusal::Access)
    }

    fn compare_swap(&mut self, key: u32, address: u64, compare: u64, swap: u64) -> Result<u64, Refusal> {
        let span = aligned(self.open(key, address, 8, Access::REMOTE_ATOMIC)?)?;
        span.compare_swap(compare, swap).map_err(|_| Refusal::Access)
    }

    fn atomic_write(&mut self, key: u32, address: u64, value: [u8; 8]) -> Result<(), Refusal> {
        let span = aligned(self.open(key, address, 8, Access::REMOTE_WRITE)?)?;
        // A copy of eight aligned bytes is one store.
        span.write(0, &value).map_err(|_| Refusal::Access)
    }

    fn flush(&mut self, _: u32, _: u64, _: u32, _: u8, _: u8) -> Result<(), Refusal> {
        // Every write is visible to all as soon as it is done; ordinary memory has no persistence to wait
        // for.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        self.queues.invalidate_for_peer(key, self.domain).map_err(|error| {
            self.queues.counters.refused.add(1);
            match error {
                AccessError::Rights => Refusal::Invalid,
                error => refusal(error),
            }
        })
    }
}
