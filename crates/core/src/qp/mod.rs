//! Queue pairs: the generic half (queues, state, completions), below which a transport's [`Endpoint`] moves the bytes.

mod payload;
mod receive;
mod send;
mod slots;
mod state;
mod values;

pub use payload::PayloadError;
pub use receive::{ReceiveBatch, ReceiveQueue, ReceiveWork};
pub use send::{Destination, SendBatch, SendCursor, SendQueue, SendWork};
pub(crate) use slots::Slots;
pub use state::{AttributeMask, Attributes, Path, Service, State, Transition, check as check_transition};

use crate::counters::Counters;
use crate::cq::CompletionQueue;
use crate::device::Context;
use crate::engine::Engine;
use crate::error::{Error, PostError, Result};
use crate::event::AsyncEventKind;
use crate::fork::Born;
use crate::memory::{AccessError, ProtectionDomain};
use crate::request::{Completion, ReceiveRequest, SendRequest, Sge, Status};
use crate::srq::SharedReceiveQueue;
use crate::transport::Endpoint;
use crate::users::Users;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Sizes of a queue pair (struct ibv_qp_cap). What is asked for may be rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// Elements per send.
    pub max_send_sge: u32,
    /// Elements per receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data per send.
    pub max_inline_data: u32,
}

/// What a queue pair is made of (struct ibv_qp_init_attr).
pub struct QueuePairOptions {
    /// Where sends complete.
    pub send_cq: Arc<CompletionQueue>,
    /// Where receives complete.
    pub receive_cq: Arc<CompletionQueue>,
    /// Where messages find their receives instead of in a queue of its own.
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// Sizes; those of receives mean nothing with a shared receive queue.
    pub capabilities: Capabilities,
    /// Transport service.
    pub service: Service,
    /// Whether every send is signalled.
    pub signal_all: bool,
}

/// The part of a queue pair that its transport shares: queues, state, and where completions go.
pub struct Queues {
    /// Its number.
    pub number: u32,
    /// Its service.
    pub service: Service,
    /// Sends.
    pub send: SendQueue,
    receives: Receives,
    /// Where sends complete.
    pub send_cq: Arc<CompletionQueue>,
    /// Where receives complete.
    pub receive_cq: Arc<CompletionQueue>,
    /// Number of the protection domain, for key checks.
    pub domain: u32,
    /// Connected queue pairs of that domain, which all reach the same keys.
    streams: Arc<Users>,
    /// Whether this one counts among them.
    is_stream: AtomicBool,
    /// The engine: keys and background thread.
    pub engine: &'static Engine,
    /// The device's counters.
    pub counters: &'static Counters,
    /// When this process made it.
    pub born: Born,
    signal_all: bool,
    context: Arc<Context>,
    state: AtomicU8,
    /// Set once everything was flushed: what is posted from then on is flushed by its poster.
    flushed: AtomicBool,
    /// The queue pair is being destroyed or reset: what is flushed from then on is not reported, and cannot fill up the completion queue.
    silent: AtomicBool,
    /// Bit n: opcode n may be posted. The transport narrows it once it knows its peer.
    allowed: AtomicU32,
    /// Whether the program was told that the first packet has come.
    established: AtomicBool,
    /// In SQD: nothing that was begun is left, and the program was told if it wanted.
    drained: AtomicBool,
    /// Whether it wants.
    drained_notify: AtomicBool,
    access: AtomicU32,
    cookie: AtomicU64,
}

/// Where messages find their receives.
enum Receives {
    /// In a queue of the queue pair.
    Own(ReceiveQueue),
    /// In one that it shares.
    Shared {
        queue: Arc<SharedReceiveQueue>,
        /// Receives that messages of this queue pair have taken and that are not complete.
        held: AtomicU32,
        /// Whether the program was told that no more will complete.
        last_reported: AtomicBool,
    },
}

impl Queues {
    /// The state now.
    #[inline]
    pub fn state(&self) -> State {
        State::from_number(self.state.load(Ordering::SeqCst).into()).unwrap_or(State::Error)
    }

    /// What peers may do on this queue pair, as the program set it: bits of [`crate::memory::Access`].
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

    /// Moves from INIT to RTS: the connection stands. False if the program took the queue pair out of INIT meanwhile: then there must be
    /// no connection.
    pub fn connected(&self) -> bool {
        let moved = self.exchange_state(State::Init, State::Rts);
        if moved && !self.is_stream.swap(true, Ordering::SeqCst) {
            self.streams.enter();
        }
        moved
    }

    /// Invalidates `key` because the connected peer says so.
    ///
    /// # Errors
    /// As [`crate::memory::Keys::invalidate_for_peer`]; [`AccessError::Rights`] also while the domain has other connections, which the
    /// peer would take the key away from.
    pub fn invalidate_for_peer(&self, key: u32) -> std::result::Result<(), AccessError> {
        // RFC5040-8.1.1-1
        if self.streams.count() > 1 {
            return Err(AccessError::Rights);
        }
        self.engine.keys.invalidate_for_peer(key, self.domain)
    }

    /// Moves to the error state. Returns whether it was not there already. The transport then makes sure that nobody touches the
    /// program's memory any more, and calls [`Queues::flush`].
    pub fn enter_error(&self) -> bool {
        if self.is_stream.swap(false, Ordering::SeqCst) {
            self.streams.leave();
        }
        self.state.swap(State::Error as u8, Ordering::SeqCst) != State::Error as u8
    }

    /// A transport says that in SQD nothing is under way any more that it had begun to send. Again: no effect.
    pub fn send_queue_drained(&self) {
        if self.state() == State::Sqd
            // IB-QP-7
            && !self.drained.swap(true, Ordering::SeqCst)
            && self.drained_notify.load(Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::SendQueueDrained);
        }
    }

    /// A send of an unreliable queue pair failed: its send queue goes to SQE, the request ends with `status`, those behind it are
    /// flushed, and the transmitter stops where it is until the program brings the queue pair back to RTS. Earlier requests must be
    /// complete. For whoever holds the transmit lock.
    pub fn fail_send(&self, cursor: &mut SendCursor, sequence: u64, status: Status) {
        cursor.halt();
        // IB-QP-8
        for from in [State::Rts, State::Sqd] {
            let _ = self.exchange_state(from, State::Sqe);
        }
        self.complete_send(sequence, status);
        self.flush_late_posts();
    }

    /// The first packet of the peer has come. If the program does not know yet that the connection stands, it is told, once.
    // IB-QP-38
    pub fn communication_established(&self) {
        if self.state() == State::Rtr && !self.established.swap(true, Ordering::SeqCst) {
            self.raise(AsyncEventKind::CommunicationEstablished);
        }
    }

    /// Moves from one state to another, unless the state is a third one.
    fn exchange_state(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Raises an asynchronous event about the queue pair.
    pub fn raise(&self, kind: AsyncEventKind) {
        self.context.raise(kind, self.cookie.load(Ordering::Acquire));
    }

    /// Completes a send request; earlier requests that are not complete hold the report back.
    #[inline]
    pub fn complete_send(&self, sequence: u64, status: Status) {
        self.send.complete(self, sequence, status);
    }

    /// Takes the oldest receive for a message. Only one message at a time is received on a queue pair, by whoever holds the transport's
    /// receive lock; what is taken must be completed, before [`Queues::flush`] at the latest.
    #[inline]
    pub fn take_receive(&self) -> Option<ReceiveWork> {
        match &self.receives {
            Receives::Own(queue) => queue.take(self.domain),
            Receives::Shared { queue, held, .. } => {
                // IB-SRQ-8
                let work = queue.take()?;
                held.fetch_add(1, Ordering::SeqCst);
                Some(work)
            }
        }
    }

    /// An element of a receive that is taken and not complete. Its key belongs to the domain that [`ReceiveWork::domain`] says.
    #[inline]
    pub fn receive_sge(&self, work: &ReceiveWork, index: usize) -> Sge {
        match &self.receives {
            Receives::Own(queue) => queue.sge(work, index),
            Receives::Shared { queue, .. } => queue.sge(work, index),
        }
    }

    /// Completes the receive that a message took.
    #[inline]
    pub fn complete_receive(&self, work: &ReceiveWork, completion: Completion, solicited: bool) {
        // First the place, then the report: whoever sees the report may post again.
        match &self.receives {
            Receives::Own(queue) => {
                queue.retire(work);
                self.receive_cq.push(completion, solicited);
            }
            Receives::Shared { queue, held, .. } => {
                queue.give_back(work);
                self.receive_cq.push(completion, solicited);
                // IB-SRQ-3
                held.fetch_sub(1, Ordering::SeqCst);
                self.report_last_receive();
            }
        }
    }

    /// The shared receive queue that it uses.
    pub fn shared_receive_queue(&self) -> Option<&Arc<SharedReceiveQueue>> {
        match &self.receives {
            Receives::Own(_) => None,
            Receives::Shared { queue, .. } => Some(queue),
        }
    }

    /// Tells the program, once, that no receive of the shared queue will complete here any more (ibv_get_async_event(3)).
    fn report_last_receive(&self) {
        let Receives::Shared { held, last_reported, .. } = &self.receives else { return };
        if self.flushed.load(Ordering::SeqCst)
            && held.load(Ordering::SeqCst) == 0
            && !self.silent.load(Ordering::SeqCst)
            && !last_reported.swap(true, Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::QpLastWqeReached);
        }
    }

    /// Ends all outstanding requests as flushed, sends first. Only in the error state, and only when the transport neither reads nor writes
    /// the program's memory for this queue pair any more, now and later.
    // IB-QP-9, IB-QP-34
    pub fn flush(&self) {
        self.flushed.store(true, Ordering::SeqCst);
        self.send.flush(self, || true);
        match &self.receives {
            Receives::Own(queue) => queue.flush(self),
            // IB-SRQ-7
            // The receives belong to all: they stay.
            Receives::Shared { .. } => self.report_last_receive(),
        }
    }

    /// Back to an empty queue pair.
    fn reset(&self) {
        self.send.reset();
        match &self.receives {
            Receives::Own(queue) => queue.reset(),
            Receives::Shared { last_reported, .. } => last_reported.store(false, Ordering::SeqCst),
        }
        self.established.store(false, Ordering::SeqCst);
        self.flushed.store(false, Ordering::SeqCst);
    }

    /// Reports a flushed request, unless nobody may want to know.
    fn report_flushed(&self, cq: &CompletionQueue, completion: Completion) {
        if !self.silent.load(Ordering::SeqCst) {
            cq.push(completion, false);
        }
    }

    /// What is posted once everything has been flushed, its poster flushes.
    fn flush_late_posts(&self) {
        match self.state() {
            State::Error if self.flushed.load(Ordering::SeqCst) => self.flush(),
            State::Sqe => self.send.flush(self, || self.state() == State::Sqe),
            _ => {}
        }
    }
}

/// A queue pair (ibv_create_qp(3)). Thread-safe.
pub struct QueuePair {
    queues: Arc<Queues>,
    endpoint: Arc<dyn Endpoint>,
    domain: Arc<ProtectionDomain>,
    control: Mutex<Attributes>,
    groups: Mutex<Vec<[u8; 16]>>,
    max_message: u32,
    ended: AtomicBool,
}

impl QueuePair {
    /// A new queue pair in RESET.
    ///
    /// # Errors
    /// EINVAL for sizes beyond the device's limits or objects of another context; EOPNOTSUPP for a service that it does not have; ENOMEM when it is full.
    pub fn new(domain: &Arc<ProtectionDomain>, options: QueuePairOptions) -> Result<Arc<Self>> {
        let context = domain.context();
        context.born.check()?;
        let limits = context.attributes();
        let mut capabilities = options.capabilities;
        if options.srq.is_some() {
            (capabilities.max_recv_wr, capabilities.max_recv_sge) = (0, 0);
        }
        if !limits.services.contains(&options.service) {
            return Err(Error::unsupported(format!(
                "{} has no {:?} queue pairs",
                context.device().name(),
                options.service
            )));
        }
        for (what, asked, most) in [
            // IB-QP-23
            ("max_send_wr", capabilities.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", capabilities.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", capabilities.max_send_sge, limits.max_sge),
            ("max_recv_sge", capabilities.max_recv_sge, limits.max_sge),
            ("max_inline_data", capabilities.max_inline_data, limits.max_inline_data),
        ] {
            if asked > most {
                return Err(Error::invalid(format!("{what} {asked}: the device allows {most}")));
            }
        }
        for cq in [&options.send_cq, &options.receive_cq] {
            if !Arc::ptr_eq(cq.context(), context) {
                return Err(Error::invalid("the completion queue belongs to another context"));
            }
        }
        if options.srq.as_ref().is_some_and(|srq| !Arc::ptr_eq(srq.context(), context)) {
            return Err(Error::invalid("the shared receive queue belongs to another context"));
        }
        let transport = context.transport();
        let operations = limits.operations.iter().filter(|operation| options.service.has(**operation));
        let operations = operations.fold(0, |bits, operation| bits | 1 << *operation as u32);
        let queues = Arc::new(Queues {
            number: transport.allocate_number(&options)?,
            service: options.service,
            send: SendQueue::new(
                capabilities.max_send_wr,
                capabilities.max_send_sge,
                capabilities.max_inline_data,
            ),
            receives: match options.srq {
                None => Receives::Own(ReceiveQueue::new(capabilities.max_recv_wr, capabilities.max_recv_sge)),
                Some(queue) => {
                    Receives::Shared { queue, held: AtomicU32::new(0), last_reported: AtomicBool::new(false) }
                }
            },
            send_cq: options.send_cq,
            receive_cq: options.receive_cq,
            domain: domain.number(),
            streams: domain.streams().clone(),
            is_stream: AtomicBool::new(false),
            engine: context.engine(),
            counters: context.device().counters(),
            born: Born::now(),
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
        });
        let endpoint =
            transport.create_endpoint(&queues).inspect_err(|_| transport.release_number(queues.number))?;
        for cq in [&queues.send_cq, &queues.receive_cq] {
            cq.users().enter();
        }
        if let Some(srq) = queues.shared_receive_queue() {
            srq.users().enter();
        }
        domain.users().enter();
        queues.counters.queue_pairs.add(1);
        Ok(Arc::new(Self {
            endpoint,
            domain: domain.clone(),
            control: Mutex::default(),
            groups: Mutex::default(),
            max_message: transport.port().max_message,
            ended: AtomicBool::new(false),
            queues,
        }))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.queues.number
    }

    /// The part that the transport shares.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// The transport's half.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Its protection domain.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.queues.state()
    }

    /// The sizes that it really has.
    pub fn capabilities(&self) -> Capabilities {
        let send = &self.queues.send;
        let (max_recv_wr, max_recv_sge) = match &self.queues.receives {
            Receives::Own(queue) => (queue.capacity(), queue.max_sges()),
            Receives::Shared { .. } => (0, 0),
        };
        Capabilities {
            max_send_wr: send.capacity(),
            max_recv_wr,
            max_send_sge: send.max_sges(),
            max_recv_sge,
            max_inline_data: send.max_inline(),
        }
    }

    /// Whether every send is signalled.
    pub fn signal_all(&self) -> bool {
        self.queues.signal_all
    }

    /// A word of the front end, which asynchronous events carry.
    pub fn cookie(&self) -> u64 {
        self.queues.cookie.load(Ordering::Acquire)
    }

    /// Sets [`QueuePair::cookie`].
    pub fn set_cookie(&self, cookie: u64) {
        self.queues.cookie.store(cookie, Ordering::Release);
    }

    /// The attributes as last set (ibv_query_qp(3)), with the state now.
    pub fn attributes(&self) -> Attributes {
        // IB-QP-13
        let mut attributes = Attributes { state: Some(self.state()), ..*self.lock() };
        attributes.sq_draining =
            attributes.state == Some(State::Sqd) && !self.queues.drained.load(Ordering::SeqCst);
        self.endpoint.query(&mut attributes);
        attributes
    }

    /// Changes attributes and state (ibv_modify_qp(3)).
    ///
    /// # Errors
    /// EINVAL for a transition or attribute that the state table does not have, and for values that the device does not have;
    /// EOPNOTSUPP for an alternate path. Nothing is changed then.
    pub fn modify(&self, attributes: &Attributes, mask: AttributeMask) -> Result<()> {
        self.queues.born.check()?;
        let mut control = self.lock();
        let from = self.state();
        let connected_by_manager = self.endpoint.is_connected_by_manager();
        let transition = check_transition(self.queues.service, from, attributes, mask, connected_by_manager)
            .and_then(|transition| {
                // IB-QP-20
                if mask.contains(AttributeMask::PORT) && attributes.port != 1 {
                    return Err(Error::invalid(format!("port {}: the device has port 1", attributes.port)));
                }
                if !connected_by_manager && !matches!(transition.to, State::Error | State::Reset) {
                    values::check(self.context(), attributes, mask)?;
                }
                Ok(transition)
            })
            .inspect_err(|error| crate::log!(Warn, "queue pair {:#x}: {error}", self.number()))?;
        let attributes = &values::masked(attributes);
        // IB-QP-11: what follows works on a copy.
        let mut next = *control;
        macro_rules! take {
            ($($flag:ident $($field:ident).+),*) => {
                $(if mask.contains(AttributeMask::$flag) { next.$($field).+ = attributes.$($field).+; })*
            };
        }
        take!(
            SQD_NOTIFY sqd_notify, ACCESS_FLAGS access, PKEY_INDEX pkey_index, PORT port, QKEY qkey, AV path,
            PATH_MTU path_mtu, TIMEOUT timeout, RETRY_COUNT retry_count, RNR_RETRY rnr_retry, RQ_PSN rq_psn,
            MAX_QP_RD_ATOMIC max_rd_atomic, MIN_RNR_TIMER min_rnr_timer, SQ_PSN sq_psn,
            MAX_DEST_RD_ATOMIC max_dest_rd_atomic, DEST_QPN destination
        );
        let mut moves_first = false;
        if matches!(transition.to, State::Error | State::Reset) {
            if transition.to == State::Reset {
                // Whatever ends now is forgotten anyway.
                self.queues.silent.store(true, Ordering::SeqCst);
            }
            // First, so that a connection that is being made at this instant either stands already, and is ended now, or never will.
            self.queues.enter_error();
        } else if matches!((from, transition.to), (State::Rts, State::Sqd) | (State::Sqe, State::Rts)) {
            // Also first: into SQD, so that nothing new begins while the endpoint looks for what is under way; out of SQE, so that
            // what the endpoint finds in the queue is to be sent and not to be flushed.
            // IB-QP-6, IB-QP-7
            self.queues.drained.store(false, Ordering::SeqCst);
            self.queues.drained_notify.store(next.sqd_notify, Ordering::SeqCst);
            moves_first = true;
            self.queues.send.change(|| self.queues.exchange_state(from, transition.to));
        }
        self.endpoint.modify(transition, &next).inspect_err(|_| {
            self.queues.silent.store(false, Ordering::SeqCst);
            if moves_first {
                self.queues.exchange_state(transition.to, from);
            }
        })?;
        match transition.to {
            // IB-QP-10
            State::Reset => {
                next = Attributes::default();
                self.queues.state.store(State::Reset as u8, Ordering::SeqCst);
                self.queues.reset();
                self.queues.silent.store(false, Ordering::SeqCst);
                self.queues.send_cq.forget_queue_pair(self.number());
                self.queues.receive_cq.forget_queue_pair(self.number());
            }
            State::Error => self.queues.flush(),
            to => {
                // The connection may have failed meanwhile: an error is never undone.
                if !moves_first {
                    self.queues.exchange_state(from, to);
                }
            }
        }
        self.queues.access.store(next.access, Ordering::Relaxed);
        *control = next;
        drop(control);
        if transition.to == State::Rts {
            self.endpoint.transmit();
        }
        Ok(())
    }

    /// Posts one send request (ibv_post_send(3)).
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        self.post_sends(|batch| batch.push(request))
    }

    /// Posts several with one doorbell: what `fill` has pushed when it returns, in success or failure, is on its way.
    #[inline]
    pub fn post_sends<T, E: From<PostError>>(
        &self,
        fill: impl FnOnce(&mut SendBatch<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.queues.born.check_post()?;
        if !self.state().takes_sends() {
            return Err(PostError::State.into());
        }
        let doorbell = || {
            if matches!(self.queues.state(), State::Error | State::Sqe) {
                self.queues.flush_late_posts();
            } else {
                self.endpoint.transmit();
            }
        };
        let allowed = self.queues.allowed.load(Ordering::Relaxed);
        let mut batch = SendBatch::new(&self.queues, allowed, self.max_message, &doorbell);
        fill(&mut batch)
    }

    /// Posts one receive (ibv_post_recv(3)).
    #[inline]
    pub fn post_receive(&self, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        self.post_receives(|batch| batch.push(request))
    }

    /// Posts several together, as [`QueuePair::post_sends`].
    #[inline]
    pub fn post_receives<T, E: From<PostError>>(
        &self,
        fill: impl FnOnce(&mut ReceiveBatch<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.queues.born.check_post()?;
        if !self.state().takes_receives() {
            return Err(PostError::State.into());
        }
        // A queue pair with a shared receive queue has none of its own (ibv_post_recv(3)).
        // IB-SRQ-2
        let Receives::Own(queue) = &self.queues.receives else { return Err(PostError::Invalid.into()) };
        let doorbell = || {
            if self.queues.state() == State::Error {
                self.queues.flush_late_posts();
            }
        };
        let mut batch = ReceiveBatch::new(&self.queues, queue, &doorbell);
        fill(&mut batch)
    }

    /// Joins a multicast group (ibv_attach_mcast(3)). Again: no effect.
    ///
    /// # Errors
    /// EINVAL for a queue pair that is not of datagrams, and for a GID that is no group's; EOPNOTSUPP if the device has no multicast.
    pub fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.queues.born.check()?;
        if self.context().attributes().max_mcast_grp == 0 {
            return Err(Error::unsupported(format!("{} has no multicast", self.context().device().name())));
        }
        let address = Ipv6Addr::from(*group);
        // IB-UD-22
        if self.queues.service != Service::Ud || !address.to_canonical().is_multicast() {
            return Err(Error::invalid(format!(
                "{address} and a {:?} queue pair: multicast needs a group and a UD queue pair",
                self.queues.service
            )));
        }
        let mut groups = self.groups();
        if !groups.contains(group) {
            self.endpoint.attach_multicast(group)?;
            groups.push(*group);
        }
        Ok(())
    }

    /// Leaves a multicast group (ibv_attach_mcast(3)).
    ///
    /// # Errors
    /// EINVAL for a group that it is not in.
    pub fn detach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.queues.born.check()?;
        let mut groups = self.groups();
        let Some(place) = groups.iter().position(|known| known == group) else {
            return Err(Error::invalid("the queue pair is not in this multicast group"));
        };
        self.endpoint.detach_multicast(group)?;
        groups.swap_remove(place);
        Ok(())
    }

    /// Multicast groups that it is in.
    pub fn multicast_groups(&self) -> usize {
        self.groups().len()
    }

    fn groups(&self) -> MutexGuard<'_, Vec<[u8; 16]>> {
        self.groups.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends the queue pair (ibv_destroy_qp(3)): its connection closes, its completions that nobody polled vanish, and when this returns
    /// nobody touches memory for it any more. Again: no effect.
    pub fn destroy(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.queues.born.is_here() {
            self.queues.silent.store(true, Ordering::SeqCst);
            self.queues.enter_error();
            // IB-UD-27
            for group in self.groups().drain(..) {
                // It goes anyway.
                let _ = self.endpoint.detach_multicast(&group);
            }
            // IB-QP-34, IB-QP-35
            self.endpoint.close();
            self.queues.flush();
            self.queues.send_cq.forget_queue_pair(self.number());
            self.queues.receive_cq.forget_queue_pair(self.number());
            self.context().transport().release_number(self.number());
        }
        for cq in [&self.queues.send_cq, &self.queues.receive_cq] {
            cq.users().leave();
        }
        if let Some(srq) = self.queues.shared_receive_queue() {
            srq.users().leave();
        }
        self.domain.users().leave();
    }

    fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.control.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
