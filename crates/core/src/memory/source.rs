//! Where bytes come from that are placed in application memory.

use super::copy::{self, Fault};
use super::moved::View;

/// Bytes on their way into application memory. They are copied once, straight to where they belong.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In a buffer of the engine.
    Buffer(&'a [u8]),
    /// In memory that another process may change at any time.
    Shared(SharedBytes<'a>),
    /// In another process (or in this one), from where the kernel copies them: process_vm_readv(2). Bytes of
    /// it that are mapped here, too, need no kernel.
    Process {
        /// Which one.
        process: libc::pid_t,
        /// One behind the other. Their number is the caller's to bound.
        pieces: &'a [Piece],
        /// Asked before and after: it may take the memory back at any time.
        claim: &'a dyn Claim,
    },
}

/// The right to read memory of another process. A copy of all of the bytes begins at the first and ends with
/// the last.
pub trait Claim: std::fmt::Debug {
    /// Before something is read.
    ///
    /// # Errors
    /// [`Missing`], if the bytes must not be read.
    fn begin(&self) -> Result<(), Missing>;
    /// Called after the bytes were read. Checks that they are the ones that the sender meant.
    ///
    /// # Errors
    /// The sender took the memory back meanwhile: the bytes may be others.
    fn check(&self) -> Result<(), Missing>;
    /// Nothing more is read.
    fn end(&self);
    /// Between [`Claim::begin`] and [`Claim::end`]: a mapping that has the bytes, if there is one, and the
    /// address that its first byte has in that process.
    fn mapped(&self) -> Option<(&View, u64)> {
        None
    }
    /// Bytes have come from there.
    fn came_from_mapping(&self) {}
}

/// The claim to memory that no process takes away.
#[derive(Debug)]
pub struct NoClaim;

impl Claim for NoClaim {
    fn begin(&self) -> Result<(), Missing> {
        Ok(())
    }
    fn check(&self) -> Result<(), Missing> {
        Ok(())
    }
    fn end(&self) {}
}

/// Why bytes of another process cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The message counts as a lost packet: neither side reports a status.
    Lost,
    /// The other process cannot read the bytes either, or has taken them away.
    Gone,
}

/// Why bytes cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// Memory of this process is not there.
    Fault,
    /// Memory of the other process cannot be read.
    Missing(Missing),
}

impl From<Fault> for CopyError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

impl From<Missing> for CopyError {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

/// A part of the memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address there.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
}

/// Bytes of a mapping that is shared with another process, which may change them while they are read: no
/// slice of Rust's.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    address: usize,
    length: usize,
    mapping: std::marker::PhantomData<&'a ()>,
}

impl SharedBytes<'_> {
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
/// The bytes that become visible last: programs poll the last byte, and the kernel promises no order within
/// one buffer.
const TAIL: usize = 8;

impl Source<'_> {
    /// The length in bytes.
    #[inline]
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

    /// Gives the payload back, which is not needed any more.
    #[inline]
    pub fn finish(&self) {
        if let Source::Process { claim, .. } = self {
            claim.end();
        }
    }

    /// Copies the first bytes into a buffer of the engine.
    ///
    /// # Errors
    /// They cannot be read.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, target: &mut [u8]) -> Result<(), CopyError> {
        // SAFETY: a live, exclusive slice of its length.
        unsafe { self.copy_to(target.as_mut_ptr() as usize, 0, target.len()) }
    }

    /// Copies all bytes, `length` of them, to application memory at `target`, as [`Source::copy_to`] does; in
    /// line where they are in shared memory.
    ///
    /// # Errors
    /// As of [`Source::copy_to`].
    ///
    /// # Safety
    /// As of [`Source::copy_to`].
    #[inline(always)]
    pub(crate) unsafe fn copy_all_to(&self, target: usize, length: usize) -> Result<(), CopyError> {
        match self {
            // SAFETY: the source is mapped, as its maker has promised; the rest is the caller's.
            Source::Shared(shared) => unsafe {
                Ok(copy::copy_between(target, shared.address, length.min(shared.length))?)
            },
            // SAFETY: handed on to the caller.
            _ => unsafe { self.copy_to(target, 0, length) },
        }
    }

    /// Copies `length` of the bytes, from `from` on, to application memory at `target`; the last word becomes
    /// visible last.
    ///
    /// # Errors
    /// The memory on either side is not there, or the other process is not, or does not let us.
    ///
    /// # Safety
    /// As of [`copy::copy_to`].
    ///
    /// # Panics
    /// If the range passes the end: a mistake in the transport.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, target: usize, from: usize, length: usize) -> Result<(), CopyError> {
        assert!(from <= self.len() && length <= self.len() - from, "a copy past the source");
        match self {
            // SAFETY: handed on to the caller.
            Source::Buffer(bytes) => unsafe { Ok(copy::copy_to(target, &bytes[from..from + length])?) },
            // SAFETY: the source is mapped, as its maker has promised; the rest is the caller's.
            Source::Shared(shared) => unsafe {
                Ok(copy::copy_between(target, shared.address + from, length)?)
            },
            Source::Process { process, pieces, claim } => {
                if from == 0 {
                    claim.begin()?;
                }
                // SAFETY: handed on to the caller.
                let copied = unsafe {
                    let mapped = claim.mapped();
                    let copied = mapped.map(|mapped| copy_from_view(mapped, pieces, target, from, length));
                    // The kernel finds out which side is at fault.
                    match copied {
                        Some(Ok(())) => {
                            claim.came_from_mapping();
                            Ok(())
                        }
                        _ => copy_from_process(*process, pieces, target, from, length),
                    }
                };
                let copied = copied.and_then(|()| Ok(claim.check()?));
                if copied.is_err() || from + length == self.len() {
                    claim.end();
                }
                copied
            }
        }
    }
}

fn iovec(base: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut libc::c_void, iov_len: len }
}

/// # Safety
/// As of [`copy::copy_to`].
unsafe fn copy_from_view(
    (view, first): (&View, u64),
    pieces: &[Piece],
    target: usize,
    from: usize,
    length: usize,
) -> Result<(), Fault> {
    let (mut skip, mut done) = (from as u64, 0);
    for piece in pieces {
        if done == length {
            break;
        }
        if skip >= piece.length {
            skip -= piece.length;
            continue;
        }
        let at = piece.address.checked_sub(first).and_then(|at| at.checked_add(skip)).ok_or(Fault)?;
        let part = ((piece.length - skip) as usize).min(length - done);
        // SAFETY: handed on to the caller.
        unsafe { view.copy_out(at as usize, target + done, part)? };
        (skip, done) = (0, done + part);
    }
    if done == length { Ok(()) } else { Err(Fault) }
}

/// # Safety
/// As of [`copy::copy_to`].
unsafe fn copy_from_process(
    process: libc::pid_t,
    pieces: &[Piece],
    target: usize,
    from: usize,
    length: usize,
) -> Result<(), CopyError> {
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
            let address = piece.address.checked_add(skip).ok_or(Missing::Gone)?;
            let part = ((piece.length - skip) as usize).min(length - done - here);
            remote[count] = iovec(address as usize, part);
            (skip, count, here) = (0, count + 1, here + part);
        }
        if here == 0 {
            return Err(Missing::Gone.into());
        }
        let remote = &remote[..count];
        let body = here - here.min(TAIL);
        let local = [iovec(target + done, body), iovec(target + done + body, here - body)];
        let skipped = usize::from(body == 0);
        // SAFETY: that the target may be written is the caller's promise.
        if unsafe { read_process(process, &local[skipped..], remote) } != here as isize {
            return Err(blame(process, remote));
        }
        done += here;
    }
    Ok(())
}

/// process_vm_readv(2).
///
/// # Safety
/// The local vectors may be written. The kernel checks both sides.
unsafe fn read_process(process: libc::pid_t, local: &[libc::iovec], remote: &[libc::iovec]) -> isize {
    // SAFETY: live slices of their lengths; the rest is the caller's promise.
    unsafe {
        libc::process_vm_readv(
            process,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    }
}

/// Finds out which side's memory could not be read or written: that of the other process, if a buffer of ours
/// cannot take the bytes either.
#[cold]
fn blame(process: libc::pid_t, remote: &[libc::iovec]) -> CopyError {
    let mut buffer = [0u8; 1024];
    for vector in remote {
        for at in (0..vector.iov_len).step_by(buffer.len()) {
            let part = (vector.iov_len - at).min(buffer.len());
            let (local, there) =
                (iovec(buffer.as_mut_ptr() as usize, part), iovec(vector.iov_base as usize + at, part));
            // SAFETY: the buffer is a live local.
            let read = unsafe { read_process(process, &[local], &[there]) };
            if read != part as isize {
                let ended = std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
                return if read < 0 && ended { Missing::Lost } else { Missing::Gone }.into();
            }
        }
    }
    CopyError::Fault
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    fn own() -> libc::pid_t {
        // SAFETY: no arguments.
        unsafe { libc::getpid() }
    }

    fn copied(source: &Source<'_>, from: usize, length: usize) -> Result<Vec<u8>, CopyError> {
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
        let process = Source::Process { process: own(), pieces: &pieces, claim: &NoClaim };
        // SAFETY: the bytes outlive the source.
        let shared = Source::Shared(unsafe { SharedBytes::new(bytes.as_ptr(), bytes.len()) });
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
    fn memory_that_is_not_there_is_a_fault() {
        let pieces = [Piece { address: 16, length: 8 }];
        assert_eq!(
            copied(&Source::Process { process: own(), pieces: &pieces, claim: &NoClaim }, 0, 8),
            Err(Missing::Gone.into())
        );
        let pieces = [Piece { address: u64::MAX, length: 8 }];
        assert_eq!(
            copied(&Source::Process { process: own(), pieces: &pieces, claim: &NoClaim }, 1, 7),
            Err(Missing::Gone.into())
        );
    }

    #[test]
    fn the_fault_is_blamed_on_whose_memory_it_is() {
        let bytes = [1u8; 64];
        let pieces = [Piece { address: bytes.as_ptr() as u64, length: 64 }];
        let source = Source::Process { process: own(), pieces: &pieces, claim: &NoClaim };
        // SAFETY: nothing is mapped there, which is found out.
        assert_eq!(unsafe { source.copy_to(16, 0, 64) }, Err(CopyError::Fault));
        let nobody = Source::Process { process: libc::pid_t::MAX, pieces: &pieces, claim: &NoClaim };
        assert_eq!(copied(&nobody, 0, 64), Err(Missing::Lost.into()));
    }

    #[derive(Debug, Default)]
    struct Steps(std::cell::Cell<[u32; 3]>, Option<Missing>);

    impl Steps {
        fn count(&self, which: usize) {
            let mut steps = self.0.get();
            steps[which] += 1;
            self.0.set(steps);
        }
    }

    impl Claim for Steps {
        fn begin(&self) -> Result<(), Missing> {
            self.count(0);
            Ok(())
        }
        fn check(&self) -> Result<(), Missing> {
            self.count(1);
            self.1.map_or(Ok(()), Err)
        }
        fn end(&self) {
            self.count(2);
        }
    }

    #[derive(Debug)]
    struct ViewClaim(View, u64);

    impl Claim for ViewClaim {
        fn begin(&self) -> Result<(), Missing> {
            Ok(())
        }
        fn check(&self) -> Result<(), Missing> {
            Ok(())
        }
        fn end(&self) {}
        fn mapped(&self) -> Option<(&View, u64)> {
            Some((&self.0, self.1))
        }
    }

    #[test]
    fn mapped_bytes_are_read_by_the_map_and_all_others_by_the_kernel() {
        copy::install_handler();
        // SAFETY: a fresh descriptor.
        let file = unsafe {
            let fd = libc::memfd_create(c"mapped".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            libc::ftruncate(fd, 8192);
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
            OwnedFd::from_raw_fd(fd)
        };
        let there = |at: usize| (at % 251) as u8;
        let map = || View::map(file.as_fd(), 0, 8192, true).unwrap();
        map().write(0, &(0..8192).map(there).collect::<Vec<_>>()).unwrap();
        // The kernel's bytes are told apart from those of the mapping.
        let bytes = vec![0xFFu8; 16_384];
        let first = bytes.as_ptr() as u64 + 4096;
        let claim = ViewClaim(map(), first);
        let piece = |at: u64, length| Piece { address: bytes.as_ptr() as u64 + at, length };
        let of = |pieces: &[Piece], from, length| {
            copied(&Source::Process { process: own(), pieces, claim: &claim }, from, length).unwrap()
        };
        let inside = [piece(4096, 5), piece(0, 0), piece(8000, 4288)];
        assert_eq!(of(&inside, 0, 5), [0, 1, 2, 3, 4]);
        assert_eq!(
            of(&inside, 3, 4290),
            [3, 4].into_iter().chain((3904..8192).map(there)).collect::<Vec<_>>()
        );
        assert_eq!(of(&inside, 4293, 0), []);
        for pieces in [[piece(4095, 16), piece(5000, 0)], [piece(5000, 8), piece(12_281, 8)]] {
            assert_eq!(of(&pieces, 0, 16), [0xFF; 16], "the mapping has not all of it");
        }
        let nowhere = [Piece { address: u64::MAX, length: 8 }];
        let source = Source::Process { process: own(), pieces: &nowhere, claim: &claim };
        assert_eq!(copied(&source, 0, 8), Err(Missing::Gone.into()));
    }

    #[test]
    fn a_claim_lasts_from_the_first_byte_to_the_last() {
        let bytes = [1u8; 64];
        let pieces = [Piece { address: bytes.as_ptr() as u64, length: 64 }];
        let steps = Steps::default();
        let source = Source::Process { process: own(), pieces: &pieces, claim: &steps };
        copied(&source, 0, 32).unwrap();
        assert_eq!(steps.0.get(), [1, 1, 0]);
        copied(&source, 32, 32).unwrap();
        assert_eq!(steps.0.get(), [1, 2, 1]);
        let steps = Steps(std::cell::Cell::default(), Some(Missing::Lost));
        let source = Source::Process { process: own(), pieces: &pieces, claim: &steps };
        assert_eq!(copied(&source, 0, 32), Err(Missing::Lost.into()));
        assert_eq!(steps.0.get(), [1, 1, 1]);
    }
}
