//! Unreliable connections, and the send queues of unreliable services after a failure.

use super::fixture::{Home, Memory, Pair, Shape, Site, signalled};
use crate::error::PostError;
use crate::event::AsyncEventKind;
use crate::memory::{Access, WindowType};
use crate::qp::{AttributeMask, Attributes, Service, State};
use crate::region::MemoryWindow;
use crate::request::{CompletionFlags, CompletionOpcode, Data, Opcode, SendFlags, SendRequest, Status};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn connected(site: &Site) -> Option<Pair> {
    let has = site.open().attributes().services.contains(&Service::Uc);
    has.then(|| Pair::of(site, Service::Uc, Shape::default(), &Home::new(site)))
}

/// Sends and writes of several sizes, with and without immediate data. On one host nothing is lost while the
/// receiver listens.
// IB-UC-1, IB-UC-3, IB-UC-15, IB-PKT-17, ROCE-27
pub fn unreliable_messages(site: &Site) {
    const ROOM: usize = 20_000;
    let Some(pair) = connected(site) else { return };
    let (client, server) = (&pair.client, &pair.server);
    let (from, to) = (Memory::open(&client.domain, ROOM), Memory::open(&server.domain, ROOM));
    let bytes = from.fill(1);
    for (round, length) in [0, 1, 255, 256, 1000, 4096, 4097, ROOM].into_iter().enumerate() {
        let wr_id = round as u64;
        let sges = [from.sge(0, length)];
        for opcode in [Opcode::Send, Opcode::SendWithImmediate, Opcode::WriteWithImmediate] {
            to.set(&[]);
            server.post_receive(wr_id, &[to.all()]);
            let request = SendRequest {
                wr_id,
                opcode,
                flags: SendFlags::SIGNALED,
                data: Data::Registered(&sges),
                remote_address: to.address(0),
                rkey: to.region.key(),
                immediate: 77,
                ..SendRequest::default()
            };
            client.queue_pair.post_send(&request).unwrap();
            client.sent_well(wr_id);
            let done = server.received_well(wr_id);
            let (received_as, flags) = match opcode {
                Opcode::Send => (CompletionOpcode::Receive, CompletionFlags::empty()),
                Opcode::SendWithImmediate => (CompletionOpcode::Receive, CompletionFlags::WITH_IMMEDIATE),
                _ => (CompletionOpcode::ReceiveWriteWithImmediate, CompletionFlags::WITH_IMMEDIATE),
            };
            assert_eq!((done.opcode, done.flags, done.byte_length as usize), (received_as, flags, length));
            assert!(flags.is_empty() || done.immediate == 77);
            assert_eq!(to.bytes()[..length], bytes[..length], "{opcode:?} of {length}");
        }
    }
    let read = SendRequest { opcode: Opcode::Read, ..SendRequest::default() };
    let refused = client.queue_pair.post_send(&read);
    assert_eq!(refused, Err(PostError::Unsupported), "there are no reads");
}

/// A message without a receive, or to memory that is not granted, is lost without a word; the next one
/// arrives.
// IB-UC-2, IB-UC-10, IB-UC-12
pub fn messages_that_an_unreliable_peer_refuses_are_lost(site: &Site) {
    let Some(pair) = connected(site) else { return };
    let (client, server) = (&pair.client, &pair.server);
    let from = Memory::open(&client.domain, 64);
    let closed = Memory::new(&server.domain, 64, Access::LOCAL_WRITE);
    let to = Memory::open(&server.domain, 64);
    let bytes = from.fill(2);
    client.post(1, Opcode::Send, &[from.all()], (0, 0));
    client.post(2, Opcode::Write, &[from.all()], (closed.address(0), closed.region.key()));
    client.sent_well(1);
    client.sent_well(2);
    // Once a write has arrived, a message that was sent before it and is not there was lost.
    client.post(3, Opcode::Write, &[from.all()], (to.address(0), to.region.key()));
    client.sent_well(3);
    let deadline = Instant::now() + super::TEST_TIMEOUT;
    while to.bytes() != bytes {
        assert!(Instant::now() < deadline, "the write does not arrive");
        assert_eq!(server.receives.poll(1, |_| ()).unwrap(), 0);
        std::thread::yield_now();
    }
    server.post_receive(4, &[to.all()]);
    client.post(4, Opcode::Send, &[from.all()], (0, 0));
    client.sent_well(4);
    server.received_well(4);
    assert_eq!(closed.bytes(), [0; 64]);
    assert_eq!((client.queue_pair.state(), server.queue_pair.state()), (State::Rts, State::Rts));
}

/// Of a send that does not fit its receive nothing lies behind the receive, which ends in error or serves the
/// next message.
// IB-UC-9, IB-UC-14
pub fn an_unreliable_message_too_long(site: &Site) {
    let Some(pair) = connected(site) else { return };
    let (client, server) = (&pair.client, &pair.server);
    let (from, to) = (Memory::open(&client.domain, 5000), Memory::open(&server.domain, 5000));
    let bytes = from.fill(4);
    for wr_id in [1, 2] {
        server.post_receive(wr_id, &[to.sge(0, 4500)]);
    }
    for (wr_id, length) in [(1, 5000), (2, 16)] {
        client.post(wr_id, Opcode::Send, &[from.sge(0, length)], (0, 0));
        client.sent_well(wr_id);
    }
    let mut done = server.received();
    assert_eq!(done.wr_id, 1);
    if done.status != Status::Success {
        assert_eq!(done.status, Status::LocalLength);
        done = server.received_well(2);
    }
    assert_eq!(done.byte_length, 16);
    assert_eq!(to.bytes()[..16], bytes[..16]);
    assert_eq!(to.bytes()[4500..], [0; 500]);
    assert_eq!(server.queue_pair.state(), State::Rts);
}

/// A receive whose memory is not there ends in error, and with it the queue pair; it does not swallow message
/// after message.
// IB-UC-14
pub fn an_unreliable_receive_that_cannot_be_written(site: &Site) {
    let Some(pair) = connected(site) else { return };
    let (client, server) = (&pair.client, &pair.server);
    let (from, to) = (Memory::open(&client.domain, 64), Memory::open(&server.domain, 64));
    let mut wrong = to.all();
    wrong.lkey ^= 0x5a5a_5a00;
    server.post_receive(1, &[wrong]);
    server.post_receive(2, &[to.all()]);
    client.post(1, Opcode::Send, &[from.all()], (0, 0));
    client.sent_well(1);
    for (wr_id, status) in [(1, Status::LocalProtection), (2, Status::Flushed)] {
        let done = server.received();
        assert_eq!((done.wr_id, done.status), (wr_id, status));
    }
    assert_eq!((client.queue_pair.state(), server.queue_pair.state()), (State::Rts, State::Error));
}

/// A request that concerns keys waits for those before it, and is carried out although no acknowledgement
/// comes.
// IB-MW-1, IB-UC-3
pub fn a_window_is_bound_behind_unreliable_messages(site: &Site) {
    let Some(pair) = connected(site) else { return };
    if !site.can(&[Opcode::BindWindow]) {
        return;
    }
    let (client, server) = (&pair.client, &pair.server);
    let memory = Memory::new(&client.domain, 64, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = MemoryWindow::new(&client.domain, WindowType::Two).unwrap();
    let bind = SendRequest {
        wr_id: 2,
        opcode: Opcode::BindWindow,
        rkey: window.key() & !0xff | window.key().wrapping_add(1) & 0xff,
        immediate: memory.region.key(),
        compare_add: 64,
        swap: Access::REMOTE_WRITE.bits().into(),
        ..signalled(&[], (memory.address(0), 0))
    };
    server.post_receive(1, &[]);
    server.post_receive(3, &[]);
    let send = |wr_id| SendRequest { wr_id, opcode: Opcode::Send, ..signalled(&[], (0, 0)) };
    let requests = [send(1), bind, send(3)];
    client
        .queue_pair
        .post_sends(|batch| requests.iter().try_for_each(|request| batch.push(request)))
        .unwrap();
    for wr_id in 1..4 {
        client.sent_well(wr_id);
    }
    server.received_well(1);
    server.received_well(3);
}

/// In SQD a message that has begun goes out to its end, and then the program is told.
// IB-QP-7
pub fn an_unreliable_send_queue_drains(site: &Site) {
    const LONG: usize = 4 << 20;
    let Some(pair) = connected(site) else { return };
    let client = &pair.client;
    client.queue_pair.set_cookie(8);
    let (from, to) = (Memory::open(&client.domain, LONG), Memory::open(&pair.server.domain, LONG));
    let notify = Attributes { sqd_notify: true, ..Attributes::default() };
    for wr_id in 0..4 {
        client.post(wr_id, Opcode::Write, &[from.all()], (to.address(0), to.region.key()));
        client.to(State::Sqd, AttributeMask::SQD_NOTIFY, &notify);
        client.raised(AsyncEventKind::SendQueueDrained, 8);
        assert!(!client.queue_pair.attributes().sq_draining);
        client.to(State::Rts, AttributeMask::empty(), &Attributes::default());
        client.sent_well(wr_id);
    }
}

/// A request with a wrong key ends badly and those behind it are flushed, until the program resumes; receives
/// go on meanwhile.
// IB-QP-8, IB-UC-16
pub fn a_failed_send_stops_an_unreliable_send_queue(site: &Site) {
    let Some(pair) = connected(site) else { return };
    let (client, server) = (&pair.client, &pair.server);
    let from = Memory::open(&client.domain, 64);
    let mut wrong = from.all();
    wrong.lkey ^= 0x5a5a_5a00;
    client.post(1, Opcode::Send, &[wrong], (0, 0));
    let done = client.sent();
    assert_eq!((done.wr_id, done.status), (1, Status::LocalProtection));
    assert_eq!(client.queue_pair.state(), State::Sqe);
    for wr_id in 2..5 {
        client.post(wr_id, Opcode::Send, &[from.all()], (0, 0));
    }
    for wr_id in 2..5 {
        let done = client.sent();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Flushed));
    }
    client.post_receive(5, &[from.all()]);
    server.post(5, Opcode::Send, &[], (0, 0));
    server.sent_well(5);
    client.received_well(5);
    client.to(State::Rts, AttributeMask::empty(), &Attributes::default());
    server.post_receive(6, &[]);
    client.post(6, Opcode::Send, &[], (0, 0));
    client.sent_well(6);
    server.received_well(6);
}

/// While one thread posts, now and then with a wrong key, and another resumes the send queue, each request
/// ends once and in order.
// IB-QP-8, IB-QP-27, IB-UC-16
pub fn a_send_queue_is_resumed_while_others_post(site: &Site) {
    const REQUESTS: u64 = 2000;
    const BAD: u64 = 7;
    let Some(pair) = connected(site) else { return };
    let client = &pair.client;
    let from = Memory::open(&client.domain, 64);
    let deadline = Instant::now() + super::TEST_TIMEOUT;
    let room = u64::from(client.sends.capacity().min(client.queue_pair.capabilities().max_send_wr));
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..REQUESTS {
                let mut sge = from.all();
                if wr_id % BAD == 0 {
                    sge.lkey ^= 0x5a5a_5a00;
                }
                let sges = [sge];
                let request = SendRequest { wr_id, ..signalled(&sges, (0, 0)) };
                // No more than the completion queue holds.
                while wr_id >= ended.load(Ordering::Acquire) + room {
                    assert!(Instant::now() < deadline, "request {wr_id} finds no room");
                    std::thread::yield_now();
                }
                client.queue_pair.post_send(&request).unwrap();
            }
        });
        let mut next = 0;
        while next < REQUESTS {
            if client.queue_pair.state() == State::Sqe {
                client.to(State::Rts, AttributeMask::empty(), &Attributes::default());
            }
            let mut found = None;
            client.sends.poll(1, |entry| found = Some(*entry)).unwrap();
            let Some(done) = found else {
                assert!(Instant::now() < deadline, "request {next} does not end");
                std::thread::yield_now();
                continue;
            };
            assert_eq!(done.wr_id, next);
            let own = if next % BAD == 0 { Status::LocalProtection } else { Status::Success };
            assert!(done.status == own || done.status == Status::Flushed, "{done:?}");
            next += 1;
            ended.store(next, Ordering::Release);
        }
    });
}
