//! Cases with several threads: nothing is moved beside them; what was moved before is as any other memory.

use crate::support::*;
use adverb_core::memory::moved::Refusal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const COUNT: usize = 96;

/// What the threads have done, all together.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Stores to every word of its own, again and again, and looks whether what it stored last is there.
fn store(base: usize, first: usize, end: &AtomicBool) {
    let mut round = 0u64;
    while !end.load(Ordering::Relaxed) {
        for at in (first..COUNT * PAGE).step_by(32) {
            assert_eq!(get(base + at), round, "lost at {at:#x}");
            set(base + at, round + 1);
        }
        round += 1;
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds to every word of its own.
fn add(base: usize, first: usize, end: &AtomicBool) {
    let mut round = 0u64;
    while !end.load(Ordering::Relaxed) {
        for at in (first..COUNT * PAGE).step_by(32) {
            assert_eq!(word(base + at).fetch_add(1, Ordering::SeqCst), round, "lost at {at:#x}");
        }
        round += 1;
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Has the kernel write every word of its own.
fn read(base: usize, first: usize, end: &AtomicBool) {
    let mut ends = [0; 2];
    // SAFETY: fills a live local.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let mut round = 0u64;
    while !end.load(Ordering::Relaxed) {
        for at in (first..COUNT * PAGE).step_by(32 * 16) {
            assert_eq!(get(base + at), round, "lost at {at:#x}");
            let next = (round + 1).to_ne_bytes();
            // SAFETY: a live local, and a word of the test's pages.
            let (wrote, read) = unsafe {
                let wrote = libc::write(ends[1], next.as_ptr().cast(), 8);
                (wrote, libc::read(ends[0], (base + at) as *mut _, 8))
            };
            assert_eq!((wrote, read), (8, 8), "{}", std::io::Error::last_os_error());
        }
        round += 1;
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn stores() {
    let domain = domain();
    let base = pages(COUNT);
    let end = AtomicBool::new(false);
    let go = Pipe::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for work in [(store as fn(usize, usize, &AtomicBool), 0), (add, 8), (read, 16)] {
            let (end, go) = (&end, &go);
            threads.push(scope.spawn(move || {
                // Whatever goes wrong, the others end.
                let result = std::panic::catch_unwind(|| work.0(base, work.1, end));
                end.store(true, Ordering::Relaxed);
                // As long as it is there, the other is not alone.
                go.hear();
                result.expect("nothing is lost");
            }));
        }
        let (mut moves, mut wrong) = (0, None);
        while (moves < 100 || ROUNDS.load(Ordering::Relaxed) < 30)
            && wrong.is_none()
            && !end.load(Ordering::Relaxed)
        {
            // The edges are never moved: they are written to, too.
            let region = region(&domain, base + 16, COUNT * PAGE - 32);
            match share_one(&region) {
                Err(Refusal::Threads) => moves += 1,
                other => wrong = Some(other),
            }
        }
        end.store(true, Ordering::Relaxed);
        (0..3).for_each(|_| go.say());
        assert_eq!(wrong, None);
    });
}

pub(crate) fn second() {
    let domain = domain();
    let base = pages(8);
    write_pattern(base, 8 * PAGE, 5);
    let region = region(&domain, base, 8 * PAGE);
    let (begun, go) = (Pipe::new(), Pipe::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.say();
            go.hear();
        });
        begun.hear();
        let answer = share_one(&region);
        go.say();
        assert_eq!(answer, Err(Refusal::Threads));
    });
    // A thread that has been waited for may be seen for an instant more.
    while share_one(&region) == Err(Refusal::Threads) {
        std::thread::yield_now();
    }
    share_one(&region).expect("it is shared");
    assert!(has_pattern(base, 8 * PAGE, 5));
}

/// One thread registers what is shared, the other forks.
pub(crate) fn forks() {
    let domain = domain();
    let base = pages(COUNT);
    write_pattern(base, COUNT * PAGE, 7);
    shared(&domain, base, COUNT * PAGE);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forker = scope.spawn(|| {
            let result = std::panic::catch_unwind(|| {
                for _ in 0..40 {
                    let child = fork(|| {
                        let is_right = has_pattern(base, COUNT * PAGE, 7);
                        write_pattern(base, COUNT * PAGE, 8);
                        is_right && has_pattern(base, COUNT * PAGE, 8)
                    });
                    assert_eq!(wait(child), End::Status(0));
                }
            });
            end.store(true, Ordering::Relaxed);
            result.expect("children see what was there");
        });
        while !end.load(Ordering::Relaxed) {
            share_one(&region(&domain, base, COUNT * PAGE)).expect("it is shared already");
        }
        forker.join().unwrap();
    });
    assert!(has_pattern(base, COUNT * PAGE, 7));
}

/// A futex that is not private is known by the pages that it lies in; and these do not change once there is
/// somebody who waits.
pub(crate) fn futex() {
    let domain = domain();
    let base = pages(COUNT);
    let (region, _) = shared(&domain, base, COUNT * PAGE);
    let call = |operation: i32, value: u32| {
        // SAFETY: a word of the test's pages.
        unsafe { libc::syscall(libc::SYS_futex, base, operation, value, 0, 0, 0) }
    };
    let wakes_one = || {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| assert_eq!(call(libc::FUTEX_WAIT, 0), 0));
            while call(libc::FUTEX_WAKE, 1) == 0 {
                std::thread::yield_now();
            }
            waiter.join().unwrap();
        });
    };
    wakes_one();
    // It waits while the registration ends, and another one begins.
    let thread = std::sync::atomic::AtomicI32::new(0);
    let theirs = &thread;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            // SAFETY: asks for a number.
            theirs.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            assert_eq!(call(libc::FUTEX_WAIT, 0), 0);
        });
        let sleeps = || {
            let path = format!("/proc/self/task/{}/syscall", theirs.load(Ordering::SeqCst));
            std::fs::read_to_string(path)
                .is_ok_and(|text| text.starts_with(&format!("{} {base:#x} ", libc::SYS_futex)))
        };
        until(sleeps);
        drop(region);
        let _again = shared(&domain, base, COUNT * PAGE);
        assert_eq!(call(libc::FUTEX_WAKE, 1), 1);
        waiter.join().unwrap();
    });
    wakes_one();
}
