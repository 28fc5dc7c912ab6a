//! Memory of the target's engine: mapped as it is, whatever the target's program and its threads do.

use super::death::until;
use super::other::{OPEN, Other, Pair, Remote, Tier, Way};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Sge, Status};

const LENGTH: usize = 4096 + 100;

/// Device memory, of which `from` bytes are not registered, and pages of the Rust API.
fn both(other: &mut Other, from: u64, access: Access) -> [Remote; 2] {
    [("device", from), ("pages", 0)].map(|(what, from)| {
        let answer = other.ask(what, &[0, from, LENGTH as u64, access.bits().into()]);
        Remote { index: answer[0], address: answer[1], key: answer[2] as u32, length: LENGTH }
    })
}

fn request<'a>(opcode: Opcode, sges: &'a [Sge], remote: (u64, u32)) -> SendRequest<'a> {
    SendRequest { opcode, compare_add: 1, ..signalled(sges, remote) }
}

/// No pages are moved in the target.
#[test]
fn memory_of_the_engine_is_mapped_to_the_last_byte() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    for from in [0, 40] {
        for remote in both(&mut other, from, OPEN) {
            let pair = Pair::open(&mut other);
            let sges = [pair.memory.sge(0, 8)];
            pair.memory.set(&[7; 8]);
            let reached = |opcode, at| pair.observe(&request(opcode, &sges, remote.at(at)));
            until("it is mapped", || reached(Opcode::Write, 8) == (Status::Success, Way::Map));
            let ends = [
                (Opcode::Write, LENGTH - 8),
                (Opcode::Write, 1),
                (Opcode::Read, LENGTH - 8),
                (Opcode::FetchAdd, 4096),
                (Opcode::CompareSwap, 0),
            ];
            for (opcode, at) in ends {
                assert_eq!(reached(opcode, at), (Status::Success, Way::Map), "{opcode:?} at {at}");
            }
            pair.memory.set(&[0; 8]);
            assert_eq!(reached(Opcode::Read, 8), (Status::Success, Way::Map));
            assert_eq!(super::agent::bytes(&pair.memory, 0, 8), [7; 8]);
            assert_eq!(reached(Opcode::Write, LENGTH - 7), (Status::RemoteAccess, Way::Packet));
        }
    }
}

#[test]
fn the_kernel_copies_where_memory_of_the_engine_is_not_to_be_mapped() {
    let _turn = turn();
    let mut other = Other::start(&[("ADVERB_WITHOUT", "moved-pages,mapped-memory")]);
    other.ask("domain", &[]);
    for remote in both(&mut other, 0, OPEN) {
        let pair = Pair::open(&mut other);
        let sges = [pair.memory.sge(0, 8)];
        let write = request(Opcode::Write, &sges, remote.at(8));
        until("the kernel copies", || pair.observe(&write) == (Status::Success, Way::Kernel));
        let add = request(Opcode::FetchAdd, &sges, remote.at(8));
        assert_eq!(pair.observe(&add), (Status::Success, Way::Packet));
    }
}

#[test]
fn rights_to_memory_of_the_engine_are_those_of_the_region() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    for remote in both(&mut other, 0, Access::LOCAL_WRITE | Access::REMOTE_READ) {
        let pair = Pair::open(&mut other);
        let sges = [pair.memory.sge(0, 8)];
        let read = request(Opcode::Read, &sges, remote.at(8));
        until("it is mapped", || pair.observe(&read) == (Status::Success, Way::Map));
        let write = request(Opcode::Write, &sges, remote.at(8));
        assert_eq!(pair.observe(&write), (Status::RemoteAccess, Way::Packet));
        let pair = Pair::open(&mut other);
        let sges = [pair.memory.sge(0, 8)];
        pair.memory.set(&[1; 8]);
        assert_eq!(pair.observe(&request(Opcode::Read, &sges, remote.at(8))).0, Status::Success);
        assert_eq!(super::agent::bytes(&pair.memory, 0, 8), [0; 8]);
    }
}

/// Freed and allocated again and again: each time a peer that had the one before reaches the new one, and no
/// other.
#[test]
fn a_peer_finds_new_memory_in_the_place_of_what_has_ended() {
    let _turn = turn();
    let mut other = Other::of(Tier::Kernel);
    let pair = Pair::open(&mut other);
    let mut before = None;
    for round in 1..=50u8 {
        let remotes = both(&mut other, 0, OPEN);
        for remote in remotes {
            let sges = [pair.memory.sge(0, 8)];
            pair.memory.set(&[round; 8]);
            let write = request(Opcode::Write, &sges, remote.at(16));
            until("it is mapped", || pair.observe(&write) == (Status::Success, Way::Map));
            pair.memory.set(&[0; 8]);
            let read = request(Opcode::Read, &sges, remote.at(8));
            assert_eq!(pair.observe(&read).0, Status::Success);
            assert_eq!(super::agent::bytes(&pair.memory, 0, 8), [0; 8], "fresh memory");
            assert_eq!(other.ask("own-byte", &[remote.index, 16]), [round.into()]);
        }
        for Remote { index, .. } in before.replace(remotes).into_iter().flatten() {
            other.ask("own-end", &[index]);
        }
    }
}
