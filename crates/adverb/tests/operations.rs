//! Every operation of the API between two ends of one process, over each transport of the build.

use adverb::{
    Buffer, CompletionQueue, Connection, Context, Device, Listener, MemoryRegion, Opcode, PostError,
    QueuePairOptions, RemoteMemory, Result, Rights, Status, WorkRequest,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// One end of a connection, with a region that the other end may use.
struct End {
    queue: CompletionQueue,
    region: MemoryRegion,
    connection: Connection,
    peer: RemoteMemory,
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7 + (i >> 8))) as u8).collect()
}

impl End {
    fn parts(context: &Context, rights: Rights) -> (CompletionQueue, MemoryRegion, adverb::QueuePair) {
        Self::parts_with(context, rights, Rights::all())
    }

    fn parts_with(
        context: &Context,
        rights: Rights,
        of_queue_pair: Rights,
    ) -> (CompletionQueue, MemoryRegion, adverb::QueuePair) {
        let domain = context.protection_domain().unwrap();
        let queue = context.completion_queue(256).unwrap();
        let region = domain.memory_region(1 << 20, rights).unwrap();
        let queue_pair = domain
            .queue_pair(QueuePairOptions { rights: of_queue_pair, ..QueuePairOptions::new(&queue) })
            .unwrap();
        (queue, region, queue_pair)
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.connection.domain().buffer(bytes.len().max(1)).unwrap();
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn run(&self, request: WorkRequest<'_>) -> Result<Buffer> {
        self.connection.post_send(request)?;
        let completion = self.queue.wait(SOON)?.success()?;
        Ok(completion.buffer.unwrap_or_else(|| self.connection.domain().buffer(1).unwrap()))
    }
}

fn pair(device: &Device, rights: Rights) -> (End, End) {
    pair_with(device, rights, Rights::all())
}

/// The second end, the server's, has a queue pair with just these rights.
fn pair_with(device: &Device, rights: Rights, of_server: Rights) -> (End, End) {
    let context = device.open().unwrap();
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            let context = device.open().unwrap();
            let (queue, region, queue_pair) = End::parts(&context, rights);
            let connection = queue_pair.connect(address, &region.remote().to_bytes(), SOON).unwrap();
            let peer = RemoteMemory::from_bytes(connection.private_data()).unwrap();
            End { queue, region, connection, peer }
        });
        let request = listener.accept(SOON).unwrap();
        let peer = RemoteMemory::from_bytes(request.private_data()).unwrap();
        let (queue, region, queue_pair) = End::parts_with(&context, rights, of_server);
        let connection = request.accept(queue_pair, &region.remote().to_bytes(), SOON).unwrap();
        (client.join().unwrap(), End { queue, region, connection, peer })
    })
}

fn each_device(test: impl Fn(&Device)) {
    let devices = Device::all().unwrap();
    assert!(!devices.is_empty());
    devices.iter().for_each(test);
}

#[test]
fn messages() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::empty());
        for (from, to) in [(&client, &server), (&server, &client)] {
            for length in [0, 1, 64, 65, 4096, 100_000] {
                let bytes = pattern(length, 1);
                to.connection.post_receive(7, to.buffer(&[0; 100_000])).unwrap();
                let back = from.run(WorkRequest::send(from.buffer(&bytes).slice(..length)).id(3)).unwrap();
                assert_eq!(&back[..length], bytes);
                let got = to.queue.wait(SOON).unwrap().success().unwrap();
                assert_eq!((got.id, got.message()), (7, &bytes[..]));
            }
            to.connection.post_receive(8, to.buffer(&[0; 8])).unwrap();
            from.run(WorkRequest::send(b"in line")).unwrap();
            assert_eq!(to.queue.wait(SOON).unwrap().message(), b"in line");
        }
    });
}

#[test]
fn one_sided() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::all());
        let operations = device.open().unwrap().attributes().operations;
        for (from, to) in [(&client, &server), (&server, &client)] {
            for length in [0, 1, 64, 65, 4096, 100_000] {
                let bytes = pattern(length, 2);
                let there = from.peer.slice(13..13 + length).unwrap();
                from.run(WorkRequest::write(from.buffer(&bytes).slice(..length), &there)).unwrap();
                let back = from
                    .run(WorkRequest::read(from.buffer(&vec![0; length]).slice(..length), &there))
                    .unwrap();
                assert_eq!(&back[..length], bytes);
                assert_eq!(to.region.to_vec(13..13 + length), bytes);
            }
            let word = from.peer.slice(4096..4104).unwrap();
            to.region.words()[512].store(40, Ordering::Release);
            if operations.contains(&Opcode::FetchAdd) {
                let was = from.run(WorkRequest::fetch_add(from.buffer(&[0; 8]), &word, 2)).unwrap();
                assert_eq!(*was, 40u64.to_ne_bytes());
                let was = from.run(WorkRequest::compare_swap(from.buffer(&[0; 8]), &word, 42, 7)).unwrap();
                assert_eq!(*was, 42u64.to_ne_bytes());
                assert_eq!(to.region.words()[512].load(Ordering::Acquire), 7);
            }
            if operations.contains(&Opcode::SendWithImmediate) {
                to.connection.post_receive(1, to.buffer(&[0; 8])).unwrap();
                from.run(WorkRequest::send(b"n").immediate(0x1234_5678)).unwrap();
                assert_eq!(to.queue.wait(SOON).unwrap().immediate, Some(0x1234_5678));
            }
            if operations.contains(&Opcode::WriteWithImmediate) {
                to.connection.post_receive(1, to.buffer(&[0; 8])).unwrap();
                from.run(WorkRequest::write(b"n", &from.peer).immediate(5)).unwrap();
                assert_eq!(to.queue.wait(SOON).unwrap().immediate, Some(5));
            }
        }
    });
}

#[test]
fn a_region_that_the_peer_gave_up() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::all());
        server.connection.post_receive(1, server.buffer(&[0; 8])).unwrap();
        client.run(WorkRequest::send(b"bye").invalidate(&client.peer)).unwrap();
        let got = server.queue.wait(SOON).unwrap().success().unwrap();
        assert_eq!(got.invalidated, Some(server.region.remote().key()));
        server.region.write(0, b"still ours");
        let refused = client.run(WorkRequest::read(client.buffer(&[0; 8]), &client.peer.slice(..8).unwrap()));
        assert!(refused.is_err());
    });
}

#[test]
fn refused_access_touches_nothing_and_ends_the_connection() {
    each_device(|device| {
        type Wrong = fn(&RemoteMemory) -> RemoteMemory;
        let cases: [(Rights, Wrong); 3] = [
            (Rights::all(), |good| RemoteMemory::new(good.address(), 64, good.key() ^ 0x0100_0000)),
            (Rights::all(), |good| RemoteMemory::new(good.address() + good.len() - 63, 64, good.key())),
            (Rights::READ, |good| *good),
        ];
        for (rights, wrong) in cases {
            let (client, server) = pair(device, rights);
            server.region.write(0, &vec![0x55; server.region.len()]);
            server.connection.post_receive(1, server.buffer(&[0; 8])).unwrap();
            let bytes = client.buffer(&[0xaa; 64]);
            client.connection.post_send(WorkRequest::write(bytes, &wrong(&client.peer))).unwrap();
            // A write may end well on this side before the peer has seen it: the connection ends in any case.
            let _ = client.queue.wait(SOON).unwrap();
            assert!(client.connection.wait_disconnected(SOON) && server.connection.wait_disconnected(SOON));
            let flushed = server.queue.wait(SOON).unwrap();
            assert_eq!((flushed.status, flushed.id), (Status::Flushed, 1));
            assert_eq!(flushed.into_buffer().len(), 8);
            assert!(server.region.to_vec(..).iter().all(|byte| *byte == 0x55));
        }
    });
}

#[test]
fn a_rejected_request_returns_its_buffer_and_the_reason() {
    each_device(|device| {
        let context = device.open().unwrap();
        let (queue, _, queue_pair) = End::parts(&context, Rights::all());
        let buffer = queue_pair.domain().buffer(8).unwrap();
        // As many receives as the queue takes; the next one comes back.
        let mut spare = Some(buffer);
        for id in 0..queue.capacity().into() {
            let next = spare.as_mut().unwrap().split_off(0);
            if let Err(rejected) = queue_pair.post_receive(id, next) {
                assert_eq!((rejected.reason, id), (PostError::QueueFull, 128));
                spare = rejected.buffer;
                break;
            }
        }
        assert_eq!(spare.unwrap().len(), 0);
        assert!(queue.wait(Duration::ZERO).unwrap_err().is_timeout());
        let (client, _server) = pair(device, Rights::all());
        let rejected = client.connection.post_send(WorkRequest::send(&[0; 65])).unwrap_err();
        assert_eq!(rejected.reason, PostError::InlineTooLong);
        assert!(rejected.buffer.is_none());
    });
}

#[test]
fn connections_that_do_not_come_about() {
    each_device(|device| {
        let context = device.open().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(&context, address, 4).unwrap();
        let there = listener.local_address();
        assert!(listener.accept(Duration::ZERO).unwrap_err().is_timeout());
        std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let (_queue, _region, queue_pair) = End::parts(&device.open().unwrap(), Rights::all());
                queue_pair.connect(there, b"please", SOON)
            });
            let request = listener.accept(SOON).unwrap();
            assert!(request.private_data().starts_with(b"please"));
            request.reject(b"no").unwrap();
            match client.join().unwrap() {
                Err(adverb::ConnectError::Rejected { private_data, .. }) => {
                    assert!(private_data.starts_with(b"no"))
                }
                other => panic!("{other:?}"),
            }
        });
        drop(listener);
        let (_queue, _region, queue_pair) = End::parts(&context, Rights::all());
        let nobody = queue_pair.connect(there, &[], SOON).unwrap_err();
        assert_eq!(adverb::Error::from(nobody).errno(), libc::ECONNREFUSED);
    });
}

#[test]
fn the_queue_pair_must_permit_it_too() {
    each_device(|device| {
        let (client, server) = pair_with(device, Rights::all(), Rights::READ);
        client.run(WorkRequest::read(client.buffer(&[0; 8]), &client.peer.slice(..8).unwrap())).unwrap();
        client.connection.post_send(WorkRequest::write(b"no", &client.peer)).unwrap();
        assert!(server.connection.wait_disconnected(SOON));
        assert_eq!(server.region.to_vec(..2), [0, 0]);
    });
}

#[test]
fn a_key_that_its_owner_invalidated() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::all());
        server.run(WorkRequest::local_invalidate(&server.region)).unwrap();
        let refused = client.run(WorkRequest::read(client.buffer(&[0; 8]), &client.peer.slice(..8).unwrap()));
        assert!(refused.is_err());
        server.region.write(0, b"the owner may still use the bytes");
    });
}

#[test]
fn threads_share_a_completion_queue() {
    const EACH: usize = 30;
    const THREADS: usize = 4;
    each_device(|device| {
        let (client, server) = pair(device, Rights::empty());
        for buffer in server.connection.domain().buffers(THREADS * EACH, 8).unwrap() {
            server.connection.post_receive(0, buffer).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let got = server.queue.wait(SOON).unwrap().success().unwrap();
                        assert_eq!(got.message(), b"to you");
                    }
                });
            }
            for _ in 0..THREADS * EACH {
                client.run(WorkRequest::send(b"to you")).unwrap();
            }
        });
    });
}

#[test]
fn an_event_loop_watches_the_descriptor() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::empty());
        let readable = |milliseconds: i32| {
            let mut poll =
                libc::pollfd { fd: server.queue.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, a live local.
            unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
        };
        for _ in 0..3 {
            server.connection.post_receive(0, server.buffer(&[0; 8])).unwrap();
            server.queue.arm().unwrap();
            assert!(server.queue.poll().unwrap().is_none() && !readable(0));
            client.run(WorkRequest::send(b"wake up")).unwrap();
            assert!(readable(20_000));
            assert_eq!(server.queue.poll().unwrap().unwrap().message(), b"wake up");
        }
        // Solicited only: the first message is silent.
        for _ in 0..2 {
            server.connection.post_receive(0, server.buffer(&[0; 8])).unwrap();
        }
        server.queue.arm_solicited().unwrap();
        client.run(WorkRequest::send(b"silent")).unwrap();
        client.run(WorkRequest::send(b"loud").solicited()).unwrap();
        assert!(readable(20_000));
    });
}

#[test]
fn dropping_a_queue_pair_frees_what_is_in_flight() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::empty());
        let End { queue, connection, region, .. } = server;
        for buffer in connection.domain().buffers(16, 4096).unwrap() {
            connection.post_receive(0, buffer).unwrap();
        }
        drop(connection);
        assert!(queue.poll().unwrap().is_none());
        assert!(client.connection.wait_disconnected(SOON));
        drop(region);
    });
}

#[test]
fn a_token_bounds_what_goes_through_it() {
    each_device(|device| {
        let (client, server) = pair(device, Rights::all());
        let rejected = |request: WorkRequest<'_>| client.connection.post_send(request).unwrap_err();
        let short = client.peer.slice(..8).unwrap();
        for length in [9, 64, 4096] {
            let buffer = || client.buffer(&pattern(length, 3));
            for request in [WorkRequest::write(buffer(), &short), WorkRequest::read(buffer(), &short)] {
                let rejected = rejected(request);
                assert_eq!(rejected.reason, PostError::PastToken);
                assert_eq!(rejected.buffer.unwrap().len(), length, "the buffer is back");
            }
        }
        assert_eq!(rejected(WorkRequest::write(b"nine bytes", &short)).reason, PostError::PastToken);
        let word = client.buffer(&[0; 8]);
        assert_eq!(
            rejected(WorkRequest::fetch_add(word, &client.peer.slice(..4).unwrap(), 1)).reason,
            PostError::PastToken
        );
        client.run(WorkRequest::write(client.buffer(&[7; 8]), &short)).unwrap();
        // What is read behind the write shows that nothing else of the region was touched.
        let back = client.run(WorkRequest::read(client.buffer(&[1; 16]), &client.peer)).unwrap();
        assert_eq!(back[..], [[7; 8], [0; 8]].concat());
        // A token whose length is the peer's word.
        assert_eq!(RemoteMemory::new(0, 4, 1).slice(..8), None);
        drop(server);
    });
}

#[test]
fn a_client_that_reaches_no_listener_is_told_so() {
    each_device(|device| {
        let context = device.open().unwrap();
        let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
        let address = listener.local_address();
        drop(listener);
        let (_queue, _region, queue_pair) = End::parts(&context, Rights::all());
        let error = queue_pair.connect(address, b"hello", SOON).unwrap_err();
        assert!(matches!(error, adverb::ConnectError::NobodyListens), "{error:?}");
        assert_eq!(format!("{error:?}"), "NobodyListens");
        assert_eq!(adverb::Error::from(error).errno(), libc::ECONNREFUSED);
        let limits = context.private_data_limits();
        let (_queue, _region, queue_pair) = End::parts(&context, Rights::all());
        let error = queue_pair.connect(address, &vec![1; limits.request + 1], SOON).unwrap_err();
        assert!(error.to_string().contains(&format!("{} are allowed", limits.request)), "{error}");
    });
}

#[test]
fn a_refusal_shows_what_the_peer_said_without_the_zeros_behind_it() {
    each_device(|device| {
        let context = device.open().unwrap();
        let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
        let address = listener.local_address();
        for said in [&b"busy"[..], b""] {
            let error = std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let (_queue, _region, queue_pair) = End::parts(&context, Rights::all());
                    queue_pair.connect(address, b"", SOON).unwrap_err()
                });
                listener.accept(SOON).unwrap().reject(said).unwrap();
                client.join().unwrap()
            });
            let shown = format!("{error:?}");
            assert!(shown.starts_with("Rejected { status: "), "{shown}");
            assert!(shown.ends_with(&format!(", private_data: {said:?} }}")), "{shown}");
        }
    });
}
