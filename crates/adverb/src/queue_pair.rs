//! Queue pairs.

use crate::flight::{Flight, NOTHING, shared_queue};
use crate::memory::Elements;
use crate::request::{Payload, Rejected, WorkRequest, buffers_of};
use crate::{Buffer, CompletionQueue, ProtectionDomain, Result, Rights, Segments, SharedReceiveQueue};
use adverb_core::error::PostError;
use adverb_core::qp::{self, AttributeMask, Attributes, Capabilities, Service, State};
use adverb_core::request::{Completion, Data, Datagram, Opcode, ReceiveRequest, SendFlags, SendRequest};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The parts of a queue pair.
///
/// ```
/// use adverb::{QueuePairOptions, Rights};
///
/// # fn main() -> adverb::Result<()> {
/// let context = adverb::Context::open_default()?;
/// let completions = context.completion_queue(64)?;
/// let options = QueuePairOptions {
///     max_sends: 32,
///     max_receives: 32,
///     max_gather: 4,
///     rights: Rights::READ,
///     ..QueuePairOptions::new(&completions)
/// };
/// let queue_pair = context.protection_domain()?.queue_pair(options)?;
/// assert!(queue_pair.attributes().max_gather >= 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// Where requests of the send queue complete.
    pub send_queue: CompletionQueue,
    /// Where receives complete.
    pub receive_queue: CompletionQueue,
    /// Requests of the send queue in flight at once.
    pub max_sends: u32,
    /// Receives posted at once.
    pub max_receives: u32,
    /// Segments that one request can send from, or read into. More need memory for each request.
    pub max_gather: u32,
    /// Segments that one receive can have.
    pub max_scatter: u32,
    /// Where messages find their receives, in place of a queue of the queue pair's own. `max_receives` and
    /// `max_scatter` mean nothing then.
    pub shared_receive_queue: Option<SharedReceiveQueue>,
    /// Most bytes that one request can take along by copy ([`Payload::Inline`]).
    pub inline_bytes: u32,
    /// The peer's rights over this queue pair; the regions decide for their bytes.
    pub rights: Rights,
}

impl QueuePairOptions {
    /// 128 sends and 128 receives that complete on `queue`, one segment each, 64 inline bytes, all rights.
    ///
    /// With two completion queues, the program can wait for a message, and no completion of a send comes
    /// between:
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// let (sends, receives) = (context.completion_queue(128)?, context.completion_queue(128)?);
    /// let options = QueuePairOptions { receive_queue: receives.clone(), ..QueuePairOptions::new(&sends) };
    /// let queue_pair = context.protection_domain()?.queue_pair(options)?;
    /// # drop(queue_pair);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(queue: &CompletionQueue) -> Self {
        Self {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            max_sends: 128,
            max_receives: 128,
            max_gather: 1,
            max_scatter: 1,
            shared_receive_queue: None,
            inline_bytes: 64,
            rights: Rights::all(),
        }
    }
}

/// A queue pair: one end of a connection, with a queue of requests to send and a queue of receives.
/// Thread-safe.
///
/// Requests of one queue pair begin in the order in which they were posted, and complete in that order.
/// Dropping it ends the connection; when the drop returns, nobody touches the memory of its requests any
/// more, and their buffers are freed.
///
/// ```
/// use adverb::{Connection, Context, QueuePairOptions};
/// use std::net::SocketAddr;
/// use std::time::Duration;
///
/// /// Connects to a server, with a receive for its first message.
/// fn connect(context: &Context, server: SocketAddr) -> adverb::Result<Connection> {
///     let completions = context.completion_queue(256)?;
///     let domain = context.protection_domain()?;
///     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
///     queue_pair.post_receive(1, domain.buffer(4096)?)?;
///     Ok(queue_pair.connect(server, b"", Duration::from_secs(10))?)
/// }
/// ```
pub struct QueuePair {
    core: Arc<qp::QueuePair>,
    send_queue: CompletionQueue,
    receive_queue: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    domain: ProtectionDomain,
    rights: Rights,
    /// Tells it from all others in the tables of requests in flight: the device's numbers are used again.
    identity: u64,
    /// A request that reports nothing has been posted.
    has_unsignalled: AtomicBool,
    /// The name of the last request in the send queue, if it reports nothing.
    last_unsignalled: Mutex<u64>,
}

impl QueuePair {
    /// A queue pair of this service, which `begin` brings to its first state.
    pub(crate) fn new(
        domain: &ProtectionDomain,
        options: QueuePairOptions,
        service: Service,
        begin: impl FnOnce(&qp::QueuePair) -> Result<()>,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if let Some(shared) = &options.shared_receive_queue {
            shared.reserve(&options.receive_queue)?;
        }
        let core = qp::QueuePair::new(
            &domain.core,
            qp::QueuePairOptions {
                send_cq: options.send_queue.core().clone(),
                receive_cq: options.receive_queue.core().clone(),
                srq: options.shared_receive_queue.as_ref().map(|shared| shared.core().clone()),
                capabilities: Capabilities {
                    max_send_wr: options.max_sends,
                    max_recv_wr: options.max_receives,
                    max_send_sge: options.max_gather,
                    max_recv_sge: options.max_scatter,
                    max_inline_data: options.inline_bytes,
                },
                service,
                // Each request says itself whether it reports its end.
                signal_all: false,
            },
        )?;
        begin(&core)?;
        core.set_cookie(core.number().into());
        Ok(Self {
            core,
            rights: options.rights,
            send_queue: options.send_queue,
            receive_queue: options.receive_queue,
            shared: options.shared_receive_queue,
            domain: domain.clone(),
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            has_unsignalled: AtomicBool::new(false),
            last_unsignalled: Mutex::new(NOTHING),
        })
    }

    /// The queue pair's number, as completions carry it.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// let completion = client.send_queue().wait(SOON)?;
    /// assert_eq!(completion.queue_pair, client.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// The queue pair's protection domain.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// // Memory of its requests comes from there, also in a function that has nothing but the connection.
    /// let mut buffer = client.domain().buffer(64)?;
    /// buffer.fill(7);
    /// client.post_send(WorkRequest::send(buffer))?;
    /// assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), [7; 64]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where requests of the send queue complete.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// let mut buffer = client.domain().buffer(64)?;
    /// buffer.fill(7);
    /// client.post_send(WorkRequest::send(buffer))?;
    /// // The buffer is the program's again when the request has ended.
    /// let buffer = client.send_queue().wait(SOON)?.success()?.into_buffer();
    /// assert_eq!(buffer[..], [7; 64]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.send_queue
    }

    /// Where receives complete.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.post_send(WorkRequest::send(b"a question"))?;
    /// let question = server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(question.message(), b"a question");
    /// // Its receive takes another message.
    /// server.post_receive(question.id, question.into_buffer())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.receive_queue
    }

    /// Requests of both queues that were posted, and whose completions the program has not taken. With
    /// [unsignalled](WorkRequest::unsignalled) ones.
    ///
    /// To drain a connection, take completions until there are none:
    ///
    /// ```
    /// # use adverb::Connection;
    /// # use std::time::Duration;
    /// /// Ends a connection; the buffers of all its requests.
    /// fn end(connection: &Connection) -> adverb::Result<Vec<adverb::Buffer>> {
    ///     let mut buffers = Vec::new();
    ///     connection.disconnect()?;
    ///     for queue in [connection.send_queue(), connection.receive_queue()] {
    ///         while connection.in_flight_on(queue) > 0 {
    ///             let completion = queue.wait(Duration::from_secs(10))?;
    ///             buffers.extend(completion.earlier);
    ///             buffers.extend(completion.buffer);
    ///         }
    ///     }
    ///     Ok(buffers)
    /// }
    /// ```
    ///
    /// It looks at every request in flight on its completion queues: use it when a connection ends, not with
    /// each request.
    pub fn in_flight(&self) -> usize {
        let count = |queue: &CompletionQueue| self.in_flight_on(queue);
        match self.send_queue.is(&self.receive_queue) {
            true => count(&self.send_queue),
            false => count(&self.send_queue) + count(&self.receive_queue),
        }
    }

    /// Requests of this queue pair that complete on `queue`, and whose completions the program has not taken.
    /// With [unsignalled](WorkRequest::unsignalled) ones.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (_client, server) = ends()?;
    /// // Four receives were posted.
    /// assert_eq!(server.in_flight_on(server.receive_queue()), 4);
    /// assert_eq!(server.in_flight_on(server.send_queue()), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_flight_on(&self, queue: &CompletionQueue) -> usize {
        queue.flights().count(self.identity)
    }

    /// Whether the queue pair can transfer: connected, and not in error.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// assert!(client.is_connected());
    /// client.disconnect()?;
    /// client.wait_ended(SOON);
    /// assert!(!client.is_connected());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_connected(&self) -> bool {
        self.core.state() == State::Rts
    }

    pub(crate) fn core(&self) -> &Arc<qp::QueuePair> {
        &self.core
    }

    /// Puts the queue pair into error: its requests come back as flushed.
    pub(crate) fn fail(&self) {
        let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
        // It can be in error already, or its process be gone.
        let _ = self.core.modify(&attributes, AttributeMask::STATE);
    }

    /// A peer whose message finds no receive tries again after 0.64 ms. By default of connection managers it
    /// does after 655 ms.
    pub(crate) fn answer_soon_without_receive(&self) {
        // Code 12 of the table of RNR NAK timers.
        let attributes = Attributes { min_rnr_timer: 12, ..Attributes::default() };
        // iWARP has no such thing. A queue pair that has failed meanwhile needs none.
        let _ = self.core.modify(&attributes, AttributeMask::MIN_RNR_TIMER);
    }

    /// Makes it as new: ready for receives and to be connected. The buffers of all requests whose completions
    /// the program has not taken come back, in no order. These requests have no completions any more.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (_client, server) = ends()?;
    /// let mut queue_pair = server.into_queue_pair();
    /// for buffer in queue_pair.reset()? {
    ///     queue_pair.post_receive(0, buffer)?;
    /// }
    /// assert_eq!(queue_pair.in_flight(), 4);
    /// // It may be connected again.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork. Nothing has changed then.
    // `&mut`: nobody posts meanwhile. So each request is either taken out of the tables below, or posted to
    // the new queue.
    pub fn reset(&mut self) -> Result<Vec<Buffer>> {
        // By way of an error, which ends only when the transport has let go of the memory of all requests.
        self.fail();
        let shared = self.take_shared();
        let attributes = Attributes { state: Some(State::Reset), ..Attributes::default() };
        self.core.modify(&attributes, AttributeMask::STATE)?;
        let flights = self.take_flights().into_iter().chain(shared);
        let buffers = flights.filter_map(|flight| flight.segments);
        let buffers = buffers.flat_map(buffers_of).collect();
        self.has_unsignalled = AtomicBool::new(false);
        self.last_unsignalled = Mutex::new(NOTHING);
        begin(&self.core, self.rights)?;
        Ok(buffers)
    }

    /// Takes out the shared receives that messages of this queue pair have taken, and whose completions
    /// nobody has taken: these vanish. Only in error.
    fn take_shared(&self) -> Vec<Flight> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let mut names = Vec::new();
        let number = self.core.number();
        // The others are in the tables of the completion queues, and leave with all of this queue pair.
        let is_shared = |it: &Completion| it.queue_pair == number && shared_queue(it.wr_id).is_some();
        self.receive_queue.core().withdraw(is_shared, |completion| names.push(completion.wr_id));
        let mut flights = shared.flights();
        names.into_iter().filter_map(|name| flights.leave(name)).collect()
    }

    /// Takes all requests out of the tables. Only when the engine has let go of their memory.
    fn take_flights(&self) -> Vec<Flight> {
        let mut flights = self.send_queue.flights().leave_all(self.identity);
        flights.extend(self.receive_queue.flights().leave_all(self.identity));
        flights
    }

    /// Posts a request to the send queue, for [`Connection::post_send`](crate::Connection::post_send).
    #[inline]
    pub(crate) fn post(&self, request: WorkRequest<'_>) -> Result<(), Rejected> {
        self.post_to(request, None, 0)
    }

    /// Posts a request of XRC to the send queue. Its message is for the peer's shared receive queue with the
    /// number `shared_queue`.
    #[inline]
    pub(crate) fn post_extended(&self, request: WorkRequest<'_>, shared_queue: u32) -> Result<(), Rejected> {
        self.post_to(request, None, shared_queue)
    }

    /// Posts a request to the send queue, of any service. A datagram has its destination in `datagram`.
    /// `shared_queue` counts for XRC alone.
    #[inline]
    pub(crate) fn post_to(
        &self,
        request: WorkRequest<'_>,
        datagram: Option<Datagram<'_>>,
        shared_queue: u32,
    ) -> Result<(), Rejected> {
        let WorkRequest { id, opcode, flags, payload, remote, immediate, compare_add, swap } = request;
        let (segments, inline) = match payload {
            Payload::Memory(segments) => (Some(segments), &[][..]),
            Payload::Inline(bytes) => (None, bytes),
        };
        let uses = segments.as_ref().map_or(inline.len(), Segments::bytes) as u64;
        if takes_token(opcode) && uses > remote.len() {
            return Err(Rejected::new(PostError::PastToken, segments));
        }
        let request = SendRequest {
            opcode,
            flags,
            remote_address: remote.address(),
            rkey: remote.key(),
            immediate,
            compare_add,
            swap,
            datagram,
            shared_queue,
            ..SendRequest::default()
        };
        let reports = flags.contains(SendFlags::SIGNALED);
        let flight = Flight { id, queue_pair: self.identity, segments, previous: NOTHING };
        if reports && !self.has_unsignalled.load(Ordering::Relaxed) {
            return self.launch(&self.send_queue, flight, inline, |name, data| {
                self.core.post_send(&SendRequest { wr_id: name, data, ..request })
            });
        }
        self.post_behind_unsignalled(flight, reports, &request, inline)
    }

    /// Posts a request that reports nothing, or that may stand behind such a one: its place in the queue must
    /// be known.
    #[cold]
    fn post_behind_unsignalled(
        &self,
        flight: Flight,
        reports: bool,
        request: &SendRequest<'_>,
        inline: &[u8],
    ) -> Result<(), Rejected> {
        self.has_unsignalled.store(true, Ordering::Relaxed);
        let mut waiting = Some(flight);
        let posted = self.core.post_sends(|batch| {
            let Some(flight) = waiting.take() else { return Ok(Ok(())) };
            // One post at a time comes here, so requests are entered in the order of the queue.
            let mut last = lock(&self.last_unsignalled);
            let flight = Flight { previous: *last, ..flight };
            let mut entered = NOTHING;
            let launched = self.launch(&self.send_queue, flight, inline, |name, data| {
                entered = name;
                batch.post(&SendRequest { wr_id: name, data, ..*request })
            });
            if launched.is_ok() {
                *last = if reports { NOTHING } else { entered };
            }
            Ok(launched)
        });
        posted.unwrap_or_else(|reason| Err(Rejected::new(reason, waiting.and_then(|flight| flight.segments))))
    }

    /// Offers memory for a message of the peer. The completion comes out of [`QueuePair::receive_queue`] with
    /// the same `id`. Receives are taken in the order in which they were posted; post them before the peer
    /// sends, from the moment the queue pair exists.
    ///
    /// A message fills several segments in their order, if the queue pair was made for so many
    /// ([`max_scatter`](crate::QueuePairOptions::max_scatter)).
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// let domain = context.protection_domain()?;
    /// let queue_pair = domain.queue_pair(QueuePairOptions::new(&context.completion_queue(64)?))?;
    /// for (id, buffer) in (0..).zip(domain.buffers(16, 4096)?) {
    ///     queue_pair.post_receive(id, buffer)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Connection::post_send`](crate::Connection::post_send).
    #[inline]
    pub fn post_receive(&self, id: u64, target: impl Into<Segments>) -> Result<(), Rejected> {
        let segments = Some(target.into());
        let flight = Flight { id, queue_pair: self.identity, segments, previous: NOTHING };
        self.launch(&self.receive_queue, flight, &[], |name, data| {
            let Data::Registered(sges) = data else { return Err(PostError::Invalid) };
            self.core.post_receive(&ReceiveRequest { wr_id: name, sges })
        })
    }

    /// Enters a request in the table of its completion queue, and posts it under the name that the table
    /// gave, with its bytes.
    #[inline]
    fn launch(
        &self,
        queue: &CompletionQueue,
        flight: Flight,
        inline: &[u8],
        post: impl FnOnce(u64, Data<'_>) -> Result<(), PostError>,
    ) -> Result<(), Rejected> {
        // Copied while the segments are still here: the table owns them before the engine hears of them.
        let elements = match flight.segments.as_ref().map(|segments| segments.elements(self.domain.number()))
        {
            None => Elements::None,
            Some(Ok(elements)) => elements,
            Some(Err(reason)) => return Err(Rejected::new(reason, flight.segments)),
        };
        let data = match inline.is_empty() {
            true => Data::Registered(elements.as_slice()),
            false => Data::Inline(std::slice::from_ref(&inline)),
        };
        let entered = queue.flights().enter(flight);
        let name = entered.map_err(|flight| Rejected::new(PostError::QueueFull, flight.segments))?;
        post(name, data).map_err(|reason| {
            let flight = queue.flights().leave(name);
            Rejected::new(reason, flight.and_then(|flight| flight.segments))
        })
    }
}

/// Makes a queue pair of a connection ready for receives.
pub(crate) fn begin(core: &qp::QueuePair, rights: Rights) -> Result<()> {
    let initial = Attributes {
        state: Some(State::Init),
        port: 1,
        access: rights.difference(Rights::BIND).access().bits(),
        ..Attributes::default()
    };
    let mask =
        AttributeMask::STATE | AttributeMask::PKEY_INDEX | AttributeMask::PORT | AttributeMask::ACCESS_FLAGS;
    Ok(core.modify(&initial, mask)?)
}

/// Whether a request goes to memory of the peer that a token names.
fn takes_token(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Write | Opcode::WriteWithImmediate | Opcode::Read | Opcode::FetchAdd | Opcode::CompareSwap
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            self.fail();
            shared.post_again(self.take_shared());
        }
        self.core.destroy();
        // Nobody touches the memory of the requests from here on.
        drop(self.take_flights());
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number())
            .field("state", &self.core.state())
            .finish()
    }
}
