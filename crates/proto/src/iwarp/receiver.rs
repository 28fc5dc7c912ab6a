//! The receiving half of a stream: bytes into segments.

use adverb_wire::ddp::{self, Control, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use adverb_wire::mpa::{LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, MAX_ULPDU, fpdu_len};
use adverb_wire::rdmap::{self, Opcode};
use adverb_wire::zerocopy::FromBytes;

use super::fault::{Fault, HeaderCopy, StreamError, Terminate};
use super::framing::{MarkerPosition, unweave};
use super::message::{Arrival, AtomicRequest, AtomicResponse, ReadRequest, Segment};
use super::mpa::{Parameters, RtrKind};

/// The longest body that comes with a header, and so the longest Terminate that is read.
// RFC5040-5.4-2
const MAX_BODY: usize = rdmap::ATOMIC_REQUEST_LEN;

/// What [`Receiver::next`] has found at the start of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Not enough to go on: call again when the buffer holds at least this many bytes, counted from its
    /// start.
    Need(usize),
    /// A segment.
    Segment(Arrival),
}

/// The receiving half of a stream. It checks framing, versions, opcodes, queues and the order of everything,
/// and says where payload belongs; it keeps no payload.
///
/// In a stream with neither CRC nor markers ([`Receiver::is_streaming`]) a segment is reported as soon as its
/// header is there ([`Receiver::next`]), so that the payload can be read from the socket to where it belongs.
/// Otherwise the whole FPDU must be in the buffer and is checked before anything is reported
/// ([`Receiver::next_checked`]).
///
/// The first error ends the stream: every later call returns it again.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Next message sequence number of each untagged queue.
    msn: [u32; 4],
    /// The Send that is being received.
    send: Option<SendInProgress>,
    /// The tagged message that is being received: opcode and STag.
    tagged: Option<(Opcode, u32)>,
    crc: bool,
    markers: Option<MarkerPosition>,
    extensions: bool,
    /// The first FPDU may be a ready-to-receive indication in form of a Send.
    rtr_send: bool,
    received: bool,
    terminated: bool,
    failed: Option<StreamError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SendInProgress {
    opcode: Opcode,
    invalidate: u32,
    mo: u32,
}

impl Receiver {
    /// The most bytes that [`Receiver::next`] asks for, and the longest head that it reports.
    pub const MAX_HEAD_LEN: usize = LENGTH_LEN + UNTAGGED_LEN + MAX_BODY;
    /// The most bytes that [`Receiver::next_checked`] asks for: the longest FPDU with its markers.
    pub const MAX_FPDU_LEN: usize =
        fpdu_len(MAX_ULPDU) + MARKER_LEN * (fpdu_len(MAX_ULPDU).div_ceil(MARKER_INTERVAL - MARKER_LEN) + 1);

    /// A stream at its beginning.
    pub fn new(parameters: &Parameters) -> Receiver {
        Receiver {
            msn: [ddp::FIRST_MSN; 4],
            send: None,
            tagged: None,
            crc: parameters.crc,
            markers: parameters.markers_rx.then_some(MarkerPosition::START),
            extensions: parameters.extensions,
            rtr_send: !parameters.initiator && parameters.rtr == Some(RtrKind::Send),
            received: false,
            terminated: false,
            failed: None,
        }
    }

    /// True without CRC and markers: payload may be placed as it arrives.
    pub fn is_streaming(&self) -> bool {
        !self.crc && self.markers.is_none()
    }

    /// True once a valid FPDU has come. A responder sends nothing before, not even a Terminate.
    // RFC5044-7.1.2-8
    pub fn has_received(&self) -> bool {
        self.received
    }

    /// Looks at the next FPDU of a stream without CRC and markers. `buf` starts with its first byte.
    ///
    /// After [`Step::Segment`] the receiver has moved on: the buffer of the next call starts after the whole
    /// FPDU. The payload and the trailer need not be in this buffer.
    ///
    /// # Errors
    /// The peer has broken a rule: send the Terminate in it and end the stream.
    ///
    /// # Panics
    /// If the stream has CRC or markers.
    #[inline]
    pub fn next(&mut self, buf: &[u8]) -> Result<Step, StreamError> {
        assert!(self.is_streaming(), "a stream with CRC or markers needs next_checked");
        self.guarded(|receiver| receiver.content(buf))
    }

    /// Looks at the next FPDU of any stream. `buf` starts with its first byte. When all of it is there, its
    /// CRC has been checked, and its markers have been taken out, the segment is reported; the payload then
    /// is `buf[head_len..head_len + payload_len]`. The bytes after that, up to
    /// [`total_len`](Arrival::total_len), are of no meaning.
    ///
    /// # Errors
    /// The peer has broken a rule, or the network a byte: send the Terminate in it and end the stream.
    #[inline]
    pub fn next_checked(&mut self, buf: &mut [u8]) -> Result<Step, StreamError> {
        self.guarded(|receiver| receiver.frame(buf))
    }

    /// Says that the peer has closed its direction of TCP, with `left` bytes received of an FPDU that is not
    /// complete (those of a payload being placed included).
    ///
    /// # Errors
    /// [`Fault::StreamLost`]: the stream broke off in the middle of an FPDU or of a message. Otherwise the
    /// close was a graceful one and this end may go on sending (RFC 5041 section 6.2.1).
    pub fn end_of_stream(&self, left: usize) -> Result<(), Fault> {
        // RFC5044-7.2-1, RFC5044-8-1, RFC5041-3-2, RFC5041-6.2.1-5
        let complete = left == 0 && self.send.is_none() && self.tagged.is_none();
        if complete || self.terminated { Ok(()) } else { Err(Fault::StreamLost) }
    }

    fn guarded(
        &mut self,
        step: impl FnOnce(&mut Receiver) -> Result<Step, StreamError>,
    ) -> Result<Step, StreamError> {
        // RFC5044-8-5, RFC5041-7.1-12, RFC5040-7.1-5. What follows is the user's to do: RFC5041-6.2-1,
        // RFC5041-6.2.2-2.
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = step(self);
        match &result {
            // RFC5044-7.1.2-8
            Ok(Step::Segment(_)) => self.received = true,
            Ok(Step::Need(_)) => {}
            Err(error) => {
                // An FPDU whose content is wrong is an FPDU all the same; the Terminate may be sent.
                self.received |= !matches!(error.fault, Fault::Crc | Fault::Marker);
                self.failed = Some(*error);
            }
        }
        result
    }

    /// An FPDU as it is on the wire.
    fn frame(&mut self, buf: &mut [u8]) -> Result<Step, StreamError> {
        if self.is_streaming() {
            let Some(length) = buf.first_chunk::<LENGTH_LEN>() else { return Ok(Step::Need(LENGTH_LEN)) };
            let len = fpdu_len(u16::from_be_bytes(*length) as usize);
            return if buf.len() < len { Ok(Step::Need(len)) } else { self.content(buf) };
        }
        let lead = self.markers.map_or(0, MarkerPosition::lead);
        let Some(length) = buf.get(lead..).and_then(|rest| rest.first_chunk::<LENGTH_LEN>()) else {
            return Ok(Step::Need(lead + LENGTH_LEN));
        };
        // RFC5044-5.2-1, RFC5044-6-2
        let content_len = fpdu_len(u16::from_be_bytes(*length) as usize);
        let len = self.markers.map_or(content_len, |markers| markers.stream_len(content_len));
        let Some(frame) = buf.get_mut(..len) else { return Ok(Step::Need(len)) };
        // RFC5044-6-1, RFC5044-8-6
        self.markers = unweave(frame, self.markers, self.crc)
            .map_err(|fault| StreamError::new(fault, &HeaderCopy::NONE))?;
        // RFC5044-4.3-8
        match self.content(&frame[..content_len])? {
            Step::Segment(mut arrival) => {
                arrival.trailer_len = len - arrival.head_len - arrival.payload_len;
                Ok(Step::Segment(arrival))
            }
            need => Ok(need),
        }
    }

    /// An FPDU without markers; as much of it as is there.
    // RFC5044-5.1-1
    fn content(&mut self, buf: &[u8]) -> Result<Step, StreamError> {
        let Some((length, ulpdu)) = buf.split_first_chunk::<LENGTH_LEN>() else {
            return Ok(Step::Need(LENGTH_LEN));
        };
        let ulpdu_len = u16::from_be_bytes(*length) as usize;
        let total_len = fpdu_len(ulpdu_len);
        if ulpdu_len == 0 && self.rtr_send && !self.received {
            // An indication may also be an FPDU with nothing in it.
            return Ok(Step::Segment(arrival(Segment::ReadyToReceive, LENGTH_LEN, 0, total_len)));
        }
        let bare = |fault| StreamError::new(fault, &HeaderCopy::NONE);
        if ulpdu_len < size_of::<Control>() {
            return Err(bare(Fault::Malformed));
        }
        let Ok((control, _)) = Control::ref_from_prefix(ulpdu) else {
            return Ok(Step::Need(LENGTH_LEN + size_of::<Control>()));
        };
        // RFC5041-4.1-1
        let header_len = if control.tagged() { TAGGED_LEN } else { UNTAGGED_LEN };
        // RFC5041-4.4-1
        if ulpdu_len < header_len {
            return Err(bare(check_control(*control, self.extensions).err().unwrap_or(Fault::Malformed)));
        }
        // RFC5044-3-5, RFC5044-4.3-7
        let payload_len = ulpdu_len - header_len;
        if control.tagged() {
            let Ok((header, _)) = Tagged::ref_from_prefix(ulpdu) else {
                return Ok(Step::Need(LENGTH_LEN + TAGGED_LEN));
            };
            let segment = self
                .tagged(header, payload_len)
                // RFC5041-7.1-13
                .map_err(|fault| StreamError::new(fault, &HeaderCopy::tagged(header, payload_len)))?;
            return Ok(Step::Segment(arrival(segment, LENGTH_LEN + TAGGED_LEN, payload_len, total_len)));
        }
        let Ok((header, rest)) = Untagged::ref_from_prefix(ulpdu) else {
            return Ok(Step::Need(LENGTH_LEN + UNTAGGED_LEN));
        };
        match self.untagged(header, payload_len, rest) {
            Ok(Some(segment)) => {
                let payload_len = if matches!(segment, Segment::Send { .. }) { payload_len } else { 0 };
                let head_len = LENGTH_LEN + ulpdu_len - payload_len;
                Ok(Step::Segment(arrival(segment, head_len, payload_len, total_len)))
            }
            Ok(None) => Ok(Step::Need(LENGTH_LEN + ulpdu_len)),
            // RFC5041-7.1-13
            Err(fault) => Err(StreamError::new(fault, &HeaderCopy::untagged(header, payload_len))),
        }
    }

    /// Everything that RFC 5041 and RFC 5040 want checked of a tagged segment without knowing regions.
    fn tagged(&mut self, header: &Tagged, payload_len: usize) -> Result<Segment, Fault> {
        let opcode = self.opcode(header.control)?;
        let (stag, to, last) = (header.stag.get(), header.to.get(), header.control.last());
        // RFC5041-7.1-10, RFC5041-5.2-8
        if payload_len != 0 && to.checked_add(payload_len as u64).is_none() {
            return Err(Fault::ToWrap);
        }
        if let Some((expected_opcode, expected_stag)) = self.tagged {
            // A message is not interrupted by another of its kind, and has one STag.
            if opcode != expected_opcode {
                return Err(Fault::UnexpectedOpcode);
            }
            // RFC5040-5.1-4, RFC5040-5.2.2-5
            if payload_len != 0 && stag != expected_stag {
                return Err(Fault::InvalidStag);
            }
        }
        self.tagged = (!last).then_some((opcode, stag));
        Ok(match opcode {
            // RFC5041-4.2-3, RFC5041-4.2-6
            Opcode::Write => Segment::Write { stag, to, last },
            _ => Segment::ReadResponse { stag, to, last },
        })
    }

    /// Everything that RFC 5041 and RFC 5040 want checked of an untagged segment. `None`: its body is not
    /// there yet.
    fn untagged(&mut self, header: &Untagged, len: usize, body: &[u8]) -> Result<Option<Segment>, Fault> {
        let opcode = self.opcode(header.control)?;
        let queue = match opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => ddp::QUEUE_READ_REQUEST,
            Opcode::Terminate => ddp::QUEUE_TERMINATE,
            Opcode::AtomicResponse => ddp::QUEUE_ATOMIC_RESPONSE,
            _ => ddp::QUEUE_SEND,
        };
        // RFC5041-7.1-1
        if header.queue.get() != queue {
            return Err(Fault::InvalidQueue);
        }
        let msn = header.msn.get();
        // RFC5041-7.1-5, RFC5041-3-3, RFC5041-5.3-2
        if msn != self.msn[queue as usize & 3] {
            return Err(Fault::MsnRange);
        }
        let mo = header.mo.get();
        if matches!(
            opcode,
            Opcode::Send | Opcode::SendInvalidate | Opcode::SendSolicited | Opcode::SendSolicitedInvalidate
        ) {
            return self.send(header, opcode, len).map(Some);
        }
        if queue == ddp::QUEUE_SEND && self.send.is_some() {
            return Err(Fault::UnexpectedOpcode);
        }
        // RFC5041-7.1-3
        if mo != 0 {
            return Err(Fault::InvalidOffset);
        }
        let expected_len = match opcode {
            Opcode::ReadRequest => rdmap::READ_REQUEST_LEN,
            Opcode::AtomicRequest => rdmap::ATOMIC_REQUEST_LEN,
            Opcode::AtomicResponse => rdmap::ATOMIC_RESPONSE_LEN,
            Opcode::Terminate if len > MAX_BODY => return Err(Fault::MessageTooLong),
            Opcode::Terminate => len,
            _ => rdmap::IMMEDIATE_LEN,
        };
        // These messages have one segment of one length.
        // RFC7306-6.3-6, RFC5040-4.2-1
        if len != expected_len || !header.control.last() {
            return Err(Fault::Malformed);
        }
        let Some(body) = body.get(..len) else { return Ok(None) };
        let segment = parse_body(opcode, msn, body).ok_or(Fault::Malformed)?;
        self.msn[queue as usize & 3] = msn.wrapping_add(1);
        // RFC5040-5.4-3
        self.terminated |= opcode == Opcode::Terminate;
        Ok(Some(segment))
    }

    fn send(&mut self, header: &Untagged, opcode: Opcode, len: usize) -> Result<Segment, Fault> {
        let mo = header.mo.get();
        let invalidating = matches!(opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate);
        // The field is ignored in the other Sends.
        // RFC5040-4.1-7
        let invalidate = if invalidating { header.invalidate.get() } else { 0 };
        let (first, expected_mo) = match self.send {
            None => (true, 0),
            Some(send) if (send.opcode, send.invalidate) == (opcode, invalidate) => (false, send.mo),
            Some(_) => return Err(Fault::UnexpectedOpcode),
        };
        // RFC5041-7.1-3
        if mo != expected_mo {
            return Err(Fault::InvalidOffset);
        }
        // RFC5041-5.2-2: a message is shorter than 2^32.
        let end = mo.checked_add(len as u32).ok_or(Fault::MessageTooLong)?;
        let last = header.control.last();
        let msn = header.msn.get();
        self.send = (!last).then_some(SendInProgress { opcode, invalidate, mo: end });
        if last {
            self.msn[ddp::QUEUE_SEND as usize] = msn.wrapping_add(1);
        }
        if self.rtr_send && !self.received && opcode == Opcode::Send && last && len == 0 {
            return Ok(Segment::ReadyToReceive);
        }
        Ok(Segment::Send {
            msn,
            mo,
            first,
            last,
            // RFC5041-4.3-3
            invalidate: invalidating.then_some(invalidate),
            solicited: matches!(opcode, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate),
        })
    }

    /// The opcode of a control field, if it may come now.
    fn opcode(&self, control: Control) -> Result<Opcode, Fault> {
        let opcode = check_control(control, self.extensions)?;
        // RFC 5040 section 5.4: nothing follows a Terminate.
        if self.terminated { Err(Fault::UnexpectedOpcode) } else { Ok(opcode) }
    }
}

/// Versions and opcode of a control field.
fn check_control(control: Control, extensions: bool) -> Result<Opcode, Fault> {
    // RFC5041-4.1-6, RFC5040-7.2-1, RFC7306-8.2-1
    if control.ddp_version() != ddp::DDP_VERSION {
        return Err(Fault::DdpVersion);
    }
    // RFC5040-7.2-3, RFC5044-C.1-1
    if control.rdmap_version() != ddp::RDMAP_VERSION {
        return Err(Fault::RdmapVersion);
    }
    // RFC5040-7.2-2, RFC5040-4.1-3
    match Opcode::from_u8(control.opcode()) {
        Some(opcode) if opcode.is_tagged() == control.tagged() && (extensions || !opcode.is_extension()) => {
            Ok(opcode)
        }
        _ => Err(Fault::UnexpectedOpcode),
    }
}

/// The messages that are all header. `None` if the content makes no sense.
fn parse_body(opcode: Opcode, msn: u32, body: &[u8]) -> Option<Segment> {
    Some(match opcode {
        Opcode::ReadRequest => Segment::ReadRequest {
            msn,
            request: ReadRequest::from_wire(rdmap::ReadRequest::ref_from_bytes(body).ok()?),
        },
        Opcode::Terminate => Segment::Terminate(Terminate::parse(body)?),
        Opcode::Immediate | Opcode::ImmediateSolicited => Segment::Immediate {
            msn,
            data: body.try_into().ok()?,
            solicited: opcode == Opcode::ImmediateSolicited,
        },
        Opcode::AtomicRequest => Segment::AtomicRequest {
            msn,
            request: AtomicRequest::from_wire(rdmap::AtomicRequest::ref_from_bytes(body).ok()?)?,
        },
        Opcode::AtomicResponse => {
            let wire = rdmap::AtomicResponse::ref_from_bytes(body).ok()?;
            let response = AtomicResponse { id: wire.request_id.get(), original: wire.original.get() };
            Segment::AtomicResponse { msn, response }
        }
        _ => return None,
    })
}

fn arrival(segment: Segment, head_len: usize, payload_len: usize, total_len: usize) -> Arrival {
    Arrival { segment, head_len, payload_len, trailer_len: total_len - head_len - payload_len }
}

#[cfg(test)]
mod tests;
