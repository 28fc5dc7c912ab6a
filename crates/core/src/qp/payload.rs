//! Payload: moves bytes between a transport's buffers and the memory that the scatter/gather elements of a
//! request name.
//!
//! Caller: carries the request out. It has the lock of the transport's sending or receiving side, or the
//! request was handed to its thread alone. The request is not complete before the call has returned. Once it
//! is, the next post reuses its slot, whose elements name other memory.
//!
//! A [`Reader`] caches the last key. A caller that uses one region repeatedly keeps its reader between calls.
//!
//! After an error, any part of the target may have been written, unless a function says otherwise.

use super::{Queues, ReceiveWork, SendWork};
use crate::memory::moved::View;
use crate::memory::process::{self, Process};
use crate::memory::{self, Access, AccessError, CopyError, Missing, Reader, Source, Span};
use crate::request::{SendFlags, Sge};

/// Bytes of inline data that are copied by way of the stack at a time.
const INLINE_BUFFER: usize = 256;

/// Why payload cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadError {
    /// An element's key does not open its bytes, with the rights that are needed.
    Key(AccessError),
    /// Memory of this process or of the peer cannot be accessed: it is unmapped or protected, or the kernel
    /// refuses the copy.
    Fault,
    /// The elements hold fewer bytes than are to be copied.
    Room,
    /// The peer's payload cannot be fetched.
    Missing(Missing),
}

impl From<CopyError> for PayloadError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Fault => Self::Fault,
            CopyError::Missing(missing) => Self::Missing(missing),
        }
    }
}

impl Queues {
    /// Copies the bytes of a send request from `offset` on into `target`.
    ///
    /// # Errors
    /// [`PayloadError::Key`]; [`PayloadError::Fault`]; [`PayloadError::Room`] if the request has fewer bytes.
    #[inline]
    pub fn gather(&self, work: &SendWork, offset: u32, target: &mut [u8]) -> Result<(), PayloadError> {
        self.gather_with(&mut Reader::default(), work, offset, target)
    }

    /// Copies the bytes of a send request from `offset` on into `target`, by the key that `reader` caches.
    ///
    /// # Errors
    /// As of [`Queues::gather`].
    #[inline]
    pub fn gather_with(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        offset: u32,
        target: &mut [u8],
    ) -> Result<(), PayloadError> {
        if work.flags.contains(SendFlags::INLINE) {
            if offset as usize + target.len() > work.length as usize {
                return Err(PayloadError::Room);
            }
            self.send.copy_inline(work, offset as usize, target);
            return Ok(());
        }
        let elements = (work.sges, |index| self.send.sge(work, index));
        let piece = (offset.into(), target.len());
        self.each_span(reader, elements, piece, (Access::empty(), self.domain), |span, done| {
            span.read(0, &mut target[done..done + span.len()]).map_err(|_| PayloadError::Fault)
        })
    }

    /// Copies all bytes of a send request to `target`, by the key that `reader` caches.
    ///
    /// # Errors
    /// As of [`Queues::gather`].
    ///
    /// # Safety
    /// The caller may write `work.length` bytes at `target`, and no reference to them is alive: another
    /// process may change them at any time.
    #[inline]
    pub unsafe fn gather_to(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        target: *mut u8,
    ) -> Result<(), PayloadError> {
        let (target, length) = (target as usize, work.length as usize);
        if work.flags.contains(SendFlags::INLINE) {
            let source = self.send.inline_address(work) as usize;
            // SAFETY: the target is the caller's to write. The source is in the words of the request, which
            // stay until the queue pair is destroyed. They are as many as the length that was checked as the
            // request was posted.
            return unsafe { memory::copy_between(target, source, length) }.map_err(|_| PayloadError::Fault);
        }
        let elements = (work.sges, |index| self.send.sge(work, index));
        self.each_span(reader, elements, (0, length), (Access::empty(), self.domain), |span, done| {
            // SAFETY: the parts of the target lie within its length, which is the sum of those of the spans;
            // the span has opened the source.
            unsafe { memory::copy_between(target + done, span.address(), span.len()) }
                .map_err(|_| PayloadError::Fault)
        })
    }

    /// Copies one element to `target`, as [`Queues::gather_to`] does. The request is being posted.
    ///
    /// Caller: the thread that posts, with the lock of the posts.
    ///
    /// # Errors
    /// As of [`Queues::gather_to`].
    ///
    /// # Safety
    /// As of [`Queues::gather_to`], for the bytes of the element.
    #[inline(always)]
    pub unsafe fn gather_element_to(
        &self,
        reader: &mut Reader,
        sge: &Sge,
        target: *mut u8,
    ) -> Result<(), PayloadError> {
        let (keys, length) = (&self.engine.keys, sge.length as usize);
        let element = (sge.lkey, sge.address, sge.length);
        // SAFETY: the target is the caller's to write; the key opens the source.
        let copy = |address| unsafe { memory::copy_between(target as usize, address, length) };
        match keys.with_known(reader, element, Access::empty(), self.domain, copy) {
            Some(copied) => copied.map_err(|_| PayloadError::Fault),
            // SAFETY: the caller's promise.
            None => unsafe { self.gather_unknown(reader, sge, target) },
        }
    }

    /// Copies one element to `target`, as [`Queues::gather_element_to`] does, with a key that `reader` does
    /// not cache.
    ///
    /// # Safety
    /// As of [`Queues::gather_element_to`].
    #[cold]
    #[inline(never)]
    unsafe fn gather_unknown(
        &self,
        reader: &mut Reader,
        sge: &Sge,
        target: *mut u8,
    ) -> Result<(), PayloadError> {
        let (keys, length) = (&self.engine.keys, sge.length);
        let opened =
            keys.open_again(reader, sge.lkey, sge.address, length.into(), Access::empty(), self.domain);
        let span = opened.map_err(PayloadError::Key)?;
        // SAFETY: the target is the caller's to write; the span has opened the source.
        unsafe { memory::copy_between(target as usize, span.address(), length as usize) }
            .map_err(|_| PayloadError::Fault)
    }

    /// Opens the parts of the program's memory that hold `length` bytes of a send request, from `offset` on,
    /// and calls `take` with each span: a peer process will copy the bytes from there. `check_readable`:
    /// first reads a byte of each page. Transports ask for that when they repeat a packet, whose payload the
    /// peer may have failed to read. The data of the request is not inline.
    ///
    /// # Errors
    /// As of [`Queues::gather`], whose checks it makes.
    #[inline]
    pub fn locate(
        &self,
        work: &SendWork,
        offset: u32,
        length: u32,
        check_readable: bool,
        mut take: impl FnMut(Span<'_>),
    ) -> Result<(), PayloadError> {
        let elements = (0..work.sges).map(|index| self.send.sge(work, index));
        each_piece(elements, offset.into(), length as usize, |element, skip, length| {
            let span = self.open(&element, skip, length, Access::empty(), self.domain)?;
            if check_readable && !span.is_readable() {
                return Err(PayloadError::Fault);
            }
            take(span);
            Ok(())
        })
    }

    /// Copies `length` bytes of a send request, from `offset` on, to the bytes at `at` of another process's
    /// memory. Opens one element after the other: a later one may fail when earlier ones are written.
    ///
    /// # Errors
    /// As of [`Queues::gather`]; [`PayloadError::Fault`] also if the view does not have these bytes.
    #[inline]
    pub fn write_to(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        offset: u32,
        length: u32,
        view: &View,
        at: usize,
    ) -> Result<(), PayloadError> {
        if work.flags.contains(SendFlags::INLINE) {
            let mut bytes = [0; INLINE_BUFFER];
            let mut done = 0;
            while done < length {
                let part = &mut bytes[..(length - done).min(INLINE_BUFFER as u32) as usize];
                self.gather(work, offset + done, part)?;
                view.write(at + done as usize, part).map_err(|_| PayloadError::Fault)?;
                done += part.len() as u32;
            }
            return Ok(());
        }
        let elements = (work.sges, |index| self.send.sge(work, index));
        let piece = (offset.into(), length as usize);
        self.each_span(reader, elements, piece, (Access::empty(), self.domain), |span, done| {
            view.write_from(at + done, span, 0, span.len()).map_err(|_| PayloadError::Fault)
        })
    }

    /// Carries out a Write or Read between one element and the bytes at `at` of another process's memory. The
    /// request is being posted and is not queued.
    ///
    /// Caller: the thread that posts, with the lock of the posts.
    ///
    /// # Errors
    /// As of [`Queues::write_to`].
    #[inline(always)]
    pub fn copy_element(
        &self,
        reader: &mut Reader,
        sge: &Sge,
        is_read: bool,
        (view, at): (&View, usize),
    ) -> Result<(), PayloadError> {
        let (keys, length) = (&self.engine.keys, sge.length as usize);
        let element = (sge.lkey, sge.address, sge.length);
        let rights = if is_read { Access::LOCAL_WRITE } else { Access::empty() };
        let there = view.at(at, length).map_err(|_| PayloadError::Fault)?;
        let copy = |here| {
            let (target, source) = if is_read { (here, there) } else { (there, here) };
            // SAFETY: the key opens the bytes here, with the right to write them for a Read; `there` lies in
            // the view: `View::at` has checked its bounds.
            unsafe { memory::copy_between(target, source, length) }
        };
        match keys.with_known(reader, element, rights, self.domain, copy) {
            Some(copied) => copied.map_err(|_| PayloadError::Fault),
            None => self.copy_unknown(reader, sge, is_read, (view, at)),
        }
    }

    /// Carries out a Write or Read of one element, as [`Queues::copy_element`] does, with a key that `reader`
    /// does not cache.
    #[cold]
    #[inline(never)]
    fn copy_unknown(
        &self,
        reader: &mut Reader,
        sge: &Sge,
        is_read: bool,
        (view, at): (&View, usize),
    ) -> Result<(), PayloadError> {
        let (keys, length) = (&self.engine.keys, sge.length as usize);
        let rights = if is_read { Access::LOCAL_WRITE } else { Access::empty() };
        let opened = keys.open_again(reader, sge.lkey, sge.address, length as u64, rights, self.domain);
        let span = opened.map_err(PayloadError::Key)?;
        // SAFETY: the span has opened these bytes, with the right to write them for a Read.
        let copied = unsafe {
            if is_read {
                view.copy_out(at, span.address(), length)
            } else {
                view.copy_in(at, span.address(), length)
            }
        };
        copied.map_err(|_| PayloadError::Fault)
    }

    /// Copies inline data of a Write that is not queued, at an address that the program gave for it, to the
    /// bytes at `at` of another process's memory. A fault of the source leaves the target as it was.
    ///
    /// Caller: the thread that posts, with the lock of the posts.
    ///
    /// # Errors
    /// [`PayloadError::Fault`]; [`PayloadError::Room`] for more bytes than `INLINE_BUFFER` (256).
    #[inline]
    pub fn copy_inline_element(&self, sge: &Sge, (view, at): (&View, usize)) -> Result<(), PayloadError> {
        let mut bytes = [0; INLINE_BUFFER];
        let part = bytes.get_mut(..sge.length as usize).ok_or(PayloadError::Room)?;
        // Reads all bytes before it writes any.
        // SAFETY: the program gave this range for reading with the post that is under way (ibv_post_send(3),
        // IBV_SEND_INLINE).
        unsafe { memory::copy_from(part, sge.address as usize) }.map_err(|_| PayloadError::Fault)?;
        view.write(at, part).map_err(|_| PayloadError::Fault)
    }

    /// Copies `length` bytes at `at` of another process's memory to the elements of a Read, from `offset` on.
    ///
    /// # Errors
    /// As of [`Queues::write_to`].
    #[inline]
    pub fn read_from(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        offset: u32,
        length: u32,
        view: &View,
        at: usize,
    ) -> Result<(), PayloadError> {
        let elements = (work.sges, |index| self.send.sge(work, index));
        let piece = (offset.into(), length as usize);
        self.each_span(reader, elements, piece, (Access::LOCAL_WRITE, self.domain), |span, done| {
            view.read_into(at + done, span, 0, span.len()).map_err(|_| PayloadError::Fault)
        })
    }

    /// Has the kernel copy `length` bytes of a send request to the bytes at `address` of another process,
    /// otherwise as [`Queues::write_to`]. `by_file`: as of [`Process::copies`].
    ///
    /// # Errors
    /// As of [`Queues::write_to`].
    // Not inlined: the buffer of a few KiB would lie in the caller's frame.
    #[inline(never)]
    pub fn write_to_process(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        (offset, length): (u32, u32),
        (process, address, by_file): (&Process, u64, bool),
    ) -> Result<(), PayloadError> {
        let fault = |process::CopyRefusal| PayloadError::Fault;
        // Short payload goes through the buffer, so that no key is held open during the system call.
        if work.flags.contains(SendFlags::INLINE) || length as usize <= process::SHORT {
            let mut bytes = [0; process::SHORT];
            let mut done = 0;
            while done < length as usize {
                let part = (length as usize - done).min(process::SHORT);
                let part = &mut bytes[..part];
                self.gather_with(reader, work, offset + done as u32, part)?;
                process.write(address + done as u64, part, by_file).map_err(fault)?;
                done += part.len();
            }
            return Ok(());
        }
        let elements = (work.sges, |index| self.send.sge(work, index));
        let piece = (offset.into(), length as usize);
        self.each_span(reader, elements, piece, (Access::empty(), self.domain), |span, done| {
            process.write_from(address + done as u64, span, by_file).map_err(fault)
        })
    }

    /// Has the kernel copy `length` bytes at `address` of another process to the elements of a Read,
    /// otherwise as [`Queues::read_from`]. `by_file`: as of [`Process::copies`].
    ///
    /// # Errors
    /// As of [`Queues::write_to`].
    // Not inlined: the buffer of a few KiB would lie in the caller's frame.
    #[inline(never)]
    pub fn read_from_process(
        &self,
        reader: &mut Reader,
        work: &SendWork,
        (offset, length): (u32, u32),
        (process, address, by_file): (&Process, u64, bool),
    ) -> Result<(), PayloadError> {
        let fault = |process::CopyRefusal| PayloadError::Fault;
        if length as usize <= process::SHORT {
            let mut bytes = [0; process::SHORT];
            let bytes = &mut bytes[..length as usize];
            process.read(address, bytes, by_file).map_err(fault)?;
            let elements = (work.sges, |index| self.send.sge(work, index));
            return self.scatter(reader, elements, offset.into(), &Source::Buffer(bytes), self.domain);
        }
        let elements = (work.sges, |index| self.send.sge(work, index));
        let piece = (offset.into(), length as usize);
        self.each_span(reader, elements, piece, (Access::LOCAL_WRITE, self.domain), |span, done| {
            process.read_into(address + done as u64, span, by_file).map_err(fault)
        })
    }

    /// Copies `source` to the elements of a Read or atomic operation, from `offset` on.
    ///
    /// # Errors
    /// As of [`Queues::scatter_receive`].
    #[inline]
    pub fn scatter_result(
        &self,
        work: &SendWork,
        offset: u32,
        source: &Source<'_>,
    ) -> Result<(), PayloadError> {
        let elements = (work.sges, |index| self.send.sge(work, index));
        self.scatter(&mut Reader::default(), elements, offset.into(), source, self.domain)
    }

    /// Copies `source` to the memory of a receive, from its beginning.
    ///
    /// # Errors
    /// As of [`Queues::scatter_receive`].
    #[inline(always)]
    pub fn fill_receive(
        &self,
        reader: &mut Reader,
        work: &ReceiveWork,
        source: &Source<'_>,
    ) -> Result<(), PayloadError> {
        let length = source.len();
        if work.sges == 1 && length > 0 {
            let sge = self.receive_sge(work, 0);
            let element = (sge.lkey, sge.address, length as u32);
            // SAFETY: the key opens these bytes, with the right to write them.
            let place = |address| unsafe { source.copy_all_to(address, length) };
            let placed = (length <= sge.length as usize)
                .then(|| {
                    self.engine.keys.with_known(reader, element, Access::LOCAL_WRITE, work.domain, place)
                })
                .flatten();
            if let Some(placed) = placed {
                return Ok(placed?);
            }
        }
        self.scatter_receive(reader, work, 0, source)
    }

    /// Copies `source` to the memory of a receive, from `offset` on.
    ///
    /// # Errors
    /// [`PayloadError::Key`]; [`PayloadError::Fault`]; [`PayloadError::Room`] if `source` does not fit;
    /// [`PayloadError::Missing`] if its bytes cannot be fetched.
    #[inline]
    pub fn scatter_receive(
        &self,
        reader: &mut Reader,
        work: &ReceiveWork,
        offset: u64,
        source: &Source<'_>,
    ) -> Result<(), PayloadError> {
        let elements = (work.sges, |index| self.receive_sge(work, index));
        self.scatter(reader, elements, offset, source, work.domain)
    }

    #[inline]
    fn scatter(
        &self,
        reader: &mut Reader,
        elements: (usize, impl Fn(usize) -> Sge),
        offset: u64,
        source: &Source<'_>,
        domain: u32,
    ) -> Result<(), PayloadError> {
        let piece = (offset, source.len());
        self.each_span(reader, elements, piece, (Access::LOCAL_WRITE, domain), |span, done| {
            Ok(span.place(source, done)?)
        })
    }

    /// Opens the parts of the elements that hold `length` bytes from `offset` on, and calls `take` with each
    /// span and the number of bytes before it. At most one span is open at a time. The keys must give these
    /// rights in this protection domain.
    #[inline]
    fn each_span(
        &self,
        reader: &mut Reader,
        (count, element): (usize, impl Fn(usize) -> Sge),
        (offset, length): (u64, usize),
        (rights, domain): (Access, u32),
        mut take: impl FnMut(&Span<'_>, usize) -> Result<(), PayloadError>,
    ) -> Result<(), PayloadError> {
        let keys = &self.engine.keys;
        // Most requests have one element, with room for all.
        if count == 1 && offset == 0 && length > 0 {
            let only = element(0);
            if length <= only.length as usize {
                let opened = keys.open_again(reader, only.lkey, only.address, length as u64, rights, domain);
                return take(&opened.map_err(PayloadError::Key)?, 0);
            }
        }
        let mut done = 0;
        each_piece((0..count).map(element), offset, length, |element, skip, length| {
            let address = address_behind(&element, skip)?;
            let opened = keys.open_again(reader, element.lkey, address, length as u64, rights, domain);
            take(&opened.map_err(PayloadError::Key)?, done)?;
            done += length;
            Ok(())
        })
    }

    fn open(
        &self,
        element: &Sge,
        skip: u32,
        length: usize,
        rights: Access,
        domain: u32,
    ) -> Result<Span<'_>, PayloadError> {
        let address = address_behind(element, skip)?;
        let keys = &self.engine.keys;
        keys.open_span(element.lkey, address, length as u64, rights, domain).map_err(PayloadError::Key)
    }
}

/// The address of an element behind `skip` of its bytes.
#[inline]
fn address_behind(element: &Sge, skip: u32) -> Result<u64, PayloadError> {
    element.address.checked_add(skip.into()).ok_or(PayloadError::Key(AccessError::Wrap))
}

/// Calls `take` for each part of an element among `length` bytes from `offset` on: the element, the bytes of
/// it to pass over, and how many there are.
#[inline]
fn each_piece(
    elements: impl Iterator<Item = Sge>,
    mut offset: u64,
    mut length: usize,
    mut take: impl FnMut(Sge, u32, usize) -> Result<(), PayloadError>,
) -> Result<(), PayloadError> {
    for element in elements {
        if length == 0 {
            break;
        }
        if offset >= element.length.into() {
            offset -= u64::from(element.length);
            continue;
        }
        let here = ((u64::from(element.length) - offset) as usize).min(length);
        take(element, offset as u32, here)?;
        length -= here;
        offset = 0;
    }
    if length == 0 { Ok(()) } else { Err(PayloadError::Room) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_elements() {
        let element = |length| Sge { address: 0, length, lkey: length };
        let elements = [element(3), element(0), element(10), element(1)];
        let pieces = |offset, length| {
            let mut found = Vec::new();
            let result = each_piece(elements.into_iter(), offset, length, |element, skip, length| {
                found.push((element.lkey, skip, length));
                Ok(())
            });
            (found, result.is_ok())
        };
        assert_eq!(pieces(0, 14), (vec![(3, 0, 3), (10, 0, 10), (1, 0, 1)], true));
        assert_eq!(pieces(2, 2), (vec![(3, 2, 1), (10, 0, 1)], true));
        assert_eq!(pieces(13, 1), (vec![(1, 0, 1)], true));
        assert_eq!(pieces(13, 2), (vec![(1, 0, 1)], false));
        assert_eq!(pieces(5, 0), (vec![], true));
    }
}
