//! Cases of memory, and of processes, where nothing is moved.

use crate::support::*;
use adverb_core::memory::Access;
use adverb_core::memory::moved::Refusal;
use adverb_core::region::MemoryRegion;
use std::os::fd::AsRawFd;

const COUNT: usize = 16;

fn is_of_another_kind(answer: Result<adverb_core::memory::moved::Place, Refusal>) -> bool {
    matches!(answer, Err(Refusal::Memory(_)))
}

pub(crate) fn kinds() {
    let domain = domain();
    let plain = |count| pages(count);
    let refused = |base: usize, length: usize| share_one(&region(&domain, base, length));

    let hole = plain(COUNT);
    let with_hole = region(&domain, hole, COUNT * PAGE);
    let read_only = plain(COUNT);
    write_pattern(read_only, COUNT * PAGE, 1);
    let read_only_later = region(&domain, read_only, COUNT * PAGE);
    // SAFETY: our own pages.
    unsafe {
        assert_eq!(libc::munmap((hole + 4 * PAGE) as *mut _, PAGE), 0);
        assert_eq!(libc::mprotect((read_only + 15 * PAGE) as *mut _, PAGE, libc::PROT_READ), 0);
    }
    assert!(is_of_another_kind(share_one(&with_hole)), "a hole");
    let access = ALL | Access::ON_DEMAND;
    // SAFETY: memory on demand may be missing.
    let on_demand = unsafe {
        MemoryRegion::register(&domain, plain(COUNT), (COUNT * PAGE) as u64, 0, access).expect("a region")
    };
    assert!(is_of_another_kind(share_one(&on_demand)), "the program may put other memory there");
    assert!(is_of_another_kind(share_one(&read_only_later)), "a page that may only be read");
    assert!(has_pattern(read_only, COUNT * PAGE, 1));
    let shared_pages = map(COUNT, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    assert!(is_of_another_kind(refused(shared_pages, COUNT * PAGE)), "shared memory");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: a new private mapping.
    let of_file = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), COUNT * PAGE, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert!(is_of_another_kind(refused(of_file as usize, COUNT * PAGE)), "a file");
    let small = plain(COUNT);
    assert_eq!(refused(small + 8, PAGE), Err(Refusal::Small), "no whole page");
    assert_eq!(refused(small + 8, 2 * PAGE - 16), Err(Refusal::Small), "no whole page");
    let (_, place) = shared(&domain, small + 8, 2 * PAGE);
    assert_eq!((place.address, place.length), (small + PAGE, PAGE), "one");
}

pub(crate) fn locked() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let region = region(&domain, base, COUNT * PAGE);
    // SAFETY: our own pages.
    assert_eq!(unsafe { libc::mlock((base + 3 * PAGE) as *const _, PAGE) }, 0);
    assert!(is_of_another_kind(share_one(&region)));
    // SAFETY: our own pages.
    assert_eq!(unsafe { libc::munlock((base + 3 * PAGE) as *const _, PAGE) }, 0);
    share_one(&region).expect("it is shared");
    assert!(has_pattern(base, COUNT * PAGE, 1));
    // Others do not matter.
    let other = pages(COUNT);
    // SAFETY: our own pages.
    assert_eq!(unsafe { libc::mlock(other as *const _, PAGE) }, 0);
    let apart = pages(2 * COUNT) + COUNT * PAGE;
    shared(&domain, apart, COUNT * PAGE);
}

pub(crate) fn stacks() {
    let domain = domain();
    let local = [1u64; 8 * PAGE / 8];
    let answer = share_one(&region(&domain, local.as_ptr() as usize, size_of_val(&local)));
    assert!(is_of_another_kind(answer), "{answer:?}");
    assert!(std::hint::black_box(&local).iter().all(|word| *word == 1));
    // A thread's, registered by itself and by another.
    let (ready, go) = (Pipe::new(), Pipe::new());
    let address = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let local = [1u64; 8 * PAGE / 8];
            let at = local.as_ptr() as usize;
            assert_eq!(share_one(&region(&domain, at, size_of_val(&local))), Err(Refusal::Threads));
            address.store(at, std::sync::atomic::Ordering::SeqCst);
            ready.say();
            go.hear();
            assert!(std::hint::black_box(&local).iter().all(|word| *word == 1));
        });
        ready.hear();
        let at = address.load(std::sync::atomic::Ordering::SeqCst);
        let answer = share_one(&region(&domain, at, 8 * PAGE));
        go.say();
        assert_eq!(answer, Err(Refusal::Threads));
    });
}

/// What the memory has been told to be would be lost.
pub(crate) fn flags() {
    let domain = domain();
    for (advice, undo) in [
        (libc::MADV_DONTFORK, libc::MADV_DOFORK),
        (libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK),
        (libc::MADV_DONTDUMP, libc::MADV_DODUMP),
        (libc::MADV_MERGEABLE, libc::MADV_UNMERGEABLE),
    ] {
        let base = pages(COUNT);
        write_pattern(base, COUNT * PAGE, 1);
        let region = region(&domain, base, COUNT * PAGE);
        let advise = |advice| {
            // SAFETY: our own pages; this advice changes no byte here.
            assert_eq!(unsafe { libc::madvise((base + 4 * PAGE) as *mut _, PAGE, advice) }, 0, "{advice}");
        };
        advise(advice);
        let answer = share_one(&region);
        assert!(is_of_another_kind(answer), "{advice}: {answer:?}");
        advise(undo);
        share_one(&region).expect("it is shared");
        assert!(has_pattern(base, COUNT * PAGE, 1));
    }
}

pub(crate) fn policy() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    // SAFETY: our own pages.
    let bound = unsafe { libc::syscall(libc::SYS_mbind, base, COUNT * PAGE, 2, &raw const NODE, 64, 0) };
    let error = std::io::Error::last_os_error();
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    if bound == 0 {
        assert!(is_of_another_kind(answer), "{answer:?}");
    } else {
        let has_nodes = std::path::Path::new("/sys/devices/system/node").exists();
        assert!(error.raw_os_error() == Some(libc::ENOSYS) && !has_nodes, "{error}");
        // A kernel without NUMA has no policies that could be lost.
        answer.expect("it is shared");
    }
    assert!(has_pattern(base, COUNT * PAGE, 1));
}
static NODE: u64 = 1;

/// Pages that have a protection key, where the processor has keys. Elsewhere there are no such pages.
pub(crate) fn protection_key() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: plain numbers; our own pages, which may be read and written by this key.
    let (key, has_key) = unsafe {
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
        (key, libc::syscall(libc::SYS_pkey_mprotect, base, COUNT * PAGE, protection, key.max(1)) == 0)
    };
    assert_eq!(has_key, key > 0);
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    if has_key {
        assert!(is_of_another_kind(answer), "{answer:?}");
    } else {
        answer.expect("it is shared");
    }
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

/// A child of fork has copies of what is moved: of 256 MiB at most, and no region of more than 64 MiB is
/// moved at all. Nobody has touched these, so that they take no memory.
pub(crate) fn too_much() {
    const REGION: usize = 64 << 20;
    const ROOM: usize = 256 << 20;
    let domain = domain();
    let sparse = |length: usize| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        map(length / PAGE, libc::PROT_READ | libc::PROT_WRITE, flags)
    };
    let regions: Vec<_> = (0..=ROOM / REGION).map(|_| region(&domain, sparse(REGION), REGION)).collect();
    let long = region(&domain, sparse(REGION + PAGE), REGION + PAGE);
    let answer = share_one(&long);
    assert!(is_of_another_kind(answer), "{answer:?}");
    let (last, others) = regions.split_last().unwrap();
    for region in others {
        share_one(region).expect("it is shared");
    }
    assert_eq!(share_one(last), Err(Refusal::Small), "there is no room");
    let small = region(&domain, pages(COUNT), COUNT * PAGE);
    assert_eq!(share_one(&small), Err(Refusal::Small), "not even for a small one");
}

/// A process whose memory others of its user may not look at cannot be guarded.
pub(crate) fn not_dumpable() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    assert!(matches!(answer, Err(Refusal::System(_, libc::EPERM))), "{answer:?}");
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

/// Another process in the same memory may be writing to it.
pub(crate) fn same_memory() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let stack = pages(COUNT) + COUNT * PAGE;
    let go = Pipe::new();
    // SAFETY: the child has a stack of its own, and does no more than wait.
    let child = unsafe {
        libc::clone(hear_raw, stack as *mut _, libc::CLONE_VM | libc::SIGCHLD, go.from() as usize as *mut _)
    };
    assert!(child > 0);
    assert_eq!(share_one(&region(&domain, base, COUNT * PAGE)), Err(Refusal::Threads));
    go.say();
    assert_eq!(wait(child), End::Status(0));
    shared(&domain, base, COUNT * PAGE);
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

pub(crate) fn guard() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    assert_eq!(answer, Err(Refusal::System("userfaultfd", libc::EPERM)));
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

pub(crate) fn descriptor() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    assert_eq!(answer, Err(Refusal::System("memfd_create", libc::EPERM)));
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

pub(crate) fn exhausted() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let region = region(&domain, base, COUNT * PAGE);
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a plain limit; copies of a descriptor until there are no more.
    let taken: Vec<i32> = unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        std::iter::repeat_with(|| libc::dup(0)).take_while(|fd| *fd >= 0).collect()
    };
    let answer = share_one(&region);
    assert!(matches!(answer, Err(Refusal::System(_, libc::EMFILE))), "{answer:?}");
    assert!(has_pattern(base, COUNT * PAGE, 1));
    // SAFETY: our own copies.
    taken.iter().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
    share_one(&region).expect("it is shared");
}

pub(crate) fn off() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    assert_eq!(share_one(&region(&domain, base, COUNT * PAGE)), Err(Refusal::Off));
    assert!(has_pattern(base, COUNT * PAGE, 1));
}
