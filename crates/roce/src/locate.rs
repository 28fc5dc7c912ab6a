//! Where a queue pair or a service lives.
//!
//! A sender that meets an address for the first time asks once, at the address's UDP port 4791, with a management datagram of a vendor class of ours. If
//! the holder of that port is an adverb, it answers for itself, or passes the question on to the owner, which answers: with
//! the UDP port that reaches it directly. Kernels and adapters do not answer, and get everything on 4791.
//!
//! Anybody can ask, in anybody's name. So a question changes nothing: what is known of a peer comes from answers to questions of our own, whose
//! transactions nobody guesses. The question says which queue pair asks, so that whoever answers can put its own question at once: both
//! are under way at the same time, and the first reply does not wait for longer than the first message. On one host the question goes to the
//! owner's own socket: the holder of 4791 may be stopped.

use crate::endpoint::Endpoint;
use crate::gsi::{MadHandler, MadSource};
use crate::handover::HandoverKind;
use crate::kernel;
use crate::lane::Lane;
use crate::limit::Limit;
use crate::lock;
use crate::net::Net;
use crate::numbers::block_of;
use crate::observer::Direction;
use crate::recent::Recent;
use crate::route::PORT;
use crate::time;
use adverb_core::qp::Service;
use adverb_core::random;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::watch;
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
/// The attribute of a mark ([`crate::peer`]).
const MARK: u16 = 2;
/// Pauses before a question is asked again, and at last forgotten.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(60),
    Duration::from_millis(240),
    Duration::from_secs(1),
];
/// After so many questions without an answer nobody waits any longer.
const MOST_UNANSWERED: usize = 4;
/// Questions that wait at once, and answers that are kept.
const MOST: usize = 16_384;
/// While so many wait, none is added only because somebody has asked for a queue pair of ours.
const CROWDED: usize = MOST / 4;
/// Answers in a second to the addresses of a share, and at once: more than programs ask for that connect all their queue pairs.
const ANSWERS: (u32, u32) = (16_384, 16_384);
/// Questions in a second to the addresses of a share, and at once, that this process puts because somebody has asked it.
const RETURNED: (u32, u32) = (4096, 1024);
/// Questions from the addresses of a share, in a second and at once, for which a process of another user is looked for, or one that is not known yet: about as many as
/// programs ask that connect many queue pairs. To look for a process costs more than the question does.
const LOOKS: (u32, u32) = (1024, 4096);
/// So often a question is put once more because the one who is asked for has asked for us, and no sooner than after so long: an answer may be on its way.
const HURRIES: u32 = 3;
const HURRY_AFTER: Duration = Duration::from_millis(1);

/// Finds out where queue pairs of peers live: it has the questions under way, and the answers. Thread-safe.
pub(crate) struct Locator {
    questions: Mutex<Questions>,
    answers: Mutex<Answers>,
    /// Counts the answers, so that whoever keeps what follows from them notices new ones.
    version: AtomicU64,
    /// What we answer, and what we ask because of it.
    answered: Limit,
    returned: Limit,
    /// How often we look for the process that a question is for.
    looks: Limit,
}

impl Default for Locator {
    fn default() -> Self {
        Self {
            questions: Mutex::default(),
            answers: Mutex::default(),
            version: AtomicU64::new(0),
            answered: Limit::new(ANSWERS.0, ANSWERS.1),
            returned: Limit::new(RETURNED.0, RETURNED.1),
            looks: Limit::new(LOOKS.0, LOOKS.1),
        }
    }
}

#[derive(Default)]
struct Questions {
    by_transaction: HashMap<u64, Question>,
    by_subject: HashMap<(IpAddr, u32), u64>,
}

impl Questions {
    /// What is being asked about a queue pair of an address, and the transaction.
    fn about(&mut self, subject: (IpAddr, u32)) -> Option<(u64, &mut Question)> {
        let transaction = *self.by_subject.get(&subject)?;
        Some((transaction, self.by_transaction.get_mut(&transaction)?))
    }

    /// A new question, if fewer than so many wait. Returns its transaction.
    fn add_below(&mut self, most: usize, question: Question) -> Option<u64> {
        (self.by_transaction.len() < most).then(|| self.add(question))
    }

    /// A new question. Returns its transaction.
    fn add(&mut self, question: Question) -> u64 {
        let transaction = random::word();
        self.by_subject.insert((question.peer.ip(), question.number), transaction);
        self.by_transaction.insert(transaction, question);
        transaction
    }
}

/// The kind of process at an address, as far as questions show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Somebody has answered. One queue pair of which nobody knows does not make them silent: the first datagram to another
    /// one would go by port 4791, and the next one, which goes where that lives, overtake it.
    Answering,
    /// Nobody there answers: nothing waits for an answer from there.
    Silent,
}

struct Answers {
    places: Recent<(IpAddr, u32), Place>,
    standings: Recent<IpAddr, Standing>,
}

impl Default for Answers {
    fn default() -> Self {
        Self { places: Recent::new(MOST), standings: Recent::new(MOST) }
    }
}

impl Answers {
    fn is_silent(&mut self, address: IpAddr) -> bool {
        self.standings.get(&address) == Some(Standing::Silent)
    }

    /// Somebody there has answered.
    fn has_answered(&mut self, address: IpAddr) {
        self.standings.insert(address, Standing::Answering);
    }

    /// Nobody there has answered a question. Only the second question in a row without an answer makes it silent.
    fn missed_answer(&mut self, address: IpAddr) {
        if self.standings.get(&address) == Some(Standing::Answering) {
            self.standings.remove(&address);
        } else {
            self.set_silent(address);
        }
    }

    /// Whoever is there does not know our questions.
    fn set_silent(&mut self, address: IpAddr) {
        self.standings.insert(address, Standing::Silent);
    }
}

struct Question {
    number: u32,
    local: IpAddr,
    peer: SocketAddr,
    lane: Weak<Lane>,
    /// The queue pairs that want to know. None: it was put once, because of a question; nothing follows if nobody answers.
    askers: Vec<u32>,
    asked: usize,
    hurries: u32,
    /// When the question left last.
    sent: Duration,
}

impl Question {
    /// A question that has not been put yet.
    fn new(wanted: LocationQuery, lane: Weak<Lane>, askers: Vec<u32>) -> Self {
        let LocationQuery { local, peer, number } = wanted;
        Self { number, local, peer, lane, askers, asked: 0, hurries: 0, sent: Duration::ZERO }
    }
}

/// A question that has ended: who is to be told, and what.
struct SettledQuestion {
    askers: Vec<u32>,
    number: u32,
    place: Place,
}

/// What is put because of another's question, by its transaction.
enum CounterQuestion {
    /// A question that is under way already, once more.
    Again(u64),
    New(u64),
}

/// A queue pair to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocationQuery {
    /// Our address that asks.
    pub(crate) local: IpAddr,
    /// The address that it is at.
    pub(crate) peer: SocketAddr,
    /// The queue pair's number.
    pub(crate) number: u32,
}

/// Where a queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Behind this UDP port.
    pub(crate) port: u16,
    /// What may be in flight to the socket there, as another adverb says it (zero: the usual); none of somebody else's.
    pub(crate) room: Option<u32>,
    /// The kernel on which it receives trains whole ([`kernel::mark`]); zero: none, or it does not say.
    pub(crate) host: u64,
}

impl Place {
    /// UDP port 4791: the place of a queue pair whose host does not answer questions.
    pub(crate) const STANDARD_PORT: Place = Place { port: PORT, room: None, host: 0 };

    /// Where a lane of this process lives.
    fn of(lane: &Lane) -> Self {
        let socket = &lane.socket;
        Self {
            port: socket.port(),
            room: Some(socket.takes()),
            host: if socket.joins() { kernel::mark() } else { 0 },
        }
    }

    /// Whether what leaves this host in one train is received there in one: another host's network card receives the datagrams by themselves.
    pub(crate) fn is_whole(&self) -> bool {
        self.host != 0 && self.host == kernel::mark()
    }
}

/// What is known of where a queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
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
        wanted: LocationQuery,
        asker: u32,
        again: bool,
    ) -> Location {
        let LocationQuery { local, peer, number } = wanted;
        // Numbers of one address belong to one process each, so nobody else can have it.
        // The table is asked for own ones alone: the caller has a queue pair's lock.
        if peer.ip() == local
            && net.owns(block_of(number))
            && let Some(endpoint) = net.endpoint(number)
        {
            return Location::At(Place::of(&endpoint.lane));
        }
        let subject = (peer.ip(), number);
        let (known, stranger) = {
            let mut answers = lock(&self.answers);
            (answers.places.get(&subject), answers.is_silent(peer.ip()))
        };
        if let Some(place) = known
            && !again
        {
            return Location::At(place);
        }
        let transaction = {
            let mut questions = lock(&self.questions);
            if let Some((_, question)) = questions.about(subject) {
                if !question.askers.contains(&asker) {
                    question.askers.push(asker);
                }
                None
            } else {
                let question = Question::new(wanted, Arc::downgrade(lane), vec![asker]);
                let Some(transaction) = questions.add_below(MOST, question) else {
                    // Bounded; who is not told now goes on by port 4791.
                    return Location::At(known.unwrap_or(Place::STANDARD_PORT));
                };
                Some(transaction)
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
            Some(place) => Location::At(place),
            None if stranger => Location::At(Place::STANDARD_PORT),
            None => Location::Asking,
        }
    }

    /// Puts a question, or gives it up.
    fn put(&self, net: &Arc<Net>, transaction: u64) {
        let (subject, patience_over, repeats, pause) = {
            let mut questions = lock(&self.questions);
            let Some(question) = questions.by_transaction.get_mut(&transaction) else { return };
            let Some(pause) = PAUSES.get(question.asked).filter(|_| question.lane.strong_count() > 0) else {
                drop(questions);
                return self.settle(net, transaction, None);
            };
            question.asked += 1;
            let patience_over =
                if question.asked == MOST_UNANSWERED { question.askers.clone() } else { Vec::new() };
            let repeats = question.asked == 1 || !question.askers.is_empty();
            ((question.peer.ip(), question.number), patience_over, repeats, *pause)
        };
        if !patience_over.is_empty() {
            // Nobody is there, it seems; nobody waits any longer.
            self.keep(subject, Place::STANDARD_PORT);
            lock(&self.answers).missed_answer(subject.0);
            self.wake(net, &patience_over, subject.1, Place::STANDARD_PORT);
        }
        if repeats {
            self.send(net, transaction);
        }
        if let Ok(engine) = net.engine() {
            let again = Arc::new(Again { net: net.clone(), transaction });
            let _ = engine.reactor.set_timer(pause, again);
        }
    }

    /// Sends a question.
    fn send(&self, net: &Arc<Net>, transaction: u64) {
        let (lane, local, mut peer, number, asker, first) = {
            let mut questions = lock(&self.questions);
            let Some(question) = questions.by_transaction.get_mut(&transaction) else { return };
            let Some(lane) = question.lane.upgrade() else { return };
            question.sent = time::now();
            let asker = question.askers.first().copied().unwrap_or(0);
            (lane, question.local, question.peer, question.number, asker, question.asked <= 1)
        };
        peer.set_port(PORT);
        let mad = question(transaction, number, asker, Place::of(&lane));
        let told = first && net.gids.has(peer.ip()) && {
            let from = MadSource::between(peer, local, lane.socket.port());
            let arrival = from.arrival(&mad);
            let told = net.tell(block_of(number), HandoverKind::Locate, &arrival);
            if told && watch::packets() {
                net.gsi.show(Direction::To(peer.ip()), &arrival);
            }
            told
        };
        if !told {
            net.gsi.send_from(&lane, local, peer, &mad);
        }
    }

    /// Answers a question about a queue pair of this process, and asks where the one lives that has asked.
    pub(crate) fn answer_here(&self, net: &Arc<Net>, mad: &[u8; MAD_LEN], from: MadSource) {
        let Some(question) = parse(mad).filter(|mad| mad.method == method::GET && !mad.mark) else { return };
        let Some(endpoint) = net.endpoint(question.number) else { return };
        let Ok(primary) = net.primary() else { return };
        if !self.answered.allows(from.peer, time::now()) {
            return;
        }
        // IB-PKT-57, IB-PKT-60
        let place = Place::of(&endpoint.lane);
        let answer = datagram(method::GET_RESPONSE, question.transaction, question.number, place);
        net.gsi.send_from(&primary, from.local, from.reply_to(), &answer);
        if question.asker != 0 {
            self.ask_back(net, &endpoint, question.asker, from);
        }
    }

    /// Passes a question on to the process that owns a block of queue pair numbers. False if that process is not looked for, as the sender has had too many looked for
    /// already.
    fn pass_on(&self, net: &Net, mad: &[u8; MAD_LEN], block: u16, from: MadSource, now: Duration) -> bool {
        // Processes of other users are looked for each time.
        let may = net.knows(block) || self.looks.allows(from.peer, now);
        if may {
            net.tell(block, HandoverKind::Locate, &from.arrival(mad));
        }
        may
    }

    /// A queue pair has asked for one of ours, it is said, and will soon be spoken to: the question where it lives is put now, if it would be put
    /// anyway. It goes to port 4791, as every question: where this one came from, anybody may be.
    fn ask_back(&self, net: &Arc<Net>, endpoint: &Endpoint, asker: u32, from: MadSource) {
        let lane = (endpoint.queues.service == Service::Ud).then(|| Arc::downgrade(&endpoint.lane));
        match self.returns(lane, asker, from, time::now()) {
            Some(CounterQuestion::Again(transaction)) => self.send(net, transaction),
            Some(CounterQuestion::New(transaction)) => self.put(net, transaction),
            None => {}
        }
    }

    /// Which question is to be put because of another's, in the name of a lane that would ask by itself.
    fn returns(
        &self,
        lane: Option<Weak<Lane>>,
        asker: u32,
        from: MadSource,
        now: Duration,
    ) -> Option<CounterQuestion> {
        let subject = (from.peer, asker);
        if !self.returned.allows(from.peer, now) {
            return None;
        }
        let known = lock(&self.answers).places.get(&subject).is_some_and(|place| place.room.is_some());
        let mut questions = lock(&self.questions);
        if let Some((transaction, question)) = questions.about(subject) {
            let hurries = question.hurries < HURRIES && now >= question.sent + HURRY_AFTER;
            question.hurries += u32::from(hurries);
            return hurries.then_some(CounterQuestion::Again(transaction));
        }
        let lane = lane.filter(|_| !known)?;
        let wanted = LocationQuery { local: from.local, peer: from.reply_to(), number: asker };
        let question = Question::new(wanted, lane, Vec::new());
        questions.add_below(CROWDED, question).map(CounterQuestion::New)
    }

    /// An answer has come.
    fn answered(&self, net: &Arc<Net>, answer: &Message, from: MadSource) {
        if let Some(settled) = self.believe(answer, from) {
            self.wake(net, &settled.askers, settled.number, settled.place);
        }
    }

    /// Keeps what an answer says, if it is one to a question of ours.
    fn believe(&self, answer: &Message, from: MadSource) -> Option<SettledQuestion> {
        let expected = {
            let questions = lock(&self.questions);
            // Nobody but the one who was asked answers.
            questions
                .by_transaction
                .get(&answer.transaction)
                .is_some_and(|question| question.number == answer.number && question.peer.ip() == from.peer)
        };
        if !expected {
            return None;
        }
        let stranger = answer.refused || answer.port == 0;
        let place = Place { port: answer.port, room: Some(answer.room), host: answer.host };
        if stranger {
            lock(&self.answers).set_silent(from.peer);
        }
        self.end(answer.transaction, if stranger { None } else { Some(place) })
    }

    /// A question is answered, or given up.
    fn settle(&self, net: &Arc<Net>, transaction: u64, place: Option<Place>) {
        if let Some(settled) = self.end(transaction, place) {
            self.wake(net, &settled.askers, settled.number, settled.place);
        }
    }

    /// Ends a question, and keeps what has come of it.
    fn end(&self, transaction: u64, place: Option<Place>) -> Option<SettledQuestion> {
        let question = {
            let mut questions = lock(&self.questions);
            let question = questions.by_transaction.remove(&transaction)?;
            questions.by_subject.remove(&(question.peer.ip(), question.number));
            question
        };
        // Nobody may be there of whom a question told.
        if place.is_none() && question.askers.is_empty() {
            return None;
        }
        let place = place.unwrap_or(Place::STANDARD_PORT);
        self.keep((question.peer.ip(), question.number), place);
        Some(SettledQuestion { askers: question.askers, number: question.number, place })
    }

    fn wake(&self, net: &Arc<Net>, askers: &[u32], number: u32, place: Place) {
        for asker in askers {
            if let Some(endpoint) = net.endpoint(*asker) {
                endpoint.located(number, place);
                endpoint.ring();
            }
        }
    }

    fn keep(&self, subject: (IpAddr, u32), place: Place) {
        let mut answers = lock(&self.answers);
        answers.places.insert(subject, place);
        if place.room.is_some() {
            answers.has_answered(subject.0);
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
                if let Some(receives) = net.pace.allow(&net, mark) {
                    echo(&net, mark, receives);
                }
            }
            method::GET_RESPONSE if message.mark => {
                net.peers.echoed(from.peer, &message);
            }
            method::GET if net.endpoint(message.number).is_some() => {
                net.locator.answer_here(&net, mad, from);
            }
            method::GET if net.gate.is_held() => {
                net.locator.pass_on(&net, mad, block_of(message.number), from, time::now());
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

fn datagram(method: u8, transaction: u64, number: u32, place: Place) -> [u8; MAD_LEN] {
    with_attribute(QUEUE_PAIR, method, transaction, number, place, 0)
}

/// Asks where a queue pair lives; the one that asks is `asker`, or 0, and lives at `place`.
pub(crate) fn question(transaction: u64, number: u32, asker: u32, place: Place) -> [u8; MAD_LEN] {
    // Its port is the one that the question comes from.
    with_attribute(QUEUE_PAIR, method::GET, transaction, number, Place { port: 0, ..place }, asker)
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
    place: Place,
    asker: u32,
) -> [u8; MAD_LEN] {
    let Place { port, room, host } = place;
    let mut data = Vendor::new(OUI, [0; _]);
    data.data[..4].copy_from_slice(&number.to_be_bytes());
    data.data[4..6].copy_from_slice(&port.to_be_bytes());
    data.data[6..10].copy_from_slice(&room.unwrap_or(0).to_be_bytes());
    data.data[10..14].copy_from_slice(&asker.to_be_bytes());
    data.data[14..22].copy_from_slice(&host.to_be_bytes());
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

/// Tells the sender that everything before its mark has been taken in, and how many receives are left ([`u32::MAX`]: enough for anything).
pub(crate) fn echo(net: &Net, mark: Mark, receives: u32) {
    let Ok(primary) = net.primary() else { return };
    let place = Place { port: mark.port, room: Some(receives), host: 0 };
    let echo = with_attribute(MARK, method::GET_RESPONSE, mark.number, 0, place, 0);
    net.gsi.send_from(&primary, mark.from.local, mark.from.reply_to(), &echo);
}

/// What an echo says.
#[cfg(any(test, fuzzing))]
pub(crate) fn echo_of(mark: u64, port: u16, receives: u32) -> Message {
    let place = Place { port, room: Some(receives), host: 0 };
    parse(&with_attribute(MARK, method::GET_RESPONSE, mark, 0, place, 0)).expect("it is one of ours")
}

/// A mark for the process behind a UDP port.
pub(crate) fn mark(mark: u64, port: u16) -> [u8; MAD_LEN] {
    with_attribute(MARK, method::GET, mark, 0, Place { port, room: None, host: 0 }, 0)
}

/// What a datagram of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The datagram is a mark, and not about a queue pair.
    mark: bool,
    method: u8,
    pub(crate) transaction: u64,
    number: u32,
    pub(crate) port: u16,
    /// What may be in flight, in the unit of the congestion window (zero: nothing is said); of the echo of a mark, how many receives are left.
    pub(crate) room: u32,
    /// The queue pair that asks, or 0.
    asker: u32,
    /// The number of the host, as in [`Place::host`].
    host: u64,
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
        host: u64::from_be_bytes(vendor.data[14..22].try_into().ok()?),
        refused: mad.header.status.get() != 0,
    })
}

/// An answer: the queue pair lives behind `port`.
#[cfg(any(test, fuzzing))]
pub(crate) fn answer_for(transaction: u64, number: u32, port: u16) -> [u8; MAD_LEN] {
    datagram(method::GET_RESPONSE, transaction, number, Place { port, room: Some(1), host: 0 })
}

/// Any bytes are a datagram of ours that reads the same when it is made again, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8; MAD_LEN]) {
    let Some(message) = parse(bytes) else { return assert!(answer(bytes).is_none()) };
    let Message { mark, method, transaction, number, port, room, asker, host, refused } = message;
    let place = Place { port, room: Some(room), host };
    let attribute = if mark { MARK } else { QUEUE_PAIR };
    let again = with_attribute(attribute, method, transaction, number, place, asker);
    assert_eq!(parse(&again), Some(Message { refused: false, ..message }));
    let is_answer = method == method::GET_RESPONSE && !mark && !refused && port != 0;
    assert_eq!(answer(bytes), is_answer.then_some((transaction, number, port)));
}

/// Questions of ours, and datagrams of others in any order: what is known changes by answers to our questions alone, from whom they went to, and all of
/// it is bounded.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_effect(bytes: &[u8]) {
    let locator = Locator::default();
    let local = IpAddr::from([10, 0, 0, 1]);
    let mut asked: Vec<(u64, (IpAddr, u32))> = Vec::new();
    let mut known = HashMap::<(IpAddr, u32), Place>::new();
    let mut now = Duration::ZERO;
    for step in bytes.as_chunks::<8>().0 {
        let [choice, host, number, which, rest @ ..] = *step;
        let word = u32::from_le_bytes(rest);
        let (peer, number) = (IpAddr::from([10, 0, 1, host & 3]), u32::from(number & 7));
        let from = MadSource::between((local, PORT).into(), peer, word as u16);
        let own = asked.get(usize::from(which) % asked.len().max(1)).copied();
        // Ours, as often as not.
        let transaction =
            own.map_or(word.into(), |(transaction, _)| transaction ^ u64::from(choice >> 6 == 3));
        let version = locator.version();
        match choice & 7 {
            0 => {
                // As `find` asks.
                let mut questions = lock(&locator.questions);
                if questions.about((peer, number)).is_none() {
                    let wanted = LocationQuery { local, peer: from.reply_to(), number };
                    let question = Question::new(wanted, Weak::new(), vec![1]);
                    asked.push((questions.add(question), (peer, number)));
                }
            }
            1 | 2 => {
                let lane = (choice & 8 == 0).then(Weak::new);
                match locator.returns(lane, number, from, now) {
                    Some(CounterQuestion::New(transaction)) => asked.push((transaction, (peer, number))),
                    Some(CounterQuestion::Again(transaction)) => {
                        assert!(asked.iter().any(|(known, _)| *known == transaction));
                    }
                    None => {}
                }
                assert_eq!(locator.version(), version, "a question changes nothing");
            }
            3 if choice & 8 != 0 => {
                if let Some((transaction, subject)) = own
                    && let Some(settled) = locator.end(transaction, None)
                {
                    assert_eq!(settled.place, Place::STANDARD_PORT);
                    known.insert(subject, Place::STANDARD_PORT);
                }
            }
            _ => {
                let port = if choice & 16 == 0 { word as u16 } else { 0 };
                let place = Place { port, room: Some(word), host: word.into() };
                let mad = with_attribute(QUEUE_PAIR, method::GET_RESPONSE, transaction, number, place, 0);
                let Some(mut answer) = parse(&mad) else { panic!("it is one of ours") };
                answer.refused = choice & 32 != 0;
                let subject = own.filter(|(own, _)| *own == transaction).map(|(_, subject)| subject);
                let waits = lock(&locator.questions).by_transaction.contains_key(&transaction);
                let settled = locator.believe(&answer, from);
                if !waits || subject != Some((peer, number)) {
                    assert!(settled.is_none() && locator.version() == version, "nobody asked");
                }
                if let Some(settled) = settled {
                    let refused = answer.refused || port == 0;
                    assert_eq!(settled.place, if refused { Place::STANDARD_PORT } else { place });
                    known.insert((peer, number), settled.place);
                    assert!(!lock(&locator.questions).by_transaction.contains_key(&transaction));
                }
            }
        }
        now += Duration::from_micros((word & 0xfff).into());
        let questions = lock(&locator.questions);
        assert_eq!(questions.by_subject.len(), questions.by_transaction.len());
        assert!(questions.by_transaction.len() <= asked.len().min(MOST));
        assert!(questions.by_transaction.values().all(|question| question.hurries <= HURRIES));
    }
    let mut answers = lock(&locator.answers);
    for host in 0..4 {
        for number in 0..8 {
            let subject = (IpAddr::from([10, 0, 1, host]), number);
            assert_eq!(answers.places.get(&subject), known.get(&subject).copied(), "{subject:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Numbers;
    use std::net::Ipv4Addr;

    #[test]
    fn one_queue_pair_that_nobody_knows_makes_no_stranger() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut answers = Answers::default();
        let mut check = |act: fn(&mut Answers, IpAddr), is_strange| {
            act(&mut answers, address);
            assert_eq!(answers.is_silent(address), is_strange);
        };
        check(Answers::missed_answer, true);
        check(Answers::has_answered, false);
        check(Answers::missed_answer, false);
        check(Answers::has_answered, false);
        check(Answers::missed_answer, false);
        check(Answers::missed_answer, true);
        check(Answers::has_answered, false);
        check(Answers::set_silent, true);
    }

    /// Others make this process ask, and it asks for its own queue pairs: both have a bound, and those of others leave room for the own ones.
    #[test]
    fn questions_have_a_bound() {
        let locator = Locator::default();
        let local = IpAddr::from([10, 0, 0, 1]);
        // Each of a network of its own, so that none asks too often.
        let peer = |host: usize| IpAddr::from([11 + (host >> 16) as u8, (host >> 8) as u8, host as u8, 1]);
        let mut count = 0;
        for host in 0..2 * CROWDED {
            let from = MadSource::between((local, PORT).into(), peer(host), PORT);
            count += usize::from(locator.returns(Some(Weak::new()), 1, from, Duration::ZERO).is_some());
        }
        assert_eq!(count, CROWDED);
        let mut questions = lock(&locator.questions);
        for host in 0..2 * MOST {
            let wanted = LocationQuery { local, peer: (peer(host), PORT).into(), number: 2 };
            count +=
                usize::from(questions.add_below(MOST, Question::new(wanted, Weak::new(), vec![1])).is_some());
        }
        assert_eq!((count, questions.by_subject.len()), (MOST, MOST));
    }

    #[test]
    fn there_and_back() {
        let place = Place { port: 9, room: Some(70_000), host: 0x0102_0304_0506_0708 };
        let bytes = datagram(method::GET, 77, 0x12_3456, place);
        let message = Message {
            mark: false,
            method: method::GET,
            transaction: 77,
            number: 0x12_3456,
            port: 9,
            room: 70_000,
            asker: 0,
            host: place.host,
            refused: false,
        };
        assert_eq!(parse(&bytes), Some(message));
        let asked = Message { port: 0, asker: 0x65_4321, ..message };
        assert_eq!(parse(&question(77, 0x12_3456, 0x65_4321, place)), Some(asked));
        let mut foreign = bytes;
        foreign[37] ^= 1;
        assert_eq!(parse(&foreign), None, "another vendor");
    }

    /// A sender that asks for queue pairs of nobody has us look for nobody so often, and not each time. For processes that we know, nobody looks.
    #[test]
    fn questions_for_nobody_cost_little() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let [sender, other] = [1, 2].map(|host| IpAddr::from([192, 0, 2, host]));
        let now = Duration::from_secs(1000);
        let from = |peer| MadSource::between((Ipv4Addr::LOCALHOST, PORT).into(), peer, PORT);
        let about = |block: u16| question(7, u32::from(block) << 12, 5, Place::STANDARD_PORT);
        let passes = |block: u16, peer, now| net.locator.pass_on(&net, &about(block), block, from(peer), now);
        // The one lives, and the other has just ended.
        let (mut lives, mut ended) = (Numbers::default(), Numbers::default());
        let [(somebody, _), (nobody, _)] =
            [&mut lives, &mut ended].map(|it| it.claim().expect("a free block"));
        drop(ended);
        net.tell(somebody, HandoverKind::Locate, &from(other).arrival(&about(somebody)));
        assert!(net.knows(somebody));
        assert_eq!((0..6000).filter(|_| passes(nobody, sender, now)).count(), LOOKS.1 as usize);
        assert!(passes(somebody, sender, now), "nobody is looked for");
        assert!(passes(nobody, sender, now + Duration::from_secs(1)));
    }
}
