//! Processes that fork while memory is shared.

use super::agent::{bytes, bytes_of, direct, hash, word};
use super::death::{connect, reach, until, writer};
use super::other::{DIRECT, Other, Pair};
use super::turn;
use adverb_core::conformance::fixture::Memory;
use adverb_core::request::{Opcode, Status};
use std::io::{PipeReader, PipeWriter, Read};
use std::sync::atomic::Ordering::SeqCst;

/// A child of fork, which looks at memory that its parent has shared.
pub(crate) struct Twin {
    process: libc::pid_t,
    /// Ended to have it look.
    go: PipeWriter,
}

/// What comes of this in a child of fork.
pub(crate) fn in_child(work: impl FnOnce() -> i32) -> u64 {
    wait(fork(work))
}

/// A child of this process, which has one thread but for the engine's.
fn fork(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: no other thread uses anything that the child does; the child leaves by _exit.
    let process = unsafe { libc::fork() };
    assert!(process >= 0);
    if process == 0 {
        let verdict = work();
        // SAFETY: ends the child, and nothing else.
        unsafe { libc::_exit(verdict) };
    }
    process
}

fn wait(process: libc::pid_t) -> u64 {
    let mut status = 0;
    // SAFETY: a child of ours, which ends.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status) as u64
}

impl Twin {
    pub(crate) fn new(memory: &Memory) -> Self {
        let (stay, go) = std::io::pipe().unwrap();
        let before = hash(&bytes(memory, 0, bytes_of(memory)));
        let mut go = Some(go);
        let process = fork(|| {
            go = None;
            look(memory, before, stay)
        });
        Self { process, go: go.unwrap() }
    }

    /// The hash of the bytes that the child has seen.
    pub(crate) fn ask(self) -> u64 {
        drop(self.go);
        wait(self.process)
    }
}

/// What the child writes its own number to.
pub(crate) const OWN: usize = 5 << 12;

/// Writes a word, waits, and looks whether all the rest is as it was at the fork.
fn look(memory: &Memory, before: u64, mut stay: PipeReader) -> i32 {
    let own = word(memory, OWN);
    let old = own.swap(100, SeqCst);
    let _ = stay.read(&mut [0]);
    let kept = own.swap(old, SeqCst) == 100;
    i32::from(!kept) + if hash(&bytes(memory, 0, bytes_of(memory))) == before { 0 } else { 2 }
}

/// A child has the memory as it was at the fork, and for itself; the peer goes on to write to the parent's.
#[test]
fn a_child_of_the_target_has_memory_of_its_own() {
    let _turn = turn();
    for tier in DIRECT {
        let mut other = Other::of(tier);
        let remote = other.open_region(16 << 12);
        let pair = Pair::open(&mut other);
        other.ask("fill", &[remote.index, 3]);
        pair.reach(&mut other, Opcode::Read, remote.middle());
        let own = other.ask("word", &[remote.index, OWN as u64]);
        let at = 8192;
        let write = |value| {
            let before = direct(&pair.side);
            word(&pair.memory, 0).store(value, SeqCst);
            assert_eq!(pair.run(Opcode::Write, 8, remote.at(at)), Status::Success);
            assert_eq!(direct(&pair.side), before + 1);
        };
        write(1);
        for round in 0..3 {
            other.ask("fork", &[remote.index]);
            write(100 + round);
            assert_eq!(other.ask("word", &[remote.index, at as u64]), [100 + round]);
            other.ask("put", &[remote.index, at as u64 + 8, round]);
            assert_eq!(pair.run(Opcode::Read, 16, remote.at(at)), Status::Success);
            assert_eq!(word(&pair.memory, 8).load(SeqCst), round);
            assert_eq!(other.ask("join-child", &[]), [0]);
            assert_eq!(other.ask("word", &[remote.index, OWN as u64]), own);
        }
        // And what has been deregistered meanwhile is each's own, too.
        other.ask("fork", &[remote.index]);
        other.ask("deregister", &[remote.index]);
        other.ask("fork", &[remote.index]);
        other.ask("put", &[remote.index, at as u64, 5]);
        assert_eq!(other.ask("join-child", &[]), [0]);
        assert_eq!(other.ask("join-child", &[]), [0]);
        assert_eq!(other.ask("word", &[remote.index, OWN as u64]), own);
    }
}

/// Forks while another process writes to other memory of the target's all the time.
#[test]
fn forks_amid_a_stream() {
    let _turn = turn();
    for tier in DIRECT {
        let mut target = Other::of(tier);
        let (remote, pair) = (target.open_region(16 << 12), Pair::open(&mut target));
        target.ask("fill", &[remote.index, 3]);
        pair.reach(&mut target, Opcode::Read, remote.middle());
        let (writer, _, streamed) = writer(&mut target);
        for _ in 0..5 {
            target.ask("fork", &[remote.index]);
            assert_eq!(target.ask("join-child", &[]), [0]);
        }
        // It goes to the parent still.
        let last = streamed.length as u64 - 8192 - 24;
        target.ask("put", &[streamed.index, last, 0]);
        until("nothing is written", || target.ask("word", &[streamed.index, last]) != [0]);
        drop(writer);
    }
}

#[test]
fn a_child_of_the_initiator_can_do_nothing() {
    let _turn = turn();
    let (mut target, mut other) = (Other::of(DIRECT[0]), Other::of(DIRECT[0]));
    let (remote, own) = (target.open_region(16 << 12), other.open_region(4096));
    let [_, pair] = connect(&mut target, &mut other);
    reach(&mut target, &mut other, pair, &own, Opcode::Write, remote.middle());
    let (address, key) = remote.at(8192);
    other.ask("fill", &[own.index, 9]);
    let numbers = [pair, own.index, Opcode::Write as u64, 8, address, key.into()];
    assert_eq!(other.ask("fork-and-operate", &numbers), [libc::ENODEV as u64]);
    assert_eq!(target.ask("word", &[remote.index, 8192]), [0]);
    // The parent's is as it was.
    let before = other.ask("direct", &[])[0];
    assert_eq!(other.ask("operate", &numbers), [Status::Success as u64, before + 1]);
    assert_ne!(target.ask("word", &[remote.index, 8192]), [0]);
}
