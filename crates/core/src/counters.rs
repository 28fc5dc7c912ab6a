//! A process's counters of its work, in memory that another process can read ([`Page`]). `adverb devices -v`
//! finds it under `/proc/PID/fd` of every running process of the same user. The files of counters are summed
//! up from it ([`files`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub mod files;
mod lines;
mod page;

use crate::inspect::plain;
pub(crate) use lines::CounterLine;
pub(crate) use page::Page;
#[cfg(any(test, fuzzing))]
pub(crate) use page::try_bytes;
use page::{MEMFD, bytes_of, parse};

macro_rules! counters {
    ($($field:ident: $text:literal,)*) => {
        /// One process's counters, one set per device. All only grow, and are updated without ordering.
        #[repr(C)]
        pub struct Counters { $(#[doc = $text] pub $field: Counter,)* }

        impl Counters {
            /// Name, explanation and value of each counter, in the order of the table.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($field), $text, self.$field.get()),)*]
            }

            /// Counters that only this process reads.
            pub fn private() -> Self {
                Self { $($field: Counter::new(0),)* }
            }

            /// Puts all values away into another set.
            fn move_to(&self, other: &Self) {
                $(other.$field.add(self.$field.take());)*
            }

            /// Adds the counts of another set.
            fn add_all(&self, others: &Self) {
                $(self.$field.add(others.$field.get());)*
            }

            /// A copy of counters that lie in memory as `words`; none if there are too few.
            fn copied(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
                Some(Self { $($field: Counter::new(words.next()?.wrapping_add(words.next()?)),)* })
            }
        }
    };
}

counters! {
    queue_pairs: "queue pairs created",
    connections: "connections established",
    connections_lost: "connections ended by an error or a vanished peer",
    sends_posted: "send work requests posted",
    receives_posted: "receive work requests posted",
    tx_messages: "messages sent",
    tx_bytes: "payload bytes sent; what is sent again is not counted again",
    tx_frames: "frames or packets sent",
    tx_local: "packets sent through memory shared with another process",
    tx_direct: "operations carried out in memory of another process",
    tx_kernel: "of these, operations whose bytes the kernel copied",
    tx_calls: "system calls that sent",
    rx_messages: "messages received",
    rx_bytes: "payload bytes received",
    rx_frames: "frames or packets received",
    rx_local: "packets received through memory shared with another process",
    rx_mapped: "packets received whose payload was copied from mapped memory of another process",
    local_channels: "processes of this host that memory is shared with",
    rx_calls: "system calls that received",
    rx_writes: "RDMA Writes received",
    rx_reads: "RDMA Reads answered",
    rx_sends: "Sends received",
    rx_atomics: "atomic operations executed",
    rx_by_polls: "receive system calls made by the program's polls",
    rx_by_background: "receive system calls made by the background thread",
    refused: "requests of peers refused: wrong key, bounds, rights or protection domain",
    damaged: "frames or packets with a wrong checksum or format",
    terminates_sent: "connections terminated by this side for a protocol error",
    terminates_received: "connections terminated by the peer",
    tx_repeated: "packets sent again",
    timeouts: "times that an answer did not come in time",
    naks_sent: "negative acknowledgements sent",
    naks_received: "negative acknowledgements received",
    not_ready_sent: "times that a message found no receive here",
    not_ready_received: "times that a message found no receive at the peer",
    duplicates: "packets received again",
    out_of_sequence: "packets that came after a gap and were dropped",
    dropped: "packets dropped because of their opcode, the queue pair's state, or too many management datagrams that wait",
    wrong_pkey: "packets dropped because of their partition key",
    wrong_qkey: "datagrams dropped because of their Q_Key",
    no_receive: "unreliable messages dropped because there was no receive that holds them",
    misaddressed: "packets dropped because of their addresses: not of the connected peer, or not both of a group",
    unknown: "packets dropped because nobody here has their queue pair number",
    overflowed: "datagrams that the system dropped because the socket was full",
    congestion_sent: "congestion notifications sent",
    congestion_received: "congestion notifications received",
    handed_over: "packets handed over to another process",
    taken_over: "times that this process took over UDP port 4791",
}

/// A number that only grows. It is the sum of two words: threads add to one together, and one thread at a
/// time adds to the other, which costs less.
#[repr(C)]
pub struct Counter {
    shared: AtomicU64,
    alone: AtomicU64,
}

impl Counter {
    fn new(value: u64) -> Self {
        Self { shared: AtomicU64::new(value), alone: AtomicU64::new(0) }
    }

    /// Adds `n`. `alone`: no two threads pass this for one counter at the same time, as a lock makes sure.
    #[inline]
    pub fn count(&self, n: u64, alone: bool) {
        if alone {
            self.alone.store(self.alone.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        } else {
            self.add(n);
        }
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.shared.fetch_add(n, Ordering::Relaxed);
    }

    /// The value, which is then 0. No thread adds to it at that time.
    fn take(&self) -> u64 {
        self.shared.swap(0, Ordering::Relaxed).wrapping_add(self.alone.swap(0, Ordering::Relaxed))
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.shared.load(Ordering::Relaxed).wrapping_add(self.alone.load(Ordering::Relaxed))
    }
}

/// The right to be the one that adds to a counter in the cheap way, or the lack of it; it is free again when
/// this is dropped.
pub(crate) struct Alone(Option<Arc<AtomicBool>>);

impl Alone {
    /// The right, unless another object has it.
    pub(crate) fn claim(taken: &Arc<AtomicBool>) -> Self {
        // Acquire: this thread continues the last holder's count.
        Self((!taken.swap(true, Ordering::Acquire)).then(|| taken.clone()))
    }

    /// Whether this object has the right.
    #[inline]
    pub(crate) fn has(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(taken) = &self.0 {
            taken.store(false, Ordering::Release);
        }
    }
}

/// A process whose counters another process of the same user can read.
pub struct Process {
    /// The number of the process.
    pub id: u32,
    /// The name of the process, as `ps` shows it.
    pub name: String,
    /// Whether the process is in another network namespace than this one.
    pub elsewhere: bool,
    /// The devices that it uses, and a copy of their counters.
    pub devices: Vec<(String, Counters)>,
    /// The place at which the process answers questions for its objects ([`crate::inspect::ask_all`]), if it
    /// has one.
    pub place: Option<u64>,
    /// Which way peers of this host reach its memory, a line for each region that one has asked for, and how
    /// many more there are.
    pub memory: (Vec<String>, u64),
}

/// The counters of the running processes, those of other users left out, in the order of their numbers.
pub fn running() -> Vec<Process> {
    Looker::default().look()
}

/// Looks at the running processes again and again. Most of a host's processes count nothing, and to find that
/// out takes a look at all their descriptors. So processes that have been without counters for a while are
/// looked at less often.
#[derive(Default)]
pub struct Looker {
    without: HashMap<u32, Bystander>,
}

/// A process that counted nothing at the last look.
#[derive(Clone, Copy)]
struct Bystander {
    /// When the process was found.
    since: Instant,
    /// When the process was looked at last.
    looked: Instant,
}

impl Bystander {
    /// The longest time without a look.
    const MOST: Duration = Duration::from_secs(2);

    /// Whether the process may count by now. A young process begins soon, or never.
    fn is_due(&self, now: Instant) -> bool {
        let age = self.looked.saturating_duration_since(self.since);
        now.saturating_duration_since(self.looked) >= (age / 2).min(Self::MOST)
    }
}

impl Looker {
    /// The counters of the running processes, those of other users left out, in the order of their numbers.
    pub fn look(&mut self) -> Vec<Process> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let (now, mut without) = (Instant::now(), HashMap::new());
        let mut found = Vec::new();
        for id in ids {
            let known = self.without.get(&id).copied();
            if let Some(known) = known.filter(|known| !known.is_due(now)) {
                without.insert(id, known);
            } else if let Some(process) = process(id) {
                found.push(process);
            } else {
                let since = known.map_or(now, |known| known.since);
                without.insert(id, Bystander { since, looked: now });
            }
        }
        // Those that have ended are forgotten.
        self.without = without;
        found.sort_unstable_by_key(|process| process.id);
        found
    }
}

/// The descriptors of a process behind which its pages of counters are.
fn pages(id: u32) -> Option<impl Iterator<Item = std::path::PathBuf>> {
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).ok()?;
    let is_page = |link: &std::path::Path| {
        let name = link.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        // Of a run that has ended, or in no folder at all.
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        name == MEMFD || name.starts_with(files::PAGE)
    };
    let paths = descriptors.flatten().map(|entry| entry.path());
    Some(paths.filter(move |path| std::fs::read_link(path).is_ok_and(|link| is_page(&link))))
}

fn process(id: u32) -> Option<Process> {
    // A child of fork that has not called a verb yet may show its parent's: all that count are its own, the
    // last.
    let page = pages(id)?.last()?;
    let name = std::fs::read(format!("/proc/{id}/comm")).ok()?;
    let name = plain(String::from_utf8_lossy(&name).trim_end());
    let namespace = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
    let elsewhere = namespace(&id.to_string()) != namespace("self");
    let page = parse(&bytes_of(page).ok()?)?;
    let devices = page.devices.into_iter().map(|device| (device.name, device.own)).collect();
    Some(Process { id, name, elsewhere, devices, place: page.place, memory: page.lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::TEST_TIMEOUT;
    use std::time::Instant;

    #[test]
    fn a_process_without_counters_is_looked_at_less_and_less() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let without = |looked| Bystander { since: start, looked: at(looked) };
        assert!(without(0).is_due(at(0)), "a new one");
        assert!(!without(100).is_due(at(149)) && without(100).is_due(at(150)));
        assert!(!without(60_000).is_due(at(61_999)) && without(60_000).is_due(at(62_000)));
    }

    #[test]
    fn another_process_reads_what_this_one_counts() {
        let page = Page::create(&["counted0"]);
        let counters = page.set(0);
        counters.tx_messages.add(7);
        counters.terminates_received.count(4, true);
        counters.terminates_received.count(5, false);
        let own = std::process::id();
        // A test beside this one may be making a page at this instant, of which nothing can be read yet.
        let end = Instant::now() + TEST_TIMEOUT;
        while !running().iter().any(|process| process.id == own) {
            assert!(Instant::now() < end, "this process counts");
        }
        // Tests beside this one may have an engine, and so another page.
        let devices = pages(own)
            .expect("descriptors can be listed")
            .filter_map(|path| Some(parse(&std::fs::read(path).ok()?)?.devices))
            .find(|devices| devices.iter().any(|device| device.name == "counted0"))
            .expect("the page is found");
        assert_eq!(devices.len(), 1);
        let nonzero: Vec<_> = devices[0]
            .own
            .all()
            .into_iter()
            .filter(|(_, _, value)| *value != 0)
            .map(|(name, _, value)| (name, value))
            .collect();
        assert_eq!(nonzero, [("tx_messages", 7), ("terminates_received", 9)]);
    }
}
