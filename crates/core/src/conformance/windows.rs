//! Memory windows, and regions that change.

use super::fixture::{Home, Memory, Pair, Shape, Side, Site, TEST_TIMEOUT, signalled};
use crate::cq::{CompletionChannel, CompletionQueue};
use crate::memory::{Access, WindowType};
use crate::region::{MemoryWindow, ProtectionDomain, Reregistration};
use crate::request::{CompletionFlags, CompletionOpcode, Opcode, SendRequest, Status};
use std::sync::Arc;

const LENGTH: usize = 256;

/// A region that windows may be bound to, and peers may not use.
fn closed(domain: &Arc<ProtectionDomain>) -> Memory {
    Memory::new(domain, LENGTH, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// The key that the next bind of a window gets.
fn next(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// Binds bytes of `memory` as `key` and tells how that ended.
#[track_caller]
fn bind(side: &Side, key: u32, memory: &Memory, (offset, length): (usize, usize), access: Access) -> Status {
    let request = SendRequest {
        wr_id: 7,
        opcode: Opcode::BindWindow,
        rkey: key,
        immediate: memory.region.key(),
        compare_add: length as u64,
        swap: access.bits().into(),
        ..signalled(&[], (memory.address(offset), 0))
    };
    side.queue_pair.post_send(&request).unwrap();
    let done = side.sent();
    assert_eq!(done.wr_id, 7);
    if done.status == Status::Success {
        assert_eq!((done.opcode, done.byte_length), (CompletionOpcode::BindWindow, 0));
    }
    done.status
}

/// How a read of the server's memory ends.
#[track_caller]
fn read(pair: &Pair, address: u64, key: u32, length: usize) -> Status {
    let here = Memory::open(&pair.client.domain, length);
    pair.client.post(1, Opcode::Read, &[here.all()], (address, key));
    pair.client.sent().status
}

/// A window lets the peer use its bytes, with its rights, and nothing else; through both types.
// IB-MW-1, IB-MW-7, IB-MW-8, IB-MW-13
pub fn windows_open_part_of_a_region(site: &Site) {
    if !site.can(&[Opcode::BindWindow]) {
        return;
    }
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for (kind, access, offset, length, fits) in [
        (WindowType::One, both, 0, 64, true),
        (WindowType::Two, both, 0, 64, true),
        (WindowType::Two, both | Access::ZERO_BASED, 0, 64, true),
        (WindowType::One, both, 0, 65, false),
        (WindowType::Two, both, 63, 2, false),
        (WindowType::Two, both | Access::ZERO_BASED, 1, 64, false),
        (WindowType::One, Access::REMOTE_WRITE, 0, 64, false),
        (WindowType::Two, Access::empty(), 0, 64, false),
    ] {
        let pair = Pair::connect(site);
        let memory = closed(&pair.server.domain);
        let bytes = memory.fill(3);
        let window = MemoryWindow::new(&pair.server.domain, kind).unwrap();
        let key = next(window.key());
        assert_eq!(bind(&pair.server, key, &memory, (64, 64), access), Status::Success);
        let first = if access.contains(Access::ZERO_BASED) { 0 } else { memory.address(64) };
        let status = read(&pair, first + offset, key, length);
        assert_eq!(status == Status::Success, fits, "{kind:?} {access:?} {offset} {length}");
        if !fits {
            pair.ended();
            continue;
        }
        let here = Memory::open(&pair.client.domain, 16);
        let written = here.fill(4);
        pair.client.post(2, Opcode::Write, &[here.all()], (first + 8, key));
        pair.client.sent_well(2);
        assert_eq!(read(&pair, first, key, 64), Status::Success);
        let found = memory.bytes();
        assert_eq!(found[72..88], written);
        assert_eq!((&found[..72], &found[88..]), (&bytes[..72], &bytes[88..]));
        // The key of a window is no lkey.
        let lkey = crate::request::Sge { address: memory.address(64), length: 8, lkey: key };
        pair.client.post_receive(4, &[here.all()]);
        pair.server.post(3, Opcode::Send, &[lkey], (0, 0));
        assert_eq!(pair.server.sent().status, Status::LocalProtection);
    }
}

/// A window of type 1 serves every peer of its domain and is bound anew or to nothing; one of type 2 serves
/// one.
// IB-MW-4, IB-MW-5, IB-MW-6
pub fn windows_of_both_types(site: &Site) {
    if !site.can(&[Opcode::BindWindow]) {
        return;
    }
    let home = Home::new(site);
    let pairs = [(); 3].map(|()| Pair::to_home(site, Shape::default(), &home));
    let memory = closed(&home.domain);
    let access = Access::REMOTE_READ;
    let one = MemoryWindow::new(&home.domain, WindowType::One).unwrap();
    let two = MemoryWindow::new(&home.domain, WindowType::Two).unwrap();
    let (first, second) = (next(one.key()), next(next(one.key())));
    assert_eq!(bind(&pairs[0].server, first, &memory, (0, 32), access), Status::Success);
    for pair in &pairs {
        assert_eq!(read(pair, memory.address(0), first, 32), Status::Success);
    }
    assert_eq!(bind(&pairs[1].server, second, &memory, (32, 32), access), Status::Success);
    for pair in &pairs {
        assert_eq!(read(pair, memory.address(32), second, 32), Status::Success);
    }
    assert_ne!(read(&pairs[2], memory.address(0), first, 32), Status::Success, "the old key");
    let key = next(two.key());
    assert_eq!(bind(&pairs[0].server, key, &memory, (0, 32), access), Status::Success);
    assert_eq!(read(&pairs[0], memory.address(0), key, 32), Status::Success);
    assert_ne!(read(&pairs[1], memory.address(0), key, 32), Status::Success, "another queue pair");
    let third = next(second);
    assert_eq!(bind(&pairs[0].server, third, &memory, (0, 0), access), Status::Success);
    assert_ne!(read(&pairs[0], memory.address(32), second, 8), Status::Success, "bound to nothing");
}

/// A window of type 2 is taken back by the peer, by a local request, or by deallocation. It can be bound
/// again after the first two.
// IB-MW-9, IB-MW-11
pub fn windows_are_taken_back(site: &Site) {
    if !site.can(&[Opcode::BindWindow, Opcode::SendWithInvalidate]) {
        return;
    }
    let access = Access::REMOTE_READ;
    for (case, kind) in [
        ("local", WindowType::Two),
        ("peer", WindowType::Two),
        ("deallocated", WindowType::Two),
        ("deallocated", WindowType::One),
    ] {
        let home = Home::new(site);
        let pair = Pair::to_home(site, Shape::default(), &home);
        // Another connection of the domain does not keep the peer from giving back what is its own.
        let _other = Pair::to_home(site, Shape::default(), &home);
        let memory = closed(&home.domain);
        let window = MemoryWindow::new(&home.domain, kind).unwrap();
        let key = next(window.key());
        assert_eq!(bind(&pair.server, key, &memory, (0, 64), access), Status::Success);
        assert_eq!(read(&pair, memory.address(0), key, 64), Status::Success);
        assert_eq!(memory.region.try_deregister().unwrap_err().errno(), libc::EBUSY, "{case}");
        let invalidate = SendRequest { wr_id: 4, immediate: key, ..signalled(&[], (0, 0)) };
        match case {
            "local" => {
                let request = SendRequest { opcode: Opcode::LocalInvalidate, ..invalidate };
                pair.server.queue_pair.post_send(&request).unwrap();
                assert_eq!(pair.server.sent_well(4).opcode, CompletionOpcode::LocalInvalidate);
            }
            "peer" => {
                pair.server.post_receive(5, &[]);
                let request = SendRequest { opcode: Opcode::SendWithInvalidate, ..invalidate };
                pair.client.queue_pair.post_send(&request).unwrap();
                pair.client.sent_well(4);
                let received = pair.server.received_well(5);
                assert_eq!((received.flags, received.immediate), (CompletionFlags::WITH_INVALIDATE, key));
            }
            _ => window.deallocate(),
        }
        if case != "deallocated" {
            let again = next(key);
            assert_eq!(bind(&pair.server, again, &memory, (64, 64), access), Status::Success);
            assert_eq!(read(&pair, memory.address(64), again, 64), Status::Success);
            window.deallocate();
        }
        assert_ne!(read(&pair, memory.address(0), key, 64), Status::Success, "{case}");
        memory.region.try_deregister().unwrap();
    }
}

/// Requests that cannot bind, or take back, fail and break the connection; nothing is opened.
// IB-MW-2, IB-MW-3, IB-MW-4, IB-MW-5, IB-MW-9, IB-MW-12, IB-MW-13
pub fn windows_that_cannot_be_bound(site: &Site) {
    if !site.can(&[Opcode::BindWindow]) {
        return;
    }
    let (write, whole) = (Access::REMOTE_WRITE, (0, LENGTH));
    for case in [
        "no window",
        "window of another domain",
        "region of another domain",
        "a window as region",
        "region without the right",
        "region without local write",
        "region from zero",
        "bytes outside",
        "type 1 from zero",
        "type 2 bound to nothing",
        "type 2 bound twice",
        "type 1 invalidated",
    ] {
        let pair = Pair::connect(site);
        let server = &pair.server;
        let other = ProtectionDomain::new(&server.context).unwrap();
        let domain = if case == "region of another domain" { &other } else { &server.domain };
        let rights = match case {
            "region without the right" => Access::LOCAL_WRITE,
            "region without local write" => Access::MW_BIND,
            "region from zero" => Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED,
            _ => Access::LOCAL_WRITE | Access::MW_BIND,
        };
        let memory = Memory::new(domain, LENGTH, rights);
        let kind = if case.starts_with("type 1") { WindowType::One } else { WindowType::Two };
        let of = if case == "window of another domain" { &other } else { &server.domain };
        let window = MemoryWindow::new(of, kind).unwrap();
        let key = next(window.key());
        let failed = Status::WindowBind;
        let (status, expected) = match case {
            "no window" => (bind(server, memory.region.key(), &memory, whole, write), failed),
            "bytes outside" => (bind(server, key, &memory, (1, LENGTH), write), failed),
            "type 1 from zero" => (bind(server, key, &memory, whole, write | Access::ZERO_BASED), failed),
            "type 2 bound to nothing" => (bind(server, key, &memory, (0, 0), write), failed),
            "type 2 bound twice" => {
                assert_eq!(bind(server, key, &memory, whole, write), Status::Success);
                (bind(server, next(key), &memory, whole, write), failed)
            }
            "type 1 invalidated" => {
                assert_eq!(bind(server, key, &memory, whole, write), Status::Success);
                let request =
                    SendRequest { opcode: Opcode::LocalInvalidate, immediate: key, ..signalled(&[], (0, 0)) };
                server.queue_pair.post_send(&request).unwrap();
                (server.sent().status, Status::LocalQpOperation)
            }
            "a window as region" => {
                assert_eq!(bind(server, key, &memory, whole, write), Status::Success);
                let second = MemoryWindow::new(&server.domain, WindowType::Two).unwrap();
                let request = SendRequest {
                    opcode: Opcode::BindWindow,
                    rkey: second.key(),
                    immediate: key,
                    compare_add: 8,
                    ..signalled(&[], (memory.address(0), 0))
                };
                server.queue_pair.post_send(&request).unwrap();
                (server.sent().status, failed)
            }
            _ => (bind(server, key, &memory, whole, write), failed),
        };
        assert_eq!(status, expected, "{case}");
        pair.ended();
    }
}

/// A request about the key of bytes that a thread is using.
#[derive(Clone, Copy, PartialEq, Debug)]
enum KeyRequest {
    /// A window is bound anew, of whose former bytes that is so.
    Bind,
    /// The key of a region is invalidated.
    Invalidate,
}

/// A queue pair with such a request: it is posted in [`Busy::during`].
struct Busy {
    pair: Pair,
    memory: Memory,
    window: Arc<MemoryWindow>,
    what: KeyRequest,
}

impl Busy {
    fn new(site: &Site, home: &Home, what: KeyRequest) -> Self {
        let pair = Pair::to_home(site, Shape::default(), home);
        let memory = closed(&home.domain);
        let window = MemoryWindow::new(&home.domain, WindowType::One).unwrap();
        let key = next(window.key());
        assert_eq!(bind(&pair.server, key, &memory, (0, 8), Access::REMOTE_READ), Status::Success);
        Self { pair, memory, window, what }
    }

    /// Posts the request while another thread uses the bytes, and calls `act`. That thread goes on when `act`
    /// lets it, or returns.
    fn during<T>(&self, act: impl FnOnce(&dyn Fn()) -> T) -> T {
        let Self { pair: Pair { server, .. }, memory, window, what } = self;
        let keys = &server.context.engine().keys;
        let (queue_pair, domain) = (server.queue_pair.number(), server.domain.number());
        let (address, key) = (memory.address(0), next(window.key()));
        let span = match what {
            KeyRequest::Bind => keys.open_for_peer(key, address, 8, Access::REMOTE_READ, domain, queue_pair),
            KeyRequest::Invalidate => {
                keys.open_span(memory.region.key(), address, 8, Access::LOCAL_WRITE, domain)
            }
        };
        let span = span.expect("the key opens the bytes");
        let (sender, end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            // Where the post waits for that thread, the test fails, and ends.
            scope.spawn(move || {
                let _ = end.recv_timeout(TEST_TIMEOUT);
                drop(span);
            });
            server.queue_pair.post_send(&self.request()).unwrap();
            let done = act(&|| sender.send(()).expect("the thread waits for that"));
            drop(sender);
            done
        })
    }

    fn request(&self) -> SendRequest<'static> {
        let Self { memory, window, what, .. } = self;
        let region = memory.region.key();
        match what {
            KeyRequest::Bind => SendRequest {
                wr_id: 8,
                opcode: Opcode::BindWindow,
                rkey: next(next(window.key())),
                immediate: region,
                compare_add: 8,
                swap: Access::REMOTE_READ.bits().into(),
                ..signalled(&[], (memory.address(8), 0))
            },
            KeyRequest::Invalidate => SendRequest {
                wr_id: 8,
                opcode: Opcode::LocalInvalidate,
                immediate: region,
                ..signalled(&[], (0, 0))
            },
        }
    }

    /// How the request ends if that takes too long.
    fn failure(&self) -> Status {
        if self.what == KeyRequest::Bind { Status::WindowBind } else { Status::LocalQpOperation }
    }
}

/// A request about keys is complete when nobody uses the bytes of before any more. Until then it stops no
/// other queue pair, not even one whose receives complete in the same queue, and it fails in the end.
pub fn requests_about_keys_wait_for_uses_and_stop_nobody_else(site: &Site) {
    const ROUNDS: u32 = 10;
    if !site.can(&[Opcode::BindWindow, Opcode::LocalInvalidate]) {
        return;
    }
    for what in [KeyRequest::Bind, KeyRequest::Invalidate] {
        let home = Home::new(site);
        let channel = CompletionChannel::new(&home.context).unwrap();
        let receives = CompletionQueue::new(&home.context, 64, Some(channel)).unwrap();
        let home = Home { receives: Some(receives), ..home };
        let other = Pair::to_home(site, Shape::default(), &home);
        let memories = [&other.server, &other.client].map(|side| Memory::open(&side.domain, 8));
        let exchange = || {
            other.client.post_receive(1, &[memories[1].all()]);
            other.server.post(2, Opcode::Send, &[memories[0].all()], (0, 0));
            other.client.received_well(1);
            other.server.sent_well(2);
        };
        // A machine that is slow enough brings a round the end of the request's time.
        let is_well = (0..ROUNDS).any(|_| {
            let busy = Busy::new(site, &home, what);
            let (is_early, status) = busy.during(|go_on| {
                exchange();
                let mut is_early = false;
                busy.pair.server.sends.poll(1, |_| is_early = true).unwrap();
                go_on();
                (is_early, if is_early { busy.failure() } else { busy.pair.server.sent().status })
            });
            assert!(status == Status::Success || status == busy.failure(), "{what:?}: {status}");
            !is_early && status == Status::Success
        });
        assert!(is_well, "{what:?}: another queue pair waits, or the request fails");
        // One that lasts.
        let busy = Busy::new(site, &home, what);
        let status = busy.during(|_| busy.pair.server.sent().status);
        assert_eq!(status, busy.failure(), "{what:?}");
        exchange();
        // A queue pair that goes meanwhile.
        let busy = Busy::new(site, &home, what);
        busy.during(|_| busy.pair.server.queue_pair.destroy());
        exchange();
    }
}

/// Rights, bytes and protection domain of a region change under one key.
// IB-MR-1, IB-MR-2, IB-MW-10
pub fn a_region_changes(site: &Site) {
    let home = Home::new(site);
    let pairs = [(); 4].map(|()| Pair::to_home(site, Shape::default(), &home));
    let (first, second) = (Memory::open(&home.domain, 64), Memory::open(&home.domain, 64));
    let key = first.region.key();
    // SAFETY: the bytes are those of `first` and `second`, which live until the region is deregistered at the
    // end.
    let change = |region: &crate::region::MemoryRegion, what| unsafe { region.reregister(&what) };
    let moved = Reregistration { bytes: Some((second.address(0) as usize, 64)), ..Default::default() };
    let region = change(&first.region, moved).unwrap();
    assert_eq!((region.key(), region.length()), (key, 64));
    assert_eq!(read(&pairs[0], second.address(0), key, 64), Status::Success);
    assert_ne!(read(&pairs[0], first.address(0), key, 64), Status::Success, "the old bytes");

    let refused = Reregistration { access: Some(Access::REMOTE_WRITE), ..Default::default() };
    assert_eq!(change(&region, refused).err().expect("no local write").errno(), libc::EINVAL);
    assert_eq!(read(&pairs[1], second.address(0), key, 64), Status::Success);
    let other = ProtectionDomain::new(&home.context).unwrap();
    let region =
        change(&region, Reregistration { domain: Some(other.clone()), ..Default::default() }).unwrap();
    assert_eq!(other.users().count(), 1);
    assert_ne!(read(&pairs[1], second.address(0), key, 64), Status::Success, "another domain");
    let region =
        change(&region, Reregistration { domain: Some(home.domain.clone()), ..Default::default() }).unwrap();
    assert_eq!(read(&pairs[2], second.address(0), key, 64), Status::Success);

    let access = Some(Access::LOCAL_WRITE | Access::MW_BIND);
    let region = change(&region, Reregistration { access, ..Default::default() }).unwrap();
    assert_ne!(read(&pairs[2], second.address(0), key, 64), Status::Success, "fewer rights");
    if site.can(&[Opcode::BindWindow]) {
        let window = MemoryWindow::new(&home.domain, WindowType::One).unwrap();
        let request = SendRequest {
            opcode: Opcode::BindWindow,
            rkey: next(window.key()),
            immediate: key,
            compare_add: 64,
            swap: Access::REMOTE_READ.bits().into(),
            ..signalled(&[], (second.address(0), 0))
        };
        pairs[3].server.queue_pair.post_send(&request).unwrap();
        assert_eq!(pairs[3].server.sent().status, Status::Success);
        let refused = change(&region, Reregistration { access, ..Default::default() });
        assert_eq!(refused.err().expect("a window is bound").errno(), libc::EBUSY);
        window.deallocate();
    }
    region.try_deregister().unwrap();
    assert_eq!(home.domain.users().count(), 1 + pairs.len());
}
