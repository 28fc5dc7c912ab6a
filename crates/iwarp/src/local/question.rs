//! A question: does your process have the other end of this connection? And its answer: the number of the
//! queue pair there.
//!
//! | byte | a question | an answer |
//! |---|---|---|
//! | 0 | [`QUESTION`] | [`ANSWER`] |
//! | 1 | unused | whether it has |
//! | 4 to 7 | number of the asker's queue pair | number of the queue pair |
//! | 8 to 11 | number of the asker's end of the connection ([`super::Inbox::number`]) | number of the other end |
//! | 12 to 47 | the addresses of the connection, as the process that is asked knows it: its own first | |
//!
//! Numbers are in the host's order. The kernel names the process that asks and the one that answers. A
//! process of the same user is believed, since it could read this one's memory anyway.

use super::{ADDRESS, EndName, Ends, LocalHost, RemoteEnd, door, from_bytes, to_bytes};
use crate::lock;
use adverb_core::engine;
use adverb_core::reactor::{PEER_CLOSED, READABLE, Readiness, Source, Timer, Token};
use adverb_core::seqpacket::Connection;
use adverb_samehost::HandshakeVerdict;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The first byte of a message of a handshake ([`adverb_samehost::Handshakes`]).
pub(super) const HANDSHAKE: u8 = 0;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;

/// How long an answer is waited for; until then, and without one, the connection goes by TCP.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A question for the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuestionMessage {
    /// The connection's addresses, as the process that is asked knows them.
    pub(super) ends: Ends,
    /// The asker's end.
    pub(super) end: EndName,
}

const HEAD: usize = 12;

/// The second half of a head.
fn names(head: &[u8; HEAD]) -> EndName {
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    EndName { number: word(4), serial: word(8) }
}

fn put_names(head: &mut [u8], EndName { number, serial }: EndName) {
    head[4..8].copy_from_slice(&number.to_ne_bytes());
    head[8..HEAD].copy_from_slice(&serial.to_ne_bytes());
}

impl QuestionMessage {
    fn to_bytes(self) -> [u8; HEAD + 2 * ADDRESS] {
        let mut bytes = [0; _];
        bytes[0] = QUESTION;
        put_names(&mut bytes, self.end);
        bytes[HEAD..HEAD + ADDRESS].copy_from_slice(&to_bytes(self.ends.local));
        bytes[HEAD + ADDRESS..].copy_from_slice(&to_bytes(self.ends.peer));
        bytes
    }
}

/// The question in a message, if it is one.
pub(super) fn parse(bytes: &[u8]) -> Option<QuestionMessage> {
    let (head, addresses) = bytes.split_first_chunk::<HEAD>()?;
    let (local, peer) = addresses.split_first_chunk::<ADDRESS>()?;
    let peer: &[u8; ADDRESS] = peer.try_into().ok()?;
    let end = names(head);
    let ends = Ends { local: from_bytes(local), peer: from_bytes(peer) };
    (head[0] == QUESTION).then_some(QuestionMessage { ends, end })
}

/// The answer: how our end is named, if it is here.
pub(super) fn answer(end: Option<EndName>) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    (bytes[0], bytes[1]) = (ANSWER, end.is_some().into());
    if let Some(end) = end {
        put_names(&mut bytes, end);
    }
    bytes
}

/// The names in an answer, if the other end is there.
fn answered(bytes: &[u8]) -> Option<EndName> {
    let head: &[u8; HEAD] = bytes.try_into().ok()?;
    (head[..2] == [ANSWER, 1]).then(|| names(head))
}

/// A question of ours, until it is answered.
pub(super) struct Question {
    host: Arc<LocalHost>,
    ends: Ends,
    state: Mutex<Option<State>>,
}

struct State {
    connection: Connection,
    token: Token,
    timer: Option<Timer>,
}

impl Question {
    /// Asks for the other end of a connection, of which this process has `own`. If anything fails, the
    /// connection goes by TCP.
    pub(super) fn ask(host: &Arc<LocalHost>, ends: Ends, own: EndName) {
        let theirs = ends.reversed();
        let names = [door::name_of_one(theirs), door::name(theirs.local)];
        let open = |name: &Vec<u8>| Connection::open(name).ok().filter(Connection::may_share);
        let Some(connection) = names.iter().find_map(open) else { return };
        if connection.send(&[&QuestionMessage { ends: theirs, end: own }.to_bytes()]).is_err() {
            return;
        }
        let Ok(engine) = engine::engine() else { return };
        let question = Arc::new(Self { host: host.clone(), ends, state: Mutex::default() });
        // The lock is held over the registration, so that the answer finds everything in place.
        let mut state = lock(&question.state);
        let fd = connection.fd();
        if let Ok(token) = engine.reactor.add(fd, READABLE | PEER_CLOSED, question.clone()) {
            let timer = engine.reactor.set_timer(ANSWER_TIMEOUT, question.clone()).ok();
            *state = Some(State { connection, token, timer });
        }
    }

    /// The connection, which the background thread does not watch for this any more.
    fn end(&self) -> Option<Connection> {
        let State { connection, token, timer } = lock(&self.state).take()?;
        if let Ok(engine) = engine::engine() {
            engine.reactor.remove(token, connection.fd());
            timer.inspect(|timer| engine.reactor.cancel_timer(*timer));
        }
        Some(connection)
    }
}

impl Source for Question {
    fn ready(self: Arc<Self>, _: Readiness) {
        let mut buffer = [0; 64];
        let end = {
            let state = lock(&self.state);
            let Some(state) = &*state else { return };
            match state.connection.receive(&mut buffer) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return,
                Err(_) => None,
                Ok(bytes) => answered(bytes),
            }
        };
        let (Some(connection), Some(end)) = (self.end(), end) else { return };
        let peer = RemoteEnd { process: connection.process(), end };
        if peer.process == std::process::id() as libc::pid_t {
            // This process has the other end itself, by another address, as a firewall may make one. Such a
            // connection shares nothing.
            return;
        }
        if self.host.note(self.ends, peer).is_some() {
            // Undecided: once the handshake is, each connection with that process is told (`decided`).
            if let HandshakeVerdict::Channel(_) = self.host.hub.handshakes.meet(&self.host, connection, None)
            {
                self.host.join(self.ends, peer);
            }
        }
    }

    fn timeout(self: Arc<Self>) {
        self.end();
    }
}

/// Any bytes are a question that is the same when it is made again, or none; and an answer, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    if let Some(asked) = parse(bytes) {
        assert_eq!(parse(&asked.to_bytes()), Some(asked));
        assert!(answered(bytes).is_none());
    }
    if let Some(end) = answered(bytes) {
        assert_eq!(answered(&answer(Some(end))), Some(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_back_and_other_bytes_are_no_question() {
        for (local, peer) in [("127.0.0.1:7", "192.0.2.1:65535"), ("[::1]:7", "[2001:db8::1]:8")] {
            let ends = Ends { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
            let asked = QuestionMessage { ends, end: EndName { number: 0xabcdef, serial: u32::MAX - 1 } };
            let bytes = asked.to_bytes();
            assert_eq!(parse(&bytes), Some(asked));
            for length in 0..bytes.len() {
                assert_eq!(parse(&bytes[..length]), None);
            }
            assert_eq!(parse(&[&bytes[..], &[0]].concat()), None);
            assert_eq!(parse(&[&[HANDSHAKE], &bytes[1..]].concat()), None);
        }
    }

    #[test]
    fn garbage_is_no_question_and_no_harm() {
        let mut state = 1;
        for length in (0..100).cycle().take(5000) {
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = adverb_core::random::next(state);
                (state >> 32) as u8
            })
            .take(length)
            .collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 3;
            }
            try_bytes(&bytes);
        }
    }

    #[test]
    fn an_answer_is_read_back_and_other_bytes_are_no_answer() {
        let end = EndName { number: 0xabcdef, serial: 7 };
        assert_eq!(answered(&answer(Some(end))), Some(end));
        assert_eq!(answered(&answer(None)), None);
        let right = answer(Some(end));
        for bytes in [&[][..], &right[..1], &right[..11], &[&right[..], &[0]].concat()] {
            assert_eq!(answered(bytes), None);
        }
        assert_eq!(answered(&[&[QUESTION], &right[1..]].concat()), None);
    }
}
