//! The RoCEv2 transport: InfiniBand packets over unprivileged UDP sockets.
//!
//! The protocol itself is in `adverb-proto`; this crate gives it sockets, time and memory. A queue pair's
//! half is an [`endpoint`], with a [`link`] to its peer or sending [`datagram`]s. Packets leave in a
//! [`batch`] by the [`lane`] of the queue pair's completion queue. A thread that polls that queue, or else
//! the background thread, takes packets in there.
//!
//! Many processes share the host's address. [`udp_port`] is about UDP port 4791, which one of them holds.
//! [`numbers`] divides the queue pair numbers. [`handover`] passes packets on. [`locate`] finds out where a
//! queue pair lives, so that peers reach each other directly.

mod addresses;
mod batch;
mod contacts;
mod datagram;
mod device;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gid;
mod gsi;
mod handover;
mod handover_queue;
mod host;
mod impaired;
mod kernel;
mod lane;
mod limit;
mod link;
mod local;
mod locate;
mod lost;
mod management_queue;
mod manager;
mod multicast;
mod net;
mod numbers;
mod observer;
mod order;
pub mod orphans;
mod other_users;
mod pace;
mod peer;
mod pending_acks;
mod raw;
mod recent;
mod route;
mod rx_burst;
mod seqpacket;
mod socket;
mod time;
mod udp_port;

pub use device::FACTORY;

/// Locks a mutex, whether or not a thread has panicked with it: the value is consistent between any two
/// statements.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Locks a mutex, unless other threads keep it until then.
fn lock_until<T>(
    mutex: &std::sync::Mutex<T>,
    until: std::time::Duration,
) -> Option<std::sync::MutexGuard<'_, T>> {
    use std::sync::TryLockError;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if time::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}
