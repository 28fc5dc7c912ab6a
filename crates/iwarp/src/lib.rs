//! The iWARP transport: RDMAP, DDP and MPA over one kernel TCP connection per queue pair.
//!
//! Reliability, order and congestion control are TCP's. Messages leave in one gathered write from the posting
//! thread ([`transmit`]). A thread that polls, or else the background thread ([`lane`]), places arriving
//! bytes straight into the program's memory ([`receive`]). The protocol itself is in `adverb-proto`; this
//! crate gives it sockets, time and memory.

mod backlog;
mod behind;
mod device;
mod endpoint;
mod first_frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gather;
mod impaired;
mod kept;
mod lane;
mod linger;
mod local;
mod manager;
mod observer;
mod payload;
mod receive;
mod rtr_retransmit;
mod socket;
mod startup;
mod transmit;

pub use device::FACTORY;

/// Locks a mutex, whether or not a thread has panicked with it: the value is consistent between any two
/// statements.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
