//! The importer's side.

use super::message::{Answer, LONGEST, Question, Subject};
use super::{NAME, SECRET, socket_name};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::log;
use crate::memory::Access;
use crate::memory::moved::View;
use crate::reactor::{READABLE, Source, Token};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::seqpacket::{Along, Connection, Descriptors, PassedFd};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How long an answer is waited for: longer than an exporter waits for its program.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A context of another process.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    name: [u8; NAME],
    secret: u64,
}

impl Remote {
    /// The context whose command descriptor says this [ticket](super::ticket). None if it is no ticket.
    pub fn of(descriptor: RawFd) -> Option<Self> {
        let mut ticket = [0; NAME + SECRET + 1];
        // SAFETY: a live local; a descriptor, or a number that is none.
        let count = unsafe { libc::pread(descriptor, ticket.as_mut_ptr().cast(), ticket.len(), 0) };
        let ticket =
            ticket.get(..usize::try_from(count).ok()?).filter(|ticket| ticket.len() == NAME + SECRET)?;
        let (name, secret) = ticket.split_first_chunk::<NAME>()?;
        let secret = u64::from_str_radix(std::str::from_utf8(secret).ok()?, 16).ok()?;
        name.iter().all(u8::is_ascii_hexdigit).then_some(Self { name: *name, secret })
    }

    /// The name of the device that the context is of.
    ///
    /// # Errors
    /// EOPNOTSUPP where no process listens: it has ended, or is of another network namespace. EACCES if it is
    /// of another user. ETIMEDOUT when it does not answer. Else its answer: ENOENT for a context that is
    /// closed.
    pub fn device(&self) -> Result<String> {
        Ok(self.ask(Subject::Context, 0, 0)?.1.text)
    }

    /// Whether the context has a protection domain with this number.
    ///
    /// # Errors
    /// As of [`Remote::device`]; ENOENT if it has none.
    pub fn find_domain(&self, number: u32) -> Result<()> {
        self.ask(Subject::Domain, number, 0).map(drop)
    }

    /// Imports the region with a key in that domain into `target`. It has a key of its own, and the addresses
    /// and rights of the original.
    ///
    /// # Errors
    /// As of [`Remote::device`]; ENOENT if there is none; EOPNOTSUPP where the pages cannot be shared; as
    /// [`MemoryRegion::register`].
    pub fn import_region(
        &self,
        target: &Arc<ProtectionDomain>,
        domain: u32,
        key: u32,
    ) -> Result<Arc<MemoryRegion>> {
        let (connection, answer, descriptors) = self.ask(Subject::Region, domain, key)?;
        let descriptor = descriptors.into_iter().next().and_then(PassedFd::into_memory);
        let descriptor = descriptor.ok_or_else(|| Error::invalid("no memory came with the region"))?;
        let access = Access::from_bits(answer.access)
            .ok_or_else(|| Error::invalid(format!("access flags {:#x} are not known", answer.access)))?;
        let length = usize::try_from(answer.length).map_err(|_| Error::invalid("its length"))?;
        let writable = access.contains(Access::LOCAL_WRITE);
        let view = View::map_whole(descriptor.as_fd(), answer.offset, length, writable)?;
        let engine = target.context().engine();
        let watch = Arc::new(Watch { engine, connection, key: OnceLock::new(), token: Mutex::default() });
        let region = MemoryRegion::imported(target, view, answer.iova, access, watch.clone())?;
        watch.begin(region.key());
        Ok(region)
    }

    fn ask(&self, subject: Subject, domain: u32, key: u32) -> Result<(Connection, Answer, Descriptors)> {
        let connection = Connection::open(&socket_name(&self.name)).map_err(|error| {
            let gone = "its process has ended, is of another network namespace, has no protection domain, or ADVERB_LOCAL is not auto there";
            Error::new(libc::EOPNOTSUPP, format!("{subject:?} of another process: {gone} ({error})"))
        })?;
        if !connection.may_share() {
            return Err(Error::new(
                libc::EACCES,
                "who exports the context is of another user or user namespace, or may not be looked at",
            ));
        }
        let question = Question { subject, secret: self.secret, domain, key };
        let failed = |error: io::Error| {
            Error::new(
                error.raw_os_error().unwrap_or(libc::EIO),
                format!("asking process {}: {error}", connection.process()),
            )
        };
        connection.send(&[&question.bytes()]).map_err(failed)?;
        let mut buffer = [0; LONGEST + 1];
        let (message, descriptors) = wait(&connection, &mut buffer, ANSWER_TIMEOUT).map_err(failed)?;
        let answer =
            Answer::parse(message).ok_or_else(|| Error::invalid("an exporter's answer means nothing"))?;
        if answer.errno != 0 {
            let errno = if (1..4096).contains(&answer.errno) { answer.errno } else { libc::EIO };
            let what = format!("process {} does not lend it: {}", connection.process(), answer.text);
            return Err(Error::new(errno, what));
        }
        Ok((connection, answer, descriptors))
    }
}

/// Waits for an answer, for so long.
fn wait<'a>(
    connection: &Connection,
    buffer: &'a mut [u8],
    timeout: Duration,
) -> io::Result<(&'a [u8], Descriptors)> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: connection.fd(), events: libc::POLLIN, revents: 0 };
        let most = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: live locals. A system call of its own: no cancellation point.
        let ready = unsafe {
            libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, &raw const most, std::ptr::null::<u8>(), 0)
        };
        match ready {
            0 => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            1 => break,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
    let (message, Along { descriptors, .. }) = connection.receive_with(buffer)?;
    if message.is_empty() {
        Err(io::Error::from_raw_os_error(libc::ECONNRESET))
    } else {
        Ok((message, descriptors))
    }
}

/// Hears that the original of an imported region has ended.
pub(crate) struct Watch {
    engine: &'static Engine,
    connection: Connection,
    key: OnceLock<u32>,
    token: Mutex<Option<Token>>,
}

impl Watch {
    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The region has this key.
    fn begin(self: &Arc<Self>, key: u32) {
        let _ = self.key.set(key);
        // Held, so that it is there before the connection can end.
        let mut token = self.token();
        match self.engine.reactor.add(self.connection.fd(), READABLE, self.clone()) {
            Ok(new) => *token = Some(new),
            Err(error) => log!(Warn, "the end of an imported region will not be noticed: {error}"),
        }
    }

    /// The background thread listens to the exporter no more.
    pub(crate) fn end(&self) {
        let token = self.token().take();
        if let Some(token) = token {
            self.engine.reactor.remove(token, self.connection.fd());
        }
    }
}

impl Source for Watch {
    fn ready(self: Arc<Self>, _: u32) {
        let mut buffer = [0; LONGEST + 1];
        let ended = match self.connection.receive(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(message) => Answer::parse(message).is_some_and(|answer| answer.errno != 0),
            Err(_) => false,
        };
        let token = self.token();
        // Without one the import has ended already, and its key may be another region's.
        if let (true, Some(key), true) = (ended, self.key.get(), token.is_some()) {
            self.engine.keys.invalidate(*key);
            log!(Info, "key {key:#x}: the region that it was imported from was deregistered");
        }
        drop(token);
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exporter_that_does_not_answer_is_given_up() {
        let [here, there] = Connection::pair().unwrap();
        let mut buffer = [0; 8];
        let mut asked =
            || wait(&here, &mut buffer, Duration::from_millis(1)).map(|(answer, _)| answer.to_vec());
        assert_eq!(asked().unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        there.send(&[b"answer"]).unwrap();
        assert_eq!(asked().unwrap(), b"answer");
        drop(there);
        assert_eq!(asked().unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    }
}
