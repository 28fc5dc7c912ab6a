//! Cases about memory that the program drops, unmaps, moves or deregisters: it is as any other.

use crate::support::*;
use adverb_core::memory::moved::Refusal;

const COUNT: usize = 80;

pub(crate) fn drop_pages(base: usize, count: usize) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::madvise(base as *mut _, count * PAGE, libc::MADV_DONTNEED) }, 0);
}

pub(crate) fn is_zero(base: usize, length: usize) -> bool {
    (0..length).step_by(8).all(|at| get(base + at) == 0)
}

/// Nobody who has got hold of them meanwhile is cut off.
pub(crate) fn stays() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let mut first = None;
    for round in 0..5 {
        let (region, place) = shared(&domain, base, COUNT * PAGE);
        assert_eq!(*first.get_or_insert(place), place, "the next registration finds them");
        view(&place).write(0, &(round + 1u64).to_ne_bytes()).unwrap();
        drop(region);
        assert_eq!(bytes_in_file(&duplicate(&place), &place), (COUNT * PAGE) as u64, "nothing is copied");
        assert_eq!(get(base), round + 1);
        set(base, 1);
        assert!(has_pattern(base, COUNT * PAGE, 1));
    }
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
    for _ in 0..200 {
        write_pattern(base, COUNT * PAGE, 1);
        let (region, place) = shared(&domain, base, COUNT * PAGE);
        let view = view(&place);
        drop_pages(base + PAGE, COUNT - 2);
        assert!(is_zero(base + PAGE, (COUNT - 2) * PAGE), "while it is registered");
        assert!(
            has_pattern(base, PAGE, 1) && get(base + (COUNT - 1) * PAGE) == ((COUNT - 1) * PAGE) as u64 + 1
        );
        let mut word = [1; 8];
        view.read(PAGE, &mut word).unwrap();
        assert_eq!(word, [0; 8], "and to the peer");
        set(base + PAGE, 5);
        view.read(PAGE, &mut word).unwrap();
        assert_eq!(word, 5u64.to_ne_bytes(), "it is shared still");
        write_pattern(base, COUNT * PAGE, 1);
        drop(region);
        drop_pages(base, COUNT);
        assert!(is_zero(base, COUNT * PAGE), "after it");
    }
}

/// The guard needs no descriptor to see what the only thread does.
pub(crate) fn dropped_without_descriptors() {
    let domain = domain();
    let base = pages(COUNT);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a plain limit; copies of a descriptor until there are no more.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        while libc::dup(0) >= 0 {}
    }
    for round in 1..1000 {
        write_pattern(base, COUNT * PAGE, round);
        drop_pages(base, COUNT);
        assert!((0..COUNT).all(|page| get(base + page * PAGE) == 0));
    }
}

/// A call that the kernel refuses drops nothing.
pub(crate) fn refused_advice() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    // SAFETY: pages of the test.
    unsafe {
        assert_eq!(libc::madvise(base as *mut _, PAGE, libc::MADV_FREE), -1);
        assert_eq!(libc::madvise((base + 8) as *mut _, PAGE, libc::MADV_DONTNEED), -1);
    }
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

/// Threads drop and use again pages of their own, all at once, in what has been shared before they were
/// started.
pub(crate) fn dropped_by_threads() {
    const THREADS: usize = 4;
    let domain = domain();
    let base = pages(THREADS * 4);
    write_pattern(base, THREADS * 4 * PAGE, 1);
    let (_region, _) = shared(&domain, base, THREADS * 4 * PAGE);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let own = base + thread * 4 * PAGE;
                for round in 1..200 {
                    drop_pages(own, 2);
                    assert!(is_zero(own, 2 * PAGE), "zeros");
                    write_pattern(own, 2 * PAGE, round);
                    std::thread::yield_now();
                    assert!(has_pattern(own, 2 * PAGE, round), "what was stored afterwards stays");
                }
            });
        }
    });
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
                let region = region(&domain, memory as usize, length);
                // Bytes that are shared are not where they were last time, or not all of them.
                match share_one(&region) {
                    Ok(place) => {
                        view(&place).write(0, &[0xaa; 100]).unwrap();
                        assert_eq!(*(place.address as *const u8), 0xaa);
                    }
                    Err(refusal) => assert_eq!(refusal, Refusal::Overlap),
                }
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

/// Unused pages are dropped at once.
pub(crate) fn jemalloc() {
    allocator("libjemalloc.so.2", &[("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")]);
}

/// Unused pages are dropped at once, by mimalloc. The setting has another name in each of its versions.
pub(crate) fn mimalloc() {
    let at_once = ["MIMALLOC_RESET_DELAY", "MIMALLOC_DECOMMIT_DELAY", "MIMALLOC_PURGE_DELAY"];
    allocator("libmimalloc.so", &at_once.map(|delay| (delay, "0")));
}

/// One that takes it on trust that dropped pages are zeros.
fn allocator(name: &str, settings: &[(&str, &str)]) {
    const FOLDERS: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    const LENGTH: usize = 256 << 10;
    if std::env::var_os("LD_PRELOAD").is_none() {
        let paths = FOLDERS.map(|folder| std::path::Path::new(folder).join(name));
        let library = paths.iter().find(|path| path.exists());
        let library = library.unwrap_or_else(|| panic!("{name} is not installed"));
        let mut again = std::process::Command::new("/proc/self/exe");
        again.args(std::env::args().skip(1)).env("LD_PRELOAD", library).envs(settings.iter().copied());
        assert!(again.status().unwrap().success());
        return;
    }
    let domain = domain();
    let mut moves = 0;
    for _ in 0..100 {
        // SAFETY: the memory is written and read within its length, and freed once.
        unsafe {
            let mut all = [std::ptr::null_mut(); 8];
            let mut regions = Vec::new();
            for memory in &mut all {
                *memory = libc::malloc(LENGTH).cast::<u8>();
                std::ptr::write_bytes(*memory, 0xee, LENGTH);
                let region = region(&domain, *memory as usize, LENGTH);
                moves += usize::from(share_one(&region).is_ok());
                regions.push(region);
            }
            // A cache of registrations keeps them until it hears that memory has gone.
            all.iter().for_each(|memory| libc::free(memory.cast()));
            for memory in &mut all {
                *memory = libc::calloc(LENGTH, 1).cast::<u8>();
                let bytes = std::slice::from_raw_parts(*memory, LENGTH);
                assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 0, "calloc gives zeros");
            }
            drop(regions);
            all.iter().for_each(|memory| libc::free(memory.cast()));
        }
    }
    assert!(moves > 0);
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
    // Other memory of the same addresses is not taken for what was there.
    let other = share_one(&self::region(&domain, base + 8 * PAGE, 8 * PAGE));
    assert!(matches!(other, Err(Refusal::Memory(_))), "{other:?}");
    assert_eq!(share_one(&self::region(&domain, base, 32 * PAGE)), Err(Refusal::Overlap));
    let (_rest, there) = shared(&domain, base + 16 * PAGE, 24 * PAGE);
    assert_eq!(there.offset, place.offset + 16 * PAGE as u64);
    until(|| bytes_in_file(&file, &place) == ((COUNT - 16) * PAGE) as u64);
}

pub(crate) fn relocated() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&domain, base, COUNT * PAGE);
    let file = duplicate(&place);
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
    let tail = longer + COUNT * PAGE;
    assert!(is_zero(tail, COUNT * PAGE));
    write_pattern(tail, COUNT * PAGE, 7);
    let child = fork(|| {
        let is_right = has_pattern(longer, COUNT * PAGE, 1) && has_pattern(tail, COUNT * PAGE, 7);
        write_pattern(longer, 2 * COUNT * PAGE, 100);
        is_right
    });
    assert_eq!(wait(child), End::Status(0), "a child has all of it");
    assert!(has_pattern(longer, COUNT * PAGE, 1) && has_pattern(tail, COUNT * PAGE, 7));
    drop_pages(tail, COUNT);
    assert!(is_zero(tail, COUNT * PAGE));
    assert!(has_pattern(longer, COUNT * PAGE, 1));
    drop_pages(longer, COUNT);
    assert!(is_zero(longer, COUNT * PAGE));
    write_pattern(longer, 2 * COUNT * PAGE, 9);
    // What is cut off and comes back has nothing in it.
    for _ in 0..100 {
        // SAFETY: our own pages, shorter and longer afterwards.
        unsafe {
            let place = libc::mremap(longer as *mut _, 2 * COUNT * PAGE, 8 * PAGE, 0);
            assert_eq!(place as usize, longer);
            let place = libc::mremap(longer as *mut _, 8 * PAGE, 2 * COUNT * PAGE, 0);
            assert_eq!(place as usize, longer);
        }
        assert!(is_zero(longer + 8 * PAGE, (2 * COUNT - 8) * PAGE));
        assert!(has_pattern(longer, 8 * PAGE, 9));
        write_pattern(longer, 2 * COUNT * PAGE, 9);
    }
    drop(region);
    // SAFETY: our own pages.
    assert_eq!(unsafe { libc::munmap(longer as *mut _, 2 * COUNT * PAGE) }, 0);
    until(|| bytes_in_file(&file, &place) == 0);
}

/// Pages in the middle change places, and are dropped and used again.
pub(crate) fn exchanged() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, _) = shared(&domain, base, COUNT * PAGE);
    let aside = pages(1);
    let put = |from: usize, to: usize| {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: pages of the test.
        let put = unsafe { libc::mremap(from as *mut _, PAGE, PAGE, how, to as *mut libc::c_void) };
        assert_eq!(put as usize, to);
    };
    let (first, second) = (base + 10 * PAGE, base + 20 * PAGE);
    put(first, aside);
    put(second, first);
    put(aside, second);
    assert!(
        has_pattern(first, PAGE, 20 * PAGE as u64 + 1) && has_pattern(second, PAGE, 10 * PAGE as u64 + 1)
    );
    drop_pages(first, 1);
    assert!(is_zero(first, PAGE) && has_pattern(second, PAGE, 10 * PAGE as u64 + 1));
    write_pattern(first, PAGE, 3);
    drop_pages(second, 1);
    assert!(is_zero(second, PAGE) && has_pattern(first, PAGE, 3));
    assert!(has_pattern(base + 11 * PAGE, 9 * PAGE, 11 * PAGE as u64 + 1));
    assert_eq!(share_one(&self::region(&domain, base, COUNT * PAGE)), Err(Refusal::Overlap));
}

/// Moved memory is charged once for what it holds, and for nothing when it is gone.
pub(crate) fn charged_once() {
    const LENGTH: usize = 16 << 20;
    let domain = domain();
    let base = pages(LENGTH / PAGE);
    write_pattern(base, LENGTH, 1);
    let (region, place) = shared(&domain, base, LENGTH);
    let file = duplicate(&place);
    drop(region);
    let anonymous = status("RssAnon:");
    drop_pages(base, LENGTH / PAGE);
    assert_eq!(bytes_in_file(&file, &place), 0);
    write_pattern(base, LENGTH, 2);
    assert_eq!(bytes_in_file(&file, &place), LENGTH as u64);
    assert!(status("RssAnon:") < anonymous + 2048, "it is not there twice");
    // SAFETY: our own pages.
    assert_eq!(unsafe { libc::munmap(base as *mut _, LENGTH) }, 0);
    until(|| bytes_in_file(&file, &place) == 0);
}

pub(crate) fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

pub(crate) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Bytes that this thread has read by system calls, the lists of `/proc` included: the work that grows with
/// the number of mappings.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("the line");
    line.parse().unwrap()
}

/// The bytes that are read in some of many rounds, later ones as few as earlier ones.
struct Reads {
    early: (usize, usize),
    late: (usize, usize),
    began: u64,
    read: [u64; 2],
}

impl Reads {
    /// For `count` rounds: it looks at the second eighth and at the last one.
    fn of(count: usize) -> Self {
        let eighth = count / 8;
        Self { early: (eighth, 2 * eighth), late: (7 * eighth, count), began: 0, read: [0; 2] }
    }

    /// To be called before each round, and after the last one.
    fn round(&mut self, round: usize) {
        for (at, (from, to)) in [self.early, self.late].into_iter().enumerate() {
            if round == from {
                self.began = bytes_read();
            } else if round == to {
                self.read[at] = bytes_read() - self.began;
            }
        }
    }

    fn check(&self, rounds: &str) {
        let [early, late] = self.read;
        assert!(early > 0 && late > 0, "both were looked at");
        assert!(late <= 2 * early, "{rounds}: {early} bytes read in early rounds, {late} in late ones");
    }
}

/// Buffers that come and go, and many that stay. No registration takes more than the first ones.
pub(crate) fn many() {
    const ROUNDS: usize = 2000;
    let domain = domain();
    let before = mappings();
    let mut reads = Reads::of(ROUNDS);
    for round in 0..ROUNDS {
        reads.round(round);
        let base = pages(2);
        let (region, _) = shared(&domain, base, 2 * PAGE);
        drop(region);
        // SAFETY: our own pages.
        assert_eq!(unsafe { libc::munmap(base as *mut _, 2 * PAGE) }, 0);
    }
    reads.round(ROUNDS);
    reads.check("buffers that come and go");
    assert!(mappings() < before + 32, "{} mappings more", mappings() - before);
    let all = pages(4000);
    let (mut refused, mut reads) = (0, Reads::of(ROUNDS));
    for at in (0..4000).step_by(2) {
        reads.round(at / 2);
        let region = region(&domain, all + at * PAGE, PAGE);
        refused += usize::from(share_one(&region) == Err(Refusal::Small));
        set(all + at * PAGE, at as u64 + 1);
    }
    reads.round(ROUNDS);
    reads.check("buffers that stay");
    assert!(refused > 1000 && mappings() < before + 600, "{refused} {}", mappings() - before);
    assert!((0..4000).step_by(2).all(|at| get(all + at * PAGE) == at as u64 + 1));
}
