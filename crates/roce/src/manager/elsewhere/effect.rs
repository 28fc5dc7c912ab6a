//! Notices of others in any order, and what they change: a request goes to the port in a notice that knows
//! the request, and nothing else happens.

use super::super::host::Notices;
use super::super::{Manager, ManagerHost};
use super::notice;
use crate::gsi::{MadHandler, MadSource};
use crate::lock;
use crate::route::PORT;
use crate::seqpacket::Connection;
use adverb_core::attributes::{Gid, GidKind, gid_of};
use adverb_core::cm::{
    AddressOptions, ConnectRequest, ConnectionBackend, ConnectionEvent, ConnectionParameters, ConnectionSink,
    OutgoingConnection,
};
use adverb_core::error::{Error, Result};
use adverb_core::qp::Service;
use adverb_proto::cm::StaleClaim;
use adverb_wire::ib::mad::MAD_LEN;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Requests that wait for their answers, and one that nobody waits for any more.
const REQUESTS: usize = 5;

/// The peers: addresses of the loopback at which nobody answers.
fn peer(number: usize) -> IpAddr {
    IpAddr::from([127, 0, 0, (number as u8).saturating_add(2)])
}

/// A host whose clock stands still, so that nothing is sent again.
#[derive(Default)]
struct Silent(Mutex<Vec<(SocketAddr, [u8; MAD_LEN])>>);

impl ManagerHost for Silent {
    fn block(&self) -> Result<u16> {
        Ok(9)
    }

    fn open(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, _: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        lock(&self.0).push((peer, *mad));
    }

    fn send_at_exit(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        self.send(local, peer, mad);
    }

    fn port_of(&self, _: IpAddr, _: u32) -> Option<u16> {
        None
    }

    fn believes_stale(&self, _: StaleClaim) -> bool {
        true
    }

    fn gids(&self) -> Vec<Gid> {
        vec![Gid { index: 2, bytes: gid_of(LOCAL), interface: 1, kind: GidKind::RoceV2 }]
    }

    fn mtu_of(&self, _: IpAddr) -> Option<u32> {
        Some(1024)
    }

    fn admit(&self, _: Connection) -> Result<Arc<Connection>> {
        Err(Error::invalid("nobody listens here"))
    }

    fn now(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Nothing is told of these connections.
struct Nobody;

impl ConnectionSink for Nobody {
    fn event(&self, event: ConnectionEvent) {
        panic!("{event:?}");
    }
}

struct ForwardedRequest {
    peer: IpAddr,
    mad: [u8; MAD_LEN],
    transaction: u64,
    name: u32,
    /// The UDP port that the queue pair has been said to live behind.
    port: u16,
    is_waited_for: bool,
}

/// A process that has asked several others for connections.
struct Process {
    host: Arc<Silent>,
    notices: Notices,
    requests: Vec<ForwardedRequest>,
    _waiting: Vec<Box<dyn OutgoingConnection>>,
}

fn ask(manager: &Arc<Manager>, whom: IpAddr, sink: Arc<dyn ConnectionSink>) -> Box<dyn OutgoingConnection> {
    let request = ConnectRequest {
        source: None,
        destination: SocketAddr::new(whom, 7471),
        options: AddressOptions::default(),
        parameters: ConnectionParameters { qp_number: 50, ..ConnectionParameters::default() },
        private_data: &[],
    };
    manager.connect_unmanaged(Service::Rc, request, sink).expect("it asks")
}

impl Process {
    fn new() -> Self {
        adverb_core::engine::install(&[crate::FACTORY]);
        let host = Arc::<Silent>::default();
        let manager = Manager::new(host.clone());
        let mut waiting: Vec<_> =
            (1..REQUESTS).map(|number| ask(&manager, peer(number / 2), Arc::new(Nobody))).collect();
        struct Quiet;
        impl ConnectionSink for Quiet {
            fn event(&self, _: ConnectionEvent) {}
        }
        waiting.push(ask(&manager, peer(0), Arc::new(Quiet)));
        let sent = std::mem::take(&mut *lock(&host.0));
        assert_eq!(sent.len(), REQUESTS, "one datagram each");
        let mut requests: Vec<_> = sent
            .into_iter()
            .map(|(to, mad)| ForwardedRequest {
                peer: to.ip(),
                mad,
                transaction: super::transaction_of(&mad).expect("a request"),
                name: super::name_of(&mad).expect("a request"),
                port: 0,
                is_waited_for: true,
            })
            .collect();
        drop(waiting.pop());
        requests.last_mut().expect("there are some").is_waited_for = false;
        lock(&host.0).clear();
        Self { host, notices: Notices(manager), requests, _waiting: waiting }
    }

    /// Notices that somebody sends.
    fn hears(&mut self, bytes: &[u8]) {
        for step in bytes.as_chunks::<6>().0 {
            let [which, wrong, bit, of, port @ ..] = *step;
            let which = usize::from(which) % REQUESTS;
            let ForwardedRequest { peer, transaction, name, .. } = self.requests[which];
            let port = u16::from_be_bytes(port);
            // One in four is right; or one bit, the name or the sender belongs to something else.
            let other = &self.requests[usize::from(of) % REQUESTS];
            let (transaction, name, from) = match wrong & 7 {
                0 | 1 => (transaction, name, peer),
                2 => (transaction ^ 1 << (bit & 63), name, peer),
                3 => (transaction, name ^ 1 << (bit & 31), peer),
                4 => (transaction, name, self::peer(usize::from(of))),
                5 => (other.transaction, name, peer),
                6 => (transaction, other.name, other.peer),
                _ => (other.transaction, other.name, peer),
            };
            let counts = |asked: &ForwardedRequest| {
                asked.is_waited_for
                    && (asked.transaction, asked.name, asked.peer) == (transaction, name, from)
            };
            let expected = self.requests.iter_mut().find(|asked| counts(asked));
            let expected = expected.filter(|asked| port != 0 && asked.port != port).map(|asked| {
                asked.port = port;
                (SocketAddr::new(asked.peer, port), asked.mad)
            });
            let source = MadSource::between((LOCAL, PORT).into(), from, PORT);
            self.notices.mad(&notice(transaction, name, port), source);
            let sent = std::mem::take(&mut *lock(&self.host.0));
            assert_eq!(sent, Vec::from_iter(expected), "{which} {wrong} {bit} {of} {port}");
        }
    }
}

/// Any notices, from anybody.
pub(crate) fn try_effect(bytes: &[u8]) {
    static PROCESS: OnceLock<Mutex<Process>> = OnceLock::new();
    lock(PROCESS.get_or_init(|| Mutex::new(Process::new()))).hears(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::cm::{Message, Req};
    use adverb_wire::ib::mad::Mad;

    /// The requests in what was sent.
    fn requests(sent: &[(SocketAddr, [u8; MAD_LEN])]) -> Vec<Req> {
        let parsed = |mad: &[u8; MAD_LEN]| match Message::parse(Mad::parse(mad)?).ok()? {
            Message::Req(request) => Some(request),
            _ => None,
        };
        sent.iter().filter_map(|(_, mad)| parsed(mad)).collect()
    }

    /// By transaction, name and sender; a request that nobody waits for is sent nowhere.
    #[test]
    fn a_notice_counts_only_for_the_request_that_it_knows() {
        let mut process = Process::new();
        for which in 0..REQUESTS as u8 {
            let said = |process: &Process| process.requests[usize::from(which)].port;
            // By a notice that was right for it, and was meant to be wrong for the one before.
            let before = said(&process);
            for wrong in 2..8 {
                for bit in [0, 31, 63] {
                    process.hears(&[which, wrong, bit, (which + 1) % REQUESTS as u8, 0x10, which]);
                }
            }
            assert_eq!(said(&process), before);
            process.hears(&[which, 0, 0, 0, 0x20, which]);
            let is_last = usize::from(which) == REQUESTS - 1;
            let port = if is_last { before } else { 0x2000 | u16::from(which) };
            assert_eq!(said(&process), port, "and so that the others mean something");
            // Once more is too often.
            process.hears(&[which, 0, 0, 0, 0x20, which]);
        }
    }

    /// Where a connection begins to count does not tell where the next one does.
    #[test]
    fn first_sequence_numbers_are_no_sequence() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let host = Arc::<Silent>::default();
        let manager = Manager::new(host.clone());
        let _waiting: Vec<_> = (0..8).map(|_| ask(&manager, peer(0), Arc::new(Nobody))).collect();
        let first: Vec<u32> = requests(&lock(&host.0)).iter().map(|request| request.starting_psn).collect();
        assert_eq!(first.len(), 8);
        assert!(first.iter().all(|psn| *psn < 1 << 24), "{first:?}");
        let steps: std::collections::HashSet<_> =
            first.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & 0xff_ffff).collect();
        assert!(steps.len() > 5 && !steps.contains(&0), "{first:?}");
    }
}
