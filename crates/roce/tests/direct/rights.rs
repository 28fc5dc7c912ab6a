//! What is not permitted fails as it does by the network, and changes no byte.

use super::agent::{direct, run};
use super::other::{LOCAL, OPEN, Other, Pair, Remote, Tier};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};

const LENGTH: usize = 5 << 12;
const ALL: [Opcode; 4] = [Opcode::Write, Opcode::Read, Opcode::FetchAdd, Opcode::CompareSwap];

/// The other process, and how it gives its memory away.
struct Scene {
    other: Other,
    found: Vec<(String, Vec<Status>)>,
}

impl Scene {
    /// Has requests of this kind succeed; without packets, if they ever need none.
    #[track_caller]
    fn reach(&mut self, pair: &Pair, opcode: Opcode, remote: (u64, u32)) {
        pair.reach(&mut self.other, opcode, remote);
    }

    fn hash(&mut self, remote: &Remote) -> Vec<u64> {
        self.other.ask("hash", &[remote.index, 0, remote.length as u64])
    }

    /// Tries requests, each by a queue pair of its own that permits so much, and has been used for something
    /// permitted before. No byte of the region may change.
    #[track_caller]
    fn refuses(
        &mut self,
        what: &str,
        (permitted, good, good_at): (Access, Opcode, (u64, u32)),
        remote: &Remote,
        attempts: &[(Opcode, usize, (u64, u32))],
    ) {
        let mut found = Vec::new();
        for (opcode, length, at) in attempts {
            let pair = Pair::new(&mut self.other, 0, permitted);
            self.reach(&pair, good, good_at);
            let before = self.hash(remote);
            let count = direct(&pair.side);
            found.push(pair.run(*opcode, *length, *at));
            assert_eq!(direct(&pair.side), count, "{what}: {opcode:?} is carried out");
            assert_ne!(found.last(), Some(&Status::Success), "{what}: {opcode:?}");
            assert_eq!(self.hash(remote), before, "{what}: {opcode:?}");
        }
        self.found.push((what.into(), found));
    }

    /// The region permits so much.
    fn region_permits(&mut self, access: Access, good: Opcode) {
        let remote = self.other.region(0, LENGTH, Access::LOCAL_WRITE | access);
        let at = remote.middle();
        let others: Vec<_> = ALL.into_iter().filter(|opcode| !access.contains(right(*opcode))).collect();
        let attempts: Vec<_> = others.into_iter().map(|opcode| (opcode, 8, at)).collect();
        self.refuses(&format!("a region for {access:?}"), (Access::REMOTE, good, at), &remote, &attempts);
    }

    /// The queue pair permits so much.
    fn queue_pair_permits(&mut self, access: Access, good: Opcode) {
        let remote = self.other.open_region(LENGTH);
        let at = remote.middle();
        let others: Vec<_> = ALL.into_iter().filter(|opcode| !access.contains(right(*opcode))).collect();
        let attempts: Vec<_> = others.into_iter().map(|opcode| (opcode, 8, at)).collect();
        self.refuses(&format!("a queue pair for {access:?}"), (access, good, at), &remote, &attempts);
    }

    fn another_domain(&mut self) {
        let own = self.other.open_region(LENGTH);
        let foreign = self.other.region(1, LENGTH, OPEN);
        // It is shared.
        let pair = Pair::new(&mut self.other, 1, Access::REMOTE);
        self.reach(&pair, Opcode::Write, foreign.middle());
        let attempts = ALL.map(|opcode| (opcode, 8, foreign.middle()));
        self.refuses("another domain", (Access::REMOTE, Opcode::Write, own.middle()), &foreign, &attempts);
    }

    fn bounds_and_keys(&mut self) {
        let remote = self.other.open_region(LENGTH);
        let good = (Access::REMOTE, Opcode::Read, remote.middle());
        let (start, end) = (remote.address, remote.address + LENGTH as u64);
        let mut attempts = Vec::new();
        for (address, length) in [
            (start - 8, 8),
            (start - 1, 8192),
            (end - 4, 8),
            (end, 1),
            (end - 8191, 8192),
            (start + 8192, LENGTH),
            (u64::MAX - 3, 8),
            (0, 8),
        ] {
            attempts.extend(ALL[..2].iter().map(|opcode| (*opcode, length, (address, remote.key))));
        }
        attempts.push((Opcode::FetchAdd, 8, (end, remote.key)));
        self.refuses("bounds", good, &remote, &attempts);

        let (at, key) = remote.middle();
        let keys = [key ^ 1, key ^ 0x100, key.wrapping_add(1 << 20), !key, 0];
        let attempts = keys.map(|key| (Opcode::Write, 8, (at, key)));
        self.refuses("keys", good, &remote, &attempts);
        self.refuses("alignment", good, &remote, &[(Opcode::FetchAdd, 8, (at + 4, key))]);
    }

    /// A right is taken back by `revoke`, when it has been used: from then on it is not there.
    #[track_caller]
    fn revoked(&mut self, what: &str, revoke: impl FnOnce(&mut Other, &Pair, &Remote)) {
        let remote = self.other.open_region(LENGTH);
        let pair = Pair::open(&mut self.other);
        self.reach(&pair, Opcode::Write, remote.middle());
        revoke(&mut self.other, &pair, &remote);
        let before = self.hash(&remote);
        let count = direct(&pair.side);
        let status = pair.run(Opcode::Write, 64, remote.middle());
        assert_ne!(status, Status::Success, "{what}");
        assert_eq!((self.hash(&remote), direct(&pair.side)), (before, count), "{what}");
        self.found.push((what.into(), vec![status]));
    }

    fn all_revocations(&mut self) {
        self.revoked("deregistered", |other, _, remote| drop(other.ask("deregister", &[remote.index])));
        self.revoked("deregistered, and registered again", |other, _, remote| {
            let key = {
                other.ask("deregister", &[remote.index]);
                other.ask("again", &[remote.index])
            };
            assert_ne!(key, [remote.key.into()]);
        });
        self.revoked("invalidated", |other, pair, remote| {
            assert_eq!(other.ask("invalidate", &[pair.index, remote.index]), [Status::Success as u64]);
        });
        self.revoked("invalidated by the peer", |other, pair, remote| {
            other.ask("receive", &[pair.index]);
            let opcode = Opcode::SendWithInvalidate;
            let request = SendRequest { opcode, immediate: remote.key, ..signalled(&[], (0, 0)) };
            assert_eq!(run(&pair.side, &request), Status::Success);
            assert_eq!(other.ask("received", &[pair.index]), [Status::Success as u64, remote.key.into()]);
        });
        self.revoked("for reading alone", |other, _, remote| {
            assert_eq!(other.ask("restrict", &[remote.index]), [remote.key.into()]);
        });
        self.revoked("a queue pair for reading alone", |other, pair, _| {
            other.ask("permit", &[pair.index, Access::REMOTE_READ.bits().into()]);
        });
    }

    /// The target's queue pair has gone.
    fn nobody_there(&mut self) {
        let remote = self.other.open_region(LENGTH);
        let pairs: Vec<_> = ["state 0", "state 6", "destroy"]
            .into_iter()
            .map(|how| (how, Pair::open(&mut self.other)))
            .collect();
        for (_, pair) in &pairs {
            self.reach(pair, Opcode::Write, remote.middle());
        }
        let count = direct(&pairs[0].1.side);
        for (how, pair) in &pairs {
            let (command, state) = how.split_once(' ').unwrap_or((how, ""));
            let numbers: Vec<_> = [pair.index].into_iter().chain(state.parse()).collect();
            self.other.ask(command, &numbers);
        }
        let before = self.hash(&remote);
        for (_, pair) in &pairs {
            let own = [pair.memory.sge(0, 64)];
            for opcode in [Opcode::Write, Opcode::Read] {
                let request = SendRequest { opcode, ..signalled(&own, remote.middle()) };
                pair.side.queue_pair.post_send(&request).unwrap();
            }
        }
        for (how, pair) in &pairs {
            let statuses = vec![pair.side.sent().status, pair.side.sent().status];
            assert_eq!(statuses[1], Status::Flushed);
            self.found.push((how.to_string(), statuses));
        }
        assert_eq!((self.hash(&remote), direct(&pairs[0].1.side)), (before, count));
    }
}

fn right(opcode: Opcode) -> Access {
    match opcode {
        Opcode::Write => Access::REMOTE_WRITE,
        Opcode::Read => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    }
}

fn all(tier: Tier) -> Vec<(String, Vec<Status>)> {
    let mut scene = Scene { other: Other::of(tier), found: Vec::new() };
    assert_eq!(scene.other.ask("domain", &[]), [1]);
    scene.region_permits(Access::REMOTE_READ, Opcode::Read);
    scene.region_permits(Access::REMOTE_WRITE, Opcode::Write);
    scene.region_permits(Access::REMOTE_ATOMIC, Opcode::FetchAdd);
    scene.queue_pair_permits(Access::REMOTE_READ, Opcode::Read);
    scene.queue_pair_permits(Access::REMOTE_WRITE, Opcode::Write);
    scene.queue_pair_permits(Access::REMOTE_READ | Access::REMOTE_WRITE, Opcode::Write);
    scene.another_domain();
    scene.bounds_and_keys();
    scene.all_revocations();
    scene.nobody_there();
    scene.found
}

#[test]
fn requests_that_are_not_permitted_fail_as_by_the_network() {
    let _turn = turn();
    let by_network = all(Tier::Network);
    for tier in LOCAL {
        for (found, expected) in all(tier).iter().zip(&by_network) {
            assert_eq!(found, expected, "{tier:?}");
        }
    }
}
