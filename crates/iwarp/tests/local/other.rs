//! What tests do with the other process, and how a request of theirs comes to need no TCP.

use super::agent;
use adverb_core::cm::EventKind;
use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Memory, PATIENCE, Shape, Side, parameters, resolved, signalled};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};
use adverb_core::transport::TransportFactory;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Says to a process that it is an agent.
pub(crate) const AGENT: &str = "ADVERB_TEST_AGENT";
const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_iwarp::FACTORY }];

/// Where the tests run; memory is shared there unless the environment says otherwise.
pub(crate) fn site() -> Site {
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "iwarp0", "127.0.0.1")
}

pub(crate) const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// How the target gives its memory to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Its pages are mapped: they are moved while its only thread is in a verbs call.
    Mapped,
    /// They cannot be mapped: the kernel copies.
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

/// An agent. It is killed when this is dropped.
pub(crate) struct Other {
    /// Its number.
    process: libc::pid_t,
    parent: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Other {
    pub(crate) fn start(environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(environment.iter().copied());
        Self::of(command)
    }

    pub(crate) fn of(mut command: Command) -> Self {
        agent::permit_reading();
        let mut parent = command
            .args(["--exact", "an_agent_answers", "--nocapture"])
            .env(AGENT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(parent.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if let Some(answer) = line.strip_prefix("= ")
                    && sender.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let mut other = Self { process: 0, input: parent.stdin.take().unwrap(), parent, lines };
        other.process = other.hear()[0] as libc::pid_t;
        other
    }

    /// Gives a command without waiting for its answer.
    pub(crate) fn say(&mut self, command: &str, numbers: &[u64]) {
        let numbers: String = numbers.iter().map(|number| format!(" {number}")).collect();
        writeln!(self.input, "{command}{numbers}").unwrap();
    }

    /// The next answer.
    #[track_caller]
    pub(crate) fn hear(&self) -> Vec<u64> {
        let answer = self.lines.recv_timeout(5 * PATIENCE).expect("the other process answers");
        answer.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        self.say(command, numbers);
        self.hear()
    }

    /// Ends it, wherever it is.
    pub(crate) fn kill(&mut self) {
        if self.process != 0 {
            // SAFETY: its parent has not waited for it, or does so just now and ends itself.
            unsafe { libc::kill(self.process, libc::SIGKILL) };
        }
        self.process = 0;
        let _ = self.parent.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Memory of the other process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) index: u64,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: usize,
}

impl Remote {
    pub(crate) fn at(&self, offset: usize) -> (u64, u32) {
        (self.address + offset as u64, self.key)
    }

    /// A word in its middle, which can be shared if anything of it can.
    pub(crate) fn middle(&self) -> (u64, u32) {
        ((self.address + self.length as u64 / 2).next_multiple_of(8), self.key)
    }
}

/// Posts one request, and waits for its end.
pub(crate) fn run(side: &Side, request: &SendRequest<'_>) -> Status {
    side.queue_pair.post_send(request).unwrap();
    side.sent().status
}

/// A queue pair here, connected with one of an agent.
pub(crate) struct Pair {
    pub(crate) other: Other,
    pub(crate) memory: Memory,
    pub(crate) side: Side,
    /// Of the other's.
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
        let answer = self.other.ask("region", &[self.index, length as u64, access.bits().into()]);
        Remote { index: answer[0], address: answer[1], key: answer[2] as u32, length }
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
        let deadline = Instant::now() + PATIENCE;
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
