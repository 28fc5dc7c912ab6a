//! What two processes say to each other as they meet.

use crate::landmark::{Landmark, Probe};

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    Offer = 1,
    Accept = 2,
    Confirm = 3,
    OfferCrossed = 4,
    Refuse = 5,
    /// Descriptors come with it: of the table of keys, and, if some of it can be mapped, of the memory that
    /// they open.
    Memory = 6,
}

/// A message of this handshake: all numbers in the host's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) what: What,
    /// The sender's own random number: of two offers that cross, that of the smaller one comes first.
    pub(super) nonce: u64,
    /// Where the sender has its [`Probe`], and the word by which that is recognized.
    pub(super) address: u64,
    pub(super) mark: u64,
    /// What the sender has read in the receiver's probe, behind that word; 0: nothing. In a message about
    /// memory, where the sender has its gate ([`adverb_core::memory::process::gate`]).
    pub(super) proof: u64,
}

pub(super) const LENGTH: usize = 33;

impl Message {
    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = self.what as u8;
        bytes[1..9].copy_from_slice(&self.nonce.to_ne_bytes());
        bytes[9..17].copy_from_slice(&self.address.to_ne_bytes());
        bytes[17..25].copy_from_slice(&self.mark.to_ne_bytes());
        bytes[25..33].copy_from_slice(&self.proof.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kinds =
            [What::Offer, What::Accept, What::Confirm, What::OfferCrossed, What::Refuse, What::Memory];
        Some(Self {
            what: kinds.into_iter().find(|what| *what as u8 == bytes[0])?,
            nonce: word(1),
            address: word(9),
            mark: word(17),
            proof: word(25),
        })
    }

    /// This process's description of itself. `proof`: the word that it has read in the receiver's probe.
    pub(super) fn of_process(what: What, nonce: u64, proof: Option<u64>) -> Self {
        let probe = Probe::of_process();
        let (address, mark, proof) = (probe.address(), probe.mark(), proof.unwrap_or(0));
        Self { what, nonce, address, mark, proof }
    }

    /// The word that the receiver reads in the sender's probe.
    pub(super) fn look(&self, process: libc::pid_t) -> Option<u64> {
        Probe::read(process, self.address, self.mark)
    }

    /// Where a message about memory says that things are.
    pub(super) fn landmark(&self) -> Landmark {
        Landmark { mark: (self.address, self.mark), gate: self.proof }
    }

    /// Whether the sender can read our memory: it has read a word there of which no process is told.
    pub(super) fn proves(&self) -> bool {
        Probe::of_process().is_secret(self.proof)
    }
}

/// Any bytes are a message that is the same when it is made again, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    if let Some(message) = Message::parse(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
}
