//! The queue pair under a stream, with its memory and its completions.

use super::{Phase, StreamState};
use crate::options::Options;
use crate::process::Process;
use crate::wait::in_turn;
use adverb_core::attributes::TransportType;
use adverb_core::cm::Identifier;
use adverb_core::cq::{CompletionChannel, CompletionQueue};
use adverb_core::error::{Error, PostError, Result};
use adverb_core::memory::Access;
use adverb_core::qp::{Capabilities, QueuePair, QueuePairOptions, Service};
use adverb_core::region::{Pages, ProtectionDomain};
use adverb_core::request::{
    Completion, CompletionFlags, Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Sge, Status,
};
use adverb_proto::rsocket::{
    self as proto, CONTROL_REQUESTS, Connect, Mapping, Message, Offer, SendOutcome, Settings, TARGET_LENGTH,
    TARGETS, Target, WriteTo,
};
use std::sync::Arc;

/// Bytes of a message that is a send of its own.
const WORD: usize = 4;
/// The smallest queues.
const LEAST_REQUESTS: u16 = 16;
/// Scatter/gather elements of a write: a ring ends once.
const PIECES: u32 = 2;
/// Receives beyond the credits: messages of control have none.
const SPARE_RECEIVES: u32 = 2 * CONTROL_REQUESTS;

/// Tells completions of receives from those of sends.
const RECEIVE: u64 = 1 << 63;

/// A connected, or connecting, queue pair.
pub(crate) struct StreamLink {
    pub(crate) stream: proto::Stream,
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) events: Arc<CompletionChannel>,
    /// Bytes that may be sent inline.
    pub(crate) inline: usize,
    /// What data is sent from, what the peer writes data into, and where it writes targets and mappings.
    pub(crate) send: Arc<Pages>,
    pub(crate) receive: Arc<Pages>,
    table: Arc<Pages>,
    /// Where messages arrive that are sends of their own.
    messages: Option<Arc<Pages>>,
    mappings: u16,
}

impl StreamLink {
    /// A queue pair for `identifier`, whose device is known, with all its receives posted.
    pub(crate) fn new(identifier: &Identifier, options: &Options) -> Result<Self> {
        let device = identifier.device().ok_or_else(|| Error::invalid("the socket has no device yet"))?;
        let domain = Process::get().domain(&device)?;
        let limits = domain.context().attributes();
        let separate = limits.transport == TransportType::Iwarp;
        let most = limits.max_qp_wr.saturating_sub(SPARE_RECEIVES).min(0xfffe) as u16;
        let send_requests = options.send_requests.clamp(LEAST_REQUESTS, most);
        let receive_requests = options.receive_requests.clamp(LEAST_REQUESTS, most);
        let settings = Settings {
            send_requests: send_requests.into(),
            receive_requests,
            send_buffer: options.send_buffer as usize,
            receive_buffer: (options.receive_buffer as usize).next_multiple_of(2).max(2),
            mappings: options.mappings,
            separate,
        };
        let receives = u32::from(receive_requests) + SPARE_RECEIVES;
        let events = CompletionChannel::new(domain.context())?;
        // SAFETY: fcntl(2) on a descriptor that `events` holds; plain numbers.
        unsafe { libc::fcntl(events.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
        let entries = settings.send_requests + receives;
        let queue = CompletionQueue::new(domain.context(), entries, Some(events.clone()))?;
        let capabilities = Capabilities {
            max_send_wr: settings.send_requests,
            max_recv_wr: receives,
            max_send_sge: PIECES,
            max_recv_sge: 1,
            max_inline_data: u32::from(options.inline).clamp(TARGET_LENGTH as u32, limits.max_inline_data),
        };
        let queue_pair = queue_pair(&domain, &queue, capabilities, Service::Rc)?;
        // Before a connection begins: iWARP within a host sends no messages beside the sockets on which
        // threads sleep.
        queue.serve();
        identifier.attach_queue_pair(&queue_pair)?;
        let inbound = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let table = TARGETS * TARGET_LENGTH + usize::from(settings.mappings) * Mapping::LENGTH;
        let messages = if separate {
            Some(Pages::new(&domain, receives as usize * WORD, Access::LOCAL_WRITE)?)
        } else {
            None
        };
        let link = Self {
            stream: proto::Stream::new(settings),
            inline: options.inline.into(),
            // SAFETY: the ring of the stream lends bytes to a request and takes them back when it is
            // complete.
            send: unsafe { Pages::immutable(&domain, settings.send_buffer)? },
            receive: Pages::new(&domain, settings.receive_buffer, inbound)?,
            table: Pages::new(&domain, table, inbound)?,
            messages,
            mappings: settings.mappings,
            queue_pair,
            queue,
            events,
        };
        link.post_receives(0..receives.into())?;
        Ok(link)
    }

    /// The introduction for the peer.
    pub(crate) fn introduce(&mut self) -> Connect {
        let place = |pages: &Pages| WriteTo { address: pages.start().as_ptr() as u64, key: pages.key() };
        self.stream.introduce(place(&self.table), place(&self.receive))
    }

    fn post_receives(&self, slots: impl Iterator<Item = u64>) -> Result<()> {
        self.queue_pair.post_receives(|batch| {
            for slot in slots {
                let wr_id = RECEIVE | slot;
                match &self.messages {
                    Some(pages) => {
                        let address = pages.start().as_ptr() as u64 + slot * WORD as u64;
                        let sges = [Sge { address, length: WORD as u32, lkey: pages.key() }];
                        batch.push(&ReceiveRequest { wr_id, sges: &sges })?;
                    }
                    None => batch.push(&ReceiveRequest { wr_id, sges: &[] })?,
                }
            }
            Ok::<(), PostError>(())
        })?;
        Ok(())
    }

    /// Posts a write and what the peer is told of it.
    pub(crate) fn post(
        &self,
        data: Data<'_>,
        to: WriteTo,
        message: Option<Message>,
        id: u64,
    ) -> std::result::Result<(), PostError> {
        let write = SendRequest {
            wr_id: id,
            opcode: Opcode::Write,
            flags: SendFlags::SIGNALED,
            data,
            remote_address: to.address,
            rkey: to.key,
            ..SendRequest::default()
        };
        let Some(message) = message else { return self.queue_pair.post_send(&write) };
        if self.messages.is_none() {
            let immediate = message.word().to_be();
            return self.queue_pair.post_send(&SendRequest {
                opcode: Opcode::WriteWithImmediate,
                immediate,
                ..write
            });
        }
        self.queue_pair.post_sends(|batch| {
            // It is complete when the send behind it is.
            batch.push(&SendRequest { flags: SendFlags::empty(), ..write })?;
            batch.push(&send_of(&message.word().to_ne_bytes(), id, &mut [&[]]))
        })
    }

    /// Posts a message that follows on no write.
    pub(crate) fn post_message(&self, message: Message, id: u64) -> std::result::Result<(), PostError> {
        if self.messages.is_some() {
            return self.queue_pair.post_send(&send_of(&message.word().to_ne_bytes(), id, &mut [&[]]));
        }
        self.post(Data::Registered(&[]), WriteTo { address: 0, key: 0 }, Some(message), id)
    }

    /// The pieces of the send buffer that an offer names.
    pub(crate) fn pieces(&self, offer: &Offer) -> ([Sge; 2], usize) {
        let mut sges = [Sge::default(); 2];
        let mut count = 0;
        for (at, length) in offer.place.iter() {
            let address = self.send.start().as_ptr() as u64 + at as u64;
            sges[count] = Sge { address, length: length as u32, lkey: self.send.key() };
            count += 1;
        }
        (sges, count)
    }

    /// The entries of the table of mappings that the peer has written.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> {
        (0..usize::from(self.mappings)).map(|index| {
            let mut bytes = [0; Mapping::LENGTH];
            self.table.read_last_word_first(TARGETS * TARGET_LENGTH + index * Mapping::LENGTH, &mut bytes);
            Mapping::read(&bytes)
        })
    }

    /// Gives the peer room and credits when it is time.
    pub(crate) fn grant(&mut self) -> std::result::Result<(), PostError> {
        while let Some(grant) = self.stream.grant() {
            match grant.target {
                Some((bytes, to)) => {
                    self.post(Data::Inline(&[&bytes]), to, Some(grant.message), grant.id)?;
                }
                None => self.post_message(grant.message, grant.id)?,
            }
        }
        Ok(())
    }

    /// Looks for new targets.
    fn take_targets(&mut self) {
        while let Some(slot) = self.stream.expected_target() {
            let mut bytes = [0; TARGET_LENGTH];
            // It may be written at this very moment, ahead of its message. The length stands at the end.
            self.table.read_last_word_first(slot * TARGET_LENGTH, &mut bytes);
            if !self.stream.target_seen(Target::read(&bytes)) {
                break;
            }
            // SAFETY: nobody has a reference into these pages.
            unsafe { self.table.write(slot * TARGET_LENGTH, &[0; TARGET_LENGTH]) };
        }
    }

    /// The message that a receive has brought.
    fn word(&self, completion: &Completion) -> Option<u32> {
        match &self.messages {
            Some(pages) => {
                let mut bytes = [0; WORD];
                pages.read((completion.wr_id & !RECEIVE) as usize * WORD, &mut bytes);
                (completion.byte_length as usize == WORD).then(|| u32::from_ne_bytes(bytes))
            }
            None => {
                let has_one = completion.flags.contains(CompletionFlags::WITH_IMMEDIATE);
                has_one.then(|| u32::from_be(completion.immediate))
            }
        }
    }
}

/// A queue pair whose sends say themselves whether they are signalled.
pub(crate) fn queue_pair(
    domain: &Arc<ProtectionDomain>,
    queue: &Arc<CompletionQueue>,
    capabilities: Capabilities,
    service: Service,
) -> Result<Arc<QueuePair>> {
    let options = QueuePairOptions {
        send_cq: queue.clone(),
        receive_cq: queue.clone(),
        srq: None,
        capabilities,
        service,
        signal_all: false,
    };
    QueuePair::new(domain, options)
}

/// A message as a send of its own. `room` is where the request refers to.
fn send_of<'a>(word: &'a [u8; WORD], id: u64, room: &'a mut [&'a [u8]; 1]) -> SendRequest<'a> {
    room[0] = word;
    SendRequest {
        wr_id: id,
        opcode: Opcode::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Inline(room),
        ..SendRequest::default()
    }
}

impl StreamState {
    /// Takes in what has completed, and gives the peer what is due.
    pub(crate) fn process(&mut self) {
        self.has_more = in_turn(|| self.take_in());
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.grant() {
            fail(link, &mut self.phase, &mut self.error, error.errno(), &error);
        }
    }

    /// Takes in a part of what has completed. Whether there may be more.
    fn take_in(&mut self) -> bool {
        // The completions lie on the stack of a program's thread, which may be small.
        const BATCH: usize = 8;
        let Some(link) = &mut self.link else { return false };
        let mut found = [Completion::default(); BATCH];
        let mut count = 0;
        let polled = link.queue.poll(BATCH, |completion| {
            found[count] = *completion;
            count += 1;
        });
        let mut slots = [0; BATCH];
        let mut received = 0;
        for completion in &found[..count] {
            if completion.wr_id & RECEIVE == 0 {
                link.sent(completion, &mut self.phase, &mut self.error);
            } else if link.received(completion, &mut self.phase, &mut self.error) {
                slots[received] = completion.wr_id & !RECEIVE;
                received += 1;
            }
        }
        let mut failure = polled.err();
        if link.stream.is_open() && received > 0 {
            failure = failure.or(link.post_receives(slots[..received].iter().copied()).err());
        }
        if let Some(error) = &failure {
            fail(link, &mut self.phase, &mut self.error, error.errno(), error);
        }
        failure.is_none() && count == BATCH
    }
}

/// The connection has failed.
fn fail(link: &mut StreamLink, phase: &mut Phase, error: &mut i32, errno: i32, why: &dyn std::fmt::Display) {
    if *phase == Phase::Open {
        adverb_core::log!(Warn, "an rsocket has failed: {why}");
        (*phase, *error) = (Phase::Failed, errno);
    }
    link.stream.close();
}

impl StreamLink {
    fn sent(&mut self, completion: &Completion, phase: &mut Phase, error: &mut i32) {
        let done = self.stream.completed(completion.wr_id);
        if completion.status != Status::Success {
            fail(self, phase, error, libc::EIO, &completion.status);
        } else if done == SendOutcome::Disconnected {
            self.stream.close();
            if *phase == Phase::Open {
                *phase = Phase::Disconnected;
            }
        }
    }

    /// Whether the receive is to be posted again.
    fn received(&mut self, completion: &Completion, phase: &mut Phase, error: &mut i32) -> bool {
        if completion.status != Status::Success {
            // The connection has ended; receives do not fail for other reasons that are not told twice.
            self.stream.close();
            if *phase == Phase::Open {
                *phase = Phase::Disconnected;
            }
            return false;
        }
        let Some(word) = self.word(completion) else {
            fail(self, phase, error, libc::EIO, &"the peer sent something that is no message of rsockets");
            return false;
        };
        match self.stream.message(word) {
            Ok(Message::Credits(_)) => self.take_targets(),
            Ok(_) => {}
            Err(violation) => {
                fail(self, phase, error, libc::EIO, &violation);
                return false;
            }
        }
        if !self.stream.is_open() && *phase == Phase::Open {
            *phase = Phase::Disconnected;
        }
        true
    }
}
