//! What is not permitted is refused as it is by TCP, to both sides.

use super::agent::all;
use super::other::{DIRECT, OPEN, Other, Pair, Remote, Tier};
use super::turn;
use adverb_core::cm::EventKind;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};

const LENGTH: usize = 5 << 12;

/// How two requests end of which the first is refused, and the end of both queue pairs.
type End = (Vec<Status>, Vec<u64>);

/// Has the way into a region known, changes something, and then asks for what is not permitted any more.
fn end(tier: Tier, access: Access, about: impl Fn(&mut Pair, Remote) -> (Opcode, (u64, u32))) -> End {
    let mut pair = Pair::of(tier);
    let remote = pair.region(LENGTH, access);
    let known = match () {
        () if access.contains(Access::REMOTE_WRITE) => Opcode::Write,
        () => Opcode::Read,
    };
    pair.reach(known, remote.middle());
    let (opcode, at) = about(&mut pair, remote);
    let before = pair.direct();
    let sges = [pair.memory.sge(0, 8)];
    let request = SendRequest { opcode, compare_add: 1, ..signalled(&sges, at) };
    // By TCP a Write is complete when it has left: so it is a Read behind it that tells.
    let read = SendRequest { opcode: Opcode::Read, ..signalled(&sges, at) };
    pair.side.queue_pair.post_send(&request).unwrap();
    let second = pair.side.queue_pair.post_send(&read);
    let mut statuses = vec![pair.side.sent().status];
    if second.is_ok() {
        statuses.push(pair.side.sent().status);
    }
    pair.side.expect(EventKind::Disconnected);
    assert_eq!(pair.direct(), before, "{tier:?}: nothing of it is carried out");
    (statuses, pair.other.ask("ended", &[pair.index]))
}

#[track_caller]
fn as_by_tcp(access: Access, about: impl Fn(&mut Pair, Remote) -> (Opcode, (u64, u32))) {
    let _turn = turn();
    let (statuses, other) = end(Tier::Off, access, &about);
    assert_ne!(*statuses.last().unwrap(), Status::Success);
    for tier in DIRECT {
        let (found, found_other) = end(tier, access, &about);
        // The peer's words may come behind the end of the connection: then the request is flushed without
        // them.
        let refused = |statuses: &[Status]| matches!(statuses[0], Status::RemoteAccess | Status::Flushed);
        assert!(refused(&found) && refused(&statuses), "{tier:?}: {found:?}, {statuses:?}");
        assert_eq!((&found[1..], &found_other), (&statuses[1..], &other), "{tier:?}");
    }
}

#[test]
fn a_wrong_key() {
    as_by_tcp(OPEN, |_, remote| (Opcode::Read, (remote.middle().0, remote.key ^ 0x100)));
}

#[test]
fn bytes_behind_the_end() {
    as_by_tcp(OPEN, |_, remote| (Opcode::Read, remote.at(LENGTH - 7)));
}

#[test]
fn a_right_that_the_region_does_not_give() {
    as_by_tcp(Access::LOCAL_WRITE | Access::REMOTE_READ, |_, remote| (Opcode::FetchAdd, remote.middle()));
    as_by_tcp(Access::LOCAL_WRITE | Access::REMOTE_WRITE, |_, remote| (Opcode::Read, remote.middle()));
}

#[test]
fn a_region_that_is_no_more() {
    as_by_tcp(OPEN, |pair, remote| {
        pair.other.ask("close", &[remote.index]);
        (Opcode::Read, remote.middle())
    });
}

#[test]
fn a_right_that_the_queue_pair_does_not_give_any_more() {
    as_by_tcp(OPEN, |pair, remote| {
        pair.other.ask("permit", &[pair.index, Access::REMOTE_WRITE.bits().into()]);
        (Opcode::Read, remote.middle())
    });
}

/// Memory of another protection domain, which the process has published for another connection.
#[test]
fn another_domain() {
    let _turn = turn();
    let ends = [Tier::Off, Tier::Kernel].map(|tier| {
        let mut first = Pair::of(tier);
        let remote = first.region(LENGTH, OPEN);
        first.reach(Opcode::Write, remote.middle());
        // The same agent accepts once more.
        let other = std::mem::replace(&mut first.other, Other::start(&[]));
        let mut second = Pair::with(other, tier, all());
        let known = second.region(LENGTH, OPEN);
        second.reach(Opcode::Read, known.middle());
        let sges = [second.memory.sge(0, 8)];
        let request = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.middle()) };
        let (status, is_direct) = second.observe(&request);
        assert!(!is_direct);
        second.side.expect(EventKind::Disconnected);
        (status, second.other.ask("ended", &[second.index]))
    });
    assert_eq!(ends[0].0, Status::RemoteAccess);
    assert_eq!(ends[0], ends[1]);
}
