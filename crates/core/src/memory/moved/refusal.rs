//! Why memory is not moved.

use std::fmt;

/// Why a region's pages are not moved. The program's memory is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `ADVERB_WITHOUT` says so.
    Off,
    /// No thread has looked yet: a thread of the program does, at its next safe point.
    Later,
    /// The region is not registered any more.
    Ended,
    /// The region has no whole page, or too few while so many other ranges are moved.
    Small,
    /// The memory is of a kind that cannot be moved.
    Memory(&'static str),
    /// Some of the memory has been moved for another region, or had been until the program put something else
    /// in its place.
    Overlap,
    /// Other threads of the program may write to it.
    Threads,
    /// Completions of io_uring may write to it.
    Uring,
    /// The kernel or a device may write to it: pages are pinned.
    Pinned,
    /// Not at this moment.
    Busy,
    /// A facility of the system is missing, or said this errno.
    System(&'static str, i32),
}

impl Refusal {
    pub(in crate::memory) fn system(what: &'static str) -> Self {
        Self::because(what, &std::io::Error::last_os_error())
    }

    pub(in crate::memory) fn because(what: &'static str, error: &std::io::Error) -> Self {
        Self::System(what, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether all regions of the process are refused, and not this one alone.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::Off | Self::Threads | Self::Uring | Self::Pinned | Self::Busy | Self::System(..))
    }

    /// Whether the cause may pass, so that asking again makes sense, later and not often.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Threads | Self::Uring | Self::Pinned | Self::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("ADVERB_WITHOUT names moved-pages"),
            Self::Later => f.write_str("no thread of the program has come by yet"),
            Self::Ended => f.write_str("the region is not registered any more"),
            Self::Small => f.write_str("it is too small"),
            Self::Memory(why) => f.write_str(why),
            Self::Overlap => f.write_str("it overlaps memory that is shared for another region"),
            Self::Threads => f.write_str("other threads may write to it"),
            Self::Uring => f.write_str("io_uring may write to it"),
            Self::Pinned => f.write_str("the kernel or a device may write to it at any time"),
            Self::Busy => {
                f.write_str("a thread of the engine, or a request under way, is using it at this moment")
            }
            Self::System(what, errno) => write!(f, "{what}: {}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}
