//! Memory of the producer that a record describes, and which side may use it now.
//!
//! Each such record has a word: its position, and one of five states. The consumer *claims* the memory before
//! it reads there, and gives it up after that. The producer *withdraws* the memory when it needs it: at once
//! if it is not claimed, else when the consumer has given it up. A consumer that does not do so in time looks
//! again after its reading, and finds the loan revoked. The bytes that it has read are void then. Both sides
//! communicate only by exchanges of this one word. The word holds the position, so an exchange that comes
//! late does not change a later record's word.

use crate::sync::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use crate::view::View;

use super::Producer;

/// The consumer has not come to it. No state is zero: a slot that never lent anything is none of them.
const OFFERED: u64 = 1;
/// The consumer is reading.
const CLAIMED: u64 = 2;
/// The consumer has finished, or does not need the payload.
const DONE: u64 = 3;
/// Withdrawn, see [`Withdrawal`].
const LOST: u64 = 4;
const REVOKED: u64 = 5;
const STATES: u32 = 3;

#[inline]
fn word(position: u64, state: u64) -> u64 {
    position << STATES | state
}

/// What withdrawn memory means to the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The record counts as one that was never sent.
    Lost,
    /// The producer's program has taken the memory away.
    Revoked,
}

/// A record that speaks of its producer's memory, as the producer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan(u64);

/// The producer's way to its loans, for any thread.
pub struct Loans(View);

impl Producer {
    /// The way to the loans of this producer.
    pub fn loans(&self) -> Loans {
        Loans(self.view().clone())
    }
}

/// Before the record at this position is published.
pub(super) fn offer(view: &View, position: u64) -> Loan {
    // The ready word publishes it.
    view.claim(position).store(word(position, OFFERED), Release);
    Loan(position)
}

/// Whether one state took the place of another. Each side sees all that the other did before its own
/// exchange.
fn change(claim: &AtomicU64, position: u64, from: u64, to: u64) -> bool {
    claim.compare_exchange(word(position, from), word(position, to), AcqRel, Acquire).is_ok()
}

impl Loans {
    /// Whether the consumer will not come to it any more, or has finished.
    #[inline]
    pub fn is_over(&self, loan: Loan) -> bool {
        let now = self.0.claim(loan.0).load(Acquire);
        now != word(loan.0, OFFERED) && now != word(loan.0, CLAIMED)
    }

    /// Takes it back, unless the consumer is reading at this instant: `false`. It is to be asked again then.
    pub fn withdraw(&self, loan: Loan, why: Withdrawal) -> bool {
        change(self.0.claim(loan.0), loan.0, OFFERED, state(why)) || self.is_over(loan)
    }

    /// Takes it back from a consumer that does not finish: the bytes that the consumer reads are void.
    pub fn revoke(&self, loan: Loan, why: Withdrawal) {
        let _ = self.withdraw(loan, why) || change(self.0.claim(loan.0), loan.0, CLAIMED, state(why));
    }
}

fn state(why: Withdrawal) -> u64 {
    match why {
        Withdrawal::Lost => LOST,
        Withdrawal::Revoked => REVOKED,
    }
}

/// The consumer's side of it.
pub(super) struct Claim<'a> {
    claim: &'a AtomicU64,
    position: u64,
}

impl<'a> Claim<'a> {
    pub(super) fn new(view: &'a View, position: u64) -> Self {
        Self { claim: view.claim(position), position }
    }

    fn withdrawal(&self) -> Withdrawal {
        let revoked = self.claim.load(Acquire) == word(self.position, REVOKED);
        if revoked { Withdrawal::Revoked } else { Withdrawal::Lost }
    }

    pub(super) fn begin(&self) -> Result<(), Withdrawal> {
        let begun = change(self.claim, self.position, OFFERED, CLAIMED);
        if begun { Ok(()) } else { Err(self.withdrawal()) }
    }

    pub(super) fn check(&self) -> Result<(), Withdrawal> {
        // Acquire: the reads of the payload come first. The exchange is a store, too, and no earlier access
        // may pass it.
        let holds = change(self.claim, self.position, CLAIMED, CLAIMED);
        if holds { Ok(()) } else { Err(self.withdrawal()) }
    }

    #[inline]
    pub(super) fn end(&self) {
        // Most records lend nothing.
        let now = self.claim.load(Acquire);
        if now != word(self.position, CLAIMED) && now != word(self.position, OFFERED) {
            return;
        }
        let _ = change(self.claim, self.position, CLAIMED, DONE)
            || change(self.claim, self.position, OFFERED, DONE);
    }
}
