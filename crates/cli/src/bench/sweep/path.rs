//! The ways from one process to another that are measured.

/// A device, and what it may use towards a peer on the same host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Path {
    /// The path's name for readers.
    pub(super) name: &'static str,
    pub(super) device: &'static str,
    /// The value of `ADVERB_LOCAL` in both processes.
    pub(super) local: &'static str,
    /// Whether nothing but shared memory must carry it, once it is connected.
    pub(super) shared_memory: bool,
}

/// All paths through an adverb device.
pub(super) const ALL: [Path; 3] = [
    Path { name: "iwarp0 over TCP", device: "iwarp0", local: "off", shared_memory: false },
    Path { name: "roce0 over UDP", device: "roce0", local: "off", shared_memory: false },
    Path { name: "roce0 in shared memory", device: "roce0", local: "auto", shared_memory: true },
];

impl Path {
    /// The environment of a process that uses it.
    pub(super) fn environment(&self) -> [(&'static str, &'static str); 3] {
        [("ADVERB_DEVICE", self.device), ("ADVERB_LOCAL", self.local), ("ADVERB_CRC", "off")]
    }
}
