//! What tests do with the other process, and how a request of theirs comes to need no packet.

use super::agent::{self, by_kernel, direct, run};
use super::support::{join, site};
use adverb_core::conformance;
pub(crate) use adverb_core::conformance::agent::Remote;
use adverb_core::conformance::fixture::{Home, Memory, Side, TEST_TIMEOUT, signalled};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// How the target gives its memory to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The target's pages are mapped: they are moved while its only thread is in a verbs call.
    Mapped,
    /// The target's pages cannot be mapped: the kernel copies.
    Kernel,
    /// The target's pages cannot be mapped: the kernel copies without the memory file of the target's
    /// process.
    Number,
    /// Not at all: by packets of the channel.
    Packets,
    /// Not at all: by packets of the network.
    Network,
}

/// Tiers in which operations come to need no packet.
pub(crate) const DIRECT: [Tier; 3] = [Tier::Mapped, Tier::Kernel, Tier::Number];
/// Tiers in which memory of the target is mapped.
pub(crate) const MAPPED: [Tier; 1] = [Tier::Mapped];
/// All on one host.
pub(crate) const LOCAL: [Tier; 4] = [Tier::Mapped, Tier::Kernel, Tier::Number, Tier::Packets];

/// The process that carries an operation out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The initiator, in its map of the memory.
    Map,
    /// The kernel, at the initiator's request.
    Kernel,
    /// The target, as a packet asks it to.
    Packet,
}

impl Tier {
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Tier::Mapped => &[],
            Tier::Kernel => &[("ADVERB_WITHOUT", "moved-pages")],
            Tier::Number => &[("ADVERB_WITHOUT", "moved-pages,memory-file")],
            Tier::Packets => &[("ADVERB_WITHOUT", "moved-pages,kernel-copy")],
            Tier::Network => &[("ADVERB_LOCAL", "off")],
        }
    }

    /// How an operation goes in the middle of a region, once it has been asked for.
    pub(crate) fn way(self, opcode: Opcode) -> Way {
        match (self, opcode) {
            (Tier::Mapped, _) => Way::Map,
            (Tier::Kernel | Tier::Number, Opcode::Write | Opcode::Read) => Way::Kernel,
            _ => Way::Packet,
        }
    }

    /// How an operation goes for bytes that no page is shared for, as at the edges of a region.
    pub(crate) fn way_at_edges(self) -> Way {
        if self == Tier::Packets || self == Tier::Network { Way::Packet } else { Way::Kernel }
    }
}

/// An agent of a tier. It is killed when this is dropped.
pub(crate) struct Other {
    agent: conformance::agent::Other,
    tier: Tier,
}

impl Deref for Other {
    type Target = conformance::agent::Other;

    fn deref(&self) -> &Self::Target {
        &self.agent
    }
}

impl DerefMut for Other {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.agent
    }
}

impl Other {
    pub(crate) fn start(environment: &[(&str, &str)]) -> Self {
        Self { agent: conformance::agent::Other::start(environment), tier: Tier::Mapped }
    }

    /// Another process of a tier, with a protection domain.
    pub(crate) fn of(tier: Tier) -> Self {
        let mut other = Self { tier, ..Self::start(tier.environment()) };
        other.ask("domain", &[]);
        other
    }

    /// Memory of the other's in its domain `domain`.
    pub(crate) fn region(&mut self, domain: u64, length: usize, access: Access) -> Remote {
        let made = self.ask("region", &[domain, length as u64, access.bits().into()]);
        conformance::agent::Other::memory(&made, length)
    }

    /// Memory that everybody may use.
    pub(crate) fn open_region(&mut self, length: usize) -> Remote {
        self.region(0, length, OPEN)
    }
}

pub(crate) const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// A queue pair here, connected with one of the other process.
pub(crate) struct Pair {
    pub(crate) memory: Memory,
    pub(crate) side: Side,
    /// The number by which the other process knows its queue pair.
    pub(crate) index: u64,
    tier: Tier,
}

impl Pair {
    pub(crate) fn new(other: &mut Other, domain: u64, access: Access) -> Self {
        let site = site();
        let side = agent::side(&Home::new(&site), Access::REMOTE);
        let answer = other.ask("pair", &[domain, access.bits().into()]);
        join(&side, &site, answer[1] as u32);
        other.ask("join", &[answer[0], side.queue_pair.number().into()]);
        let memory = Memory::open(&side.domain, (1 << 20) + 64);
        Self { memory, side, index: answer[0], tier: other.tier }
    }

    pub(crate) fn open(other: &mut Other) -> Self {
        Self::new(other, 0, Access::REMOTE)
    }

    /// Carries out a request about the first `length` bytes of the memory here; atomics add one.
    pub(crate) fn run(&self, opcode: Opcode, length: usize, remote: (u64, u32)) -> Status {
        let sges = [self.memory.sge(0, length)];
        run(&self.side, &SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) })
    }

    /// Carries out any request. Returns how it has ended, and how it has gone.
    pub(crate) fn observe(&self, request: &SendRequest<'_>) -> (Status, Way) {
        let counts = || (direct(&self.side), by_kernel(&self.side));
        let before = counts();
        let status = run(&self.side, request);
        let after = counts();
        let way = match (after.0 - before.0, after.1 - before.1) {
            (0, _) => Way::Packet,
            (_, 0) => Way::Map,
            _ => Way::Kernel,
        };
        (status, way)
    }

    /// Carries out a request of 8 bytes until it goes as it should in the target's tier.
    #[track_caller]
    pub(crate) fn reach(&self, other: &mut Other, opcode: Opcode, remote: (u64, u32)) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let sges = [self.memory.sge(0, 8)];
        let request = SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) };
        loop {
            let (status, way) = self.observe(&request);
            assert_eq!(status, Status::Success);
            if way == self.tier.way(opcode) {
                return;
            }
            assert!(Instant::now() < deadline, "all that goes another way: {way:?}");
            other.ask("rest", &[]);
        }
    }
}
