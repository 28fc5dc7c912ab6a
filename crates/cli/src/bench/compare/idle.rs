//! What connections cost that carry nothing: shared memory and descriptors, which are scarce.

use crate::bench::ROCE;
use crate::bench::result::{Sample, Section, Target, Unit};
use crate::bench::session::{Place, Session, text};
use crate::bench::target::{Answer, Order};
use crate::pair::child::Child;
use crate::pair::link::PEER_TIMEOUT;
use adverb::{CompletionQueue, Connection, Context, ProtectionDomain, QueuePair, QueuePairOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

/// Connections between one pair of processes.
const MANY: usize = 1000;
/// The number of descriptors that a process may have by default.
const DESCRIPTORS: u64 = 1024;

/// What a process has that others could have, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) struct Holdings {
    descriptors: usize,
    /// Bytes of each piece of shared memory, by its name.
    memory: BTreeMap<String, u64>,
}

impl Holdings {
    /// The holdings of this process now: its descriptors, and its shared memory.
    pub(in crate::bench) fn now() -> Result<Self, String> {
        // One of them is that by which they are read.
        let descriptors = std::fs::read_dir("/proc/self/fd").map_err(text)?.count() - 1;
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(text)?;
        let mut memory = BTreeMap::new();
        for (name, bytes) in maps.lines().filter_map(shared) {
            *memory.entry(name).or_default() += bytes;
        }
        Ok(Self { descriptors, memory })
    }

    /// Bytes of shared memory that are here and were not before, with those of another process that has some
    /// of them, too.
    fn new_memory(before: [&Self; 2], after: [&Self; 2]) -> u64 {
        let all: BTreeMap<&String, u64> = after.into_iter().flat_map(|holdings| &holdings.memory).fold(
            BTreeMap::new(),
            |mut all, (name, bytes)| {
                let most = all.entry(name).or_default();
                *most = (*most).max(*bytes);
                all
            },
        );
        let was = |name: &String| before.iter().filter_map(|holdings| holdings.memory.get(name)).max();
        all.into_iter().map(|(name, bytes)| bytes.saturating_sub(was(name).copied().unwrap_or(0))).sum()
    }
}

/// Name and length of a mapping, if it is of memory that has no name in the file system and may be shared.
fn shared(line: &str) -> Option<(String, u64)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [range, rights, _, device, inode, file, ..] = fields[..] else { return None };
    if !rights.ends_with('s') || !file.starts_with("/memfd:") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((format!("{device} {inode}"), address(end)? - address(start)?))
}

/// Where connections come from that carry nothing.
pub(in crate::bench) struct Bare {
    // Dropped in this order. There is a queue pair from the beginning: what the first one brings along is no
    // cost of a connection.
    _first: QueuePair,
    queue: CompletionQueue,
    domain: ProtectionDomain,
}

impl Bare {
    /// Without any connection yet.
    pub(in crate::bench) fn new(context: &Context) -> Result<Self, String> {
        let make = || -> adverb::Result<Self> {
            let (domain, queue) = (context.protection_domain()?, context.completion_queue(256)?);
            Ok(Self { _first: domain.queue_pair(Self::options(&queue))?, queue, domain })
        };
        make().map_err(text)
    }

    fn options(queue: &CompletionQueue) -> QueuePairOptions {
        QueuePairOptions { max_sends: 16, max_receives: 16, inline_bytes: 0, ..QueuePairOptions::new(queue) }
    }

    /// Another queue pair for a connection.
    pub(in crate::bench) fn queue_pair(&self) -> Result<QueuePair, String> {
        self.domain.queue_pair(Self::options(&self.queue)).map_err(text)
    }
}

/// Two processes, this one and another, each of which knows a third already: nothing that is made once in a
/// process is a cost of the pair.
struct Strangers {
    // Dropped in this order.
    bare: Bare,
    other: Child<Order, Answer>,
    address: SocketAddr,
    _third: Session,
}

impl Strangers {
    fn meet() -> Result<Self, String> {
        let mut third = Session::start(ROCE, Place::Here, false)?;
        let environment = [("ADVERB_DEVICE", ROCE)];
        let mut other: Child<Order, Answer> =
            Child::start("idle process", &["bench", "--target"], &environment)?;
        let by = Instant::now() + 2 * PEER_TIMEOUT;
        third.target.order(&Order::AcceptSender)?;
        other.ask(&Order::Join(ROCE.to_owned(), third.address), by)?;
        third.done()?;
        let opened = other.ask(&Order::Open(ROCE.to_owned(), third.address.ip()), by)?;
        let Answer::At(address) = opened else { return Err("a wrong answer".into()) };
        let bare = Bare::new(&third.context)?;
        other.ask(&Order::AcceptBare(0), by)?;
        Ok(Self { bare, other, address, _third: third })
    }

    /// What this process has, and what the other one has.
    fn holdings(&mut self) -> Result<[Holdings; 2], String> {
        match self.other.ask(&Order::SayHoldings, Instant::now() + PEER_TIMEOUT)? {
            Answer::Holdings(theirs) => Ok([Holdings::now()?, theirs]),
            _ => Err("a wrong answer".into()),
        }
    }

    /// Makes so many connections.
    fn connect(&mut self, count: usize) -> Result<Vec<Connection>, String> {
        self.other.order(&Order::AcceptBare(count))?;
        let one = |_| self.bare.queue_pair()?.connect(self.address, &[], PEER_TIMEOUT).map_err(text);
        let made = (0..count).map(one).collect::<Result<Vec<_>, String>>()?;
        self.other.answer(Instant::now() + 6 * PEER_TIMEOUT)?;
        Ok(made)
    }
}

/// Adds what a pair of processes costs, and how many connections between them work.
pub(super) fn add(section: &mut Section) -> Result<(), String> {
    let mut strangers = Strangers::meet()?;
    let before = strangers.holdings()?;
    let one = strangers.connect(1)?;
    let after = strangers.holdings()?;
    let bytes = Holdings::new_memory(before.each_ref(), after.each_ref()) as f64;
    let more = |side: usize| after[side].descriptors.saturating_sub(before[side].descriptors);
    let descriptors = more(0).max(more(1)) as f64;
    limit(DESCRIPTORS)?;
    strangers.other.ask(&Order::LimitDescriptors(DESCRIPTORS), Instant::now() + PEER_TIMEOUT)?;
    let many = strangers.connect(MANY).map(|made| made.len()).unwrap_or_else(|why| {
        section.note(format!("Not all of {MANY} connections with {DESCRIPTORS} descriptors: {why}."));
        0
    });
    drop(one);
    for (name, unit, value, target) in [
        ("shared memory of an idle pair of processes", Unit::Bytes, bytes, Target::AtMost(65_536.0)),
        ("descriptors of it, in each process", Unit::Count, descriptors, Target::AtMost(4.0)),
        ("connections of it with 1,024 descriptors", Unit::Count, many as f64, Target::AtLeast(MANY as f64)),
    ] {
        section.add(Sample::new(name, 0, unit, value).target(Some(target)));
    }
    Ok(())
}

/// Sets how many descriptors this process may have.
pub(in crate::bench) fn limit(descriptors: u64) -> Result<(), String> {
    // SAFETY: a live local of the right type for both calls.
    let failed = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = descriptors.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings() {
        let line = "7f0000000000-7f0000010000 rw-s 00000000 00:01 1234 /memfd:adverb (deleted)";
        assert_eq!(shared(line), Some(("00:01 1234".into(), 65536)));
        assert_eq!(shared("7f0000000000-7f0000010000 rw-p 00000000 00:00 0"), None);
        assert_eq!(shared("7f0000000000-7f0000010000 rw-p 00000000 00:01 1234 /memfd:adverb"), None);
    }

    #[test]
    fn memory_of_both_counts_once() {
        let holdings = |memory: &[(&str, u64)]| Holdings {
            descriptors: 0,
            memory: memory.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
        };
        let before = [holdings(&[("counters", 4096)]), holdings(&[])];
        let after = [holdings(&[("counters", 4096), ("ring", 100)]), holdings(&[("ring", 100), ("own", 7)])];
        assert_eq!(Holdings::new_memory(before.each_ref(), after.each_ref()), 107);
    }

    #[test]
    fn this_process_has_descriptors() {
        assert!(Holdings::now().expect("/proc is there").descriptors >= 3);
    }
}
