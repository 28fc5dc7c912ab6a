//! Sending: work requests and the peer's reads become frames, and frames leave in gathered writes.
//!
//! A *burst* is the frames that go to the socket in one call. Their heads lie in one buffer, with small
//! payloads, and with CRC also all payload that a program could change meanwhile. Larger payloads stay where
//! they are, and their keys are opened for the call alone. When the socket takes only part, the connection
//! keeps the burst and goes on with it later.

mod burst;
mod by_channel;
mod direct;
mod requests;

use crate::endpoint::{Cause, Endpoint, ReadSink};
use crate::impaired::DirectionFaults;
use crate::kept::KeptReads;
use crate::local::Inbox;
use crate::observer::StreamObserver;
use crate::payload::Payload;
use crate::socket::Socket;
use adverb_core::memory::Span;
use adverb_core::qp::SendCursor;
use adverb_core::random;
use adverb_core::request::Sge;
use adverb_core::wire::Direction;
use adverb_proto::iwarp::{Outbound, OutstandingReads, Sender, Terminate};
use adverb_proto::keyed;
use arrayvec::ArrayVec;
use direct::{Near, SendProgress};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most frames of a burst.
const FRAMES: usize = 16;
/// A burst is full once it has this many bytes.
const BURST: usize = 256 << 10;
/// Payloads up to this length are copied beside their heads: cheaper than one more part to gather.
const SMALL: usize = 256;
/// Most parts of one gathered write: head and payload of each frame, the trailer of the last, and more
/// elements of some.
const PARTS: usize = 64;

/// The step that follows once a frame has left.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Complete(u64),
}

struct Frame {
    /// In the burst's bytes: head, and payload if it was copied.
    head: (u32, u32),
    /// Payload that stays where it is: source, offset, length.
    payload: Option<(Payload, u32, u32)>,
    /// In the burst's bytes: padding and CRC, which follow the payload.
    tail: (u32, u32),
    then: Then,
}

impl Frame {
    fn len(&self) -> usize {
        (self.head.1 - self.head.0) as usize
            + self.payload.map_or(0, |(_, _, len)| len as usize)
            + (self.tail.1 - self.tail.0) as usize
    }
}

#[derive(Default)]
struct Burst {
    bytes: Vec<u8>,
    frames: ArrayVec<Frame, FRAMES>,
    /// Memory that is open while a system call sends from it. The list is here and not on the stack, since
    /// threads with small stacks send, too.
    spans: Box<ArrayVec<Span<'static>, PARTS>>,
    total: usize,
    sent: usize,
    /// Frames whose sending was followed up.
    followed: usize,
    /// Bytes of those frames.
    followed_bytes: usize,
    /// The wire has been asked about it.
    judged: bool,
}

impl Burst {
    fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        (self.total, self.sent, self.followed, self.followed_bytes) = (0, 0, 0, 0);
        self.judged = false;
    }
}

thread_local! {
    /// A burst for reuse: only one that could not be sent whole belongs to its connection.
    static SPARE: Cell<Option<Box<Burst>>> = const { Cell::new(None) };
}

fn take_burst() -> Box<Burst> {
    SPARE.try_with(Cell::take).ok().flatten().unwrap_or_else(new_burst)
}

/// A function of its own: it has a whole burst on the stack, which its callers are not to keep room for.
#[cold]
#[inline(never)]
fn new_burst() -> Box<Burst> {
    Box::default()
}

fn give_burst(mut burst: Box<Burst>) {
    burst.clear();
    // A thread that is ending has no such place any more; the burst is freed then.
    let _ = SPARE.try_with(|spare| spare.set(Some(burst)));
}

/// The sending side of a connection.
pub(crate) struct Tx {
    socket: Arc<Socket>,
    sender: Sender,
    cursor: SendCursor,
    /// Source of the message that the sender is in the middle of, and the request that its last frame
    /// completes.
    current: (Payload, Then),
    /// The immediate data that follow the current message.
    immediate: Option<u32>,
    unsent: Option<Box<Burst>>,
    /// The socket was full. The background thread, or a poll, clears this before it sends again
    /// ([`Tx::has_room`]).
    full: bool,
    /// Whether reads and atomics may be sent at all (ORD is not zero).
    may_read: bool,
    /// Whether a response goes first, so that neither side starves.
    responses_first: bool,
    closing: bool,
    /// The initiator's indication goes out once more.
    indicate_again: bool,
    /// Whether the burst being filled has frames, whose memory is opened only when they are sent.
    filling: bool,
    /// The next request waits until those frames are sent.
    held: bool,
    /// The secret from which sink STags are made. The peer learns each STag that is used, and cannot tell the
    /// next one from it.
    sink_key: keyed::Key,
    sinks: u64,
    /// Bytes of the current message that frames have been made of.
    framed: u32,
    /// Bytes of the peer's reads that were copied from memory before they are sent.
    kept: KeptReads,
    /// How far the stream has come.
    progress: SendProgress,
    /// The current message is a request that is answered.
    is_asking: bool,
    /// The current message answers one of the peer's.
    is_response: bool,
    /// The count of notes when a thread last began to look for all there is to send.
    pub(crate) heard: u32,
    /// The way into the peer's memory, if its process is on this host.
    near: Option<Box<Near>>,
    /// The messages through shared memory, if both ends are on this host.
    inbox: Option<Arc<Inbox>>,
    /// An operation in that memory goes on in later turns; and it has begun to do so in this one.
    copies: bool,
    begins_to_copy: bool,
    /// Faults of the wire.
    impaired: Option<DirectionFaults>,
    /// Shows the frames that leave to the log or a watcher, if there is one.
    observed: Option<Box<StreamObserver>>,
}

impl Tx {
    pub(crate) fn new(
        socket: Arc<Socket>,
        sender: Sender,
        may_read: bool,
        inbox: Option<Arc<Inbox>>,
    ) -> Self {
        Self {
            impaired: DirectionFaults::of(&socket),
            observed: StreamObserver::of(&socket, Direction::Out, sender.has_markers()),
            socket,
            sender,
            cursor: SendCursor::default(),
            current: (Payload::None, Then::Nothing),
            immediate: None,
            unsent: None,
            full: false,
            may_read,
            responses_first: true,
            closing: false,
            indicate_again: false,
            filling: false,
            held: false,
            sink_key: [random::word(), random::word()],
            sinks: 0,
            framed: 0,
            kept: KeptReads::default(),
            progress: SendProgress::default(),
            is_asking: false,
            is_response: false,
            heard: 0,
            near: None,
            inbox,
            copies: false,
            begins_to_copy: false,
        }
    }

    /// Puts the initiator's indication in front of everything.
    pub(crate) fn indicate(&mut self, message: Outbound, reads: &mut OutstandingReads<ReadSink>) {
        (self.is_asking, self.is_response) = (matches!(message, Outbound::ReadRequest(_)), false);
        if let Outbound::ReadRequest(request) = &message {
            let _ = reads.push_read(request, ReadSink { sequence: None, sge: Sge::default() });
        }
        let _ = self.sender.begin(message);
    }

    /// Puts a zero-length Write between two messages, as the initiator's indication is one.
    pub(crate) fn indicate_again(&mut self) {
        self.indicate_again = true;
    }

    /// The socket may have room again. Returns whether anything waited for that.
    pub(crate) fn has_room(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Ends the connection as soon as everything is sent.
    pub(crate) fn close_when_idle(&mut self) {
        self.closing = true;
        // Drain with patience: a full socket may have room by now.
        self.full = false;
    }

    /// The first request that has not been begun.
    pub(crate) fn next(&self) -> u64 {
        self.cursor.sequence()
    }

    /// Sends all that can be sent now. `carries_on`: long operations in the peer's memory go on.
    pub(crate) fn run(&mut self, endpoint: &Endpoint, carries_on: bool) -> Result<(), Cause> {
        self.begin_turn(endpoint, carries_on);
        let outcome = self.send_all(endpoint);
        self.end_turn(endpoint);
        outcome
    }

    fn send_all(&mut self, endpoint: &Endpoint) -> Result<(), Cause> {
        if self.full || !endpoint.may_send.load(Ordering::SeqCst) {
            if self.closing && !endpoint.may_send.load(Ordering::SeqCst) {
                return Err(Cause::Here);
            }
            return Ok(());
        }
        loop {
            let mut burst = match self.unsent.take() {
                Some(burst) => burst,
                None => take_burst(),
            };
            let mut failure = None;
            let mut last = false;
            if burst.frames.is_empty() {
                match self.fill(endpoint, &mut burst) {
                    Ok(all) => last = all && !self.closing,
                    Err(cause) => failure = Some(cause),
                }
                if burst.frames.is_empty() {
                    give_burst(burst);
                    return match failure {
                        Some(cause) => Err(cause),
                        None if self.closing && !self.copies && !endpoint.queues.waits_for_uses() => {
                            Err(Cause::Here)
                        }
                        None => Ok(()),
                    };
                }
            }
            let outcome = self.send(endpoint, &mut burst);
            if burst.sent < burst.total {
                self.unsent = Some(burst);
            } else {
                give_burst(burst);
                self.forget_kept(endpoint);
            }
            outcome?;
            if let Some(cause) = failure {
                return Err(cause);
            }
            endpoint.is_full.store(self.full, Ordering::Relaxed);
            // Full: an edge tells the background thread when there is room. Last: a thread that has posted
            // meanwhile has noted it, and this one looks for notes after it lets go of the lock.
            if self.full || last {
                return Ok(());
            }
        }
    }

    /// Sends a Terminate behind the burst that is under way, as far as the socket takes it, and nothing
    /// after.
    // RFC5040-5.4-4
    pub(crate) fn send_terminate(&mut self, endpoint: &Endpoint, terminate: Terminate) {
        let mut burst = self.unsent.take().unwrap_or_else(take_burst);
        if burst.sent < burst.total {
            let _ = self.send(endpoint, &mut burst);
        }
        if burst.sent < burst.total {
            // The peer is in the middle of a frame that we cannot complete: a Terminate would be taken for
            // its payload.
            return;
        }
        burst.clear();
        self.sender.abandon();
        if self.sender.begin(Outbound::Terminate(terminate)).is_ok()
            && let Some(fpdu) = self.sender.next_fpdu()
        {
            self.sender.seal(&fpdu, &[], &mut burst.bytes);
            if let Some(observed) = &mut self.observed {
                observed.terminates(endpoint, &terminate, self.progress.made(), &burst.bytes);
            }
            let _ = self.socket.send_all(&burst.bytes);
            endpoint.queues.counters.tx_frames.add(1);
        }
        give_burst(burst);
    }
}
