//! One process uses memory of another's by its table; the other takes that back again and again.

use std::iter::once;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adverb_local::announce::{self, NOTHING};
use adverb_local::{Foreign, Kind, Parts, Registration, Segment, Table};

use crate::pair::{Child, end};

/// Memory of both processes.
#[derive(Default)]
#[repr(C, align(64))]
struct Line(AtomicU64);

#[derive(Default)]
#[repr(C)]
struct SharedLines {
    /// What the table's owner lends.
    lent: Line,
    /// The name under which it is there, or was, or will be.
    name: Line,
    /// How often the other has used it.
    uses: Line,
    /// The other may go.
    done: Line,
}

fn shared() -> &'static SharedLines {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever the system likes.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: a page of zeros that stays, for atomics.
    unsafe { NonNull::new(page.cast::<SharedLines>()).unwrap().as_ref() }
}

const INDEX: u32 = 77;
const VISITOR: u64 = u64::MAX;

/// The child stores into the memory whenever the table says that it may. Once the owner has taken it back and
/// has waited, no store arrives.
pub(crate) fn use_and_take_back(registrations: [Registration; 2], own_word: bool, kind: Kind) {
    let shared = shared();
    let table = Table::create([0; 4]).unwrap();
    let (segment, descriptor) = Segment::create_with(registrations[0]).unwrap();
    let Some(child) = Child::fork() else {
        end(|| {
            let foreign = Foreign::open(table.descriptor().try_clone_to_owned().unwrap()).unwrap();
            visit(
                shared,
                &foreign,
                Segment::open_with(descriptor, registrations[1]).unwrap().parts(),
                own_word,
                kind,
            );
        });
    };
    let hazard_view = segment.parts().hazard_view;
    let index = INDEX as usize;
    let end = Instant::now() + Duration::from_millis(300);
    let mut name = 0;
    // Few rounds where there are few processors for many programs.
    while name < 20 || Instant::now() < end {
        name += 1;
        let uses = shared.uses.0.load(Relaxed);
        table.publish(kind, index, name, [u64::from(name); 7]);
        shared.name.0.store(name.into(), Relaxed);
        wait(|| shared.uses.0.load(Relaxed) != uses);
        // At another point of the other's round each time.
        for _ in 0..name % 64 {
            std::hint::spin_loop();
        }
        table.withdraw(kind, index);
        announce::barrier(once(&hazard_view));
        wait(|| !hazard_view.is_announced(kind, index));
        shared.lent.0.store(name.into(), Relaxed);
        for _ in 0..100 {
            assert_eq!(shared.lent.0.load(Relaxed), name.into(), "a store has come late");
        }
    }
    shared.done.0.store(1, Relaxed);
    child.join();
}

/// For the other process: a minute is one that has gone.
fn wait(until: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(Instant::now() < end, "the other process does nothing");
        std::thread::yield_now();
    }
}

fn visit(shared: &SharedLines, foreign: &Foreign, parts: Parts, own_word: bool, kind: Kind) {
    let hazard_slots = std::sync::Arc::new(parts.hazard_slots);
    let mut slot = hazard_slots.reserve().unwrap();
    let (key, pair) = if kind == Kind::Key { (INDEX, NOTHING) } else { (NOTHING, INDEX) };
    while shared.done.0.load(Relaxed) == 0 {
        let name = shared.name.0.load(Relaxed) as u32;
        let announced =
            if own_word { slot.announce(key, pair) } else { hazard_slots.announce(key, pair).unwrap() };
        if let Some((_, words)) = foreign.get(kind, INDEX as usize, name) {
            assert_eq!(words, [u64::from(name); 7], "words of another publication");
            shared.lent.0.store(VISITOR, Relaxed);
            shared.uses.0.fetch_add(1, Relaxed);
        }
        drop(announced);
    }
}

/// A kernel that comes to refuse membarrier(2), as under a filter for system calls that is put in place late.
pub(crate) fn membarrier_is_refused() {
    let registration = Registration::take();
    let Some(child) = Child::fork() else {
        end(|| {
            let (creator, descriptor) = Segment::create_with(registration).unwrap();
            let mut first = creator.parts();
            let mut second = Segment::open_with(descriptor, registration).unwrap().parts();
            refuse(libc::SYS_membarrier);
            assert!(!Registration::take().is_taken());
            // The first attempt may have come too late; from then on both have fences.
            assert_ne!(first.consumer.prepare_to_sleep(), registration.is_taken());
            assert!(first.consumer.prepare_to_sleep());
            assert!(second.producer.peer_sleeps());
            first.consumer.awake();
            assert!(second.consumer.prepare_to_sleep());
            announce::barrier([&first.hazard_view, &second.hazard_view].into_iter());
            let announced = second.hazard_slots.announce(1, 2).unwrap();
            assert!(first.hazard_view.is_announced(Kind::Key, 1));
            drop(announced);
        });
    };
    child.join();
}

/// Where files may not be as large as a table, that is an error, and no signal.
pub(crate) fn files_are_limited() {
    let Some(child) = Child::fork() else {
        end(|| {
            let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
            // SAFETY: a live local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            assert_eq!(Table::create([0; 4]).err().unwrap().raw_os_error(), Some(libc::EFBIG));
            Segment::create().unwrap();
        });
    };
    child.join();
}

/// From now on this system call fails with EPERM.
fn refuse(call: libc::c_long) {
    let statement = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let (load, jump, ret) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET,
    );
    let mut filter = [
        statement(load as u16, 0, 0, 0),
        statement(jump as u16, call as u32, 0, 1),
        statement(ret as u16, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(ret as u16, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of as many statements as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
