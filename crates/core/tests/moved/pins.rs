//! Cases with somebody in the kernel who keeps pages and writes to them by itself.

use crate::after::{drop_pages, is_zero};
use crate::support::*;
use adverb_core::memory::moved::Refusal;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const COUNT: usize = 16;

/// A ring of io_uring, by system calls alone: an entry is put where the kernel looks for it.
struct Ring {
    descriptor: OwnedFd,
    submissions: usize,
    entries: usize,
    parameters: [u32; 30],
}

impl Ring {
    fn new() -> Self {
        let mut parameters = [0u32; 30];
        // SAFETY: the structure has 120 bytes; fresh mappings of the ring's own.
        unsafe {
            let fd = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) as i32;
            assert!(fd >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
            let map = |offset| {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let place = libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, fd, offset);
                assert_ne!(place, libc::MAP_FAILED);
                place as usize
            };
            let (submissions, entries) = (map(0), map(0x1000_0000));
            Self { descriptor: OwnedFd::from_raw_fd(fd), submissions, entries, parameters }
        }
    }

    fn register(&self, base: usize, length: usize) {
        let buffer = libc::iovec { iov_base: base as *mut _, iov_len: length };
        // SAFETY: registers one buffer, pages of the test.
        let registered = unsafe {
            libc::syscall(libc::SYS_io_uring_register, self.descriptor.as_raw_fd(), 0, &raw const buffer, 1)
        };
        assert_eq!(registered, 0, "{}", std::io::Error::last_os_error());
    }

    /// Has the kernel read a file into the registered buffer, and waits for that.
    fn read_fixed(&self, file: i32, base: usize, length: usize) {
        const READ_FIXED: u8 = 4;
        const GETEVENTS: u32 = 1;
        let [.., tail, mask, _, _, _, array, _, _, _] = self.parameters[10..20] else { unreachable!() };
        // SAFETY: the entry and the ring are mapped, and nobody else uses them.
        unsafe {
            let word = |at: u32| (self.submissions + at as usize) as *mut u32;
            let index = *word(tail) & *word(mask);
            let entry = (self.entries + index as usize * 64) as *mut u8;
            std::ptr::write_bytes(entry, 0, 64);
            *entry = READ_FIXED;
            *entry.add(4).cast::<i32>() = file;
            *entry.add(16).cast::<u64>() = base as u64;
            *entry.add(24).cast::<u32>() = length as u32;
            *word(array).add(index as usize) = index;
            (*word(tail).cast::<std::sync::atomic::AtomicU32>())
                .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let ring = self.descriptor.as_raw_fd();
            assert_eq!(libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, GETEVENTS, 0, 0), 1);
        }
    }
}

/// A program registers its pool with io_uring after a peer has come to share it, deregisters it, registers it
/// again: what is read into it arrives each time.
pub(crate) fn later() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&domain, base, COUNT * PAGE);
    let ring = Ring::new();
    ring.register(base, COUNT * PAGE);
    let source = std::fs::File::open("/proc/self/exe").unwrap();
    let mut bytes = vec![0; COUNT * PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&source, &mut bytes, 0).unwrap();
    let arrives = || {
        write_pattern(base, COUNT * PAGE, 5);
        ring.read_fixed(source.as_raw_fd(), base, COUNT * PAGE);
        // SAFETY: pages of the test.
        let there = unsafe { std::slice::from_raw_parts(base as *const u8, COUNT * PAGE) };
        assert!(there == bytes, "what was read has arrived");
    };
    arrives();
    drop(region);
    arrives();
    let (_again, second) = shared(&domain, base, COUNT * PAGE);
    assert_eq!(second, place);
    arrives();
    // Nothing else is moved from now on.
    let other = pages(COUNT);
    let answer = share_one(&self::region(&domain, other, COUNT * PAGE));
    assert!(matches!(answer, Err(Refusal::Uring | Refusal::Pinned)), "{answer:?}");
}

/// A region ends while a ring is there, and another while a thread sleeps in state D, which no signal wakes.
/// The program drops the pages then, and uses them again.
pub(crate) fn ended() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, _) = shared(&domain, base, COUNT * PAGE);
    let drops_and_uses = |region: std::sync::Arc<adverb_core::region::MemoryRegion>| {
        drop(region);
        for round in 1..200 {
            drop_pages(base, COUNT);
            assert!(is_zero(base, COUNT * PAGE), "round {round}");
            write_pattern(base, COUNT * PAGE, round);
            std::thread::yield_now();
            assert!(has_pattern(base, COUNT * PAGE, round), "round {round}");
        }
    };
    let ring = Ring::new();
    drops_and_uses(region);
    // SAFETY: mappings of the ring's.
    unsafe {
        libc::munmap(ring.submissions as *mut _, PAGE);
        libc::munmap(ring.entries as *mut _, PAGE);
    }
    drop(ring);
    // The thread waits for a child that shares its memory, as vfork(2) does.
    let (region, _) = shared(&domain, base, COUNT * PAGE);
    let (top, wakes) = (pages(COUNT) + COUNT * PAGE, Pipe::new());
    let number = std::sync::atomic::AtomicI32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: asks for a number.
            let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            number.store(own, std::sync::atomic::Ordering::SeqCst);
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the child has a stack of its own, and does no more than wait for a byte.
            let child =
                unsafe { libc::clone(hear_raw, top as *mut _, flags, wakes.from() as usize as *mut _) };
            assert_eq!(wait(child), End::Status(0));
        });
        let sleeps = || {
            let number = number.load(std::sync::atomic::Ordering::SeqCst);
            let text =
                std::fs::read_to_string(format!("/proc/self/task/{number}/status")).unwrap_or_default();
            text.lines().any(|line| line.starts_with("State:\tD"))
        };
        until(sleeps);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drops_and_uses(region)));
        let slept = sleeps();
        wakes.say();
        done.expect("zeros, and nothing is lost");
        assert!(slept, "all the time");
    });
}

fn refused(what: &str, expected: &[Refusal]) {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let answer = share_one(&region(&domain, base, COUNT * PAGE));
    assert!(expected.iter().any(|refusal| answer == Err(*refusal)), "{what}: {answer:?}");
    assert!(has_pattern(base, COUNT * PAGE, 1));
}

pub(crate) fn ring() {
    let ring = Ring::new();
    refused("a ring", &[Refusal::Uring]);
    // Without its mappings.
    // SAFETY: mappings of the ring's.
    unsafe {
        libc::munmap(ring.submissions as *mut _, PAGE);
        libc::munmap(ring.entries as *mut _, PAGE);
    }
    refused("a descriptor", &[Refusal::Uring]);
    drop(ring);
    // Without its descriptor: SINGLE_MMAP stays mapped.
    let ring = Ring::new();
    // SAFETY: the ring's own.
    unsafe { libc::close(ring.descriptor.as_raw_fd()) };
    refused("a mapping", &[Refusal::Uring]);
    std::mem::forget(ring);
}

/// A ring in memory of the program, which has neither a mapping nor a descriptor.
pub(crate) fn hidden_ring() {
    const SINGLE_ISSUER: u32 = 1 << 12;
    const NO_MMAP: u32 = 1 << 14;
    const REGISTERED_FD_ONLY: u32 = 1 << 15;
    let (ring, entries) = (pages(1), pages(1));
    let mut parameters = [0u32; 30];
    parameters[2] = NO_MMAP | REGISTERED_FD_ONLY | SINGLE_ISSUER;
    let mut put = |word: usize, address: usize| {
        parameters[word] = address as u32;
        parameters[word + 1] = (address >> 32) as u32;
    };
    // Where the offsets of the rings leave room for their addresses.
    put(18, entries);
    put(28, ring);
    // SAFETY: the structure has 120 bytes, and names two pages of the test.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    assert!(made >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
    refused("a hidden ring", &[Refusal::Uring]);
}

pub(crate) fn asynchronous() {
    let mut context = 0usize;
    // SAFETY: fills a live local.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) }, 0);
    refused("a queue of asynchronous requests", &[Refusal::Pinned]);
}

pub(crate) fn device() {
    /// The family of sockets that place packets in memory.
    const AF_XDP: i32 = 44;
    // SAFETY: plain numbers.
    let xdp = unsafe { libc::socket(AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if xdp >= 0 {
        refused("packets that are placed in memory", &[Refusal::Pinned]);
        // SAFETY: our own descriptor.
        unsafe { libc::close(xdp) };
    } else {
        let errno = std::io::Error::last_os_error().raw_os_error();
        // SAFETY: asks for a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        assert!(
            !is_root && errno == Some(libc::EPERM),
            "only an ordinary user has no such sockets: {errno:?}"
        );
    }
    // Such as may be opened, and keep no pages at all; but who knows that of a device?
    let devices = ["/dev/loop-control", "/dev/fuse", "/dev/rtc0", "/dev/hwrng", "/dev/mem", "/dev/kvm"];
    let device = devices.iter().find_map(|path| std::fs::File::open(path).ok());
    let device = device.expect("one of these devices can be opened");
    refused("a device", &[Refusal::Pinned]);
    drop(device);
    // What else was there meanwhile is no reason.
    let domain = domain();
    shared(&domain, pages(COUNT), COUNT * PAGE);
}

/// A page in the middle has more references than a page without pins can have (1024): the pages before it
/// have been taken away by the time that the kernel refuses it, and come back.
pub(crate) fn half_way() {
    const COUNT: usize = 64;
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let region = region(&domain, base, COUNT * PAGE);
    let pipes = refer(base + COUNT / 2 * PAGE, 1200);
    assert_eq!(share_one(&region), Err(Refusal::Pinned));
    assert!(has_pattern(base, COUNT * PAGE, 1));
    write_pattern(base, COUNT * PAGE, 2);
    drop(pipes);
    share_one(&region).expect("it is shared");
    assert!(has_pattern(base, COUNT * PAGE, 2));
}

/// Pipes with so many references to a page.
fn refer(page: usize, count: usize) -> Vec<[OwnedFd; 2]> {
    // An ordinary user's pipes have 256 places at most, or fewer once he has many.
    let (mut pipes, mut left) = (Vec::new(), count);
    while left > 0 {
        assert!(pipes.len() < 200, "no room in pipes for {left} references");
        let mut ends = [0; 2];
        // SAFETY: fills a live local; fresh descriptors; a larger pipe may be refused.
        let pipe = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC), 0);
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 1 << 20);
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let piece = libc::iovec { iov_base: page as *mut _, iov_len: 1 };
        let splice = || {
            // SAFETY: one byte of a page of the test.
            unsafe { libc::vmsplice(pipe[1].as_raw_fd(), &raw const piece, 1, libc::SPLICE_F_NONBLOCK) }
        };
        while left > 0 && splice() == 1 {
            left -= 1;
        }
        pipes.push(pipe);
    }
    pipes
}
