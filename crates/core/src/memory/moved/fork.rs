//! Fork: a child gets copies of shared pages, in their places, as they were immediately before.
//!
//! The pages themselves belong to the parent and its peers, which go on writing to them. So a child does not
//! inherit them, as the kernel does not let it inherit pages that an adapter has pinned. The parent's thread
//! makes a copy before the fork. The child finds it there, and puts it into its place by a system call for
//! each piece. As with an adapter, stores of other threads during a fork may be in the child, or not. The
//! handler of the child takes no lock and frees nothing: it has the lock that the parent's thread took.

use super::calls;
use super::file::{Area, SharedFile};
use super::ledger::LEDGER;
use super::maps::{Maps, Vma};
use super::state::{self, State, StateGuard};
use std::cell::UnsafeCell;
use std::sync::Once;

/// The bytes that a child is to have.
struct Copy {
    /// The address of the bytes now.
    from: usize,
    /// The address at which the child is to have the bytes.
    to: usize,
    length: usize,
    protection: i32,
}

/// The bytes for a child, in pages of its own. The program's heap may be among the moved pages, and then a
/// child has no heap before they are in their places.
pub(super) struct Copies {
    /// The first one, or zero.
    at: usize,
    count: usize,
}

impl Copies {
    pub(super) const fn none() -> Self {
        Self { at: 0, count: 0 }
    }

    fn bytes(&self) -> usize {
        self.count * size_of::<Copy>()
    }

    /// Puts a list of copies into pages of its own. None where there is no memory.
    fn of(list: &[Copy]) -> Option<Self> {
        if list.is_empty() {
            return Some(Self::none());
        }
        let bytes = size_of_val(list);
        let at = pages(bytes)?;
        // SAFETY: a fresh mapping of as many bytes, aligned to pages; the elements are plain values.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), at as *mut Copy, list.len()) };
        Some(Self { at, count: list.len() })
    }

    fn all(&self) -> &[Copy] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: `of` has put as many elements there, and the mapping goes with `drop_pages` alone.
        unsafe { std::slice::from_raw_parts(self.at as *const Copy, self.count) }
    }

    fn drop_pages(self) {
        if self.count > 0 {
            // SAFETY: the mapping of `of`, which no code uses any more.
            unsafe { calls::munmap(self.at as *mut _, self.bytes()) };
        }
    }
}

/// Fresh private pages for so many bytes.
fn pages(length: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let at = unsafe { calls::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// Takes back the copies for a child.
fn take_back(list: &[Copy]) {
    for copy in list {
        // SAFETY: made for the child, which has its own now, or never comes.
        unsafe { calls::munmap(copy.from as *mut _, copy.length) };
    }
}

struct Holding(UnsafeCell<Option<StateGuard>>);
// SAFETY: touched only by the thread that holds the lock of the state, which it is itself.
unsafe impl Sync for Holding {}
static HOLDING: Holding = Holding(UnsafeCell::new(None));

/// Registers the handlers, once per process, with the engine's: the earlier, the sooner a child has its
/// memory, and the later it is copied.
pub(crate) fn install_handlers() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: static functions, in a library that is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn prepare() {
    // No move is under way from here on.
    let Some(mut state) = state::lock() else { return };
    copy_all(&mut state);
    // SAFETY: this thread holds the lock.
    unsafe { *HOLDING.0.get() = Some(state) };
}

fn copy_all(state: &mut State) {
    let State { file, own, .. } = &*state;
    let Some(file) = file.as_ref() else { return };
    let mut copies = Vec::new();
    let mut copy = |offset, to, length, protection| match copy_of(file, offset, length) {
        Some(from) => copies.push(Copy { from, to, length, protection }),
        None => crate::log!(Warn, "no memory for a child's copy of {length} bytes at {to:#x}"),
    };
    // Not the views that a process which is connected to itself has of them.
    for piece in own.copied() {
        copy(piece.offset, piece.address, piece.length, libc::PROT_READ | libc::PROT_WRITE);
    }
    // The moved pages, at their present addresses, with the parts by which the program has made them longer:
    // those are there even if nothing else is.
    match Maps::open().and_then(|maps| maps.of_file(file.identity())) {
        Ok(views) => {
            let is_moved = |vma: &Vma| vma.is_shared && Area::at(vma.offset) == Area::Moved;
            for vma in views.into_iter().filter(is_moved) {
                copy(vma.offset, vma.start, vma.end - vma.start, vma.protection);
            }
        }
        Err(refusal) => crate::log!(Warn, "a child finds no memory that was moved for peers: {refusal}"),
    }
    state.copies = Copies::of(&copies).unwrap_or_else(|| {
        crate::log!(
            Warn,
            "a child finds no memory that was moved for peers: {}",
            std::io::Error::last_os_error()
        );
        take_back(&copies);
        Copies::none()
    });
}

/// Private pages with the same bytes.
fn copy_of(file: &SharedFile, offset: u64, length: usize) -> Option<usize> {
    let copy = pages(length)?;
    let (mut at, end) = (offset, offset + length as u64);
    while let Some((mut from, stop)) = file.data(at, end) {
        while from < stop {
            let target = copy + (from - offset) as usize;
            // SAFETY: reads our own file into our own fresh mapping, which has the length of the piece.
            let read = unsafe {
                libc::pread(file.descriptor(), target as *mut _, (stop - from) as usize, from as i64)
            };
            if read <= 0 {
                // SAFETY: ours, and no other thread has seen it.
                unsafe { calls::munmap(copy as *mut _, length) };
                return None;
            }
            from += read as u64;
        }
        at = stop;
    }
    Some(copy)
}

extern "C" fn in_parent() {
    // SAFETY: this thread holds the lock, if it was given.
    let Some(mut state) = (unsafe { (*HOLDING.0.get()).take() }) else { return };
    let copies = std::mem::replace(&mut state.copies, Copies::none());
    take_back(copies.all());
    copies.drop_pages();
}

extern "C" fn in_child() {
    // SAFETY: the only thread of the child is the one that holds the lock, if it was given.
    let Some(mut state) = (unsafe { (*HOLDING.0.get()).take() }) else { return };
    for copy in state.copies.all() {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the copy is the child's own, and nothing is where it belongs: the parent's mapping was not
        // inherited.
        unsafe {
            calls::mremap(copy.from as *mut _, copy.length, copy.length, how, copy.to as *mut _);
            if copy.protection != libc::PROT_READ | libc::PROT_WRITE {
                libc::mprotect(copy.to as *mut _, copy.length, copy.protection);
            }
        }
    }
    LEDGER.reset();
    // Nothing of the child's has been moved. The file's descriptor is closed with the engine's others.
    std::mem::forget(std::mem::replace(&mut *state, State::new()));
}
