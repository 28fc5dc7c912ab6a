//! Queue pairs: the generic half (queues, state, completions), below which a transport's [`Endpoint`] moves
//! the bytes.

mod batch;
mod describe;
mod diagnosis;
mod extended;
mod key_work;
mod payload;
mod queues;
mod receive;
mod send;
mod slots;
mod state;
mod values;

pub use batch::SendBatch;
use extended::ExtendedTarget;
pub use extended::SharedQueues;
pub use key_work::LocalOutcome;
pub use payload::PayloadError;
pub use queues::Queues;
use queues::Receives;
pub use receive::{ReceiveBatch, ReceiveQueue, ReceiveWork};
pub use send::{Destination, SendCursor, SendQueue, SendWork};
pub(crate) use slots::GrowingSlots;
pub use state::{AttributeMask, Attributes, Path, Service, State, Transition, check as check_transition};

use crate::cq::CompletionQueue;
use crate::device::Context;
use crate::error::{Error, PostError, Result};
use crate::failure::FailureListener;
use crate::late;
use crate::memory::RingAllocator;
use crate::region::ProtectionDomain;
use crate::request::{ReceiveRequest, SendRequest};
use crate::rss::{Hash, IndirectionTable};
use crate::srq::SharedReceiveQueue;
use crate::transport::Endpoint;
use crate::users::DependentCount;
use crate::xrc::XrcDomain;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Sizes of a queue pair (struct ibv_qp_cap). The sizes that a program asks for may be rounded up.
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

/// The parts that a queue pair is made of (struct ibv_qp_init_attr).
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

/// A queue pair (ibv_create_qp(3)). Thread-safe.
pub struct QueuePair {
    queues: Arc<Queues>,
    endpoint: Arc<dyn Endpoint>,
    domain: Arc<ProtectionDomain>,
    control: Mutex<Attributes>,
    groups: Mutex<Vec<[u8; 16]>>,
    flows: DependentCount,
    max_message: u32,
    ended: AtomicBool,
}

impl FailureListener for QueuePair {
    fn engine_failed(&self) {
        self.to_error();
    }

    fn describe(&self) -> Option<String> {
        (!self.ended.load(Ordering::Acquire)).then(|| describe::queue_pair(self))
    }
}

impl QueuePair {
    /// A new queue pair in RESET.
    ///
    /// # Errors
    /// EINVAL for sizes beyond the device's limits or objects of another context; EOPNOTSUPP for a service
    /// that it does not have; ENOMEM when it is full.
    pub fn new(domain: &Arc<ProtectionDomain>, options: QueuePairOptions) -> Result<Arc<Self>> {
        Self::new_in(domain, options, &None)
    }

    /// A new queue pair in RESET with its rings in memory of `allocator`, otherwise as of [`QueuePair::new`].
    /// `allocator` has the memory back when [`QueuePair::destroy`] returns.
    ///
    /// # Errors
    /// As [`QueuePair::new`]; ENOMEM also where `allocator` has none.
    pub fn new_in(
        domain: &Arc<ProtectionDomain>,
        options: QueuePairOptions,
        allocator: &RingAllocator,
    ) -> Result<Arc<Self>> {
        if options.service == Service::XrcReceive {
            return Err(Error::invalid("a target queue pair belongs to an XRC domain"));
        }
        Self::build(domain, options, None, allocator)
    }

    /// A new target queue pair of XRC in RESET. It has no handle yet: see [`QueuePair::enter_handle`].
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    // IB-XRC-8
    pub fn new_target(xrc_domain: &Arc<XrcDomain>) -> Result<Arc<Self>> {
        let members = xrc_domain.members();
        let options = QueuePairOptions {
            send_cq: members.queue.clone(),
            receive_cq: members.queue.clone(),
            srq: None,
            capabilities: Capabilities::default(),
            service: Service::XrcReceive,
            signal_all: false,
        };
        let pair = Self::build(&members.domain, options, Some(ExtendedTarget::new(xrc_domain)), &None)?;
        members.add_target(&pair);
        Ok(pair)
    }

    /// A new raw packet queue pair that spreads received frames over work queues, from now on, and sends
    /// nothing.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn new_hashed(
        domain: &Arc<ProtectionDomain>,
        table: &Arc<IndirectionTable>,
        hash: Hash,
    ) -> Result<Arc<Self>> {
        // A table has a queue at least, and each has a completion queue while a table has it.
        let cq = table.queues().first().and_then(|queue| queue.completion_queue());
        let cq = cq.ok_or_else(|| Error::invalid("the work queue is gone"))?.clone();
        let options = QueuePairOptions {
            send_cq: cq.clone(),
            receive_cq: cq,
            srq: None,
            capabilities: Capabilities::default(),
            service: Service::RawPacket,
            signal_all: false,
        };
        let extended = ExtendedTarget::hashed(table, hash);
        Self::build(domain, options, Some(extended), &None)
    }

    /// Adds a handle of a target queue pair: an object that `cookie` names, and that was made or opened with
    /// `xrc_domain`.
    ///
    /// # Errors
    /// EINVAL if it is no target queue pair, or ends at this moment.
    pub fn enter_handle(&self, cookie: u64, xrc_domain: &Arc<XrcDomain>, is_new: bool) -> Result<()> {
        let entered = self.extended().is_some_and(|extended| extended.enter(cookie, xrc_domain, is_new));
        if entered { Ok(()) } else { Err(Error::invalid("the target queue pair is gone")) }
    }

    /// Takes away one handle of a target queue pair. Returns whether that was the last one: the caller
    /// destroys the queue pair then. Other queue pairs than targets have one handle, that of their creator.
    // IB-XRC-13
    pub fn leave_handle(&self, cookie: u64) -> bool {
        let target = self.extended().filter(|extended| extended.domain().is_some());
        target.is_none_or(|extended| extended.leave(cookie))
    }

    fn extended(&self) -> Option<&ExtendedTarget> {
        match &self.queues.receives {
            Receives::Extended(extended) => Some(extended),
            _ => None,
        }
    }

    fn build(
        domain: &Arc<ProtectionDomain>,
        options: QueuePairOptions,
        extended: Option<ExtendedTarget>,
        allocator: &RingAllocator,
    ) -> Result<Arc<Self>> {
        let context = domain.context();
        context.born.check()?;
        context.engine().failure.check()?;
        crate::memory::look_again();
        let limits = context.attributes();
        let mut capabilities = options.capabilities;
        // IB-XRC-7
        if options.srq.is_some() || options.service == Service::XrcSend {
            (capabilities.max_recv_wr, capabilities.max_recv_sge) = (0, 0);
        }
        if !limits.services.contains(&options.service) {
            return Err(Error::unsupported(format!(
                "{} has no {} queue pairs",
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
        let number = transport.allocate_number(&options)?;
        let made = Queues::new(domain, number, capabilities, operations, options, extended, allocator)
            .and_then(|queues| {
                let queues = Arc::new(queues);
                Ok((transport.create_endpoint(&queues)?, queues))
            });
        let (endpoint, queues) = made.inspect_err(|_| transport.release_number(number))?;
        for cq in [&queues.send_cq, &queues.receive_cq] {
            cq.users().enter();
        }
        if let Some(srq) = queues.shared_receive_queue() {
            srq.users().enter();
        }
        if let Receives::Extended(extended) = &queues.receives {
            extended.begin();
        }
        domain.users().enter();
        queues.counters.queue_pairs.add(1);
        context.engine().inspection.listen(context.engine());
        let pair = Arc::new(Self {
            endpoint,
            domain: domain.clone(),
            control: Mutex::default(),
            groups: Mutex::default(),
            flows: DependentCount::new(),
            max_message: limits.max_message,
            ended: AtomicBool::new(false),
            queues,
        });
        let concerned: Weak<Self> = Arc::downgrade(&pair);
        context.engine().failure.concerns(concerned).inspect_err(|_| pair.destroy())?;
        if let Some(decides) = late::get() {
            decides.made(context.device().name(), number);
        }
        Ok(pair)
    }

    /// The queue pair's number.
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

    /// The queue pair's protection domain.
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
            _ => (0, 0),
        };
        if self.queues.service == Service::XrcReceive {
            return Capabilities::default();
        }
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

    /// Why this change is refused in a state, in words; none if its attributes are right.
    #[cold]
    pub fn why_refused(&self, from: State, attributes: &Attributes, mask: AttributeMask) -> Option<String> {
        let mask = state::meant(self.queues.service, mask);
        let connected_by_manager = self.endpoint.is_connected_by_manager();
        let checked = check_transition(self.queues.service, from, attributes, mask, connected_by_manager)
            .and_then(|transition| {
                if !connected_by_manager && !matches!(transition.to, State::Error | State::Reset) {
                    values::check(self.context(), attributes, mask)?;
                }
                Ok(())
            });
        checked.err().map(|error| error.to_string())
    }

    /// Changes attributes and state (ibv_modify_qp(3)).
    ///
    /// # Errors
    /// EINVAL for a transition or attribute that the state table does not have, and for values that the
    /// device does not have; EOPNOTSUPP for an alternate path. Nothing is changed then.
    pub fn modify(&self, attributes: &Attributes, mask: AttributeMask) -> Result<()> {
        self.queues.born.check()?;
        let mask = state::meant(self.queues.service, mask);
        self.endpoint.send_off();
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
                // Requests that end now are forgotten anyway.
                self.queues.silent.store(true, Ordering::SeqCst);
            }
            // First, so that a connection that is being made at this instant either stands already, and is
            // ended now, or never will.
            self.queues.enter_error();
        } else if matches!((from, transition.to), (State::Rts, State::Sqd) | (State::Sqe, State::Rts)) {
            // Also first. Into SQD, so that nothing new begins while the endpoint looks for requests under
            // way. Out of SQE, so that requests that the endpoint finds in the queue are to be sent and not
            // to be flushed.
            // IB-QP-6, IB-QP-7
            self.queues.drained.store(false, Ordering::SeqCst);
            self.queues.drained_notify.store(next.sqd_notify, Ordering::SeqCst);
            moves_first = true;
            self.queues.send.change(|| self.queues.exchange_state(from, transition.to));
        }
        // From here on, no post carries out a request under the old attributes. The second call takes away an
        // object that the transmitter has installed before the endpoint changed.
        self.queues.send.queue_all();
        let modified = self.endpoint.modify(transition, &next);
        self.queues.send.queue_all();
        modified.inspect_err(|_| {
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

    /// Brings it to error, unless it is there already, is being reset, or ends.
    pub(crate) fn to_error(&self) {
        let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
        let _ = self.modify(&attributes, AttributeMask::STATE);
    }

    /// Posts one send request (ibv_post_send(3)).
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        self.post_sends(|batch| batch.post(request))
    }

    /// Posts several with one doorbell: the requests that `fill` has pushed when it returns, in success or
    /// failure, are on their way.
    #[inline]
    pub fn post_sends<T, E: From<PostError>>(
        &self,
        fill: impl FnOnce(&mut SendBatch<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.queues.born.check_post()?;
        if !self.state().takes_sends() || self.queues.service == Service::XrcReceive {
            return Err(PostError::State.into());
        }
        let allowed = self.queues.allowed.load(Ordering::Relaxed);
        let mut batch = SendBatch::new(&self.queues, allowed, self.max_message, &*self.endpoint);
        let filled = fill(&mut batch);
        batch.finish();
        filled
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
        let mut batch = ReceiveBatch::new(&self.queues, queue);
        let filled = fill(&mut batch);
        batch.finish();
        filled
    }

    /// Joins a multicast group (ibv_attach_mcast(3)). Again: no effect.
    ///
    /// # Errors
    /// EINVAL for a queue pair that is not of datagrams, and for a GID that is no group's; EOPNOTSUPP if the
    /// device has no multicast.
    pub fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.queues.born.check()?;
        if self.context().attributes().max_mcast_grp == 0 {
            return Err(Error::unsupported(format!("{} has no multicast", self.context().device().name())));
        }
        let address = Ipv6Addr::from(*group);
        // IB-UD-22
        if self.queues.service != Service::Ud || !address.to_canonical().is_multicast() {
            return Err(Error::invalid(format!(
                "{address} and a queue pair of {}: multicast needs a group and a UD queue pair",
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

    /// Rules that steer flows to it.
    pub fn flows(&self) -> &DependentCount {
        &self.flows
    }

    fn groups(&self) -> MutexGuard<'_, Vec<[u8; 16]>> {
        self.groups.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends the queue pair (ibv_destroy_qp(3)): its connection closes, and its completions that were not
    /// polled vanish. When this returns, no thread touches memory for it any more. A second call has no
    /// effect.
    pub fn destroy(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.queues.born.is_here() {
            self.endpoint.send_off();
            self.queues.silent.store(true, Ordering::SeqCst);
            self.queues.enter_error();
            self.queues.send.queue_all();
            // IB-UD-27
            for group in self.groups().drain(..) {
                // It goes anyway.
                let _ = self.endpoint.detach_multicast(&group);
            }
            // IB-QP-34, IB-QP-35
            self.endpoint.close();
            self.queues.send.queue_all();
            self.queues.flush();
            self.queues.send_cq.forget_queue_pair(self.number());
            self.queues.receive_cq.forget_queue_pair(self.number());
            if let Some(domain) = self.extended().and_then(ExtendedTarget::domain) {
                domain.members().remove_target(self.number());
            }
            self.context().transport().release_number(self.number());
        }
        // SAFETY: closed above, unless this is a child of fork.
        drop(unsafe { self.queues.give_back() });
        for cq in [&self.queues.send_cq, &self.queues.receive_cq] {
            cq.users().leave();
        }
        if let Some(srq) = self.queues.shared_receive_queue() {
            srq.users().leave();
        }
        if let Some(extended) = self.extended() {
            extended.end();
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
