//! Where a queue pair or a service lives.
//!
//! A sender that meets an address for the first time asks once, at the address's UDP port 4791, with a management datagram of a vendor class of ours. If
//! the holder of that port is an adverb, it answers for itself, or passes the question on to the owner, which answers: with
//! the UDP port that reaches it directly. Kernels and adapters do not answer, and get everything on 4791.

use crate::gsi::{MadHandler, MadSource};
use crate::handover::Kind;
use crate::lane::Lane;
use crate::lock;
use crate::net::Net;
use crate::numbers::block_of;
use crate::route::PORT;
use adverb_core::random;
use adverb_core::reactor::{Readiness, Source};
use adverb_wire::ib::mad::{Header, MAD_LEN, Mad, Vendor, method};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The management class: one that vendors divide among themselves by OUI.
pub(crate) const CLASS: u8 = 0x3d;
/// An OUI of our own: locally administered, so nobody else's.
const OUI: [u8; 3] = [0x02, 0xad, 0x7b];
/// Attributes.
const QUEUE_PAIR: u16 = 1;
/// Pauses before a question is asked again, and at last forgotten.
const PAUSES: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(2)];
/// Questions that wait at once, and answers that are kept.
const MOST: usize = 16_384;

/// See the module. Thread-safe.
#[derive(Default)]
pub(crate) struct Locator {
    questions: Mutex<HashMap<u64, Question>>,
    answers: Mutex<HashMap<(IpAddr, u32), u16>>,
    /// Counts the answers, so that whoever keeps what follows from them notices new ones.
    version: AtomicU64,
}

struct Question {
    number: u32,
    local: IpAddr,
    peer: SocketAddr,
    lane: Weak<Lane>,
    /// The queue pair that wants to know; 0: whoever sends datagrams there.
    asker: u32,
    asked: usize,
}

impl Locator {
    /// Answers questions from now on, and hears answers.
    pub(crate) fn listen(&self, net: &Arc<Net>) {
        net.gsi.set_handler(CLASS, Arc::new(Answering(Arc::downgrade(net))));
    }

    /// Counts the answers so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The UDP port of a queue pair, as far as it is known.
    pub(crate) fn port(&self, address: IpAddr, number: u32) -> Option<u16> {
        lock(&self.answers).get(&(address, number)).copied()
    }

    /// Asks where queue pair `number` of `peer` lives; the answer comes to `lane`. For the queue pair `asker` of this process, which is
    /// told (0: nobody is, but it is kept).
    pub(crate) fn ask(
        &self,
        net: &Arc<Net>,
        lane: &Arc<Lane>,
        local: IpAddr,
        peer: SocketAddr,
        number: u32,
        asker: u32,
    ) {
        if let Some(transaction) = self.note(lane, local, peer, number, asker) {
            self.put(net, transaction);
        }
    }

    /// Notes a question to be put. None if there are too many, or the same one waits.
    fn note(
        &self,
        lane: &Arc<Lane>,
        local: IpAddr,
        peer: SocketAddr,
        number: u32,
        asker: u32,
    ) -> Option<u64> {
        let transaction = random::word();
        let mut questions = lock(&self.questions);
        let same =
            |known: &Question| known.number == number && known.peer.ip() == peer.ip() && known.asker == asker;
        // Bounded; who is not told now goes on by port 4791.
        if questions.len() >= MOST || asker == 0 && questions.values().any(same) {
            return None;
        }
        let lane = Arc::downgrade(lane);
        questions.insert(transaction, Question { number, local, peer, lane, asker, asked: 0 });
        Some(transaction)
    }

    /// The same for datagrams, from within a turn at sending: the background thread asks.
    pub(crate) fn ask_soon(
        &self,
        net: &Arc<Net>,
        lane: &Arc<Lane>,
        local: IpAddr,
        peer: SocketAddr,
        number: u32,
    ) {
        if let Some(transaction) = self.note(lane, local, peer, number, 0)
            && let Ok(engine) = net.engine()
        {
            let again = Arc::new(Again { net: net.clone(), transaction });
            let _ = engine.reactor.set_timer(Duration::ZERO, again);
        }
    }

    /// Puts a question, or forgets it.
    fn put(&self, net: &Arc<Net>, transaction: u64) {
        let (lane, local, peer, number, pause) = {
            let mut questions = lock(&self.questions);
            let Some(question) = questions.get_mut(&transaction) else { return };
            let (Some(pause), Some(lane)) = (PAUSES.get(question.asked), question.lane.upgrade()) else {
                if let Some(question) = questions.remove(&transaction)
                    && question.asker == 0
                {
                    // Nobody answers: not one of us, and not asked again for each datagram.
                    drop(questions);
                    self.keep(question.peer.ip(), question.number, PORT);
                }
                return;
            };
            question.asked += 1;
            (lane, question.local, question.peer, question.number, *pause)
        };
        let mut peer = peer;
        peer.set_port(PORT);
        let mad = datagram(method::GET, transaction, number, 0);
        net.gsi.send_from(&lane, local, peer, &mad);
        if let Ok(engine) = net.engine() {
            let again = Arc::new(Again { net: net.clone(), transaction });
            let _ = engine.reactor.set_timer(pause, again);
        }
    }

    /// Answers a question about a queue pair of this process.
    pub(crate) fn answer_here(&self, net: &Arc<Net>, mad: &[u8; MAD_LEN], from: MadSource) {
        let Some((method::GET, transaction, number, _)) = parse(mad) else { return };
        let Some(endpoint) = net.endpoint(number) else { return };
        let port = endpoint.lane.socket.port();
        let Ok(primary) = net.primary() else { return };
        let answer = datagram(method::GET_RESPONSE, transaction, number, port);
        net.gsi.send_from(&primary, from.local, from.reply_to(), &answer);
    }

    fn keep(&self, address: IpAddr, number: u32, port: u16) {
        let mut answers = lock(&self.answers);
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert((address, number), port);
        drop(answers);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn answered(&self, net: &Arc<Net>, transaction: u64, number: u32, port: u16, from: MadSource) {
        let question = {
            let mut questions = lock(&self.questions);
            // Nobody but the one who was asked answers.
            match questions.get(&transaction) {
                Some(question) if question.number == number && question.peer.ip() == from.peer => {
                    questions.remove(&transaction)
                }
                _ => None,
            }
        };
        let Some(question) = question else { return };
        if port == 0 {
            return;
        }
        self.keep(from.peer, number, port);
        if let Some(endpoint) = net.endpoint(question.asker) {
            endpoint.located(number, port);
        }
    }
}

impl MadSource {
    /// Where the sender hears an answer.
    pub(crate) fn reply_to(&self) -> SocketAddr {
        match self.peer {
            IpAddr::V6(v6) => std::net::SocketAddrV6::new(v6, self.peer_port, 0, self.scope).into(),
            IpAddr::V4(v4) => (v4, self.peer_port).into(),
        }
    }
}

/// Takes our own management datagrams.
struct Answering(Weak<Net>);

impl MadHandler for Answering {
    fn mad(&self, mad: &[u8; MAD_LEN], from: MadSource) {
        let Some(net) = self.0.upgrade() else { return };
        match parse(mad) {
            Some((method::GET, _, number, _)) => {
                if net.endpoint(number).is_some() {
                    net.locator.answer_here(&net, mad, from);
                } else if net.gate.is_held() {
                    net.tell(block_of(number), Kind::Locate, &from.arrival(mad));
                }
            }
            Some((method::GET_RESPONSE, transaction, number, port)) => {
                net.locator.answered(&net, transaction, number, port, from);
            }
            _ => {}
        }
    }
}

/// Asks once more.
struct Again {
    net: Arc<Net>,
    transaction: u64,
}

impl Source for Again {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.net.locator.put(&self.net, self.transaction);
    }
}

fn datagram(method: u8, transaction: u64, number: u32, port: u16) -> [u8; MAD_LEN] {
    let mut data = Vendor::new(OUI, [0; _]);
    data.data[..4].copy_from_slice(&number.to_be_bytes());
    data.data[4..6].copy_from_slice(&port.to_be_bytes());
    data.with_header(Header::new(CLASS, 1, method, transaction, QUEUE_PAIR)).to_bytes()
}

/// Method, transaction, queue pair number, port.
fn parse(bytes: &[u8; MAD_LEN]) -> Option<(u8, u64, u32, u16)> {
    let mad = Mad::parse(bytes)?;
    let vendor = mad.vendor()?;
    if vendor.oui != OUI || mad.header.attribute_id.get() != QUEUE_PAIR || mad.header.status.get() != 0 {
        return None;
    }
    let number = u32::from_be_bytes(vendor.data[..4].try_into().ok()?);
    let port = u16::from_be_bytes(vendor.data[4..6].try_into().ok()?);
    Some((mad.header.method, mad.header.transaction_id.get(), number, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let bytes = datagram(method::GET, 77, 0x12_3456, 0);
        assert_eq!(parse(&bytes), Some((method::GET, 77, 0x12_3456, 0)));
        let mut foreign = bytes;
        foreign[37] ^= 1;
        assert_eq!(parse(&foreign), None, "another vendor");
    }
}
