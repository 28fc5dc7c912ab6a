//! Cases of what a program can tell of its pages that have been moved: SECURITY.md lists it. No byte is wrong
//! in any of them.

use crate::after::{drop_pages, status};
use crate::support::*;
use std::sync::atomic::{AtomicU64, Ordering};

const COUNT: usize = 16;

/// What madvise(2) answers: 0 or a number of errno.
fn advise(base: usize, count: usize, advice: i32) -> i32 {
    // SAFETY: pages of the test, whose bytes it gives up.
    let result = unsafe { libc::madvise(base as *mut _, count * PAGE, advice) };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

pub(crate) fn removed() {
    let domain = domain();
    let (private, base) = (pages(COUNT), pages(COUNT));
    assert_eq!(advise(private, COUNT, libc::MADV_REMOVE), libc::EINVAL);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, place) = shared(&domain, base, COUNT * PAGE);
    let view = view(&place);
    for _ in 0..100 {
        assert_eq!(advise(base + PAGE, 2, libc::MADV_REMOVE), 0);
        assert!((PAGE..3 * PAGE).step_by(8).all(|at| get(base + at) == 0));
        assert!(has_pattern(base, PAGE, 1));
        assert!(has_pattern(base + 3 * PAGE, (COUNT - 3) * PAGE, 3 * PAGE as u64 + 1));
        write_pattern(base + PAGE, 2 * PAGE, PAGE as u64 + 1);
    }
    let mut word = [0; 8];
    view.read(PAGE, &mut word).unwrap();
    assert_eq!(word, (PAGE as u64 + 1).to_ne_bytes(), "the peer has the same pages");
}

/// What registering memory with a userfaultfd(2) of the program's answers: 0 or a number of errno.
fn register(base: usize, length: usize) -> i32 {
    const USER_MODE_ONLY: i32 = 1;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const MISSING: u64 = 1;
    let mut api = [0xaau64, 0, 0];
    let mut range = [base as u64, length as u64, MISSING, 0];
    // SAFETY: the structures that the commands take; pages of the test. All ends with the descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) as i32;
        assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
        assert_eq!(libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()), 0);
        let result = libc::ioctl(fd, UFFDIO_REGISTER, range.as_mut_ptr());
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        libc::close(fd);
        if result == 0 { 0 } else { errno }
    }
}

pub(crate) fn faults_of_others() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    assert_eq!(register(base, COUNT * PAGE), 0, "private memory");
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    assert_eq!(register(base, COUNT * PAGE), libc::EBUSY);
    assert!(has_pattern(base, COUNT * PAGE, 1));
    drop_pages(base, COUNT);
    assert_eq!(get(base), 0, "it is guarded still");
}

/// The mapping of an address, and the text about it in smaps.
fn mapping(address: usize) -> (String, String) {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut rest) = (None, String::new());
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(start, end)| Some((number(start)?, number(end)?))) {
            if found.is_some() {
                break;
            }
            found = (start..end).contains(&address).then(|| line.to_owned());
        } else if found.is_some() {
            rest += line;
            rest.push('\n');
        }
    }
    (found.expect("it is mapped"), rest)
}

pub(crate) fn counted() {
    const LENGTH: usize = 16 << 20;
    let domain = domain();
    let base = pages(LENGTH / PAGE);
    write_pattern(base, LENGTH, 1);
    let before = status("RssShmem:");
    let (_region, _) = shared(&domain, base, LENGTH);
    // The kernel counts with a small error.
    assert!(status("RssShmem:") >= before + (LENGTH / 1024 / 2) as u64);
    let (line, _) = mapping(base);
    assert!(line.contains("/memfd:adverb"), "{line}");
}

pub(crate) fn huge_pages() {
    let domain = domain();
    let has_flag = |base: usize, flag: &str| {
        let (_, rest) = mapping(base);
        let flags = rest.lines().find_map(|line| line.strip_prefix("VmFlags:")).expect("the flags");
        flags.split(' ').any(|one| one == flag)
    };
    for (advice, flag) in [(libc::MADV_HUGEPAGE, "hg"), (libc::MADV_NOHUGEPAGE, "nh")] {
        let base = pages(COUNT);
        write_pattern(base, COUNT * PAGE, 1);
        let there = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(advise(base, COUNT, advice), if there { 0 } else { libc::EINVAL });
        assert_eq!(has_flag(base, flag), there);
        let (_region, _) = shared(&domain, base, COUNT * PAGE);
        assert!(!has_flag(base, flag), "{flag}");
        assert!(has_pattern(base, COUNT * PAGE, 1));
    }
}

/// Whether the kernel can read a word of ours.
fn can_be_read(address: usize) -> bool {
    let mut word = 0u64;
    let [to, from] =
        [(&raw mut word).cast(), address as *mut _].map(|iov_base| libc::iovec { iov_base, iov_len: 8 });
    // SAFETY: fills a live local; a bad address is an error.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) == 8 }
}

/// A guard page of a program (MADV_GUARD_INSTALL) has its old bytes afterwards, where private memory has
/// zeros. An older kernel has no such pages, or none of shared memory: then nothing happens to the bytes.
pub(crate) fn guard_pages() {
    const INSTALL: i32 = 102;
    const REMOVE: i32 = 103;
    let domain = domain();
    let (private, base) = (pages(COUNT), pages(COUNT));
    write_pattern(private, COUNT * PAGE, 1);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    let answers = [private, base].map(|base| advise(base + PAGE, 1, INSTALL));
    let [on_private, on_shared] = answers;
    assert!(matches!(answers, [0, 0] | [0, libc::EINVAL] | [libc::EINVAL, libc::EINVAL]), "{answers:?}");
    if on_private == 0 {
        assert!(!can_be_read(private + PAGE));
        assert_eq!(advise(private + PAGE, 1, REMOVE), 0);
        assert!((PAGE..2 * PAGE).step_by(8).all(|at| get(private + at) == 0));
    }
    if on_shared == 0 {
        assert!(!can_be_read(base + PAGE) && can_be_read(base) && can_be_read(base + 2 * PAGE));
        let child = fork(|| has_pattern(base, COUNT * PAGE, 1));
        assert_eq!(wait(child), End::Status(0), "a child has the bytes, and no guard page");
        assert_eq!(advise(base + PAGE, 1, REMOVE), 0);
    }
    assert!(has_pattern(base, COUNT * PAGE, 1), "the old bytes");
}

/// mremap(2) with an old size of 0 makes a second mapping of shared memory; of private memory there is no
/// such thing.
pub(crate) fn duplicated() {
    let domain = domain();
    let duplicate = |base: usize, count: usize| {
        // SAFETY: pages of the test, which stay as they are: a new mapping.
        unsafe { libc::mremap(base as *mut _, 0, count * PAGE, libc::MREMAP_MAYMOVE) }
    };
    assert_eq!(duplicate(pages(COUNT), COUNT), libc::MAP_FAILED);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    let base = pages(COUNT);
    let (_region, place) = shared(&domain, base, COUNT * PAGE);
    for (first, count) in [(0, COUNT), (4, 4), (8, 8)] {
        write_pattern(base, COUNT * PAGE, 1);
        let part = base + first * PAGE;
        let second = duplicate(part, count);
        assert_ne!(second, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let second = second as usize;
        assert!(has_pattern(second, count * PAGE, (first * PAGE) as u64 + 1), "the same bytes");
        set(second + PAGE, 77);
        assert_eq!(get(part + PAGE), 77, "a second view");
        set(part + PAGE, ((first + 1) * PAGE) as u64 + 1);
        // What is dropped in one is gone from both.
        drop_pages(second, 1);
        assert_eq!((get(part), get(second)), (0, 0));
        drop_pages(part + PAGE, 1);
        assert_eq!((get(part + PAGE), get(second + PAGE)), (0, 0));
        write_pattern(base, COUNT * PAGE, 1);
        // The view may go, and what it shows stays.
        // SAFETY: a mapping of the test.
        assert_eq!(unsafe { libc::munmap(second as *mut _, count * PAGE) }, 0);
        drop_pages(base, 1);
        assert!(has_pattern(base + PAGE, (COUNT - 1) * PAGE, PAGE as u64 + 1));
    }
    // What it shows may go, and the view has zeros.
    let second = duplicate(base, COUNT) as usize;
    let file = self::duplicate(&place);
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::munmap(base as *mut _, COUNT * PAGE) }, 0);
    // The guard may have seen this thread run for a while, and goes on after the call then.
    until(|| bytes_in_file(&file, &place) == 0);
    assert!((0..COUNT).all(|page| get(second + page * PAGE) == 0));
}

/// Another process copies from pages at the very time at which they are moved: it gets the bytes, or EFAULT.
pub(crate) fn read_by_another_process() {
    const LENGTH: usize = 8 << 20;
    const SEED: u64 = 1;
    let shared_words = map(1, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let (base, round, end) = (word(shared_words), word(shared_words + 8), word(shared_words + 16));
    let is_set = |word: &AtomicU64| word.load(Ordering::SeqCst) != 0;
    // The child has one thread of its own, and may be looked at by its parent.
    let child = fork(|| {
        let domain = domain();
        while !is_set(end) {
            let at = pages(LENGTH / PAGE);
            write_pattern(at, LENGTH, SEED);
            let region = region(&domain, at, LENGTH);
            base.store(at as u64, Ordering::SeqCst);
            // Odd: the pages are there.
            round.fetch_add(1, Ordering::SeqCst);
            share_one(&region).expect("it is shared");
            round.fetch_add(1, Ordering::SeqCst);
            let is_right = has_pattern(at, LENGTH, SEED);
            drop(region);
            // SAFETY: our own pages.
            if !is_right || unsafe { libc::munmap(at as *mut _, LENGTH) } != 0 {
                return false;
            }
        }
        true
    });
    let (mut missing, mut right, mut at) = (0, 0, 0);
    let mut wrong = None;
    while (missing < 10 || right < 10) && wrong.is_none() {
        let before = round.load(Ordering::SeqCst);
        at = (at + 4099 * 8) % LENGTH;
        let mut there = 0u64;
        let local = libc::iovec { iov_base: (&raw mut there).cast(), iov_len: 8 };
        let remote =
            libc::iovec { iov_base: (base.load(Ordering::SeqCst) as usize + at) as *mut _, iov_len: 8 };
        // SAFETY: fills a live local with bytes of the child's.
        let read = unsafe { libc::process_vm_readv(child, &raw const local, 1, &raw const remote, 1, 0) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        if before % 2 == 0 || round.load(Ordering::SeqCst) != before {
            continue;
        }
        match (read, errno) {
            (8, _) if there == at as u64 + SEED => right += 1,
            (-1, Some(libc::EFAULT)) => missing += 1,
            _ => wrong = Some((read, errno, at, there)),
        }
    }
    end.store(1, Ordering::SeqCst);
    assert_eq!((wait(child), wrong), (End::Status(0), None));
}
