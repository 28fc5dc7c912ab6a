//! Streams of bytes over a queue pair.
//!
//! Each message is a Send with a header of two words in network byte order: credits, and flags. A credit is a
//! receive of the sender of the header that has become free. The first message of each side brings all
//! credits of that side, and the length of its receives in place of the flags. A message with bytes takes a
//! credit of the other side. A message without bytes takes none: each side keeps [`RESERVE`] receives for
//! those. That is enough, since a side sends credits without bytes only when half of its receives have become
//! free.

use super::driver::{Place, Ticket};
use super::{AsyncConnection, Message};
use crate::{Buffer, Error, Payload, Result, WorkRequest};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

/// Bytes of a header.
const HEADER: usize = 8;
/// Receives for messages without bytes: the greeting, the last message, and two with credits.
const RESERVE: u32 = 4;
/// The flag of the last message.
const LAST: u32 = 1;

/// A stream of bytes over an [`AsyncConnection`], as a TCP connection is one. Both sides make one of their
/// connection.
///
/// With the feature `tokio` it has tokio's `AsyncRead` and `AsyncWrite`. With the feature `smol` it has those
/// of `futures-io`.
///
/// The bytes of a write are copied into a buffer, and leave at once. A flush waits until the peer's device
/// has them. A writer waits while the receives of the peer are full of bytes that its program has not read.
///
/// A shutdown tells the peer that no more bytes come: its reads end with 0 bytes. If the stream is dropped
/// without a shutdown, the peer's reads end with `UnexpectedEof`.
///
/// ```
/// # use adverb::asynchronous::ByteStream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
/// # fn main() -> adverb::Result<()> {
/// # with_ends(async |(client, server)| {
/// # let (client, server) = tokio::join!(ByteStream::open(client), ByteStream::open(server));
/// # let (mut client, mut server) = (client?, server?);
/// // Bytes without boundaries, however they were written:
/// client.write_all(b"once upon").await.unwrap();
/// client.write_all(b" a time").await.unwrap();
/// let mut text = [0; 16];
/// server.read_exact(&mut text).await.unwrap();
/// assert_eq!(&text, b"once upon a time");
/// # Ok(())
/// # })
/// # }
/// ```
pub struct ByteStream {
    connection: AsyncConnection,
    /// Most bytes of a message of this side.
    chunk: usize,
    /// Receives of the peer that this side may use.
    credits: u32,
    /// All receives of the peer for messages with bytes.
    most_credits: u32,
    /// Receives of this side for messages with bytes.
    receives: u32,
    /// Receives of this side that have become free, and of which the peer does not know.
    freed: u32,
    /// Messages with bytes that nobody has read.
    incoming: VecDeque<Message>,
    /// Bytes of the oldest message that were read, with the header.
    read: usize,
    reading: ReadState,
    /// Whether this side may write: not after a shutdown.
    is_open: bool,
    /// Requests in flight, the oldest first.
    sent: VecDeque<Place>,
    /// The place among those that wait for a message.
    reader: Ticket,
    /// The place among those that wait to send.
    poster: Ticket,
    tasks: Arc<StreamTasks>,
    /// Wakes `tasks`.
    waker: Waker,
}

/// Whether more bytes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Open,
    /// The peer has said that no more come.
    Ended,
    /// The connection has ended before the peer said so.
    Cut,
}

/// The tasks that read and write. Each event wakes both: either of them may take in what the other one waits
/// for.
#[derive(Default)]
struct StreamTasks(Mutex<[Option<Waker>; 2]>);

/// The side of the stream that a task uses.
#[derive(Clone, Copy)]
enum Side {
    Read = 0,
    Write = 1,
}

impl Wake for StreamTasks {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl ByteStream {
    /// A stream over `connection`, whose messages nobody else sends or receives. Waits until the peer has
    /// made one, too.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")]
    /// # mod with_tokio {
    /// use adverb::Context;
    /// use adverb::asynchronous::{AsyncEndpoint, ByteStream, Tokio};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub(super) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Context::open_default()?.protection_domain()?;
    /// let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
    /// let address = listener.local_address();
    ///
    /// let server = tokio::spawn(async move {
    ///     let connection = listener.accept().await?.accept(&[]).await?;
    ///     let mut stream = ByteStream::open(connection).await?;
    ///     let mut text = String::new();
    ///     stream.read_to_string(&mut text).await?;
    ///     std::io::Result::Ok(text)
    /// });
    ///
    /// let mut stream = ByteStream::open(endpoint.connect(address, &[]).await?).await?;
    /// stream.write_all(b"as many bytes as you like").await?;
    /// stream.shutdown().await?;
    /// assert_eq!(server.await??, "as many bytes as you like");
    /// # Ok(())
    /// # }
    /// # }
    /// # fn main() {
    /// # #[cfg(feature = "tokio")]
    /// # with_tokio::main().unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL if the connection has fewer than 6 [`receives`](super::AsyncOptions::receives), or
    /// [`message_bytes`](super::AsyncOptions::message_bytes) of less than 9, or if the peer has sent
    /// something else; ECONNRESET if the connection has ended.
    pub async fn open(connection: AsyncConnection) -> Result<Self> {
        let options = connection.options();
        let (receives, own_bytes) = (options.receives, options.message_bytes);
        if receives < RESERVE + 2 || own_bytes <= HEADER {
            let text = format!(
                "a stream over {receives} receives of {own_bytes} bytes: at least {} of {} bytes are needed",
                RESERVE + 2,
                HEADER + 1
            );
            return Err(Error::invalid(text));
        }
        if let Some(error) = connection.no_messages() {
            return Err(error);
        }
        let receives = receives - RESERVE;
        connection.send(&header(receives, u32::try_from(own_bytes).unwrap_or(u32::MAX))[..]).await?;
        let Some(greeting) = connection.receive().await? else {
            return Err(Error::new(
                libc::ECONNRESET,
                "the connection has ended before the peer made a stream of it",
            ));
        };
        let (most_credits, peer_bytes) =
            parse(&greeting).filter(|_| greeting.len() == HEADER).ok_or_else(no_stream)?;
        drop(greeting);
        let chunk = own_bytes.min(peer_bytes as usize);
        if chunk <= HEADER || most_credits == 0 {
            return Err(no_stream());
        }
        let tasks = Arc::new(StreamTasks::default());
        Ok(Self {
            connection,
            chunk,
            credits: most_credits,
            most_credits,
            receives,
            freed: 0,
            incoming: VecDeque::new(),
            read: HEADER,
            reading: ReadState::Open,
            is_open: true,
            sent: VecDeque::new(),
            reader: None,
            poster: None,
            waker: Waker::from(tasks.clone()),
            tasks,
        })
    }

    /// The connection, for its addresses and its end.
    ///
    /// ```
    /// # use adverb::asynchronous::ByteStream;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// # let (client, server) = tokio::join!(ByteStream::open(client), ByteStream::open(server));
    /// # let (client, server) = (client?, server?);
    /// // For a log, as with a TCP connection: who the peer is.
    /// let peer = server.connection().peer_address();
    /// assert!(peer.is_some_and(|peer| peer.ip().is_loopback()));
    /// # drop(client);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn connection(&self) -> &AsyncConnection {
        &self.connection
    }

    /// The waker of both tasks. From now on it wakes the task of `context`, too.
    fn waker(&self, side: Side, context: &Context<'_>) -> Waker {
        let mut wakers = self.tasks.0.lock().unwrap_or_else(PoisonError::into_inner);
        wakers[side as usize] = Some(context.waker().clone());
        self.waker.clone()
    }

    /// Takes in one message of the peer. Also ready when the connection has ended.
    fn poll_incoming(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let Some(message) = ready!(self.connection.poll_receive(&mut self.reader, context))? else {
            if self.reading == ReadState::Open {
                self.reading = ReadState::Cut;
            }
            return Poll::Ready(Ok(()));
        };
        let (credits, flags) = parse(&message).ok_or_else(no_stream)?;
        let credits = self.credits.checked_add(credits).filter(|credits| *credits <= self.most_credits);
        self.credits = credits.ok_or_else(no_stream)?;
        if flags & LAST != 0 {
            self.reading = ReadState::Ended;
        }
        if message.len() > HEADER {
            self.incoming.push_back(message);
        }
        // The other task may wait for what has come.
        self.waker.wake_by_ref();
        Poll::Ready(Ok(()))
    }

    /// Takes the ends of requests. The oldest one that is in flight wakes the task.
    fn poll_sent(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        while let Some(oldest) = self.sent.front_mut() {
            let ended = ready!(oldest.poll_end(context));
            self.sent.pop_front();
            if let Some(buffer) = ended?.success()?.buffer {
                self.connection.recycle(buffer);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Posts a message with the credits that the peer does not know of.
    fn poll_send<'a>(
        &mut self,
        context: &Context<'_>,
        payload: impl FnOnce(&AsyncConnection, u32) -> Result<Payload<'a>>,
    ) -> Poll<io::Result<()>> {
        let place = ready!(self.connection.driver().poll_place(&mut self.poster, context))?;
        let payload = match payload(&self.connection, self.freed) {
            Ok(payload) => payload,
            Err(error) => {
                place.give_up();
                return Poll::Ready(Err(error.into()));
            }
        };
        self.sent.push_back(place.post(WorkRequest::send(payload))?);
        self.freed = 0;
        Poll::Ready(Ok(()))
    }

    /// Tells the peer of receives that have become free, once they are half of all.
    fn poll_credits(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.freed * 2 < self.receives || self.reading != ReadState::Open {
            return Poll::Ready(Ok(()));
        }
        self.poll_send(context, |connection, freed| bare(connection, freed, 0))
    }

    /// Reads up to `target.len()` bytes: 0 after the last one.
    fn poll_read_bytes(&mut self, context: &Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let waker = self.waker(Side::Read, context);
        let context = &Context::from_waker(&waker);
        let copied = loop {
            if target.is_empty() {
                break 0;
            }
            if let Some(message) = self.incoming.front() {
                let rest = &message[self.read..];
                let count = rest.len().min(target.len());
                target[..count].copy_from_slice(&rest[..count]);
                self.read += count;
                if count == rest.len() {
                    // Its drop posts the receive again.
                    self.incoming.pop_front();
                    self.read = HEADER;
                    self.freed += 1;
                }
                break count;
            }
            // The peer may wait for these.
            if let Poll::Ready(result) = self.poll_credits(context) {
                result?;
            }
            match self.reading {
                ReadState::Open => ready!(self.poll_incoming(context))?,
                ReadState::Ended => break 0,
                ReadState::Cut => {
                    let text = "the peer has ended the connection without a shutdown of its stream";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
                }
            }
        };
        // No place to send: the next read or write tries again.
        if let Poll::Ready(Err(error)) = self.poll_credits(context)
            && copied == 0
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(copied))
    }

    /// Sends up to `bytes.len()` bytes.
    fn poll_write_bytes(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let waker = self.waker(Side::Write, context);
        let context = &Context::from_waker(&waker);
        if !self.is_open {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "the stream was shut down")));
        }
        if let Poll::Ready(result) = self.poll_sent(context) {
            result?;
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        while self.credits == 0 {
            if self.reading == ReadState::Cut {
                let text = "the peer has ended the connection";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, text)));
            }
            ready!(self.poll_incoming(context))?;
        }
        let (chunk, count) = (self.chunk, bytes.len().min(self.chunk - HEADER));
        ready!(self.poll_send(context, |connection, freed| {
            let mut buffer: Buffer = connection.buffer(chunk)?;
            buffer[..HEADER].copy_from_slice(&header(freed, 0));
            buffer[HEADER..HEADER + count].copy_from_slice(&bytes[..count]);
            Ok(buffer.slice(..HEADER + count).into())
        }))?;
        self.credits -= 1;
        Poll::Ready(Ok(count))
    }

    /// Waits until the peer's device has all bytes.
    fn poll_flush_all(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let waker = self.waker(Side::Write, context);
        self.poll_sent(&Context::from_waker(&waker))
    }

    /// Tells the peer that no more bytes come, and waits until it has all of them.
    fn poll_shutdown_all(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let waker = self.waker(Side::Write, context);
        let context = &Context::from_waker(&waker);
        if self.is_open {
            ready!(self.poll_send(context, |connection, freed| bare(connection, freed, LAST)))?;
            self.is_open = false;
        }
        self.poll_sent(context)
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream").field("connection", &self.connection).finish_non_exhaustive()
    }
}

fn header(credits: u32, flags: u32) -> [u8; HEADER] {
    (u64::from(credits) << 32 | u64::from(flags)).to_be_bytes()
}

/// A message without bytes.
fn bare(connection: &AsyncConnection, credits: u32, flags: u32) -> Result<Payload<'static>> {
    let mut buffer = connection.buffer(HEADER)?;
    buffer.copy_from_slice(&header(credits, flags));
    Ok(buffer.into())
}

fn parse(message: &[u8]) -> Option<(u32, u32)> {
    let word = u64::from_be_bytes(*message.first_chunk::<HEADER>()?);
    Some(((word >> 32) as u32, word as u32))
}

fn no_stream() -> Error {
    Error::invalid(
        "the peer has sent what is no part of a stream: it has made no ByteStream of its connection",
    )
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::ByteStream;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    impl AsyncRead for ByteStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            target: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = ready!(self.poll_read_bytes(context, target.initialize_unfilled()))?;
            target.advance(count);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for ByteStream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_bytes(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush_all(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_shutdown_all(context)
        }
    }
}

#[cfg(feature = "smol")]
mod with_smol {
    use super::ByteStream;
    use smol::io::{AsyncRead, AsyncWrite};
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    impl AsyncRead for ByteStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            target: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_read_bytes(context, target)
        }
    }

    impl AsyncWrite for ByteStream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_bytes(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush_all(context)
        }

        fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_shutdown_all(context)
        }
    }
}
