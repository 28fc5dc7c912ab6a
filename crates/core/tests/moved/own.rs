//! Cases of the engine's own memory, which peers map as it is: device memory, and pages of the Rust API.

use crate::after::mappings;
use crate::support::*;
use adverb_core::memory::Access;
use adverb_core::memory::moved::Place;
use adverb_core::memory::ways::{Facts, Memory, Way};
use adverb_core::region::{DeviceMemory, MemoryRegion, Pages, ProtectionDomain};
use std::sync::Arc;

const LENGTH: usize = 8 * PAGE;

fn place(region: &MemoryRegion) -> Place {
    let choice = Facts::of(region.memory(), false).choose();
    let Way::Mapped(place) = choice.way else { panic!("{choice}") };
    place
}

fn engines(domain: &Arc<ProtectionDomain>) -> (Arc<Pages>, Place) {
    let pages = Pages::for_peers(domain, LENGTH, ALL).expect("pages");
    let place = place(&domain.region(pages.key()).expect("their region"));
    (pages, place)
}

fn device(domain: &Arc<ProtectionDomain>, length: usize) -> Arc<DeviceMemory> {
    DeviceMemory::new(domain.context(), length as u64, 0, 7).expect("device memory")
}

fn region_of(
    memory: &Arc<DeviceMemory>,
    domain: &Arc<ProtectionDomain>,
    from: u64,
    length: u64,
) -> Arc<MemoryRegion> {
    memory.register(domain, from, length, ALL | Access::ZERO_BASED).expect("a region")
}

fn word_of(memory: &DeviceMemory, at: u64) -> u64 {
    let mut word = [0; 8];
    memory.read(at, &mut word).expect("it is there");
    u64::from_ne_bytes(word)
}

/// To the byte, beside other threads and without any look at what the process has.
pub(crate) fn mapped() {
    let domain = domain();
    let (go, stop) = (Pipe::new(), Pipe::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            go.say();
            stop.hear();
        });
        go.hear();
        let (pages, place) = engines(&domain);
        assert_eq!((place.address, place.length), (pages.start().as_ptr() as usize, LENGTH));
        let peer = view(&place);
        // SAFETY: nobody borrows the bytes.
        unsafe { pages.write(0, &[5; LENGTH]) };
        let mut found = [0; 4];
        peer.read(LENGTH - 4, &mut found).expect("it is mapped");
        peer.write(8, &[9]).expect("it is mapped");
        pages.read(6, &mut found[..3]);
        assert_eq!(found, [5, 5, 9, 5]);

        let memory = device(&domain, 1000);
        let region = region_of(&memory, &domain, 20, 17);
        let place = self::place(&region);
        assert_eq!(place.length, 17);
        let peer = view(&place);
        peer.write(0, &[3; 17]).expect("it is mapped");
        assert!(peer.write(1, &[4; 17]).is_err(), "not a byte further");
        let mut all = [0; 64];
        memory.read(0, &mut all).expect("it is there");
        assert!(all[20..37] == [3; 17] && all[..20] == [0; 20] && all[37..] == [0; 27]);
        stop.say();
    });
}

/// Pages are a child's own, as private memory is; device memory is the same in both.
pub(crate) fn children() {
    let domain = domain();
    let (pages, place) = engines(&domain);
    let memory = device(&domain, 4096);
    let region = region_of(&memory, &domain, 0, 4096);
    let base = pages.start().as_ptr() as usize;
    let peer = view(&place);
    write_pattern(base, LENGTH, 1);
    memory.write(0, &1u64.to_ne_bytes()).expect("it is there");
    let (ready, go) = (Pipe::new(), Pipe::new());
    let child = fork(|| {
        let mut is_right = has_pattern(base, LENGTH, 1) && word_of(&memory, 0) == 1;
        write_pattern(base, LENGTH, 1000);
        is_right &= memory.write(8, &2u64.to_ne_bytes()).is_ok();
        ready.say();
        go.hear();
        is_right &= has_pattern(base, LENGTH, 1000) && word_of(&memory, 0) == 3;
        let grandchild = fork(|| {
            let is_right = has_pattern(base, LENGTH, 1000) && word_of(&memory, 0) == 3;
            write_pattern(base, LENGTH, 2000);
            is_right
        });
        is_right &= wait(grandchild) == End::Status(0) && has_pattern(base, LENGTH, 1000);
        // Its engine has memory of its own, at other places of another file.
        let own = self::domain();
        let (mine, place) = engines(&own);
        set(mine.start().as_ptr() as usize, 77);
        let mut word = [0; 8];
        is_right &= view(&place).read(0, &mut word).is_ok() && u64::from_ne_bytes(word) == 77;
        drop((mine, pages.clone(), region.clone()));
        is_right
    });
    ready.hear();
    assert!(has_pattern(base, LENGTH, 1), "the child's writes are its own");
    assert_eq!(word_of(&memory, 8), 2, "and here they are not");
    memory.write(0, &3u64.to_ne_bytes()).expect("it is there");
    peer.write(0, &[0xee; 8]).expect("it is mapped");
    go.say();
    assert_eq!(wait(child), End::Status(0));
    assert!(get(base) == u64::from_ne_bytes([0xee; 8]) && get(base + 8) == 9);
}

/// A peer that keeps its map of what has ended finds zeros, and reaches nothing that is made later, wherever
/// that lies.
pub(crate) fn ended() {
    let domain = domain();
    let mut offsets = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for round in 0..2000u64 {
        let (pages, place) = engines(&domain);
        let memory = device(&domain, LENGTH);
        let region = region_of(&memory, &domain, 0, LENGTH as u64);
        let other = self::place(&region);
        assert!(offsets.insert(place.offset) && offsets.insert(other.offset), "a place is used once");
        let base = pages.start().as_ptr() as usize;
        assert!(get(base) == 0 && get(base + LENGTH - 8) == 0 && word_of(&memory, 0) == 0, "fresh");
        write_pattern(base, LENGTH, round);
        memory.write(0, &[7; LENGTH]).expect("it is there");
        kept.push((place, view(&place), other, view(&other)));
        if kept.len() > 16 {
            let (_, early, _, old) = &kept[0];
            early.write(8, &[0xee; 16]).expect("still mapped there");
            old.write(8, &[0xee; 16]).expect("still mapped there");
            assert!(has_pattern(base, LENGTH, round) && word_of(&memory, 8) == u64::from_ne_bytes([7; 8]));
            kept.remove(0);
        }
        drop((pages, region));
        memory.retire().expect("no region of it is left");
        drop(memory);
        let (place, early, other, old) = kept.last().expect("one");
        let file = duplicate(place);
        assert_eq!((bytes_in_file(&file, place), bytes_in_file(&file, other)), (0, 0), "it is given back");
        for view in [early, old] {
            let mut word = [1; 8];
            view.read(16, &mut word).expect("still mapped");
            assert_eq!(word, [0; 8], "a peer reads nothing of what has ended");
        }
    }
}

/// What the program does to its moved memory leaves the engine's beside it, of the same file, alone.
pub(crate) fn beside_moved() {
    let domain = domain();
    let (own, _) = engines(&domain);
    let own_base = own.start().as_ptr() as usize;
    write_pattern(own_base, LENGTH, 5);
    // A moved region with the engine's pages next to it: room for it is found below, or made above.
    let base = pages(16);
    let (region, place) = shared(&domain, base, 16 * PAGE);
    let (next, _) = engines(&domain);
    let next_base = next.start().as_ptr() as usize;
    write_pattern(next_base, LENGTH, 6);
    write_pattern(base, 16 * PAGE, 7);
    // SAFETY: our own pages, of which the first half goes.
    unsafe {
        assert_eq!(libc::madvise(base as *mut _, 4 * PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(libc::munmap((base + 8 * PAGE) as *mut _, 8 * PAGE), 0);
    }
    assert!((0..4 * PAGE).step_by(8).all(|at| get(base + at) == 0), "dropped");
    assert!(has_pattern(own_base, LENGTH, 5) && has_pattern(next_base, LENGTH, 6));
    drop(region);
    // SAFETY: our own pages.
    unsafe { assert_eq!(libc::munmap(base as *mut _, 8 * PAGE), 0) };
    let file = duplicate(&place);
    until(|| bytes_in_file(&file, &place) == 0);
    assert!(has_pattern(own_base, LENGTH, 5) && has_pattern(next_base, LENGTH, 6));
}

/// Ordinary memory does, too.
pub(crate) fn without() {
    let domain = domain();
    let pages = Pages::for_peers(&domain, LENGTH, ALL).expect("pages");
    let memory = device(&domain, LENGTH);
    let region = region_of(&memory, &domain, 0, LENGTH as u64);
    let of_pages = domain.region(pages.key()).expect("their region");
    for region in [&region, &of_pages] {
        assert!(!matches!(region.memory(), Memory::Own(_)), "{:?}", region.memory());
    }
    let base = pages.start().as_ptr() as usize;
    write_pattern(base, LENGTH, 1);
    memory.write(0, &[1; 8]).expect("it is there");
    let child = fork(|| {
        let is_right = has_pattern(base, LENGTH, 1);
        set(base, 99);
        is_right && memory.write(0, &[2; 8]).is_ok()
    });
    assert_eq!(wait(child), End::Status(0));
    assert!(has_pattern(base, LENGTH, 1) && word_of(&memory, 0) == u64::from_ne_bytes([2; 8]));
}

/// A fork copies no more than is said: what is beyond that is ordinary memory.
pub(crate) fn much() {
    let domain = domain();
    let make = || Pages::for_peers(&domain, 12 << 20, ALL).expect("pages");
    let is_mapped =
        |pages: &Arc<Pages>| matches!(domain.region(pages.key()).expect("a region").memory(), Memory::Own(_));
    let all: Vec<_> = (0..8).map(|_| make()).collect();
    assert_eq!(all.iter().filter(|pages| is_mapped(pages)).count(), 5);
    drop(all);
    assert!(is_mapped(&make()), "what has ended counts no more");
}

/// Many small ones: what is beyond a number of pieces is ordinary memory.
pub(crate) fn many() {
    let domain = domain();
    let before = mappings();
    let all: Vec<_> = (0..5000).map(|_| Pages::for_peers(&domain, PAGE, ALL).expect("pages")).collect();
    // The system merges those of ordinary memory.
    assert!(mappings() < before + 1200, "{} mappings more", mappings() - before);
    drop(all);
    assert!(mappings() < before + 100, "{} mappings more", mappings() - before);
    engines(&domain);
}

/// Whether anything is mapped there.
fn is_mapped(address: usize) -> bool {
    let mut resident = 0;
    // SAFETY: asks about a page, and fills a live local.
    unsafe { libc::mincore(address as *mut _, PAGE, &raw mut resident) == 0 }
}

/// The process is its own peer here.
pub(crate) fn viewed() {
    let domain = domain();
    let (pages, place) = engines(&domain);
    let base = pages.start().as_ptr() as usize;
    let _peer = view(&place);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("what is mapped");
    let begins = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
    let all: Vec<_> =
        maps.lines().filter(|line| line.contains("/memfd:adverb (")).filter_map(begins).collect();
    let others: Vec<_> = all.into_iter().filter(|begin| !(base..base + LENGTH).contains(begin)).collect();
    assert!(others.iter().any(|begin| is_mapped(*begin)), "the view is one of them");
    write_pattern(base, LENGTH, 1);
    let child = fork(|| has_pattern(base, LENGTH, 1) && !others.iter().any(|begin| is_mapped(*begin)));
    assert_eq!(wait(child), End::Status(0));
}

/// Nobody can look into /proc then.
pub(crate) fn exhausted() {
    let domain = domain();
    let (pages, _) = engines(&domain);
    let base = pages.start().as_ptr() as usize;
    write_pattern(base, LENGTH, 1);
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live local.
    unsafe { assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0) };
    assert_eq!(wait(fork(|| has_pattern(base, LENGTH, 1))), End::Status(0));
}

/// As a raw clone(2) makes it.
pub(crate) fn raw() {
    let domain = domain();
    let (pages, place) = engines(&domain);
    let base = pages.start().as_ptr() as usize;
    let memory = device(&domain, LENGTH);
    write_pattern(base, LENGTH, 1);
    memory.write(0, &[7; LENGTH]).expect("it is there");
    // SAFETY: as fork(2); the child ends what it has, and itself. The parent keeps its own of both.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
    if child == 0 {
        drop((pages, memory));
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(child), End::Status(0));
    assert!(
        has_pattern(base, LENGTH, 1) && word_of(&memory, LENGTH as u64 - 8) == u64::from_ne_bytes([7; 8])
    );
    // Here they end as they do without a child.
    let file = duplicate(&place);
    assert_eq!(bytes_in_file(&file, &place), LENGTH as u64);
    drop(pages);
    assert_eq!(bytes_in_file(&file, &place), 0);
}
