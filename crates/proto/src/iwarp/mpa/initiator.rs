//! The end that sends the MPA Request.

use std::time::Duration;

use adverb_wire::mpa::{EnhancedData, Flags, REPLY_KEY, REQUEST_KEY};

use super::{
    Config, Deadline, Depths, Frame, Parameters, Revision, RtrKind, RtrKinds, StartError, bit, build,
};

/// Start-up of the end that has connected.
///
/// Send [`Initiator::request`], then give everything received to [`Initiator::receive`].
#[derive(Debug)]
pub struct Initiator {
    config: Config,
    request: Vec<u8>,
    deadline: Deadline,
}

/// What [`Initiator::receive`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// Not complete: call again when this many bytes in all are there.
    Need(usize),
    /// The peer accepts. The stream is in full operation after `consumed` bytes.
    Accepted {
        /// What holds from now on.
        parameters: Parameters,
        /// The peer's own depths, if it sent any (RFC 6581 section 9.1: the program is told).
        peer: Option<Depths>,
        /// Private data of the peer's program.
        private_data: &'a [u8],
        /// Bytes that the reply took.
        // RFC5044-7.1-1
        consumed: usize,
    },
    /// The peer rejects. MPA is over.
    Rejected {
        /// The peer's depths, if it sent any.
        peer: Option<Depths>,
        /// Private data of the peer's program.
        private_data: &'a [u8],
        /// Bytes that the reply took.
        consumed: usize,
    },
}

impl Initiator {
    /// A start-up that must be over `timeout` after `now`. The instants are durations since any fixed point.
    ///
    /// # Errors
    /// [`StartError::PrivateDataTooLong`]: revision 1 carries 512 bytes, revision 2 carries 508. (siw refuses
    /// more than 256, and takes four of them for itself.)
    pub fn new(
        config: &Config,
        private_data: &[u8],
        now: Duration,
        timeout: Duration,
    ) -> Result<Initiator, StartError> {
        // RFC6581-6-1, RFC6581-9.2-1, RFC6581-9.2-7, RFC6581-10-3
        let enhanced = match config.revision {
            Revision::One => None,
            Revision::Two => {
                Some(EnhancedData::new(config.ird, config.ord, config.rtr.control(!config.rtr.is_empty())))
            }
        };
        let flags = Flags::new(
            bit(config.markers, Flags::MARKERS)
                | bit(config.crc, Flags::CRC)
                | bit(enhanced.is_some(), Flags::ENHANCED)
                | bit(config.large_fpdu, Flags::LARGE_FPDU)
                | bit(config.extensions, Flags::EXTENSIONS_OFFERED),
            config.revision as u8,
        );
        // RFC5044-7.1.1-1, RFC5044-7.1.2-1
        let request = build(REQUEST_KEY, flags, enhanced, private_data)?;
        Ok(Initiator { config: *config, request, deadline: Deadline(now.saturating_add(timeout)) })
    }

    /// The frame to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// When [`Initiator::handle_timeout`] wants to be called.
    pub fn deadline(&self) -> Duration {
        self.deadline.0
    }

    /// Fails with [`StartError::Timeout`] once the deadline has passed.
    pub fn handle_timeout(&self, now: Duration) -> Result<(), StartError> {
        self.deadline.check(now)
    }

    /// Looks at everything received so far. Bytes after `consumed` are left for the
    /// [`Receiver`](crate::iwarp::Receiver).
    ///
    /// # Errors
    /// Any but [`StartError::PrivateDataTooLong`], [`StartError::Timeout`] and [`StartError::Closed`]: close
    /// the connection, after sending [`StartError::terminate_frame`].
    pub fn receive<'a>(&self, input: &'a [u8]) -> Result<Reply<'a>, StartError> {
        // RFC5044-7.1.1-4, RFC5044-7.1.2-5, RFC5044-7.1.2-6
        let mut frame = match Frame::parse(input, &REPLY_KEY, &REQUEST_KEY) {
            Ok(frame) => frame,
            Err(incomplete) => return incomplete.map(Reply::Need),
        };
        let flags = frame.flags;
        // RFC5044-7.1.1-8, RFC5044-7.1.2-7
        let rejected = flags.has(Flags::REJECT);
        let consumed = frame.len;
        let mut enhanced = None;
        if self.config.revision == Revision::Two {
            if flags.revision() >= 2 && flags.has(Flags::ENHANCED) {
                enhanced = Some(frame.take_enhanced()?);
            } else if !rejected {
                return Err(StartError::NotEnhanced { revision: flags.revision() });
            }
        }
        // RFC6581-9.1-1
        let peer = enhanced.as_ref().map(Depths::from_wire);
        let private_data = frame.private_data;
        if rejected {
            return Ok(Reply::Rejected { peer, private_data, consumed });
        }

        let mut parameters = Parameters {
            initiator: true,
            revision: flags.revision(),
            // RFC5044-7.1.1-6, RFC5044-7.1.1-7, RFC5044-4.4-4, RFC5044-4.4-5
            crc: self.config.crc || flags.has(Flags::CRC),
            // RFC5044-7.1.1-5
            markers_tx: flags.has(Flags::MARKERS),
            markers_rx: self.config.markers,
            ird: None,
            ord: None,
            rtr: None,
            large_fpdu: self.config.large_fpdu && flags.has(Flags::LARGE_FPDU),
            // An echo of the offer comes from a peer that does not know the flag.
            extensions: self.config.extensions
                && flags.has(Flags::EXTENSIONS_ACCEPTED)
                && !flags.has(Flags::EXTENSIONS_OFFERED),
        };
        if let Some(enhanced) = enhanced {
            self.negotiate(&enhanced, &mut parameters)?;
        }
        Ok(Reply::Accepted { parameters, peer, private_data, consumed })
    }

    /// Depths and the ready-to-receive indication (RFC 6581 sections 9.1 and 9.2).
    fn negotiate(&self, reply: &EnhancedData, parameters: &mut Parameters) -> Result<(), StartError> {
        let peer = Depths::from_wire(reply);
        if self.config.ord < EnhancedData::NOT_NEGOTIATED
            // RFC6581-9.1-6
            && let Some(ird) = peer.ird
        {
            // RFC6581-9.1-3
            parameters.ord = Some(self.config.ord.min(ird));
        }
        if self.config.ird < EnhancedData::NOT_NEGOTIATED
            && let Some(ord) = peer.ord
        {
            let limit = self.config.ird.max(self.config.ird_limit);
            // RFC6581-9.1-4
            if ord > limit {
                return Err(StartError::InsufficientIrd { wanted: ord, limit, parameters: *parameters });
            }
            parameters.ird = Some(self.config.ird.max(ord));
        }
        if !self.config.rtr.is_empty() {
            let control = reply.control();
            // RFC6581-9.2-8
            let theirs = if control.peer_to_peer { RtrKinds::from_control(control) } else { RtrKinds::NONE };
            let Some(kind) = self.config.rtr.and(theirs).preferred() else {
                // RFC6581-9.2-6
                return Err(StartError::NoRtr { parameters: *parameters });
            };
            if kind == RtrKind::Read {
                // The indication itself is a read, also where the program wants none.
                parameters.ord = parameters.ord.map(|ord| ord.max(1));
            }
            // RFC6581-9.2-5
            parameters.rtr = Some(kind);
        }
        Ok(())
    }
}
