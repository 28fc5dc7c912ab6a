//! The questions that are under way, and the answers that are kept. Both have a bound.

use super::{LocationQuery, Place};
use crate::lane::Lane;
use crate::recent::Recent;
use adverb_core::random;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;
use std::time::Duration;

/// Questions that wait at once, and answers that are kept.
pub(super) const MOST: usize = 16_384;
/// While so many wait, none is added only because somebody has asked for a queue pair of ours.
pub(super) const CROWDED: usize = MOST / 4;

/// The questions that are under way.
#[derive(Default)]
pub(super) struct Questions {
    pub(super) by_transaction: HashMap<u64, Question>,
    pub(super) by_subject: HashMap<(IpAddr, u32), u64>,
}

impl Questions {
    /// What is being asked about a queue pair of an address, and the transaction.
    pub(super) fn about(&mut self, subject: (IpAddr, u32)) -> Option<(u64, &mut Question)> {
        let transaction = *self.by_subject.get(&subject)?;
        Some((transaction, self.by_transaction.get_mut(&transaction)?))
    }

    /// A new question, if fewer than so many wait. Returns its transaction.
    pub(super) fn add_below(&mut self, most: usize, question: Question) -> Option<u64> {
        (self.by_transaction.len() < most).then(|| self.add(question))
    }

    /// A new question. Returns its transaction.
    pub(super) fn add(&mut self, question: Question) -> u64 {
        let transaction = random::word();
        self.by_subject.insert((question.peer.ip(), question.number), transaction);
        self.by_transaction.insert(transaction, question);
        transaction
    }
}

/// The kind of process at an address, as far as questions show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// An adverb there has answered. One unanswered question about an unknown queue pair does not change
    /// that. Otherwise the first datagram to another queue pair would go by port 4791, and the next one,
    /// which goes where that lives, would overtake it.
    Answering,
    /// No adverb there answers: nothing waits for an answer from there.
    Silent,
}

/// What answers have shown.
pub(super) struct Answers {
    pub(super) places: Recent<(IpAddr, u32), Place>,
    standings: Recent<IpAddr, Standing>,
}

impl Default for Answers {
    fn default() -> Self {
        Self { places: Recent::new(MOST), standings: Recent::new(MOST) }
    }
}

impl Answers {
    pub(super) fn is_silent(&mut self, address: IpAddr) -> bool {
        self.standings.get(&address) == Some(Standing::Silent)
    }

    /// An adverb there has answered.
    pub(super) fn has_answered(&mut self, address: IpAddr) {
        self.standings.insert(address, Standing::Answering);
    }

    /// A question got no answer from there. Only the second one in a row makes the address silent.
    pub(super) fn missed_answer(&mut self, address: IpAddr) {
        if self.standings.get(&address) == Some(Standing::Answering) {
            self.standings.remove(&address);
        } else {
            self.set_silent(address);
        }
    }

    /// The host there does not know this protocol (a kernel or an adapter).
    pub(super) fn set_silent(&mut self, address: IpAddr) {
        self.standings.insert(address, Standing::Silent);
    }
}

/// A question that is under way.
pub(super) struct Question {
    pub(super) number: u32,
    pub(super) local: IpAddr,
    pub(super) peer: SocketAddr,
    pub(super) lane: Weak<Lane>,
    /// The queue pairs that want to know. None: it was put once, because of a question; nothing follows if
    /// nobody answers.
    pub(super) askers: Vec<u32>,
    pub(super) asked: usize,
    pub(super) hurries: u32,
    /// When the question left last.
    pub(super) sent: Duration,
}

impl Question {
    /// A question that has not been put yet.
    pub(super) fn new(wanted: LocationQuery, lane: Weak<Lane>, askers: Vec<u32>) -> Self {
        let LocationQuery { local, peer, number } = wanted;
        Self { number, local, peer, lane, askers, asked: 0, hurries: 0, sent: Duration::ZERO }
    }
}

/// A question that has ended: who is to be told, and what.
pub(super) struct SettledQuestion {
    pub(super) askers: Vec<u32>,
    pub(super) number: u32,
    pub(super) place: Place,
}

/// What is put because of another's question, by its transaction.
pub(super) enum CounterQuestion {
    /// A question that is under way already, once more.
    Again(u64),
    New(u64),
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
}
