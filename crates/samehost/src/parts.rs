//! The parts of a channel between two processes.

use crate::bell::Bell;
use crate::landmark::Probe;
use adverb_core::seqpacket::Connection;
use adverb_local::{Consumer, HazardSlots, HazardView, Producer, Segment};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The parts of a channel between two processes, or between a process and itself.
pub struct Parts {
    /// The other process, or this one.
    pub process: libc::pid_t,
    /// Records to the other process.
    pub producer: Producer,
    /// Records from it.
    pub consumer: Consumer,
    /// The hazard words by which this process says what it uses of the other's memory.
    pub hazard_slots: HazardSlots,
    /// The hazard words by which the other process says what it uses of this one's memory.
    pub hazard_view: HazardView,
    /// Rung by this process.
    pub theirs: Bell,
    /// Rung by the other one.
    pub ours: Bell,
    /// Whether each reads the other's memory.
    pub reads: bool,
    /// Hangs up when the other process ends. None towards oneself.
    pub connection: Option<Arc<Connection>>,
}

impl Parts {
    /// The parts of a channel to the process at the other end of a connection.
    pub(crate) fn new(
        connection: Arc<Connection>,
        segment: Segment,
        (ours, theirs): (Bell, Bell),
        reads: bool,
    ) -> Self {
        let adverb_local::Parts { producer, consumer, hazard_slots, hazard_view } = segment.parts();
        let process = connection.process();
        Self {
            process,
            producer,
            consumer,
            hazard_slots,
            hazard_view,
            theirs,
            ours,
            reads,
            connection: Some(connection),
        }
    }

    /// Both ends of a channel from this process to itself. One direction is enough: what goes in at one end
    /// comes out of the other. On the heap: the program's thread that wants the channel may have little
    /// stack.
    ///
    /// # Errors
    /// Those of memfd_create(2), mmap(2) and eventfd(2).
    #[inline(never)]
    pub fn to_oneself() -> io::Result<Box<Self>> {
        let (here, descriptor) = Segment::create()?;
        let there = Segment::open(descriptor)?;
        let ours = Bell::new()?;
        let theirs =
            Bell::from_descriptor(ours.as_fd().try_clone_to_owned()?).ok_or(io::ErrorKind::Unsupported)?;
        let reads = Probe::reads_itself();
        // One end announces, the other end sees that. The end that announces does not see it.
        let other = other_end(there);
        let adverb_local::Parts { producer, hazard_slots, .. } = here.parts();
        let process = std::process::id() as libc::pid_t;
        let connection = None;
        Ok(Box::new(Self {
            process,
            producer,
            consumer: other.0,
            hazard_slots,
            hazard_view: other.1,
            theirs,
            ours,
            reads,
            connection,
        }))
    }
}

/// The parts of the end that reads. A function of its own, and on the heap, since the parts of both ends
/// would take room on the caller's stack.
#[inline(never)]
fn other_end(there: Segment) -> Box<(Consumer, HazardView)> {
    let adverb_local::Parts { consumer, hazard_view, .. } = there.parts();
    Box::new((consumer, hazard_view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_local::Kind;
    use adverb_local::announce::{NOTHING, barrier};

    /// A region of this process is about to end, while a thread of this process writes to it by the channel:
    /// the thread that ends it has to see that.
    #[test]
    fn a_process_sees_which_of_its_own_memory_it_uses() {
        const KEY: u32 = 5;
        let parts = Parts::to_oneself().expect("memory");
        let is_used = || {
            barrier(std::iter::once(&parts.hazard_view));
            parts.hazard_view.is_announced(Kind::Key, KEY as usize)
        };
        assert!(!is_used());
        let announced = parts.hazard_slots.announce(KEY, NOTHING);
        assert!(announced.is_some() && is_used());
        drop(announced);
        assert!(!is_used());
    }
}
