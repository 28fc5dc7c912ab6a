//! Cases with one thread.

use crate::support::*;
use adverb_core::memory::moved::{Refusal, share};
use adverb_core::region::{MemoryRegion, Reregistration};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) fn peer() {
    let domain = domain();
    let length = 200 * PAGE;
    let base = pages(length / PAGE);
    write_pattern(base, length, 1);
    // Not whole pages, at either end.
    let region = region(&domain, base + 24, length - 48);
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = libc::EXDEV };
    let place = share_one(&region).expect("it is shared");
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EXDEV), "errno is left alone");
    assert_eq!((place.address, place.length), (base + PAGE, length - 2 * PAGE));
    assert_eq!(share_one(&region), Ok(place), "again");
    assert!(has_pattern(base, length, 1), "nothing has changed");
    let file = duplicate(&place);
    assert_eq!(bytes_in_file(&file, &place), place.length as u64);
    let child = fork(|| {
        let view = view_of(&file, place.offset, place.length);
        let mut words = vec![0; place.length];
        view.read(0, &mut words).expect("it can be read");
        let sees = words
            .chunks_exact(8)
            .enumerate()
            .all(|(at, word)| word == ((PAGE + at * 8) as u64 + 1).to_ne_bytes());
        view.write(16, &[0xab; 3000]).expect("it can be written");
        sees && view.fetch_add(PAGE, 5) == Ok(2 * PAGE as u64 + 1)
    });
    assert_eq!(wait(child), End::Status(0));
    // SAFETY: our own pages.
    let written = unsafe { std::slice::from_raw_parts((place.address + 16) as *const u8, 3000) };
    assert!(written.iter().all(|byte| *byte == 0xab));
    assert_eq!(get(place.address + PAGE), 2 * PAGE as u64 + 6);
    assert_eq!(get(place.address + 8), PAGE as u64 + 9);
    assert!(has_pattern(base, PAGE, 1) && has_pattern(base + 2 * PAGE + 8, PAGE, 2 * PAGE as u64 + 9));
    drop(region);
    assert_eq!(get(place.address + PAGE), 2 * PAGE as u64 + 6);
}

fn view_of(file: &std::os::fd::OwnedFd, offset: u64, length: usize) -> adverb_core::memory::moved::View {
    use std::os::fd::AsFd;
    adverb_core::memory::moved::View::map(file.as_fd(), offset, length, true).expect("it can be mapped")
}

static TARGET: AtomicUsize = AtomicUsize::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);
const SLOTS: usize = 64 * PAGE / 8;
static EXPECTED: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

extern "C" fn on_alarm(_: i32) {
    let count = WRITTEN.fetch_add(1, Ordering::Relaxed) + 1;
    // All over the pages.
    let slot = (count as usize).wrapping_mul(7919) % SLOTS;
    set(TARGET.load(Ordering::Relaxed) + slot * 8, count);
    EXPECTED[slot].store(count, Ordering::Relaxed);
}

pub(crate) fn handler() {
    let domain = domain();
    let base = pages(64);
    TARGET.store(base, Ordering::Relaxed);
    // SAFETY: the handler stores to mapped pages and to statics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        let each = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: each, it_value: each };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    let mut moves = 0;
    while moves < 200 || WRITTEN.load(Ordering::Relaxed) < 500 {
        let region = region(&domain, base, 64 * PAGE);
        share_one(&region).expect("it is shared");
        moves += 1;
        drop(region);
        // Private again, in the same place, with what was there; the handler waits.
        let blocked = adverb_core::signals::SignalMask::new();
        let words: Vec<u64> = (0..SLOTS).map(|slot| get(base + slot * 8)).collect();
        // SAFETY: our own pages: fresh ones take their place.
        let fresh = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(base as *mut _, 64 * PAGE, protection, flags, -1, 0)
        };
        assert_eq!(fresh as usize, base);
        words.iter().enumerate().for_each(|(slot, word)| set(base + slot * 8, *word));
        drop(blocked);
    }
    // SAFETY: switches the timer off.
    unsafe {
        let timer: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    for (slot, expected) in EXPECTED.iter().enumerate() {
        assert_eq!(get(base + slot * 8), expected.load(Ordering::Relaxed), "slot {slot}");
    }
}

pub(crate) fn sparse() {
    let domain = domain();
    let length = 64 << 20;
    let base = map(
        length / PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    let touched = [0, 1 << 20, (44 << 20) + 8, length - 8];
    touched.iter().for_each(|at| set(base + at, *at as u64 + 1));
    let (region, place) = shared(&domain, base, length);
    let file = duplicate(&place);
    assert!(bytes_in_file(&file, &place) <= 4 << 18, "{} bytes", bytes_in_file(&file, &place));
    let view = view(&place);
    view.write(37 << 20, &[1]).unwrap();
    assert_eq!(get(base + (37 << 20)), 1);
    let child = fork(|| {
        set(base + 16, 16);
        touched.iter().all(|at| get(base + at) == *at as u64 + 1) && get(base + (37 << 20) + 8) == 0
    });
    assert_eq!(wait(child), End::Status(0));
    assert_eq!(get(base + 16), 0);
    drop(region);
    assert!(touched.iter().all(|at| get(base + at) == *at as u64 + 1));
    assert_eq!(get(base + (37 << 20)), 1);
}

pub(crate) fn same_bytes() {
    let domain = domain();
    let base = pages(32);
    write_pattern(base, 32 * PAGE, 3);
    let whole = region(&domain, base, 32 * PAGE);
    let part = region(&domain, base + 8 * PAGE + 8, 8 * PAGE);
    let beyond = region(&domain, base + 16 * PAGE, 16 * PAGE);
    let answers = share(&[whole.clone(), part.clone()]);
    let (Ok(first), Ok(second)) = (answers[0], answers[1]) else { panic!("{answers:?}") };
    assert_eq!(second.address, base + 9 * PAGE);
    assert_eq!(second.offset, first.offset + 9 * PAGE as u64);
    assert_eq!(second.length, 7 * PAGE);
    drop(whole);
    view(&second).write(0, &7u64.to_ne_bytes()).unwrap();
    assert_eq!(get(second.address), 7, "the other region keeps them");
    let beyond_place = share_one(&beyond).expect("as long as the whole is moved");
    assert_eq!(beyond_place.offset, first.offset + 16 * PAGE as u64);
    drop(beyond);
    drop(part);

    let base = pages(32);
    write_pattern(base, 32 * PAGE, 3);
    let part = region(&domain, base + 8 * PAGE, 8 * PAGE);
    share_one(&part).expect("it is shared");
    let whole = region(&domain, base, 32 * PAGE);
    assert_eq!(share_one(&whole), Err(Refusal::Overlap));
    drop(part);
    assert_eq!(share_one(&whole), Err(Refusal::Overlap), "it stays shared");
    assert!(has_pattern(base, 32 * PAGE, 3));
    assert!(domain.regions().len() == 1 && domain.regions()[0].key() == whole.key());
}

pub(crate) fn changed() {
    let domain = domain();
    let base = pages(32);
    write_pattern(base, 32 * PAGE, 3);
    let (region, place) = shared(&domain, base, 32 * PAGE);
    let bytes = Some((base, 16 * PAGE as u64));
    // SAFETY: pages of the test.
    let region: std::sync::Arc<MemoryRegion> =
        unsafe { region.reregister(&Reregistration { bytes, ..Default::default() }) }.unwrap();
    assert!(has_pattern(base, 32 * PAGE, 3));
    let again = share_one(&region).expect("it is shared");
    assert_eq!((again.length, again.offset), (16 * PAGE, place.offset));
    view(&again).write(0, &9u64.to_ne_bytes()).unwrap();
    assert_eq!(get(base), 9);
    region.deregister();
    assert_eq!(share_one(&region), Err(Refusal::Ended));
}

/// Pages of several mappings that lie side by side, as those of a heap that grows in a child of fork(2): the
/// kernel moves the pages of one mapping at a time.
pub(crate) fn side_by_side() {
    const PIECES: [usize; 3] = [5, 4, 3];
    let count = PIECES.iter().sum::<usize>();
    let base = pages(count);
    let mut at = base;
    for piece in PIECES {
        let elsewhere = pages(piece);
        write_pattern(elsewhere, piece * PAGE, 1);
        // SAFETY: pages of the test take the place of others.
        let moved = unsafe {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(elsewhere as *mut _, piece * PAGE, piece * PAGE, flags, at as *mut libc::c_void)
        };
        assert_eq!(moved as usize, at);
        at += piece * PAGE;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_inside = |line: &&str| {
        let start = line.split('-').next().and_then(|start| usize::from_str_radix(start, 16).ok());
        start.is_some_and(|start| (base..base + count * PAGE).contains(&start))
    };
    assert_eq!(maps.lines().filter(is_inside).count(), PIECES.len(), "they are one mapping");
    write_pattern(base, count * PAGE, 1);
    let domain = domain();
    let (_region, place) = shared(&domain, base, count * PAGE);
    assert!(has_pattern(base, count * PAGE, 1));
    let mut words = vec![0; count * PAGE];
    view(&place).read(0, &mut words).unwrap();
    let is_right = |(at, word): (usize, &[u8])| word == (8 * at as u64 + 1).to_ne_bytes();
    assert!(words.chunks(8).enumerate().all(is_right));
}
