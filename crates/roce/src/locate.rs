//! Where a queue pair or a service lives.
//!
//! A sender that meets an address for the first time asks once, at the address's UDP port 4791, with a management datagram of a vendor class of ours. If
//! the holder of that port is an adverb, it answers for itself, or passes the question on to the owner, which answers: with
//! the UDP port that reaches it directly. Kernels and adapters do not answer, and get everything on 4791.
//!
//! The question says which queue pair asks, so that whoever answers knows at once where that one lives: nothing that two adverbs say to
//! each other depends on the life of the process that holds 4791. On one host the question goes to the owner's own socket: the holder
//! may be stopped.

use crate::endpoint::Endpoint;
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
use std::collections::{HashMap, HashSet};
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
/// See [`crate::peer`].
const MARK: u16 = 2;
/// Pauses before a question is asked again, and at last forgotten.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(60),
    Duration::from_millis(240),
    Duration::from_secs(1),
];
/// After so many questions without an answer nobody waits any longer.
const PATIENCE: usize = 4;
/// Questions that wait at once, and answers that are kept.
const MOST: usize = 16_384;

/// See the module. Thread-safe.
#[derive(Default)]
pub(crate) struct Locator {
    questions: Mutex<Questions>,
    answers: Mutex<Answers>,
    /// Counts the answers, so that whoever keeps what follows from them notices new ones.
    version: AtomicU64,
}

#[derive(Default)]
struct Questions {
    by_transaction: HashMap<u64, Question>,
    by_subject: HashMap<(IpAddr, u32), u64>,
}

#[derive(Default)]
struct Answers {
    places: HashMap<(IpAddr, u32), Place>,
    /// Addresses where nobody answers: nothing waits for an answer from there.
    strangers: HashSet<IpAddr>,
    /// Addresses where somebody has answered. One queue pair of which nobody knows makes no stranger of them: the first datagram to another
    /// one would go by port 4791, and the next one, which goes where that lives, overtake it.
    friends: HashSet<IpAddr>,
}

impl Answers {
    /// Somebody there has answered.
    fn trust(&mut self, address: IpAddr) {
        self.strangers.remove(&address);
        if self.friends.len() >= MOST {
            self.friends.clear();
        }
        self.friends.insert(address);
    }

    /// Nobody there has answered a question. It takes two without an answer between them to lose a friend.
    fn doubt(&mut self, address: IpAddr) {
        if !self.friends.remove(&address) {
            self.distrust(address);
        }
    }

    /// Whoever is there does not know our questions.
    fn distrust(&mut self, address: IpAddr) {
        self.friends.remove(&address);
        if self.strangers.len() >= MOST {
            self.strangers.clear();
        }
        self.strangers.insert(address);
    }
}

struct Question {
    number: u32,
    local: IpAddr,
    peer: SocketAddr,
    lane: Weak<Lane>,
    /// The queue pairs that want to know.
    askers: Vec<u32>,
    asked: usize,
    /// Where it says itself that it lives, having asked for a queue pair of ours meanwhile.
    met: Option<Place>,
}

impl Question {
    /// What is believed when nobody answers.
    fn fallback(&self) -> Place {
        self.met.unwrap_or(Place::STRANGE)
    }
}

/// A queue pair to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Our address that asks.
    pub(crate) local: IpAddr,
    /// The address that it is at.
    pub(crate) peer: SocketAddr,
    /// Its number.
    pub(crate) number: u32,
}

/// Where a queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Behind this UDP port.
    pub(crate) port: u16,
    /// What may be in flight to the socket there, as another adverb says it (zero: the usual); none of somebody else's.
    pub(crate) room: Option<u32>,
}

impl Place {
    /// Behind the port that everybody has: where those live who do not answer.
    pub(crate) const STRANGE: Place = Place { port: PORT, room: None };
}

/// What is known of where a queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Here.
    At(Place),
    /// Not yet: the asker's turn comes when the answer is there, or soon.
    Asking,
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

    /// Where queue pair `number` of an address lives, if that is known.
    pub(crate) fn known(&self, address: IpAddr, number: u32) -> Option<u16> {
        lock(&self.answers).places.get(&(address, number)).map(|place| place.port)
    }

    /// Where a queue pair lives. If that is not known, the question is put, and the answer comes to `lane`. The queue
    /// pair `asker` of this process gets a turn at sending when it has come, or nobody answers. `again`: ask in any case, as a connection
    /// begins, though something is known from before.
    pub(crate) fn find(
        &self,
        net: &Arc<Net>,
        lane: &Arc<Lane>,
        wanted: Wanted,
        asker: u32,
        again: bool,
    ) -> Known {
        let Wanted { local, peer, number } = wanted;
        // Numbers of one address belong to one process each, so nobody else can have it.
        // The table is asked for own ones alone: the caller has a queue pair's lock.
        if peer.ip() == local
            && net.owns(block_of(number))
            && let Some(endpoint) = net.endpoint(number)
        {
            let socket = &endpoint.lane.socket;
            return Known::At(Place { port: socket.port(), room: Some(socket.takes()) });
        }
        let subject = (peer.ip(), number);
        let (known, stranger) = {
            let answers = lock(&self.answers);
            (answers.places.get(&subject).copied(), answers.strangers.contains(&peer.ip()))
        };
        if let Some(place) = known
            && !again
        {
            return Known::At(place);
        }
        let transaction = {
            let mut questions = lock(&self.questions);
            let Questions { by_transaction, by_subject } = &mut *questions;
            if let Some(question) = by_subject.get(&subject).and_then(|known| by_transaction.get_mut(known)) {
                if !question.askers.contains(&asker) {
                    question.askers.push(asker);
                }
                None
            } else if by_transaction.len() < MOST {
                let transaction = random::word();
                let (lane, askers) = (Arc::downgrade(lane), vec![asker]);
                by_transaction
                    .insert(transaction, Question { number, local, peer, lane, askers, asked: 0, met: None });
                by_subject.insert(subject, transaction);
                Some(transaction)
            } else {
                // Bounded; who is not told now goes on by port 4791.
                return Known::At(known.unwrap_or(Place::STRANGE));
            }
        };
        if let Some(transaction) = transaction
            && let Ok(engine) = net.engine()
        {
            // From the background thread: the caller may hold the lane.
            let again = Arc::new(Again { net: net.clone(), transaction });
            let _ = engine.reactor.set_timer(Duration::ZERO, again);
        }
        match known {
            Some(place) => Known::At(place),
            None if stranger => Known::At(Place::STRANGE),
            None => Known::Asking,
        }
    }

    /// Puts a question, or gives it up.
    fn put(&self, net: &Arc<Net>, transaction: u64) {
        let mut patience_over = Vec::new();
        let (lane, local, mut peer, number, asker, first, fallback, pause) = {
            let mut questions = lock(&self.questions);
            let Some(question) = questions.by_transaction.get_mut(&transaction) else { return };
            let (Some(pause), Some(lane)) = (PAUSES.get(question.asked), question.lane.upgrade()) else {
                let fallback = question.fallback();
                drop(questions);
                return self.settle(net, transaction, fallback);
            };
            question.asked += 1;
            if question.asked == PATIENCE {
                patience_over.clone_from(&question.askers);
            }
            let asker = question.askers.first().copied().unwrap_or(0);
            let (first, fallback) = (question.asked == 1, question.fallback());
            (lane, question.local, question.peer, question.number, asker, first, fallback, *pause)
        };
        if !patience_over.is_empty() {
            // Nobody is there, it seems; nobody waits any longer.
            self.keep(peer.ip(), number, fallback);
            if fallback.room.is_none() {
                lock(&self.answers).doubt(peer.ip());
            }
            self.wake(net, &patience_over, number, fallback);
        }
        peer.set_port(PORT);
        let mad = question(transaction, number, asker, lane.socket.takes());
        let told = first && net.gids.has(peer.ip()) && {
            let from = MadSource::between(peer, local, lane.socket.port());
            net.tell(block_of(number), Kind::Locate, &from.arrival(&mad))
        };
        if !told {
            net.gsi.send_from(&lane, local, peer, &mad);
        }
        if let Ok(engine) = net.engine() {
            let again = Arc::new(Again { net: net.clone(), transaction });
            let _ = engine.reactor.set_timer(pause, again);
        }
    }

    /// Answers a question about a queue pair of this process.
    pub(crate) fn answer_here(&self, net: &Arc<Net>, mad: &[u8; MAD_LEN], from: MadSource) {
        let Some(question) = parse(mad).filter(|mad| mad.method == method::GET && !mad.mark) else { return };
        let Some(endpoint) = net.endpoint(question.number) else { return };
        let socket = &endpoint.lane.socket;
        if question.asker != 0 {
            let place = Place { port: from.peer_port, room: Some(question.room) };
            self.met(&endpoint, question.asker, from.peer, place);
        }
        let Ok(primary) = net.primary() else { return };
        // IB-PKT-57, IB-PKT-60
        let answer = datagram(
            method::GET_RESPONSE,
            question.transaction,
            question.number,
            socket.port(),
            socket.takes(),
        );
        net.gsi.send_from(&primary, from.local, from.reply_to(), &answer);
    }

    /// A queue pair of a peer has asked for one of ours: it lives where it asks from. Believed as long as nothing better is known.
    fn met(&self, endpoint: &Endpoint, asker: u32, peer: IpAddr, place: Place) {
        let told = lock(&self.answers).places.get(&(peer, asker)).is_some_and(|place| place.room.is_some());
        if !told {
            self.keep(peer, asker, place);
        }
        {
            let mut questions = lock(&self.questions);
            let Questions { by_transaction, by_subject } = &mut *questions;
            let open = by_subject.get(&(peer, asker)).and_then(|known| by_transaction.get_mut(known));
            if let Some(question) = open {
                question.met = Some(place);
            }
        }
        if endpoint.met(asker, peer, place) {
            endpoint.ring();
        }
    }

    /// An answer has come.
    fn answered(&self, net: &Arc<Net>, answer: &Message, from: MadSource) {
        let expected = {
            let questions = lock(&self.questions);
            // Nobody but the one who was asked answers.
            questions
                .by_transaction
                .get(&answer.transaction)
                .is_some_and(|question| question.number == answer.number && question.peer.ip() == from.peer)
        };
        if expected {
            let stranger = answer.refused || answer.port == 0;
            let place = Place { port: answer.port, room: Some(answer.room) };
            if stranger {
                lock(&self.answers).distrust(from.peer);
            }
            self.settle(net, answer.transaction, if stranger { Place::STRANGE } else { place });
        }
    }

    /// A question is answered, or given up.
    fn settle(&self, net: &Arc<Net>, transaction: u64, place: Place) {
        let question = {
            let mut questions = lock(&self.questions);
            let Some(question) = questions.by_transaction.remove(&transaction) else { return };
            questions.by_subject.remove(&(question.peer.ip(), question.number));
            question
        };
        self.keep(question.peer.ip(), question.number, place);
        self.wake(net, &question.askers, question.number, place);
    }

    fn wake(&self, net: &Arc<Net>, askers: &[u32], number: u32, place: Place) {
        for asker in askers {
            if let Some(endpoint) = net.endpoint(*asker) {
                endpoint.located(number, place);
                endpoint.ring();
            }
        }
    }

    fn keep(&self, address: IpAddr, number: u32, place: Place) {
        let mut answers = lock(&self.answers);
        if answers.places.len() >= MOST {
            answers.places.clear();
        }
        answers.places.insert((address, number), place);
        if place.room.is_some() {
            answers.trust(address);
        }
        drop(answers);
        self.version.fetch_add(1, Ordering::AcqRel);
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
        let Some(message) = parse(mad) else { return };
        match message.method {
            method::GET if message.mark => {
                let mark = Mark { number: message.transaction, port: message.port, from };
                if let Some(room) = net.pace.allow(&net, mark) {
                    echo(&net, mark, room);
                }
            }
            method::GET_RESPONSE if message.mark => {
                net.peers.echoed(from.peer, &message);
            }
            method::GET if net.endpoint(message.number).is_some() => {
                net.locator.answer_here(&net, mad, from);
            }
            method::GET if net.gate.is_held() => {
                net.tell(block_of(message.number), Kind::Locate, &from.arrival(mad));
            }
            method::GET_RESPONSE => net.locator.answered(&net, &message, from),
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

fn datagram(method: u8, transaction: u64, number: u32, port: u16, room: u32) -> [u8; MAD_LEN] {
    with_attribute(QUEUE_PAIR, method, transaction, number, port, room, 0)
}

/// Asks where a queue pair lives; the one that asks is `asker`, or 0, and `room` may be in flight to it.
pub(crate) fn question(transaction: u64, number: u32, asker: u32, room: u32) -> [u8; MAD_LEN] {
    with_attribute(QUEUE_PAIR, method::GET, transaction, number, 0, room, asker)
}

/// The transaction and the queue pair that an answer is about, and the port where it lives.
pub(crate) fn answer(mad: &[u8; MAD_LEN]) -> Option<(u64, u32, u16)> {
    let answer = parse(mad).filter(|mad| mad.method == method::GET_RESPONSE && !mad.mark && !mad.refused)?;
    (answer.port != 0).then_some((answer.transaction, answer.number, answer.port))
}

fn with_attribute(
    attribute: u16,
    method: u8,
    transaction: u64,
    number: u32,
    port: u16,
    room: u32,
    asker: u32,
) -> [u8; MAD_LEN] {
    let mut data = Vendor::new(OUI, [0; _]);
    data.data[..4].copy_from_slice(&number.to_be_bytes());
    data.data[4..6].copy_from_slice(&port.to_be_bytes());
    data.data[6..10].copy_from_slice(&room.to_be_bytes());
    data.data[10..14].copy_from_slice(&asker.to_be_bytes());
    data.with_header(Header::new(CLASS, 1, method, transaction, attribute)).to_bytes()
}

/// A mark that has arrived, to be echoed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    /// The UDP port that the sender knows us by.
    pub(crate) port: u16,
    pub(crate) from: MadSource,
}

/// Tells the sender that everything before its mark has been taken in, and how much may be in flight from now on.
pub(crate) fn echo(net: &Net, mark: Mark, room: u32) {
    let Ok(primary) = net.primary() else { return };
    let echo = with_attribute(MARK, method::GET_RESPONSE, mark.number, 0, mark.port, room, 0);
    net.gsi.send_from(&primary, mark.from.local, mark.from.reply_to(), &echo);
}

/// A mark for the process behind a UDP port.
pub(crate) fn mark(mark: u64, port: u16) -> [u8; MAD_LEN] {
    with_attribute(MARK, method::GET, mark, 0, port, 0, 0)
}

/// What a datagram of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// It is a mark, and not about a queue pair.
    mark: bool,
    method: u8,
    pub(crate) transaction: u64,
    number: u32,
    pub(crate) port: u16,
    /// What may be in flight, in the unit of the congestion window; zero where nothing is said.
    pub(crate) room: u32,
    /// The queue pair that asks, or 0.
    asker: u32,
    /// The answer of somebody who does not know the question.
    refused: bool,
}

fn parse(bytes: &[u8; MAD_LEN]) -> Option<Message> {
    let mad = Mad::parse(bytes)?;
    let vendor = mad.vendor()?;
    let attribute = mad.header.attribute_id.get();
    if vendor.oui != OUI || !matches!(attribute, QUEUE_PAIR | MARK) {
        return None;
    }
    Some(Message {
        mark: attribute == MARK,
        method: mad.header.method,
        transaction: mad.header.transaction_id.get(),
        number: u32::from_be_bytes(vendor.data[..4].try_into().ok()?),
        port: u16::from_be_bytes(vendor.data[4..6].try_into().ok()?),
        room: u32::from_be_bytes(vendor.data[6..10].try_into().ok()?),
        asker: u32::from_be_bytes(vendor.data[10..14].try_into().ok()?),
        refused: mad.header.status.get() != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_pair_that_nobody_knows_makes_no_stranger() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut answers = Answers::default();
        let mut check = |act: fn(&mut Answers, IpAddr), is_strange| {
            act(&mut answers, address);
            assert_eq!(answers.strangers.contains(&address), is_strange);
        };
        check(Answers::doubt, true);
        check(Answers::trust, false);
        check(Answers::doubt, false);
        check(Answers::trust, false);
        check(Answers::doubt, false);
        check(Answers::doubt, true);
        check(Answers::trust, false);
        check(Answers::distrust, true);
    }

    #[test]
    fn there_and_back() {
        let bytes = datagram(method::GET, 77, 0x12_3456, 9, 70_000);
        let message = Message {
            mark: false,
            method: method::GET,
            transaction: 77,
            number: 0x12_3456,
            port: 9,
            room: 70_000,
            asker: 0,
            refused: false,
        };
        assert_eq!(parse(&bytes), Some(message));
        let asked = Message { port: 0, asker: 0x65_4321, ..message };
        assert_eq!(parse(&question(77, 0x12_3456, 0x65_4321, 70_000)), Some(asked));
        let mut foreign = bytes;
        foreign[37] ^= 1;
        assert_eq!(parse(&foreign), None, "another vendor");
    }
}
