//! Where bytes come from that are placed in application memory.

use super::copy::{self, Fault};

/// Bytes on their way into application memory. They are copied once, straight to where they belong.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In a buffer of the engine.
    Buffer(&'a [u8]),
    /// In memory that somebody else may change at any time.
    Shared(Shared<'a>),
    /// In another process (or in this one), from where the kernel copies them: process_vm_readv(2).
    Process {
        /// Which one.
        process: libc::pid_t,
        /// One behind the other. Their number is the caller's to bound.
        pieces: &'a [Piece],
    },
}

/// A part of the memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address there.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// Bytes of a mapping that is shared with somebody who may change them while they are read: no slice of Rust's.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    address: usize,
    length: usize,
    mapping: std::marker::PhantomData<&'a ()>,
}

impl Shared<'_> {
    /// `length` bytes at `address`.
    ///
    /// # Safety
    /// They are mapped for reading for the lifetime that the caller picks.
    pub unsafe fn new(address: *const u8, length: usize) -> Self {
        Self { address: address as usize, length, mapping: std::marker::PhantomData }
    }
}

/// Pieces handed to the kernel in one call.
const AT_ONCE: usize = 16;
/// The bytes that become visible last: programs poll the last byte, and the kernel promises no order within one buffer.
const TAIL: usize = 8;

impl Source<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Source::Buffer(bytes) => bytes.len(),
            Source::Shared(shared) => shared.length,
            Source::Process { pieces, .. } => {
                pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.length as usize))
            }
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the first bytes into a buffer of the engine.
    ///
    /// # Errors
    /// [`Fault`] if they cannot be read.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, target: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: a live, exclusive slice of its length.
        unsafe { self.copy_to(target.as_mut_ptr() as usize, 0, target.len()) }
    }

    /// Copies `length` of the bytes, from `from` on, to application memory at `target`; the last word becomes visible last.
    ///
    /// # Errors
    /// [`Fault`] if the memory on either side is not there, or the other process is not, or does not let us.
    ///
    /// # Safety
    /// As of [`copy::copy_to`].
    ///
    /// # Panics
    /// If the range passes the end: a mistake in the transport.
    pub(super) unsafe fn copy_to(&self, target: usize, from: usize, length: usize) -> Result<(), Fault> {
        assert!(from <= self.len() && length <= self.len() - from, "a copy past the source");
        match self {
            // SAFETY: handed on to the caller.
            Source::Buffer(bytes) => unsafe { copy::copy_to(target, &bytes[from..from + length]) },
            // SAFETY: the source is mapped, as its maker has promised; the rest is the caller's.
            Source::Shared(shared) => unsafe { copy::copy_between(target, shared.address + from, length) },
            // SAFETY: handed on to the caller.
            Source::Process { process, pieces } => unsafe {
                copy_from_process(*process, pieces, target, from, length)
            },
        }
    }
}

/// # Safety
/// As of [`copy::copy_to`].
unsafe fn copy_from_process(
    process: libc::pid_t,
    pieces: &[Piece],
    target: usize,
    from: usize,
    length: usize,
) -> Result<(), Fault> {
    let iovec = |base: usize, len: usize| libc::iovec { iov_base: base as *mut libc::c_void, iov_len: len };
    let (mut skip, mut done) = (from as u64, 0);
    let mut pieces = pieces.iter();
    while done < length {
        let mut remote = [iovec(0, 0); AT_ONCE];
        let (mut count, mut here) = (0, 0);
        while count < AT_ONCE && done + here < length {
            let Some(piece) = pieces.next() else { break };
            if skip >= piece.length {
                skip -= piece.length;
                continue;
            }
            let address = piece.address.checked_add(skip).ok_or(Fault)?;
            let part = ((piece.length - skip) as usize).min(length - done - here);
            remote[count] = iovec(address as usize, part);
            (skip, count, here) = (0, count + 1, here + part);
        }
        if here == 0 {
            return Err(Fault);
        }
        let body = here - here.min(TAIL);
        let local = [iovec(target + done, body), iovec(target + done + body, here - body)];
        let skipped = usize::from(body == 0);
        // SAFETY: the vectors are live locals. The kernel checks both sides; that the target may be written is the caller's promise.
        let copied = unsafe {
            libc::process_vm_readv(
                process,
                local[skipped..].as_ptr(),
                2 - skipped as libc::c_ulong,
                remote.as_ptr(),
                count as libc::c_ulong,
                0,
            )
        };
        if copied != here as isize {
            return Err(Fault);
        }
        done += here;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> libc::pid_t {
        // SAFETY: no arguments.
        unsafe { libc::getpid() }
    }

    fn copied(source: &Source<'_>, from: usize, length: usize) -> Result<Vec<u8>, Fault> {
        let mut target = vec![0; length];
        // SAFETY: a live, exclusive buffer of that length.
        unsafe { source.copy_to(target.as_mut_ptr() as usize, from, length) }.map(|()| target)
    }

    #[test]
    fn every_part_of_every_source() {
        let bytes: Vec<u8> = (0..200).collect();
        let piece = |range: std::ops::Range<usize>| Piece {
            address: bytes[range.clone()].as_ptr() as u64,
            length: range.len() as u64,
        };
        // More pieces than go in one call, empty ones among them.
        let pieces: Vec<_> = (0..20).flat_map(|n| [piece(n * 10..n * 10 + 10), piece(0..0)]).collect();
        let process = Source::Process { process: own(), pieces: &pieces };
        // SAFETY: the bytes outlive the source.
        let shared = Source::Shared(unsafe { Shared::new(bytes.as_ptr(), bytes.len()) });
        for source in [Source::Buffer(&bytes), shared, process] {
            assert_eq!(source.len(), 200);
            for (from, length) in
                [(0, 200), (1, 1), (9, 2), (0, 7), (0, 8), (0, 9), (191, 9), (200, 0), (13, 0)]
            {
                assert_eq!(copied(&source, from, length).unwrap(), bytes[from..from + length]);
            }
        }
    }

    #[test]
    fn what_is_not_there_is_a_fault() {
        let pieces = [Piece { address: 16, length: 8 }];
        assert_eq!(copied(&Source::Process { process: own(), pieces: &pieces }, 0, 8), Err(Fault));
        let pieces = [Piece { address: u64::MAX, length: 8 }];
        assert_eq!(copied(&Source::Process { process: own(), pieces: &pieces }, 1, 7), Err(Fault));
    }
}
