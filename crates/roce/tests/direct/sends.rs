//! Long sends of memory that is mapped at their receiver: it copies them without the kernel.

use super::agent::{bytes, hash};
use super::other::{MAPPED, Other, Pair, Remote, Tier};
use super::turn;
use adverb_core::conformance::fixture::TEST_TIMEOUT;
use adverb_core::memory::Access;
use adverb_core::request::Status;
use std::time::Instant;

const LENGTH: usize = 300 << 10;
/// With a page at each edge, which cannot be shared.
const ROOM: usize = LENGTH + (2 << 12);

/// Payloads that this process has found in mapped memory.
fn mapped(pair: &Pair) -> u64 {
    pair.side.context.device().counters().rx_mapped.get()
}

/// The other process sends some of its memory, which arrives as it is there. Returns the status there.
fn send(other: &mut Other, pair: &Pair, remote: Remote, from: usize, length: usize) -> Status {
    pair.memory.set(&vec![0xEE; length]);
    pair.side.post_receive(1, &[pair.memory.sge(0, length)]);
    let status = other.ask("send", &[pair.index, remote.index, from as u64, length as u64])[0];
    if status == Status::Success as u64 {
        pair.side.received_well(1);
        let there = other.ask("hash", &[remote.index, from as u64, length as u64]);
        assert_eq!(there, [hash(&bytes(&pair.memory, 0, length))], "{length} bytes from {from} on");
        return Status::Success;
    }
    Status::LocalProtection
}

/// Sends until that needs no kernel.
fn until_mapped(other: &mut Other, pair: &Pair, remote: Remote) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let before = mapped(pair);
    while mapped(pair) == before {
        assert_eq!(send(other, pair, remote, 4096, LENGTH), Status::Success);
        assert!(Instant::now() < deadline, "the kernel copies all of it");
    }
}

fn scene(tier: Tier, access: Access) -> (Other, Remote, Pair) {
    let mut other = Other::of(tier);
    let remote = other.region(0, ROOM, access);
    let pair = Pair::open(&mut other);
    other.ask("fill", &[remote.index, 1]);
    (other, remote, pair)
}

/// Memory that the peer has no right to is sent in the same way, and by what is sent no right is given.
#[test]
fn memory_that_is_sent_often_is_mapped_and_arrives_unchanged() {
    let _turn = turn();
    for tier in MAPPED {
        for access in [Access::empty(), Access::LOCAL_WRITE | Access::REMOTE] {
            let (mut other, remote, pair) = scene(tier, access);
            until_mapped(&mut other, &pair, remote);
            for (seed, from, length) in [
                (2, 4096, LENGTH),
                (3, 4096, 4097),
                (4, 4097, 8191),
                // Edges are not mapped.
                (5, 0, ROOM),
                (6, 1, 5000),
                (7, ROOM - 5000, 5000),
            ] {
                other.ask("fill", &[remote.index, seed]);
                assert_eq!(send(&mut other, &pair, remote, from, length), Status::Success);
            }
            let is_permitted = access.contains(Access::REMOTE_READ);
            let read = pair.run(adverb_core::request::Opcode::Read, 8, remote.middle());
            assert_eq!(read, if is_permitted { Status::Success } else { Status::RemoteAccess });
        }
    }
}

/// Another registration of the same bytes is another key; what it opens is what it sends.
#[test]
fn memory_that_is_registered_anew_is_mapped_and_sent_anew() {
    let _turn = turn();
    for tier in MAPPED {
        let (mut other, remote, pair) = scene(tier, Access::LOCAL_WRITE);
        for seed in 2..5 {
            until_mapped(&mut other, &pair, remote);
            other.ask("deregister", &[remote.index]);
            other.ask("fill", &[remote.index, seed]);
            other.ask("again", &[remote.index]);
            assert_eq!(send(&mut other, &pair, remote, 4096, LENGTH), Status::Success);
        }
    }
}

/// What the sender takes away is not sent, though it is still mapped here.
#[test]
fn a_deregistered_region_is_not_sent() {
    let _turn = turn();
    for tier in MAPPED {
        let (mut other, remote, pair) = scene(tier, Access::LOCAL_WRITE);
        until_mapped(&mut other, &pair, remote);
        other.ask("deregister", &[remote.index]);
        assert_eq!(send(&mut other, &pair, remote, 4096, LENGTH), Status::LocalProtection);
        assert_eq!(bytes(&pair.memory, 0, LENGTH), vec![0xEE; LENGTH]);
    }
}
