//! Cases that fork: a child has what its parent had, and each writes its own.

use crate::support::*;
use adverb_core::memory::moved::Refusal;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

const COUNT: usize = 80;

pub(crate) fn child_writes() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, place) = shared(&domain, base, COUNT * PAGE);
    let view = view(&place);
    view.write(8, &77u64.to_ne_bytes()).unwrap();
    let child = fork(|| {
        let sees = get(base) == 1 && get(base + 8) == 77 && has_pattern(base + PAGE, PAGE, PAGE as u64 + 1);
        write_pattern(base, COUNT * PAGE, 1000);
        let grandchild = fork(|| {
            let sees = has_pattern(base, COUNT * PAGE, 1000);
            write_pattern(base, COUNT * PAGE, 2000);
            sees
        });
        wait(grandchild) == End::Status(0) && sees && has_pattern(base, COUNT * PAGE, 1000)
    });
    assert_eq!(wait(child), End::Status(0));
    assert_eq!(get(base + 8), 77);
    set(base + 8, 9);
    assert!(has_pattern(base, COUNT * PAGE, 1), "the child's writes are its own");
    let mut word = [0; 8];
    view.read(16, &mut word).unwrap();
    assert_eq!(word, 17u64.to_ne_bytes(), "and are not the peer's");
}

pub(crate) fn parent_writes() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&domain, base, COUNT * PAGE);
    let view = view(&place);
    let (ready, go) = (Pipe::new(), Pipe::new());
    let child = fork(|| {
        ready.say();
        go.hear();
        has_pattern(base, COUNT * PAGE, 1)
    });
    ready.hear();
    write_pattern(base, COUNT * PAGE / 2, 500);
    view.write(COUNT * PAGE - 8, &[0xee; 8]).unwrap();
    drop(region);
    write_pattern(base, 64, 600);
    go.say();
    assert_eq!(wait(child), End::Status(0), "the child sees what was there when it was forked");
    assert!(has_pattern(base, 64, 600) && get(base + COUNT * PAGE - 8) == u64::from_ne_bytes([0xee; 8]));
}

pub(crate) fn regions() {
    let parent = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (region, place) = shared(&parent, base, COUNT * PAGE);
    let child = fork(|| {
        // The parent's is not the child's.
        assert_eq!(share_one(&region), Err(Refusal::Ended));
        region.deregister();
        assert!(has_pattern(base, COUNT * PAGE, 1));
        let domain = domain();
        let (own, place) = shared(&domain, base, COUNT * PAGE);
        view(&place).write(0, &5u64.to_ne_bytes()).unwrap();
        let is_right = get(base) == 5;
        drop(own);
        // It has a guard of its own.
        // SAFETY: pages of the test.
        let dropped = unsafe { libc::madvise(base as *mut _, PAGE, libc::MADV_DONTNEED) };
        is_right && dropped == 0 && get(base) == 0 && has_pattern(base + PAGE, PAGE, PAGE as u64 + 1)
    });
    assert_eq!(wait(child), End::Status(0));
    view(&place).write(8, &6u64.to_ne_bytes()).unwrap();
    assert_eq!((get(base), get(base + 8)), (1, 6), "the parent's go on");
}

/// A child that the C library knows nothing of.
pub(crate) fn raw() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, _place) = shared(&domain, base, COUNT * PAGE);
    // SAFETY: the child only stores and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t };
    if child == 0 {
        // SAFETY: as in a program that handles no faults.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        set(base, 99);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(child), End::Signal(libc::SIGSEGV));
    assert!(has_pattern(base, COUNT * PAGE, 1), "the parent's is as it was");
}

/// A limit: the stack that the child begins on is not there, and the child ends, as the documents say. The
/// parent goes on, with all that it has.
pub(crate) fn on_shared_stack() {
    const STACK: usize = 64;
    /// Where the coroutine has its words: pages behind its stack, moved with it.
    static WORDS: AtomicUsize = AtomicUsize::new(0);
    static CHILD: AtomicI32 = AtomicI32::new(0);
    extern "C" fn forks() {
        let mut local = [7u64; 512];
        std::hint::black_box(&mut local);
        // SAFETY: the child only ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        assert!(std::hint::black_box(&local).iter().all(|word| *word == 7), "the stack is as it was");
        set(WORDS.load(Ordering::SeqCst), 8);
        CHILD.store(child, Ordering::SeqCst);
    }
    let domain = domain();
    let base = pages(2 * STACK);
    write_pattern(base, 2 * STACK * PAGE, 1);
    let (_region, place) = shared(&domain, base, 2 * STACK * PAGE);
    let words = base + STACK * PAGE;
    WORDS.store(words, Ordering::SeqCst);
    // SAFETY: both contexts live until the second has ended, which runs on pages of the test that nobody else
    // uses.
    unsafe {
        let mut here: libc::ucontext_t = std::mem::zeroed();
        let mut there: libc::ucontext_t = std::mem::zeroed();
        assert_eq!(libc::getcontext(&raw mut there), 0);
        there.uc_stack.ss_sp = base as *mut _;
        there.uc_stack.ss_size = STACK * PAGE;
        there.uc_link = &raw mut here;
        libc::makecontext(&raw mut there, forks, 0);
        assert_eq!(libc::swapcontext(&raw mut here, &raw const there), 0);
    }
    assert_eq!(wait(CHILD.load(Ordering::SeqCst)), End::Signal(libc::SIGSEGV));
    // The parent and its peer have the same pages still.
    assert!(has_pattern(base, PAGE, 1));
    let peer = view(&place);
    let mut word = [0; 8];
    peer.read(STACK * PAGE, &mut word).unwrap();
    assert_eq!(word, 8u64.to_ne_bytes());
    peer.write(STACK * PAGE + 8, &9u64.to_ne_bytes()).unwrap();
    assert_eq!(get(words + 8), 9);
    // A fork from a stack of its own gives the child all of it, and pages that are dropped are zeros.
    let child = fork(|| get(words) == 8 && get(words + 8) == 9 && has_pattern(base, PAGE, 1));
    assert_eq!(wait(child), End::Status(0));
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::madvise(words as *mut _, PAGE, libc::MADV_DONTNEED) }, 0);
    assert_eq!((get(words), get(words + 8)), (0, 0));
    let region = region(&domain, pages(COUNT), COUNT * PAGE);
    share_one(&region).expect("others are shared, too");
}

/// A child that shares its parent's memory until it ends, as posix_spawn(3) and vfork(2) make it, needs no
/// handler: there is one memory.
pub(crate) fn spawns() {
    extern "C" fn stores(at: *mut libc::c_void) -> i32 {
        set(at as usize, 77);
        0
    }
    const STACK: usize = 16;
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 1);
    let (_region, place) = shared(&domain, base, COUNT * PAGE);
    let top = (pages(STACK) + STACK * PAGE) as *mut libc::c_void;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this thread waits for the child, which has a stack of its own, stores to a page of the test,
    // and ends.
    let child = unsafe { libc::clone(stores, top, flags, base as *mut _) };
    assert_eq!(wait(child), End::Status(0));
    let mut word = [0; 8];
    view(&place).read(0, &mut word).unwrap();
    assert_eq!(
        (get(base), word),
        (77, 77u64.to_ne_bytes()),
        "the program and its peer see what the child has stored"
    );
    assert!(std::process::Command::new("true").status().is_ok_and(|status| status.success()));
    set(base + 8, 9);
    view(&place).read(8, &mut word).unwrap();
    assert_eq!(word, 9u64.to_ne_bytes(), "the pages are the peer's still");
    assert!(has_pattern(base + PAGE, PAGE, PAGE as u64 + 1));
}
