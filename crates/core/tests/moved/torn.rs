//! Cases about pieces that become longer after what was behind them in the file has been moved elsewhere.

use crate::support::*;
use adverb_core::memory::MemoryRegion;
use std::sync::Arc;

/// Pages that are shared at first, behind each of which there is room for many.
const COUNT: usize = 8;
const ROOM: usize = 64;

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PLAIN: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Room, of which only the first `COUNT` pages are used.
struct Area {
    base: usize,
    region: Arc<MemoryRegion>,
}

/// Addresses that nobody else takes while they are mapped.
fn room() -> usize {
    map(ROOM, libc::PROT_NONE, PLAIN)
}

impl Area {
    /// With a pattern in it.
    fn new() -> Self {
        let domain = domain();
        let base = room();
        // SAFETY: a part of the room.
        let there = unsafe { libc::mmap(base as *mut _, COUNT * PAGE, BOTH, PLAIN | libc::MAP_FIXED, -1, 0) };
        assert_eq!(there as usize, base);
        write_pattern(base, COUNT * PAGE, 1);
        let (region, _) = shared(&domain, base, COUNT * PAGE);
        Self { base, region }
    }

    fn page(&self, number: usize) -> usize {
        self.base + number * PAGE
    }

    /// Whether the page that was there first has its bytes, wherever it is by now.
    fn has(&self, at: usize, first: usize, count: usize) -> bool {
        has_pattern(at, count * PAGE, (first * PAGE) as u64 + 1)
    }
}

fn unmap(base: usize, count: usize) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::munmap(base as *mut _, count * PAGE) }, 0);
}

fn drop_pages(base: usize, count: usize) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::madvise(base as *mut _, count * PAGE, libc::MADV_DONTNEED) }, 0);
}

fn is_zero(base: usize, count: usize) -> bool {
    (0..count * PAGE).step_by(8).all(|at| get(base + at) == 0)
}

/// Moves pages elsewhere, where they may become more.
fn put(from: usize, count: usize, to: usize, new_count: usize) {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: pages of the test.
    let place =
        unsafe { libc::mremap(from as *mut _, count * PAGE, new_count * PAGE, how, to as *mut libc::c_void) };
    assert_eq!(place as usize, to, "{}", std::io::Error::last_os_error());
}

/// Makes pages more, where they are.
fn grow(from: usize, count: usize, new_count: usize) -> Result<(), i32> {
    // SAFETY: pages of the test.
    let place = unsafe { libc::mremap(from as *mut _, count * PAGE, new_count * PAGE, 0) };
    if place == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    assert_eq!(place as usize, from);
    Ok(())
}

/// The second half goes, and the first one becomes longer.
pub(crate) fn grown() {
    let area = Area::new();
    let (half, elsewhere) = (COUNT / 2, room());
    put(area.page(half), half, elsewhere, half);
    unmap(area.page(COUNT), ROOM - COUNT);
    // All of it, which the kernel refuses; then its last page.
    if grow(area.base, half, COUNT) != Ok(()) {
        assert_eq!(grow(area.page(half - 1), 1, COUNT - half + 1), Ok(()));
    }
    assert!(is_zero(area.page(half), half), "what is new is zero");
    write_pattern(area.page(half), half * PAGE, 77);
    assert!(area.has(elsewhere, half, half), "and nobody else's");
    write_pattern(elsewhere, half * PAGE, 99);
    assert!(has_pattern(area.page(half), half * PAGE, 77));
    assert!(area.has(area.base, 0, half));
    // It is guarded as all else is.
    drop_pages(area.page(half - 1), half);
    assert!(is_zero(area.page(half - 1), half));
    assert!(has_pattern(area.page(COUNT - 1), PAGE, ((half - 1) * PAGE) as u64 + 77));
    assert!(has_pattern(elsewhere, half * PAGE, 99));
    write_pattern(area.base, half * PAGE, 5);
    let child = fork(|| {
        let is_right = has_pattern(area.base, half * PAGE, 5) && has_pattern(elsewhere, half * PAGE, 99);
        write_pattern(elsewhere, half * PAGE, 3);
        is_right && has_pattern(area.page(COUNT - 1), PAGE, ((half - 1) * PAGE) as u64 + 77)
    });
    assert_eq!(wait(child), End::Status(0));
    area.region.deregister();
    assert!(has_pattern(elsewhere, half * PAGE, 99) && has_pattern(area.base, half * PAGE, 5));
    // Elsewhere, and longer again.
    let there = room();
    put(area.page(half), half, there, half);
    unmap(there + half * PAGE, ROOM - half);
    assert!(has_pattern(there + (half - 1) * PAGE, PAGE, ((half - 1) * PAGE) as u64 + 77));
    assert_eq!(grow(there + (half - 1) * PAGE, 1, 3), Ok(()));
    assert!(is_zero(there + half * PAGE, 2));
}

/// What is new and was never touched is dropped, unmapped, given to a child: nothing of the other piece's changes.
pub(crate) fn untouched() {
    let area = Area::new();
    let (half, elsewhere) = (COUNT / 2, room());
    put(area.page(half), half, elsewhere, half);
    unmap(area.page(COUNT), ROOM - COUNT);
    let (edge, new) = (area.page(half - 1), area.page(half));
    for round in 0..4 {
        assert_eq!(grow(edge, 1, 1 + half), Ok(()));
        match round {
            0 => drop_pages(new, half),
            1 => {
                let child = fork(|| {
                    let is_right = is_zero(new, half) && area.has(elsewhere, half, half);
                    write_pattern(new, half * PAGE, 4);
                    is_right && area.has(elsewhere, half, half) && area.has(area.base, 0, half)
                });
                assert_eq!(wait(child), End::Status(0), "a child has zeros there, too");
            }
            2 => {
                // The kernel does not wait.
                let zero = std::fs::File::open("/dev/zero").unwrap();
                // SAFETY: pages of the test.
                let read = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), new as *mut _, PAGE) };
                assert!(read == PAGE as isize || read == -1);
            }
            _ => {}
        }
        assert!(area.has(elsewhere, half, half), "{round}");
        unmap(new, half);
        assert!(area.has(elsewhere, half, half) && area.has(area.base, 0, half), "{round}");
    }
    assert_eq!(grow(edge, 1, 1 + half), Ok(()));
    assert!(is_zero(new, half));
    // The edge goes, and what is new stays, untouched.
    unmap(new, half);
    assert_eq!(grow(edge, 1, 1 + half), Ok(()));
    unmap(edge, 1);
    assert!(is_zero(new, half) && area.has(elsewhere, half, half));
    set(new, 3);
    assert!(area.has(elsewhere, half, half) && area.has(area.base, 0, half - 1));
}

/// Parts of the middle and of the beginning become longer where they go, or later.
pub(crate) fn elsewhere() {
    // Later.
    let area = Area::new();
    let there = room();
    put(area.page(2), 2, there, 2);
    unmap(there + 2 * PAGE, ROOM - 2);
    assert_eq!(grow(there + PAGE, 1, 4), Ok(()));
    assert!(area.has(there, 2, 2) && is_zero(there + 2 * PAGE, 3));
    write_pattern(there + 2 * PAGE, 3 * PAGE, 9);
    assert!(area.has(area.page(4), 4, 4) && area.has(area.base, 0, 2));
    // At once.
    let area = Area::new();
    let there = room();
    put(area.base, 3, there, 6);
    assert!(area.has(there, 0, 3) && is_zero(there + 3 * PAGE, 3));
    write_pattern(there + 3 * PAGE, 3 * PAGE, 9);
    assert!(area.has(area.page(3), 3, COUNT - 3));
    drop_pages(area.page(3), COUNT - 3);
    assert!(has_pattern(there + 3 * PAGE, 3 * PAGE, 9));
    // Behind a hole, which comes first.
    let area = Area::new();
    let there = room();
    unmap(area.page(2), 2);
    put(area.page(4), 4, there, 4);
    assert_eq!(grow(area.page(1), 1, 5), Ok(()));
    assert!(is_zero(area.page(2), 4) && area.has(there, 4, 4) && area.has(area.base, 0, 2));
    write_pattern(area.page(2), 4 * PAGE, 9);
    assert!(area.has(there, 4, 4));
    // What was never known as shared: longer first, and then a part of that goes.
    let area = Area::new();
    let there = room();
    unmap(area.page(COUNT), ROOM - COUNT);
    assert_eq!(grow(area.base, COUNT, 2 * COUNT), Ok(()));
    write_pattern(area.base, 2 * COUNT * PAGE, 1);
    put(area.page(12), 4, there, 4);
    assert_eq!(grow(area.page(11), 1, 5), Ok(()));
    assert!(is_zero(area.page(12), 4) && area.has(there, 12, 4) && area.has(area.base, 0, 12));
    // The old place stays, empty.
    let area = Area::new();
    let there = room();
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: pages of the test.
    let place =
        unsafe { libc::mremap(area.page(4) as *mut _, 2 * PAGE, 2 * PAGE, how, there as *mut libc::c_void) };
    assert_eq!(place as usize, there);
    assert!(is_zero(area.page(4), 2) && area.has(there, 4, 2) && area.has(area.page(6), 6, 2));
    write_pattern(area.page(4), 2 * PAGE, 9);
    assert!(area.has(there, 4, 2) && area.has(area.base, 0, 4));
}

/// A watched page that is dropped is there again when it is touched.
pub(crate) fn dropped() {
    let area = Area::new();
    let there = room();
    put(area.page(4), 4, there, 4);
    for _ in 0..3 {
        drop_pages(area.page(3), 1);
        assert!(is_zero(area.page(3), 1));
        write_pattern(area.page(3), PAGE, 7);
    }
    assert!(has_pattern(area.page(3), PAGE, 7) && area.has(there, 4, 4) && area.has(area.base, 0, 3));
    // Shorter: then another page is the last.
    unmap(area.page(3), 1);
    assert_eq!(grow(area.page(2), 1, 4), Ok(()));
    assert!(is_zero(area.page(3), 3) && area.has(there, 4, 4));
    set(area.page(4), 3);
    assert!(area.has(there, 4, 4) && area.has(area.base, 0, 3));
}
