//! Events that are not about one request: of queues, the port, and the device.

use adverb_core::event::{self, AsyncEventKind};
use std::fmt;

/// An event, and the object that it is about.
///
/// ```
/// use adverb::{AsyncEvent, AsyncEventKind, Context};
/// use std::time::Duration;
///
/// /// Says what has happened to the port.
/// fn look(context: &Context) -> adverb::Result<()> {
///     while let Some(event) = context.next_event(Duration::ZERO)? {
///         match event {
///             AsyncEvent::Port(AsyncEventKind::PortError) => eprintln!("the cable is out"),
///             AsyncEvent::QueuePair { number, kind } => eprintln!("queue pair {number}: {kind:?}"),
///             other => eprintln!("{other}"),
///         }
///     }
///     Ok(())
/// }
/// # look(&Context::open_default().unwrap()).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// To the queue pair with this number.
    QueuePair {
        /// [`QueuePair::number`](crate::QueuePair::number).
        number: u32,
        /// The kind of the event.
        kind: AsyncEventKind,
    },
    /// To the shared receive queue with this number.
    SharedReceiveQueue {
        /// [`SharedReceiveQueue::number`](crate::SharedReceiveQueue::number).
        number: u32,
        /// The kind of the event.
        kind: AsyncEventKind,
    },
    /// To a completion queue. It has overrun, which this crate does not let happen.
    CompletionQueue,
    /// To the port.
    Port(AsyncEventKind),
    /// To the device.
    Device(AsyncEventKind),
}

impl From<event::AsyncEvent> for AsyncEvent {
    fn from(event: event::AsyncEvent) -> Self {
        use AsyncEventKind as Kind;
        let (kind, number) = (event.kind, event.subject as u32);
        match kind {
            Kind::CqError => Self::CompletionQueue,
            Kind::SrqError | Kind::SrqLimitReached | Kind::WqFatal => {
                Self::SharedReceiveQueue { number, kind }
            }
            Kind::PortActive
            | Kind::PortError
            | Kind::LidChange
            | Kind::PkeyChange
            | Kind::SmChange
            | Kind::ClientReregister
            | Kind::GidChange => Self::Port(kind),
            Kind::DeviceFatal => Self::Device(kind),
            Kind::QpFatal
            | Kind::QpRequestError
            | Kind::QpAccessError
            | Kind::CommunicationEstablished
            | Kind::SendQueueDrained
            | Kind::PathMigrated
            | Kind::PathMigrationError
            | Kind::QpLastWqeReached => Self::QueuePair { number, kind },
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueuePair { number, kind } => write!(f, "queue pair {number:#x}: {kind:?}"),
            Self::SharedReceiveQueue { number, kind } => write!(f, "shared receive queue {number}: {kind:?}"),
            Self::CompletionQueue => f.write_str("a completion queue has overrun"),
            Self::Port(kind) => write!(f, "port: {kind:?}"),
            Self::Device(kind) => write!(f, "device: {kind:?}"),
        }
    }
}
