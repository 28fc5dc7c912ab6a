//! Why there is no connection.

use crate::{Error, QueuePair};
use adverb_core::interfaces;
use std::fmt;

/// Why there is no connection.
///
/// ```
/// use adverb::{ConnectError, Connection, QueuePair};
/// use std::net::SocketAddr;
/// use std::time::Duration;
///
/// fn connect(queue_pair: QueuePair, server: SocketAddr) -> Result<Connection, ConnectError> {
///     let result = queue_pair.connect(server, b"", Duration::from_secs(10));
///     match &result {
///         Ok(_) => {}
///         Err(ConnectError::NobodyListens) => eprintln!("start the server on {server} first"),
///         Err(ConnectError::Rejected { private_data, .. }) => eprintln!("the server refuses: {private_data:?}"),
///         Err(other) => eprintln!("{other}"),
///     }
///     result
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens at this address and port, on a device of the same kind. Listeners on `iwarp0` are not
    /// reached from `roce0`, nor the other way round.
    NobodyListens,
    /// The peer refused.
    Rejected {
        /// The peer's reason: a negative errno, or a code of the transport.
        status: i32,
        /// The private data of the peer's refusal. Transports may append zeros.
        private_data: Vec<u8>,
    },
    /// The peer cannot be reached, did not answer in time, or the call was wrong.
    Failed(Error),
}

impl ConnectError {
    pub(super) fn from_status(what: &str, status: i32) -> Self {
        let errno = status.unsigned_abs() as i32;
        let hint = if errno == libc::ENETUNREACH { interfaces::hint() } else { "" };
        let why = std::io::Error::from_raw_os_error(errno);
        Self::Failed(Error::new(errno, format!("{what}: {why}{hint}")))
    }
}

/// Private data without the zeros that the transport may have appended.
fn said(private_data: &[u8]) -> &[u8] {
    let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &private_data[..end]
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens => f.write_str("NobodyListens"),
            Self::Rejected { status, private_data } => {
                let mut shown = f.debug_struct("Rejected");
                shown.field("status", status).field("private_data", &said(private_data)).finish()
            }
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens => {
                f.write_str("the connection was refused: nobody listens at this address and port")
            }
            Self::Rejected { status, private_data } => {
                write!(f, "the peer refused the connection (reason {status}")?;
                match said(private_data).len() {
                    0 => f.write_str(")"),
                    count => write!(f, ", with {count} bytes of private data)"),
                }
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<adverb_core::error::Error> for ConnectError {
    fn from(error: adverb_core::error::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Failed(error) => error,
            refused => Error::Connect(Box::new(refused)),
        }
    }
}

impl From<ConnectError> for std::io::Error {
    /// The kind is that of the error number, `ConnectionRefused` for a refusal; the error itself, with its
    /// text, is inside.
    fn from(error: ConnectError) -> Self {
        Error::from(error).into()
    }
}

/// A connection that did not come about, with its queue pair. It becomes a [`ConnectError`] or an
/// [`Error`](crate::Error) by `?`.
///
/// The queue pair is in error: its receives come back as flushed. [`QueuePair::reset`] makes it new.
///
/// ```
/// use adverb::{ConnectError, Connection, ConnectionOptions, QueuePair};
/// use std::net::SocketAddr;
///
/// /// Tries several servers with one queue pair.
/// fn connect(mut queue_pair: QueuePair, servers: &[SocketAddr]) -> Result<Connection, ConnectError> {
///     let mut last = ConnectError::NobodyListens;
///     for server in servers {
///         match queue_pair.connect_with(*server, &ConnectionOptions::new()) {
///             Ok(connection) => return Ok(connection),
///             Err(failed) => (last, queue_pair) = (failed.error, failed.queue_pair),
///         }
///         queue_pair.reset()?;
///     }
///     Err(last)
/// }
/// ```
pub struct NotConnected {
    /// Why there is no connection.
    pub error: ConnectError,
    /// The queue pair that was to be connected.
    pub queue_pair: QueuePair,
}

impl NotConnected {
    /// Of a queue pair that is not connected, which goes into error.
    pub(super) fn of(error: ConnectError, queue_pair: QueuePair) -> Self {
        queue_pair.fail();
        Self { error, queue_pair }
    }
}

impl fmt::Debug for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotConnected").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotConnected {}

impl From<NotConnected> for ConnectError {
    fn from(failed: NotConnected) -> Self {
        failed.error
    }
}

impl From<NotConnected> for Error {
    fn from(failed: NotConnected) -> Self {
        failed.error.into()
    }
}

/// How a connection has ended.
///
/// ```
/// use adverb::{Connection, End};
///
/// fn report(connection: &Connection) {
///     match connection.ended() {
///         None => println!("the connection stands"),
///         Some(End::Here | End::Peer) => println!("the end was asked for"),
///         Some(other) => println!("{other}"),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// This side has ended it: [`Connection::disconnect`](crate::Connection::disconnect).
    Here,
    /// The peer has ended it, or its process has ended, or the network has cut it.
    Peer,
    /// A request has failed, on this side, with this status: that ends a connection. Its completion says
    /// more.
    Failed(adverb_core::request::Status),
    /// A thread of adverb in this process has failed.
    Engine,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("this side has ended the connection"),
            Self::Peer => f.write_str("the peer has ended the connection, or is gone"),
            Self::Failed(status) => write!(f, "a request has failed: {status}"),
            Self::Engine => f.write_str("a thread of adverb in this process has failed"),
        }
    }
}
