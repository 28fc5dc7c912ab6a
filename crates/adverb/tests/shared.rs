//! Receives that several queue pairs share: who owns their memory, and that none is lost.

mod ends;

use adverb::{
    AsyncEvent, AsyncEventKind, CompletionQueue, Connection, Context, QueuePairOptions, SharedReceiveQueue,
    WorkRequest,
};
use ends::{SOON, each_device, listener, parts};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A server with a shared receive queue, and its connections to clients in this process.
struct Server {
    shared: SharedReceiveQueue,
    receives: CompletionQueue,
    connections: Vec<Connection>,
    clients: Vec<(CompletionQueue, Connection)>,
}

impl Server {
    fn new(context: &Context, receives: u32, clients: usize) -> Self {
        let domain = context.protection_domain().unwrap();
        let shared = domain.shared_receive_queue(receives, 1).unwrap();
        let queue = context.completion_queue(256).unwrap();
        let mut server = Self { shared, receives: queue, connections: Vec::new(), clients: Vec::new() };
        (0..clients).for_each(|_| server.connect());
        server
    }

    fn connect(&mut self) {
        let domain = self.shared.domain().clone();
        let context = domain.context();
        let (listener, address) = listener(context);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let parts = parts(context);
                let queue_pair = parts.domain.queue_pair(parts.options).unwrap();
                (parts.sends, queue_pair.connect(address, &[], SOON).unwrap())
            });
            let sends = context.completion_queue(64).unwrap();
            let options = QueuePairOptions {
                receive_queue: self.receives.clone(),
                shared_receive_queue: Some(self.shared.clone()),
                ..QueuePairOptions::new(&sends)
            };
            let queue_pair = domain.queue_pair(options).unwrap();
            let request = listener.accept(SOON).unwrap();
            self.connections.push(request.accept(queue_pair, &[], SOON).unwrap());
            self.clients.push(client.join().unwrap());
        });
    }

    fn offer(&self, count: usize) {
        for (id, buffer) in (0..).zip(self.shared.domain().buffers(count, 64).unwrap()) {
            self.shared.post_receive(id, buffer).unwrap();
        }
    }

    fn send(&self, client: usize, text: &[u8]) {
        let (sends, connection) = &self.clients[client];
        connection.post_send(WorkRequest::send(text)).unwrap();
        sends.wait(SOON).unwrap().success().unwrap();
    }
}

#[test]
fn messages_of_all_take_the_shared_receives() {
    each_device(|device| {
        let server = Server::new(&device.open().unwrap(), 16, 3);
        server.offer(16);
        for round in 0..20u8 {
            for client in 0..3u8 {
                server.send(client.into(), &[client, round]);
                let got = server.receives.wait(SOON).unwrap().success().unwrap();
                assert_eq!(got.message(), [client, round]);
                assert_eq!(got.queue_pair, server.connections[usize::from(client)].number());
                server.shared.post_receive(got.id, got.into_buffer()).unwrap();
            }
        }
        // A queue pair on it has no receives of its own, and all places are taken.
        let buffer = server.shared.domain().buffer(8).unwrap();
        assert!(server.connections[0].post_receive(1, buffer).unwrap_err().buffer.is_some());
        let buffer = server.shared.domain().buffer(8).unwrap();
        let rejected = server.shared.post_receive(1, buffer).unwrap_err();
        assert_eq!((rejected.reason, rejected.buffer.unwrap().len()), (adverb::PostError::QueueFull, 8));
        let foreign = server.shared.domain().context().protection_domain().unwrap().buffer(8).unwrap();
        assert_eq!(
            server.shared.post_receive(1, foreign).unwrap_err().reason,
            adverb::PostError::OtherDomain
        );
    });
}

#[test]
fn the_end_of_a_connection_takes_no_shared_receive_along() {
    each_device(|device| {
        let mut server = Server::new(&device.open().unwrap(), 8, 2);
        let capacity = server.shared.capacity() as usize;
        server.offer(capacity);
        for round in 0..10 {
            // A message comes, and its queue pair goes, before anybody takes the completion.
            server.receives.arm().unwrap();
            server.send(1, b"unheard");
            let mut poll = libc::pollfd { fd: server.receives.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, a live local.
            assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 40_000) }, 1);
            drop((server.connections.pop(), server.clients.pop()));
            // Its receive has gone with it, and that place alone is free.
            for is_free in [true, false] {
                let posted = server.shared.post_receive(0, server.shared.domain().buffer(64).unwrap());
                assert_eq!(posted.is_ok(), is_free, "round {round}");
            }
            server.send(0, b"heard");
            let heard = server.receives.wait(SOON).unwrap().success().unwrap();
            assert_eq!(heard.message(), b"heard");
            server.shared.post_receive(0, heard.into_buffer()).unwrap();
            server.connect();
        }
        assert!(server.receives.poll().unwrap().is_none());
    });
}

#[test]
fn a_completion_queue_keeps_room_for_all_shared_receives() {
    each_device(|device| {
        let context = device.open().unwrap();
        let domain = context.protection_domain().unwrap();
        let shared = domain.shared_receive_queue(64, 1).unwrap();
        let small = context.completion_queue(16).unwrap();
        let options =
            QueuePairOptions { shared_receive_queue: Some(shared.clone()), ..QueuePairOptions::new(&small) };
        let error = domain.queue_pair(options).unwrap_err().to_string();
        assert!(error.contains("no room for the 64 receives"), "{error}");
        // The end of the shared queue gives the room back.
        let large = context.completion_queue(64).unwrap();
        for _ in 0..3 {
            let shared = domain.shared_receive_queue(64, 1).unwrap();
            let options =
                QueuePairOptions { shared_receive_queue: Some(shared), ..QueuePairOptions::new(&large) };
            let queue_pairs =
                [domain.queue_pair(options.clone()).unwrap(), domain.queue_pair(options).unwrap()];
            drop(queue_pairs);
        }
        let queue_pair = domain.queue_pair(QueuePairOptions::new(&large)).unwrap();
        for buffer in domain.buffers(64, 8).unwrap() {
            queue_pair.post_receive(0, buffer).unwrap();
        }
    });
}

#[test]
fn dropping_everything_in_any_order_frees_the_receives() {
    each_device(|device| {
        for order in 0..3 {
            let server = Server::new(&device.open().unwrap(), 8, 1);
            server.offer(8);
            server.send(0, b"left behind");
            let Server { shared, receives, connections, clients } = server;
            match order {
                0 => drop((shared, receives, connections, clients)),
                1 => drop((connections, shared, clients, receives)),
                _ => {
                    std::mem::forget(connections);
                    drop((receives, shared));
                    // The leaked queue pair still takes receives, into memory that stays.
                    clients[0].1.post_send(WorkRequest::send(b"to a leaked one")).unwrap();
                    clients[0].0.wait(SOON).unwrap().success().unwrap();
                }
            }
        }
    });
}

#[test]
fn few_receives_left_raise_an_event() {
    each_device(|device| {
        let server = Server::new(&device.open().unwrap(), 16, 1);
        server.offer(4);
        assert!(server.shared.arm_limit(1000).is_err());
        server.shared.arm_limit(3).unwrap();
        let domain = server.shared.domain().clone();
        assert!(domain.context().next_event(Duration::ZERO).unwrap().is_none());
        server.send(0, b"one");
        server.send(0, b"two");
        let wanted = AsyncEvent::SharedReceiveQueue {
            number: server.shared.number(),
            kind: AsyncEventKind::SrqLimitReached,
        };
        loop {
            let event = domain.context().next_event(SOON).unwrap().expect("an event");
            if event == wanted {
                break;
            }
        }
    });
}
