//! What the administrator has set, in `/etc/rdma/rsocket` (rsocket(7)): one number in each file.

use adverb_core::setting;
use std::path::Path;
use std::time::Duration;

const FOLDER: &str = "/etc/rdma/rsocket";

/// Defaults of sockets. A file that is missing or no number changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// `mem_default`: bytes to receive into.
    pub(crate) receive_buffer: u32,
    /// `wmem_default`: bytes to send from.
    pub(crate) send_buffer: u32,
    /// `sqsize_default`: requests of the send queue.
    pub(crate) send_requests: u16,
    /// `rqsize_default`: requests of the receive queue.
    pub(crate) receive_requests: u16,
    /// `inline_default`: bytes that are sent without a copy in the send buffer.
    pub(crate) inline: u16,
    /// `iomap_size`: entries of the table of mappings.
    pub(crate) mappings: u16,
    /// `polling_time`: how long a call looks again and again before it sleeps.
    pub(crate) polling: Duration,
    /// `wake_up_interval`: how long poll sleeps at most before it looks again.
    pub(crate) longest_sleep: Option<Duration>,
}

impl Configuration {
    pub(crate) fn read() -> Self {
        Self::of_folder(Path::new(FOLDER))
    }

    fn of_folder(folder: &Path) -> Self {
        let number = |name: &str| -> Option<u64> {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let at_most =
            |name: &str, most: u32, default: u32| number(name).map_or(default, |n| n.min(most.into()) as u32);
        let small = |name: &str, default: u16| at_most(name, u16::MAX.into(), default.into()) as u16;
        Self {
            receive_buffer: at_most("mem_default", MAX_BUFFER, DEFAULT_BUFFER).max(2),
            send_buffer: match at_most("wmem_default", MAX_BUFFER, DEFAULT_BUFFER) {
                n if n < LEAST_SEND_BUFFER / 2 => LEAST_SEND_BUFFER,
                n => n,
            },
            send_requests: small("sqsize_default", 384),
            receive_requests: small("rqsize_default", 384),
            inline: small("inline_default", 64),
            mappings: small("iomap_size", 0),
            polling: Duration::from_micros(
                number("polling_time").unwrap_or_else(|| setting::spin_microseconds().into()),
            ),
            longest_sleep: number("wake_up_interval").filter(|n| *n > 0).map(Duration::from_millis),
        }
    }
}

/// Bytes of a buffer whose size nobody sets. rdma-core's have a quarter; a peer writes into halves, and the
/// next half is to be lent before it has filled one.
const DEFAULT_BUFFER: u32 = 1 << 19;

/// The most bytes of a buffer.
pub(crate) const MAX_BUFFER: u32 = 1 << 30;

/// What a send buffer has when a program asks for less than half of it.
pub(crate) const LEAST_SEND_BUFFER: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_set_what_they_name() {
        let folder = std::env::temp_dir().join(format!("adverb-rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let plain = Configuration::of_folder(&folder);
        assert_eq!((plain.receive_buffer, plain.send_requests, plain.inline), (DEFAULT_BUFFER, 384, 64));
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("wmem_default", "5"),
            ("sqsize_default", "99999999"),
            ("rqsize_default", "many"),
            ("polling_time", "7"),
            ("wake_up_interval", "250"),
            ("iomap_size", " 3 "),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let set = Configuration::of_folder(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = Configuration {
            receive_buffer: 1_000_000,
            send_buffer: 4096,
            send_requests: 65_535,
            receive_requests: 384,
            inline: 64,
            mappings: 3,
            polling: Duration::from_micros(7),
            longest_sleep: Some(Duration::from_millis(250)),
        };
        assert_eq!(set, expected);
    }
}
