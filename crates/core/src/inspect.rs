//! The objects of this process, as another process may ask for them: queue pairs, completion queues,
//! protection domains, regions and identifiers, at that instant (`adverb top`, `rdma resource`).
//!
//! The background thread answers. Nothing is noted before a process asks, so the fast path knows nothing of
//! it. The process listens from its first queue pair on, at a name that its page of counters has; processes
//! of its own user and of root are answered.
//!
//! An answer is text: a line for each object, with fields `KEY=VALUE` and tabs between them, the kind of the
//! object first. Regions, of which there may be many, come last, behind a line [`BUT_REGIONS`]. The answer
//! ends with a line [`END`]. Where such a line is missing, there was more than the socket takes.

use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::engine::Engine;
use crate::inlet::Inlet;
use crate::random;
use crate::registry::Registry;
use crate::seqpacket::{self, Connection, Listener, Owner};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The last line of an answer that is whole.
const END: &str = "end";
/// The line behind all objects but regions.
const BUT_REGIONS: &str = "regions";
/// Longest answer that is read, in bytes.
const ANSWER: usize = 8 << 20;
/// Longest message; lines go together in one as far as they fit.
const MESSAGE: usize = 4096;
/// Regions of a domain that are described.
const REGIONS: usize = 4096;

/// Where this process is asked.
#[derive(Default)]
pub(crate) struct Inspection {
    listener: OnceLock<Option<Listener>>,
    completion_queues: Registry<CompletionQueue>,
}

impl Inspection {
    /// Listens, from the first call on. If that fails, no process is answered.
    pub(crate) fn listen(&self, engine: &'static Engine) {
        self.listener.get_or_init(|| {
            let mut word = [0u64; 1];
            random::fill(&mut word);
            let place = word[0].max(1);
            let listener = Listener::bind(&name(place)).ok()?;
            Inlet::serve(listener.fd(), move |connection| answer(engine, &connection)).ok()?;
            engine.page.set_place(place);
            Some(listener)
        });
    }

    /// Completion queues that exist.
    pub(crate) fn completion_queues(&self) -> &Registry<CompletionQueue> {
        &self.completion_queues
    }
}

fn name(place: u64) -> Vec<u8> {
    seqpacket::name(&format!("look/{place:016x}"))
}

/// Answers, in the background thread. Lines that do not fit into the socket at once are left out.
fn answer(engine: &Engine, connection: &Connection) {
    // Keys are in the answer.
    if !connection.may_share() && connection.owner() != Owner::Root {
        return;
    }
    let mut message = String::new();
    for line in describe(engine) {
        if message.len() + line.len() + 1 > MESSAGE && !message.is_empty() {
            if connection.send(&[message.as_bytes()]).is_err() {
                return;
            }
            message.clear();
        }
        message += &line;
        message.push('\n');
    }
    let _ = connection.send(&[message.as_bytes()]);
}

/// A line of an answer while it is made.
pub(crate) struct AnswerLine(String);

impl AnswerLine {
    /// A line about an object of this kind.
    pub(crate) fn of(kind: Kind) -> Self {
        Self(kind.word().to_owned())
    }

    /// One field more.
    pub(crate) fn with(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let value = value.to_string().replace(['\t', '\n'], " ");
        self.0.push('\t');
        self.0 += key;
        self.0.push('=');
        self.0 += &value;
        self
    }

    /// The text of the line.
    pub(crate) fn text(self) -> String {
        self.0
    }
}

fn describe(engine: &Engine) -> Vec<String> {
    let mut lines = Vec::new();
    for device in engine.devices() {
        let contexts = device.contexts();
        lines.push(
            AnswerLine::of(Kind::Device)
                .with("device", device.name())
                .with("contexts", contexts.len())
                .text(),
        );
        for domain in contexts.iter().flat_map(|context| context.protection_domains()) {
            let line =
                AnswerLine::of(Kind::Domain).with("device", device.name()).with("number", domain.number());
            lines.push(line.with("users", domain.users().count()).text());
        }
    }
    for queue in engine.inspection.completion_queues.all() {
        lines.extend(queue.describe());
    }
    lines.extend(engine.failure.concerned().iter().filter_map(|object| object.describe()));
    lines.push(BUT_REGIONS.to_owned());
    let are_all = engine.devices().iter().all(|device| describe_regions(device, &mut lines));
    lines.extend(are_all.then(|| END.to_owned()));
    lines
}

/// Whether none had to be left out.
fn describe_regions(device: &Device, lines: &mut Vec<String>) -> bool {
    for domain in device.contexts().iter().flat_map(|context| context.protection_domains()) {
        let Some(regions) = domain.regions_if_few(REGIONS) else { return false };
        for region in regions {
            let line =
                AnswerLine::of(Kind::Region).with("device", device.name()).with("domain", domain.number());
            let line = line.with("key", region.key()).with("address", region.address());
            lines.push(line.with("length", region.length()).with("access", region.access().bits()).text());
        }
    }
    true
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An open device.
    Device,
    /// A protection domain.
    Domain,
    /// A memory region.
    Region,
    /// A completion queue.
    CompletionQueue,
    /// A queue pair.
    QueuePair,
    /// An identifier of the connection manager.
    Identifier,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Device, Self::Domain, Self::Region, Self::CompletionQueue, Self::QueuePair, Self::Identifier];

    fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Domain => "pd",
            Self::Region => "mr",
            Self::CompletionQueue => "cq",
            Self::QueuePair => "qp",
            Self::Identifier => "cm_id",
        }
    }
}

/// A text of another process, which must not move the cursor of a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// An object of a process that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The kind of the object.
    pub kind: Kind,
    /// The fields, as the line has them: an object takes no more memory than its line, however many fields
    /// that has.
    fields: String,
}

impl Object {
    /// Reads a line. None for a kind that this version does not know.
    fn parse(line: &str) -> Option<Self> {
        let (word, fields) = line.split_once('\t').unwrap_or((line, ""));
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let fields: Vec<_> = fields.split('\t').map(plain).collect();
        Some(Self { kind, fields: fields.join("\t") })
    }

    /// The value of a field.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.fields.split('\t').find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
    }

    /// The value of a field that is a number. `None` if the object has no such field, or its value is no
    /// number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }
}

/// The objects of a process, and whether these are all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// In the order of the process's devices, then of their making.
    pub all: Vec<Object>,
    /// The list is complete.
    pub is_whole: bool,
    /// The list is complete but for regions.
    pub has_all_but_regions: bool,
}

impl Objects {
    /// Takes in a message of an answer. Any bytes will do.
    fn take(&mut self, message: &[u8]) {
        for line in String::from_utf8_lossy(message).lines() {
            self.is_whole |= line == END;
            self.has_all_but_regions |= line == BUT_REGIONS;
            self.all.extend(Object::parse(line));
        }
    }
}

/// Tries any bytes of another process. They become objects, as many as there are lines, of plain text that is
/// not much longer than the bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    let mut objects = Objects::default();
    // Each message ends where the socket says, amid a line or a character, too.
    bytes.chunks(97).for_each(|message| objects.take(message));
    let text = |object: &Object| object.fields.len();
    // A byte that is no text, or a control character, becomes three.
    assert!(objects.all.iter().map(text).sum::<usize>() <= 3 * bytes.len());
    assert!(objects.all.len() <= bytes.len() / 2);
    for object in &objects.all {
        assert!(!object.fields.contains(|c: char| c.is_control() && c != '\t'), "{object:?}");
        for key in ["number", "device", "error", ""] {
            let found = object.text(key);
            assert!(found.is_none_or(|value| object.fields.contains(&format!("{key}={value}"))));
            assert!(
                object.number(key).is_none_or(|number| found.is_some_and(|text| text.parse() == Ok(number)))
            );
        }
        // A line that is made of it is read as the same object.
        let line = format!("{}\t{}", object.kind.word(), object.fields);
        assert_eq!(Object::parse(&line).as_ref(), Some(object));
    }
}

/// Whether a process is stopped, or over, so that it does not answer.
pub fn is_stopped(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before may have any characters.
    status.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 't', 'Z']))
}

/// How long a command that prints once waits for processes that are not stopped: a busy machine may take the
/// processor from one for a while.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks all processes that listen at these places ([`crate::counters::Process::place`]), and waits for them
/// together, for no longer than `patience`. The answers are in the order of the places. An error: the process
/// is not there, is another user's and this process is not root's, or does not answer in time.
pub fn ask_all(places: &[u64], patience: Duration) -> Vec<io::Result<Objects>> {
    /// The number of descriptors that are open at a time.
    const AT_ONCE: usize = 256;
    let deadline = Instant::now() + patience;
    let mut buffer = vec![0; 2 * MESSAGE];
    let mut answers = Vec::with_capacity(places.len());
    for some in places.chunks(AT_ONCE) {
        let mut asked: Vec<_> = some.iter().map(|place| Inquiry::begin(*place)).collect();
        loop {
            for one in &mut asked {
                one.take(&mut buffer, deadline);
            }
            if !wait(&asked, deadline) {
                break;
            }
        }
        answers.extend(asked.into_iter().map(Inquiry::end));
    }
    answers
}

/// A process that has been asked.
enum Inquiry {
    /// More may come.
    Open { connection: Connection, objects: Objects, length: usize },
    /// The process has answered, or does not.
    Done(io::Result<Objects>),
}

impl Inquiry {
    fn begin(place: u64) -> Self {
        let opened = Connection::open(&name(place)).and_then(|connection| {
            // SAFETY: no arguments.
            let is_root = unsafe { libc::geteuid() } == 0;
            if connection.is_same_user() || is_root {
                Ok(connection)
            } else {
                Err(io::ErrorKind::PermissionDenied.into())
            }
        });
        match opened {
            Ok(connection) => Self::Open { connection, objects: Objects::default(), length: 0 },
            Err(error) => Self::Done(Err(error)),
        }
    }

    /// Takes all messages that have come, until the deadline.
    fn take(&mut self, buffer: &mut [u8], deadline: Instant) {
        let Self::Open { connection, objects, length } = self else { return };
        let end = loop {
            match connection.receive(buffer) {
                Ok([]) => break Ok(std::mem::take(objects)),
                Ok(message) => {
                    *length += message.len();
                    if *length > ANSWER {
                        break Err(io::ErrorKind::FileTooLarge.into());
                    }
                    objects.take(message);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => break Err(error),
            }
            // A peer that never stops costs no more.
            if Instant::now() >= deadline {
                return;
            }
        };
        *self = Self::Done(end);
    }

    fn end(self) -> io::Result<Objects> {
        match self {
            Self::Open { .. } => Err(io::ErrorKind::TimedOut.into()),
            Self::Done(answer) => answer,
        }
    }
}

/// Waits until there is something to receive from one of the processes. False: all have answered, or the time
/// is over.
fn wait(asked: &[Inquiry], deadline: Instant) -> bool {
    let mut polled: Vec<_> = asked
        .iter()
        .filter_map(|one| match one {
            Inquiry::Open { connection, .. } => {
                Some(libc::pollfd { fd: connection.fd(), events: libc::POLLIN, revents: 0 })
            }
            Inquiry::Done(_) => None,
        })
        .collect();
    let left = deadline.saturating_duration_since(Instant::now());
    if polled.is_empty() || left.is_zero() {
        return false;
    }
    // Rounded up, so that the last look is at the deadline and not before.
    let left = left.as_micros().div_ceil(1000) as libc::c_int;
    // SAFETY: as many live pollfds.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, left) };
    // A signal has come, perhaps.
    ready > 0 || ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket::accept;

    #[test]
    fn lines_are_read_as_they_were_made() {
        let line = AnswerLine::of(Kind::QueuePair).with("number", 17).with("error", "a\tb\nc = d").text();
        let object = Object::parse(&line).expect("a line");
        assert_eq!((object.kind, object.number("number")), (Kind::QueuePair, Some(17)));
        assert_eq!((object.text("error"), object.text("none")), (Some("a b c = d"), None));
        assert_eq!(object.number("error"), None);
        let object = Object::parse("qp\tstate=\x1b[2JRTS").expect("a line");
        assert_eq!(object.text("state"), Some("\u{fffd}[2JRTS"), "nothing moves the cursor");
        for other in ["", "end", "something\tx=1"] {
            assert_eq!(Object::parse(other), None);
        }
    }

    /// No process waits for the answer of another one: the first answer comes when all have been asked.
    #[test]
    fn all_are_asked_at_once() {
        const MANY: u64 = 8;
        const LIMIT: Duration = Duration::from_secs(60);
        let place = |number: u64| u64::from(std::process::id()) << 32 | number;
        let listeners: Vec<_> =
            (1..=MANY).map(|number| Listener::bind(&name(place(number))).expect("a name")).collect();
        let connected = |listener: &Listener| loop {
            match accept(listener.fd()) {
                Ok(connection) => return connection,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            std::thread::yield_now();
        };
        // No process listens at the last.
        let places: Vec<u64> = (1..=MANY + 1).map(place).collect();
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                let connections: Vec<_> = listeners.iter().map(connected).collect();
                for (number, connection) in connections.iter().enumerate().skip(1) {
                    let line = AnswerLine::of(Kind::QueuePair).with("number", number).text();
                    connection.send(&[format!("{line}\n{BUT_REGIONS}\n{END}\n").as_bytes()]).expect("room");
                }
            });
            ask_all(&places, LIMIT)
        });
        let numbers: Vec<_> = answers
            .iter()
            .map(|answer| answer.as_ref().ok().map(|said| (said.is_whole, said.all.len() as u64)))
            .collect();
        let expected: Vec<_> =
            [Some((false, 0))].into_iter().chain((1..MANY).map(|_| Some((true, 1)))).chain([None]).collect();
        assert_eq!(numbers, expected);
        // One that says nothing is waited for no longer than the others may take.
        let silent = ask_all(&places[..1], Duration::from_millis(1)).pop();
        assert!(silent.is_some_and(|answer| answer.is_err_and(|why| why.kind() == io::ErrorKind::TimedOut)));
    }
}
