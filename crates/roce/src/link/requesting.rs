//! The requester of a queue pair, and how many Sends may go out straight without another look at it.
//!
//! A Send that goes straight needs nothing but the next number, as long as nothing else has happened to the
//! requester since the last such Send.

use crate::time;
use adverb_proto::ib::{Request, Requester, Service};
use std::ops::{Deref, DerefMut};

/// The requester of a queue pair, and how many more Sends may go straight. There is no requester until the
/// program has the queue pair send.
#[derive(Default)]
pub(super) struct Requesting {
    requester: Option<Requester>,
    /// So many Sends may follow the last one straight. None once something else has been asked of the
    /// requester.
    following: u32,
}

impl Deref for Requesting {
    type Target = Option<Requester>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.requester
    }
}

impl DerefMut for Requesting {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.following = 0;
        &mut self.requester
    }
}

impl Requesting {
    /// Whether a Send of one packet may go out straight.
    #[inline(always)]
    pub(super) fn lets_go(&self, service: Service, is_fenced: bool) -> bool {
        self.following > 0 || self.finds_clear(service, is_fenced)
    }

    #[inline(never)]
    fn finds_clear(&self, service: Service, is_fenced: bool) -> bool {
        // A fence holds nothing back where no Read is without an answer.
        let passes = |requester: &Requester| !is_fenced || requester.is_idle() || requester.runs();
        service == Service::Rc
            && self.requester.as_ref().is_some_and(|requester| requester.is_clear() && passes(requester))
    }

    /// A Send that [may go out](Self::lets_go) does so now. Returns its packet sequence number.
    #[inline(always)]
    pub(super) fn send(&mut self, sequence: u64, request: impl FnOnce() -> Request) -> Option<u32> {
        let requester = self.requester.as_mut()?;
        match self.following.checked_sub(1) {
            Some(left) => {
                self.following = left;
                Some(requester.send_next(sequence))
            }
            None => {
                let number = requester.send_at_once(sequence, time::late, request);
                self.following = requester.may_follow();
                Some(number)
            }
        }
    }
}
