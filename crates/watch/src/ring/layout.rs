//! Where things lie in a ring. Numbers are as the machine has them; a file is read on a machine of the same
//! kind.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 511 | the head: [`MAGIC`], chunks, then words that count: chunks taken, processes, records lost |
//! | 512 to 65535 | processes, 512 bytes each, the last word 1 |
//! | from 65536 | chunks of 64 KiB: state, bytes used, owner (process, thread), the namespace of the process, and from byte 64 records |

use crate::format::Process;

/// The first bytes of the file, with the version of the layout.
pub(crate) const MAGIC: [u8; 8] = *b"advring2";
/// Bytes of the head.
pub(crate) const HEAD: usize = 512;
/// The number of the next chunk in turn.
pub(crate) const NEXT_AT: usize = 16;
/// How many processes have begun.
pub(crate) const PROCESSES_AT: usize = 24;
/// How many records found no place.
pub(crate) const LOST_AT: usize = 32;

/// Where the chunks begin, and bytes of each.
pub(crate) const CHUNK: usize = 1 << 16;
/// Bytes before the records of a chunk.
pub(crate) const CHUNK_HEAD: usize = 64;
/// In a chunk: bytes used.
pub(crate) const USED_AT: usize = 8;
/// In a chunk: process and thread.
pub(crate) const OWNER_AT: usize = 16;
/// In a chunk: the namespace that the process's number is of.
pub(crate) const NAMESPACE_AT: usize = 24;
/// A state of a chunk: a thread owns it.
pub(crate) const OWNED: u64 = 1;
/// A state of a chunk: a thread prepares it.
pub(crate) const TAKEN: u64 = 2;

/// The size of a ring that nobody has chosen, in MiB.
pub(crate) const DEFAULT_MIB: usize = 64;
/// The largest.
const MOST_MIB: usize = 1 << 16;

const PROCESS: usize = 512;
const MOST_PROCESSES: u64 = (CHUNK / PROCESS - 1) as u64;

/// What the head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) chunks: u64,
}

impl Head {
    pub(crate) fn of_size(mib: usize) -> Self {
        let chunks = (mib.clamp(1, MOST_MIB) << 20) / CHUNK - 1;
        Self { chunks: chunks as u64 }
    }

    /// The length of the whole file.
    pub(crate) fn length(&self) -> usize {
        CHUNK * (self.chunks as usize + 1)
    }

    pub(crate) fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.chunks.to_ne_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let chunks = word(bytes, 8);
        let is_ring =
            bytes.starts_with(&MAGIC) && (1..=(MOST_MIB << 20) / CHUNK).contains(&(chunks as usize));
        is_ring.then_some(Self { chunks })
    }
}

/// A word; 0 of what is not there.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    found.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Where a chunk lies.
pub(crate) fn chunk_at(number: u64) -> usize {
    CHUNK * (number as usize + 1)
}

/// Where a process stands in the list, which may be full.
pub(crate) fn process_at(number: u64) -> Option<usize> {
    (number < MOST_PROCESSES).then(|| HEAD + PROCESS * number as usize)
}

const COMMAND: usize = 80;

/// An entry of the list. A long command is cut.
pub(crate) fn process(process: &Process) -> [u8; PROCESS] {
    let mut entry = [0; PROCESS];
    let boot = &process.boot.as_bytes()[..process.boot.len().min(40)];
    let command = &process.command.as_bytes()[..process.command.len().min(PROCESS - 8 - COMMAND)];
    let lengths = (boot.len() as u64) << 16 | command.len() as u64;
    for (at, value) in [(0, process.pid.into()), (8, process.since), (16, process.wall), (24, lengths)] {
        entry[at..at + 8].copy_from_slice(&u64::to_ne_bytes(value));
    }
    entry[32..32 + boot.len()].copy_from_slice(boot);
    entry[COMMAND..COMMAND + command.len()].copy_from_slice(command);
    entry[PROCESS - 8..].copy_from_slice(&1u64.to_ne_bytes());
    entry
}

/// The entry of a process, if it is whole.
pub(crate) fn parse_process(entry: &[u8]) -> Option<Process> {
    let entry = entry.get(..PROCESS).filter(|entry| word(entry, PROCESS - 8) == 1)?;
    let lengths = word(entry, 24);
    let text = |at: usize, length: usize| {
        entry.get(at..at + length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let boot = text(32, (lengths >> 16 & 0xff) as usize)?;
    // It stands in a line of text without quotes.
    let is_word = !boot.is_empty() && boot.bytes().all(|byte| byte.is_ascii_graphic());
    Some(Process {
        pid: word(entry, 0) as u32,
        command: text(COMMAND, (lengths & 0xffff) as usize)?,
        since: word(entry, 8),
        wall: word(entry, 16),
        boot: if is_word { boot } else { "unknown".to_owned() },
    })
}
