//! Why requests fail and are refused: the lines of the log, and the number that the completion carries. Only
//! after a failure.

use super::{Queues, ReceiveWork, SendWork};
use crate::heard::{self, EngineFinding};
use crate::log;
use crate::memory::{Access, AccessError, User};
use crate::request::{Cause, Opcode, SendFlags, Sge, Status};

impl Queues {
    /// A request of the peer is refused because of this key; `error` is the answer of the key table.
    #[cold]
    #[inline(never)]
    pub fn refuse_memory(
        &self,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
        error: AccessError,
    ) {
        if !log::enabled(log::Level::Warn) && !heard::is_heard() {
            return;
        }
        let explained =
            self.engine.keys.explain(key, address, length, rights, domain, User::Peer(self.number));
        let why = explained.map_or_else(|| format!("{error:?}, a moment ago"), |(_, text)| text);
        let what = wanted(rights);
        crate::log!(
            Warn,
            "queue pair {:#x}: the peer's {what} of {length} bytes at {address:#x} of key {key:#x} is refused: {why}",
            self.number
        );
        self.tell_refusal(Some(error), rights, || {
            format!("the peer's {what} of {length} bytes at {address:#x} of key {key:#x} is refused: {why}")
        });
    }

    /// A request of the peer is refused because the queue pair itself does not permit it.
    #[cold]
    #[inline(never)]
    pub fn refuse_right(&self, right: Access) {
        let (what, words) = (wanted(right), crate::memory::access_words(right));
        crate::log!(
            Warn,
            "queue pair {:#x}: the peer's {what} is refused: the queue pair has no {words} in its qp_access_flags; the region's rights are not enough",
            self.number
        );
        self.tell_refusal(None, right, || {
            format!("the peer's {what} is refused: the queue pair has no {words} in its qp_access_flags")
        });
    }

    fn tell_refusal(&self, error: Option<AccessError>, rights: Access, text: impl FnOnce() -> String) {
        if heard::is_heard() {
            heard::tell(self.number, EngineFinding::Refused { why: &text(), error, rights });
        }
    }

    /// A message of the peer is longer than the receive that it has taken, which has room for `room` bytes.
    #[cold]
    #[inline(never)]
    pub fn refuse_length(&self, message: u64, is_whole: bool, room: u64) {
        heard::tell(self.number, EngineFinding::TooLong { message, is_whole, room });
        let least = if is_whole { "" } else { "at least " };
        crate::log!(
            Warn,
            "queue pair {:#x}: a message of {least}{message} bytes is refused: it has taken a receive of {room} bytes",
            self.number
        );
    }

    /// Why a request of the send queue failed. It goes into the log, too, unless it was only flushed.
    #[cold]
    #[inline(never)]
    pub(super) fn why_send_failed(&self, work: &SendWork, status: Status) -> Cause {
        if status == Status::Flushed {
            return Cause::Flushed;
        }
        let mut why = None;
        self.failed.note(status);
        if status == Status::LocalProtection && !work.flags.contains(SendFlags::INLINE) {
            let rights = if work.opcode.is_read_or_atomic() { Access::LOCAL_WRITE } else { Access::empty() };
            let elements = (0..work.sges).map(|index| self.send.sge(work, index));
            why = self.find_fault(elements, rights, self.domain);
        }
        let (cause, text) = why.unwrap_or_else(|| (status.into(), status.to_string()));
        let Self { number, .. } = self;
        let (wr_id, what, length) = (work.wr_id, work.opcode.name(), work.length);
        match work.opcode {
            Opcode::Send | Opcode::SendWithImmediate | Opcode::SendWithInvalidate => {
                crate::log!(
                    Warn,
                    "queue pair {number:#x}: request {wr_id:#x}, a {what} of {length} bytes, failed: {text}"
                );
            }
            Opcode::LocalInvalidate => {
                let key = work.immediate;
                crate::log!(
                    Warn,
                    "queue pair {number:#x}: request {wr_id:#x}, a {what} of key {key:#x}, failed: {text}"
                );
            }
            _ => {
                let (address, key) = (work.remote_address, work.rkey);
                crate::log!(
                    Warn,
                    "queue pair {number:#x}: request {wr_id:#x}, a {what} of {length} bytes at {address:#x} of key {key:#x}, failed: {text}"
                );
            }
        }
        cause
    }

    /// Why a receive failed. It goes into the log, too, unless it was only flushed.
    #[cold]
    #[inline(never)]
    pub(super) fn why_receive_failed(&self, work: &ReceiveWork, status: Status) -> Cause {
        self.failed.note(status);
        let (cause, text) = match status {
            Status::Flushed => return Cause::Flushed,
            Status::LocalLength => (Cause::ReceiveTooSmall, status.to_string()),
            Status::RemoteInvalidRequest => (Cause::ReceiveInvalid, "the message is refused".to_owned()),
            Status::LocalProtection => {
                let elements = (0..work.sges).map(|index| self.receive_sge(work, index));
                let found = self.find_fault(elements, Access::LOCAL_WRITE, work.domain);
                found.unwrap_or_else(|| (status.into(), status.to_string()))
            }
            _ => (status.into(), status.to_string()),
        };
        let (number, wr_id, room) = (self.number, work.wr_id, work.room);
        crate::log!(Warn, "queue pair {number:#x}: receive {wr_id:#x}, of {room} bytes, failed: {text}");
        cause
    }

    /// The first element that cannot be used, and why.
    fn find_fault(
        &self,
        elements: impl Iterator<Item = Sge>,
        rights: Access,
        domain: u32,
    ) -> Option<(Cause, String)> {
        let keys = &self.engine.keys;
        elements.filter(|element| element.length > 0).find_map(|Sge { address, length, lkey }| {
            let bytes = format!("the {length} bytes at {address:#x}");
            if let Some((error, text)) =
                keys.explain(lkey, address, length.into(), rights, domain, User::Local)
            {
                return Some((error.into(), format!("{bytes} cannot be used: {text}")));
            }
            let span = keys.open_span(lkey, address, length.into(), rights, domain).ok()?;
            let why = if !span.is_readable() {
                "not there any more"
            } else if rights.contains(Access::LOCAL_WRITE) && !span.may_be_written() {
                "not writable any more"
            } else {
                return None;
            };
            Some((Cause::LocalFault, format!("{bytes} are registered by key {lkey:#x}, but {why}")))
        })
    }
}

/// The operations for which a peer needs these rights, in words.
fn wanted(rights: Access) -> &'static str {
    if rights.contains(Access::REMOTE_WRITE) {
        "write"
    } else if rights.contains(Access::REMOTE_READ) {
        "read"
    } else if rights.contains(Access::REMOTE_ATOMIC) {
        "atomic operation"
    } else {
        "flush"
    }
}
