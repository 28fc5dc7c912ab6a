//! What a process has done, in numbers that another process can read.
//!
//! The counters live in a memfd named `adverb-counters`, so `adverb devices -v` finds those of every running process of the same user
//! under `/proc/PID/fd`, and they go away with the process. Where memfd is missing they are ordinary memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

            /// Counters that nobody else reads.
            pub fn private() -> Self {
                Self { $($field: Counter::new(0),)* }
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
    tx_bytes: "payload bytes sent",
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
    dropped: "packets dropped because of their opcode or the queue pair's state",
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

/// A number that only grows: the sum of what all add to, and of what one adds to who is known to be alone, which costs less.
#[repr(C)]
pub struct Counter {
    shared: AtomicU64,
    alone: AtomicU64,
}

impl Counter {
    fn new(value: u64) -> Self {
        Self { shared: AtomicU64::new(value), alone: AtomicU64::new(0) }
    }

    /// Adds `n`. `alone`: whoever else says so of this counter does not do so at the same time, as under a lock.
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

    /// The value now.
    pub fn get(&self) -> u64 {
        self.shared.load(Ordering::Relaxed).wrapping_add(self.alone.load(Ordering::Relaxed))
    }
}

/// The right to be the one that adds to a counter in the cheap way, or the lack of it; it is free again when this is dropped.
pub(crate) struct Alone(Option<Arc<AtomicBool>>);

impl Alone {
    /// The right, unless somebody has it.
    pub(crate) fn claim(taken: &Arc<AtomicBool>) -> Self {
        // Acquire: what the last holder has counted.
        Self((!taken.swap(true, Ordering::Acquire)).then(|| taken.clone()))
    }

    /// Whether it is here.
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

/// The name under which the counters' memory shows in `/proc/PID/fd`.
pub const MEMFD: &str = "adverb-counters";
/// First word of that memory: the layout's version.
pub const MAGIC: u64 = 0x6164_7662_0000_0006;
/// Room for this many devices.
pub const DEVICES: usize = crate::description::MOST;
/// And for this much of each name.
const NAME: usize = 64;

/// The whole memory: a header, then a set of counters per device.
#[repr(C)]
pub struct Page {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Name of each device, zero-padded; all zero where there is none.
    pub names: [[std::sync::atomic::AtomicU8; NAME]; DEVICES],
    /// Its counters.
    pub sets: [Counters; DEVICES],
}

impl Page {
    /// A page for this process, shared through a memfd where that works. Lives as long as the process.
    pub(crate) fn create() -> &'static Page {
        let length = std::mem::size_of::<Page>();
        // SAFETY: a C string literal and a plain flag.
        let fd = unsafe { libc::memfd_create(c"adverb-counters".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a fresh mapping of the page's size: of the memfd if that has the size, else anonymous. All zero is a valid Page.
        let page = unsafe {
            let shared = fd >= 0 && libc::ftruncate(fd, length as libc::off_t) == 0;
            let (flags, fd) =
                if shared { (libc::MAP_SHARED, fd) } else { (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) };
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if fd >= 0 {
            crate::fork::own_descriptor(fd);
        }
        if page == libc::MAP_FAILED {
            // SAFETY: all zero is a valid Page: numbers only.
            return Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        }
        // SAFETY: a mapping that is never unmapped, of the right size and alignment, of atomics only.
        let page = unsafe { &*page.cast::<Page>() };
        page.magic.store(MAGIC, Ordering::Relaxed);
        page
    }

    /// The set of the device with this index; the last set for indices beyond the room.
    pub(crate) fn set(&'static self, index: usize, name: &str) -> &'static Counters {
        let index = index.min(DEVICES - 1);
        for (cell, byte) in self.names[index].iter().zip(name.bytes()) {
            cell.store(byte, Ordering::Relaxed);
        }
        &self.sets[index]
    }
}

/// A process whose counters another process of the same user can read.
pub struct Process {
    /// Its number.
    pub id: u32,
    /// Its name, as `ps` shows it.
    pub name: String,
    /// Whether it is in another network namespace than this process.
    pub elsewhere: bool,
    /// The devices that it uses, and a copy of their counters.
    pub devices: Vec<(String, Counters)>,
}

/// The counters of the running processes, those of other users left out, in the order of their numbers.
pub fn running() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<Process> = ids.filter_map(process).collect();
    found.sort_unstable_by_key(|process| process.id);
    found
}

/// The descriptors of a process behind which its pages of counters are.
fn pages(id: u32) -> Option<impl Iterator<Item = std::path::PathBuf>> {
    let target = format!("/memfd:{MEMFD} (deleted)");
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).ok()?;
    let paths = descriptors.flatten().map(|entry| entry.path());
    Some(
        paths.filter(move |path| {
            std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == target.as_str())
        }),
    )
}

fn process(id: u32) -> Option<Process> {
    // A child of fork that has not called a verb yet may show its parent's: all that count are its own, the last.
    let page = pages(id)?.last()?;
    let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?.trim_end().to_owned();
    let namespace = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
    let elsewhere = namespace(&id.to_string()) != namespace("self");
    Some(Process { id, name, elsewhere, devices: parse(&std::fs::read(page).ok()?)? })
}

/// The devices and counters in the bytes of a [`Page`]; none if they are of another version.
fn parse(bytes: &[u8]) -> Option<Vec<(String, Counters)>> {
    const NAMES: usize = std::mem::offset_of!(Page, names);
    const SETS: usize = std::mem::offset_of!(Page, sets);
    if bytes.len() < size_of::<Page>() || bytes[..8] != MAGIC.to_ne_bytes() {
        return None;
    }
    let mut words =
        bytes[SETS..].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    let mut devices = Vec::new();
    for name in bytes[NAMES..SETS].chunks_exact(NAME) {
        let counters = Counters::copied(&mut words)?;
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        if !name.is_empty() {
            devices.push((name, counters));
        }
    }
    Some(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_reads_what_this_one_counts() {
        let page = Page::create();
        let counters = page.set(0, "counted0");
        counters.tx_messages.add(7);
        counters.terminates_received.count(4, true);
        counters.terminates_received.count(5, false);
        let own = std::process::id();
        assert!(running().iter().any(|process| process.id == own), "this process counts");
        // Tests beside this one may have an engine, and so another page.
        let devices = pages(own)
            .expect("descriptors can be listed")
            .filter_map(|path| parse(&std::fs::read(path).ok()?))
            .find(|devices| devices[..].iter().any(|(name, _)| name == "counted0"))
            .expect("the page is found");
        let (_, copy) = &devices[0];
        assert_eq!(devices.len(), 1);
        let nonzero: Vec<_> = copy
            .all()
            .into_iter()
            .filter(|(_, _, value)| *value != 0)
            .map(|(name, _, value)| (name, value))
            .collect();
        assert_eq!(nonzero, [("tx_messages", 7), ("terminates_received", 9)]);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let mut bytes = vec![0; size_of::<Page>()];
        assert!(parse(&bytes).is_none(), "no magic");
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        assert!(parse(&bytes).is_some_and(|devices| devices.is_empty()));
        assert!(parse(&bytes[..bytes.len() - 1]).is_none(), "short");
        assert!(parse(&[]).is_none());
    }
}
