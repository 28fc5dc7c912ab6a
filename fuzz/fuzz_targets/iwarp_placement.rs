//! Reads and atomics under way in both directions, and a peer that answers and asks whatever it likes, in
//! frames that are right: nothing is placed but what was asked for, in order and once, and no more waits than
//! was agreed.
#![no_main]

use adverb_proto::iwarp::mpa::Parameters;
use adverb_proto::iwarp::{
    AtomicOperation, AtomicRequest, AtomicResponse, Fault, InboundReads, InboundRequest, Outbound,
    OutstandingReads, ReadRequest, Receiver, Segment, Sender, Step,
};
use libfuzzer_sys::fuzz_target;

#[path = "../parameters.rs"]
mod parameters;

/// What may be under way in each direction.
const ORD: usize = 4;
const IRD: usize = 4;
/// Without CRC and markers, with the extensions of RFC 7306.
const PLAIN: u8 = 32;
const SINK: u64 = 0xffff_ffff_ffff_ff00;

/// A read of ours, or an atomic operation, and how many of its bytes have come.
#[derive(Clone, Copy)]
struct PendingRead {
    read: Option<ReadRequest>,
    come: u32,
}

/// Our end.
struct End {
    receiver: Receiver,
    reads: OutstandingReads<usize>,
    inbound: InboundReads,
    /// All that was ever asked for, and how much of it is complete.
    asked: Vec<PendingRead>,
    complete: usize,
    /// The number of the peer's messages so far that have a number.
    sends: u32,
    requests: u32,
}

impl End {
    fn new() -> Self {
        End {
            receiver: Receiver::new(&parameters::from(PLAIN & !parameters::CHECKED)),
            reads: OutstandingReads::new(ORD),
            inbound: InboundReads::new(IRD),
            asked: Vec::new(),
            complete: 0,
            sends: 0,
            requests: 0,
        }
    }

    fn ask(&mut self, len: u32, is_read: bool) {
        let number = self.asked.len();
        let read =
            ReadRequest { sink_stag: number as u32 + 1, sink_to: SINK, len, source_stag: 1, source_to: 0 };
        let atomic = AtomicRequest { id: number as u32, stag: 1, to: 0, operation: AtomicOperation::swap(1) };
        let is_full = self.reads.is_full();
        let pushed = match is_read {
            true => self.reads.push_read(&read, number),
            false => self.reads.push_atomic(&atomic, number),
        };
        assert_eq!(pushed.is_err(), is_full);
        if !is_full {
            self.asked.push(PendingRead { read: is_read.then_some(read), come: 0 });
        }
    }

    /// A frame of the peer's, which is one by itself.
    fn take(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let mut there = 0;
        let arrival = loop {
            match self.receiver.next(&frame[..there]).map_err(|error| error.fault)? {
                Step::Need(more) => {
                    assert!(more > there && more <= Receiver::MAX_HEAD_LEN);
                    // The frame is whole, so it has as many bytes as its length says.
                    assert!(more <= frame.len(), "{more} of {}", frame.len());
                    there = more;
                }
                Step::Segment(arrival) => break arrival,
            }
        };
        assert_eq!(arrival.total_len(), frame.len());
        let length = arrival.payload_len as u32;
        match arrival.segment {
            Segment::ReadResponse { stag, to, last } => {
                let front = self.reads.front().copied();
                let place = self.reads.read_response(stag, to, arrival.payload_len, last)?;
                let front = front.expect("nothing was asked for");
                assert_eq!(front, self.complete, "the oldest is answered first");
                let asked = &mut self.asked[front];
                let read = asked.read.expect("an atomic operation has no payload");
                assert_eq!(place.offset, asked.come, "bytes come once, in order");
                asked.come += length;
                assert!(asked.come <= read.len, "beyond what was asked for");
                if length > 0 {
                    assert_eq!((stag, to), (read.sink_stag, read.sink_to.wrapping_add(place.offset.into())));
                }
                assert_eq!(place.complete, last);
                if place.complete {
                    assert_eq!(asked.come, read.len, "a part is missing");
                    self.complete += 1;
                    assert_eq!(self.reads.pop(), Some(front));
                }
            }
            Segment::AtomicResponse { response, .. } => {
                let front = self.reads.front().copied();
                self.reads.atomic_response(&response)?;
                let front = front.expect("nothing was asked for");
                assert!(front == self.complete && response.id as usize == front);
                assert!(self.asked[front].read.is_none(), "a read has no original");
                self.complete += 1;
                assert_eq!(self.reads.pop(), Some(front));
            }
            Segment::ReadRequest { msn, request } => {
                self.admit(msn, InboundRequest::Read { msn, request })?
            }
            Segment::AtomicRequest { msn, request } => {
                self.admit(msn, InboundRequest::Atomic { msn, request, original: 0 })?
            }
            Segment::Send { msn, last, .. } => {
                assert_eq!(msn, self.sends + 1);
                self.sends += u32::from(last);
            }
            Segment::Immediate { msn, .. } => {
                self.sends += 1;
                assert_eq!(msn, self.sends);
            }
            Segment::Write { .. } | Segment::ReadyToReceive => {}
            Segment::Terminate(_) => return Err(Fault::StreamLost),
        }
        Ok(())
    }

    fn admit(&mut self, msn: u32, request: InboundRequest) -> Result<(), Fault> {
        let is_full = self.inbound.len() == IRD;
        let pushed = self.inbound.push(request);
        assert_eq!(pushed.is_err(), is_full, "no more than was agreed");
        pushed?;
        self.requests += 1;
        assert_eq!(msn, self.requests);
        Ok(())
    }

    fn check(&self) {
        assert!(self.reads.len() <= ORD && self.inbound.len() <= IRD);
        assert_eq!(self.reads.len(), self.asked.len() - self.complete);
    }
}

/// What the peer says: near to what is right, as far as the numbers say so.
fn message(end: &End, choice: u8, number: u32) -> Outbound {
    let front = end.reads.front().map(|front| (*front, end.asked[*front]));
    let (stag, come, rest) = match front {
        Some((front, PendingRead { read: Some(read), come })) => (front as u32 + 1, come, read.len - come),
        _ => (number, 0, number & 0xff),
    };
    let wrong = number >> 24;
    let len = if wrong & 1 == 0 { rest } else { number & 0xffff };
    match choice % 8 {
        0 | 1 => Outbound::ReadResponse {
            sink_stag: if wrong & 2 == 0 { stag } else { number },
            sink_to: if wrong & 4 == 0 { SINK.wrapping_add(come.into()) } else { number.into() },
            len,
        },
        2 => Outbound::AtomicResponse(AtomicResponse {
            id: if wrong & 1 == 0 { front.map_or(0, |(front, _)| front as u32) } else { number },
            original: 0,
        }),
        3 => Outbound::ReadRequest(ReadRequest {
            sink_stag: number,
            sink_to: 0,
            len: number,
            source_stag: number,
            source_to: u64::MAX,
        }),
        4 => Outbound::AtomicRequest(AtomicRequest {
            id: number,
            stag: number,
            to: number.into(),
            operation: AtomicOperation::FetchAdd { add: number.into(), mask: number.into() },
        }),
        5 => Outbound::Immediate { data: [choice; 8], solicited: wrong & 1 == 0 },
        6 => Outbound::Write { stag: number, to: number.into(), len: number & 0xfff },
        _ => Outbound::Send {
            len: number & 0xfff,
            solicited: false,
            invalidate: (wrong & 1 == 0).then_some(number),
        },
    }
}

fuzz_target!(|input: &[u8]| {
    let initiator = Parameters { initiator: true, ..parameters::from(PLAIN & !parameters::CHECKED) };
    let mut end = End::new();
    // Small frames: what is long comes in several.
    let mut sender = Sender::new(&initiator, 256);
    for step in input.as_chunks::<6>().0 {
        let [choice, damage, word @ ..] = *step;
        let number = u32::from_le_bytes(word);
        match choice >> 5 {
            0 | 1 => end.ask(number & 0x3ff, choice & 1 == 0),
            2 => drop(end.inbound.pop()),
            _ => {
                let said = message(&end, choice, number);
                if sender.begin(said).is_err() {
                    return;
                }
                while let Some(fpdu) = sender.next_fpdu() {
                    let payload = vec![choice; fpdu.payload_len()];
                    let mut frame = Vec::new();
                    sender.seal(&fpdu, &payload, &mut frame);
                    // Behind the length, so that the frame stays one.
                    if damage & 0x80 != 0 && frame.len() > 3 {
                        let at = 2 + usize::from(damage & 0x1f) % (frame.len() - 2);
                        frame[at] ^= word[0];
                    }
                    if end.take(&frame).is_err() {
                        end.check();
                        return;
                    }
                    end.check();
                }
            }
        }
    }
});
