//! Says why a connection could not be made.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Programs try again and again: the same is said once in this time.
const PAUSE: Duration = Duration::from_secs(60);

/// A line of the log about a connection to `destination` that ended with this status of its event.
#[cold]
pub(super) fn say(destination: Option<SocketAddr>, status: i32) {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let sum = sum(destination, status, now);
    // Nothing that a child of fork could find half done.
    if crate::log::enabled(crate::log::Level::Warn) && SAID.swap(sum, Ordering::Relaxed) != sum {
        let destination = destination.map_or_else(|| "the peer".to_owned(), |address| address.to_string());
        crate::log!(Warn, "no connection to {destination}: {}", why(status));
    }
}

fn sum(destination: Option<SocketAddr>, status: i32, now: Duration) -> u64 {
    let mut hasher = DefaultHasher::new();
    (destination, status, now.as_secs() / PAUSE.as_secs()).hash(&mut hasher);
    hasher.finish()
}

fn why(status: i32) -> String {
    let text: &dyn Display = match -status {
        libc::ETIMEDOUT => {
            &"nobody there has answered in time (is it the right address, and does a firewall let UDP port 4791, or iWARP's TCP port, pass?)"
        }
        libc::ENODEV => &"no device of this process serves the address from which it is reached",
        errno @ 1.. => &io::Error::from_raw_os_error(errno),
        _ => &format_args!("the service there has refused it, with status {status}"),
    };
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told_in_words() {
        assert!(why(-libc::ETIMEDOUT).starts_with("nobody there has answered in time"));
        assert!(why(-libc::EHOSTUNREACH).starts_with("No route to host"));
        assert_eq!(why(3), "the service there has refused it, with status 3");
    }

    #[test]
    fn the_same_is_told_once_in_a_while() {
        let of = |port, status, seconds| {
            sum(Some(([127, 0, 0, 1], port).into()), status, Duration::from_secs(seconds))
        };
        assert_eq!(of(1, -1, 0), of(1, -1, 59));
        for other in [of(2, -1, 0), of(1, -2, 0), of(1, -1, 60)] {
            assert_ne!(of(1, -1, 0), other);
        }
    }
}
