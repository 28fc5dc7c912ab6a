//! One-sided operations that this process has carried out: how they are counted, and the line of the log.

use adverb_core::counters::Counters;
use adverb_core::log;
use adverb_core::request::Opcode;

/// What an operation does to the program's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The operation reads bytes of the program's memory.
    Out,
    /// The operation brings bytes into the program's memory.
    In,
}

impl From<Opcode> for Direction {
    fn from(opcode: Opcode) -> Self {
        if opcode.is_read_or_atomic() { Self::In } else { Self::Out }
    }
}

/// Operations that have been carried out and not been counted yet: counters are shared by all threads, which
/// costs as much as the operation itself.
#[derive(Default)]
pub(crate) struct Tally {
    operations: u32,
    /// The operations that the kernel's copy has carried out.
    by_kernel: u32,
    bytes: u64,
    /// What reads and atomic operations have brought.
    bytes_read: u64,
}

impl Tally {
    /// Operations are counted so many at a time, and when one is to be reported.
    const TOGETHER: u32 = 32;

    /// The next operation to be added is the kernel's.
    pub(crate) fn note_kernel(&mut self) {
        self.by_kernel += 1;
    }

    /// Adds an operation. True: it is time to count.
    #[inline(always)]
    pub(crate) fn add(&mut self, direction: Direction, length: u32) -> bool {
        self.operations += 1;
        let bytes = if direction == Direction::In { &mut self.bytes_read } else { &mut self.bytes };
        *bytes += u64::from(length);
        self.operations >= Self::TOGETHER
    }

    pub(crate) fn count(&mut self, counters: &Counters) {
        let Self { operations, by_kernel, bytes, bytes_read } = std::mem::take(self);
        counters.tx_direct.add(operations.into());
        if by_kernel > 0 {
            counters.tx_kernel.add(by_kernel.into());
        }
        counters.tx_messages.add(operations.into());
        counters.tx_bytes.add(bytes);
        if bytes_read > 0 {
            counters.rx_bytes.add(bytes_read);
        }
    }
}

/// A request of queue pair `number` has been carried out in memory of another process, without a packet.
#[cold]
pub(crate) fn carried_out(
    number: u32,
    process: libc::pid_t,
    (opcode, length, address, key): (Opcode, u32, u64, u32),
) {
    let what = match opcode {
        Opcode::Write => "Write",
        Opcode::Read => "Read",
        Opcode::CompareSwap => "compare-and-swap",
        Opcode::FetchAdd => "fetch-and-add",
        _ => "operation",
    };
    log!(
        Packets,
        "queue pair {number:#x}: {what} of {length} bytes at {address:#x} of key {key:#x}, \
         carried out in memory of process {process}"
    );
}
