//! The part of a queue pair that its transport shares.

use super::describe::LastFailure;
use super::extended::ExtendedTarget;
use super::key_work::KeyWork;
use super::{
    Capabilities, QueuePairOptions, ReceiveQueue, ReceiveWork, SendCursor, SendQueue, SendWork, Service,
    State,
};
use crate::counters::{Alone, Counters};
use crate::cq::CompletionQueue;
use crate::device::Context;
use crate::engine::Engine;
use crate::error::Result;
use crate::event::AsyncEventKind;
use crate::fork::ForkGeneration;
use crate::memory::{Access, AccessError, RingAllocator, RingRelease, Span};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::{Completion, SendFlags, SendRequest, Sge, Status};
use crate::srq::SharedReceiveQueue;
use crate::users::DependentCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The part of a queue pair that its transport shares: queues, state, and where completions go.
pub struct Queues {
    /// The queue pair's number.
    pub number: u32,
    /// The queue pair's service.
    pub service: Service,
    /// Sends.
    pub send: SendQueue,
    pub(super) receives: Receives,
    /// Where sends complete.
    pub send_cq: Arc<CompletionQueue>,
    /// Where receives complete.
    pub receive_cq: Arc<CompletionQueue>,
    /// Number of the protection domain, for key checks.
    pub domain: u32,
    /// Connected queue pairs of that domain, which all reach the same keys.
    streams: Arc<DependentCount>,
    /// Whether this queue pair counts among the connected ones of the domain.
    is_stream: AtomicBool,
    /// The engine: keys and background thread.
    pub engine: &'static Engine,
    /// The device's counters.
    pub counters: &'static Counters,
    /// When this process made it.
    pub born: ForkGeneration,
    pub(super) signal_all: bool,
    context: Arc<Context>,
    pub(super) state: AtomicU8,
    /// Set once everything was flushed: from then on each posting thread flushes its own requests.
    flushed: AtomicBool,
    /// The queue pair is being destroyed or reset: requests that are flushed from then on are not reported,
    /// and cannot fill up the completion queue.
    pub(super) silent: AtomicBool,
    /// Bit n: opcode n may be posted. The transport narrows it once it knows its peer.
    pub(super) allowed: AtomicU32,
    /// Whether the program was told that the first packet has come.
    established: AtomicBool,
    /// In SQD: nothing that was begun is left, and the program was told if it wanted.
    pub(super) drained: AtomicBool,
    /// In SQD: whether the program wants to be told when nothing is left.
    pub(super) drained_notify: AtomicBool,
    pub(super) access: AtomicU32,
    pub(super) cookie: AtomicU64,
    /// Whether no other queue pair counts posts in the cheap way.
    pub(super) counts_alone: Alone,
    pub(super) failed: LastFailure,
    /// Where the request stands that concerns keys alone.
    pub(super) key_work: KeyWork,
}

/// Receives of a shared queue that messages of one queue pair have taken: how many of them are not complete,
/// and how many there were in all, modulo 2^32.
#[derive(Default)]
pub(super) struct ReceiveCounts(AtomicU64);

impl ReceiveCounts {
    /// Both numbers are in one word: the second one costs nothing.
    const IN_ALL: u64 = 1 << 32;

    fn take(&self) {
        self.0.fetch_add(Self::IN_ALL + 1, Ordering::SeqCst);
    }

    /// A receive that was taken is complete.
    fn complete(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether all are complete.
    fn is_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) as u32 == 0
    }

    /// How many there were.
    pub(super) fn in_all(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / Self::IN_ALL
    }
}

/// Where messages find their receives.
#[expect(
    clippy::large_enum_variant,
    reason = "most queue pairs have a queue of their own, and each is on the heap"
)]
pub(super) enum Receives {
    /// In a queue of the queue pair.
    Own(ReceiveQueue),
    /// In one that it shares.
    Shared {
        queue: Arc<SharedReceiveQueue>,
        /// The receives that messages of this queue pair have taken.
        held: ReceiveCounts,
        /// Whether the program was told that no more will complete.
        last_reported: AtomicBool,
    },
    /// In a queue that each message chooses: it names a shared queue of the XRC domain, or its hash chooses a
    /// work queue (RSS).
    Extended(Box<ExtendedTarget>),
    /// Nowhere: the queue pair only sends.
    Nowhere,
}

impl Queues {
    /// The queues of a new queue pair. The caller has checked everything. `allocator` gives the memory of the
    /// rings.
    ///
    /// # Errors
    /// ENOMEM where there is none.
    pub(super) fn new(
        domain: &ProtectionDomain,
        number: u32,
        capabilities: Capabilities,
        operations: u32,
        options: QueuePairOptions,
        extended: Option<ExtendedTarget>,
        allocator: &RingAllocator,
    ) -> Result<Self> {
        let context = domain.context();
        Ok(Self {
            number,
            service: options.service,
            send: SendQueue::new(
                capabilities.max_send_wr,
                capabilities.max_send_sge,
                capabilities.max_inline_data,
                options.service,
                allocator,
            )?,
            receives: match options.srq {
                _ if options.service == Service::XrcSend => Receives::Nowhere,
                _ if let Some(extended) = extended => Receives::Extended(Box::new(extended)),
                None => {
                    let (requests, sges) = (capabilities.max_recv_wr, capabilities.max_recv_sge);
                    Receives::Own(ReceiveQueue::new(requests, sges, allocator)?)
                }
                Some(queue) => Receives::Shared {
                    queue,
                    held: ReceiveCounts::default(),
                    last_reported: AtomicBool::new(false),
                },
            },
            send_cq: options.send_cq,
            receive_cq: options.receive_cq,
            domain: domain.number(),
            streams: domain.streams().clone(),
            is_stream: AtomicBool::new(false),
            engine: context.engine(),
            counters: context.device().counters(),
            born: ForkGeneration::now(),
            signal_all: options.signal_all,
            context: context.clone(),
            // IB-QP-1
            state: AtomicU8::new(State::Reset as u8),
            flushed: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            allowed: AtomicU32::new(operations),
            established: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            drained_notify: AtomicBool::new(false),
            access: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
            counts_alone: Alone::claim(&context.device().counting),
            failed: LastFailure::default(),
            key_work: KeyWork::default(),
        })
    }

    /// Gives the program's memory for the rings back, when the result is dropped.
    ///
    /// # Safety
    /// The transport has closed the queue pair: it uses the queues no more. Or this is a child of fork, where
    /// there is no transport, and all calls but this look for that first.
    pub(super) unsafe fn give_back(&self) -> ([RingRelease; 2], Option<[RingRelease; 2]>) {
        let own = match &self.receives {
            Receives::Own(queue) => Some(queue),
            _ => None,
        };
        let is_here = self.born.is_here();
        // SAFETY: the caller's promise.
        unsafe { (self.send.give_back(is_here), own.map(|queue| queue.give_back(is_here))) }
    }

    /// The state now.
    #[inline]
    pub fn state(&self) -> State {
        State::from_number(self.state.load(Ordering::SeqCst).into()).unwrap_or(State::Error)
    }

    /// The status of the last request that failed and was not only flushed.
    pub fn last_failure(&self) -> Option<Status> {
        self.failed.get()
    }

    /// The peers' rights on this queue pair, as the program set them: bits of [`crate::memory::Access`].
    pub fn access(&self) -> u32 {
        self.access.load(Ordering::Relaxed)
    }

    /// Says which operations the connected peer takes; others are refused when posted.
    pub fn allow(&self, operations: &[crate::request::Opcode]) {
        self.allowed.store(
            operations.iter().fold(0, |bits, operation| bits | 1 << *operation as u32),
            Ordering::Relaxed,
        );
    }

    /// Moves from INIT to RTS: the connection stands. False if the program took the queue pair out of INIT
    /// meanwhile: then there must be no connection.
    pub fn connected(&self) -> bool {
        let moved = self.exchange_state(State::Init, State::Rts);
        if moved && !self.is_stream.swap(true, Ordering::SeqCst) {
            self.streams.enter();
        }
        moved
    }

    /// Invalidates `key` because the connected peer says so. `domain`: number of the protection domain whose
    /// memory the peer may use.
    ///
    /// # Errors
    /// As [`crate::memory::Keys::invalidate_for_peer`]; [`AccessError::Rights`] also while the domain has
    /// other connections, which the peer would take the key away from.
    pub fn invalidate_for_peer(&self, key: u32, domain: u32) -> std::result::Result<(), AccessError> {
        // RFC5040-8.1.1-1
        let alone = self.streams.count() <= 1;
        self.engine.keys.invalidate_for_peer(key, domain, self.number, alone)
    }

    /// Opens memory of this process for the connected peer. The log is told why it is refused.
    ///
    /// # Errors
    /// As [`crate::memory::Keys::open_for_peer`].
    #[inline]
    pub fn open_for_peer(
        &self,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
    ) -> std::result::Result<Span<'static>, AccessError> {
        let opened = self.engine.keys.open_for_peer(key, address, length, rights, self.domain, self.number);
        opened.inspect_err(|error| self.refuse_memory(key, address, length, rights, self.domain, *error))
    }

    /// The region of its protection domain with this key, if there is one.
    pub fn region(&self, key: u32) -> Option<Arc<MemoryRegion>> {
        self.context.protection_domain(self.domain)?.region(key)
    }

    /// The regions of its protection domain, if there are no more than `most`.
    pub fn regions_if_few(&self, most: usize) -> Option<Vec<Arc<MemoryRegion>>> {
        self.context.protection_domain(self.domain)?.regions_if_few(most)
    }

    /// Moves to the error state. Returns whether it was not there already. The transport then makes sure that
    /// no thread touches the program's memory any more, and calls [`Queues::flush`].
    pub fn enter_error(&self) -> bool {
        if self.is_stream.swap(false, Ordering::SeqCst) {
            self.streams.leave();
        }
        self.state.swap(State::Error as u8, Ordering::SeqCst) != State::Error as u8
    }

    /// A transport says that in SQD nothing is under way any more that it had begun to send. Again: no
    /// effect.
    pub fn send_queue_drained(&self) {
        if self.state() == State::Sqd
            // IB-QP-7
            && !self.drained.swap(true, Ordering::SeqCst)
            && self.drained_notify.load(Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::SendQueueDrained);
        }
    }

    /// A send of an unreliable queue pair failed. Its send queue goes to SQE, the request ends with `status`,
    /// and those behind it are flushed. The transmitter stops where it is until the program brings the queue
    /// pair back to RTS. Earlier requests must be complete. For the thread with the transmit lock.
    pub fn fail_send(&self, cursor: &mut SendCursor, sequence: u64, status: Status) {
        cursor.halt();
        // IB-QP-8
        for from in [State::Rts, State::Sqd] {
            let _ = self.exchange_state(from, State::Sqe);
        }
        self.complete_send(sequence, status);
        self.flush_late_posts();
    }

    /// The first packet of the peer has come. If the program does not know yet that the connection stands, it
    /// is told, once.
    // IB-QP-38
    pub fn communication_established(&self) {
        if self.state() == State::Rtr && !self.established.swap(true, Ordering::SeqCst) {
            self.raise(AsyncEventKind::CommunicationEstablished);
        }
    }

    /// Moves from one state to another, unless the state is a third one.
    pub(super) fn exchange_state(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Raises an asynchronous event about the queue pair.
    pub fn raise(&self, kind: AsyncEventKind) {
        match &self.receives {
            // IB-XRC-13
            Receives::Extended(extended) if extended.domain().is_some() => extended.raise(kind),
            _ => self.context.raise(kind, self.cookie.load(Ordering::Acquire)),
        }
    }

    /// Whether the success of a request is reported.
    #[inline]
    pub fn is_reported(&self, work: &SendWork) -> bool {
        self.reports(work.flags)
    }

    /// Whether the success of a request with these flags is reported.
    #[inline]
    pub fn reports(&self, flags: SendFlags) -> bool {
        self.signal_all || flags.contains(SendFlags::SIGNALED)
    }

    /// Completes a send request; earlier requests that are not complete hold the report back.
    #[inline]
    pub fn complete_send(&self, sequence: u64, status: Status) {
        self.send.complete(self, sequence, status);
    }

    /// Completes `count` send requests from `first` on, which have succeeded, as [`Queues::complete_send`]
    /// does for each.
    #[inline]
    pub fn complete_sends(&self, first: u64, count: u32) {
        self.send.complete_run(self, first, count);
    }

    /// Completes the oldest send request, which has succeeded. The caller holds a lock, which a thread that
    /// flushes requests takes before, and the queue pair is not in error.
    #[inline]
    pub fn complete_oldest_send(&self, work: &SendWork) {
        self.send.complete_oldest(self, work);
    }

    /// Completes a request with so many bytes, which has been carried out as it was posted. The caller has
    /// the transmit lock, and posts; the queue [is drained](super::SendQueue::is_drained).
    #[inline]
    pub fn pass_send(&self, cursor: &mut SendCursor, request: &SendRequest<'_>, length: u32) {
        let sequence = self.send.posted();
        cursor.pass(sequence);
        self.send.pass(self, sequence, self.reports(request.flags).then_some((request, length)));
    }

    /// Takes the oldest receive for a message. Only one message at a time is received on a queue pair, by the
    /// thread with the transport's receive lock. The receive must be completed, before [`Queues::flush`] at
    /// the latest.
    #[inline(always)]
    pub fn take_receive(&self) -> Option<ReceiveWork> {
        // By its fields: so it is in no memory.
        let ReceiveWork { sequence, wr_id, sges, room, domain } = match &self.receives {
            Receives::Own(queue) => queue.take(self.domain)?,
            _ => self.take_receive_elsewhere()?,
        };
        Some(ReceiveWork { sequence, wr_id, sges, room, domain })
    }

    #[inline(never)]
    fn take_receive_elsewhere(&self) -> Option<ReceiveWork> {
        match &self.receives {
            Receives::Shared { queue, held, .. } => {
                // IB-SRQ-8
                let work = queue.take()?;
                held.take();
                Some(work)
            }
            Receives::Extended(extended) => extended.take_receive(),
            Receives::Own(_) | Receives::Nowhere => None,
        }
    }

    /// Receives that messages can still take.
    pub fn receives_left(&self) -> usize {
        match &self.receives {
            Receives::Own(queue) => queue.left(),
            Receives::Shared { queue, .. } => queue.left(),
            Receives::Extended(_) | Receives::Nowhere => 0,
        }
    }

    /// An element of a receive that is taken and not complete. Its key belongs to the domain that
    /// [`ReceiveWork::domain`] says.
    #[inline(always)]
    pub fn receive_sge(&self, work: &ReceiveWork, index: usize) -> Sge {
        match &self.receives {
            Receives::Own(queue) => queue.sge(work, index),
            _ => self.receive_sge_elsewhere(work, index),
        }
    }

    #[inline(never)]
    fn receive_sge_elsewhere(&self, work: &ReceiveWork, index: usize) -> Sge {
        match &self.receives {
            Receives::Shared { queue, .. } => queue.sge(work, index),
            Receives::Extended(extended) => {
                extended.queue_in_progress().as_ref().map_or(Sge::default(), |queue| queue.sge(work, index))
            }
            Receives::Own(_) | Receives::Nowhere => Sge::default(),
        }
    }

    /// Completes the receive that a message took.
    #[inline]
    pub fn complete_receive(&self, work: &ReceiveWork, completion: Completion, solicited: bool) {
        if completion.status == Status::Success {
            self.end_receive(work, completion, solicited);
        } else {
            self.fail_receive(work, completion, solicited);
        }
    }

    #[cold]
    fn fail_receive(&self, work: &ReceiveWork, completion: Completion, solicited: bool) {
        let cause = self.why_receive_failed(work, completion.status);
        self.end_receive(work, Completion { vendor_error: cause as u32, ..completion }, solicited);
    }

    /// Completes the receive that a message took, with success, for a caller that receives much. `report`
    /// makes the completion.
    ///
    /// The completion is made where it is needed, and copied nowhere. A copy would read fields as longer
    /// words. The processor makes such a load wait until the stores before it have left.
    #[inline(always)]
    pub fn succeed_receive(&self, work: &ReceiveWork, report: impl Fn() -> Completion, solicited: bool) {
        match &self.receives {
            Receives::Own(queue) => {
                queue.retire(work);
                self.receive_cq.add(report(), solicited);
            }
            _ => self.end_receive(work, report(), solicited),
        }
    }

    #[inline(never)]
    fn end_receive(&self, work: &ReceiveWork, completion: Completion, solicited: bool) {
        // First the place, then the report: a thread that sees the report may post again.
        match &self.receives {
            Receives::Own(queue) => {
                queue.retire(work);
                self.receive_cq.push(completion, solicited);
            }
            Receives::Shared { queue, held, .. } => {
                queue.give_back(work);
                self.receive_cq.push(completion, solicited);
                // IB-SRQ-3
                held.complete();
                self.report_last_receive();
            }
            Receives::Extended(extended) => {
                if let Some(queue) = extended.queue_in_progress().take() {
                    queue.give_back(work);
                    // IB-XRC-3
                    if let Some(cq) = queue.completion_queue() {
                        cq.push(completion, solicited);
                    }
                }
            }
            Receives::Nowhere => {}
        }
    }

    /// The shared receive queue that it uses.
    pub fn shared_receive_queue(&self) -> Option<&Arc<SharedReceiveQueue>> {
        match &self.receives {
            Receives::Shared { queue, .. } => Some(queue),
            _ => None,
        }
    }

    /// Tells the program, once, that no receive of the shared queue will complete here any more
    /// (ibv_get_async_event(3)).
    fn report_last_receive(&self) {
        let Receives::Shared { held, last_reported, .. } = &self.receives else { return };
        if self.flushed.load(Ordering::SeqCst)
            && held.is_none()
            && !self.silent.load(Ordering::SeqCst)
            && !last_reported.swap(true, Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::QpLastWqeReached);
        }
    }

    /// Ends all outstanding requests as flushed, sends first. Only in the error state, and only when the
    /// transport neither reads nor writes the program's memory for this queue pair any more, now and later.
    // IB-QP-9, IB-QP-34
    pub fn flush(&self) {
        self.flushed.store(true, Ordering::SeqCst);
        self.forget_key_work();
        self.send.flush(self, || true);
        match &self.receives {
            Receives::Own(queue) => queue.flush(self),
            // IB-SRQ-7
            // The receives belong to all: they stay.
            Receives::Shared { .. } => self.report_last_receive(),
            Receives::Extended(_) | Receives::Nowhere => {}
        }
    }

    /// Back to an empty queue pair.
    pub(super) fn reset(&self) {
        self.send.reset();
        match &self.receives {
            Receives::Own(queue) => queue.reset(),
            Receives::Shared { last_reported, .. } => last_reported.store(false, Ordering::SeqCst),
            Receives::Extended(_) | Receives::Nowhere => {}
        }
        self.failed.forget();
        self.forget_key_work();
        self.established.store(false, Ordering::SeqCst);
        self.flushed.store(false, Ordering::SeqCst);
    }

    /// Reports a flushed request, unless the queue pair reports nothing any more.
    pub(super) fn report_flushed(&self, cq: &CompletionQueue, completion: Completion) {
        if !self.silent.load(Ordering::SeqCst) {
            cq.push(completion, false);
        }
    }

    /// The posting thread flushes its own requests if everything has been flushed before.
    pub(super) fn flush_late_posts(&self) {
        match self.state() {
            State::Error if self.flushed.load(Ordering::SeqCst) => self.flush(),
            State::Sqe => self.send.flush(self, || self.state() == State::Sqe),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ReceiveCounts;

    #[test]
    fn receives_of_a_shared_queue_are_counted_also_when_they_are_complete() {
        let held = ReceiveCounts::default();
        (0..3).for_each(|_| held.take());
        held.complete();
        assert!(!held.is_none() && held.in_all() == 3);
        (0..2).for_each(|_| held.complete());
        assert!(held.is_none() && held.in_all() == 3);
        // The number goes round, and the other one stays.
        held.0.store(u64::from(u32::MAX) << 32, std::sync::atomic::Ordering::Relaxed);
        held.take();
        assert!(!held.is_none() && held.in_all() == 0);
    }
}
