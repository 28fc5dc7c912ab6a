//! A panic of ours must not go on into the program. Functions that pthread_cancel(3) may leave are not closed
//! to that by the compiler.

/// Ends the process where a panic would leave one of our functions.
pub(crate) struct Barrier;

impl Drop for Barrier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
