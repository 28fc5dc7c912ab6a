//! Cases about shared memory that the program cuts, moves and makes longer, more than is usual.

use crate::support::*;
use adverb_core::memory::moved::Refusal;

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn drop_pages(base: usize, count: usize) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::madvise(base as *mut _, count * PAGE, libc::MADV_DONTNEED) }, 0);
}

fn unmap(base: usize, count: usize) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::munmap(base as *mut _, count * PAGE) }, 0);
}

/// To where nothing of use was.
fn relocate(from: usize, count: usize, how: i32) -> usize {
    relocate_to(from, count, how, map(count, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS))
}

fn relocate_to(from: usize, count: usize, how: i32, to: usize) -> usize {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | how;
    // SAFETY: pages of the test.
    let place =
        unsafe { libc::mremap(from as *mut _, count * PAGE, count * PAGE, how, to as *mut libc::c_void) };
    assert_eq!(place as usize, to);
    to
}

/// More than are kept in mind: nothing of them is lost, and nothing more is shared.
pub(crate) fn pieces() {
    const PIECES: usize = 1200;
    let domain = domain();
    let base = pages(4 * PIECES);
    write_pattern(base, 4 * PIECES * PAGE, 1);
    let (region, _) = shared(&domain, base, 4 * PIECES * PAGE);
    // Not in one of the holes.
    let there = map(16, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    (0..PIECES).for_each(|piece| unmap(base + (4 * piece + 3) * PAGE, 1));
    let away = |piece: usize| relocate_to(base + (4 * piece + 1) * PAGE, 1, 0, there + 2 * piece * PAGE);
    let moved: Vec<_> = (0..8).map(away).collect();
    // Something else is where one of them was, and is dropped with what is beside it.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let hole = (base + PAGE) as *mut _;
    // SAFETY: nothing is there.
    assert_eq!(unsafe { libc::mmap(hole, PAGE, BOTH, flags, -1, 0) }, hole);
    drop_pages(base, 3);
    assert!([0, PAGE, 2 * PAGE].iter().all(|at| get(base + at) == 0));
    // All that is known of them goes.
    unmap(base, 4 * PIECES);
    region.deregister();
    for (piece, at) in moved.iter().enumerate() {
        assert!(has_pattern(*at, PAGE, ((4 * piece + 1) * PAGE) as u64 + 1), "{piece}");
    }
    drop_pages(moved[0], 1);
    assert_eq!(get(moved[0]), 0);
    assert!(has_pattern(moved[1], PAGE, (5 * PAGE) as u64 + 1));
    let more = share_one(&self::region(&domain, pages(4), 4 * PAGE));
    assert!(matches!(more, Err(Refusal::Memory(_))), "{more:?}");
}

/// What the program has made longer is guarded when all that it was before is gone.
pub(crate) fn grown() {
    const COUNT: usize = 16;
    let domain = domain();
    let room = map(8 * COUNT, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    for is_moved in [false, true] {
        let base = room + if is_moved { 4 * COUNT * PAGE } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a part of the room. The rest of it stays until it is wanted, lest a thread of the engine
        // maps something there.
        unsafe {
            assert_eq!(libc::mmap(base as *mut _, COUNT * PAGE, BOTH, flags, -1, 0) as usize, base);
        }
        write_pattern(base, COUNT * PAGE, 1);
        let (region, _) = shared(&domain, base, COUNT * PAGE);
        unmap(base + COUNT * PAGE, 3 * COUNT);
        // SAFETY: what is there becomes longer, where it is.
        let longer = unsafe { libc::mremap(base as *mut _, COUNT * PAGE, 4 * COUNT * PAGE, 0) };
        assert_eq!(longer as usize, base);
        let tail = base + 2 * COUNT * PAGE;
        write_pattern(base, 4 * COUNT * PAGE, 1);
        if is_moved {
            relocate(base, COUNT, 0);
        } else {
            unmap(base, 2 * COUNT);
        }
        assert!(has_pattern(tail, 2 * COUNT * PAGE, (2 * COUNT * PAGE) as u64 + 1));
        drop_pages(tail, COUNT);
        assert!((0..COUNT).all(|page| get(tail + page * PAGE) == 0), "what is dropped is zero");
        assert!(has_pattern(tail + COUNT * PAGE, COUNT * PAGE, (3 * COUNT * PAGE) as u64 + 1));
        region.deregister();
        assert!(has_pattern(tail + COUNT * PAGE, COUNT * PAGE, (3 * COUNT * PAGE) as u64 + 1));
        // Shorter, and longer again.
        // SAFETY: as above.
        unsafe {
            libc::mremap(tail as *mut _, 2 * COUNT * PAGE, COUNT * PAGE, 0);
            assert_eq!(libc::mremap(tail as *mut _, COUNT * PAGE, 2 * COUNT * PAGE, 0) as usize, tail);
        }
        assert!((COUNT..2 * COUNT).all(|page| get(tail + page * PAGE) == 0), "what comes back is zero");
        unmap(base, 4 * COUNT);
    }
}

/// A limit: what becomes longer goes on in the file where it ended, over what lay there before, or over the
/// next region. The documents say so.
pub(crate) fn aliased() {
    const COUNT: usize = 16;
    const WORD: u64 = 0x5eed;
    let domain = domain();
    let see_each_other = |one: usize, other: usize| {
        set(one, WORD);
        let first = get(other);
        set(other, !WORD);
        (first, get(one)) == (WORD, !WORD)
    };
    // What was behind it is elsewhere. In place, and where something else stands there now.
    for in_place in [true, false] {
        let base = pages(2 * COUNT);
        let (_region, _) = shared(&domain, base, 2 * COUNT * PAGE);
        let elsewhere = relocate(base + COUNT * PAGE, COUNT, 0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is there; then our own pages become longer.
        let longer = unsafe {
            if !in_place {
                let hole = (base + COUNT * PAGE) as *mut _;
                assert_eq!(libc::mmap(hole, PAGE, libc::PROT_NONE, flags, -1, 0), hole);
            }
            libc::mremap(base as *mut _, COUNT * PAGE, 2 * COUNT * PAGE, libc::MREMAP_MAYMOVE)
        } as usize;
        assert_ne!(longer as *mut _, libc::MAP_FAILED);
        assert_eq!(longer == base, in_place);
        assert!(see_each_other(longer + COUNT * PAGE, elsewhere));
    }
    // By more than what is left between two regions: 4 GiB.
    let (one, other) = (pages(COUNT), pages(COUNT));
    let (_region, first) = shared(&domain, one, COUNT * PAGE);
    let (_next, second) = shared(&domain, other, COUNT * PAGE);
    let between = (second.offset - first.offset) as usize;
    assert!(between > 4 << 30);
    // SAFETY: our own pages become longer.
    let longer =
        unsafe { libc::mremap(one as *mut _, COUNT * PAGE, between + COUNT * PAGE, libc::MREMAP_MAYMOVE) }
            as usize;
    assert_ne!(longer as *mut _, libc::MAP_FAILED);
    assert_eq!(get(longer + (4 << 30)), 0, "there is nothing before");
    assert!(see_each_other(longer + between, other));
}

/// Private memory of which the pages are taken away and the addresses stay is empty.
pub(crate) fn emptied() {
    const COUNT: usize = 16;
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    let there = relocate(base + PAGE, 4, libc::MREMAP_DONTUNMAP);
    assert!((1..5).all(|page| get(base + page * PAGE) == 0), "the old place is empty");
    write_pattern(base, COUNT * PAGE, 9);
    assert!(has_pattern(there, 4 * PAGE, PAGE as u64 + 1), "the new one has the bytes");
    drop_pages(base, COUNT);
    assert!(has_pattern(there, 4 * PAGE, PAGE as u64 + 1));
    write_pattern(there, 4 * PAGE, 3);
    assert_eq!(get(base + PAGE), 0);
}

/// There is a call that puts memory in the place of other memory, of which the guard does not hear.
pub(crate) fn replaced_by_segment() {
    const COUNT: usize = 16;
    let domain = domain();
    let base = pages(COUNT);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    // SAFETY: a segment of the test, in the place of pages of it.
    unsafe {
        let segment = libc::shmget(libc::IPC_PRIVATE, COUNT * PAGE, 0o600);
        assert!(segment >= 0, "{}", std::io::Error::last_os_error());
        let there = libc::shmat(segment, base as *const _, libc::SHM_REMAP);
        libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
        assert_eq!(there as usize, base);
    }
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    assert_eq!(answer, Err(Refusal::Overlap), "a peer would write to other pages");
}

/// The guard works with memory of the allocator's, which may be the program's to register.
pub(crate) fn engines_own() {
    // SAFETY: a number; and where the heap begins.
    let begin = unsafe {
        assert_eq!(libc::mallopt(libc::M_ARENA_MAX, 1), 1);
        assert_eq!(libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20), 1);
        libc::sbrk(0) as usize
    };
    let domain = domain();
    shared(&domain, pages(1), PAGE);
    // SAFETY: where the heap ends.
    let end = unsafe { libc::sbrk(0) as usize };
    assert!(end > begin, "some of it is there");
    let (mut moved, mut refused) = (0, 0);
    for at in (begin.next_multiple_of(PAGE)..end).step_by(4 * PAGE) {
        let region = region(&domain, at, (4 * PAGE).min(end - at));
        match share_one(&region) {
            Ok(_) => moved += 1,
            Err(refusal) => refused += usize::from(matches!(refusal, Refusal::Memory(_))),
        }
    }
    assert!(refused > 0, "{moved} {refused}");
}

/// A kernel that does not say where threads sleep.
pub(crate) fn blind() {
    let domain = domain();
    for _ in 0..3 {
        let base = pages(16);
        write_pattern(base, 16 * PAGE, 1);
        let answer = share_one(&region(&domain, base, 16 * PAGE));
        assert!(matches!(answer, Err(Refusal::System(_, libc::EOPNOTSUPP))), "{answer:?}");
        assert!(has_pattern(base, 16 * PAGE, 1));
        drop_pages(base, 16);
        assert_eq!(get(base), 0);
    }
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    share_one(&region(&domain, pages(16), 16 * PAGE)).unwrap_err();
    assert_eq!(threads(), before, "it is not tried again and again");
}

/// More threads than one look at the list of them shows.
pub(crate) fn crowd() {
    const THREADS: usize = 300;
    let domain = domain();
    let base = pages(4);
    let (_region, _) = shared(&domain, base, 4 * PAGE);
    let go = Pipe::new();
    std::thread::scope(|scope| {
        let go = &go;
        let threads = |count: usize| {
            for _ in 0..count {
                let builder = std::thread::Builder::new().stack_size(64 << 10);
                builder.spawn_scoped(scope, move || go.hear()).unwrap();
            }
        };
        threads(THREADS / 2);
        for round in 1..50 {
            write_pattern(base, 4 * PAGE, round);
            drop_pages(base, 4);
            assert!((0..4).all(|page| get(base + page * PAGE) == 0));
        }
        // The one that drops is the last.
        threads(THREADS / 2);
        let last = scope.spawn(move || {
            for round in 1..50 {
                write_pattern(base, 4 * PAGE, round);
                drop_pages(base, 4);
                assert!((0..4).all(|page| get(base + page * PAGE) == 0));
            }
        });
        let done = last.join();
        (0..THREADS / 2 * 2).for_each(|_| go.say());
        done.unwrap();
    });
}
