//! Another process of a test's, which does as it is told: commands come by its input, a line each, and are
//! answered by a line.
//!
//! It is the test's own executable, with a test in it that [serves](serve).

use super::TEST_TIMEOUT;
use super::fixture::{Memory, Side};
use crate::memory::copy_from;
use crate::memory::moved::safe_point;
use crate::request::{SendRequest, Status};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard};

/// Says to a process that it is an agent.
pub const AGENT: &str = "ADVERB_TEST_AGENT";

/// Obeys commands.
pub trait Agent {
    /// Carries one out. Returns the answer.
    fn obey(&mut self, command: &str, numbers: &[u64]) -> Vec<u64>;
}

/// Whether this process is to [`serve`].
pub fn is_agent() -> bool {
    std::env::var_os(AGENT).is_some()
}

/// Obeys until its input ends: in a child of this process, which has one thread, as programs have whose pages
/// can be moved at a safe point.
pub fn serve<A: Agent>(make: fn() -> A) {
    // SAFETY: the child leaves by _exit, and uses nothing that another thread of this process may be in the
    // middle of: that waits for this test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
        let served = std::panic::catch_unwind(|| obey_all(make));
        // SAFETY: ends the child, and nothing else.
        unsafe { libc::_exit(served.is_err().into()) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, which ends.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    std::process::exit((status != 0).into());
}

fn obey_all<A: Agent>(make: fn() -> A) {
    permit_reading();
    println!("\n= {}", std::process::id());
    let mut agent = make();
    for line in std::io::stdin().lines() {
        let mut answer = Vec::new();
        // Several of them are done without a pause between them; the last one is answered.
        for command in line.unwrap().split(';') {
            let mut words = command.split_whitespace();
            let name = words.next().unwrap();
            let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
            safe_point();
            answer = agent.obey(name, &numbers);
        }
        let answer: Vec<_> = answer.iter().map(u64::to_string).collect();
        println!("\n= {}", answer.join(" "));
    }
}

/// Lets processes that are no ancestors read this one's memory, where the system asks for that.
fn permit_reading() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// An agent. It is killed when this is dropped.
pub struct Other {
    /// The number of the agent's process.
    pub process: libc::pid_t,
    parent: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Other {
    /// Starts one, by the test `an_agent_answers`.
    pub fn start(environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(environment.iter().copied());
        Self::of(command)
    }

    /// Starts an agent by `command`, the command of a test program. Arguments are added that run the test
    /// `an_agent_answers`.
    pub fn of(mut command: Command) -> Self {
        permit_reading();
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
    pub fn say(&mut self, command: &str, numbers: &[u64]) {
        let numbers: String = numbers.iter().map(|number| format!(" {number}")).collect();
        writeln!(self.input, "{command}{numbers}").unwrap();
    }

    /// The next answer.
    #[track_caller]
    pub fn hear(&self) -> Vec<u64> {
        let answer = self.lines.recv_timeout(5 * TEST_TIMEOUT).expect("the other process answers");
        answer.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    /// Gives a command. Returns its answer.
    #[track_caller]
    pub fn ask(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        self.say(command, numbers);
        self.hear()
    }

    /// Ends it, wherever it is.
    pub fn kill(&mut self) {
        if self.process != 0 {
            // SAFETY: its parent has not waited for it, or does so at this moment and ends itself.
            unsafe { libc::kill(self.process, libc::SIGKILL) };
        }
        self.process = 0;
        let _ = self.parent.wait();
    }

    /// Memory of the other's: `made` is the answer to the command that has made it.
    pub fn memory(made: &[u64], length: usize) -> Remote {
        Remote { index: made[0], address: made[1], key: made[2] as u32, length }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Memory of the other process.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The number by which the other process names the memory.
    pub index: u64,
    /// The address of the first byte.
    pub address: u64,
    /// The key of the memory.
    pub key: u32,
    /// The length of the memory, in bytes.
    pub length: usize,
}

impl Remote {
    /// A place there, for requests.
    pub fn at(&self, offset: usize) -> (u64, u32) {
        (self.address + offset as u64, self.key)
    }

    /// A word in its middle, which can be shared if anything of it can.
    pub fn middle(&self) -> (u64, u32) {
        ((self.address + self.length as u64 / 2).next_multiple_of(8), self.key)
    }
}

/// A number that stands for all of these bytes.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

/// Some of the bytes of a memory.
pub fn bytes(memory: &Memory, from: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: a part of the memory, which lives on when its registration has ended.
    unsafe { copy_from(&mut bytes, memory.address(from) as usize) }.unwrap();
    bytes
}

/// A word of a memory, as its program sees it.
pub fn word(memory: &Memory, at: usize) -> &AtomicU64 {
    // SAFETY: one of the atomic words that the memory is made of.
    unsafe { &*(memory.address(at) as *const AtomicU64) }
}

/// Fills the first bytes of a memory with some that depend on `seed`, and returns them.
pub fn scribble(memory: &Memory, seed: u64, length: usize) -> Vec<u8> {
    for at in (0..length).step_by(8) {
        let value = (seed << 32 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word(memory, at).store(value, Ordering::SeqCst);
    }
    bytes(memory, 0, length)
}

/// One test at a time: they look at counters of this process.
pub fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// Posts one request, and waits for its end.
pub fn run(side: &Side, request: &SendRequest<'_>) -> Status {
    side.queue_pair.post_send(request).unwrap();
    side.sent().status
}
