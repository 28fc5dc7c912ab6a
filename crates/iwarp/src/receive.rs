//! Receiving: the byte stream is taken apart and placed.
//!
//! Without CRC, payload is read from the socket straight to its place in memory. Only its last few bytes are
//! copied there, so that the end of a message never becomes visible before its beginning. With CRC or markers
//! a frame is collected and checked first, and then copied. The connection keeps the bytes that are left over
//! between two calls; the buffer itself is the thread's.

mod by_channel;
mod placing;

pub(crate) use by_channel::ArrivalOutcome;

use crate::behind::Wait;
use crate::endpoint::{Cause, Endpoint, ReadSink, Receipt, ReceivingThread};
use crate::impaired::{self, DirectionFaults, Resume};
use crate::local::{Channel, EndName, Inbox, published_name};
use crate::observer::{self, StreamObserver};
use crate::socket::{Socket, would_block};
use adverb_core::memory::{Reader, Span};
use adverb_core::qp::ReceiveWork;
use adverb_core::wire::Direction;
use adverb_proto::iwarp::{Arrival, Fault, Receiver, Segment, Step, Terminate};
use adverb_samehost::{PublishedPair, Terms};
use arrayvec::ArrayVec;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Length of the thread's buffer: room for the bytes that were left over, a whole frame with markers, and
/// more.
const BUFFER: usize = 192 << 10;
/// Bytes asked for when the next thing is a head and messages are small: as many as gathered messages bring
/// together.
const ASK: usize = 64 << 10;
/// Payloads of this length are large, and read straight to their place.
const LARGE: usize = 16 << 10;
/// Bytes asked for behind a large payload: room for the next heads, and for the rest of a message of 64 KiB,
/// which does not fit one frame. There is little more, so that little is copied.
const ASK_BEHIND: usize = 1 << 10;
/// So many frames after a large one the next large one is expected.
const BETWEEN: u8 = 4;
/// Payloads with at least this much left are read straight to their place.
const DIRECT: usize = 4 << 10;
/// The end of a payload that is copied though the rest was read in place.
const TAIL: usize = 8;
/// A call takes in no more than about this much, so that others get their turn.
const SLICE: usize = 512 << 10;
/// Parts of a scattered read.
const PARTS: usize = 40;

thread_local! {
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The receiving side of a connection.
pub(crate) struct Rx {
    socket: Arc<Socket>,
    receiver: Receiver,
    /// Bytes that were received and belong to a frame that is not complete.
    carry: Vec<u8>,
    /// The payload being placed.
    placing: Option<Placing>,
    /// Bytes of padding and CRC still to be passed over.
    skip: usize,
    /// The receive that the Send under way has taken.
    receive: Option<ReceiveWork>,
    /// Bytes of the RDMA Write under way, or of the last one.
    written: u32,
    write_open: bool,
    /// Frames since the last one with a large payload, up to [`BETWEEN`].
    since_large: u8,
    /// Bytes of the frame that is being collected; not before its length has come.
    collecting: usize,
    first: bool,
    /// A segment whose turn has not come yet.
    next: Option<Arrival>,
    /// Bytes or messages that have been received wait for this.
    postponed: Option<Until>,
    /// How long a message has waited for its receive.
    behind: Option<Wait>,
    /// Bytes of the stream that have been received.
    came: u64,
    /// The peer's process, if that is on this host, and its queue pair.
    near: Option<(Arc<Channel>, EndName)>,
    /// The entry of the shared table by which that process carries out operations here itself.
    published: Option<PublishedPair>,
    /// The messages through shared memory, if both ends are on this host.
    inbox: Option<Arc<Inbox>>,
    /// Messages that have come through shared memory and are taken in.
    by_channel: u64,
    /// Copies them into their receives.
    reader: Reader,
    /// The error by which such a message ends the connection. The next call of [`Rx::take_in`] returns it.
    failed: Option<Cause>,
    /// The error of TCP, while messages that came before it wait.
    lost: Option<io::Error>,
    /// A thread has held the transmit lock to take in such a message. Another thread that posted meanwhile
    /// found that lock taken, and relies on the first one to send: the next call of [`Rx::take_in`] asks its
    /// caller to.
    owes_send: bool,
    /// A record for the peer is in the channel, and the peer sleeps: the thread rings once it has let go of
    /// its locks.
    owes_ring: bool,
    /// Faults of the wire.
    impaired: Option<DirectionFaults>,
    /// Shows the segments that come to the log or a watcher, if there is one.
    observed: Option<Box<StreamObserver>>,
}

/// The event for which received bytes or messages wait.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// The end of this round ([`Endpoint::rounds`]).
    Round(u64),
    /// The bytes of the peer's reads have been taken.
    Reads,
    /// The program posts a receive, or its time for that is over.
    Receive,
    /// The wire lets it through.
    Wire,
}

#[derive(Clone, Copy, Debug)]
struct Placing {
    segment: Segment,
    target: Target,
    /// Placed so far.
    done: u32,
    /// Payload of the segment.
    length: u32,
}

/// Where the payload of a segment goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Write { stag: u32, to: u64 },
    Send { offset: u32 },
    Read { sink: ReadSink, offset: u32, complete: bool },
}

/// The outcome of [`Rx::take_in`].
#[derive(Default)]
pub(crate) struct TakeEffect {
    pub(crate) received: Receipt,
    /// The first frame of all came.
    pub(crate) first: bool,
    /// There is something to send: an answer, or a request that waited for a read to complete.
    pub(crate) transmit: bool,
    /// The slice is used up and the socket may have more.
    pub(crate) more: bool,
    /// A message waits for its receive, for so long.
    pub(crate) behind: Option<Wait>,
    /// The other side of this channel sleeps, and is to be woken.
    pub(crate) ring: Option<Arc<Channel>>,
    /// The connection ends.
    pub(crate) cause: Option<Cause>,
}

impl Rx {
    pub(crate) fn new(
        socket: Arc<Socket>,
        receiver: Receiver,
        early: &[u8],
        inbox: Option<Arc<Inbox>>,
        reader: Reader,
    ) -> Self {
        Self {
            impaired: DirectionFaults::of(&socket),
            observed: StreamObserver::of(&socket, Direction::In, false),
            socket,
            receiver,
            carry: early.to_vec(),
            placing: None,
            skip: 0,
            receive: None,
            written: 0,
            write_open: false,
            since_large: BETWEEN,
            collecting: 0,
            first: true,
            next: None,
            postponed: None,
            behind: None,
            came: early.len() as u64,
            near: None,
            published: None,
            inbox,
            by_channel: 0,
            reader,
            failed: None,
            lost: None,
            owes_send: false,
            owes_ring: false,
        }
    }

    /// The connection's peer is `peer` of the process of `channel`. False if that is known, or if this is
    /// another connection.
    pub(crate) fn meets(&mut self, socket: &Arc<Socket>, channel: &Arc<Channel>, peer: EndName) -> bool {
        let is_new = self.near.is_none() && Arc::ptr_eq(&self.socket, socket);
        if is_new {
            if let Some(inbox) = &self.inbox {
                inbox.meets(channel.neighbour.process());
            }
            self.near = Some((channel.clone(), peer));
        }
        is_new
    }

    /// The peer's process has asked for memory by a key. The key may now be published to that process, which
    /// then carries out operations there itself.
    #[inline]
    fn served(&mut self, endpoint: &Endpoint, key: u32) {
        let Some((channel, peer)) = &self.near else { return };
        let queues = &endpoint.queues;
        let terms = || Terms {
            number: published_name(queues.number),
            peer: peer.number,
            domain: queues.domain,
            access: endpoint.permitted.load(Ordering::SeqCst),
        };
        endpoint.host.hub.sharing.served(&**channel, queues, key, &mut self.published, terms);
    }

    /// Once the result is dropped, the peer's process carries out nothing here any more.
    pub(crate) fn unpublish(&mut self) -> Option<PublishedPair> {
        self.published.take()
    }

    /// Whether received bytes or messages wait for their turn.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_postponed(&self) -> bool {
        self.postponed.is_some()
    }

    /// Whether messages through shared memory wait, and not for bytes by TCP. The connection then goes on for
    /// them although TCP has ended.
    pub(crate) fn has_final_frames(&self) -> bool {
        self.postponed.is_some() && self.has_waiting()
    }

    /// TCP has failed: the connection ends once [`has_final_frames`](Self::has_final_frames) is false.
    pub(crate) fn loses(&mut self, error: io::Error) {
        self.lost.get_or_insert(error);
    }

    /// Takes in the bytes that the socket has, up to a slice.
    pub(crate) fn take_in(&mut self, endpoint: &Endpoint, by: ReceivingThread) -> TakeEffect {
        // For a message that `take_at_once` has taken in since the last call.
        let transmit = std::mem::take(&mut self.owes_send);
        let mut taken = TakeEffect { transmit, ring: self.takes_ring(), ..TakeEffect::default() };
        let goes_on = match self.postponed {
            Some(Until::Round(round)) => endpoint.rounds.have_ended(round),
            Some(Until::Receive) => endpoint.queues.receives_left() > 0 || !self.has_time_left(),
            Some(Until::Wire) => self.is_let_through(endpoint),
            Some(Until::Reads) | None => true,
        };
        if !goes_on {
            taken.behind = self.behind;
            return taken;
        }
        if let Some(cause) = self.failed.take() {
            (taken.cause, taken.received.worked) = (Some(cause), true);
            return taken;
        }
        let mut buffer =
            SPARE.try_with(Cell::take).ok().flatten().unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice());
        if let Err(cause) = self.take_in_through(endpoint, by, &mut buffer, &mut taken) {
            taken.cause = Some(cause);
            taken.received.worked = true;
        }
        if self.owes_ring {
            taken.ring = self.takes_ring();
        }
        let _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
        taken
    }

    fn take_in_through(
        &mut self,
        endpoint: &Endpoint,
        by: ReceivingThread,
        buffer: &mut [u8],
        taken: &mut TakeEffect,
    ) -> Result<(), Cause> {
        let counters = endpoint.queues.counters;
        let streaming = self.receiver.is_streaming();
        let (mut start, mut end) = (0, self.carry.len());
        buffer[..end].copy_from_slice(&self.carry);
        let early = end > 0 && self.first;
        let mut budget = SLICE;
        let mut drained = false;
        let mut eof = false;
        if self.postponed.take().is_some() {
            taken.received.worked = true;
            self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
        } else if early || self.has_waiting() {
            self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
        }
        while !drained && !eof && budget > 0 && self.postponed.is_none() && self.lost.is_none() {
            let (count, wanted) = match self.read(endpoint, buffer, &mut start, &mut end, streaming) {
                Ok(read) => read,
                Err(ReadError::Socket(error)) if would_block(&error) => break,
                Err(ReadError::Socket(error)) => {
                    self.drain_channel(endpoint);
                    self.lost = Some(error);
                    self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
                    break;
                }
                Err(ReadError::Cause(cause)) => return Err(cause),
            };
            self.drain_channel(endpoint);
            taken.received.worked = true;
            counters.rx_calls.add(1);
            match by {
                ReceivingThread::Poll => counters.rx_by_polls.add(1),
                ReceivingThread::Background => counters.rx_by_background.add(1),
            }
            eof = count == 0;
            self.came += count as u64;
            // After a short read the socket is empty. The next poll finds bytes that come later, or their
            // edge wakes the background thread. No edge follows the peer's end, so from then on the loop
            // reads until the socket has nothing.
            drained = count < wanted && !endpoint.is_ending.load(Ordering::SeqCst);
            budget = budget.saturating_sub(count);
            // The bytes may answer a request that another thread is sending at this instant: its completion
            // comes first, in a moment. PRACTICE-ORDER-1
            let round = endpoint.rounds.begun();
            if endpoint.rounds.have_ended(round) {
                self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
            } else {
                self.postponed = Some(Until::Round(round));
            }
        }
        if let Some(Until::Receive) = self.postponed {
            // The timer of `Behind` sees to that.
            taken.behind = self.behind;
        } else if !matches!(self.postponed, Some(Until::Wire)) {
            taken.more = (budget == 0 || self.postponed.is_some()) && !drained;
        }
        self.carry.clear();
        if self.postponed.is_none() {
            self.tell_taken(end - start);
        }
        self.carry.extend_from_slice(&buffer[start..end]);
        if self.carry.is_empty() && self.carry.capacity() > 256 {
            self.carry = Vec::new();
        }
        // Messages that came before the end may wait.
        let waits = self.has_final_frames();
        if let Some(error) = self.lost.take_if(|_| !waits) {
            return Err(Cause::Lost(error));
        }
        // Then the end is read again.
        if eof && !waits {
            // RFC5041-6.2.1-5: all complete messages have been delivered.
            let left = end - start + self.placing.map_or(0, |p| (p.length - p.done) as usize) + self.skip;
            return Err(match self.receiver.end_of_stream(left) {
                Ok(()) => Cause::Closed,
                Err(_) => Cause::Lost(io::Error::from_raw_os_error(libc::ECONNRESET)),
            });
        }
        Ok(())
    }

    /// One receive call, to the payload's place and the buffer behind `end`. Returns the bytes received and
    /// asked for.
    fn read(
        &mut self,
        endpoint: &Endpoint,
        buffer: &mut [u8],
        start: &mut usize,
        end: &mut usize,
        streaming: bool,
    ) -> Result<(usize, usize), ReadError> {
        if *start == *end {
            (*start, *end) = (0, 0);
        } else if *start > 0 && (buffer.len() - *end < ASK || !streaming) {
            buffer.copy_within(*start..*end, 0);
            (*start, *end) = (0, *end - *start);
        }
        let mut parts = ArrayVec::<libc::iovec, PARTS>::new();
        let mut spans = ArrayVec::<Span<'static>, PARTS>::new();
        let mut direct = 0;
        if let Some(placing) = &self.placing
            && *start == *end
            && (placing.length - placing.done) as usize >= DIRECT
        {
            let wanted = (placing.length - placing.done) as usize - TAIL;
            let placing = *placing;
            self.open(endpoint, &placing, placing.done, wanted as u32, |span| {
                if spans.is_full() || parts.len() + 1 >= PARTS {
                    return Ok(false);
                }
                parts.push(span.iovec(0, span.len()));
                direct += span.len();
                spans.push(span);
                Ok(true)
            })
            .map_err(ReadError::Cause)?;
            if direct < wanted {
                // More parts than fit: the buffer must not follow.
                return self.finish_read(endpoint, &mut parts, &mut spans, direct, end, 0);
            }
        }
        let room = buffer.len() - *end;
        let ask = match (streaming, direct) {
            (true, 0) if self.since_large == BETWEEN => ASK.min(room),
            (true, _) => ASK_BEHIND.min(room),
            // A large frame is collected alone: bytes of the next one would have to be moved to make room for
            // the rest.
            (false, _) => match self.collecting.saturating_sub(*end - *start) {
                rest if rest >= LARGE => (rest + ASK_BEHIND).min(room),
                _ if self.since_large < BETWEEN && *start == *end => ASK_BEHIND,
                _ => room,
            },
        };
        parts.push(libc::iovec { iov_base: buffer[*end..].as_mut_ptr().cast(), iov_len: ask });
        self.finish_read(endpoint, &mut parts, &mut spans, direct, end, ask)
    }

    fn finish_read(
        &mut self,
        endpoint: &Endpoint,
        parts: &mut ArrayVec<libc::iovec, PARTS>,
        spans: &mut ArrayVec<Span<'static>, PARTS>,
        direct: usize,
        end: &mut usize,
        ask: usize,
    ) -> Result<(usize, usize), ReadError> {
        // SAFETY: the parts are spans opened for writing, which live in `spans`, and the thread's own buffer.
        let result = unsafe { self.socket.receive(parts) };
        spans.clear();
        let count = match result {
            Ok(count) => count,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                let placing = self.placing;
                return Err(ReadError::Cause(match placing {
                    Some(placing) => self.refuse(endpoint, &placing, Fault::BaseBounds),
                    None => Cause::Lost(error),
                }));
            }
            Err(error) => return Err(ReadError::Socket(error)),
        };
        if let Some(placing) = &mut self.placing {
            placing.done += count.min(direct) as u32;
        }
        *end += count.saturating_sub(direct);
        Ok((count, direct + ask))
    }

    /// Takes apart and places the bytes in the buffer from `start` to `end`.
    fn work_off(
        &mut self,
        endpoint: &Endpoint,
        buffer: &mut [u8],
        start: &mut usize,
        end: &mut usize,
        taken: &mut TakeEffect,
    ) -> Result<(), Cause> {
        let counters = endpoint.queues.counters;
        loop {
            if let Some(mut placing) = self.placing {
                let here = (*end - *start).min((placing.length - placing.done) as usize);
                self.place(endpoint, &placing, &buffer[*start..*start + here])?;
                *start += here;
                placing.done += here as u32;
                self.placing = Some(placing);
                if placing.done < placing.length {
                    return Ok(());
                }
                self.placing = None;
                self.finish(endpoint, &placing, taken)?;
            }
            if let Some(arrival) = self.next {
                // PRACTICE-ORDER-2
                if changes_memory(&arrival.segment) && !endpoint.take_reads(&mut taken.transmit) {
                    self.postponed = Some(Until::Reads);
                    return Ok(());
                }
                // PRACTICE-RECEIVE-1
                if takes_receive(&arrival.segment) && !self.take_receive(endpoint) {
                    self.postponed = Some(Until::Receive);
                    return Ok(());
                }
                self.next = None;
                self.skip = arrival.trailer_len;
                self.begin(endpoint, &arrival, taken)?;
                continue;
            }
            let skipped = self.skip.min(*end - *start);
            *start += skipped;
            self.skip -= skipped;
            // A frame begins at this place of the stream. Messages through shared memory that belong before
            // it come first.
            if self.skip == 0 && self.has_waiting() {
                self.deliver_waiting(endpoint, self.came - (*end - *start) as u64, taken)?;
                if self.postponed.is_some() {
                    return Ok(());
                }
            }
            if self.skip > 0 || *start == *end {
                return Ok(());
            }
            let window = &mut buffer[*start..*end];
            // RFC5044-4.4-3
            let step = if self.receiver.is_streaming() {
                self.receiver.next(window)
            } else {
                self.receiver.next_checked(window)
            };
            let arrival = match step {
                Ok(Step::Need(length)) => {
                    self.collecting = length;
                    return Ok(());
                }
                Ok(Step::Segment(arrival)) => arrival,
                Err(error) => return Err(Cause::Fault(error.fault, error.terminate)),
            };
            counters.rx_frames.add(1);
            if let Some(observed) = &mut self.observed {
                observed.came(endpoint, &arrival, self.came - (*end - *start) as u64);
            }
            if std::mem::take(&mut self.first) {
                endpoint.may_send.store(true, Ordering::SeqCst);
                taken.first = true;
                taken.transmit = true;
            }
            *start += arrival.head_len;
            self.collecting = 0;
            self.since_large =
                if arrival.payload_len >= LARGE { 0 } else { BETWEEN.min(self.since_large + 1) };
            self.next = Some(arrival);
            if self.impaired.is_some() && !self.may_come(endpoint, &arrival)? {
                return Ok(());
            }
        }
    }

    /// Whether the wire lets the frame through that it has kept.
    #[cold]
    fn is_let_through(&mut self, endpoint: &Endpoint) -> bool {
        let Some(impaired) = &mut self.impaired else { return true };
        let asks_again = impaired.left().is_none() && std::mem::take(&mut impaired.asks_again);
        if let Some(arrival) = self.next.filter(|_| asks_again) {
            // A connection that is cut meanwhile ends with the next frame.
            let _ = self.may_come(endpoint, &arrival);
        }
        self.impaired.as_ref().is_none_or(|impaired| impaired.left().is_none())
    }

    /// Asks the wire about a frame that has come. Whether it is taken in now.
    #[cold]
    fn may_come(&mut self, endpoint: &Endpoint, arrival: &Arrival) -> Result<bool, Cause> {
        let Some(impaired) = &mut self.impaired else { return Ok(true) };
        let length = arrival.head_len + arrival.payload_len + arrival.trailer_len;
        let fate = impaired.pass(Direction::In, observer::kind(arrival.segment.opcode()), length);
        if fate.is_cut {
            return Err(impaired::cut(&self.socket));
        }
        if fate.damage.is_some() {
            return Err(Cause::Fault(Fault::Crc, Terminate::local(Fault::Crc)));
        }
        let Some(left) = impaired.left() else { return Ok(true) };
        self.postponed = Some(Until::Wire);
        Resume::after(endpoint, left);
        Ok(false)
    }
}

/// Whether a segment changes memory, or lets the program do so, since it is told.
fn changes_memory(segment: &Segment) -> bool {
    matches!(
        segment,
        Segment::Write { .. }
            | Segment::Send { .. }
            | Segment::AtomicRequest { .. }
            | Segment::Immediate { .. }
    )
}

/// Whether a message begins that takes a receive.
fn takes_receive(segment: &Segment) -> bool {
    matches!(segment, Segment::Send { first: true, .. } | Segment::Immediate { .. })
}

enum ReadError {
    Socket(io::Error),
    Cause(Cause),
}
