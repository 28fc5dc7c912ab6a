//! The handler of SIGSEGV and SIGBUS that ends a routine at its error exit, in front of the program's own.
//!
//! It runs on the stack on which the program's own ran: the alternate one (sigaltstack(2)) only if that was
//! asked for.

use super::{arch, deferred};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

unsafe extern "C" {
    fn adverb_fault_begin();
    fn adverb_fault_end();
    fn adverb_fault_exit();
}

/// What a bad address raises.
pub(super) const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

struct Previous([UnsafeCell<MaybeUninit<libc::sigaction>>; 2]);
// SAFETY: written once before the handler that reads it is installed, never again.
unsafe impl Sync for Previous {}
static PREVIOUS: Previous = Previous([const { UnsafeCell::new(MaybeUninit::zeroed()) }; 2]);

/// The place of a signal in [`SIGNALS`].
pub(super) fn index(signal: libc::c_int) -> usize {
    usize::from(signal == libc::SIGBUS)
}

fn slot(signal: libc::c_int) -> *mut libc::sigaction {
    PREVIOUS.0[index(signal)].get().cast()
}

/// Puts the handler in front of what the program has. Once per process.
pub(super) fn install() {
    for signal in SIGNALS {
        // SAFETY: plain sigaction(2) calls on zeroed, then filled structures; `slot` is a static.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), slot(signal));
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_mask = (*slot(signal)).sa_mask;
            // The program's own choice of alternate stack and restarting stays; NODEFER lets a fault inside a
            // chained handler behave as it did without us.
            // PRACTICE-FAULT-3
            let kept = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
            action.sa_flags = libc::SA_SIGINFO | (*slot(signal)).sa_flags & kept;
            if matches!((*slot(signal)).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                // Nobody has chosen: what has run over its stack may still say so.
                action.sa_flags |= libc::SA_ONSTACK;
            }
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Whether the handler is in its place, for every signal.
pub(super) fn is_installed() -> bool {
    SIGNALS.iter().all(|signal| {
        // SAFETY: a live local, which the call fills.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(*signal, std::ptr::null(), &raw mut now);
            now.sa_sigaction == handler as *const () as usize
        }
    })
}

/// The addresses of the routines.
pub(super) fn routines() -> std::ops::Range<usize> {
    adverb_fault_begin as *const () as usize..adverb_fault_end as *const () as usize
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler; only the program counter is
    // changed, and only when it lies in our routine, whose error exit needs no register or stack but what the
    // call left.
    unsafe {
        // No fault, but kill(2) or the like, which may interrupt a routine as anything else: it goes on
        // afterwards. The signal does not come again by itself.
        let was_sent = (*info).si_code <= 0;
        let counter = arch::program_counter(&mut *context.cast::<libc::ucontext_t>());
        // PRACTICE-FAULT-4
        if !was_sent && routines().contains(&(*counter as usize)) {
            *counter = adverb_fault_exit as *const () as usize as _;
            return;
        }
        // The program blocks it in this thread.
        if was_sent && deferred::keep(signal, &*info) {
            return;
        }
        let previous = &*slot(signal);
        match previous.sa_sigaction {
            libc::SIG_IGN if was_sent => {}
            // The default or nothing: restore it and let the instruction fault again, so that the process
            // ends as it would have without us. An ignored synchronous fault ends the process too.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, previous, std::ptr::null_mut());
                if was_sent {
                    libc::raise(signal);
                }
            }
            function if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let function: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(function);
                function(signal, info, context);
            }
            function => {
                let function: extern "C" fn(libc::c_int) = std::mem::transmute(function);
                function(signal);
            }
        }
    }
}
