//! Signals that the engine handles still do what they would do without it. A test of its own, as handlers are
//! the process's.

use adverb_core::device::Device;

#[test]
fn a_fault_signal_that_is_sent_ends_the_process() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: as in a program that has no handler; the test harness's own is for overflows of the stack.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    adverb_core::engine::install(&[adverb_core::transport::TransportFactory {
        default: true,
        ..adverb_iwarp::FACTORY
    }]);
    let _context = Device::all().unwrap()[0].open().unwrap();
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the child does nothing but die.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain numbers.
            unsafe {
                libc::raise(signal);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: our own child and a live local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{status:#x}");
    }
}
