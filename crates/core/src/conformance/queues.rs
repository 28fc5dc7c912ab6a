//! Queue pairs: states, limits, flushing, threads, destruction, fork.

use super::fixture::{Memory, Pair, Shape, Side, Site, in_a_child, listener, resolved_identifier, signalled};
use crate::error::PostError;
use crate::qp::{AttributeMask, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State};
use crate::request::{Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Status};
use std::collections::HashMap;

/// A request in the wrong state or beyond the limits is refused, and nothing is queued.
// IB-QP-1, IB-QP-3, IB-QP-9, IB-QP-10, IB-QP-23, IB-QP-29, IB-QP-30
pub fn states_and_limits(site: &Site) {
    let (listener, _channel) = listener(site);
    let (id, channel) = resolved_identifier(listener.local_address().unwrap());
    let side = Side::new(site, Shape::default(), id, channel, false);
    let (queue_pair, limits) = (&side.queue_pair, side.context.attributes());
    let receive = ReceiveRequest { wr_id: 1, sges: &[] };
    assert_eq!(queue_pair.state(), State::Reset);
    assert_eq!(queue_pair.post_receive(&receive), Err(PostError::State));
    side.id.attach_queue_pair(queue_pair).unwrap();
    assert_eq!(side.id.attach_queue_pair(queue_pair).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(queue_pair.post_send(&signalled(&[], (0, 0))), Err(PostError::State));
    let room = queue_pair.capabilities().max_recv_wr;
    for _ in 0..room {
        queue_pair.post_receive(&receive).unwrap();
    }
    assert_eq!(queue_pair.post_receive(&receive), Err(PostError::QueueFull));
    // The error state flushes what waits; RESET forgets everything.
    let to = |state| Attributes { state: Some(state), ..Attributes::default() };
    queue_pair.modify(&to(State::Error), AttributeMask::STATE).unwrap();
    for _ in 0..room {
        assert_eq!(side.received().status, Status::Flushed);
    }
    queue_pair.post_receive(&receive).unwrap();
    queue_pair.modify(&to(State::Reset), AttributeMask::STATE).unwrap();
    assert_eq!(side.receives.poll(1, |_| ()).unwrap(), 0);
    for sizes in [
        Capabilities { max_send_wr: limits.max_qp_wr + 1, ..Capabilities::default() },
        Capabilities { max_recv_wr: limits.max_qp_wr + 1, ..Capabilities::default() },
        Capabilities { max_send_sge: limits.max_sge + 1, ..Capabilities::default() },
        Capabilities { max_inline_data: limits.max_inline_data + 1, ..Capabilities::default() },
    ] {
        let options = QueuePairOptions {
            send_cq: side.sends.clone(),
            receive_cq: side.receives.clone(),
            srq: None,
            capabilities: sizes,
            service: Service::Rc,
            signal_all: false,
        };
        assert_eq!(QueuePair::new(&side.domain, options).err().unwrap().errno(), libc::EINVAL);
    }
    let pair = Pair::connect(site);
    let memory = Memory::open(&pair.client.domain, 8);
    let sges = vec![memory.all(); pair.client.queue_pair.capabilities().max_send_sge as usize + 1];
    assert_eq!(pair.client.queue_pair.post_send(&signalled(&sges, (0, 0))), Err(PostError::TooManySges));
    let receive = ReceiveRequest { wr_id: 1, sges: &sges };
    assert_eq!(pair.client.queue_pair.post_receive(&receive), Err(PostError::TooManySges));
    let flush = SendRequest { opcode: Opcode::Flush, ..signalled(&[], (0, 0)) };
    if !site.can(&[Opcode::Flush]) {
        assert_eq!(pair.client.queue_pair.post_send(&flush), Err(PostError::Unsupported));
    }
    pair.server.post_receive(4, &[]);
    pair.client.post(4, Opcode::Send, &[], (0, 0));
    pair.server.received_well(4);
}

/// A queue pair in error takes requests and flushes them in order.
// IB-QP-9, IB-QP-27, IB-QP-31, IB-RC-REQ-51
pub fn requests_posted_in_error_are_flushed_in_order(site: &Site) {
    let pair = Pair::connect(site);
    for wr_id in 0..5 {
        pair.client.post_receive(wr_id, &[]);
    }
    pair.server.id.disconnect().unwrap();
    pair.ended();
    for wr_id in 5..10 {
        pair.client.post_receive(wr_id, &[]);
        pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
    }
    for wr_id in 0..10 {
        let flushed = pair.client.received();
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
    for wr_id in 5..10 {
        let flushed = pair.client.sent();
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
        assert_eq!(flushed.queue_pair, pair.client.queue_pair.number());
    }
}

/// Unsignalled requests report nothing, and their places are free once a later one has completed.
// IB-RC-REQ-52, IB-RC-REQ-53
pub fn unsignalled_requests(site: &Site) {
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 8));
    let depth = u64::from(pair.client.queue_pair.capabilities().max_send_wr);
    let sges = [from.all()];
    for round in 0..30u64 {
        from.set(&(round * 7).to_ne_bytes());
        for wr_id in 1..=depth {
            let flags = if wr_id == depth { SendFlags::SIGNALED } else { SendFlags::empty() };
            let write = SendRequest {
                wr_id,
                opcode: Opcode::Write,
                flags,
                ..signalled(&sges, (to.address(0), to.region.key()))
            };
            pair.client.queue_pair.post_send(&write).unwrap();
        }
        pair.client.sent_well(depth);
        assert_eq!(pair.client.sends.poll(1, |_| ()).unwrap(), 0);
    }
    pair.client.post(1, Opcode::Read, &[from.all()], (to.address(0), to.region.key()));
    pair.client.sent_well(1);
    assert_eq!(to.bytes(), (29u64 * 7).to_ne_bytes());
}

/// Threads post on one queue pair; each thread's messages arrive in its order.
pub fn many_threads_post(site: &Site) {
    const THREADS: u64 = 4;
    const EACH: u64 = 60;
    let shape = Shape { sends: 256, receives: 256, receive_completions: 256, sges: 1, ..Shape::default() };
    let pair = Pair::shaped(site, shape);
    let memory = Memory::open(&pair.server.domain, 8 * (THREADS * EACH) as usize);
    for wr_id in 0..THREADS * EACH {
        pair.server.post_receive(wr_id, &[memory.sge(8 * wr_id as usize, 8)]);
    }
    let words = |thread: u64| (0..EACH).flat_map(move |n| (thread << 32 | n).to_ne_bytes());
    let own: Vec<Memory> = (0..THREADS)
        .map(|thread| {
            let own = Memory::open(&pair.client.domain, 8 * EACH as usize);
            own.set(&words(thread).collect::<Vec<u8>>());
            own
        })
        .collect();
    std::thread::scope(|scope| {
        for (thread, own) in own.iter().enumerate() {
            let queue_pair = &pair.client.queue_pair;
            scope.spawn(move || {
                for n in 0..EACH as usize {
                    let sges = [own.sge(8 * n, 8)];
                    let request = SendRequest { wr_id: thread as u64, ..signalled(&sges, (0, 0)) };
                    queue_pair.post_send(&request).unwrap();
                }
            });
        }
    });
    let mut next = HashMap::new();
    for wr_id in 0..THREADS * EACH {
        pair.server.received_well(wr_id);
        let at = 8 * wr_id as usize;
        let word = u64::from_ne_bytes(memory.bytes()[at..at + 8].try_into().unwrap());
        let expected: &mut u64 = next.entry(word >> 32).or_default();
        assert_eq!(word & 0xffff_ffff, *expected, "thread {}", word >> 32);
        *expected += 1;
    }
    for _ in 0..THREADS * EACH {
        assert_eq!(pair.client.sent().status, Status::Success);
    }
    assert_eq!(next.len() as u64, THREADS);
}

/// A queue pair that is destroyed in the midst of work leaves memory and completion queues alone.
// IB-QP-34, IB-QP-35
pub fn destroyed_with_work_outstanding(site: &Site) {
    const LENGTH: usize = 1 << 20;
    let pair = Pair::connect(site);
    let from = Memory::open(&pair.client.domain, LENGTH);
    let to = Memory::open(&pair.server.domain, LENGTH);
    from.fill(1);
    for wr_id in 0..4 {
        pair.server.post_receive(wr_id, &[to.all()]);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..8 {
                let (opcode, remote) = match wr_id % 2 {
                    0 => (Opcode::Send, (0, 0)),
                    _ => (Opcode::Write, (to.address(0), to.region.key())),
                };
                pair.client.post(wr_id, opcode, &[from.all()], remote);
            }
        });
        pair.server.queue_pair.destroy();
        let then = to.bytes();
        pair.client.ended();
        assert!(to.bytes() == then, "written after the queue pair was destroyed");
    });
    assert_eq!(pair.server.receives.poll(1, |_| ()).unwrap(), 0);
    assert_eq!(pair.server.receives.users().count(), 0);
    // Everything that the client posted ends, in order.
    for wr_id in 0..8 {
        assert_eq!(pair.client.sent().wr_id, wr_id);
    }
}

/// Requests of a queue pair that is destroyed are not reported, so they cannot fill up a completion queue
/// that others share.
// IB-QP-35
pub fn destruction_reports_nothing(site: &Site) {
    let shape = Shape { receives: 64, receive_completions: 2, ..Shape::default() };
    let pair = Pair::shaped(site, shape);
    let room = pair.server.queue_pair.capabilities().max_recv_wr;
    assert!(room > pair.server.receives.capacity());
    for wr_id in 0..room.into() {
        pair.server.post_receive(wr_id, &[]);
    }
    pair.server.queue_pair.destroy();
    assert_eq!(pair.server.receives.poll(1, |_| ()).unwrap(), 0);
}

/// In a child of fork the objects answer with an error, a fresh engine works, and the parent's connection
/// lives on.
pub fn a_child_of_fork(site: &Site) {
    let pair = Pair::connect(site);
    in_a_child(|| in_the_child(site, &pair));
    pair.server.post_receive(1, &[]);
    pair.client.post(1, Opcode::Send, &[], (0, 0));
    pair.server.received_well(1);
    pair.client.sent_well(1);
}

fn in_the_child(site: &Site, inherited: &Pair) {
    let side = &inherited.client;
    let inline = SendRequest { data: Data::Inline(&[b"x"]), ..signalled(&[], (0, 0)) };
    assert_eq!(side.queue_pair.post_send(&inline), Err(PostError::Forked));
    let receive = ReceiveRequest { wr_id: 0, sges: &[] };
    assert_eq!(side.queue_pair.post_receive(&receive), Err(PostError::Forked));
    let error = Attributes { state: Some(State::Error), ..Attributes::default() };
    let refused = side.queue_pair.modify(&error, AttributeMask::STATE);
    assert_eq!(refused.unwrap_err().errno(), libc::ENODEV);
    assert_eq!(side.sends.poll(1, |_| ()).unwrap_err().errno(), libc::ENODEV);
    assert_eq!(side.sends.arm(false).unwrap_err().errno(), libc::ENODEV);
    assert_eq!(side.id.disconnect().unwrap_err().errno(), libc::ENODEV);
    assert_eq!(side.channel.get().unwrap_err().errno(), libc::ENODEV);
    side.queue_pair.destroy();
    side.id.destroy();
    let own = Pair::connect(site);
    let (from, to) = (Memory::open(&own.client.domain, 100), Memory::open(&own.server.domain, 100));
    let sent = from.fill(1);
    own.server.post_receive(1, &[to.all()]);
    own.client.post(1, Opcode::Send, &[from.all()], (0, 0));
    own.server.received_well(1);
    assert_eq!(to.bytes(), sent);
}
