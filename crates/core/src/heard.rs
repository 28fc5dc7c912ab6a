//! Findings of the engine on the way of requests, for a check of the program. A process without that check
//! has no listener. Only requests that have failed, or that wait, are told.

use crate::memory::{Access, AccessError};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Something that the engine has found about a queue pair.
#[derive(Clone, Copy, Debug)]
pub enum EngineFinding<'a> {
    /// A request of the peer was refused.
    Refused {
        /// The reason why the request was refused.
        why: &'a str,
        /// The answer of the key table; none if the queue pair itself has not permitted it.
        error: Option<AccessError>,
        /// The rights that the request needs.
        rights: Access,
    },
    /// A message of the peer was longer than the receive that it has taken.
    TooLong {
        /// Bytes of the message, as far as they are known.
        message: u64,
        /// Whether those are all.
        is_whole: bool,
        /// Bytes of the receive.
        room: u64,
    },
    /// A datagram was dropped, since its Q_Key is not that of the queue pair.
    WrongQkey {
        /// The Q_Key of the datagram.
        has: u32,
        /// The Q_Key of the queue pair.
        wanted: u32,
    },
    /// The peer's first request has another packet sequence number than the queue pair expects.
    WrongPsn {
        /// The number of the request.
        has: u32,
        /// The number that the queue pair expects.
        wanted: u32,
    },
    /// A message of the peer has found no receive.
    NoReceiveHere,
    /// A message has found no receive at the peer.
    NoReceiveThere,
    /// A request is sent for the last time: it fails if the peer does not answer now, or has no receive now.
    LastRetry {
        /// How often it was sent again.
        retries: u8,
        /// The peer has said each time that it has no receive.
        is_not_ready: bool,
    },
}

/// A function that hears the findings about a queue pair, by its number. Threads that hold locks of the
/// engine call it: it calls nothing of the engine, and waits for no other thread.
pub type HeardListener = fn(u32, EngineFinding<'_>);

static LISTENER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// From now on, this function hears everything.
pub fn listen(listener: HeardListener) {
    LISTENER.store(listener as *mut (), Ordering::Release);
}

/// Whether there is a listener.
pub fn is_heard() -> bool {
    !LISTENER.load(Ordering::Relaxed).is_null()
}

/// Tells of a queue pair.
#[cold]
#[inline(never)]
pub fn tell(queue_pair: u32, heard: EngineFinding<'_>) {
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() {
        // SAFETY: not null, so `listen` has stored a function of this type.
        let listener = unsafe { std::mem::transmute::<*mut (), HeardListener>(listener) };
        listener(queue_pair, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static HEARD: AtomicU32 = AtomicU32::new(0);
    /// A number that no queue pair of a test beside this one has: those have 24 bits.
    const OWN: u32 = u32::MAX;

    #[test]
    fn a_listener_hears_the_findings_of_the_engine() {
        tell(OWN, EngineFinding::NoReceiveHere);
        assert_eq!(HEARD.load(Ordering::Relaxed), 0);
        listen(|queue_pair, heard| {
            if queue_pair != OWN {
                return;
            }
            assert!(matches!(
                heard,
                EngineFinding::Refused { why: "why", error: Some(AccessError::Key), .. }
            ));
            HEARD.store(queue_pair, Ordering::Relaxed);
        });
        assert!(is_heard());
        let rights = Access::REMOTE_READ;
        tell(OWN, EngineFinding::Refused { why: "why", error: Some(AccessError::Key), rights });
        assert_eq!(HEARD.load(Ordering::Relaxed), OWN);
        LISTENER.store(std::ptr::null_mut(), Ordering::Release);
    }
}
