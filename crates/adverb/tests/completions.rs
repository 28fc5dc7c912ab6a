//! Completions, several at once, and what failed ones say.

mod ends;

use adverb::{Error, PostError, Status, WorkRequest};
use ends::{End, SOON, each_device, pair};
use std::time::Duration;

/// Posts `count` receives at the server, and as many sends at the client.
fn send(client: &End, server: &End, count: u64) {
    for (id, buffer) in (0..).zip(server.domain.buffers(count as usize, 8).unwrap()) {
        server.connection.post_receive(id, buffer).unwrap();
    }
    for id in 0..count {
        client.connection.post_send(WorkRequest::send(&id.to_ne_bytes()).id(id)).unwrap();
    }
}

#[test]
fn several_at_once_come_in_their_order() {
    each_device(|device| {
        let (client, server) = pair(device);
        let mut list = Vec::new();
        assert_eq!(server.receives.poll_many(10, &mut list).unwrap(), 0);
        for most in [1, 7, 16, 17, 64] {
            send(&client, &server, 40);
            list.clear();
            while list.len() < 40 {
                let before = list.len();
                let count = server.receives.wait_many(most, &mut list, SOON).unwrap();
                assert!(count >= 1 && count <= most && list.len() == before + count);
            }
            for (id, completion) in (0u64..).zip(list.drain(..)) {
                let completion = completion.success().unwrap();
                assert_eq!((completion.id, completion.message()), (id, &id.to_ne_bytes()[..]));
            }
            let mut sent = Vec::new();
            while sent.len() < 40 {
                client.sends.wait_many(40, &mut sent, SOON).unwrap();
            }
        }
        assert_eq!(server.receives.wait_many(0, &mut list, Duration::ZERO).unwrap(), 0);
        assert!(server.receives.wait_many(1, &mut list, Duration::ZERO).unwrap_err().is_timeout());
    });
}

#[test]
fn the_end_brings_everything_back() {
    each_device(|device| {
        let (client, server) = pair(device);
        send(&client, &server, 5);
        for buffer in server.domain.buffers(7, 8).unwrap() {
            server.connection.post_receive(9, buffer).unwrap();
        }
        assert!(server.connection.in_flight_on(&server.receives) >= 7);
        assert_eq!(server.connection.in_flight_on(&server.sends), 0);
        for _ in 0..5 {
            server.receives.wait(SOON).unwrap().unless_flushed().unwrap().unwrap();
        }
        assert_eq!(server.connection.in_flight(), 7);
        client.connection.disconnect().unwrap();
        let mut flushed = 0;
        while server.connection.in_flight() > 0 {
            let completion = server.receives.wait(SOON).unwrap();
            let error = completion.error().unwrap();
            assert!(error.is_flushed() && error.id == 9 && error.queue_pair == server.connection.number());
            assert!(completion.buffer.is_some() && completion.unless_flushed().unwrap().is_none());
            flushed += 1;
        }
        assert_eq!(flushed, 7);
    });
}

#[test]
fn an_error_says_what_has_failed_and_why() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.memory_region(64, adverb::Rights::WRITE).unwrap();
        let read = WorkRequest::read(client.domain.buffer(8).unwrap(), &region.remote());
        client.connection.post_send(read.id(77)).unwrap();
        let completion = client.sends.wait(SOON).unwrap();
        let (status, cause) = (completion.status, completion.cause);
        let error = completion.success().unwrap_err();
        assert_eq!(error.status(), Some(status));
        let Error::Request(request) = error else { panic!("{error:?}") };
        assert_eq!((request.id, request.queue_pair, request.cause), (77, client.connection.number(), cause));
        let inside = std::io::Error::from(Error::from(request));
        assert!(inside.to_string().starts_with("request 77 of queue pair"), "{inside}");
        let inside = inside.get_ref().and_then(|error| error.downcast_ref::<Error>()).unwrap();
        assert_eq!(inside.status(), Some(status));
        assert_ne!(status, Status::Flushed);

        let long = WorkRequest::send(&[0; 65]);
        let error = Error::from(client.connection.post_send(long).unwrap_err());
        assert!(matches!(error, Error::Post(PostError::InlineTooLong)), "{error:?}");
    });
}
