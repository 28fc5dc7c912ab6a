//! Settings that a program gives when it connects or accepts.

use crate::{Context, Error, Result};
use adverb_core::cm::{AddressOptions, ConnectionParameters};
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of a connection, for [`QueuePair::connect_with`](crate::QueuePair::connect_with) and
/// [`ConnectionRequest::accept_with`](crate::ConnectionRequest::accept_with). [`ConnectionOptions::new`] says
/// how they are until they are set.
///
/// ```
/// use adverb::{ConnectionOptions, Context, Listener, QueuePairOptions, Status, WorkRequest};
/// use std::time::Duration;
///
/// # fn main() -> adverb::Result<()> {
/// # let context = Context::open_default()?;
/// # let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
/// # let address = listener.local_address();
/// # let server = context.clone();
/// # let server = std::thread::spawn(move || -> adverb::Result<()> {
/// #     let completions = server.completion_queue(16)?;
/// #     let queue_pair = server.protection_domain()?.queue_pair(QueuePairOptions::new(&completions))?;
/// // The server lets a Send without a receive fail, instead of having it wait for ever.
/// let options = ConnectionOptions::new().no_receive_retries(1);
/// let connection = listener.accept(Duration::from_secs(10))?.accept_with(queue_pair, &options)?;
/// #     connection.wait_ended(Duration::from_secs(10));
/// #     Ok(())
/// # });
/// # let completions = context.completion_queue(16)?;
/// # let queue_pair = context.protection_domain()?.queue_pair(QueuePairOptions::new(&completions))?;
/// // The client:
/// let options = ConnectionOptions::new().timeout(Duration::from_secs(20)).retries(3);
/// let connection = queue_pair.connect_with(address, &options)?;
/// connection.post_send(WorkRequest::send(b"anybody there?"))?;
/// # if context.attributes().transport != adverb::TransportType::Iwarp {
/// assert_eq!(completions.wait(Duration::from_secs(10))?.status, Status::RnrRetryExceeded);
/// # }
/// # drop(connection);
/// # server.join().unwrap()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until they are handed to a call"]
pub struct ConnectionOptions {
    pub(super) private_data: Vec<u8>,
    pub(crate) timeout: Duration,
    pub(super) source: Option<SocketAddr>,
    retries: u8,
    no_receive_retries: u8,
    inbound_reads: Option<u8>,
    outbound_reads: Option<u8>,
    answer_time: Option<Duration>,
    traffic_class: Option<u8>,
    path_mtu: Option<u32>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionOptions {
    /// No private data, 10 seconds, 7 retries, a wait without a limit for the peer's receive, as many reads
    /// as the device can. The kernel chooses the source address, and the device the path.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// let connection = client.connect_with(address, &ConnectionOptions::new())?;
    /// // On `roce0`:
    /// if let Some(path) = connection.attributes().path {
    ///     assert_eq!((path.retries, path.no_receive_retries), (7, 7));
    /// }
    /// # server.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        Self {
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
            source: None,
            retries: 7,
            no_receive_retries: 7,
            inbound_reads: None,
            outbound_reads: None,
            answer_time: None,
            traffic_class: None,
            path_mtu: None,
        }
    }

    /// Bytes for the peer, which go along with the request or the answer. [`Context::private_data_limits`]
    /// says how much a device can carry.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, Rights};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// # let region = context.protection_domain()?.memory_region(64, Rights::READ)?;
    /// // Where the peer may read.
    /// let options = ConnectionOptions::new().private_data(&region.remote().to_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data(self, bytes: &[u8]) -> Self {
        Self { private_data: bytes.to_vec(), ..self }
    }

    /// How long the call waits for the peer.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let client = queue_pair(&domain)?;
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// // The server listens, and accepts nobody. This client does not wait for 10 seconds.
    /// let options = ConnectionOptions::new().timeout(Duration::from_millis(50));
    /// let failed = client.connect_with(address, &options).unwrap_err();
    /// assert!(adverb::Error::from(failed).is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The local address that connects. Port 0 lets the kernel choose. For
    /// [`QueuePair::connect_with`](crate::QueuePair::connect_with) alone.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, Listener};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// let options = ConnectionOptions::new().source("127.0.0.1:0".parse().unwrap());
    /// let connection = client.connect_with(address, &options)?;
    /// # let server = server.join().unwrap()?;
    /// assert_eq!(connection.local_address().map(|it| it.ip()), Some("127.0.0.1".parse().unwrap()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn source(self, address: SocketAddr) -> Self {
        Self { source: Some(address), ..self }
    }

    /// How often a request is repeated that the peer does not answer: 0 to 7 (`retry_cnt`). On `roce0` alone,
    /// and of the side that connects: the other one takes its number. TCP repeats by itself.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// // A peer that is gone is noticed sooner.
    /// let options = ConnectionOptions::new().retries(2);
    /// let connection = client.connect_with(address, &options)?;
    /// assert!(connection.attributes().path.is_none_or(|path| path.retries == 2));
    /// # server.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn retries(self, count: u8) -> Self {
        Self { retries: count, ..self }
    }

    /// How often the peer repeats a Send that finds no receive here: 0 to 6, or 7 for a wait without a limit
    /// (`rnr_retry_count`). Each side says it to the other one. With
    /// [`QueuePair::connect_raw`](crate::QueuePair::connect_raw), nobody says anything: there it counts for
    /// the Sends of this side. On `roce0` alone: on `iwarp0`, a message waits two seconds.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// // The server posts its receives in time. A message that finds none is a fault, and is not repeated.
    /// let options = ConnectionOptions::new().no_receive_retries(0);
    /// let server = listener.accept(SOON)?.accept_with(server, &options)?;
    /// # let client = client.join().unwrap()?;
    /// // The client was told:
    /// assert!(client.attributes().path.is_none_or(|path| path.no_receive_retries == 0));
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    pub fn no_receive_retries(self, count: u8) -> Self {
        Self { no_receive_retries: count, ..self }
    }

    /// Most Reads and atomics of the peer that are under way at once (`responder_resources`).
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// // The peer is to write, and reads nothing but a word now and then.
    /// let options = ConnectionOptions::new().inbound_reads(1);
    /// let connection = client.connect_with(address, &options)?;
    /// # let server = server.join().unwrap()?;
    /// // So its Reads come one after the other.
    /// assert!(server.attributes().path.is_none_or(|path| path.outbound_reads == 1));
    /// # drop(connection);
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbound_reads(self, count: u8) -> Self {
        Self { inbound_reads: Some(count), ..self }
    }

    /// Most Reads and atomics of this side that are under way at once (`initiator_depth`). Others wait in the
    /// send queue.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// // Two large Reads at once are enough to keep the network busy.
    /// let options = ConnectionOptions::new().outbound_reads(2);
    /// let connection = client.connect_with(address, &options)?;
    /// assert!(connection.attributes().path.is_none_or(|path| path.outbound_reads == 2));
    /// # server.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn outbound_reads(self, count: u8) -> Self {
        Self { outbound_reads: Some(count), ..self }
    }

    /// How long the peer has for an answer until a request is repeated: 4.096 µs times a power of two,
    /// rounded up. On `roce0` alone, and of the side that connects.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// // For a slow network: a request is not repeated too soon.
    /// let options = ConnectionOptions::new().answer_time(Duration::from_millis(500));
    /// let connection = client.connect_with(address, &options)?;
    /// // On `roce0`, the time was rounded up.
    /// if let Some(path) = connection.attributes().path {
    ///     assert!(path.answer_time.is_some_and(|time| time >= Duration::from_millis(500)));
    /// }
    /// # server.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn answer_time(self, time: Duration) -> Self {
        Self { answer_time: Some(time), ..self }
    }

    /// The traffic class of the packets (`tos` of rdma_cm, DSCP of IP). Of the side that connects.
    ///
    /// ```
    /// // Expedited forwarding: the DSCP 46 stands in the upper six bits.
    /// let options = adverb::ConnectionOptions::new().traffic_class(46 << 2);
    /// ```
    pub fn traffic_class(self, class: u8) -> Self {
        Self { traffic_class: Some(class), ..self }
    }

    /// The most bytes of payload in one packet: 256, 512, 1024, 2048 or 4096. On `roce0` alone, and of the
    /// side that connects. If the interface carries less, so does the connection.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = std::thread::spawn(move || -> adverb::Result<_> {
    /// #     Ok(listener.accept(SOON)?.accept(server, b"", SOON)?)
    /// # });
    /// // For a tunnel that carries no longer packets:
    /// let options = ConnectionOptions::new().path_mtu(512);
    /// let connection = client.connect_with(address, &options)?;
    /// assert!(connection.attributes().path.is_none_or(|path| path.path_mtu == 512));
    /// # server.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn path_mtu(self, bytes: u32) -> Self {
        Self { path_mtu: Some(bytes), ..self }
    }

    /// The parameters of this side. `asked` are those that the peer has asked for, if it has.
    pub(crate) fn parameters(
        &self,
        context: &Context,
        asked: Option<ConnectionParameters>,
    ) -> Result<ConnectionParameters> {
        for (what, count) in [("retries", self.retries), ("no_receive_retries", self.no_receive_retries)] {
            if count > 7 {
                return Err(Error::invalid(format!("{what} {count}: 0 to 7 are allowed")));
            }
        }
        let limits = context.attributes();
        let depth = |what: &str, wanted: Option<u8>, most: u32, asked: Option<u8>| {
            let most = most.min(255) as u8;
            if wanted.is_some_and(|wanted| wanted > most) {
                let wanted = wanted.unwrap_or(0);
                return Err(Error::invalid(format!("{what} {wanted}: the device allows {most}")));
            }
            Ok(wanted.unwrap_or(most).min(asked.unwrap_or(most)))
        };
        let (inbound, outbound) =
            (asked.map(|asked| asked.responder_resources), asked.map(|asked| asked.initiator_depth));
        Ok(ConnectionParameters {
            responder_resources: depth("inbound_reads", self.inbound_reads, limits.max_qp_rd_atom, inbound)?,
            initiator_depth: depth(
                "outbound_reads",
                self.outbound_reads,
                limits.max_qp_init_rd_atom,
                outbound,
            )?,
            retry_count: self.retries,
            rnr_retry_count: self.no_receive_retries,
            ..ConnectionParameters::default()
        })
    }

    pub(crate) fn address_options(&self) -> Result<AddressOptions> {
        if let Some(bytes) = self.path_mtu.filter(|bytes| ![256, 512, 1024, 2048, 4096].contains(bytes)) {
            let text = format!("path_mtu {bytes}: 256, 512, 1024, 2048 and 4096 are allowed");
            return Err(Error::invalid(text));
        }
        Ok(AddressOptions {
            type_of_service: self.traffic_class,
            ack_timeout: self.answer_time.map(code_of),
            path_mtu: self.path_mtu,
            ..AddressOptions::default()
        })
    }
}

/// The code of a local ACK timeout: the least power of two times 4.096 µs that is no shorter. The codes end
/// at 31.
fn code_of(time: Duration) -> u8 {
    (1..31).find(|code| Duration::from_nanos(4096 << code) >= time).unwrap_or(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_times_are_rounded_up() {
        for (nanoseconds, code) in [(0, 1), (8192, 1), (8193, 2), (4096 << 20, 20), (u64::MAX, 31)] {
            assert_eq!(code_of(Duration::from_nanos(nanoseconds)), code);
        }
    }
}
