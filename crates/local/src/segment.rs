//! The memory that two processes share.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::announce::{HazardSlots, HazardView};
use crate::layout::{MAGIC, SIZE, SegmentLayout, VERSION, Which};
use crate::membarrier::Registration;
use crate::memory::{self, MappedMemory, SEALS, Words, invalid};
use crate::ring::{Consumer, Producer};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::view::{Sides, View};

// SAFETY: atomic words and padding.
unsafe impl Words for SegmentLayout {}

const NAME: &CStr = c"adverb-local";
const PROTECTION: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// One process's share of a segment, before it is taken apart into its halves. The memory goes when both of
/// these are gone, in both processes.
pub struct Segment {
    memory: Arc<MappedMemory<SegmentLayout>>,
    which: Which,
    registration: Registration,
}

/// The parts that a side has of a segment. None of them shares state with another: each may be behind a lock
/// of its own.
pub struct Parts {
    /// The writer of the ring that this side writes.
    pub producer: Producer,
    /// The reader of the ring that this side reads.
    pub consumer: Consumer,
    /// Says what of the other side's [`table`](crate::table) this one uses.
    pub hazard_slots: HazardSlots,
    /// Reads what the other side uses of this one's.
    pub hazard_view: HazardView,
}

impl Segment {
    /// Bytes of shared memory that a segment takes.
    pub const SIZE: usize = SIZE;

    /// A new segment, and the descriptor by which one other process opens it.
    pub fn create() -> io::Result<(Segment, OwnedFd)> {
        Self::create_with(Registration::take())
    }

    /// A new segment, as [`create`](Self::create), of a process that has the registration `registration` for
    /// membarrier(2).
    pub fn create_with(registration: Registration) -> io::Result<(Segment, OwnedFd)> {
        let file = memory::create::<SegmentLayout>(NAME)?;
        memory::seal(&file, SEALS)?;
        let memory = MappedMemory::<SegmentLayout>::new(&file, PROTECTION, libc::MAP_POPULATE)?;
        memory.version.store(VERSION, Relaxed);
        memory.magic.store(MAGIC, Release);
        Ok((Segment { memory: Arc::new(memory), which: Which::Creator, registration }, file.into()))
    }

    /// The other side of a segment that another process has created. An error of the kind `InvalidData` if
    /// the descriptor is not that of a segment of this version which no process has opened so far.
    pub fn open(descriptor: OwnedFd) -> io::Result<Segment> {
        Self::open_with(descriptor, Registration::take())
    }

    /// The other side of a segment, as [`open`](Self::open), in a process that has the registration
    /// `registration` for membarrier(2).
    pub fn open_with(descriptor: OwnedFd, registration: Registration) -> io::Result<Segment> {
        let file = memory::open::<SegmentLayout>(descriptor, SEALS)?;
        let memory = MappedMemory::<SegmentLayout>::new(&file, PROTECTION, libc::MAP_POPULATE)?;
        if memory.magic.load(Acquire) != MAGIC || memory.version.load(Relaxed) != VERSION {
            return Err(invalid("the memory is no segment, or one of another version"));
        }
        if memory.opened.swap(1, Relaxed) != 0 {
            return Err(invalid("the segment has been opened before"));
        }
        Ok(Segment { memory: Arc::new(memory), which: Which::Opener, registration })
    }

    /// The two halves of rings that this side has.
    pub fn split(self) -> (Producer, Consumer) {
        let Parts { producer, consumer, .. } = self.parts();
        (producer, consumer)
    }

    /// All that this side has.
    pub fn parts(self) -> Parts {
        let sides = || Sides::new(&self.memory, self.which, self.registration);
        let view = |producer| View::new(sides(), &self.memory, producer);
        Parts {
            producer: Producer::new(view(self.which)),
            consumer: Consumer::new(view(self.which.other())),
            hazard_slots: HazardSlots::new(sides()),
            hazard_view: HazardView::new(sides()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn kind(result: io::Result<Segment>) -> io::ErrorKind {
        result.err().expect("it is refused").kind()
    }

    #[test]
    fn only_a_sealed_segment_is_opened_and_once() {
        let (segment, descriptor) = Segment::create().unwrap();
        let again = descriptor.as_fd().try_clone_to_owned().unwrap();
        Segment::open(descriptor).unwrap();
        assert_eq!(kind(Segment::open(again)), io::ErrorKind::InvalidData);
        drop(segment);

        let file = memory::create::<SegmentLayout>(NAME).unwrap();
        let open = |file: &File| kind(Segment::open(file.as_fd().try_clone_to_owned().unwrap()));
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "not sealed");
        memory::seal(&file, SEALS).unwrap();
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "without a header");

        let file = memory::create::<SegmentLayout>(NAME).unwrap();
        file.set_len(SIZE as u64 / 2).unwrap();
        memory::seal(&file, SEALS).unwrap();
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "too short");
        assert_eq!(open(&File::open("/dev/zero").unwrap()), io::ErrorKind::InvalidData, "no memory");
    }

    #[test]
    fn nobody_can_make_it_shorter() {
        let (_segment, descriptor) = Segment::create().unwrap();
        let file = File::from(descriptor);
        assert_eq!(file.metadata().unwrap().len(), SIZE as u64);
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(2 * SIZE as u64).is_err());
    }

    #[test]
    fn it_is_unmapped_with_its_last_half() {
        let (segment, descriptor) = Segment::create().unwrap();
        use std::os::unix::fs::MetadataExt;
        let inode = format!(" {} ", File::from(descriptor).metadata().unwrap().ino());
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.contains("adverb-local") && line.contains(&inode))
        };
        let (producer, consumer) = segment.split();
        drop(producer);
        assert!(mapped());
        drop(consumer);
        assert!(!mapped());
    }
}
