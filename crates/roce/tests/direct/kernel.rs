//! The kernel's copy: memory that a target cannot let others map.

use super::agent::{direct, run};
use super::death::until;
use super::other::{LOCAL, OPEN, Other, Pair, Remote, Tier, Way};
use super::support::StoppedProcess;
use super::turn;
use adverb_core::conformance::fixture::{Memory, signalled};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const PAGE: usize = 4096;
pub(crate) const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Pages of the other process.
pub(crate) fn area(other: &mut Other, length: usize, protection: i32, access: Access) -> Remote {
    let answer = other.ask("area", &[0, length as u64, protection as u64, access.bits().into()]);
    Remote { index: answer[0], address: answer[1], key: answer[2] as u32, length }
}

fn request<'a>(sges: &'a [adverb_core::request::Sge], opcode: Opcode, remote: (u64, u32)) -> SendRequest<'a> {
    SendRequest { opcode, ..signalled(sges, remote) }
}

/// A program that does nothing at all, in none of its threads, is no obstacle.
#[test]
fn a_target_that_is_stopped_is_written_and_read() {
    let _turn = turn();
    for tier in [Tier::Mapped, Tier::Kernel, Tier::Number] {
        let mut other = Other::of(tier);
        let remote = other.open_region(24);
        let pair = Pair::open(&mut other);
        let sges = [pair.memory.sge(0, 8)];
        let write = request(&sges, Opcode::Write, remote.at(8));
        until("it goes as a packet", || pair.observe(&write) == (Status::Success, Way::Kernel));
        let stopped = StoppedProcess::new(other.process);
        pair.memory.set(&[7; 8]);
        assert_eq!(pair.observe(&write), (Status::Success, Way::Kernel));
        pair.memory.set(&[0; 8]);
        let read = request(&sges, Opcode::Read, remote.at(8));
        assert_eq!(pair.observe(&read), (Status::Success, Way::Kernel));
        drop(stopped);
        assert_eq!(other.ask("word", &[remote.index, 8]), [0x0707_0707_0707_0707]);
        assert_eq!(other.ask("word", &[remote.index, 0]), [0]);
    }
}

/// A program that spins on memory waits a moment for each packet: there are few of them.
#[test]
fn few_requests_go_as_packets_before_the_kernel_copies() {
    const MOST: usize = 32;
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let remote = other.open_region(64);
    // By a first queue pair the two processes tell each other of their memory. Threads of theirs that get no
    // processor may take any time for that, and the program's requests go on meanwhile.
    let first = Pair::open(&mut other);
    first.reach(&mut other, Opcode::Write, remote.at(8));
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    let write = request(&sges, Opcode::Write, remote.at(8));
    let packets = (0..=MOST).take_while(|_| pair.observe(&write).1 == Way::Packet).count();
    assert!(packets <= MOST, "at least {packets} packets");
}

/// What the target says of a bad address, it says whatever the way.
#[test]
fn pages_that_are_not_there_are_an_error_as_by_a_packet() {
    let _turn = turn();
    let mut all = Vec::new();
    for tier in LOCAL.into_iter().chain([Tier::Network]) {
        let mut found = Vec::new();
        for (opcode, length, from) in [
            (Opcode::Write, 8, PAGE),
            (Opcode::Read, 8, PAGE),
            (Opcode::Write, 8, PAGE - 4),
            (Opcode::Read, PAGE, 100),
            (Opcode::Write, 3 * PAGE, 0),
            (Opcode::Read, 3 * PAGE, 0),
        ] {
            let mut other = Other::of(tier);
            // What of it can be moved is moved no more: it goes before anybody asks for it.
            let remote = area(&mut other, 4 * PAGE, BOTH, OPEN);
            assert_eq!(other.ask("area-unmap", &[remote.index, PAGE as u64, PAGE as u64]), [0]);
            let pair = Pair::open(&mut other);
            let sges = [pair.memory.sge(0, 8)];
            let good = request(&sges, Opcode::Write, remote.at(8));
            let wanted = if tier == Tier::Network { Way::Packet } else { tier.way_at_edges() };
            until("it goes another way", || {
                other.ask("rest", &[]);
                pair.observe(&good) == (Status::Success, wanted)
            });
            let sges = [pair.memory.sge(0, length)];
            let (status, way) = pair.observe(&request(&sges, opcode, remote.at(from)));
            assert_eq!(way, Way::Packet, "{tier:?}: {opcode:?} of {length} bytes at {from}");
            assert_ne!(status, Status::Success);
            found.push(status);
        }
        all.push((tier, found));
    }
    let expected = all.last().unwrap().1.clone();
    assert!(all.iter().all(|(_, found)| *found == expected), "{all:?}");
}

/// The memory file of a process knows no protection: it is not used for what may only be read.
#[test]
fn pages_that_may_only_be_read_are_not_written() {
    let _turn = turn();
    for tier in LOCAL {
        for length in [1, 8, 100, 3000] {
            let mut other = Other::of(tier);
            let remote = area(&mut other, 4 * PAGE, BOTH, OPEN);
            assert_eq!(
                other.ask("area-protect", &[remote.index, PAGE as u64, PAGE as u64, libc::PROT_READ as u64]),
                [0]
            );
            let pair = Pair::open(&mut other);
            pair.memory.set(&[9; PAGE]);
            let sges = [pair.memory.sge(0, 8)];
            let good = request(&sges, Opcode::Write, remote.at(8));
            until("it goes another way", || {
                other.ask("rest", &[]);
                pair.observe(&good) == (Status::Success, tier.way_at_edges())
            });
            let sges = [pair.memory.sge(0, length)];
            let bad = request(&sges, Opcode::Write, remote.at(PAGE + 16));
            assert_eq!(pair.observe(&bad), (Status::RemoteAccess, Way::Packet), "{tier:?}: {length} bytes");
            for at in [PAGE, PAGE + 16, PAGE + 16 + length - 1] {
                assert_eq!(other.ask("area-byte", &[remote.index, at as u64]), [0], "{tier:?}: byte {at}");
            }
        }
    }
}

/// A program that takes the process over is out of reach, and its memory stays what it is.
#[test]
fn a_target_that_becomes_another_program_fails_what_is_under_way() {
    let _turn = turn();
    for tier in [Tier::Kernel, Tier::Number] {
        for length in [8, 64 << 10] {
            let mut other = Other::of(tier);
            let remote = other.open_region(256 << 10);
            let pair = Pair::open(&mut other);
            pair.reach(&mut other, Opcode::Write, remote.middle());
            let begin = direct(&pair.side);
            let sges = [pair.memory.sge(0, length)];
            let write = request(&sges, Opcode::Write, remote.middle());
            let status = std::thread::scope(|scope| {
                let stream = scope.spawn(|| {
                    loop {
                        let status = run(&pair.side, &write);
                        if status != Status::Success {
                            return status;
                        }
                    }
                });
                until("nothing is written", || direct(&pair.side) > begin + 20);
                assert_eq!(other.ask("exec", &[]), [0]);
                stream.join().unwrap()
            });
            assert_eq!(status, Status::RetryExceeded);
            // It sleeps, as it was told to.
            let name = std::fs::read_to_string(format!("/proc/{}/comm", other.process)).unwrap();
            assert_eq!(name, "sleep\n");
            let state = || std::fs::read_to_string(format!("/proc/{}/stat", other.process)).unwrap();
            until("it does not run", || state().contains(") S "));
        }
    }
}

/// Memory of the other process that the kernel copies to and from, but for its first page: whoever touches
/// the others waits until they are said to be there.
fn guarded(other: &mut Other, pair: &Pair, length: usize) -> Remote {
    let remote = area(other, length, BOTH, OPEN);
    pair.reach(other, Opcode::Write, remote.at(0));
    let is_guarded = other.ask("area-guard", &[remote.index, PAGE as u64]) == [1];
    assert!(is_guarded, "needed: the rights of root, or vm.unprivileged_userfaultfd=1 (userfaultfd(2))");
    remote
}

/// Whether a thread of this process is in the middle of a copy.
pub(crate) fn copies() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads.filter_map(Result::ok).any(|thread| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
        let all = [
            libc::SYS_process_vm_writev,
            libc::SYS_process_vm_readv,
            libc::SYS_pwritev,
            libc::SYS_pwrite64,
            libc::SYS_pread64,
        ];
        number.is_some_and(|number: i64| all.contains(&number))
    })
}

/// While the kernel waits for a page of the target, other threads post to the same queue pair and poll, and
/// wait for nothing.
#[test]
fn nobody_waits_for_a_thread_that_waits_for_a_page() {
    let _turn = turn();
    // The memory file waits for no page: it gives up, and a packet goes.
    for (tier, opcode, length) in [
        (Tier::Number, Opcode::Write, 8),
        (Tier::Number, Opcode::Read, 100),
        (Tier::Kernel, Opcode::Write, PAGE),
        (Tier::Kernel, Opcode::Read, PAGE),
    ] {
        let mut other = Other::of(tier);
        let pair = Pair::open(&mut other);
        let remote = guarded(&mut other, &pair, 4 * PAGE);
        let sges = [pair.memory.sge(0, length)];
        let before = direct(&pair.side);
        let slow = SendRequest { wr_id: 1, ..request(&sges, opcode, remote.at(PAGE)) };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pair.side.queue_pair.post_send(&slow).unwrap();
                is_over.store(true, Ordering::SeqCst);
            });
            until("nobody copies", copies);
            assert!(!is_over.load(Ordering::SeqCst));
            let own = [pair.memory.sge(PAGE, 8)];
            for wr_id in 2..10 {
                let quick = SendRequest { wr_id, ..request(&own, Opcode::Write, remote.at(0)) };
                pair.side.queue_pair.post_send(&quick).unwrap();
                assert_eq!(
                    pair.side.sends.poll(1, |_| ()).unwrap(),
                    0,
                    "it waits for what was posted before"
                );
            }
            other.ask("area-open", &[remote.index]);
        });
        for wr_id in 1..10 {
            pair.side.sent_well(wr_id);
        }
        assert_eq!(direct(&pair.side), before + 9);
    }
}

/// While the background thread copies a long message from the sender's memory and waits for a page, another
/// thread posts and polls, and waits for nothing.
#[test]
fn nobody_waits_for_who_takes_in_a_message_whose_page_is_missing() {
    const LENGTH: usize = 64 << 10;
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let pair = Pair::open(&mut other);
    let remote = guarded(&mut other, &pair, LENGTH + PAGE);
    let target = Memory::open(&pair.side.domain, LENGTH);
    pair.side.post_receive(1, &[target.all()]);
    other.ask("area-send", &[pair.index, remote.index, PAGE as u64, LENGTH as u64]);
    // Our background thread takes it in.
    until("nobody copies", copies);
    let sges = [pair.memory.sge(0, 8)];
    for wr_id in 2..6 {
        let quick = SendRequest { wr_id, ..request(&sges, Opcode::Write, remote.at(0)) };
        pair.side.queue_pair.post_send(&quick).unwrap();
        let polled = [&pair.side.sends, &pair.side.receives].map(|queue| queue.poll(1, |_| ()).unwrap());
        assert_eq!(polled, [0, 0]);
    }
    other.ask("area-open", &[remote.index]);
    pair.side.received_well(1);
    for wr_id in 2..6 {
        pair.side.sent_well(wr_id);
    }
}
