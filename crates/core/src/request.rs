//! Work requests and work completions, with the values of the C interface (ibv_post_send(3), ibv_poll_cq(3)).

use crate::memory::AccessError;
use crate::qp::Path;
use bitflags::bitflags;

/// A scatter/gather element (struct ibv_sge, same layout).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte, as the region with `lkey` calls it.
    pub address: u64,
    /// The length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $type:ty { $($(#[$item_doc:meta])* $item:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($type)]
        pub enum $name { $($(#[$item_doc])* $item = $value,)* }

        impl $name {
            /// Every variant.
            ///
            /// ```
            #[doc = concat!("# use adverb_core::request::", stringify!($name), ";")]
            /// // For a table that explains the numbers: each is there once, in the order of its number.
            #[doc = concat!("let numbers = ", stringify!($name), "::ALL.iter().map(|each| *each as u32);")]
            /// assert!(numbers.clone().is_sorted_by(|one, next| one < next) && numbers.count() > 0);
            /// ```
            pub const ALL: &'static [Self] = &[$(Self::$item,)*];

            /// The variant of a number of the C interface.
            ///
            /// ```
            #[doc = concat!("# use adverb_core::request::", stringify!($name), ";")]
            /// // A number that a program in C has printed:
            #[doc = concat!("for each in ", stringify!($name), "::ALL {")]
            #[doc = concat!("    assert_eq!(", stringify!($name), "::from_number(*each as u32), Some(*each));")]
            /// }
            #[doc = concat!("assert_eq!(", stringify!($name), "::from_number(9999), None);")]
            /// ```
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($value => Some(Self::$item),)* _ => None }
            }
        }
    };
}

numbered! {
    /// The operation of a send work request (`enum ibv_wr_opcode`).
    Opcode: u8 {
        /// RDMA Write.
        Write = 0,
        /// RDMA Write with immediate data, which consumes a receive of the peer.
        WriteWithImmediate = 1,
        /// Send.
        Send = 2,
        /// Send with immediate data.
        SendWithImmediate = 3,
        /// RDMA Read.
        Read = 4,
        /// Atomic compare and swap.
        CompareSwap = 5,
        /// Atomic fetch and add.
        FetchAdd = 6,
        /// Invalidate a local key.
        LocalInvalidate = 7,
        /// Bind a memory window.
        BindWindow = 8,
        /// Send that invalidates a key of the peer.
        SendWithInvalidate = 9,
        /// Flush the peer's memory.
        Flush = 14,
        /// Atomic write of 8 bytes.
        AtomicWrite = 15,
    }
}

bitflags! {
    /// Modifiers of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Begin only when all earlier reads and atomics of the queue are complete.
        const FENCE = 1;
        /// Report the completion.
        const SIGNALED = 1 << 1;
        /// Wake a peer that waits for solicited completions only.
        const SOLICITED = 1 << 2;
        /// The data is taken before the post returns.
        const INLINE = 1 << 3;
        /// Checksum offload for raw packets.
        const IP_CHECKSUM = 1 << 4;
    }
}

/// Where the bytes of a send work request lie.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In registered memory, gathered in order.
    Registered(&'a [Sge]),
    /// At addresses of this process that need no key; copied before the post returns ([`SendFlags::INLINE`]).
    InlineAt(&'a [Sge]),
    /// In these slices; copied before the post returns.
    Inline(&'a [&'a [u8]]),
}

/// A send work request (struct ibv_send_wr).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation of the request.
    pub opcode: Opcode,
    /// The flags of the request. `INLINE` is implied by [`Data`].
    pub flags: SendFlags,
    /// The bytes to send, or for reads and atomics where the result goes.
    pub data: Data<'a>,
    /// The peer's address: Write, Read, atomics. Bind: the first byte, as the region calls it.
    pub remote_address: u64,
    /// The peer's key. Bind: the window's, with the lowest 8 bits that it is to have.
    pub rkey: u32,
    /// Immediate data in network order as the program gave it, or the key to invalidate. Bind: the region's
    /// key.
    pub immediate: u32,
    /// Atomics: the number to add, or to compare with. Flush and bind: a count of bytes.
    pub compare_add: u64,
    /// Compare and swap: the number to store. Flush: the placement type (`enum ibv_placement_type`), and from
    /// bit 8 on the selectivity level. Bind: the peers' rights ([`crate::memory::Access`]).
    pub swap: u64,
    /// XRC: number of the peer's shared receive queue.
    pub shared_queue: u32,
    /// Datagrams: where to. The other fields of remote memory and atomics are not used then.
    pub datagram: Option<Datagram<'a>>,
}

impl Default for SendRequest<'_> {
    /// An empty Send.
    fn default() -> Self {
        Self {
            wr_id: 0,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            data: Data::Registered(&[]),
            remote_address: 0,
            rkey: 0,
            immediate: 0,
            compare_add: 0,
            swap: 0,
            shared_queue: 0,
            datagram: None,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The way, of an address handle.
    pub path: &'a Path,
    /// The receiving queue pair.
    pub queue_pair: u32,
    /// The Q_Key of the destination; with the highest bit set, the queue pair's own is sent instead.
    pub qkey: u32,
}

/// A receive work request (struct ibv_recv_wr).
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes, filled in order.
    pub sges: &'a [Sge],
}

numbered! {
    /// How a work request ended (`enum ibv_wc_status`).
    #[non_exhaustive]
    Status: u8 {
        /// Well.
        Success = 0,
        /// A message was longer than the receive, or than allowed.
        LocalLength = 1,
        /// The queue pair could not do this.
        LocalQpOperation = 2,
        /// An element of the request names memory that its key does not open.
        LocalProtection = 4,
        /// The queue pair was in error, or went into it, before the request was done.
        Flushed = 5,
        /// Binding a window failed.
        WindowBind = 6,
        /// The peer answered something impossible.
        BadResponse = 7,
        /// Data arrived for memory that its key does not open.
        LocalAccess = 8,
        /// The peer found the request invalid.
        RemoteInvalidRequest = 9,
        /// The peer refused access to its memory.
        RemoteAccess = 10,
        /// The peer could not complete the operation.
        RemoteOperation = 11,
        /// The peer did not answer.
        RetryExceeded = 12,
        /// The peer had no receive ready.
        RnrRetryExceeded = 13,
        /// The peer aborted.
        RemoteAborted = 16,
        /// The transport failed.
        Fatal = 19,
        /// The peer's answer took too long.
        ResponseTimeout = 20,
        /// Something else.
        General = 21,
    }
}

numbered! {
    /// Why a request failed: `vendor_err` of its work completion. The numbers stay what they are;
    /// `docs/errors.md` explains each.
    #[non_exhaustive]
    Cause: u32 {
        /// The request did not fail.
        None = 0,
        /// The queue pair was in error, or went into it, before the request was done: look at the request
        /// that failed first.
        Flushed = 0x001,
        /// There is no such local key, or no longer.
        LocalKey = 0x101,
        /// The local key belongs to another protection domain.
        LocalDomain = 0x102,
        /// The local bytes begin before the region of their key, or end behind it.
        LocalBounds = 0x103,
        /// The region of the local key does not permit this.
        LocalRights = 0x104,
        /// The local memory is registered, but not there any more.
        LocalFault = 0x105,
        /// The message is longer than allowed.
        LocalLength = 0x106,
        /// The queue pair could not do this.
        LocalOperation = 0x107,
        /// Local memory could not be used when it was needed; now it could.
        LocalMemory = 0x108,
        /// A message was longer than the receive that it took.
        ReceiveTooSmall = 0x201,
        /// The message asked for something besides, which was refused.
        ReceiveInvalid = 0x202,
        /// The peer found the request invalid: its receive was too small, its queue pair lacks the right, or
        /// too many reads were under way.
        PeerInvalid = 0x301,
        /// The peer refused access to its memory.
        PeerAccess = 0x302,
        /// The peer could not complete the operation.
        PeerOperation = 0x303,
        /// The peer aborted.
        PeerAborted = 0x304,
        /// The peer answered something impossible.
        PeerAnswer = 0x305,
        /// The peer did not answer, however often the request was repeated.
        NoAnswer = 0x401,
        /// The peer had no receive ready, however often the request was repeated.
        NoReceive = 0x402,
        /// The peer's answer took too long.
        LateAnswer = 0x403,
        /// A memory window was not bound.
        Window = 0x501,
        /// The transport failed, or something else.
        Other = 0x5ff,
    }
}

impl From<Status> for Cause {
    /// The cause that a status alone shows.
    fn from(status: Status) -> Self {
        match status {
            Status::Success => Self::None,
            Status::LocalLength => Self::LocalLength,
            Status::LocalQpOperation => Self::LocalOperation,
            Status::LocalProtection | Status::LocalAccess => Self::LocalMemory,
            Status::Flushed => Self::Flushed,
            Status::WindowBind => Self::Window,
            Status::BadResponse => Self::PeerAnswer,
            Status::RemoteInvalidRequest => Self::PeerInvalid,
            Status::RemoteAccess => Self::PeerAccess,
            Status::RemoteOperation => Self::PeerOperation,
            Status::RetryExceeded => Self::NoAnswer,
            Status::RnrRetryExceeded => Self::NoReceive,
            Status::RemoteAborted => Self::PeerAborted,
            Status::ResponseTimeout => Self::LateAnswer,
            Status::Fatal | Status::General => Self::Other,
        }
    }
}

impl From<AccessError> for Cause {
    /// The cause that an error of this process's memory is.
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Key => Self::LocalKey,
            AccessError::ProtectionDomain => Self::LocalDomain,
            AccessError::Bounds | AccessError::Wrap => Self::LocalBounds,
            AccessError::Rights => Self::LocalRights,
        }
    }
}

impl std::fmt::Display for Status {
    /// Says in a sentence what happened, for a person.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "a message was longer than the receive that it took, or than is allowed",
            Self::LocalQpOperation => "the queue pair could not carry out the operation",
            Self::LocalProtection => "the request names local memory that its key does not open",
            Self::Flushed => "the connection ended before the request was done",
            Self::WindowBind => "binding the memory window failed",
            Self::BadResponse => "the peer answered something impossible",
            Self::LocalAccess => "data arrived for local memory that the key does not open",
            Self::RemoteInvalidRequest => "the peer found the request invalid",
            Self::RemoteAccess => {
                "the peer refused access to its memory: wrong key, bytes outside the region, or a missing right"
            }
            Self::RemoteOperation => "the peer could not complete the operation",
            Self::RetryExceeded => "the peer did not answer",
            Self::RnrRetryExceeded => "the peer had no receive ready",
            Self::RemoteAborted => "the peer aborted the request",
            Self::Fatal => "the transport failed",
            Self::ResponseTimeout => "the peer's answer took too long",
            Self::General => "the request failed",
        })
    }
}

numbered! {
    /// The operation that has completed (`enum ibv_wc_opcode`).
    #[non_exhaustive]
    CompletionOpcode: u8 {
        /// A send of any kind.
        Send = 0,
        /// A write of any kind.
        Write = 1,
        /// A read.
        Read = 2,
        /// A compare and swap.
        CompareSwap = 3,
        /// A fetch and add.
        FetchAdd = 4,
        /// A window bound.
        BindWindow = 5,
        /// A key invalidated.
        LocalInvalidate = 6,
        /// Memory flushed.
        Flush = 8,
        /// An atomic write.
        AtomicWrite = 9,
        /// A receive, by a send.
        Receive = 128,
        /// A receive, by a write with immediate data.
        ReceiveWriteWithImmediate = 129,
    }
}

impl Opcode {
    /// The operation's name, for a person.
    ///
    /// ```
    /// # use adverb_core::request::Opcode;
    /// // For a log:
    /// let names: Vec<_> = [Opcode::Write, Opcode::FetchAdd].into_iter().map(Opcode::name).collect();
    /// assert_eq!(names.join(", "), "write, fetch-and-add");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteWithImmediate => "write with immediate",
            Self::Send => "send",
            Self::SendWithImmediate => "send with immediate",
            Self::Read => "read",
            Self::CompareSwap => "compare-and-swap",
            Self::FetchAdd => "fetch-and-add",
            Self::LocalInvalidate => "local invalidate",
            Self::BindWindow => "bind window",
            Self::SendWithInvalidate => "send with invalidate",
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic write",
        }
    }

    /// The opcode that its completion carries.
    ///
    /// ```
    /// # use adverb_core::request::{CompletionOpcode, Opcode};
    /// // Whether a Send had a number, its completion does not say.
    /// assert_eq!(Opcode::Send.completion(), CompletionOpcode::Send);
    /// assert_eq!(Opcode::SendWithImmediate.completion(), CompletionOpcode::Send);
    /// ```
    pub fn completion(self) -> CompletionOpcode {
        match self {
            Self::Write | Self::WriteWithImmediate => CompletionOpcode::Write,
            Self::Send | Self::SendWithImmediate | Self::SendWithInvalidate => CompletionOpcode::Send,
            Self::Read => CompletionOpcode::Read,
            Self::CompareSwap => CompletionOpcode::CompareSwap,
            Self::FetchAdd => CompletionOpcode::FetchAdd,
            Self::LocalInvalidate => CompletionOpcode::LocalInvalidate,
            Self::BindWindow => CompletionOpcode::BindWindow,
            Self::Flush => CompletionOpcode::Flush,
            Self::AtomicWrite => CompletionOpcode::AtomicWrite,
        }
    }

    /// Whether the operation concerns the keys of this process alone, and nothing is sent.
    ///
    /// ```
    /// # use adverb_core::request::Opcode;
    /// // The end of a bind says nothing about the peer, and the end of a Write does.
    /// assert!(Opcode::BindWindow.is_local());
    /// assert!(!Opcode::Write.is_local());
    /// ```
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate | Self::BindWindow)
    }

    /// Whether the operation brings bytes back into local memory.
    ///
    /// ```
    /// # use adverb_core::request::Opcode;
    /// // For these a later request may need a fence, if it sends the bytes that they bring.
    /// let fenced: Vec<_> = Opcode::ALL.iter().filter(|it| it.is_read_or_atomic()).collect();
    /// assert_eq!(fenced, [&Opcode::Read, &Opcode::CompareSwap, &Opcode::FetchAdd]);
    /// ```
    pub fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }
}

bitflags! {
    /// Further properties of a completion (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionFlags: u8 {
        /// A global routing header stands in the first 40 bytes.
        const GRH = 1;
        /// `immediate` is immediate data.
        const WITH_IMMEDIATE = 1 << 1;
        /// `immediate` is the local key that the peer invalidated.
        const WITH_INVALIDATE = 1 << 3;
    }
}

/// A work completion (struct ibv_wc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's name in the program.
    pub wr_id: u64,
    /// How the request ended; the other fields but `wr_id` and the queue pair number mean something only if
    /// well.
    pub status: Status,
    /// The operation that has completed.
    pub opcode: CompletionOpcode,
    /// Further properties of the completion.
    pub flags: CompletionFlags,
    /// Bytes received, read or swapped.
    pub byte_length: u32,
    /// Immediate data in network order, or the invalidated key.
    pub immediate: u32,
    /// The local queue pair.
    pub queue_pair: u32,
    /// The sender's queue pair (UD).
    pub source_queue_pair: u32,
    /// Why the request failed: a [`Cause`].
    pub vendor_error: u32,
    /// Service level of the message (UD); over RoCE, the kind of its header.
    pub service_level: u8,
    /// Path bits of the address that it was sent to (UD).
    pub path_bits: u8,
    /// When the completion was reported, by [`clock::device`](crate::clock::device); only on a completion
    /// queue that [wants it](crate::cq::CompletionQueue::want_timestamps).
    pub timestamp: u64,
}

impl Completion {
    /// The values of fields that no part of the engine sets.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: Status::Success,
        opcode: CompletionOpcode::Send,
        flags: CompletionFlags::empty(),
        byte_length: 0,
        immediate: 0,
        queue_pair: 0,
        source_queue_pair: 0,
        vendor_error: 0,
        service_level: 0,
        path_bits: 0,
        timestamp: 0,
    };
}

impl Default for Completion {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_in_the_table_of_the_documentation() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
        let table = std::fs::read_to_string(path).unwrap();
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| 0x")).collect();
        let expected: Vec<_> =
            Cause::ALL.iter().map(|cause| format!("| {:#05x} | `{cause:?}` | ", *cause as u32)).collect();
        assert_eq!(rows.len(), expected.len());
        for (row, expected) in rows.iter().zip(&expected) {
            assert!(row.starts_with(expected), "{row} is not {expected}");
        }
    }
}
