//! The transmitting half of a stream: messages into FPDUs.

use std::convert::Infallible;
use std::ops::Range;

use adverb_wire::ddp::{self, Control, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use adverb_wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, fpdu_len, padding};
use adverb_wire::rdmap::{self, Opcode};

use super::framing::{Checksum, MAX_TRAILER, MarkerPosition, Weaver};
use super::message::{Outbound, put};
use super::mpa::Parameters;

/// Longest head of an FPDU: the length, an untagged header and the longest body (that of an Atomic Request;
/// that of a Terminate is as long).
const MAX_HEAD: usize = LENGTH_LEN + UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN;

/// The trailer of an FPDU without CRC: send the first [`Fpdu::trailer_len`] bytes of it.
// RFC5044-4.1-2, RFC5044-4.1-3, RFC5044-4.4-6: padding is zero; the CRC field is there even when nobody
// computes it.
pub const ZERO_TRAILER: [u8; MAX_TRAILER] = [0; MAX_TRAILER];

/// One FPDU of the message that is being sent.
///
/// Without CRC and markers ([`Sender::is_plain`]) it goes out as [`Fpdu::head`], the bytes [`Fpdu::payload`]
/// of the message, and [`Fpdu::trailer_len`] zeros, best in one gathered write. Otherwise [`Sender::seal`]
/// makes the frame.
#[derive(Clone, Copy, Debug)]
pub struct Fpdu {
    /// The head, followed by zeros.
    bytes: [u8; (MAX_HEAD + MAX_TRAILER).next_multiple_of(8)],
    head_len: u8,
    trailer_len: u8,
    last: bool,
    offset: u32,
    len: u32,
}

impl Fpdu {
    /// MPA length, DDP header, and the whole body of messages that have no payload of the program.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.head_len as usize]
    }

    /// The part of the message's payload that follows the head.
    #[inline]
    pub fn payload(&self) -> Range<u64> {
        self.offset as u64..self.offset as u64 + self.len as u64
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of padding and CRC that follow the payload, 4 to 7.
    #[inline]
    pub fn trailer_len(&self) -> usize {
        self.trailer_len as usize
    }

    /// The whole frame, with a zero trailer, if it has no payload. Only to be sent without CRC and markers.
    #[inline]
    pub fn without_payload(&self) -> Option<&[u8]> {
        (self.len == 0).then(|| &self.bytes[..self.head_len as usize + self.trailer_len as usize])
    }

    /// Bytes of the frame, markers aside.
    #[inline]
    pub fn len(&self) -> usize {
        self.head_len as usize + self.len as usize + self.trailer_len as usize
    }

    /// Never: an FPDU has a head.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The message is complete with this one.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.last
    }
}

/// Why a message was not begun. Nothing has been sent and nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// The peer has not shown that it has the operations of RFC 7306.
    #[error("the peer does not have immediate data and atomic operations (RFC 7306)")]
    NotNegotiated,
    /// The message before is not complete.
    #[error("the message before is not complete")]
    Busy,
    /// A Terminate or the end of the stream has been sent.
    #[error("this direction of the stream has ended")]
    Closed,
}

/// The transmitting half of a stream. It numbers messages, cuts them into FPDUs and makes the frames, but
/// holds no payload.
///
/// Messages go out whole, one after the other: [`Sender::begin`], then [`Sender::next_fpdu`] until it has
/// yielded the last one; the next message may begin at once. Every FPDU that was yielded must be sent, in
/// order, or the stream is of no more use.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The message that is being sent, and how much of it is in FPDUs.
    current: Option<(Outbound, u32)>,
    max_ulpdu: u32,
    /// Next message sequence number of each untagged queue.
    msn: [u32; 4],
    crc: bool,
    markers: Option<MarkerPosition>,
    large: bool,
    extensions: bool,
    closed: bool,
}

impl Sender {
    /// A stream at its beginning. `emss`: payload of a TCP segment as it is now, in bytes; FPDUs are not made
    /// larger unless the peer takes that. Any value is accepted.
    pub fn new(parameters: &Parameters, emss: usize) -> Sender {
        let mut sender = Sender {
            current: None,
            max_ulpdu: 0,
            msn: [ddp::FIRST_MSN; 4],
            crc: parameters.crc,
            markers: parameters.markers_tx.then_some(MarkerPosition::START),
            large: parameters.large_fpdu,
            extensions: parameters.extensions,
            closed: false,
        };
        sender.set_emss(emss);
        sender
    }

    /// Says that TCP segments now carry this many bytes; it holds from the next FPDU on.
    // RFC5044-3-2, RFC5041-3-5
    pub fn set_emss(&mut self, emss: usize) {
        /// No EMSS makes a ULPDU smaller than this (the standard allows 128 and above; this leaves no
        /// padding).
        // RFC5044-4.5-3, RFC5044-3-3
        const MIN_ULPDU: usize = 130;
        /// The greatest ULPDU up to 64768 whose FPDU needs no padding. With its markers the FPDU stays below
        /// 64 KiB, as a marker counts back 16 bits.
        // RFC5044-3-3, RFC5044-3-4
        const MAX_ULPDU: usize = 64766;
        let emss = if self.large { 4 * MAX_ULPDU } else { emss };
        let markers = if self.markers.is_some() { MARKER_LEN * emss.div_ceil(MARKER_INTERVAL) } else { 0 };
        // RFC5044-4.5-1, RFC5044-4.5-2
        let overhead = LENGTH_LEN + CRC_LEN + markers + emss % 4;
        self.max_ulpdu = emss.saturating_sub(overhead).clamp(MIN_ULPDU, MAX_ULPDU) as u32;
    }

    /// True without CRC and markers: frames are then the head, the payload and zeros, and need no
    /// [`Sender::seal`].
    pub fn is_plain(&self) -> bool {
        !self.crc && self.markers.is_none()
    }

    /// Whether markers stand in the stream, at multiples of their interval.
    pub fn has_markers(&self) -> bool {
        self.markers.is_some()
    }

    /// True while a message has been begun and not all of its FPDUs have been yielded.
    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Bytes of payload that fit one FPDU of a Send (the least of all messages).
    pub fn max_payload(&self) -> usize {
        self.max_ulpdu as usize - UNTAGGED_LEN
    }

    /// Starts a message.
    ///
    /// # Errors
    /// See [`BeginError`].
    // RFC5041-5.3-1, RFC5040-5.5-4, RFC5040-6.1-1: nothing but whole messages, one after the other.
    #[inline]
    pub fn begin(&mut self, message: Outbound) -> Result<(), BeginError> {
        // RFC5040-5.4-4, RFC5041-6.2.1-1
        if self.closed {
            return Err(BeginError::Closed);
        }
        if self.current.is_some() {
            return Err(BeginError::Busy);
        }
        if message.opcode().is_extension() && !self.extensions {
            return Err(BeginError::NotNegotiated);
        }
        // RFC5040-5.4-4: nothing is sent after a Terminate.
        self.closed = matches!(message, Outbound::Terminate(_));
        self.current = Some((message, 0));
        Ok(())
    }

    /// The FPDU of a message that fits one; `None` if it does not fit, and then nothing has changed. For
    /// messages that are gathered and sent together.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn only(&mut self, message: Outbound) -> Result<Option<Fpdu>, BeginError> {
        if message.payload_len() as usize > self.max_payload() {
            return Ok(None);
        }
        self.begin(message)?;
        Ok(self.next_fpdu())
    }

    /// Gives up the message that is being sent, to send a Terminate instead. The peer may be in the middle of
    /// it: no other message can follow.
    pub fn abandon(&mut self) {
        self.current = None;
    }

    /// Ends this direction in order, before the half-close of TCP.
    ///
    /// # Errors
    /// [`BeginError::Busy`] in the middle of a message.
    // RFC5041-6.2.1-1, RFC5041-6.2.1-4: data handed over goes out before the stream is torn down, and no more
    // is taken.
    pub fn finish(&mut self) -> Result<(), BeginError> {
        if self.current.is_some() {
            return Err(BeginError::Busy);
        }
        self.closed = true;
        Ok(())
    }

    /// The next FPDU of the message that was begun, or `None` when there is none.
    #[inline]
    pub fn next_fpdu(&mut self) -> Option<Fpdu> {
        let (message, sent) = self.current?;
        let fpdu = match message {
            Outbound::Write { stag, to, len }
            | Outbound::ReadResponse { sink_stag: stag, sink_to: to, len } => {
                // RFC5040-5.1-1, RFC5040-5.2.2-1
                self.tagged(message.opcode(), stag, to, sent, len)
            }
            Outbound::Send { len, invalidate, .. } => {
                // RFC5040-5.3-1, RFC5040-5.3-5
                self.untagged(message.opcode(), ddp::QUEUE_SEND, invalidate.unwrap_or(0), sent, len)
            }
            // RFC5040-5.2.1-1, RFC5040-4.2-1
            Outbound::ReadRequest(request) => self.with_body(
                Opcode::ReadRequest,
                ddp::QUEUE_READ_REQUEST,
                rdmap::READ_REQUEST_LEN,
                |body| {
                    put(body, &request.to_wire());
                },
            ),
            // RFC5040-5.4-1
            Outbound::Terminate(terminate) => {
                self.with_body(Opcode::Terminate, ddp::QUEUE_TERMINATE, terminate.body_len(), |body| {
                    terminate.write(body);
                })
            }
            // RFC7306-6.3-1, RFC7306-6.3-4
            Outbound::Immediate { data, .. } => {
                self.with_body(message.opcode(), ddp::QUEUE_SEND, rdmap::IMMEDIATE_LEN, |body| {
                    put(body, &data);
                })
            }
            // RFC7306-5.2.1-2, RFC7306-5.2-1
            Outbound::AtomicRequest(request) => {
                let len = rdmap::ATOMIC_REQUEST_LEN;
                self.with_body(Opcode::AtomicRequest, ddp::QUEUE_READ_REQUEST, len, |body| {
                    put(body, &request.to_wire());
                })
            }
            // RFC7306-5.2.2-2, RFC7306-5.1.1-4
            Outbound::AtomicResponse(response) => {
                let len = rdmap::ATOMIC_RESPONSE_LEN;
                self.with_body(Opcode::AtomicResponse, ddp::QUEUE_ATOMIC_RESPONSE, len, |body| {
                    let wire = rdmap::AtomicResponse {
                        request_id: response.id.into(),
                        original: response.original.into(),
                    };
                    put(body, &wire);
                })
            }
        };
        self.current = (!fpdu.last).then_some((message, sent + fpdu.len));
        Some(fpdu)
    }

    fn tagged(&self, opcode: Opcode, stag: u32, to: u64, sent: u32, len: u32) -> Fpdu {
        let mut fpdu = self.cut(TAGGED_LEN, sent, len);
        let header = Tagged {
            control: Control::new(true, fpdu.last, opcode as u8),
            stag: stag.into(),
            // RFC5041-5.2-6, RFC5041-4.2-2, RFC5041-4.2-5
            to: to.wrapping_add(sent as u64).into(),
        };
        put(&mut fpdu.bytes[LENGTH_LEN..], &header);
        fpdu
    }

    fn untagged(&mut self, opcode: Opcode, queue: u32, invalidate: u32, sent: u32, len: u32) -> Fpdu {
        let mut fpdu = self.cut(UNTAGGED_LEN, sent, len);
        self.untagged_header(&mut fpdu, opcode, queue, invalidate, sent);
        fpdu
    }

    /// A message whose whole content, `len` bytes that `write` puts down, is part of the head.
    fn with_body(&mut self, opcode: Opcode, queue: u32, len: usize, write: impl FnOnce(&mut [u8])) -> Fpdu {
        let mut fpdu = self.cut(UNTAGGED_LEN + len, 0, 0);
        self.untagged_header(&mut fpdu, opcode, queue, 0, 0);
        write(&mut fpdu.bytes[LENGTH_LEN + UNTAGGED_LEN..]);
        fpdu
    }

    fn untagged_header(&mut self, fpdu: &mut Fpdu, opcode: Opcode, queue: u32, invalidate: u32, sent: u32) {
        let msn = &mut self.msn[queue as usize & 3];
        let header = Untagged {
            control: Control::new(false, fpdu.last, opcode as u8),
            // RFC5040-4.1-7, RFC5041-4.3-2
            invalidate: invalidate.into(),
            // RFC5041-4.3-4, RFC5041-4.3-6
            queue: queue.into(),
            msn: (*msn).into(),
            // RFC5041-5.2-5, RFC5041-4.3-7
            mo: sent.into(),
        };
        if fpdu.last {
            // RFC5041-4.3-5
            *msn = msn.wrapping_add(1);
        }
        put(&mut fpdu.bytes[LENGTH_LEN..], &header);
    }

    /// An FPDU with `header_len` bytes of header and as much of the payload as fits, the header not yet
    /// written.
    // RFC5041-5.2-1, RFC5041-5.2-3, RFC5041-5.2-7, RFC5041-5.3-3, RFC5044-3-1, RFC5044-3-7, RFC5044-4.5-4
    fn cut(&self, header_len: usize, sent: u32, len: u32) -> Fpdu {
        let room = self.max_ulpdu - header_len as u32;
        let rest = len - sent;
        let here = rest.min(room);
        let ulpdu_len = header_len + here as usize;
        let mut fpdu = Fpdu {
            bytes: [0; _],
            head_len: (LENGTH_LEN + header_len) as u8,
            trailer_len: (padding(ulpdu_len) + CRC_LEN) as u8,
            // RFC5041-4.1-2, RFC5041-4.1-3
            last: here == rest,
            offset: sent,
            len: here,
        };
        put(&mut fpdu.bytes, &(ulpdu_len as u16).to_be_bytes());
        fpdu
    }

    /// Bytes that [`Sender::seal`] will make of this FPDU, the next one to be sealed.
    pub fn sealed_len(&self, fpdu: &Fpdu) -> usize {
        self.markers.map_or(fpdu.len(), |markers| markers.stream_len(fpdu.len()))
    }

    /// Checksums an FPDU whose payload is sent from where it lies: of head and payload, the latter with
    /// [`Checksum::update`] in order. `None` with markers, which stand in the payload, and without CRC.
    pub fn checksum(&self, fpdu: &Fpdu) -> Option<Checksum> {
        (self.crc && self.markers.is_none()).then(|| Checksum::new(fpdu.head(), fpdu.trailer_len() - CRC_LEN))
    }

    /// Appends the complete frame to `out`, with padding, markers and CRC as agreed. Every FPDU has to be
    /// sealed once and in order. Allocates nothing if `out` has the capacity.
    ///
    /// # Panics
    /// If `payload` does not have [`Fpdu::payload_len`] bytes.
    pub fn seal(&mut self, fpdu: &Fpdu, payload: &[u8], out: &mut Vec<u8>) {
        assert_eq!(payload.len(), fpdu.payload_len(), "payload of the FPDU");
        let start = out.len();
        out.resize(start + self.sealed_len(fpdu), 0);
        let Ok(_) = self.seal_with(fpdu, &mut out[start..], |offset, piece| {
            let from = (offset - fpdu.offset as u64) as usize;
            piece.copy_from_slice(&payload[from..from + piece.len()]);
            Ok::<(), Infallible>(())
        });
    }

    /// Writes the complete frame to the start of `out`, taking the payload from `fill`, which is called with
    /// ascending offsets in the message and the piece to fill. Each piece is checksummed while it is in the
    /// cache. Returns the bytes written, [`Sender::sealed_len`].
    ///
    /// # Errors
    /// The first error of `fill`. The FPDU can then be sealed again, or the stream be ended with a Terminate.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn seal_with<E>(
        &mut self,
        fpdu: &Fpdu,
        out: &mut [u8],
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut weaver = Weaver::new(out, self.markers, self.crc);
        weaver.put(fpdu.head());
        weaver.fill(fpdu.payload_len(), |offset, piece| fill(fpdu.offset as u64 + offset as u64, piece))?;
        weaver.put(&ZERO_TRAILER[..fpdu.trailer_len() - CRC_LEN]);
        let (written, markers) = weaver.finish();
        self.markers = markers;
        Ok(written)
    }
}

const _: () = assert!(fpdu_len(UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN) <= size_of::<Fpdu>());

#[cfg(test)]
mod tests;
