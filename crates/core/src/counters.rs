//! What a process has done, in numbers that another process can read.
//!
//! The counters live in a memfd named `adverb-counters`, so `adverb devices -v` finds those of every running process of the same user
//! under `/proc/PID/fd`, and they go away with the process. Where memfd is missing they are ordinary memory.

use std::sync::atomic::{AtomicU64, Ordering};

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
    tx_calls: "system calls that sent",
    rx_messages: "messages received",
    rx_bytes: "payload bytes received",
    rx_frames: "frames or packets received",
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
}

/// A number that only grows.
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The name under which the counters' memory shows in `/proc/PID/fd`.
pub const MEMFD: &str = "adverb-counters";
/// First word of that memory: the layout's version.
pub const MAGIC: u64 = 0x6164_7662_0000_0001;
/// Room for this many devices.
pub const DEVICES: usize = 4;

/// The whole memory: a header, then a set of counters per device.
#[repr(C)]
pub struct Page {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Name of each device, zero-padded; all zero where there is none.
    pub names: [[std::sync::atomic::AtomicU8; 16]; DEVICES],
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
