//! Errors as types.

use crate::ConnectError;
use adverb_core::error::{self, PostError};
use adverb_core::request::{Cause, Status};
use std::borrow::Cow;
use std::fmt;

/// The error of a call. Its text names the object, the limit, and the remedy where there is one.
///
/// ```
/// use adverb::Error;
///
/// # fn main() -> adverb::Result<()> {
/// let context = adverb::Context::open_default()?;
/// match context.completion_queue(u32::MAX) {
///     Err(Error::Invalid(text)) => assert!(text.contains("are allowed")),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A value is wrong: the text says what is allowed (EINVAL).
    Invalid(Cow<'static, str>),
    /// The device does not have this (EOPNOTSUPP).
    Unsupported(Cow<'static, str>),
    /// A limit of the device, or memory, has run out (ENOMEM).
    Exhausted(Cow<'static, str>),
    /// Other objects still use this one (EBUSY).
    Busy(Cow<'static, str>),
    /// There is no such device, or the object belongs to the process that this one was forked from (ENODEV).
    NoDevice(Cow<'static, str>),
    /// The time of the call was over before the awaited thing came, or the peer did not answer in time
    /// (ETIMEDOUT).
    TimedOut(Cow<'static, str>),
    /// A request has failed.
    Request(RequestError),
    /// A request was not accepted.
    Post(PostError),
    /// There is no connection: the peer refused, or nobody listens.
    Connect(Box<ConnectError>),
    /// The system has refused something, for another reason.
    System {
        /// The error number.
        errno: i32,
        /// What has failed, and why.
        text: Cow<'static, str>,
    },
}

impl Error {
    pub(crate) fn new(errno: i32, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        match errno {
            libc::EINVAL => Self::Invalid(text),
            libc::EOPNOTSUPP => Self::Unsupported(text),
            libc::ENOMEM => Self::Exhausted(text),
            libc::EBUSY => Self::Busy(text),
            libc::ENODEV => Self::NoDevice(text),
            libc::ETIMEDOUT => Self::TimedOut(text),
            errno => Self::System { errno, text },
        }
    }

    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid(text.into())
    }

    /// The error number that says the same: of the C interface, or of a socket.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let error = adverb::Context::open("mlx5_0").unwrap_err();
    /// assert_eq!(error.errno(), libc::ENODEV);
    /// # Ok(())
    /// # }
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::Exhausted(_) => libc::ENOMEM,
            Self::Busy(_) => libc::EBUSY,
            Self::NoDevice(_) => libc::ENODEV,
            Self::TimedOut(_) => libc::ETIMEDOUT,
            Self::Request(_) => libc::EIO,
            Self::Post(reason) => reason.errno(),
            Self::Connect(_) => libc::ECONNREFUSED,
            Self::System { errno, .. } => *errno,
        }
    }

    /// Whether the time of the call was over before the awaited thing came, or the peer did not answer in
    /// time (ETIMEDOUT).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let completions = adverb::Context::open_default()?.completion_queue(16)?;
    /// // Nothing was posted.
    /// assert!(completions.wait(Duration::from_millis(1)).is_err_and(|error| error.is_timeout()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut(_))
    }

    /// The status of the request that has failed, if one has.
    ///
    /// ```
    /// use adverb::{Rights, Status, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE)?;
    /// // The peer has not allowed it.
    /// client.post_send(WorkRequest::read(client.domain().buffer(8)?, &there))?;
    /// let error = client.send_queue().wait(SOON)?.success().unwrap_err();
    /// assert_eq!(error.status(), Some(Status::RemoteAccess));
    /// // Errors that are not about a request have none.
    /// let error = client.send_queue().wait(std::time::Duration::ZERO).unwrap_err();
    /// assert_eq!(error.status(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Request(error) => Some(error.status),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text)
            | Self::Unsupported(text)
            | Self::Exhausted(text)
            | Self::Busy(text)
            | Self::NoDevice(text)
            | Self::TimedOut(text)
            | Self::System { text, .. } => f.write_str(text),
            Self::Request(error) => error.fmt(f),
            Self::Post(reason) => reason.fmt(f),
            Self::Connect(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Request(error) => Some(error),
            Self::Post(reason) => Some(reason),
            Self::Connect(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<error::Error> for Error {
    fn from(error: error::Error) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

impl From<PostError> for Error {
    fn from(reason: PostError) -> Self {
        Self::Post(reason)
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<Error> for std::io::Error {
    /// The kind is that of the error number; the error itself, with its text, is inside.
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno()).kind(), error)
    }
}

/// A request that has failed.
///
/// ```
/// use adverb::{CompletionQueue, Error, Status};
/// use std::time::Duration;
///
/// fn wait(completions: &CompletionQueue) -> adverb::Result<()> {
///     match completions.wait(Duration::from_secs(10))?.success() {
///         Ok(_) => Ok(()),
///         Err(Error::Request(error)) if error.status == Status::RemoteAccess => {
///             eprintln!("request {}: the peer's region does not permit this", error.id);
///             Err(error.into())
///         }
///         Err(other) => Err(other),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestError {
    /// The number that the program gave it.
    pub id: u64,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// How the request ended.
    pub status: Status,
    /// Why, as far as adverb knows: on this side, or at the peer.
    pub cause: Cause,
}

impl RequestError {
    /// Whether the request was not carried out at all, since the connection had ended, or was about to. The
    /// first failed request of the queue pair has the reason, or
    /// [`Connection::ended`](crate::Connection::ended).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// drop(client);
    /// // The four receives come back, and none of them is worth a message to the user.
    /// for _ in 0..4 {
    ///     let error = server.receive_queue().wait(SOON)?.error().expect("no message has come");
    ///     assert!(error.is_flushed());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_flushed(&self) -> bool {
        self.status == Status::Flushed
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, queue_pair, status, cause } = self;
        write!(f, "request {id} of queue pair {queue_pair:#x}: {status}")?;
        if self.is_flushed() {
            return f.write_str("; the first failed request has the reason, or Connection::ended");
        }
        // A cause that says no more than the status.
        if *cause != Cause::from(*status) {
            write!(f, " ({cause:?})")?;
        }
        Ok(())
    }
}

impl std::error::Error for RequestError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_number_has_its_variant_and_back() {
        for errno in [
            libc::EINVAL,
            libc::EOPNOTSUPP,
            libc::ENOMEM,
            libc::EBUSY,
            libc::ENODEV,
            libc::ETIMEDOUT,
            libc::EADDRINUSE,
        ] {
            let error = Error::from(error::Error::new(errno, "a text").context("doing"));
            assert_eq!((error.errno(), error.to_string()), (errno, "doing: a text".to_owned()));
            assert_eq!(error.is_timeout(), errno == libc::ETIMEDOUT);
            let error = std::io::Error::from(error);
            assert_eq!(error.kind(), std::io::Error::from_raw_os_error(errno).kind());
            assert_eq!(error.to_string(), "doing: a text");
        }
    }

    #[test]
    fn a_failed_request_says_what_is_known() {
        let error =
            RequestError { id: 7, queue_pair: 16, status: Status::RemoteAccess, cause: Cause::PeerAccess };
        let text = error.to_string();
        assert!(text.starts_with("request 7 of queue pair 0x10: the peer refused access"), "{text}");
        let text =
            RequestError { cause: Cause::LocalBounds, status: Status::LocalProtection, ..error }.to_string();
        assert!(text.ends_with("(LocalBounds)"), "{text}");
        let flushed = RequestError { status: Status::Flushed, cause: Cause::Flushed, ..error };
        assert!(flushed.is_flushed() && flushed.to_string().contains("Connection::ended"));
        assert_eq!(Error::from(error).status(), Some(Status::RemoteAccess));
    }
}
