//! Queue pairs.

use crate::flight::Flight;
use crate::request::{Payload, Rejected, WorkRequest};
use crate::{CompletionQueue, ProtectionDomain, Result, Rights, Segment};
use adverb_core::error::PostError;
use adverb_core::qp::{self, AttributeMask, Attributes, Capabilities, Service, State};
use adverb_core::request::{Data, Opcode, ReceiveRequest, SendRequest};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The parts of a queue pair.
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
    /// Most bytes that one request can take along by copy ([`Payload::Inline`]).
    pub inline_bytes: u32,
    /// The peer's rights over this queue pair; the regions decide for their bytes.
    pub rights: Rights,
}

impl QueuePairOptions {
    /// 128 sends and 128 receives that complete on `queue`, 64 inline bytes, all rights.
    ///
    /// With two completion queues, the program can wait for a message, and no completion of a send comes between:
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
            inline_bytes: 64,
            rights: Rights::all(),
        }
    }
}

/// A queue pair: one end of a connection, with a queue of requests to send and a queue of receives. Thread-safe.
///
/// Requests of one queue pair begin in the order in which they were posted, and complete in that order. Dropping it ends the connection;
/// when the drop returns, nobody touches the memory of its requests any more, and their buffers are freed.
pub struct QueuePair {
    core: Arc<qp::QueuePair>,
    send_queue: CompletionQueue,
    receive_queue: CompletionQueue,
    domain: ProtectionDomain,
    /// Tells it from all others in the tables of requests in flight: the device's numbers are used again.
    identity: u64,
}

impl QueuePair {
    pub(crate) fn new(domain: &ProtectionDomain, options: QueuePairOptions) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let core = qp::QueuePair::new(
            &domain.core,
            qp::QueuePairOptions {
                send_cq: options.send_queue.core().clone(),
                receive_cq: options.receive_queue.core().clone(),
                srq: None,
                capabilities: Capabilities {
                    max_send_wr: options.max_sends,
                    max_recv_wr: options.max_receives,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: options.inline_bytes,
                },
                service: Service::Rc,
                // Every request reports its end: that is how its buffer comes back.
                signal_all: true,
            },
        )?;
        let initial = Attributes {
            state: Some(State::Init),
            port: 1,
            access: options.rights.access().bits(),
            ..Attributes::default()
        };
        let mask = AttributeMask::STATE
            | AttributeMask::PKEY_INDEX
            | AttributeMask::PORT
            | AttributeMask::ACCESS_FLAGS;
        core.modify(&initial, mask)?;
        Ok(Self {
            core,
            send_queue: options.send_queue,
            receive_queue: options.receive_queue,
            domain: domain.clone(),
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Its number, as completions carry it.
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// Its protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where requests of the send queue complete.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.send_queue
    }

    /// Where receives complete.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.receive_queue
    }

    /// Whether it can transfer: connected, and not in error.
    pub fn is_connected(&self) -> bool {
        self.core.state() == State::Rts
    }

    pub(crate) fn core(&self) -> &Arc<qp::QueuePair> {
        &self.core
    }

    /// Puts a request on its way. Returns at once: the end of the request, and with it its buffer, come out of
    /// [`QueuePair::send_queue`]. In the steady state it allocates nothing.
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError), such as `PastToken` for more bytes than the token names; the buffer comes back. `QueueFull` also when the completion queue has no room.
    #[inline]
    pub fn post_send(&self, request: WorkRequest<'_>) -> Result<(), Rejected> {
        let WorkRequest { id, opcode, flags, payload, remote, immediate, compare_add, swap } = request;
        let (segment, inline) = match payload {
            Payload::Memory(segment) => (Some(segment), &[][..]),
            Payload::Inline(bytes) => (None, bytes),
        };
        let uses = segment.as_ref().map_or(inline.len(), Segment::len) as u64;
        if takes_token(opcode) && uses > remote.len() {
            let buffer = segment.and_then(Segment::into_buffer);
            return Err(Rejected { reason: PostError::PastToken, buffer });
        }
        self.launch(&self.send_queue, id, segment, |core, wr_id, element| {
            core.post_send(&SendRequest {
                wr_id,
                opcode,
                flags,
                data: match &element {
                    Some(element) => Data::Registered(std::slice::from_ref(element)),
                    None if inline.is_empty() => Data::Registered(&[]),
                    None => Data::Inline(std::slice::from_ref(&inline)),
                },
                remote_address: remote.address(),
                rkey: remote.key(),
                immediate,
                compare_add,
                swap,
                shared_queue: 0,
                datagram: None,
            })
        })
    }

    /// Offers memory for a message of the peer. The completion comes out of [`QueuePair::receive_queue`] with the same `id`. Receives are
    /// taken in the order in which they were posted; post them before the peer sends, from the moment the queue pair exists.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    #[inline]
    pub fn post_receive(&self, id: u64, target: impl Into<Segment>) -> Result<(), Rejected> {
        self.launch(&self.receive_queue, id, Some(target.into()), |core, wr_id, element| {
            core.post_receive(&ReceiveRequest { wr_id, sges: element.as_slice() })
        })
    }

    /// Enters a request in the table of its completion queue, and posts it under the name that the table gave.
    #[inline]
    fn launch(
        &self,
        queue: &CompletionQueue,
        id: u64,
        segment: Option<Segment>,
        post: impl FnOnce(&qp::QueuePair, u64, Option<adverb_core::request::Sge>) -> Result<(), PostError>,
    ) -> Result<(), Rejected> {
        let rejected = |reason, segment: Option<Segment>| Rejected {
            reason,
            buffer: segment.and_then(Segment::into_buffer),
        };
        let element = segment.as_ref().and_then(Segment::element);
        if segment.is_some() && element.is_none() {
            return Err(rejected(PostError::TooLong, segment));
        }
        let flight = Flight { id, queue_pair: self.identity, segment };
        let entered = queue.flights().enter(flight);
        let name = entered.map_err(|flight| rejected(PostError::QueueFull, flight.segment))?;
        post(&self.core, name, element).map_err(|reason| {
            let flight = queue.flights().leave(name);
            rejected(reason, flight.and_then(|flight| flight.segment))
        })
    }
}

/// Whether a request goes to memory of the peer that a token names.
fn takes_token(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Write | Opcode::WriteWithImmediate | Opcode::Read | Opcode::FetchAdd | Opcode::CompareSwap
    )
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.core.destroy();
        // Nobody touches the memory of the requests from here on.
        for queue in [&self.send_queue, &self.receive_queue] {
            let flights = queue.flights().leave_all(self.identity);
            drop(flights);
        }
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
