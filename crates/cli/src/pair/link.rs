//! One end of a connection as the peers of a test use it: memory for the other side, memory of its own, and
//! short messages in between.

use adverb::{
    Completion, CompletionQueue, Connection, Context, Listener, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions, RemoteMemory, Rights, WorkRequest,
};
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::time::{Duration, Instant};

/// Longest message.
pub(crate) const MESSAGE: usize = 64 << 10;
/// Receives that are kept posted.
pub(crate) const RECEIVES: usize = 64;
/// Bytes that the other side may use as it likes, in blocks of [`MESSAGE`], and behind them a page of single
/// words.
pub(crate) const SHARED: usize = RECEIVES * MESSAGE;
/// Where the words begin.
pub(crate) const WORDS: usize = SHARED;
const PAGE: usize = 4096;
/// The longest wait for an answer of the other side.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// The messages of a link, and how many of them may be on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Shape {
    /// The longest.
    pub(crate) message: usize,
    /// Receives that are kept posted, and requests that are kept in flight.
    pub(crate) receives: usize,
}

impl Shape {
    /// Many messages of up to [`MESSAGE`] bytes.
    pub(crate) const USUAL: Self = Self { message: MESSAGE, receives: RECEIVES };
    /// A few messages that are as long as all of the shared memory.
    pub(crate) const LARGE: Self = Self { message: SHARED, receives: 8 };

    /// Messages that may be on their way before the receiver says that it has offered buffers again.
    pub(crate) fn window(self) -> usize {
        self.receives / 2
    }
}

/// How to wait for a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Asking again and again.
    Polling,
    /// In poll(2), until the completion channel reports.
    Sleeping,
}

/// One end of a connection.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
    /// Offered to the other side with all rights.
    pub(crate) shared: MemoryRegion,
    /// The other side's.
    pub(crate) peer: RemoteMemory,
    pub(crate) shape: Shape,
}

/// What a [`Link`] is made of before it is connected.
struct Parts {
    queue_pair: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    shared: MemoryRegion,
}

impl Parts {
    fn new(context: &Context, shape: Shape) -> Result<Self, String> {
        let make = || -> adverb::Result<Self> {
            let domain = context.protection_domain()?;
            let (sends, receives) = (context.completion_queue(256)?, context.completion_queue(256)?);
            let shared = domain.memory_region(SHARED + PAGE, Rights::all())?;
            let options = QueuePairOptions { send_queue: sends.clone(), ..QueuePairOptions::new(&receives) };
            let queue_pair = domain.queue_pair(options)?;
            for (id, buffer) in (0..).zip(domain.buffers(shape.receives, shape.message)?) {
                queue_pair.post_receive(id, buffer)?;
            }
            Ok(Self { queue_pair, sends, receives, shared })
        };
        make().map_err(|error| format!("preparing a queue pair: {error}"))
    }
}

impl Link {
    /// Connects to the peer that listens at `address`. Each side names its shared region in the private data.
    pub(crate) fn connect(context: &Context, address: SocketAddr) -> Result<Link, String> {
        Self::connect_as(Shape::USUAL, context, address)
    }

    /// Connects to the peer that listens at `address`, for messages of the shape `shape`. The peer must use
    /// the same shape.
    pub(crate) fn connect_as(shape: Shape, context: &Context, address: SocketAddr) -> Result<Link, String> {
        let Parts { queue_pair, sends, receives, shared } = Parts::new(context, shape)?;
        let token = shared.remote().to_bytes();
        let connection = queue_pair.connect(address, &token, PEER_TIMEOUT);
        let connection = connection.map_err(|error| format!("connecting to {address}: {error}"))?;
        let peer = RemoteMemory::from_bytes(connection.private_data());
        let peer = peer.ok_or("the private data of the connection names no memory")?;
        Ok(Link { connection, sends, receives, shared, peer, shape })
    }

    /// Takes the next connection.
    pub(crate) fn accept(context: &Context, listener: &Listener) -> Result<Link, String> {
        Self::accept_as(Shape::USUAL, context, listener)
    }

    /// Takes the next connection, for messages of the shape `shape`.
    pub(crate) fn accept_as(shape: Shape, context: &Context, listener: &Listener) -> Result<Link, String> {
        let request =
            listener.accept(PEER_TIMEOUT).map_err(|error| format!("waiting for the client: {error}"))?;
        let Parts { queue_pair, sends, receives, shared } = Parts::new(context, shape)?;
        let peer = RemoteMemory::from_bytes(request.private_data());
        let peer = peer.ok_or("the private data of the connection names no memory")?;
        let connection = request.accept(queue_pair, &shared.remote().to_bytes(), PEER_TIMEOUT);
        let connection = connection.map_err(|error| format!("accepting the connection: {error}"))?;
        Ok(Link { connection, sends, receives, shared, peer, shape })
    }

    /// The domain of the connection's memory.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.connection.domain()
    }

    /// Part of the other side's memory; it may have named less than its program has here.
    pub(crate) fn there(&self, range: impl RangeBounds<usize>) -> Result<RemoteMemory, String> {
        let there = self.peer.slice(range);
        there.ok_or_else(|| format!("the other side offers too little memory: {:?}", self.peer))
    }

    /// Puts a request on its way.
    pub(crate) fn post(&self, request: WorkRequest<'_>) -> Result<(), String> {
        self.connection.post_send(request).map_err(|rejected| format!("posting: {rejected}"))
    }

    /// Waits for the oldest request that was put on its way and is not complete.
    pub(crate) fn sent(&self) -> Result<Completion, String> {
        next(&self.sends, Waiting::Polling)
    }

    /// Puts a request on its way and waits for its end.
    pub(crate) fn run(&self, request: WorkRequest<'_>) -> Result<Completion, String> {
        self.post(request)?;
        self.sent()
    }

    /// Sends a short message.
    pub(crate) fn tell(&self, message: &[u8]) -> Result<(), String> {
        self.run(WorkRequest::send(message).solicited()).map(drop)
    }

    /// Waits for a message, hands it to `look`, and offers its buffer for another one.
    pub(crate) fn hear<T>(
        &self,
        waiting: Waiting,
        look: impl FnOnce(&Completion) -> Result<T, String>,
    ) -> Result<T, String> {
        let completion = next(&self.receives, waiting)?;
        let seen = look(&completion);
        self.offer_again(completion)?;
        seen
    }

    /// Waits for a message, of which the receiver still has the buffer.
    pub(crate) fn heard(&self) -> Result<Completion, String> {
        next(&self.receives, Waiting::Polling)
    }

    /// Offers the buffer of a message for another one.
    pub(crate) fn offer_again(&self, message: Completion) -> Result<(), String> {
        let posted = self.connection.post_receive(message.id, message.into_buffer());
        posted.map_err(|rejected| format!("posting a receive: {rejected}"))
    }

    /// Takes the completions of a ping-pong of writes that are left, on both sides: what is posted after a
    /// request completes after it.
    pub(crate) fn settle(&self) -> Result<(), String> {
        const LAST: u64 = u64::MAX;
        self.post(WorkRequest::send(b"settled").id(LAST))?;
        while self.sent()?.id != LAST {}
        self.hear(Waiting::Polling, |_| Ok(()))
    }

    /// Says how a check went, and fails if it went wrong.
    pub(crate) fn tell_verdict<T>(&self, verdict: Result<T, String>) -> Result<T, String> {
        self.tell(if verdict.is_ok() { b"good" } else { b"bad!" })?;
        verdict
    }

    /// Waits for the other side's verdict.
    pub(crate) fn hear_verdict(&self) -> Result<(), String> {
        self.hear(Waiting::Polling, |completion| match completion.message() {
            b"good" => Ok(()),
            _ => Err("the other side found wrong bytes".into()),
        })
    }
}

/// Requests in flight, as many as fit.
pub(crate) struct Stream<'a> {
    link: &'a Link,
    outstanding: usize,
    waiting: Waiting,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(link: &'a Link) -> Self {
        Self { link, outstanding: 0, waiting: Waiting::Polling }
    }

    /// A stream that leaves the processor to others while it waits.
    pub(crate) fn sleeping(link: &'a Link) -> Self {
        Self { waiting: Waiting::Sleeping, ..Self::new(link) }
    }

    /// Puts a request on its way, as soon as there is room.
    pub(crate) fn post(&mut self, request: WorkRequest<'_>) -> Result<(), String> {
        if self.outstanding == self.link.shape.receives {
            next(&self.link.sends, self.waiting)?;
            self.outstanding -= 1;
        }
        self.outstanding += 1;
        self.link.post(request)
    }

    /// Waits for all of them.
    pub(crate) fn finish(self) -> Result<(), String> {
        (0..self.outstanding).try_for_each(|_| next(&self.link.sends, self.waiting).map(drop))
    }
}

/// The next completion, which must be a good one.
fn next(queue: &CompletionQueue, waiting: Waiting) -> Result<Completion, String> {
    let text = |error: adverb::Error| error.to_string();
    if waiting == Waiting::Sleeping {
        return queue.wait(PEER_TIMEOUT).and_then(Completion::success).map_err(text);
    }
    let mut until = None;
    loop {
        for _ in 0..1000 {
            if let Some(completion) = queue.poll().map_err(text)? {
                return completion.success().map_err(text);
            }
        }
        let until = *until.get_or_insert_with(|| Instant::now() + PEER_TIMEOUT);
        if Instant::now() > until {
            return Err(format!("nothing has completed within {PEER_TIMEOUT:?}"));
        }
    }
}

/// Asks `done` again and again until it is so, and drives the connection meanwhile.
pub(crate) fn poll_until(link: &Link, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let mut until = None;
    loop {
        for _ in 0..1000 {
            if done() {
                return Ok(());
            }
            let completion = link.sends.poll().map_err(|error| error.to_string())?;
            if let Some(completion) = completion {
                completion.success().map_err(|error| error.to_string())?;
            }
        }
        let until = *until.get_or_insert_with(|| Instant::now() + PEER_TIMEOUT);
        if Instant::now() > until {
            return Err(format!("the other side has written nothing within {PEER_TIMEOUT:?}"));
        }
    }
}
