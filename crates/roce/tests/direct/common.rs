//! Memory that the target's program shares by itself: peers map it as it is, as long as it is there.

use super::agent::by_kernel;
use super::death::until;
use super::other::{OPEN, Other, Pair, Tier, Way};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::{Access, common};
use adverb_core::request::{Opcode, SendRequest, Status};

const LENGTH: u64 = 64 << 12;
/// A memory descriptor, a file in a tmpfs, a System V segment.
const KINDS: [u64; 3] = [0, 1, 2];
const MIDDLE: u64 = LENGTH / 2;

/// An area of the other's.
struct Area {
    index: u64,
    address: u64,
    key: u32,
}

impl Area {
    fn new(other: &mut Other, kind: u64, access: Access) -> Self {
        let answer = other.ask("shared", &[0, kind, LENGTH, access.bits().into()]);
        Self { index: answer[0], address: answer[1], key: answer[2] as u32 }
    }

    fn at(&self, at: u64) -> (u64, u32) {
        (self.address + at, self.key)
    }
}

/// How a request about the first bytes of the memory here goes.
fn observe(pair: &Pair, opcode: Opcode, length: usize, remote: (u64, u32)) -> (Status, Way) {
    let sges = [pair.memory.sge(0, length)];
    pair.observe(&SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) })
}

/// Whether peers map such memory. Where the kernel is older than 6.11, it copies.
fn is_mapped() -> bool {
    let is_mapped = common::may_be_had().is_ok();
    if !is_mapped {
        let mut other = Other::of(Tier::Mapped);
        let area = Area::new(&mut other, 0, OPEN);
        let pair = Pair::open(&mut other);
        until("the kernel copies", || observe(&pair, Opcode::Write, 8, area.at(MIDDLE)).1 == Way::Kernel);
        (0..100).for_each(|_| assert_eq!(observe(&pair, Opcode::Write, 8, area.at(8)).1, Way::Kernel));
    }
    is_mapped
}

/// Repeats a request until it goes by a map.
fn reach(other: &mut Other, pair: &Pair, opcode: Opcode, remote: (u64, u32)) {
    until("it is mapped", || {
        let (status, way) = observe(pair, opcode, 8, remote);
        assert_eq!(status, Status::Success);
        other.ask("rest", &[]);
        way == Way::Map
    });
}

#[test]
fn every_operation_goes_by_a_map_of_the_same_pages() {
    let _turn = turn();
    if !is_mapped() {
        return;
    }
    for (kind, first) in KINDS
        .into_iter()
        .flat_map(|kind| [Opcode::Write, Opcode::Read, Opcode::FetchAdd].map(|opcode| (kind, opcode)))
    {
        let mut other = Other::of(Tier::Mapped);
        let area = Area::new(&mut other, kind, OPEN);
        let pair = Pair::open(&mut other);
        reach(&mut other, &pair, first, area.at(MIDDLE));
        pair.memory.set(&[7; 4096]);
        for length in [1, 8, 4096, 100_000] {
            assert_eq!(observe(&pair, Opcode::Write, length, area.at(8)), (Status::Success, Way::Map));
        }
        assert_eq!(other.ask("area-byte", &[area.index, 8]), [7]);
        assert_eq!(observe(&pair, Opcode::Read, 4096, area.at(MIDDLE)), (Status::Success, Way::Map));
        pair.memory.set(&[0; 16]);
        assert_eq!(observe(&pair, Opcode::Write, 8, area.at(16)), (Status::Success, Way::Map));
        for opcode in [Opcode::FetchAdd, Opcode::FetchAdd, Opcode::CompareSwap] {
            assert_eq!(observe(&pair, opcode, 8, area.at(16)), (Status::Success, Way::Map), "{opcode:?}");
        }
        assert_eq!(other.ask("area-byte", &[area.index, 16]), [2], "a comparison that fails changes nothing");
        // Bounds and rights are those of the key.
        let outside = observe(&pair, Opcode::Write, 16, area.at(LENGTH - 8));
        assert_eq!(outside, (Status::RemoteAccess, Way::Packet));
    }
}

#[test]
fn rights_are_those_of_the_key() {
    let _turn = turn();
    if !is_mapped() {
        return;
    }
    let mut other = Other::of(Tier::Mapped);
    let area = Area::new(&mut other, 0, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let pair = Pair::open(&mut other);
    reach(&mut other, &pair, Opcode::Read, area.at(MIDDLE));
    assert_eq!(observe(&pair, Opcode::Write, 8, area.at(MIDDLE)), (Status::RemoteAccess, Way::Packet));
    assert_eq!(other.ask("area-byte", &[area.index, MIDDLE]), [0]);
}

/// What comes in the place of the file is what peers write to, and the file is left alone.
#[test]
fn another_file_in_its_place_is_what_peers_reach() {
    let _turn = turn();
    if !is_mapped() {
        return;
    }
    for opcode in [Opcode::Write, Opcode::Read] {
        let mut other = Other::of(Tier::Mapped);
        let area = Area::new(&mut other, 0, OPEN);
        let pair = Pair::open(&mut other);
        pair.memory.set(&[1; 8]);
        reach(&mut other, &pair, Opcode::Write, area.at(MIDDLE));
        other.ask("area-replace", &[area.index]);
        pair.memory.set(&[2; 8]);
        assert_eq!(observe(&pair, opcode, 8, area.at(MIDDLE)), (Status::Success, Way::Kernel));
        let wrote = u64::from(opcode == Opcode::Write);
        assert_eq!(other.ask("area-byte", &[area.index, MIDDLE]), [2 * wrote]);
        assert_eq!(other.ask("area-file-byte", &[area.index, MIDDLE]), [1], "the file has gone from there");
        // It stays so.
        let kernel = by_kernel(&pair.side);
        (0..20).for_each(|_| assert_eq!(observe(&pair, Opcode::Write, 8, area.at(8)).0, Status::Success));
        assert_eq!(by_kernel(&pair.side), kernel + 20);
        assert_eq!(other.ask("area-file-byte", &[area.index, 8]), [0]);
    }
}

/// Neither side ends, and the request says what is wrong.
#[test]
fn a_request_to_memory_that_is_gone_is_an_error() {
    let _turn = turn();
    if !is_mapped() {
        return;
    }
    for how in ["area-unmap", "area-cut"] {
        let mut other = Other::of(Tier::Mapped);
        let area = Area::new(&mut other, 0, OPEN);
        let pair = Pair::open(&mut other);
        reach(&mut other, &pair, Opcode::Write, area.at(MIDDLE));
        let numbers = if how == "area-cut" { vec![area.index, 0] } else { vec![area.index, 0, LENGTH] };
        assert_eq!(other.ask(how, &numbers), [0]);
        let (status, way) = observe(&pair, Opcode::Write, 8, area.at(MIDDLE));
        assert!(status != Status::Success && way == Way::Packet, "{how}: {status:?} {way:?}");
        assert_eq!(other.ask("rest", &[]), [], "{how}");
    }
}

/// A deregistration takes it from peers. What is registered again is mapped again, and the pages are not
/// kept.
#[test]
fn a_deregistration_takes_it_back() {
    const ROUNDS: usize = 30;
    let _turn = turn();
    if !is_mapped() {
        return;
    }
    let mut other = Other::of(Tier::Mapped);
    let mut area = Area::new(&mut other, 0, OPEN);
    let views = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("/memfd:area")).count()
    };
    for round in 0..ROUNDS {
        let pair = Pair::open(&mut other);
        reach(&mut other, &pair, Opcode::Write, area.at(MIDDLE));
        assert!(views() > 0, "round {round}");
        other.ask("area-end", &[area.index]);
        let (status, way) = observe(&pair, Opcode::Write, 8, area.at(MIDDLE));
        assert_eq!((status, way), (Status::RemoteAccess, Way::Packet));
        area.key = other.ask("area-again", &[area.index])[0] as u32;
    }
    until("nothing stays mapped", || views() == 0);
}
