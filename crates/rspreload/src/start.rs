//! What happens when the library is loaded, when the program forks, and when it ends.

use crate::{call, epoll, library, signals, table};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::Duration;

/// The dynamic linker calls this when it has loaded the library, before `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = initialise;

extern "C" fn initialise() {
    table::own();
    // SAFETY: C strings; the library is the one that is loaded already, if there is one.
    unsafe {
        if libc::dlsym(libc::RTLD_DEFAULT, c"rsocket".as_ptr()).is_null() {
            libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        }
    }
    library::find_all();
    // SAFETY: a function of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// A child of fork has descriptors that look like the parent's; the rsockets behind them are not there, as
/// librdmacm says of each.
extern "C" fn in_child() {
    table::own();
    epoll::forget();
}

/// Called for the first rsocket: after librdmacm has got ready for the end of the process, so that this comes
/// before it.
pub(crate) fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

/// What was sent before the end arrives, as with the kernel's sockets; but a peer that has stopped does not
/// hold up the end for long.
extern "C" fn at_exit() {
    const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
    if !table::is_owner() || call::is_within() || table::all().next().is_none() {
        return;
    }
    let (said, done) = mpsc::channel();
    let closer = move || {
        for fd in table::all() {
            if let Some(number) = table::remove(fd) {
                // SAFETY: plain numbers.
                unsafe { library::rclose(number) };
            }
        }
        let _ = said.send(());
    };
    // Signals are for the program's own threads.
    let _mask = signals::SignalMask::all();
    if thread::Builder::new().spawn(closer).is_ok() {
        let _ = done.recv_timeout(EXIT_TIMEOUT);
    }
}
