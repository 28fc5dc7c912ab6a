//! Where a queue pair or a service lives.
//!
//! A sender that meets an address for the first time asks once, at the address's UDP port 4791, with a
//! management datagram of a vendor class of ours. If the holder of that port is an adverb, it answers for
//! itself, or passes the question on to the owner, which answers: with the UDP port that reaches it directly.
//! Kernels and adapters do not answer, and get everything on 4791.
//!
//! Anybody can ask, in anybody's name. So a question changes nothing: what is known of a peer comes from
//! answers to questions of our own, whose transactions nobody guesses. The question says which queue pair
//! asks, so that the process that answers can put its own question at once: both are under way at the same
//! time, and the first reply does not wait for longer than the first message. On one host the question goes
//! to the owner's own socket: the holder of 4791 may be stopped.

#[cfg(any(test, fuzzing))]
mod effect;
mod message;
mod questions;

use crate::endpoint::Endpoint;
use crate::gsi::{MadHandler, MadSource};
use crate::handover::HandoverKind;
use crate::kernel;
use crate::lane::Lane;
use crate::limit::Limit;
use crate::lock;
use crate::lost::LostBlocks;
use crate::net::{Net, TellOutcome};
use crate::numbers::block_of;
use crate::observer::Direction;
use crate::route::PORT;
use crate::time;
use adverb_core::qp::Service;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::watch;
use adverb_wire::ib::mad::{MAD_LEN, method};
use message::{MARK, datagram, parse, with_attribute};
use questions::{Answers, CROWDED, CounterQuestion, MOST, Question, Questions, SettledQuestion};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

#[cfg(any(test, fuzzing))]
pub(crate) use effect::try_effect;
pub(crate) use message::{CLASS, Message, answer, is_mark, mark, question};
#[cfg(any(test, fuzzing))]
pub(crate) use message::{answer_for, echo_of, try_bytes};

/// Pauses before a question is asked again, and at last forgotten.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(60),
    Duration::from_millis(240),
    Duration::from_secs(1),
];
/// After so many questions without an answer, packets wait no longer.
const MOST_UNANSWERED: usize = 4;
/// Answers in a second to the addresses of a share, and at once: more than programs ask for that connect all
/// their queue pairs.
const ANSWERS: (u32, u32) = (16_384, 16_384);
/// Questions to the addresses of a share, in a second and in one burst, that this process asks because a peer
/// asked it first.
const RETURNED: (u32, u32) = (4096, 1024);
/// Pause before the owner of a block of numbers is looked up again after a failed look-up. There are 4096
/// blocks: no second has more failed look-ups, however many peers ask. Questions about a block that is taken
/// meanwhile go without an answer until then, or until something else leads to its owner.
const REST: Duration = Duration::from_secs(1);
/// Questions from one address about one block, in a second and at once, for which a process of another user
/// is looked for, or one that is not known yet: about as many as programs ask that connect many queue pairs.
/// To look for a process costs more than the question does. Some share this with others.
const LOOKS: (u32, u32) = (1024, 4096);
/// Most early repeats of a question. A question from the peer shows that it is awake, so ours is repeated
/// early.
const HURRIES: u32 = 3;
/// A question is not repeated early within this time: an answer may be on its way.
const HURRY_AFTER: Duration = Duration::from_millis(1);

/// Finds out where queue pairs of peers live: it has the questions under way, and the answers. Thread-safe.
pub(crate) struct Locator {
    questions: Mutex<Questions>,
    answers: Mutex<Answers>,
    /// Counts the answers. A cache of results compares the count to see that it is out of date.
    version: AtomicU64,
    /// What we answer, and what we ask because of it.
    answered: Limit,
    returned: Limit,
    /// How often we look for the process that a question is for, and for which ones in vain.
    looks: Limit,
    lost: LostBlocks,
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
            lost: LostBlocks::new(REST),
        }
    }
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
    /// Bytes that may be in flight to that socket, as its adverb says; zero: the default. None: no adverb
    /// answers there.
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

    /// Whether what leaves this host in one train is received there in one: another host's network card
    /// receives the datagrams by themselves.
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

    /// Where a queue pair lives. If that is not known, the question is put, and the answer comes to `lane`.
    /// The queue pair `asker` of this process gets a turn at sending when it has come, or nobody answers.
    /// `again`: ask in any case, as a connection begins, though something is known from before.
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
                    // The table is full: this queue pair sends to port 4791.
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
        if !self.answered.allows(&from.peer, time::now()) {
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

    /// Passes a question on to the process that owns a block of queue pair numbers. None if that process is
    /// not looked for: nobody has found it a moment ago, or the sender has had it looked for too often.
    fn pass_on(
        &self,
        net: &Net,
        mad: &[u8; MAD_LEN],
        block: u16,
        from: MadSource,
        now: Duration,
    ) -> Option<TellOutcome> {
        // A process of another user is looked for each time.
        let may =
            net.knows(block) || !self.lost.rests(block, now) && self.looks.allows(&(from.peer, block), now);
        let told = may.then(|| net.tell_owner(block, HandoverKind::Locate, &from.arrival(mad)));
        if told == Some(TellOutcome::Nobody) {
            self.lost.add(block, now);
        }
        told
    }

    /// A queue pair has asked for one of ours, it is said, and will soon be spoken to: the question where it
    /// lives is put now, if it would be put anyway. It goes to port 4791, as every question: where this one
    /// came from, anybody may be.
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
        if !self.returned.allows(&from.peer, now) {
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
        // A question may name a queue pair that does not exist.
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
            method::GET if net.udp_port.is_held() => {
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

/// A mark that has arrived, to be echoed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    /// The UDP port that the sender knows us by.
    pub(crate) port: u16,
    pub(crate) from: MadSource,
}

/// Tells the sender that everything before its mark has been taken in, and how many receives are left
/// ([`u32::MAX`]: enough for anything).
pub(crate) fn echo(net: &Net, mark: Mark, receives: u32) {
    let Ok(primary) = net.primary() else { return };
    let place = Place { port: mark.port, room: Some(receives), host: 0 };
    let echo = with_attribute(MARK, method::GET_RESPONSE, mark.number, 0, place, 0);
    net.gsi.send_from(&primary, mark.from.local, mark.from.reply_to(), &echo);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{Numbers, block_name};
    use crate::seqpacket::Connection;
    use std::net::Ipv4Addr;

    /// Others make this process ask, and it asks for its own queue pairs: both have a bound, and those of
    /// others leave room for the own ones.
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

    /// A process that asks for queue pairs of nobody has us look for nobody so often, and not each time.
    /// Others of its host are still looked for. For processes that we know, nobody looks.
    #[test]
    fn questions_for_nobody_cost_little_and_take_nothing_from_others() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let sender = IpAddr::from([192, 0, 2, 1]);
        let now = Duration::from_secs(1000);
        let from = MadSource::between((Ipv4Addr::LOCALHOST, PORT).into(), sender, PORT);
        let about = |block: u16| question(7, u32::from(block) << 12, 5, Place::STANDARD_PORT);
        let passes = |block: u16, now| net.locator.pass_on(&net, &about(block), block, from, now);
        // Two live. The last block belongs to nobody, whatever other tests claim.
        let [mut one, mut other] = [(); 2].map(|()| Numbers::default());
        let [one, other] = [&mut one, &mut other].map(|it| it.claim().expect("a free block").0);
        let nobody = 0xfff;
        net.tell(one, HandoverKind::Locate, &from.arrival(&about(one)));
        assert!(net.knows(one) && !net.knows(other));
        assert_eq!(passes(nobody, now), Some(TellOutcome::Nobody));
        // Far more questions than processes are looked for, about all blocks that nobody has. Other programs
        // may come and go meanwhile.
        let is_free = |block: &u16| Connection::open(&block_name(*block)).is_err();
        let free: Vec<u16> = (0..4096).filter(is_free).collect();
        let looks = |now| {
            let asked = free.iter().cycle().take(6 * free.len());
            asked.filter(|block| passes(**block, now) == Some(TellOutcome::Nobody)).count()
        };
        assert!((1000..=4096).contains(&looks(now)));
        assert_eq!(passes(other, now), Some(TellOutcome::Told), "others take what it needs");
        assert!(net.knows(other));
        assert!((0..6000).all(|_| passes(one, now).is_some()), "nobody is looked for");
        // They rest, and not for ever.
        assert_eq!(passes(nobody, now + REST / 2), None);
        assert!(looks(now + REST / 2) < 1000);
        assert_eq!(passes(nobody, now + REST), Some(TellOutcome::Nobody));
    }
}
