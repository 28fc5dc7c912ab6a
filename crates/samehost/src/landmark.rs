//! By what one process knows the memory of another, so that it copies to the right one.

use adverb_core::memory::process::{self, Process};
use adverb_core::memory::{NoClaim, Piece, Source};
use adverb_core::random;
use std::sync::OnceLock;

/// Where another process has a word that tells it from others, and where it begins copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Landmark {
    /// An address, and the word there.
    pub(crate) mark: (u64, u64),
    /// The address of the gate, as [`process::gate`] has it.
    pub(crate) gate: u64,
}

impl Landmark {
    /// The landmark of this process.
    pub(crate) fn own() -> Self {
        let probe = Probe::of_process();
        Self { mark: (probe.address(), probe.mark), gate: process::gate() }
    }

    /// The process that has this number, if it is the one, as the kernel copies to and from it.
    pub(crate) fn find(&self, number: libc::pid_t) -> Option<Process> {
        Process::open(number, self.mark, self.gate)
    }
}

/// Two words by which another process finds out, and proves, that it can read our memory.
#[repr(C)]
pub(crate) struct Probe {
    /// Told, so that the right process is recognized.
    mark: u64,
    /// Not told, and not 0.
    secret: u64,
}

impl Probe {
    fn new() -> Self {
        Self { mark: random::word(), secret: random::word() | 1 }
    }

    /// The probe that all other processes read.
    pub(crate) fn of_process() -> &'static Self {
        static PROBE: OnceLock<Probe> = OnceLock::new();
        PROBE.get_or_init(Probe::new)
    }

    /// The address of the probe.
    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// The word that others are told.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Whether this is the word of which no process is told.
    pub(crate) fn is_secret(&self, word: u64) -> bool {
        word == self.secret
    }

    /// Whether this process can read its own memory by the kernel.
    pub(crate) fn reads_itself() -> bool {
        let (own, probe) = (std::process::id() as libc::pid_t, Self::new());
        Self::read(own, probe.address(), probe.mark) == Some(probe.secret)
    }

    /// The secret of the probe with this mark that a process has at this address, if it lets us see it.
    pub(crate) fn read(process: libc::pid_t, address: u64, mark: u64) -> Option<u64> {
        if process <= 0 || adverb_core::setting::without("cma") {
            return None;
        }
        let pieces = [Piece { address, length: size_of::<Self>() as u64 }];
        let mut found = [0; size_of::<Self>()];
        Source::Process { process, pieces: &pieces, claim: &NoClaim }.read(&mut found).ok()?;
        let (first, second) = found.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        (word(first) == mark).then_some(word(second)).filter(|secret| *secret != 0)
    }
}
