//! The one error type of the control path, and the one place where a failure meets its errno.

use std::borrow::Cow;
use std::fmt;

/// The failure of a call: words for a person, and the errno that the man page of the verb names for it.
///
/// Control calls only: the fast path (post, poll) has the small [`PostError`].
#[derive(Clone, Debug)]
pub struct Error {
    errno: i32,
    what: Cow<'static, str>,
}

/// The result of a control call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this errno. `what` names the failure, the wrong value, and the values that are allowed.
    pub fn new(errno: i32, what: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, what: what.into() }
    }

    /// A value that the caller passed is wrong (EINVAL).
    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, what)
    }

    /// The device or transport cannot do this (EOPNOTSUPP).
    pub fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EOPNOTSUPP, what)
    }

    /// A limit of the device is reached (ENOMEM, as the kernel's drivers answer).
    pub fn exhausted(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::ENOMEM, what)
    }

    /// Objects that still exist depend on this one (EBUSY).
    pub fn busy(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EBUSY, what)
    }

    /// The object belongs to the process that this one was forked from (ENODEV).
    pub fn forked() -> Self {
        Self::new(
            libc::ENODEV,
            "the object was made before fork() by the parent process; open the device again",
        )
    }

    /// The last error of the system call `call`.
    pub fn system(call: &str) -> Self {
        let error = std::io::Error::last_os_error();
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{call}: {error}"))
    }

    /// The error number, for errno or a return value.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Whether the time-out of the call was over before the awaited thing came, or the peer did not answer in
    /// time (ETIMEDOUT).
    pub fn is_timeout(&self) -> bool {
        self.errno == libc::ETIMEDOUT
    }

    /// This error with `doing`, the action that failed, in front of its text. The error number stays.
    pub fn context(self, doing: &str) -> Self {
        Self { errno: self.errno, what: Cow::Owned(format!("{doing}: {}", self.what)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        std::io::Error::from_raw_os_error(error.errno)
    }
}

/// Why a work request was not accepted (ibv_post_send(3), ibv_post_recv(3)). Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds its maximum of outstanding requests (ENOMEM).
    QueueFull,
    /// The queue pair's state does not take requests of this kind (EINVAL).
    State,
    /// More scatter/gather elements than the queue was made for (EINVAL).
    TooManySges,
    /// More inline data than the queue was made for (EINVAL).
    InlineTooLong,
    /// The operation, or the flag, is not one that this queue pair's transport or peer has (EOPNOTSUPP).
    Unsupported,
    /// The message is longer than the port's maximum, or its sum overflows (EINVAL).
    TooLong,
    /// The request uses more of the peer's memory than its token names (EINVAL; Rust API only).
    PastToken,
    /// Memory of the request belongs to another protection domain than the queue pair (EINVAL; Rust API
    /// only).
    OtherDomain,
    /// A field of the request is out of range (EINVAL).
    Invalid,
    /// Inline data lies at an address that cannot be read (EFAULT).
    Fault,
    /// The queue pair was made before fork() by the parent process (ENODEV).
    Forked,
}

impl PostError {
    /// The errno that the post functions return for it.
    ///
    /// ```
    /// # use adverb_core::error::PostError;
    /// // A function of the C interface returns the number.
    /// assert_eq!(PostError::QueueFull.errno(), libc::ENOMEM);
    /// assert_eq!(PostError::TooLong.errno(), libc::EINVAL);
    /// ```
    pub fn errno(self) -> i32 {
        match self {
            Self::QueueFull => libc::ENOMEM,
            Self::State
            | Self::TooManySges
            | Self::InlineTooLong
            | Self::TooLong
            | Self::PastToken
            | Self::OtherDomain
            | Self::Invalid => libc::EINVAL,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::Fault => libc::EFAULT,
            Self::Forked => libc::ENODEV,
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the work queue is full: poll completions before posting more, or make the queue deeper",
            Self::State => "the queue pair's state does not accept this request: sends are posted once it is connected (in error, too, where they are flushed), receives from INIT on",
            Self::TooManySges => "more scatter/gather elements than the queue pair was created with",
            Self::InlineTooLong => "more inline data than the queue pair was created with (max_inline_data)",
            Self::Unsupported => "this transport, or the connected peer, does not have the operation",
            Self::TooLong => "the message is longer than the port's max_msg_sz",
            Self::PastToken => "the request is longer than the memory of the peer that its token (RemoteMemory) names",
            Self::OtherDomain => "memory of the request belongs to another protection domain than the queue pair: register it in that of the queue pair",
            Self::Invalid => "a field of the work request is out of range",
            Self::Fault => "the inline data lies at an address that cannot be read",
            Self::Forked => "the queue pair belongs to the parent process",
        })
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::State;

    #[test]
    fn a_time_out_is_told_from_other_errors() {
        assert!(Error::new(libc::ETIMEDOUT, "the peer is silent").context("connecting").is_timeout());
        for errno in [libc::ECONNREFUSED, libc::EAGAIN, libc::ENODEV] {
            assert!(!Error::new(errno, "something else").is_timeout());
        }
    }

    /// The words for a person agree with the table of states.
    #[test]
    fn a_request_in_the_wrong_state_is_told_of_the_right_ones() {
        let text = PostError::State.to_string();
        assert!(State::Rts.takes_sends() && State::Error.takes_sends() && !State::Init.takes_sends());
        assert!(
            text.contains("sends are posted once it is connected (in error, too, where they are flushed)")
        );
        assert!(State::Init.takes_receives() && !State::Reset.takes_receives());
        assert!(text.contains("receives from INIT on"));
    }
}
