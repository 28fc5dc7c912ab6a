//! Memory that the target's program shares by itself: mapped as it is, whatever the program's threads do.

use super::areas::common_name;
use super::death::until;
use super::other::{OPEN, Other, Pair, Remote, Tier, Way};
use super::support::Stopped;
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};

const PAGE: usize = 4096;

fn common(other: &mut Other, length: usize, access: Access) -> Remote {
    let answer = other.ask("area-common", &[0, length as u64, access.bits().into()]);
    Remote { index: answer[0], address: answer[1], key: answer[2] as u32, length }
}

/// How often a process has such memory of another one mapped.
fn maps(process: libc::pid_t, of: libc::pid_t) -> usize {
    let name = common_name(of);
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    text.lines().filter(|line| line.contains(&name)).count()
}

fn write<'a>(sges: &'a [adverb_core::request::Sge], remote: (u64, u32)) -> SendRequest<'a> {
    SendRequest { opcode: Opcode::Write, ..signalled(sges, remote) }
}

#[test]
fn memory_that_the_program_shares_is_mapped_as_it_is() {
    let _turn = turn();
    // No pages are moved: neither what comes from other threads nor the safe point matters.
    let mut other = Other::of(Tier::Kernel);
    let remote = common(&mut other, 4 * PAGE, OPEN);
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    pair.memory.set(&[7; 8]);
    until("it is mapped", || pair.observe(&write(&sges, remote.at(8))) == (Status::Success, Way::Map));
    assert_eq!(other.ask("area-byte", &[remote.index, 15]), [7]);
    // To the very last byte, and no further.
    for opcode in [Opcode::Write, Opcode::Read, Opcode::FetchAdd, Opcode::CompareSwap] {
        let request = SendRequest { opcode, ..signalled(&sges, remote.at(4 * PAGE - 8)) };
        assert_eq!(pair.observe(&request), (Status::Success, Way::Map), "{opcode:?}");
    }
    let stopped = Stopped::new(other.process);
    assert_eq!(pair.observe(&write(&sges, remote.at(0))), (Status::Success, Way::Map));
    drop(stopped);
    let beyond = pair.observe(&write(&sges, remote.at(4 * PAGE - 7)));
    assert_eq!(beyond, (Status::RemoteAccess, Way::Packet));
}

#[test]
fn device_memory_is_mapped() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let key = other.ask("device", &[0, 2 * PAGE as u64, OPEN.bits().into()])[0] as u32;
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    pair.memory.set(&[7; 8]);
    until("it is mapped", || pair.observe(&write(&sges, (8, key))) == (Status::Success, Way::Map));
    pair.memory.set(&[0; 8]);
    let read = SendRequest { opcode: Opcode::Read, ..signalled(&sges, (8, key)) };
    assert_eq!(pair.observe(&read), (Status::Success, Way::Map));
    assert_eq!(pair.memory.bytes()[..8], [7; 8]);
}

#[test]
fn rights_are_those_of_the_region() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let remote = common(&mut other, 4 * PAGE, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    let read = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.at(8)) };
    until("it is mapped", || pair.observe(&read) == (Status::Success, Way::Map));
    assert_eq!(pair.observe(&write(&sges, remote.at(8))), (Status::RemoteAccess, Way::Packet));
    assert_eq!(other.ask("area-byte", &[remote.index, 8]), [0]);
}

/// Memory that the program gives back is not kept by its peers.
#[test]
fn pages_are_let_go_when_their_region_ends() {
    let _turn = turn();
    let here = std::process::id() as libc::pid_t;
    let mut other = Other::of(Tier::Kernel);
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    for _ in 0..3 {
        let remote = common(&mut other, 4 * PAGE, OPEN);
        until("it is mapped", || pair.observe(&write(&sges, remote.at(8))) == (Status::Success, Way::Map));
        assert_eq!(maps(here, other.process), 1);
        other.ask("area-deregister", &[remote.index]);
        until("it is mapped no more", || maps(here, other.process) == 0);
    }
}

/// A peer that comes later, and one that has had another region before, find it mapped, too.
#[test]
fn every_peer_is_told_of_every_region() {
    let _turn = turn();
    let mut target = Other::of(Tier::Kernel);
    let first = common(&mut target, 4 * PAGE, OPEN);
    let pair = Pair::open(&mut target);
    let sges = [pair.memory.sge(0, 8)];
    until("it is mapped", || pair.observe(&write(&sges, first.at(8))) == (Status::Success, Way::Map));
    let mut third = Other::of(Tier::Kernel);
    let memory = third.open_region(64);
    let [there, here] = [&mut target, &mut third].map(|side| {
        let answer = side.ask("pair", &[0, Access::REMOTE.bits().into()]);
        (answer[0], answer[1])
    });
    target.ask("join", &[there.0, here.1]);
    third.ask("join", &[here.0, there.1]);
    let write_from_third = |third: &mut Other, to: &Remote| {
        let numbers = [here.0, memory.index, Opcode::Write as u64, 8, to.at(16).0, to.key.into()];
        assert_eq!(third.ask("operate", &numbers)[0], Status::Success as u64);
    };
    let (process, of) = (third.process, target.process);
    until("the one that was there before is mapped", || {
        write_from_third(&mut third, &first);
        maps(process, of) == 1
    });
    let second = common(&mut target, 4 * PAGE, OPEN);
    until("it is mapped", || pair.observe(&write(&sges, second.at(8))) == (Status::Success, Way::Map));
    until("the new one is mapped", || {
        write_from_third(&mut third, &second);
        maps(process, of) == 2
    });
}

/// What the program cuts off is an error, as where the kernel copies; the initiator lives on.
#[test]
fn a_file_that_is_cut_off_is_an_error() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let remote = common(&mut other, 4 * PAGE, OPEN);
    let pair = Pair::open(&mut other);
    let sges = [pair.memory.sge(0, 8)];
    until("it is mapped", || pair.observe(&write(&sges, remote.at(8))) == (Status::Success, Way::Map));
    assert_eq!(other.ask("area-truncate", &[remote.index, 2 * PAGE as u64]), [0]);
    assert_eq!(pair.observe(&write(&sges, remote.at(8))), (Status::Success, Way::Map));
    let cut = pair.observe(&write(&sges, remote.at(2 * PAGE)));
    assert_eq!(cut, (Status::RemoteAccess, Way::Packet));
}
