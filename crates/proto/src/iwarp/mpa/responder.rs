//! The end that answers the MPA Request.

use std::time::Duration;

use adverb_wire::mpa::{EnhancedData, Flags, REPLY_KEY, REQUEST_KEY};

use super::{Config, Deadline, Depths, Frame, Parameters, RtrKind, RtrKinds, StartError, bit, build};

/// Start-up of the end that has accepted a TCP connection.
///
/// Give everything received to [`Responder::receive`]; answer its [`Offer`] with [`Offer::accept`] or
/// [`Offer::reject`], at once or after asking the program.
#[derive(Debug)]
pub struct Responder {
    deadline: Deadline,
}

/// What [`Responder::receive`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Not complete: call again when this many bytes in all are there.
    Need(usize),
    /// A request to answer.
    Complete {
        /// What the initiator offers; it makes the answer.
        offer: Offer,
        /// Private data of the initiator's program.
        private_data: &'a [u8],
        /// Bytes that the request took. (A peer that sends more before the reply breaks the rules; it is
        /// found out by the [`Receiver`](crate::iwarp::Receiver).)
        // RFC5044-7.1-1
        consumed: usize,
    },
}

/// What an initiator has offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Revision of MPA, 0 to 2.
    pub revision: u8,
    /// The initiator requires CRCs.
    pub crc: bool,
    /// The initiator requires markers in what it receives.
    pub markers: bool,
    /// The depths of the initiator, if it negotiates them.
    pub depths: Option<Depths>,
    /// The initiator follows the peer-to-peer model: it will send a ready-to-receive indication by itself.
    pub peer_to_peer: bool,
    /// The indications that it can send.
    pub rtr: RtrKinds,
    /// The initiator takes FPDUs larger than the EMSS.
    pub large_fpdu: bool,
    /// The initiator has the operations of RFC 7306.
    pub extensions: bool,
}

impl Responder {
    /// A start-up whose request must be complete `timeout` after `now`. The instants are durations since any
    /// fixed point.
    pub fn new(now: Duration, timeout: Duration) -> Responder {
        Responder { deadline: Deadline(now.saturating_add(timeout)) }
    }

    /// When [`Responder::handle_timeout`] wants to be called, as long as the request is not complete.
    pub fn deadline(&self) -> Duration {
        self.deadline.0
    }

    /// Fails with [`StartError::Timeout`] once the deadline has passed.
    pub fn handle_timeout(&self, now: Duration) -> Result<(), StartError> {
        self.deadline.check(now)
    }

    /// Looks at everything received so far.
    ///
    /// # Errors
    /// The request is malformed: close the connection without an answer (RFC 5044 section 7.1.2, rule 2).
    pub fn receive<'a>(&self, input: &'a [u8]) -> Result<Request<'a>, StartError> {
        // RFC5044-7.1.1-2, RFC5044-7.1.2-2, RFC5044-7.1.2-3
        let mut frame = match Frame::parse(input, &REQUEST_KEY, &REPLY_KEY) {
            Ok(frame) => frame,
            Err(incomplete) => return incomplete.map(Request::Need),
        };
        let flags = frame.flags;
        // In revisions 0 and 1 the S flag is a reserved bit, which is not looked at.
        // RFC6581-6-2, RFC6581-6-3
        let enhanced = if flags.revision() >= 2 && flags.has(Flags::ENHANCED) {
            Some(frame.take_enhanced()?)
        } else {
            None
        };
        let control = enhanced.map(|data| data.control()).unwrap_or_default();
        let offer = Offer {
            revision: flags.revision(),
            crc: flags.has(Flags::CRC),
            markers: flags.has(Flags::MARKERS),
            // RFC6581-9.1-1
            depths: enhanced.as_ref().map(Depths::from_wire),
            peer_to_peer: control.peer_to_peer,
            // RFC6581-9.2-8: without flag A the others are ignored.
            rtr: if control.peer_to_peer { RtrKinds::from_control(control) } else { RtrKinds::NONE },
            large_fpdu: flags.has(Flags::LARGE_FPDU),
            extensions: flags.has(Flags::EXTENSIONS_OFFERED),
        };
        Ok(Request::Complete { offer, private_data: frame.private_data, consumed: frame.len })
    }
}

impl Offer {
    /// The accepting reply, and what holds once it is sent.
    ///
    /// # Errors
    /// [`StartError::PrivateDataTooLong`]; nothing has happened, try again with less.
    pub fn accept(&self, config: &Config, private_data: &[u8]) -> Result<(Vec<u8>, Parameters), StartError> {
        let mut parameters = Parameters {
            initiator: false,
            revision: self.revision,
            // RFC5044-7.1.1-6, RFC5044-7.1.1-7, RFC5044-4.4-4, RFC5044-4.4-5
            crc: self.crc || config.crc,
            // RFC5044-7.1.1-5
            markers_tx: self.markers,
            markers_rx: config.markers,
            ird: None,
            ord: None,
            rtr: None,
            large_fpdu: self.large_fpdu && config.large_fpdu,
            extensions: self.extensions && config.extensions,
        };
        // RFC6581-10-1, RFC6581-10-2
        let enhanced = self.depths.map(|depths| self.negotiate(depths, config, &mut parameters));
        let flags = Flags::new(
            bit(config.markers, Flags::MARKERS)
                | bit(parameters.crc, Flags::CRC)
                | bit(enhanced.is_some(), Flags::ENHANCED)
                | bit(parameters.large_fpdu, Flags::LARGE_FPDU)
                | bit(parameters.extensions, Flags::EXTENSIONS_ACCEPTED),
            self.revision,
        );
        Ok((build(REPLY_KEY, flags, enhanced, private_data)?, parameters))
    }

    /// The rejecting reply. It is empty for revision 0, which has none: there, just close.
    ///
    /// # Errors
    /// [`StartError::PrivateDataTooLong`]; nothing has happened, try again with less.
    // RFC5044-7.1.2-4
    pub fn reject(&self, private_data: &[u8]) -> Result<Vec<u8>, StartError> {
        if self.revision == 0 {
            return Ok(Vec::new());
        }
        // An enhanced request gets an enhanced answer (RFC 6581 section 10). Nothing is refused on account of
        // the depths, so they say what would have been possible: what was asked for.
        let enhanced = self.depths.map(|depths| {
            EnhancedData::new(
                depths.ord.unwrap_or(EnhancedData::NOT_NEGOTIATED),
                depths.ird.unwrap_or(EnhancedData::NOT_NEGOTIATED),
                self.rtr.control(self.peer_to_peer),
            )
        });
        let flags = Flags::new(
            Flags::REJECT | bit(self.crc, Flags::CRC) | bit(enhanced.is_some(), Flags::ENHANCED),
            self.revision,
        );
        build(REPLY_KEY, flags, enhanced, private_data)
    }

    /// Depths and the ready-to-receive indication (RFC 6581 sections 9.1 and 9.2).
    fn negotiate(&self, depths: Depths, config: &Config, parameters: &mut Parameters) -> EnhancedData {
        let mut control = RtrKinds::NONE;
        if self.peer_to_peer {
            // RFC6581-9.2-2
            let ours = if config.rtr.is_empty() { RtrKinds::only(RtrKind::Write) } else { config.rtr };
            // One is enough for the initiator and tells this end what to expect. When nothing matches, the
            // reply says what this end has, and the initiator gives up. RFC6581-9.2-4
            parameters.rtr = self.rtr.and(ours).preferred().or(ours.preferred());
            control = parameters.rtr.map_or(RtrKinds::NONE, RtrKinds::only);
        }
        if config.ord < EnhancedData::NOT_NEGOTIATED {
            // RFC6581-9.1-2, RFC6581-9.1-5
            parameters.ord = depths.ird.map(|ird| config.ord.min(ird));
        }
        if config.ird < EnhancedData::NOT_NEGOTIATED {
            // RFC6581-9.1-7
            let least = if parameters.rtr == Some(RtrKind::Read) { 1 } else { 0 };
            let limit = config.ird.max(config.ird_limit);
            parameters.ird = depths.ord.map(|ord| ord.clamp(config.ird, limit).max(least));
        }
        EnhancedData::new(
            parameters.ird.unwrap_or(EnhancedData::NOT_NEGOTIATED),
            parameters.ord.unwrap_or(EnhancedData::NOT_NEGOTIATED),
            // RFC6581-9.2-3
            control.control(self.peer_to_peer),
        )
    }
}
