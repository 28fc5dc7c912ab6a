//! Exceptions, each with its reason. One that is not needed any more fails the check.

/// A name that is refused elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Exception {
    /// The beginning of the file's path.
    pub(super) below: &'static str,
    pub(super) names: &'static [&'static str],
    /// The reason, for readers.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for a test"))]
    pub(super) reason: &'static str,
}

/// Types that may be called by a participle alone.
pub(super) const PARTICIPLES: &[Exception] = &[
    Exception {
        below: "crates/adverb/src/request.rs",
        names: &["Rejected"],
        reason: "a part of the API that is published",
    },
    Exception { below: "crates/roce/src/net.rs", names: &["Feed"], reason: "a noun" },
    Exception {
        below: "crates/wire/src/ddp.rs",
        names: &["Tagged", "Untagged"],
        reason: "the two kinds of segment in RFC 5041",
    },
];

/// Constants that may be called by these words alone.
pub(super) const CONSTANTS: &[Exception] = &[];

/// Names that several public types of a layer may have.
#[derive(Clone, Copy)]
pub(super) struct Homonym {
    /// As the table in ARCHITECTURE.md calls it.
    pub(super) layer: &'static str,
    pub(super) names: &'static [&'static str],
    /// The reason, for readers.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for a test"))]
    pub(super) reason: &'static str,
}

pub(super) const NAMESAKES: &[Homonym] = &[
    Homonym {
        layer: "command",
        names: &["Args"],
        reason: "of each command its arguments, as is usual with clap",
    },
    Homonym {
        layer: "front ends",
        names: &["Failure", "Original"],
        reason: "two preloaded libraries that share no code do the same",
    },
    Homonym {
        layer: "transports, sockets",
        names: &[
            "Channel",
            "ChannelSnapshot",
            "Endpoint",
            "Incoming",
            "KeptReads",
            "Lane",
            "Manager",
            "ReceivingThread",
            "Socket",
        ],
        reason: "each transport has one, and they mean the same there",
    },
    Homonym {
        layer: "no input or output",
        names: &["Config", "Offer", "Outbound", "Reply", "Request", "Responder", "Source"],
        reason: "words of the standards, in the module of each protocol",
    },
    Homonym {
        layer: "no input or output",
        names: &["Segment"],
        reason: "of DDP, and of shared memory: both are the field's words",
    },
    Homonym {
        layer: "formats",
        names: &["Opcode"],
        reason: "of InfiniBand and of RDMAP, whose standards call it so",
    },
];
