//! State and settings of a queue pair.

use crate::QueuePair;
use adverb_core::qp::{Attributes, Capabilities, State};
use std::time::Duration;

/// State and settings of a queue pair at one moment (`ibv_query_qp`), from [`QueuePair::attributes`].
///
/// ```
/// use adverb::QueuePairState;
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, server) = ends()?;
/// let attributes = client.attributes();
/// assert_eq!(attributes.state, QueuePairState::Rts);
/// // On `roce0`:
/// if let Some(path) = attributes.path {
///     assert_eq!(path.peer, server.number());
///     println!("packets of up to {} bytes, {} repetitions", path.path_mtu, path.retries);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// The state of the queue pair.
    pub state: State,
    /// Sends that it takes at once; perhaps more than were asked for.
    pub max_sends: u32,
    /// Receives that it takes at once; none with a shared receive queue.
    pub max_receives: u32,
    /// Segments of one send.
    pub max_gather: u32,
    /// Segments of one receive.
    pub max_scatter: u32,
    /// Bytes that one request can take along by copy.
    pub inline_bytes: u32,
    /// The numbers of the connection, on a device whose queue pairs have them (`roce0`), once it is
    /// connected.
    pub path: Option<PathAttributes>,
}

/// Numbers of a connection, as both sides have agreed on them.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, server) = ends()?;
/// // On `roce0`, the numbers say how a message travels:
/// if let Some(path) = client.attributes().path {
///     let packets = 10_000_u32.div_ceil(path.path_mtu);
///     println!("10000 bytes are {packets} packets, each sent up to {} times", 1 + path.retries);
///     assert_eq!((path.peer, packets > 1), (server.number(), true));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathAttributes {
    /// The peer's queue pair.
    pub peer: u32,
    /// The most bytes of payload in one packet.
    pub path_mtu: u32,
    /// How often a request is repeated that the peer does not answer.
    pub retries: u8,
    /// How often a Send is repeated that finds no receive at the peer; 7: without a limit.
    pub no_receive_retries: u8,
    /// How long the peer has for an answer until a request is repeated. None: for ever.
    pub answer_time: Option<Duration>,
    /// Most Reads and atomics of the peer that are under way at once.
    pub inbound_reads: u8,
    /// Most Reads and atomics of this side that are under way at once.
    pub outbound_reads: u8,
    /// The traffic class of the packets.
    pub traffic_class: u8,
}

impl QueuePairAttributes {
    pub(crate) fn new(attributes: &Attributes, capabilities: Capabilities, state: State) -> Self {
        // A path MTU is there once the queue pair has been told of its peer.
        let path = (attributes.path_mtu != 0).then(|| PathAttributes {
            peer: attributes.destination,
            path_mtu: attributes.path_mtu,
            retries: attributes.retry_count,
            no_receive_retries: attributes.rnr_retry,
            answer_time: (attributes.timeout != 0)
                .then(|| Duration::from_nanos(4096 << attributes.timeout.min(31))),
            inbound_reads: attributes.max_dest_rd_atomic,
            outbound_reads: attributes.max_rd_atomic,
            traffic_class: attributes.path.traffic_class,
        });
        Self {
            state,
            max_sends: capabilities.max_send_wr,
            max_receives: capabilities.max_recv_wr,
            max_gather: capabilities.max_send_sge,
            max_scatter: capabilities.max_recv_sge,
            inline_bytes: capabilities.max_inline_data,
            path,
        }
    }
}

impl QueuePair {
    /// State and settings at this moment.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// use adverb::{QueuePairOptions, QueuePairState};
    /// # let context = adverb::Context::open_default()?;
    /// # let completions = context.completion_queue(16)?;
    /// let queue_pair = context.protection_domain()?.queue_pair(QueuePairOptions::new(&completions))?;
    /// let attributes = queue_pair.attributes();
    /// assert_eq!(attributes.state, QueuePairState::Init);
    /// assert!(attributes.max_sends >= 128 && attributes.path.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn attributes(&self) -> QueuePairAttributes {
        let core = self.core();
        let attributes = core.attributes();
        let state = attributes.state.unwrap_or_else(|| core.state());
        QueuePairAttributes::new(&attributes, core.capabilities(), state)
    }
}
