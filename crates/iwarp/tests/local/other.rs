//! What tests do with the other process, and how a request of theirs comes to need no TCP.

use super::agent;
use adverb_core::cm::EventKind;
use adverb_core::conformance::Site;
use adverb_core::conformance::agent::run;
pub(crate) use adverb_core::conformance::agent::{AGENT, Other, Remote};
use adverb_core::conformance::fixture::{Memory, Shape, Side, TEST_TIMEOUT, parameters, resolved, signalled};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};
use adverb_core::transport::TransportFactory;
use std::time::Instant;

const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_iwarp::FACTORY }];

/// Where the tests run; memory is shared there unless the environment says otherwise.
pub(crate) fn site() -> Site {
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "iwarp0", "127.0.0.1")
}

pub(crate) const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// How the target gives its memory to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The target's pages are mapped: they are moved while its only thread is in a verbs call.
    Mapped,
    /// The target's pages cannot be mapped: the kernel copies.
    Kernel,
    /// Every operation is checked by the process whose memory it is.
    Strict,
    /// Not at all.
    Off,
}

pub(crate) const DIRECT: [Tier; 2] = [Tier::Mapped, Tier::Kernel];
pub(crate) const ALL: [Tier; 4] = [Tier::Mapped, Tier::Kernel, Tier::Strict, Tier::Off];

impl Tier {
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Tier::Mapped => &[],
            Tier::Kernel => &[("ADVERB_WITHOUT", "moved-pages")],
            Tier::Strict => &[("ADVERB_LOCAL", "strict")],
            Tier::Off => &[("ADVERB_LOCAL", "off")],
        }
    }

    /// Whether an operation needs no TCP in the middle of a region, once it has been asked for.
    pub(crate) fn is_direct(self, opcode: Opcode) -> bool {
        match self {
            Tier::Mapped => true,
            Tier::Kernel => matches!(opcode, Opcode::Write | Opcode::Read),
            Tier::Strict | Tier::Off => false,
        }
    }
}

/// A queue pair here, connected with one of an agent.
pub(crate) struct Pair {
    pub(crate) other: Other,
    pub(crate) memory: Memory,
    pub(crate) side: Side,
    /// The agent's number of its queue pair.
    pub(crate) index: u64,
    pub(crate) tier: Tier,
}

impl Pair {
    pub(crate) fn of(tier: Tier) -> Self {
        Self::with(Other::start(tier.environment()), tier, agent::all())
    }

    pub(crate) fn with(mut other: Other, tier: Tier, access: u64) -> Self {
        let port = other.ask("accept", &[access])[0] as u16;
        Self::at(other, port, tier)
    }

    /// With an agent that has said by which port it accepts.
    pub(crate) fn at(other: Other, port: u16, tier: Tier) -> Self {
        let site = site();
        let shape = Shape { sends: 64, receives: 64, receive_completions: 64, ..Shape::default() };
        let side = resolved(&site, shape, site.at(port));
        side.id.connect(Some(&parameters())).unwrap();
        side.expect(EventKind::Established);
        let index = other.hear()[0];
        let memory = Memory::open(&side.domain, (8 << 20) + 64);
        Self { other, memory, side, index, tier }
    }

    /// The connection ends, and the agent stays.
    pub(crate) fn leave(self) -> Other {
        self.other
    }

    /// Memory of the other's.
    pub(crate) fn region(&mut self, length: usize, access: Access) -> Remote {
        Other::memory(&self.other.ask("region", &[self.index, length as u64, access.bits().into()]), length)
    }

    /// Operations that needed no TCP.
    pub(crate) fn direct(&self) -> u64 {
        self.side.context.device().counters().tx_direct.get()
    }

    /// Carries out a request: how it has ended, and whether it needed no TCP.
    pub(crate) fn observe(&self, request: &SendRequest<'_>) -> (Status, bool) {
        let before = self.direct();
        let status = run(&self.side, request);
        (status, self.direct() > before)
    }

    /// Carries out a request of 8 bytes until it needs no TCP, or, in a tier in which it does, often enough.
    #[track_caller]
    pub(crate) fn reach(&mut self, opcode: Opcode, remote: (u64, u32)) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut looks = 0;
        loop {
            let sges = [self.memory.sge(0, 8)];
            let request = SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) };
            let (status, is_direct) = self.observe(&request);
            assert_eq!(status, Status::Success);
            looks += 1;
            let is_expected = self.tier.is_direct(opcode);
            assert!(is_expected || !is_direct, "{:?}: {opcode:?} needs no TCP", self.tier);
            if is_direct || !is_expected && looks == 50 {
                return;
            }
            assert!(Instant::now() < deadline, "{:?}: {opcode:?} goes by TCP", self.tier);
            self.other.ask("rest", &[]);
        }
    }
}
