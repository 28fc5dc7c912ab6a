//! Completion queues and their channels.

use super::fixture::{Memory, Pair, Shape, Site, TEST_TIMEOUT, signalled};
use crate::clock;
use crate::event::AsyncEventKind;
use crate::qp::{AttributeMask, Attributes, State};
use crate::request::{Opcode, SendFlags, SendRequest};

const MILLISECONDS: i32 = TEST_TIMEOUT.as_millis() as i32;

/// More completions than fit: the program is told, by an event and by the poll.
// IB-QP-36
pub fn an_overrun(site: &Site) {
    let shape = Shape { sends: 64, receives: 64, receive_completions: 2, ..Shape::default() };
    let pair = Pair::shaped(site, shape);
    let room = pair.server.receives.capacity();
    pair.server.receives.set_cookie(4711);
    for wr_id in 0..u64::from(room) + 2 {
        pair.server.post_receive(wr_id, &[]);
        pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
    }
    let events = pair.server.context.events();
    assert!(events.ready(MILLISECONDS).unwrap(), "no event of the overrun");
    let event = events.wait().unwrap();
    assert_eq!((event.kind, event.subject), (AsyncEventKind::CqError, 4711));
    let mut taken = Vec::new();
    pair.server.receives.poll(room as usize, |entry| taken.push(entry.wr_id)).unwrap();
    assert_eq!(taken, (0..u64::from(room)).collect::<Vec<_>>());
    assert_eq!(pair.server.receives.poll(1, |_| ()).unwrap_err().errno(), libc::EIO);
    // There is room again, but a new completion would hide the gap.
    pair.server.post_receive(100, &[]);
    pair.client.post(100, Opcode::Send, &[], (0, 0));
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    pair.client.post(101, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
    while pair.client.sent().wr_id != 101 {}
    assert_eq!(pair.server.receives.poll(1, |_| ()).unwrap_err().errno(), libc::EIO);
}

/// Armed for solicited completions, the channel stays silent until one comes.
// IB-QP-37, IB-RC-REQ-16, IB-RC-RSP-45
pub fn solicited_only(site: &Site) {
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let channel = queue.channel().unwrap();
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    for wr_id in 0..3 {
        pair.server.post_receive(wr_id, &[]);
    }
    queue.arm(true).unwrap();
    pair.client.post(0, Opcode::Send, &[], (0, 0));
    pair.client.post(1, Opcode::Send, &[], (0, 0));
    // A read comes back after the messages before it have been received.
    pair.client.post(2, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
    for wr_id in 0..3 {
        pair.client.sent_well(wr_id);
    }
    assert!(!channel.ready(0).unwrap(), "a completion that is not solicited woke the program");
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let request = SendRequest { wr_id: 3, flags, ..signalled(&[], (0, 0)) };
    pair.client.queue_pair.post_send(&request).unwrap();
    assert!(channel.ready(MILLISECONDS).unwrap(), "a solicited completion does not wake the program");
    let woken = channel.wait().unwrap();
    assert!(std::ptr::eq(&raw const *woken, &raw const **queue));
    for wr_id in 0..3 {
        pair.server.received_well(wr_id);
    }
}

/// One event for one arming, however many completions come.
// IB-QP-37
pub fn armed_once(site: &Site) {
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let channel = queue.channel().unwrap();
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    for round in 1..=3 {
        for wr_id in 0..4 {
            pair.server.post_receive(wr_id, &[]);
        }
        queue.arm(false).unwrap();
        for wr_id in 0..4 {
            pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
        }
        pair.client.post(4, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
        for wr_id in 0..5 {
            pair.client.sent_well(wr_id);
        }
        assert!(channel.ready(MILLISECONDS).unwrap(), "no event");
        channel.wait().unwrap();
        assert!(!channel.ready(0).unwrap(), "a second event for one arming");
        assert_eq!(queue.delivered_events(), round);
        let mut taken = Vec::new();
        assert_eq!(queue.poll(8, |entry| taken.push(entry.wr_id)).unwrap(), 4);
        assert_eq!(taken, [0, 1, 2, 3]);
    }
}

/// A queue that spares events reports after so many completions, or after a while, or a failure.
pub fn moderated(site: &Site) {
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let channel = queue.channel().unwrap();
    let messages = |count: u64| {
        for wr_id in 0..count {
            pair.server.post_receive(wr_id, &[]);
            pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
            pair.client.sent_well(wr_id);
        }
    };
    let taken = |count: usize| {
        let deadline = std::time::Instant::now() + TEST_TIMEOUT;
        let mut found = 0;
        while found < count {
            found += queue.poll(count - found, |_| ()).unwrap();
            assert!(std::time::Instant::now() < deadline, "completions do not come");
        }
    };
    queue.moderate(4, 0).unwrap();
    queue.arm(false).unwrap();
    messages(3);
    taken(3);
    assert!(!channel.ready(0).unwrap(), "an event before its time");
    messages(1);
    assert!(channel.ready(MILLISECONDS).unwrap(), "no event after four completions");
    channel.wait().unwrap();
    taken(1);
    queue.moderate(1000, 2000).unwrap();
    queue.arm(false).unwrap();
    messages(2);
    assert!(channel.ready(MILLISECONDS).unwrap(), "no event after the period");
    channel.wait().unwrap();
    taken(2);
    queue.moderate(1000, 0).unwrap();
    queue.arm(false).unwrap();
    pair.server.post_receive(9, &[]);
    let error = Attributes { state: Some(State::Error), ..Attributes::default() };
    pair.server.queue_pair.modify(&error, AttributeMask::STATE).unwrap();
    assert!(channel.ready(MILLISECONDS).unwrap(), "no event after a failure");
    channel.wait().unwrap();
    taken(1);
}

/// A completion that came before the queue was armed raises the event, once, unless it has been polled or is
/// not of the kind.
// IB-QP-37
pub fn armed_late(site: &Site) {
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let channel = queue.channel().unwrap();
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    let come = |wr_id| {
        pair.server.post_receive(wr_id, &[]);
        pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
        // A read comes back after the messages before it have been received.
        pair.client.post(9, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
        pair.client.sent_well(wr_id);
        pair.client.sent_well(9);
    };
    come(0);
    queue.arm(true).unwrap();
    assert!(!channel.ready(0).unwrap(), "an event for a completion that is not solicited");
    queue.arm(false).unwrap();
    assert!(channel.ready(0).unwrap(), "no event for a completion that nobody has heard of");
    channel.wait().unwrap();
    queue.arm(false).unwrap();
    assert!(!channel.ready(0).unwrap(), "a second event for the same completion");
    come(1);
    assert!(channel.ready(MILLISECONDS).unwrap(), "no event");
    channel.wait().unwrap();
    come(2);
    assert_eq!(queue.poll(8, |_| ()).unwrap(), 3);
    queue.arm(false).unwrap();
    assert!(!channel.ready(0).unwrap(), "an event for what has been polled");
}

/// Completions carry the time of their report where the program wants it, in order.
pub fn timestamps(site: &Site) {
    let pair = Pair::connect(site);
    let before = clock::device();
    pair.server.receives.want_timestamps();
    let mut last = before;
    for wr_id in 0..3 {
        pair.server.post_receive(wr_id, &[]);
        pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
        let done = pair.server.received_well(wr_id);
        assert!((last..=clock::device()).contains(&done.timestamp), "{done:?} after {last}");
        last = done.timestamp;
        assert_eq!(pair.client.sent_well(wr_id).timestamp, 0, "nobody has asked for it");
    }
}

/// A thread that sleeps on the queue's descriptors finds all arrivals, also those that another thread takes
/// in. No event tells of arrivals after it has left.
pub fn slept_on(site: &Site) {
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let channel = queue.channel().unwrap();
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    queue.serve();
    let deadline = std::time::Instant::now() + TEST_TIMEOUT;
    for wr_id in 0..20 {
        pair.server.post_receive(wr_id, &[]);
        let sleep = queue.begin_sleep().unwrap();
        pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
        while queue.poll(1, |entry| assert_eq!(entry.wr_id, wr_id)).unwrap() == 0 {
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut list = vec![entry(channel.descriptor())];
            queue.descriptors(&mut list);
            // SAFETY: a live slice.
            let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, MILLISECONDS) };
            assert!(
                ready > 0 && std::time::Instant::now() < deadline,
                "nothing wakes the thread that sleeps"
            );
        }
        drop(sleep);
        pair.client.sent_well(wr_id);
        while channel.ready(0).unwrap() {
            channel.wait().unwrap();
        }
    }
    // No thread polls here now, and the peer is served all the same.
    pair.server.post_receive(20, &[]);
    pair.client.post(20, Opcode::Send, &[], (0, 0));
    pair.client.post(21, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
    pair.client.sent_well(20);
    pair.client.sent_well(21);
    assert!(!channel.ready(0).unwrap(), "an event though no thread sleeps");
}
