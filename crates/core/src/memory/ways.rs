//! Which way processes of this host reach the bytes of a region, and why. It is decided here and nowhere
//! else.
//!
//! Others find the facts ([`super::moved`] why pages are not moved, [`super::process`] where the kernel
//! copies). The first line that fits counts:
//!
//! | the region | what is found | way |
//! |---|---|---|
//! | any | `ADVERB_LOCAL=off`, or no memory descriptors | the network |
//! | any | `ADVERB_LOCAL=strict`, or a capture | packets |
//! | null memory, memory windows, memory of rsockets that is only sent from | | packets |
//! | memory of the engine in a descriptor of its own (device memory, buffers of the Rust API) | | mapped as it is |
//! | private pages of the program | moved, and guarded | mapped where they have been moved to |
//! | shared memory of the program (memfd, tmpfs, System V), all of it in one file, to be read and written | the initiator finds it there at each use | mapped as it is |
//! | the same, and any other memory of the program | not moved, for whatever reason | the kernel's copy |
//! | the same | it is only lent for long sends, or `ADVERB_WITHOUT=kernel-copy` | packets |
//!
//! For a single request the initiator chooses among the rest ([`call`]). Memory that is not mapped goes by
//! the kernel's copy: by the memory file up to 2 KiB, and by process_vm_writev(2) and process_vm_readv(2)
//! beyond. Atomic operations, and all copies that the system refuses, go as packets.

use super::common;
use super::keys::{Access, Kind};
use super::moved::{self, Place, Refusal};
use crate::pcap;
use crate::setting::{self, WithinHost};
use std::fmt;

/// How two processes of this host and user use each other's memory, as this one is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// Each carries out operations in the memory of the other.
    Straight,
    /// Packets through shared memory: they are captured where they are served.
    Captured,
    /// Packets through shared memory: every operation is checked by the process whose memory it is.
    Strict,
    /// The network: the system has no memory descriptors, or is to do without.
    NoDescriptors,
    /// The network.
    Off,
}

impl Together {
    /// How processes use each other's memory, as the variables of the environment say.
    pub fn now() -> Self {
        Self::of(setting::within_host(), !setting::without("memfd"), pcap::enabled)
    }

    fn of(wanted: WithinHost, has_descriptors: bool, is_captured: impl FnOnce() -> bool) -> Self {
        match wanted {
            WithinHost::Off => Self::Off,
            _ if !has_descriptors => Self::NoDescriptors,
            WithinHost::Strict => Self::Strict,
            WithinHost::Auto if is_captured() => Self::Captured,
            WithinHost::Auto => Self::Straight,
        }
    }

    /// Whether each carries out operations in the memory of the other.
    pub fn is_straight(self) -> bool {
        self == Self::Straight
    }

    /// Whether the two processes share any memory.
    pub fn shares(self) -> bool {
        !matches!(self, Self::Off | Self::NoDescriptors)
    }

    /// Whether other processes may import objects, whose pages they map.
    pub fn exports(self) -> bool {
        matches!(self, Self::Straight | Self::Captured)
    }
}

/// The kind of a region's memory, and whether its pages have been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The engine's own, in a memory descriptor.
    Own(Place),
    /// The program's private pages, which have been moved.
    Moved(Place),
    /// The program's own shared memory, in one piece of a file.
    Common,
    /// The program's private pages, which are where they were, for this reason.
    Unmoved(Refusal),
    /// No peer reaches it by its key.
    Closed,
}

/// The facts about a region that a peer is to reach.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// How the two processes use each other's memory.
    pub together: Together,
    /// The owner of the memory.
    pub memory: Memory,
    /// The memory is lent to the peer for long sends: the peer fetches it by the kernel anyway, and need not
    /// reach it by its key.
    pub is_only_lent: bool,
    /// Whether the kernel is to copy at all (`ADVERB_WITHOUT=kernel-copy`).
    pub has_kernel_copy: bool,
}

/// A way to the bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Peers map the pages as they are.
    Mapped(Place),
    /// Peers map the pages where they have been moved to; the program's changes to them are guarded.
    Moved(Place),
    /// Peers map the pages as they are where they find them, and have the kernel copy where they do not.
    Common,
    /// The kernel copies between the two processes.
    Kernel,
    /// Packets through shared memory, which the engine of the process serves.
    Packets,
    /// Packets by the network.
    Network,
}

/// Why peers reach a region in the way that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// How the two processes use each other's memory.
    Together(Together),
    /// The memory is the engine's own.
    Own,
    /// No other process can have its pages in use, and they are guarded.
    Guarded,
    /// The program shares it by itself.
    Common,
    /// The memory is not moved.
    Unmoved(Refusal),
    /// The memory is not moved, and the kernel is not to copy by its key.
    Unreached(Refusal),
    /// The program shares it by itself, and peers are not to reach it by its key.
    UnreachedCommon,
    /// No peer reaches it by its key.
    Closed,
}

/// A way, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// The reason.
    pub why: Why,
}

impl Facts {
    /// The facts of a region, with the settings of this process.
    pub fn of(memory: Memory, is_only_lent: bool) -> Self {
        Self { together: Together::now(), memory, is_only_lent, has_kernel_copy: has_kernel_copy() }
    }

    /// The way that the table of this module gives.
    pub fn choose(&self) -> Choice {
        let (way, why) = match (self.together, self.memory) {
            (Together::Off | Together::NoDescriptors, _) => (Way::Network, Why::Together(self.together)),
            (Together::Strict | Together::Captured, _) => (Way::Packets, Why::Together(self.together)),
            (Together::Straight, Memory::Closed) => (Way::Packets, Why::Closed),
            (Together::Straight, Memory::Own(place)) => (Way::Mapped(place), Why::Own),
            (Together::Straight, Memory::Moved(place)) => (Way::Moved(place), Why::Guarded),
            (Together::Straight, Memory::Common) if self.is_only_lent || !self.has_kernel_copy => {
                (Way::Packets, Why::UnreachedCommon)
            }
            (Together::Straight, Memory::Common) => (Way::Common, Why::Common),
            (Together::Straight, Memory::Unmoved(refusal)) if self.is_only_lent || !self.has_kernel_copy => {
                (Way::Packets, Why::Unreached(refusal))
            }
            (Together::Straight, Memory::Unmoved(refusal)) => (Way::Kernel, Why::Unmoved(refusal)),
        };
        Choice { way, why }
    }
}

impl Way {
    /// Where peers map it from, if they do.
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Mapped(place) | Self::Moved(place) => Some(*place),
            Self::Common | Self::Kernel | Self::Packets | Self::Network => None,
        }
    }

    /// Whether peers reach it by themselves.
    pub fn is_straight(&self) -> bool {
        matches!(self, Self::Mapped(_) | Self::Moved(_) | Self::Common | Self::Kernel)
    }
}

/// Whether the kernel is to copy between processes at all.
pub(super) fn has_kernel_copy() -> bool {
    !setting::without("kernel-copy")
}

/// Whether the kernel is to copy to and from another process by the memory file, too.
pub(super) fn has_memory_file() -> bool {
    !setting::without("memory-file")
}

/// Whether the engine has memory of its own where peers map it.
pub(super) fn has_own_memory() -> bool {
    Together::now().is_straight() && !setting::without("mapped-memory")
}

/// Which ways this process would have, as it is set and as the system is, a line for each.
pub fn survey() -> Vec<String> {
    let together = Together::now();
    if !together.is_straight() {
        let way = if together.shares() { Way::Packets } else { Way::Network };
        return vec![format!("{way} ({})", Why::Together(together))];
    }
    let own = match has_own_memory() {
        true => "peers map it as it is",
        false => "the kernel copies (ADVERB_WITHOUT names mapped-memory)",
    };
    let moved = match moved::may_be_had() {
        Ok(()) => "peers map it once it has been moved, while the program has one thread".to_owned(),
        Err(refusal) => format!("it is not moved ({refusal})"),
    };
    let common = match common::may_be_had() {
        Ok(()) if has_kernel_copy() => {
            "peers map it as it is, where one process may look at the other".to_owned()
        }
        Ok(()) => "packets (ADVERB_WITHOUT names kernel-copy)".to_owned(),
        Err(refusal) => format!("the kernel copies ({refusal})"),
    };
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let kernel = match scope.trim() {
        _ if !has_kernel_copy() => "packets (ADVERB_WITHOUT names kernel-copy)",
        "" | "0" => "the kernel copies, where one process may look at the other",
        _ => "packets, where one process may not trace the other (kernel.yama.ptrace_scope)",
    };
    vec![
        format!("memory of the engine (device memory, the Rust API): {own}"),
        format!("private memory of programs: {moved}"),
        format!("shared memory of programs (memfd, tmpfs, System V): {common}"),
        format!("everything else: {kernel}"),
    ]
}

/// Whether the bytes of a key can be shown to peers at all. Windows, null memory and memory that no thread
/// changes while it is sent have no place in their table.
pub(super) fn may_be_shown(kind: Kind, is_window: bool) -> bool {
    kind == Kind::Program && !is_window
}

/// Whether the kernel may copy by the memory file, which knows no protection of pages. The pages must permit
/// the rights of the region (`is_permitted`), and the program must put no other memory behind the key.
pub(super) fn by_file(access: Access, is_permitted: impl FnOnce() -> bool) -> bool {
    !access.contains(Access::ON_DEMAND) && has_memory_file() && is_permitted()
}

/// Whether peers may look for themselves where the program shares these bytes (`is_shared`), and map them as
/// they are. They may not if they know already from where to map them (`is_placed`), or if the program puts
/// other memory behind the key.
pub(crate) fn by_common(access: Access, is_placed: bool, is_shared: impl FnOnce() -> bool) -> bool {
    !is_placed && !access.contains(Access::ON_DEMAND) && is_shared()
}

/// A call by which the kernel copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// pread(2) or pwrite(2) of `/proc/PID/mem`, through a buffer of the engine: less work for the kernel, a
    /// copy more.
    File,
    /// process_vm_readv(2) or process_vm_writev(2).
    Number,
}

/// Up to so many bytes go by the memory file.
pub const SHORT: usize = 2048;

/// The call by which the kernel copies so many bytes, if any. `by_file`: the memory file may be used for
/// them. `has_file`, `has_number`: the two calls that the system has not refused.
#[inline]
pub(super) fn call(length: usize, by_file: bool, has_file: bool, has_number: bool) -> Option<Call> {
    let has_file = has_file && by_file;
    match (has_file, has_number) {
        (true, false) => Some(Call::File),
        (true, true) if length <= SHORT => Some(Call::File),
        (_, true) => Some(Call::Number),
        (false, false) => None,
    }
}

/// Whether the kernel's copy can carry out an operation with this right. The kernel does not promise one
/// store, so atomic operations are not carried out so.
#[inline]
pub fn kernel_does(right: Access) -> bool {
    !right.intersects(Access::REMOTE_ATOMIC)
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped(_) => "peers map it as it is",
            Self::Moved(_) => "its pages are moved, peers map them",
            Self::Common => "peers map it as it is, or else the kernel copies",
            Self::Kernel => "the kernel copies",
            Self::Packets => "packets through shared memory",
            Self::Network => "packets by the network",
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together(Together::Off) => f.write_str("ADVERB_LOCAL=off"),
            Self::Together(Together::NoDescriptors) => f.write_str("ADVERB_WITHOUT names memfd"),
            Self::Together(Together::Strict) => f.write_str("ADVERB_LOCAL=strict"),
            Self::Together(Together::Captured) => f.write_str("packets are captured (ADVERB_PCAP)"),
            Self::Together(Together::Straight) => f.write_str("both processes permit it"),
            Self::Own => f.write_str("it is the engine's own memory"),
            Self::Guarded => f.write_str("nobody else has them in use, and they are guarded"),
            Self::Common => f.write_str("it is shared memory of the program"),
            Self::UnreachedCommon => {
                f.write_str("it is shared memory of the program, and the kernel does not copy by its key")
            }
            Self::Unmoved(why) => write!(f, "its pages are not moved: {why}"),
            Self::Unreached(why) => {
                write!(f, "its pages are not moved: {why}; and the kernel does not copy by its key")
            }
            Self::Closed => f.write_str("no peer reaches it by its key"),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, why } = self;
        write!(f, "{way} ({why})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { descriptor: 3, offset: 0x7000, length: 0x1000, address: 0x1_0000 };

    /// The first line of the module's table that fits, line by line.
    #[test]
    fn each_kind_of_memory_goes_its_way() {
        use Together::{Captured, NoDescriptors, Off, Straight, Strict};
        let all = [
            Memory::Own(PLACE),
            Memory::Moved(PLACE),
            Memory::Common,
            Memory::Unmoved(Refusal::Threads),
            Memory::Closed,
        ];
        let choose = |together, memory, is_only_lent, has_kernel_copy| {
            Facts { together, memory, is_only_lent, has_kernel_copy }.choose()
        };
        for memory in all {
            for (lent, kernel) in [(false, false), (false, true), (true, false), (true, true)] {
                for together in [Off, NoDescriptors] {
                    assert_eq!(choose(together, memory, lent, kernel).way, Way::Network, "{memory:?}");
                }
                for together in [Strict, Captured] {
                    assert_eq!(choose(together, memory, lent, kernel).way, Way::Packets, "{memory:?}");
                }
            }
        }
        for (lent, kernel) in [(false, false), (false, true), (true, false), (true, true)] {
            let way = |memory| choose(Straight, memory, lent, kernel).way;
            assert_eq!(way(Memory::Closed), Way::Packets);
            assert_eq!(way(Memory::Own(PLACE)), Way::Mapped(PLACE));
            assert_eq!(way(Memory::Moved(PLACE)), Way::Moved(PLACE));
            assert_eq!(way(Memory::Common), if kernel && !lent { Way::Common } else { Way::Packets });
            let copied = if kernel && !lent { Way::Kernel } else { Way::Packets };
            for refusal in [
                Refusal::Off,
                Refusal::Later,
                Refusal::Ended,
                Refusal::Small,
                Refusal::Memory("it is shared"),
                Refusal::Overlap,
                Refusal::Threads,
                Refusal::Uring,
                Refusal::Pinned,
                Refusal::Busy,
                Refusal::System("userfaultfd", libc::EPERM),
            ] {
                assert_eq!(way(Memory::Unmoved(refusal)), copied, "{refusal}");
            }
        }
    }

    #[test]
    fn settings_are_looked_at_in_their_order() {
        use WithinHost::{Auto, Strict};
        let of = |wanted, has_descriptors, is_captured| Together::of(wanted, has_descriptors, || is_captured);
        assert_eq!(of(Auto, true, false), Together::Straight);
        assert_eq!(of(Auto, true, true), Together::Captured);
        for captured in [false, true] {
            assert_eq!(of(Strict, true, captured), Together::Strict);
            for descriptors in [false, true] {
                assert_eq!(of(WithinHost::Off, descriptors, captured), Together::Off);
            }
            for wanted in [Auto, Strict] {
                assert_eq!(of(wanted, false, captured), Together::NoDescriptors);
            }
        }
        let shares = [Together::Straight, Together::Captured, Together::Strict];
        assert!(shares.iter().all(|together| together.shares()));
        assert!(![Together::NoDescriptors, Together::Off].iter().any(|together| together.shares()));
        assert!(Together::Captured.exports() && !Together::Strict.exports() && !Together::Off.exports());
    }

    #[test]
    fn short_pieces_go_by_the_memory_file_and_long_ones_by_number() {
        let calls = |length| {
            [
                (true, true, true),
                (true, true, false),
                (true, false, true),
                (false, true, true),
                (false, true, false),
            ]
            .map(|(by_file, has_file, has_number)| call(length, by_file, has_file, has_number))
        };
        let [file, number] = [Some(Call::File), Some(Call::Number)];
        for length in [1, 8, SHORT] {
            assert_eq!(calls(length), [file, file, number, number, None]);
        }
        for length in [SHORT + 1, 1 << 30] {
            assert_eq!(calls(length), [number, file, number, number, None]);
        }
        assert_eq!(call(8, true, false, false), None);
        assert!(kernel_does(Access::REMOTE_WRITE) && kernel_does(Access::REMOTE_READ));
        assert!(!kernel_does(Access::REMOTE_ATOMIC));
    }

    #[test]
    fn a_way_is_closed_to_memory_that_does_not_meet_its_conditions() {
        assert!(may_be_shown(Kind::Program, false));
        assert!(!may_be_shown(Kind::Program, true));
        assert!(!may_be_shown(Kind::Null, false) && !may_be_shown(Kind::Immutable, false));
        assert!(!by_file(Access::ON_DEMAND, || true) && !by_file(Access::REMOTE, || false));
        assert!(by_common(Access::REMOTE, false, || true) && !by_common(Access::REMOTE, false, || false));
        assert!(!by_common(Access::ON_DEMAND, false, || true) && !by_common(Access::REMOTE, true, || true));
    }

    #[test]
    fn a_choice_says_way_and_reason() {
        let say = |memory| {
            Facts { together: Together::Straight, memory, is_only_lent: false, has_kernel_copy: true }
                .choose()
                .to_string()
        };
        assert_eq!(say(Memory::Own(PLACE)), "peers map it as it is (it is the engine's own memory)");
        assert_eq!(
            say(Memory::Unmoved(Refusal::Threads)),
            "the kernel copies (its pages are not moved: other threads may write to it)"
        );
    }
}
