//! Settings of connections, their addresses, and how they end.

mod ends;

use adverb::{
    ConnectError, Connection, ConnectionOptions, Context, Device, End, Listener, QueuePair, Status,
    WorkRequest,
};
use ends::{Parts, SOON, each_device, listener, pair, parts};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn options() -> ConnectionOptions {
    ConnectionOptions::new().timeout(SOON)
}

/// A client and a server with these options.
fn connected(
    context: &Context,
    of_client: &ConnectionOptions,
    of_server: &ConnectionOptions,
) -> ((Parts, Connection), (Parts, Connection)) {
    let (listener, address) = listener(context);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let parts = parts(context);
            let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
            (parts, queue_pair.connect_with(address, of_client).unwrap())
        });
        let request = listener.accept(SOON).unwrap();
        assert!(request.local_address().port() == address.port());
        let parts = parts(context);
        let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
        let server = (parts, request.accept_with(queue_pair, of_server).unwrap());
        (client.join().unwrap(), server)
    })
}

fn readable(descriptor: i32, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, a live local.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

#[test]
fn a_send_without_a_receive_fails_after_the_retries_that_were_set() {
    let context = Context::open("roce0");
    let Ok(context) = context else { return };
    let ((client, connection), _server) =
        connected(&context, &options().no_receive_retries(7), &options().no_receive_retries(1));
    connection.post_send(WorkRequest::send(b"nobody takes it")).unwrap();
    assert_eq!(client.sends.wait(SOON).unwrap().status, Status::RnrRetryExceeded);
    assert_eq!(connection.wait_ended(SOON), Some(End::Failed(Status::RnrRetryExceeded)));
}

#[test]
fn each_side_knows_both_addresses() {
    each_device(|device| {
        let context = device.open().unwrap();
        let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1), 0));
        let options_of_client = options().source(source).traffic_class(0x20).private_data(b"hello");
        let ((_, client), (_, server)) =
            connected(&context, &options_of_client, &options().private_data(b"you"));
        assert!(client.private_data().starts_with(b"you") && server.private_data().starts_with(b"hello"));
        let local = client.local_address().unwrap();
        assert_eq!((local.ip(), local.port() != 0), (source.ip(), true));
        assert_eq!(server.peer_address(), Some(local));
        assert_eq!(client.peer_address(), server.local_address());
    });
}

#[test]
fn wrong_options_name_the_limit_and_give_the_queue_pair_back() {
    each_device(|device| {
        let context = device.open().unwrap();
        let (listener, address) = listener(&context);
        let parts = parts(&context);
        let mut queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
        let most = context.attributes().max_qp_rd_atom;
        for (options, wanted) in [
            (options().retries(8), "retries 8: 0 to 7 are allowed"),
            (options().no_receive_retries(255), "no_receive_retries 255: 0 to 7 are allowed"),
            (options().path_mtu(1000), "path_mtu 1000: 256, 512"),
            (options().inbound_reads(255), &format!("inbound_reads 255: the device allows {most}")[..]),
            (options().outbound_reads(255), "outbound_reads 255: the device allows"),
            (options().private_data(&[0; 5000]), "5000 bytes of private data"),
            (options().source(([192, 0, 2, 1], 0).into()), ""),
        ] {
            if most >= 255 && wanted.contains("_reads") {
                continue;
            }
            let failed = queue_pair.connect_with(address, &options).unwrap_err();
            assert!(failed.to_string().contains(wanted), "{failed}");
            queue_pair = failed.queue_pair;
            queue_pair.reset().unwrap();
        }
        assert!(listener.try_accept().unwrap().is_none());
    });
}

/// Connects it, and sends a message each way.
fn meets(context: &Context, parts: &Parts, queue_pair: QueuePair) -> Connection {
    let (listener, address) = listener(context);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let parts = ends::parts(context);
            let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
            queue_pair.post_receive(1, parts.domain.buffer(8).unwrap()).unwrap();
            let connection = listener.accept(SOON).unwrap().accept_with(queue_pair, &options()).unwrap();
            assert_eq!(parts.receives.wait(SOON).unwrap().message(), b"there");
            connection.post_send(WorkRequest::send(b"back")).unwrap();
            parts.sends.wait(SOON).unwrap().success().unwrap();
            connection.wait_ended(SOON)
        });
        queue_pair.post_receive(7, parts.domain.buffer(8).unwrap()).unwrap();
        let connection = queue_pair.connect_with(address, &options()).unwrap();
        connection.post_send(WorkRequest::send(b"there")).unwrap();
        parts.sends.wait(SOON).unwrap().success().unwrap();
        let back = parts.receives.wait(SOON).unwrap();
        assert_eq!((back.id, back.message()), (7, &b"back"[..]));
        connection.disconnect().unwrap();
        assert_eq!(server.join().unwrap(), Some(End::Peer));
        connection
    })
}

#[test]
fn a_queue_pair_whose_connection_failed_connects_another_time() {
    each_device(|device| {
        let context = device.open().unwrap();
        let (nobody, address) = listener(&context);
        drop(nobody);
        let parts = parts(&context);
        let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
        let buffers = parts.domain.buffers(3, 100).unwrap();
        for (id, buffer) in (0..).zip(buffers) {
            queue_pair.post_receive(id, buffer).unwrap();
        }
        let failed = queue_pair.connect_with(address, &options()).unwrap_err();
        assert!(matches!(failed.error, ConnectError::NobodyListens), "{failed}");
        // One of the flushed receives comes by its completion, the others by the reset.
        let flushed = parts.receives.wait(SOON).unwrap();
        assert_eq!((flushed.id, flushed.status, flushed.into_buffer().len()), (0, Status::Flushed, 100));
        let mut queue_pair = failed.queue_pair;
        let back = queue_pair.reset().unwrap();
        assert_eq!(back.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [100, 100]);
        assert!(parts.receives.poll().unwrap().is_none());
        // Some rounds, by the same queue pair.
        for _ in 0..3 {
            let connection = meets(&context, &parts, queue_pair);
            queue_pair = connection.into_queue_pair();
            queue_pair.reset().unwrap();
        }
    });
}

#[test]
fn an_ended_connection_says_how_and_its_descriptor_is_readable() {
    each_device(|device| {
        let (client, server) = pair(device);
        let before = server.connection.end_descriptor().unwrap().as_raw_fd();
        assert!(!readable(before, 0) && client.connection.ended().is_none());
        assert!(server.connection.wait_ended(Duration::ZERO).is_none());
        client.connection.disconnect().unwrap();
        assert_eq!(client.connection.wait_ended(SOON), Some(End::Here));
        assert!(readable(before, 40_000));
        assert_eq!(server.connection.ended(), Some(End::Peer));
        assert!(readable(before, 0));
        // One that is made afterwards is readable, too, and an end on our side later changes nothing.
        assert!(readable(client.connection.end_descriptor().unwrap().as_raw_fd(), 0));
        server.connection.disconnect().unwrap();
        assert_eq!(server.connection.ended(), Some(End::Peer));
    });
}

#[test]
fn a_failed_request_is_the_reason_of_the_end() {
    each_device(|device: &Device| {
        let (client, server) = pair(device);
        let region = server.domain.memory_region(64, adverb::Rights::WRITE).unwrap();
        let read = WorkRequest::read(client.domain.buffer(8).unwrap(), &region.remote());
        client.connection.post_send(read).unwrap();
        let status = client.sends.wait(SOON).unwrap().status;
        assert_eq!(client.connection.wait_ended(SOON), Some(End::Failed(status)));
        assert!(server.connection.wait_ended(SOON).is_some());
    });
}

#[test]
fn those_who_listen_need_not_wait() {
    each_device(|device| {
        let context = device.open().unwrap();
        let (listener, address): (Listener, SocketAddr) = listener(&context);
        assert!(listener.try_accept().unwrap().is_none() && !readable(listener.as_raw_fd(), 0));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let parts = parts(&context);
                let queue_pair = parts.domain.queue_pair(parts.options).unwrap();
                queue_pair.connect_with(address, &options())
            });
            assert!(readable(listener.as_raw_fd(), 40_000));
            listener.try_accept().unwrap().unwrap().reject(b"no").unwrap();
            assert!(matches!(client.join().unwrap().unwrap_err().error, ConnectError::Rejected { .. }));
        });
    });
}

#[test]
fn settings_are_what_was_asked_for() {
    each_device(|device| {
        let context = device.open().unwrap();
        let of_client =
            options().inbound_reads(3).outbound_reads(2).retries(5).path_mtu(512).traffic_class(0x40);
        let of_client = of_client.answer_time(Duration::from_millis(100));
        let ((_, client), (_, server)) = connected(&context, &of_client, &options().no_receive_retries(4));
        assert_eq!(client.attributes().state, adverb::QueuePairState::Rts);
        assert!(client.attributes().max_sends >= 128 && client.attributes().max_gather >= 1);
        let (Some(near), Some(far)) = (client.attributes().path, server.attributes().path) else {
            // iWARP has no such numbers.
            assert_ne!(device.name(), "roce0");
            return;
        };
        assert_eq!((near.peer, far.peer), (server.number(), client.number()));
        assert_eq!((near.path_mtu, far.path_mtu), (512, 512));
        assert_eq!((near.inbound_reads, near.outbound_reads), (3, 2));
        assert_eq!((far.inbound_reads, far.outbound_reads), (2, 3));
        assert_eq!((near.retries, near.no_receive_retries, near.traffic_class), (5, 4, 0x40));
        assert_eq!(near.answer_time, Some(Duration::from_nanos(4096 << 15)));
    });
}
