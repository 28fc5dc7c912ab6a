//! The marks that wait, one of each sender at most.
//!
//! Anybody can send marks, in the name of any address. So their number is bounded, and one more costs about
//! as much where many wait as where few do: no step looks at all of them.

use crate::locate::Mark;
use adverb_core::cm::subnet;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Marks that wait at once. Beyond that, the peer with the most loses its oldest one, which is echoed at
/// once.
pub(super) const MOST_HELD: usize = 1024;

/// A mark that waits.
pub(super) struct HeldMark {
    pub(super) mark: Mark,
    /// The sender of the mark knows that it may begin nothing for now.
    pub(super) is_told: bool,
}

/// A process that sends marks: its address and UDP port, and the port that it knows us by.
type Sender = (IpAddr, u16, u16);

impl HeldMark {
    fn sender(&self) -> Sender {
        (self.mark.from.peer, self.mark.from.peer_port, self.mark.port)
    }

    /// The peer whose mark it is.
    fn owner(&self) -> IpAddr {
        subnet(self.mark.from.peer)
    }
}

/// A key by which something is ordered. Tests count how often two are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key<T>(T);

impl<T: Ord> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::STEPS.with(|steps| steps.set(steps.get() + 1));
        self.0.cmp(&other.0)
    }
}

impl<T: Ord> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The marks that wait. Each has a number, which grows.
#[derive(Default)]
pub(super) struct HeldMarks {
    marks: BTreeMap<Key<u64>, HeldMark>,
    by_sender: HashMap<Sender, u64>,
    /// The numbers of the marks of each peer.
    by_owner: BTreeSet<Key<(IpAddr, u64)>>,
    /// How many each peer has.
    counts: HashMap<IpAddr, usize>,
    /// Each peer, by how many marks it has, and the number of its oldest one. The last one is the first to
    /// lose a mark.
    ranks: BTreeSet<Key<(usize, Reverse<u64>, IpAddr)>>,
    /// How many senders have not been told that they may begin nothing.
    untold: usize,
    next: u64,
}

impl HeldMarks {
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Has a mark wait. Returns the one that gives its place, if there are too many.
    pub(super) fn hold(&mut self, held: HeldMark) -> Option<Mark> {
        // An echo stands for all marks before it, too.
        if let Some(known) = self.by_sender.get(&held.sender()) {
            self.remove(*known);
        }
        self.insert(held);
        if self.marks.len() <= MOST_HELD {
            return None;
        }
        let Key((_, Reverse(oldest), _)) = *self.ranks.last()?;
        self.remove(oldest)
    }

    /// The marks of senders that have not been told that they may begin nothing. They count as told from now
    /// on.
    pub(super) fn tell(&mut self) -> Vec<Mark> {
        if std::mem::take(&mut self.untold) == 0 {
            return Vec::new();
        }
        let news = |held: &mut HeldMark| (!std::mem::replace(&mut held.is_told, true)).then_some(held.mark);
        self.marks.values_mut().filter_map(news).collect()
    }

    /// All marks. The one that has come first is the first.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Mark> + use<> {
        std::mem::take(self).marks.into_values().map(|held| held.mark)
    }

    fn insert(&mut self, held: HeldMark) {
        let (number, owner) = (self.next, held.owner());
        self.next += 1;
        self.change(owner, |this| {
            this.by_owner.insert(Key((owner, number)));
            *this.counts.entry(owner).or_default() += 1;
        });
        self.by_sender.insert(held.sender(), number);
        self.untold += usize::from(!held.is_told);
        self.marks.insert(Key(number), held);
    }

    fn remove(&mut self, number: u64) -> Option<Mark> {
        let held = self.marks.remove(&Key(number))?;
        let owner = held.owner();
        self.untold -= usize::from(!held.is_told);
        self.by_sender.remove(&held.sender());
        self.change(owner, |this| {
            this.by_owner.remove(&Key((owner, number)));
            if let Some(count) = this.counts.get_mut(&owner) {
                *count -= 1;
                if *count == 0 {
                    this.counts.remove(&owner);
                }
            }
        });
        Some(held.mark)
    }

    /// Changes what a peer has, and so its rank.
    fn change(&mut self, owner: IpAddr, change: impl FnOnce(&mut Self)) {
        if let Some(rank) = self.rank(owner) {
            self.ranks.remove(&rank);
        }
        change(self);
        self.ranks.extend(self.rank(owner));
    }

    fn rank(&self, owner: IpAddr) -> Option<Key<(usize, Reverse<u64>, IpAddr)>> {
        let count = *self.counts.get(&owner)?;
        let Key((_, oldest)) = *self.by_owner.range(Key((owner, 0))..).next()?;
        Some(Key((count, Reverse(oldest), owner)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gsi::MadSource;
    use std::cell::Cell;
    use std::net::{Ipv4Addr, Ipv6Addr};

    thread_local! {
        /// Comparisons so far.
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// A mark of the process behind a UDP port of a host.
    fn mark(number: u64, host: impl Into<IpAddr>, peer_port: u16) -> HeldMark {
        let from = MadSource::between((Ipv4Addr::LOCALHOST, 4791).into(), host.into(), peer_port);
        HeldMark { mark: Mark { number, port: 4791, from }, is_told: false }
    }

    #[test]
    fn an_address_with_many_marks_takes_no_place_away_from_others() {
        let (greedy, [one, other]) = ([192, 0, 2, 1], [[192, 0, 2, 2], [192, 0, 2, 3]]);
        let mut marks = HeldMarks::default();
        let mut hold = |held| marks.hold(held).map(|gone| (gone.number, gone.from.peer));
        assert_eq!(hold(mark(1, one, 9)), None);
        for port in 0..MOST_HELD as u16 - 1 {
            assert_eq!(hold(mark(port.into(), greedy, port)), None);
        }
        // The oldest ones of the address with the most go, and no others.
        assert_eq!(hold(mark(2, other, 9)), Some((0, greedy.into())));
        for port in 0..MOST_HELD as u16 {
            let gone = hold(mark(0, greedy, 10_000 + port)).expect("all places are taken");
            assert_eq!(gone.1, IpAddr::from(greedy), "after {port} more");
        }
        // A later mark of a sender takes the place of its earlier one.
        assert_eq!(hold(mark(3, one, 9)), None);
        // The first ones come first.
        let all: Vec<_> = marks.take().map(|mark| (mark.number, mark.from.peer)).collect();
        assert_eq!((all.len(), all[0], all[MOST_HELD - 1]), (MOST_HELD, (2, other.into()), (3, one.into())));
        assert!(all[1..MOST_HELD - 1].iter().all(|(_, peer)| *peer == IpAddr::from(greedy)));
    }

    #[test]
    fn a_forged_mark_costs_no_more_where_many_wait() {
        let v4 = |host: u32| Ipv4Addr::from(0x0a00_0000 + host);
        let mut marks = HeldMarks::default();
        // One by one from other addresses; many of few; each with its subnet, and all of one.
        let forged = (0..20_000u32).map(|host| mark(0, v4(host), 9));
        let forged = forged.chain((0..20_000).map(|host| mark(0, v4(host % 7), host as u16)));
        let subnet = |host: u32, bits: u32| Ipv6Addr::from_bits((0x2001 << 112) + (u128::from(host) << bits));
        let forged = forged.chain((0..20_000).map(|host| mark(0, subnet(host, 64), 9)));
        let forged = forged.chain((0..20_000).map(|host| mark(0, subnet(host, 0), 9)));
        for (index, held) in forged.enumerate() {
            let before = STEPS.get();
            marks.hold(held);
            let steps = STEPS.get() - before;
            assert!(steps < MOST_HELD / 2, "{steps} steps for mark {index}");
            assert_eq!(marks.marks.len(), MOST_HELD.min(index + 1));
        }
        let HeldMarks { marks, by_sender, by_owner, counts, ranks, untold, .. } = marks;
        let lengths = [marks.len(), by_sender.len(), by_owner.len(), counts.values().sum(), untold];
        assert_eq!(lengths, [MOST_HELD; 5]);
        assert_eq!(ranks.len(), counts.len());
    }

    #[test]
    fn a_sender_is_told_once() {
        let mut marks = HeldMarks::default();
        let told = |marks: &mut HeldMarks| marks.tell().iter().map(|mark| mark.number).collect::<Vec<_>>();
        marks.hold(mark(1, [192, 0, 2, 1], 9));
        marks.hold(HeldMark { is_told: true, ..mark(2, [192, 0, 2, 2], 9) });
        marks.hold(mark(3, [192, 0, 2, 3], 9));
        assert_eq!((told(&mut marks), told(&mut marks)), (vec![1, 3], vec![]));
        marks.hold(mark(4, [192, 0, 2, 3], 9));
        assert_eq!(told(&mut marks), [4]);
        assert_eq!(marks.take().map(|mark| mark.number).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(marks.is_empty() && told(&mut marks).is_empty());
    }
}
