//! The exporter's side. The background thread answers the processes that ask. The program's only thread
//! answers about a region, the next time that it posts or polls, since its pages have to be moved.

use super::message::{Answer, LONGEST, QUESTION, Question, Subject};
use super::{NAME, socket_name};
use crate::device::Context;
use crate::engine::Engine;
use crate::error::Error;
use crate::inlet::Inlet;
use crate::log;
use crate::memory::moved;
use crate::memory::ways::Together;
use crate::random;
use crate::reactor::{READABLE, Source, Token};
use crate::region::MemoryRegion;
use crate::seqpacket::{Connection, Listener};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Imports and questions that one process answers at once.
const MOST: usize = 256;
/// How long the program has to come by.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(3);

/// Where the process listens for importers.
pub struct Exporter {
    name: [u8; NAME],
    listener: OnceLock<Option<Listener>>,
}

impl Exporter {
    pub(crate) fn new() -> Self {
        let mut words = [0; 2];
        random::fill(&mut words);
        let text = format!("{:016x}{:016x}", words[0], words[1]);
        let mut name = [b'0'; NAME];
        name.copy_from_slice(text.as_bytes());
        Self { name, listener: OnceLock::new() }
    }

    pub(super) fn name(&self) -> &[u8; NAME] {
        &self.name
    }

    /// Listens, from the first call on. Where that cannot be, nothing is exported; nor where `ADVERB_LOCAL`
    /// permits no access but our own.
    pub fn listen(&self, engine: &'static Engine) {
        if !Together::now().exports() {
            return;
        }
        self.listener.get_or_init(|| {
            let listen = || {
                let listener = Listener::bind(&socket_name(&self.name)).map_err(|error| {
                    Error::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
                })?;
                let open = Arc::default();
                Inlet::serve(listener.fd(), move |connection| let_in(engine, &open, connection))?;
                Ok::<_, Error>(listener)
            };
            listen().inspect_err(|error| log!(Warn, "other processes cannot import objects: {error}")).ok()
        });
    }
}

/// Lets an importer in.
fn let_in(engine: &'static Engine, open: &Arc<AtomicUsize>, connection: Connection) {
    let counted = ImporterPlace::new(open);
    if !connection.may_share() || counted.is_none() {
        log!(
            Warn,
            "process {} may not import objects: it is of another user or user namespace, may not be looked at, or there are {MOST} imports",
            connection.process()
        );
        return;
    }
    let fd = connection.fd();
    let (token, asked, is_answered) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
    let answering = Arc::new(Answering { engine, connection, token, asked, is_answered, _counted: counted });
    // Held, so that it is there before the connection can end.
    let mut place = answering.token();
    *place = engine.reactor.add(fd, READABLE, answering.clone()).ok();
}

/// A place among the [`MOST`] importers.
struct ImporterPlace(Arc<AtomicUsize>);

impl ImporterPlace {
    fn new(open: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |count| (count < MOST).then_some(count + 1);
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(open.clone()))
    }
}

impl Drop for ImporterPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An importer that asks, or has imported a region.
pub(crate) struct Answering {
    engine: &'static Engine,
    connection: Connection,
    token: Mutex<Option<Token>>,
    /// The importer has asked: it asks once.
    asked: AtomicBool,
    /// A thread of the program answers about a region, or none has come in time.
    is_answered: AtomicBool,
    _counted: Option<ImporterPlace>,
}

impl Source for Answering {
    fn ready(self: Arc<Self>, _: u32) {
        let mut buffer = [0; QUESTION + 1];
        let question = match self.connection.receive_with(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) | Ok(([], _)) => return self.end(),
            // It may have connected as another user than it is now.
            Ok((message, along)) => Question::parse(message).filter(|_| along.is_same_user),
        };
        let Some(question) = question.filter(|_| !self.asked.swap(true, Ordering::Relaxed)) else {
            return self.end();
        };
        self.answer(&question);
    }

    fn timeout(self: Arc<Self>) {
        if !self.is_answered.swap(true, Ordering::AcqRel) {
            let why =
                "its pages cannot be moved: no thread of its process has posted or polled in all this time";
            self.say(&Answer::refusal(libc::EOPNOTSUPP, why), &[]);
        }
    }
}

impl Answering {
    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The background thread lets go of it.
    fn end(&self) {
        let token = self.token().take();
        if let Some(token) = token {
            self.engine.reactor.remove(token, self.connection.fd());
        }
    }

    /// Sends an answer. If the importer has no room for it, the connection ends.
    fn say(&self, answer: &Answer, descriptors: &[RawFd]) {
        if self.connection.send_with(&[&answer.bytes()], descriptors).is_err() {
            self.end();
        }
    }

    fn answer(self: Arc<Self>, question: &Question) {
        let devices = self.engine.devices();
        let context = devices.iter().find_map(|device| device.context_with_secret(question.secret));
        let Some(context) = context else {
            return self.say(&Answer::refusal(libc::ENOENT, "the context is closed"), &[]);
        };
        let Some(answer) = self.look(&context, question) else { return };
        self.say(&answer, &[]);
    }

    /// The answer, unless it comes later.
    fn look(self: &Arc<Self>, context: &Arc<Context>, question: &Question) -> Option<Answer> {
        if question.subject == Subject::Context {
            return Some(Answer { text: context.device().name().into(), ..Answer::default() });
        }
        let Some(domain) = context.protection_domain(question.domain) else {
            return Some(Answer::refusal(libc::ENOENT, "there is no such protection domain"));
        };
        if question.subject == Subject::Domain {
            return Some(Answer::default());
        }
        let Some(region) = domain.region(question.key) else {
            return Some(Answer::refusal(libc::ENOENT, "there is no such region in the protection domain"));
        };
        if let Err(error) = self.engine.reactor.set_timer(PROGRAM_TIMEOUT, self.clone()) {
            return Some(Answer::refusal(libc::EAGAIN, format!("no timer: {error}")));
        }
        let this = self.clone();
        let work = Box::new(move || {
            if !this.is_answered.swap(true, Ordering::AcqRel) {
                this.export(&region);
            }
        });
        moved::at_safe_point(&self.engine.safe_points, work);
        None
    }

    /// Moves the pages of a region and lends them.
    fn export(self: &Arc<Self>, region: &Arc<MemoryRegion>) {
        // First, so that its end is not missed.
        region.add_importer(self);
        let (answer, descriptor) = match region.move_for_importer() {
            Ok(place) if place.address == region.address() && place.length as u64 == region.length() => {
                let (access, iova) = (region.access().bits(), region.iova());
                let answer = Answer {
                    access,
                    iova,
                    length: region.length(),
                    offset: place.offset,
                    ..Answer::default()
                };
                (answer, Some(place.descriptor))
            }
            Err(why) if why != moved::Refusal::Small => {
                (Answer::refusal(libc::EOPNOTSUPP, format!("its pages cannot be moved: {why}")), None)
            }
            _ => {
                let why = "it does not begin and end with whole pages: posix_memalign(3) and mmap(2) give such memory";
                (Answer::refusal(libc::EOPNOTSUPP, why), None)
            }
        };
        self.say(&answer, descriptor.as_slice());
    }

    /// The region that was imported has ended.
    pub(crate) fn tell_end(&self) {
        let _ = self.connection.send(&[&Answer::refusal(libc::ENOENT, "it was deregistered").bytes()]);
    }
}

const _: () = assert!(LONGEST < 4096, "a message fits into any socket's buffer");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importers_have_a_bound() {
        let open = Arc::default();
        let mut places: Vec<_> = std::iter::from_fn(|| ImporterPlace::new(&open)).take(2 * MOST).collect();
        assert_eq!(places.len(), MOST);
        places.pop();
        assert!(ImporterPlace::new(&open).is_some(), "one that has gone makes room");
    }
}
