//! Cases of memory, and of processes, where nothing is moved.

use crate::support::*;
use adverb_core::memory::moved::Refusal;
use adverb_core::memory::{Access, MemoryRegion};
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
    assert!(is_of_another_kind(refused(read_only, COUNT * PAGE)), "a page that may only be read");
    assert!(has_pattern(read_only, COUNT * PAGE, 1));
    let shared_pages = map(COUNT, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    assert!(is_of_another_kind(refused(shared_pages, COUNT * PAGE)), "shared memory");
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
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
            let refused = |answer| match answer {
                Err(Refusal::Threads) => !has_kernel_faults(),
                other => is_of_another_kind(other),
            };
            assert!(refused(share_one(&region(&domain, at, size_of_val(&local)))));
            address.store(at, std::sync::atomic::Ordering::SeqCst);
            ready.say();
            go.hear();
            assert!(std::hint::black_box(&local).iter().all(|word| *word == 1));
        });
        ready.hear();
        let at = address.load(std::sync::atomic::Ordering::SeqCst);
        let answer = share_one(&region(&domain, at, 8 * PAGE));
        go.say();
        match answer {
            Err(Refusal::Threads) => assert!(!has_kernel_faults()),
            other => assert!(is_of_another_kind(other), "{other:?}"),
        }
    });
}

pub(crate) fn uring() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let mut parameters = [0u64; 15];
    // SAFETY: the structure has 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    assert!(ring >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
    let answer = {
        let region = region(&domain, base, COUNT * PAGE);
        share_one(&region).map(drop)
    };
    assert_eq!(answer, if has_kernel_faults() { Ok(()) } else { Err(Refusal::Uring) });
    assert!(has_pattern(base, COUNT * PAGE, 1));
    // A buffer of the ring's: pinned.
    let other = pages(COUNT);
    write_pattern(other, COUNT * PAGE, 1);
    let buffer = libc::iovec { iov_base: (other + 8 * PAGE) as *mut _, iov_len: PAGE };
    // SAFETY: registers one buffer, a page of ours.
    let registered = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, 0, &raw const buffer, 1) };
    assert_eq!(registered, 0, "{}", std::io::Error::last_os_error());
    let region = region(&domain, other, COUNT * PAGE);
    let answer = share_one(&region);
    let off = std::env::var("ADVERB_WITHOUT").unwrap_or_default();
    match answer {
        Err(Refusal::Uring) => assert!(!has_kernel_faults()),
        Err(Refusal::Pinned) => assert!(has_kernel_faults() && off.is_empty()),
        // Protection alone finds nobody out.
        Ok(_) => assert_eq!(off, "userfaultfd-move"),
        other => panic!("{other:?}"),
    }
    assert!(has_pattern(other, COUNT * PAGE, 1));
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
