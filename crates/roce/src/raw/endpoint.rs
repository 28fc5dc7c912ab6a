//! The transport's half of a raw packet queue pair.

use super::impaired::RawFaults;
use super::socket::{FrameReceipt, MOST, PacketSocket};
use crate::gid::Gids;
use crate::lock;
use crate::net::Net;
use crate::route::address_of;
use adverb_core::cq::{CompletionQueue, Lane as CqLane};
use adverb_core::error::{Error, Result};
use adverb_core::flow::{FlowRule, Headers};
use adverb_core::memory::{Reader, Source as Bytes};
use adverb_core::qp::{Attributes, PayloadError, Queues, SendCursor, SendWork, State, Transition};
use adverb_core::reactor::{READABLE, Readiness, Source, Token, WRITABLE};
use adverb_core::request::{Completion, CompletionOpcode, Status};
use adverb_core::transport;
use adverb_core::wire::Direction;
use adverb_core::work_notes::WorkCount;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Frames that one poll takes in at most, so that a poll ends.
const BURST: usize = 64;

/// The transport's half of a raw packet queue pair. A thread locks `transmit` before another endpoint's
/// `receive`, and `arrivals` before the `receive` of the same endpoint.
pub(crate) struct RawEndpoint {
    this: Weak<RawEndpoint>,
    net: Arc<Net>,
    queues: Arc<Queues>,
    socket: PacketSocket,
    /// Whether the interface brings back frames that are sent.
    is_loopback: bool,
    /// Where frames from outside lie while they are looked at.
    arrivals: Mutex<Box<[u8; MOST]>>,
    /// Whether frames are taken; held while one is.
    receive: Mutex<bool>,
    transmit: Mutex<Transmit>,
    /// Counts the calls of [`transport::Endpoint::transmit`].
    work_count: WorkCount,
    /// Requests wait for room in the socket.
    is_full: AtomicBool,
    hearing: Mutex<Hearing>,
    /// Faults of the wire.
    impaired: Option<RawFaults>,
    /// Whether the socket hears: for polls, which need not ask it otherwise.
    hears: AtomicBool,
}

struct Transmit {
    cursor: SendCursor,
    may_send: bool,
    /// The request whose frame the wire has let through, and that waits for room.
    passed: Option<u64>,
    frame: Box<[u8; MOST]>,
}

/// The reasons for which the background thread watches the socket.
#[derive(Default)]
struct Hearing {
    /// From RTR on.
    token: Option<Token>,
    /// Rules that steer here.
    rules: usize,
}

fn frame() -> Box<[u8; MOST]> {
    vec![0; MOST].into_boxed_slice().try_into().expect("it has this length")
}

impl RawEndpoint {
    /// # Errors
    /// EPERM without CAP_NET_RAW; ENODEV without an interface.
    pub(crate) fn new(net: &Arc<Net>, gids: &Gids, queues: Arc<Queues>) -> Result<Arc<Self>> {
        let gids = gids.all();
        let first = gids.first().ok_or_else(|| Error::new(libc::ENODEV, "the device has no interface"))?;
        let socket = PacketSocket::open(first.interface)?;
        let (local, reactor) = (address_of(&first.bytes), &net.engine()?.reactor);
        let endpoint = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            net: net.clone(),
            queues,
            socket,
            is_loopback: local.is_loopback(),
            arrivals: Mutex::new(frame()),
            receive: Mutex::new(false),
            transmit: Mutex::new(Transmit {
                cursor: SendCursor::default(),
                may_send: false,
                passed: None,
                frame: frame(),
            }),
            work_count: WorkCount::default(),
            is_full: AtomicBool::new(false),
            hearing: Mutex::default(),
            impaired: RawFaults::of(this, local, reactor),
            hears: AtomicBool::new(false),
        });
        let lane: Arc<dyn CqLane> = endpoint.clone();
        endpoint.completion_queues().iter().for_each(|cq| cq.attach_lane(&lane));
        // A queue pair that only spreads frames over work queues has no states of its own: it takes frames in
        // at once.
        if !endpoint.queues.work_queues().is_empty() {
            endpoint.begin().inspect_err(|_| transport::Endpoint::close(&*endpoint))?;
        }
        Ok(endpoint)
    }

    /// The completion queues whose polls take in frames that have arrived.
    fn completion_queues(&self) -> Vec<Arc<CompletionQueue>> {
        let queues = &self.queues;
        let own = [&queues.send_cq, &queues.receive_cq].into_iter();
        let others = queues.work_queues().iter().filter_map(|queue| queue.completion_queue());
        own.chain(others).cloned().collect()
    }

    fn this(&self) -> Arc<RawEndpoint> {
        self.this.upgrade().expect("somebody calls it")
    }

    /// Changes the events that the background thread watches for, and whether the socket hears.
    fn watch(&self, change: impl FnOnce(&mut Hearing) -> Result<()>) -> Result<()> {
        let mut hearing = lock(&self.hearing);
        change(&mut hearing)?;
        let hears = hearing.token.is_some() && hearing.rules > 0;
        if hears != self.hears.load(Ordering::Acquire) {
            self.socket.listen(hears)?;
            self.hears.store(hears, Ordering::Release);
        }
        let Some(token) = hearing.token else { return Ok(()) };
        let full = self.is_full.load(Ordering::SeqCst);
        let interest = if hears { READABLE } else { 0 } | if full { WRITABLE } else { 0 };
        self.net.engine()?.reactor.modify(token, self.socket.fd(), interest)
    }

    /// Frames are taken in from now on.
    fn begin(&self) -> Result<()> {
        self.watch(|hearing| {
            let reactor = &self.net.engine()?.reactor;
            hearing.token = Some(reactor.add(self.socket.fd(), 0, self.this())?);
            Ok(())
        })?;
        *lock(&self.receive) = true;
        Ok(())
    }

    /// No frame is sent or taken in any more. When this returns, no thread touches the program's memory for
    /// this queue pair.
    fn stop(&self) {
        *lock(&self.receive) = false;
        lock(&self.transmit).may_send = false;
        let _ = self.watch(|hearing| {
            if let (Some(token), Ok(engine)) = (hearing.token.take(), self.net.engine()) {
                engine.reactor.remove(token, self.socket.fd());
            }
            Ok(())
        });
    }

    /// Sends posted requests, while there is room.
    fn send_all(&self, transmit: &mut Transmit) {
        let Transmit { cursor, may_send, passed, frame } = transmit;
        while *may_send && let Some(work) = self.queues.send.peek(cursor) {
            match self.send_one(&work, passed, frame) {
                Ok(true) => {
                    cursor.advance();
                    self.queues.complete_send(work.sequence, Status::Success);
                }
                Ok(false) => return,
                Err(status) => {
                    self.queues.fail_send(cursor, work.sequence, status);
                    *may_send = false;
                }
            }
        }
    }

    /// Sends a frame; false if there is no room for it yet.
    fn send_one(
        &self,
        work: &SendWork,
        passed: &mut Option<u64>,
        buffer: &mut [u8; MOST],
    ) -> std::result::Result<bool, Status> {
        let frame = buffer.get_mut(..work.length as usize).ok_or(Status::LocalLength)?;
        self.queues.gather(work, 0, frame).map_err(|_| Status::LocalProtection)?;
        let passes = *passed == Some(work.sequence)
            || self.impaired.as_ref().is_none_or(|impaired| impaired.passes(Direction::Out, frame));
        if passes && !self.put(frame)? {
            *passed = Some(work.sequence);
            return Ok(false);
        }
        *passed = None;
        let counters = self.queues.counters;
        counters.tx_frames.add(1);
        counters.tx_messages.add(1);
        counters.tx_bytes.add(work.length.into());
        Ok(true)
    }

    /// The frames go on that the wire has kept until now.
    pub(super) fn go_on(&self) {
        for frame in self.impaired.iter().flat_map(RawFaults::due) {
            match frame.direction {
                // One for which there is no room is lost, as in a network.
                Direction::Out => drop(self.put(&frame.bytes)),
                Direction::In => self.take(&frame.bytes),
            }
        }
    }

    /// Puts a frame on the wire; false if there is no room for it yet.
    fn put(&self, frame: &[u8]) -> std::result::Result<bool, Status> {
        while let Err(error) = self.socket.send(frame) {
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EMSGSIZE | libc::EINVAL) => return Err(Status::LocalLength),
                Some(libc::EAGAIN) => {
                    // Said before the last attempt, so that room that comes after it is noticed.
                    if self.is_full.swap(true, Ordering::SeqCst) {
                        return Ok(false);
                    }
                    let _ = self.watch(|_| Ok(()));
                }
                // The network may lose any frame.
                _ => break,
            }
        }
        if !self.is_loopback {
            let others = self.net.steering.receivers(frame);
            let others = others.iter().filter(|other| !std::ptr::eq(&***other, self));
            others.for_each(|other| other.deliver(frame));
        }
        Ok(true)
    }

    /// Takes in frames that have arrived. Returns whether there were any.
    fn take_in(&self) -> bool {
        if !self.hears.load(Ordering::Acquire) {
            return false;
        }
        let Ok(mut buffer) = self.arrivals.try_lock() else { return false };
        let mut worked = false;
        for _ in 0..BURST {
            match self.socket.receive(&mut buffer) {
                FrameReceipt::Nothing => break,
                FrameReceipt::Other => {}
                FrameReceipt::Frame(start, length) => {
                    worked = true;
                    let frame = &buffer[start..start + length];
                    let receivers = self.net.steering.receivers(frame);
                    if receivers.iter().any(|receiver| std::ptr::eq(&**receiver, self)) {
                        self.deliver(frame);
                    }
                }
            }
        }
        worked
    }

    /// A frame that the rules give to this queue pair takes a receive.
    fn deliver(&self, frame: &[u8]) {
        if self.impaired.as_ref().is_none_or(|impaired| impaired.passes(Direction::In, frame)) {
            self.take(frame);
        }
    }

    fn take(&self, frame: &[u8]) {
        let takes = lock(&self.receive);
        if !*takes {
            return;
        }
        let (queues, counters) = (&self.queues, self.queues.counters);
        counters.rx_frames.add(1);
        if let Some(headers) = Headers::of(frame) {
            queues.choose_work_queue(&headers);
        }
        let Some(work) = queues.take_receive() else {
            counters.no_receive.add(1);
            return;
        };
        let mut completion = Completion {
            wr_id: work.wr_id,
            opcode: CompletionOpcode::Receive,
            byte_length: frame.len() as u32,
            queue_pair: queues.number,
            ..Completion::default()
        };
        match queues.scatter_receive(&mut Reader::default(), &work, 0, &Bytes::Buffer(frame)) {
            Ok(()) => {
                counters.rx_messages.add(1);
                counters.rx_sends.add(1);
                counters.rx_bytes.add(frame.len() as u64);
            }
            Err(PayloadError::Room) => completion.status = Status::LocalLength,
            Err(_) => completion.status = Status::LocalProtection,
        }
        queues.complete_receive(&work, completion, false);
    }
}

impl CqLane for RawEndpoint {
    fn poll(&self) -> bool {
        self.take_in()
    }

    /// The background thread always watches.
    fn arm(&self) {}
}

impl Source for RawEndpoint {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        if readiness & WRITABLE != 0 && self.is_full.swap(false, Ordering::SeqCst) {
            let _ = self.watch(|_| Ok(()));
            transport::Endpoint::transmit(&*self);
        }
        self.take_in();
    }
}

impl transport::Endpoint for RawEndpoint {
    fn transmit(&self) {
        self.work_count.note();
        loop {
            let Ok(mut transmit) = self.transmit.try_lock() else { return };
            let seen = self.work_count.noted();
            self.send_all(&mut transmit);
            drop(transmit);
            if !self.work_count.since(seen) {
                return;
            }
        }
    }

    fn modify(&self, transition: Transition, _: &Attributes) -> Result<()> {
        if !self.queues.work_queues().is_empty() {
            return Err(Error::unsupported(
                "a queue pair that spreads frames has no states: its work queues have",
            ));
        }
        match (transition.from, transition.to) {
            (from, State::Error | State::Reset) => {
                if from > State::Init {
                    self.stop();
                }
                if transition.to == State::Reset {
                    lock(&self.transmit).cursor = SendCursor::default();
                }
            }
            (State::Init, State::Rtr) => self.begin()?,
            (from, State::Rts) => {
                let mut transmit = lock(&self.transmit);
                transmit.may_send = true;
                if from == State::Sqe {
                    transmit.cursor = self.queues.send.resume_at();
                }
            }
            (_, State::Sqd) => {
                // Frames are complete as soon as they are sent: nothing is under way.
                lock(&self.transmit).may_send = false;
                self.queues.send_queue_drained();
            }
            _ => {}
        }
        Ok(())
    }

    fn is_connected_by_manager(&self) -> bool {
        false
    }

    fn close(&self) {
        self.stop();
        if let Some(impaired) = &self.impaired {
            impaired.clear();
        }
        let lane: Arc<dyn CqLane> = self.this();
        self.completion_queues().iter().for_each(|cq| cq.detach_lane(&lane));
    }

    fn attach_flow(&self, rule: FlowRule) -> Result<u64> {
        let number = self.net.steering.add(rule, self.this.clone());
        let heard = self.watch(|hearing| {
            hearing.rules += 1;
            Ok(())
        });
        heard.inspect_err(|_| self.detach_flow(number))?;
        Ok(number)
    }

    fn detach_flow(&self, number: u64) {
        self.net.steering.remove(number);
        let _ = self.watch(|hearing| {
            hearing.rules -= 1;
            Ok(())
        });
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
