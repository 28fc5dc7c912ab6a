//! Cases about memory after its deregistration.

use crate::support::*;
use std::time::{Duration, Instant};

const COUNT: usize = 80;

pub(crate) fn private() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let mut offsets = Vec::new();
    for round in 0..5 {
        let (region, place) = shared(&domain, base, COUNT * PAGE);
        let view = view(&place);
        view.write(0, &(round + 1u64).to_ne_bytes()).unwrap();
        let file = duplicate(&place);
        drop(region);
        assert_eq!(bytes_in_file(&file, &place), 0);
        view.write(0, &[0xff; 64]).unwrap();
        assert_eq!(get(base), round + 1, "a late peer writes nothing of the program's");
        set(base, 1);
        assert!(has_pattern(base, COUNT * PAGE, 1));
        offsets.push(place.offset);
    }
    offsets.dedup();
    assert_eq!(offsets.len(), 5, "no place is used twice");
    // As ordinary memory after a fork.
    let (ready, go) = (Pipe::new(), Pipe::new());
    let child = fork(|| {
        write_pattern(base, PAGE, 50);
        ready.say();
        go.hear();
        has_pattern(base, PAGE, 50) && has_pattern(base + PAGE, PAGE, PAGE as u64 + 1)
    });
    ready.hear();
    assert!(has_pattern(base, COUNT * PAGE, 1));
    write_pattern(base, COUNT * PAGE, 60);
    go.say();
    assert_eq!(wait(child), End::Status(0));
}

pub(crate) fn dropped() {
    let domain = domain();
    let base = pages(COUNT);
    for _ in 0..3 {
        write_pattern(base, COUNT * PAGE, 1);
        let (region, place) = shared(&domain, base, COUNT * PAGE);
        view(&place).write(0, &[3; 64]).unwrap();
        drop(region);
        // SAFETY: our own pages.
        assert_eq!(unsafe { libc::madvise(base as *mut _, COUNT * PAGE, libc::MADV_DONTNEED) }, 0);
        assert!((0..COUNT * PAGE).step_by(8).all(|at| get(base + at) == 0));
    }
}

pub(crate) fn freed() {
    let domain = domain();
    // On the heap, and mapped.
    for length in [96 << 10, 1 << 20] {
        for round in 0..20u8 {
            // SAFETY: the memory is written and read within its length, and freed once.
            unsafe {
                let memory = libc::malloc(length).cast::<u8>();
                std::ptr::write_bytes(memory, round | 1, length);
                let (region, place) = shared(&domain, memory as usize, length);
                view(&place).write(0, &[0xaa; 100]).unwrap();
                assert_eq!(*(place.address as *const u8), 0xaa);
                drop(region);
                libc::free(memory.cast());
                let fresh = libc::calloc(length, 1).cast::<u8>();
                assert!(std::slice::from_raw_parts(fresh, length).iter().all(|byte| *byte == 0));
                libc::free(fresh.cast());
                libc::malloc_trim(0);
            }
        }
    }
}

pub(crate) fn replaced() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&domain, base, COUNT * PAGE);
    let file = duplicate(&place);
    let new = map(8, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    write_pattern(new, 8 * PAGE, 70);
    // SAFETY: our own pages: others take the place of some, and some end.
    unsafe {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let put = libc::mremap(new as *mut _, 8 * PAGE, 8 * PAGE, how, base + 8 * PAGE);
        assert_ne!(put, libc::MAP_FAILED);
        assert_eq!(libc::munmap((base + 40 * PAGE) as *mut _, 8 * PAGE), 0);
    }
    let child = fork(|| {
        let is_right = has_pattern(base, 8 * PAGE, 1) && has_pattern(base + 8 * PAGE, 8 * PAGE, 70);
        set(base, 9);
        set(base + 8 * PAGE, 71);
        is_right
    });
    assert_eq!(wait(child), End::Status(0));
    drop(region);
    assert_eq!(get(base + 8 * PAGE), 71, "what is shared with a child is shared still");
    set(base + 8 * PAGE, 70);
    assert!(has_pattern(base, 8 * PAGE, 1) && has_pattern(base + 8 * PAGE, 8 * PAGE, 70));
    assert!(has_pattern(base + 16 * PAGE, 24 * PAGE, 16 * PAGE as u64 + 1));
    assert!(has_pattern(base + 48 * PAGE, 32 * PAGE, 48 * PAGE as u64 + 1));
    assert_eq!(bytes_in_file(&file, &place), 0);
}

pub(crate) fn relocated() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&domain, base, COUNT * PAGE);
    // SAFETY: our own pages, longer and elsewhere afterwards.
    let longer = unsafe {
        let blocked = libc::mmap(
            (base + COUNT * PAGE) as *mut _,
            PAGE,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(blocked, libc::MAP_FAILED);
        libc::mremap(base as *mut _, COUNT * PAGE, 2 * COUNT * PAGE, libc::MREMAP_MAYMOVE) as usize
    };
    assert_ne!(longer as *mut _, libc::MAP_FAILED);
    assert!(has_pattern(longer, COUNT * PAGE, 1));
    assert!((COUNT * PAGE..2 * COUNT * PAGE).step_by(8).all(|at| get(longer + at) == 0));
    drop(region);
    assert!(has_pattern(longer, COUNT * PAGE, 1));
    assert_eq!(bytes_in_file(&duplicate(&place), &place), 0);
    write_pattern(longer, COUNT * PAGE, 2);
    assert!(has_pattern(longer, COUNT * PAGE, 2));
}

pub(crate) fn rights() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, _) = shared(&domain, base, COUNT * PAGE);
    // SAFETY: our own pages.
    unsafe {
        assert_eq!(libc::mprotect(base as *mut _, 8 * PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::mlock((base + 16 * PAGE) as *const _, 4 * PAGE), 0);
    }
    drop(region);
    assert!(has_pattern(base, COUNT * PAGE, 1));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{base:x}-"))).expect("it is mapped");
    assert!(line.contains(" r--p "), "{line}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
    assert!(locked.contains(" 16 kB"), "{locked}");
}

/// A queue for asynchronous requests: from then on, requests may be under way that no thread waits for.
pub(crate) fn waits() {
    let domain = domain();
    let mut context = 0usize;
    // SAFETY: fills a live local.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) }, 0);
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let region = region(&domain, base, COUNT * PAGE);
    let place = match share_one(&region) {
        Ok(place) => place,
        Err(refusal) => {
            let off = std::env::var("ADVERB_WITHOUT").unwrap_or_default();
            assert!(!has_kernel_faults() && off.contains("userfaultfd"), "{refusal}");
            assert_eq!(refusal, adverb_core::memory::moved::Refusal::Pinned);
            return assert!(has_pattern(base, COUNT * PAGE, 1));
        }
    };
    let file = duplicate(&place);
    let begun = Instant::now();
    drop(region);
    assert!(has_pattern(base, COUNT * PAGE, 1));
    while bytes_in_file(&file, &place) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the file keeps its pages");
        std::thread::yield_now();
    }
    assert!(begun.elapsed() >= Duration::from_millis(20), "{:?} are no time to end", begun.elapsed());
    assert!(has_pattern(base, COUNT * PAGE, 1));
}
