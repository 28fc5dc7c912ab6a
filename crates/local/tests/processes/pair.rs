//! Two processes with a segment between them.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use adverb_local::doorbell::CHANGES;
use adverb_local::{Consumer, Doorbell, Producer, Record, Registration, Segment, Slot};

/// What to do before trying again; nothing: sleep until the doorbell rings.
pub(crate) type Wait = Option<fn()>;

/// What one process has.
pub(crate) struct Side {
    producer: Producer,
    consumer: Consumer,
    /// The descriptor on which this side sleeps.
    own: OwnedFd,
    /// The doorbell that wakes the other side.
    peer: Doorbell,
    wait: Wait,
}

impl Side {
    /// Passes the next record to `read`, when there is one.
    #[inline]
    pub(crate) fn receive<T>(&mut self, read: impl FnOnce(&Record<'_>) -> T) -> T {
        loop {
            if let Some(record) = self.consumer.peek().expect("nobody is hostile here") {
                let value = read(&record);
                record.consume();
                return value;
            }
            if self.consumer.peer_waits() {
                self.peer.ring();
            }
            if let Some(wait) = self.wait {
                wait();
            } else {
                if self.consumer.prepare_to_sleep() {
                    self.sleep();
                    self.consumer.awake();
                }
            }
        }
    }

    /// Sends a record of `len` bytes that `write` fills, when there is room.
    #[inline]
    pub(crate) fn send(&mut self, len: usize, write: impl FnOnce(&mut Slot<'_>)) {
        let mut slot = loop {
            // Asked for twice because of what the borrow checker cannot see yet.
            if self.producer.reserve(len).is_some() {
                break self.producer.reserve(len).expect("there was room");
            }
            self.producer.check().expect("nobody is hostile here");
            if let Some(wait) = self.wait {
                wait();
            } else {
                if self.producer.prepare_to_wait(len) {
                    self.sleep();
                    self.producer.awake();
                }
            }
        };
        write(&mut slot);
        slot.publish();
        if self.producer.peer_sleeps() {
            self.peer.ring();
        }
    }

    /// Sleeps until the doorbell rings: a minute is a wake-up that was lost.
    fn sleep(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let ready = unsafe { libc::epoll_wait(self.own.as_raw_fd(), &raw mut event, 1, 60_000) };
        assert_eq!(ready, 1, "nobody rings the doorbell");
    }
}

/// A child of this process.
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Forks a process of one thread. `None` in the child, which ends with [`end`].
    pub(crate) fn fork() -> Option<Child> {
        // SAFETY: this process has one thread, so the child may do anything.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        (child != 0).then_some(Child(child))
    }

    /// Waits until it has ended as it should.
    pub(crate) fn join(self) {
        let mut status = 0;
        // SAFETY: our child, and a live local.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!((waited, status), (self.0, 0), "the child has failed");
    }
}

/// What a child does, and its end.
pub(crate) fn end(work: impl FnOnce()) -> ! {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: plain values: the child goes with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        work();
    }));
    // SAFETY: ends the child at once; the parent's buffers and handlers are not for it.
    unsafe { libc::_exit(i32::from(done.is_err())) };
}

/// An epoll set that watches a doorbell.
fn watch(bell: &Doorbell) -> OwnedFd {
    let mut event = libc::epoll_event { events: CHANGES, u64: 0 };
    // SAFETY: plain values, a descriptor that was just made, and a live local.
    unsafe {
        let set = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
        let bell = bell.as_fd().as_raw_fd();
        assert_eq!(libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, bell, &raw mut event), 0);
        set
    }
}

/// Runs `here` in this process and `there` in a child of it, each with one side. Only from a process of one
/// thread.
pub(crate) fn run<T>(
    registrations: [Registration; 2],
    wait: Wait,
    here: impl FnOnce(Side) -> T,
    there: impl FnOnce(Side),
) -> T {
    let (segment, descriptor) = Segment::create_with(registrations[0]).unwrap();
    let (first, second) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    let Some(child) = Child::fork() else {
        end(|| {
            let (producer, consumer) = Segment::open_with(descriptor, registrations[1]).unwrap().split();
            there(Side { producer, consumer, own: watch(&second), peer: first, wait });
        });
    };
    drop(descriptor);
    let (producer, consumer) = segment.split();
    let value = here(Side { producer, consumer, own: watch(&first), peer: second, wait });
    child.join();
    value
}
