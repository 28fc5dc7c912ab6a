//! The two ends of RDMA Reads and atomic operations: what is outstanding at the peer, and what the peer has
//! asked for.

use std::collections::VecDeque;

use super::fault::{Fault, Terminate};
use super::message::{AtomicRequest, AtomicResponse, Outbound, ReadRequest, Segment};

/// The requests that this end has sent and that are not answered, in order (RFC 5040 section 5.5, rule 20:
/// responses come in the order of the requests). `T` is whatever the user wants back, such as a work request.
///
/// Each read has a sink STag of its own, valid for its response only: nothing else may use it, and a response
/// that does not fit it, its offset or its length byte for byte is a [`Fault`].
#[derive(Clone, Debug)]
pub struct OutstandingReads<T> {
    queue: VecDeque<Outstanding<T>>,
    limit: usize,
    /// Bytes that have come for the read at the front.
    arrived: u32,
}

#[derive(Clone, Debug)]
struct Outstanding<T> {
    kind: Kind,
    token: T,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read { stag: u32, to: u64, len: u32 },
    Atomic { id: u32 },
}

/// Where the payload of a Read Response segment belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadPlacement {
    /// Offset in the data of the read at the front.
    pub offset: u32,
    /// The read is complete once this payload is placed: then call [`OutstandingReads::pop`].
    pub complete: bool,
}

impl<T> OutstandingReads<T> {
    /// Room for `limit` requests: the agreed ORD. Memory is taken as it is needed.
    // RFC5040-6.1-2, RFC5040-8.1.1-4, RFC7306-5.2.2-4
    pub fn new(limit: usize) -> OutstandingReads<T> {
        OutstandingReads { queue: VecDeque::new(), limit, arrived: 0 }
    }

    /// Requests outstanding.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Nothing is outstanding: a fence is passed.
    // RFC5040-5.5-9
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The ORD is used up: further requests wait.
    pub fn is_full(&self) -> bool {
        self.queue.len() >= self.limit
    }

    /// Adds a read, before its request is sent.
    ///
    /// # Errors
    /// The token comes back if [`OutstandingReads::is_full`].
    pub fn push_read(&mut self, request: &ReadRequest, token: T) -> Result<(), T> {
        let kind = Kind::Read { stag: request.sink_stag, to: request.sink_to, len: request.len };
        self.push(kind, token)
    }

    /// Adds an atomic operation, before its request is sent.
    ///
    /// # Errors
    /// The token comes back if [`OutstandingReads::is_full`].
    pub fn push_atomic(&mut self, request: &AtomicRequest, token: T) -> Result<(), T> {
        self.push(Kind::Atomic { id: request.id }, token)
    }

    fn push(&mut self, kind: Kind, token: T) -> Result<(), T> {
        // RFC5040-6.1-3, RFC7306-5.2-1
        if self.is_full() {
            return Err(token);
        }
        self.queue.push_back(Outstanding { kind, token });
        Ok(())
    }

    /// What belongs to the request at the front.
    pub fn front(&self) -> Option<&T> {
        self.queue.front().map(|request| &request.token)
    }

    /// Checks a segment of a Read Response against the read at the front, before its payload is placed.
    ///
    /// # Errors
    /// The [`Fault`] for [`Arrival::terminate`](super::Arrival::terminate). Nothing may be placed.
    // RFC5040-5.2.2-6: the sink may check all of this. The codes are those of DDP, as there are none for
    // "not what was asked for".
    pub fn read_response(
        &mut self,
        stag: u32,
        to: u64,
        payload_len: usize,
        last: bool,
    ) -> Result<ReadPlacement, Fault> {
        let Some(Outstanding { kind: Kind::Read { stag: expected_stag, to: expected_to, len }, .. }) =
            self.queue.front()
        else {
            return Err(Fault::InvalidStag);
        };
        let offset = self.arrived;
        let rest = (len - offset) as usize;
        // The tag and offset of a segment without payload mean nothing.
        if payload_len != 0 {
            // RFC5041-8.2-2, RFC5041-8.2-3
            if stag != *expected_stag {
                return Err(Fault::InvalidStag);
            }
            if to != expected_to.wrapping_add(offset as u64) {
                return Err(Fault::BaseBounds);
            }
        }
        if payload_len > rest || last != (payload_len == rest) {
            return Err(Fault::BaseBounds);
        }
        self.arrived += payload_len as u32;
        // RFC5040-5.5-7, RFC5040-5.5-8
        Ok(ReadPlacement { offset, complete: last })
    }

    /// Checks an Atomic Response against the operation at the front; if it fits, call
    /// [`OutstandingReads::pop`].
    ///
    /// # Errors
    /// The [`Fault`] for [`Arrival::terminate`](super::Arrival::terminate).
    // RFC7306-5.2.2-5, RFC7306-5.2.2-7, RFC7306-5.4-2
    pub fn atomic_response(&self, response: &AtomicResponse) -> Result<(), Fault> {
        match self.queue.front() {
            Some(Outstanding { kind: Kind::Atomic { id }, .. }) if *id == response.id => Ok(()),
            Some(Outstanding { kind: Kind::Atomic { .. }, .. }) => Err(Fault::Malformed),
            _ => Err(Fault::UnexpectedOpcode),
        }
    }

    /// Takes the request at the front out: it is complete, or the stream is over and everything is flushed.
    // RFC5040-5.2.2-3
    pub fn pop(&mut self) -> Option<T> {
        self.arrived = 0;
        self.queue.pop_front().map(|request| request.token)
    }
}

/// A request of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InboundRequest {
    /// To be answered with the data.
    Read {
        /// Number of the request message.
        msn: u32,
        /// The request.
        request: ReadRequest,
    },
    /// To be answered with the original value.
    Atomic {
        /// Number of the request message.
        msn: u32,
        /// The request.
        request: AtomicRequest,
        /// What was there before the operation, which has been done.
        original: u64,
    },
}

impl InboundRequest {
    /// The response to a read; `None` for an atomic operation, whose response needs its result.
    pub fn read_response(&self) -> Option<Outbound> {
        match self {
            InboundRequest::Read { request, .. } => Some(Outbound::ReadResponse {
                // RFC5040-4.4-2, RFC5040-4.4-3
                sink_stag: request.sink_stag,
                sink_to: request.sink_to,
                len: request.len,
            }),
            InboundRequest::Atomic { .. } => None,
        }
    }

    /// The Terminate for a fault found with this request when `sent` bytes of its response were on the way:
    /// the copy of the request says how far it had come (RFC 5040 section 4.8).
    pub fn terminate(&self, fault: Fault, sent: u32) -> Terminate {
        match *self {
            InboundRequest::Read { msn, mut request } => {
                // RFC5040-4.8-8
                let sent = sent.min(request.len);
                request.sink_to = request.sink_to.wrapping_add(sent as u64);
                request.source_to = request.source_to.wrapping_add(sent as u64);
                request.len -= sent;
                Segment::ReadRequest { msn, request }.terminate(fault, 0)
            }
            InboundRequest::Atomic { msn, request, .. } => {
                Segment::AtomicRequest { msn, request }.terminate(fault, 0)
            }
        }
    }
}

/// The requests of the peer that are not answered, in order. They are answered in that order, when everything
/// before them in the stream has been delivered.
#[derive(Clone, Debug)]
pub struct InboundReads {
    queue: VecDeque<InboundRequest>,
    limit: usize,
}

impl InboundReads {
    /// Room for `limit` requests: the agreed IRD. Memory is taken as it is needed.
    // RFC5040-5.2.2-2, RFC5040-6.1-2, RFC5040-8.1.2-2, RFC7306-5.2.2-3
    pub fn new(limit: usize) -> InboundReads {
        InboundReads { queue: VecDeque::new(), limit }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`Fault::CatastrophicStream`]: the peer has more requests outstanding than agreed.
    // RFC5040-6.1-4: the agreed number is not exceeded.
    pub fn push(&mut self, request: InboundRequest) -> Result<(), Fault> {
        self.check_room()?;
        self.queue.push_back(request);
        Ok(())
    }

    /// Whether another request may come: an atomic operation is done before it is added.
    ///
    /// # Errors
    /// As of [`InboundReads::push`].
    pub fn check_room(&self) -> Result<(), Fault> {
        if self.queue.len() < self.limit { Ok(()) } else { Err(Fault::CatastrophicStream) }
    }

    /// All requests that are not answered, in order.
    pub fn iter(&self) -> impl Iterator<Item = &InboundRequest> {
        self.queue.iter()
    }

    /// The request to answer now. It counts until the last byte of its response has been handed to TCP.
    // RFC5040-5.2.1-5, RFC5040-5.2.2-4, RFC7306-5.2.1-7, RFC7306-5.2.2-6
    pub fn front(&self) -> Option<&InboundRequest> {
        self.queue.front()
    }

    /// Takes the request at the front out: it has been answered.
    pub fn pop(&mut self) -> Option<InboundRequest> {
        self.queue.pop_front()
    }

    /// Requests not answered.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Nothing is left to answer.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::AtomicOperation;

    fn request(sink_stag: u32, len: u32) -> ReadRequest {
        ReadRequest { sink_stag, sink_to: 1000, len, source_stag: 9, source_to: 9000 }
    }

    fn atomic(id: u32) -> AtomicRequest {
        AtomicRequest { id, stag: 1, to: 8, operation: AtomicOperation::swap(1) }
    }

    // RFC5040-6.1-2, RFC5040-6.1-3, RFC7306-5.2.2-4
    #[test]
    fn no_more_than_the_limit_are_outstanding() {
        let mut reads = OutstandingReads::new(2);
        assert!(reads.is_empty());
        assert_eq!(reads.push_read(&request(1, 4), 'a'), Ok(()));
        assert_eq!(reads.push_atomic(&atomic(1), 'b'), Ok(()));
        assert!(reads.is_full());
        assert_eq!(reads.push_read(&request(2, 4), 'c'), Err('c'));
        assert_eq!((reads.pop(), reads.pop(), reads.pop()), (Some('a'), Some('b'), None));
        let mut none = OutstandingReads::new(0);
        assert_eq!(none.push_read(&request(1, 0), ()), Err(()));
    }

    // RFC5040-5.2.2-3, RFC5040-5.5-2, RFC5040-5.5-7, RFC5040-5.5-8
    #[test]
    fn responses_complete_reads_in_order() {
        let mut reads = OutstandingReads::new(3);
        reads.push_read(&request(1, 100), 'a').unwrap();
        reads.push_read(&request(2, 0), 'b').unwrap();
        reads.push_read(&request(3, 7), 'c').unwrap();
        assert_eq!(reads.read_response(1, 1000, 60, false), Ok(ReadPlacement { offset: 0, complete: false }));
        assert_eq!(reads.read_response(1, 1060, 40, true), Ok(ReadPlacement { offset: 60, complete: true }));
        assert_eq!(reads.pop(), Some('a'));
        // Tag and offset of an empty response are not looked at (RFC5041-5.2-8).
        assert_eq!(reads.read_response(77, 88, 0, true), Ok(ReadPlacement { offset: 0, complete: true }));
        assert_eq!(reads.pop(), Some('b'));
        assert_eq!(reads.front(), Some(&'c'));
        assert_eq!(reads.read_response(3, 1000, 7, true), Ok(ReadPlacement { offset: 0, complete: true }));
    }

    // RFC5040-5.2.2-6, RFC5041-8.2-2, RFC5041-8.2-3
    #[test]
    fn responses_must_be_what_was_asked_for() {
        let mut reads = OutstandingReads::new(3);
        assert_eq!(reads.read_response(1, 1000, 1, true), Err(Fault::InvalidStag));
        reads.push_read(&request(1, 100), ()).unwrap();
        assert_eq!(reads.read_response(2, 1000, 100, true), Err(Fault::InvalidStag));
        assert_eq!(reads.read_response(1, 1001, 100, true), Err(Fault::BaseBounds));
        assert_eq!(reads.read_response(1, 1000, 101, true), Err(Fault::BaseBounds));
        assert_eq!(reads.read_response(1, 1000, 99, true), Err(Fault::BaseBounds));
        assert_eq!(reads.read_response(1, 1000, 100, false), Err(Fault::BaseBounds));
        assert_eq!(reads.read_response(1, 1000, 10, false), Ok(ReadPlacement { offset: 0, complete: false }));
        assert_eq!(reads.read_response(1, 1000, 10, false), Err(Fault::BaseBounds));
        assert_eq!(reads.read_response(1, 1010, 91, true), Err(Fault::BaseBounds));
        let response = AtomicResponse { id: 1, original: 0 };
        assert_eq!(reads.atomic_response(&response), Err(Fault::UnexpectedOpcode));
        reads.pop();
        assert_eq!(reads.atomic_response(&response), Err(Fault::UnexpectedOpcode));
    }

    // RFC5040-4.4-4
    #[test]
    fn a_read_may_be_as_long_as_32_bits_allow() {
        let mut reads = OutstandingReads::new(1);
        reads.push_read(&ReadRequest { sink_to: u64::MAX - 5, ..request(1, u32::MAX) }, ()).unwrap();
        // The sink offset may wrap around; what counts is that it is the next one.
        let mut to = u64::MAX - 5;
        let mut left = u32::MAX;
        while left > 60_000 {
            let placement = reads.read_response(1, to, 60_000, false).unwrap();
            assert_eq!(placement, ReadPlacement { offset: u32::MAX - left, complete: false });
            to = to.wrapping_add(60_000);
            left -= 60_000;
        }
        let placement = reads.read_response(1, to, left as usize, true).unwrap();
        assert_eq!(placement, ReadPlacement { offset: u32::MAX - left, complete: true });
    }

    // RFC7306-5.2.2-5, RFC7306-5.2.2-7, RFC7306-5.4-2
    #[test]
    fn atomic_responses_must_name_the_operation_at_the_front() {
        let mut reads = OutstandingReads::new(3);
        reads.push_atomic(&atomic(5), 'x').unwrap();
        reads.push_atomic(&atomic(6), 'y').unwrap();
        assert_eq!(reads.atomic_response(&AtomicResponse { id: 6, original: 0 }), Err(Fault::Malformed));
        assert_eq!(reads.read_response(1, 1000, 1, true), Err(Fault::InvalidStag));
        assert_eq!(reads.atomic_response(&AtomicResponse { id: 5, original: 0 }), Ok(()));
        assert_eq!(reads.pop(), Some('x'));
    }

    // RFC5040-6.1-4, RFC5040-5.2.1-5, RFC5040-5.2.2-2, RFC5040-8.1.1-4, RFC5040-8.1.2-2, RFC7306-5.2-1,
    // RFC7306-5.2.1-7, RFC7306-5.2.2-3
    #[test]
    fn the_peer_may_not_ask_for_more_than_agreed() {
        let mut inbound = InboundReads::new(2);
        let first = InboundRequest::Read { msn: 1, request: request(1, 5) };
        let second = InboundRequest::Atomic { msn: 2, request: atomic(3), original: 0 };
        inbound.push(first).unwrap();
        inbound.push(second).unwrap();
        assert_eq!(inbound.push(first), Err(Fault::CatastrophicStream));
        assert_eq!((inbound.front(), inbound.len()), (Some(&first), 2));
        assert_eq!((inbound.pop(), inbound.pop()), (Some(first), Some(second)));
        assert!(inbound.is_empty());
        // RFC5040-4.4-2, RFC5040-4.4-3
        let response = Outbound::ReadResponse { sink_stag: 1, sink_to: 1000, len: 5 };
        assert_eq!((first.read_response(), second.read_response()), (Some(response), None));
    }

    // RFC5040-4.8-8, RFC7306-8.1-2
    #[test]
    fn a_terminate_says_how_far_a_read_has_come() {
        let inbound = InboundRequest::Read { msn: 4, request: request(1, 5000) };
        let copy = inbound.terminate(Fault::AccessRights, 2048).read_request().unwrap();
        assert_eq!(
            copy,
            ReadRequest {
                sink_stag: 1,
                sink_to: 1000 + 2048,
                len: 5000 - 2048,
                source_stag: 9,
                source_to: 9000 + 2048,
            }
        );
        assert_eq!(inbound.terminate(Fault::AccessRights, u32::MAX).read_request().unwrap().len, 0);
        let atomic = InboundRequest::Atomic { msn: 4, request: atomic(1), original: 0 };
        let terminate = atomic.terminate(Fault::CatastrophicStream, 0);
        assert_eq!((terminate.read_request(), terminate.segment_len()), (None, Some(70)));
    }
}
