//! Datagrams, shared receives and memory windows of the async API.

#[path = "ends/asynchronous.rs"]
mod ends;

use adverb::asynchronous::{
    AsyncConnection, AsyncDatagramQueuePair, AsyncEndpoint, AsyncSharedReceiveQueue, Tokio,
};
use adverb::{AddressHandle, Context, DatagramRequest, Rights, Service};
use ends::{SOON, connected, each_device, endpoint, in_tokio, listen, look, options};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::task::Poll;

const QKEY: u32 = 0x1234;
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Tests of datagrams, on the devices that have them.
fn each_with_datagrams(test: impl Fn(Context)) {
    each_device(|context| {
        if context.attributes().services.contains(&Service::Ud) {
            test(context);
        } else {
            in_tokio(|| async {
                let error = endpoint(&context, Tokio::current()).datagram_queue_pair(QKEY).unwrap_err();
                assert_eq!(error.errno(), libc::EOPNOTSUPP);
            });
        }
    });
}

/// Two queue pairs of datagrams, with four receives of 100 bytes each, and the way from one to the other.
fn members(context: &Context) -> (AsyncDatagramQueuePair, AsyncDatagramQueuePair, AddressHandle) {
    let few = options(|it| (it.receives, it.message_bytes) = (4, 100));
    let endpoint = endpoint(context, Tokio::current()).with_options(few);
    let way = AddressHandle::new(endpoint.domain(), LOCAL, LOCAL).unwrap();
    (endpoint.datagram_queue_pair(QKEY).unwrap(), endpoint.datagram_queue_pair(QKEY).unwrap(), way)
}

#[test]
fn datagrams_there_and_back() {
    each_with_datagrams(|context| {
        in_tokio(|| async {
            let (asks, answers, way) = members(&context);
            let number = answers.number();
            let served = tokio::spawn(async move {
                loop {
                    let question = answers.receive().await.unwrap();
                    if question.is_empty() {
                        return;
                    }
                    let way = answers.way_back(&question).expect("the way back");
                    let request = DatagramRequest::send(&question[..8], &way, question.sender(), QKEY);
                    let sent = answers.perform(request.immediate(question.len() as u32)).await.unwrap();
                    assert!(sent.error().is_none());
                }
            });
            for round in 0..100_u64 {
                // Some are longer than what a post copies.
                let question = [round.to_be_bytes(); 12];
                let question = &question.as_flattened()[..8 + round as usize % 88];
                assert!(asks.send(question, &way, number, QKEY).await.unwrap().is_none());
                let answer = asks.receive().await.unwrap();
                assert_eq!(&answer[..], round.to_be_bytes());
                assert_eq!((answer.sender(), answer.immediate()), (number, Some(question.len() as u32)));
            }
            asks.send(b"", &way, number, QKEY).await.unwrap();
            served.await.unwrap();
        });
    });
}

#[test]
fn a_dropped_future_of_datagrams_leaves_everything_to_others() {
    each_with_datagrams(|context| {
        in_tokio(|| async {
            let (here, there, way) = members(&context);
            let send = |bytes: &'static [u8]| here.send(bytes, &way, there.number(), QKEY);
            {
                let mut waiting = pin!(there.receive());
                assert!(look(waiting.as_mut()).is_pending());
                send(b"for the next").await.unwrap();
            }
            assert_eq!(&there.receive().await.unwrap()[..], b"for the next");
            // One that was posted: the datagram comes, and the buffer comes back.
            let mut buffer = here.buffer(90).unwrap();
            buffer.fill(9);
            {
                let mut sending = pin!(here.send(buffer, &way, there.number(), QKEY));
                if let Poll::Ready(sent) = look(sending.as_mut()) {
                    here.recycle(sent.unwrap().unwrap());
                }
            }
            assert_eq!(there.receive().await.unwrap()[..], [9; 90]);
            send(b"next").await.unwrap();
            there.receive().await.unwrap();
            assert!(here.buffer(90).unwrap().iter().all(|byte| *byte == 9), "the buffer is lost");
            // One that was never polled sends nothing.
            drop(send(b"nothing"));
            // Bytes that the program has stay, whatever comes.
            send(b"kept").await.unwrap();
            let kept = there.receive().await.unwrap();
            for _ in 0..10 {
                send(b"others").await.unwrap();
                assert_eq!(&there.receive().await.unwrap()[..], b"others");
            }
            assert_eq!(&kept[..], b"kept");
            // Also behind the end of the queue pair.
            drop(there);
            assert_eq!(&kept[..], b"kept");
        });
    });
}

#[test]
fn datagrams_that_are_too_long_are_lost_and_take_no_receive_along() {
    each_with_datagrams(|context| {
        in_tokio(|| async {
            let (here, there, way) = members(&context);
            let mut long = here.buffer(101).unwrap();
            for _ in 0..10 {
                let sent = here.send(long, &way, there.number(), QKEY).await.unwrap();
                long = sent.unwrap();
                here.send(b"short", &way, there.number(), QKEY).await.unwrap();
                assert_eq!(&there.receive().await.unwrap()[..], b"short");
            }
        });
    });
}

/// An endpoint of clients, a shared receive queue for four messages, and an endpoint of servers on it.
fn shared(context: &Context) -> (AsyncEndpoint, AsyncSharedReceiveQueue, AsyncEndpoint) {
    let few = options(|it| (it.receives, it.message_bytes) = (4, 100));
    let clients = endpoint(context, Tokio::current()).with_options(few);
    let queue = clients.shared_receive_queue().unwrap();
    let servers = clients.clone().with_shared_receive_queue(&queue);
    (clients, queue, servers)
}

/// A client, and a server on the shared receive queue.
async fn joined(clients: &AsyncEndpoint, servers: &AsyncEndpoint) -> (AsyncConnection, AsyncConnection) {
    let mut listener = listen(servers);
    let address = listener.local_address();
    let server = async { listener.accept().await.unwrap().accept(&[]).await.unwrap() };
    let (client, server) = tokio::join!(clients.connect(address, b""), server);
    (client.unwrap(), server)
}

#[test]
fn messages_of_several_connections_come_by_the_shared_receives() {
    each_device(|context| {
        in_tokio(|| async {
            let (clients, queue, servers) = shared(&context);
            let mut ends = Vec::new();
            for _ in 0..3 {
                ends.push(joined(&clients, &servers).await);
            }
            assert_eq!(ends[0].1.receive().await.unwrap_err().errno(), libc::EINVAL);
            let serves = async {
                for _ in 0..90 {
                    let question = queue.receive().await.unwrap();
                    let (_, server) = &ends[usize::from(question[0])];
                    assert_eq!(question.queue_pair(), server.number());
                    server.send(&question[..]).await.unwrap();
                }
            };
            let asks = async {
                for round in 0..30_u8 {
                    for (number, (client, _)) in (0_u8..).zip(&ends) {
                        client.send(&[number, round]).await.unwrap();
                        let answer = client.receive().await.unwrap().unwrap();
                        assert_eq!(&answer[..], [number, round]);
                    }
                }
            };
            tokio::join!(serves, asks);
        });
    });
}

#[test]
fn a_dropped_future_of_shared_receives_leaves_the_message_to_others() {
    each_device(|context| {
        in_tokio(|| async {
            let (clients, queue, servers) = shared(&context);
            let (client, _server) = joined(&clients, &servers).await;
            for _ in 0..10 {
                let mut waiting = Box::pin(queue.receive());
                assert!(look(waiting.as_mut()).is_pending());
                client.send(b"for the next").await.unwrap();
                drop(waiting);
                assert_eq!(&queue.receive().await.unwrap()[..], b"for the next");
            }
            // Bytes that the program has stay, whatever comes.
            let kept = async {
                client.send(b"kept").await.unwrap();
                queue.receive().await.unwrap()
            };
            let kept = kept.await;
            for _ in 0..10 {
                client.send(b"others").await.unwrap();
                assert_eq!(&queue.receive().await.unwrap()[..], b"others");
            }
            assert_eq!(&kept[..], b"kept");
        });
    });
}

#[test]
fn the_end_of_a_connection_takes_no_shared_receive_and_no_message_along() {
    each_device(|context| {
        in_tokio(|| async {
            let (clients, queue, servers) = shared(&context);
            for _ in 0..6 {
                let (client, server) = joined(&clients, &servers).await;
                client.send(b"the last words").await.unwrap();
                drop(client);
                // The end comes behind the message.
                server.closed().await.unwrap();
                drop(server);
                assert_eq!(&queue.receive().await.unwrap()[..], b"the last words");
            }
            // Connections that never come to be take none along, either.
            for _ in 0..6 {
                let mut listener = listen(&servers);
                let address = listener.local_address();
                let mut accepts =
                    Box::pin(async { listener.accept().await.unwrap().accept(&[]).await.unwrap() });
                let client = tokio::select! {
                    biased;
                    client = clients.connect(address, b"") => client.unwrap(),
                    server = &mut accepts => { drop(server); continue },
                };
                drop(tokio::time::timeout(SOON, client.send(b"unheard")).await);
            }
            let (client, _server) = joined(&clients, &servers).await;
            for _ in 0..6 {
                client.send(b"heard").await.unwrap();
                while &queue.receive().await.unwrap()[..] != b"heard" {}
            }
        });
    });
}

#[test]
fn a_message_that_is_too_long_ends_its_connection_alone() {
    each_device(|context| {
        in_tokio(|| async {
            let (clients, queue, servers) = shared(&context);
            let (good, _server) = joined(&clients, &servers).await;
            for _ in 0..6 {
                let (bad, server) = joined(&clients, &servers).await;
                let sends = async { drop(bad.send(bad.buffer(101).unwrap()).await) };
                let (error, ()) = tokio::join!(queue.receive(), sends);
                match error.unwrap_err() {
                    adverb::Error::Request(error) => assert_eq!(error.queue_pair, server.number()),
                    other => panic!("{other}"),
                }
                good.send(b"goes on").await.unwrap();
                assert_eq!(&queue.receive().await.unwrap()[..], b"goes on");
            }
        });
    });
}

#[test]
fn a_window_is_open_until_it_is_taken_back() {
    each_device(|context| {
        in_tokio(|| async {
            let (client, server) = connected(&endpoint(&context, Tokio::current()), b"").await;
            let region = server.domain().memory_region(4096, Rights::BIND).unwrap();
            let window = server.domain().memory_window().unwrap();
            let error = server.bind(&window, &region, 4000..5000, Rights::WRITE).await.unwrap_err();
            assert!(error.errno() == libc::EINVAL && error.to_string().contains("4096 bytes"), "{error}");
            for round in 0..4_usize {
                let token =
                    server.bind(&window, &region, 8 * round..8 * round + 8, Rights::WRITE).await.unwrap();
                client.write(b"within", &token).await.unwrap();
                client.send(b"look").await.unwrap();
                server.receive().await.unwrap().unwrap();
                assert_eq!(region.to_vec(8 * round..8 * round + 6), b"within");
                server.take_back(&window).await.unwrap();
                if round == 3 {
                    client.write(b"closed", &token).await.map(drop).unwrap_or_default();
                    // A Write may be complete before the peer has refused it. The connection ends in any
                    // case.
                    client.closed().await.unwrap();
                    assert_eq!(region.to_vec(8 * round..8 * round + 6), b"within");
                }
            }
        });
    });
}

#[test]
fn a_dropped_bind_leaves_the_connection_to_others() {
    each_device(|context| {
        in_tokio(|| async {
            let few = options(|it| it.max_sends = 2);
            let (client, server) =
                connected(&endpoint(&context, Tokio::current()).with_options(few), b"").await;
            let region = server.domain().memory_region(64, Rights::BIND).unwrap();
            for _ in 0..10 {
                let window = server.domain().memory_window().unwrap();
                {
                    // The request is posted.
                    let mut binds = pin!(server.bind(&window, &region, .., Rights::WRITE));
                    drop(look(binds.as_mut()));
                }
                // One that is not posted leaves the window as it is.
                drop(server.bind(&window, &region, .., Rights::WRITE));
                drop(window);
                let window = server.domain().memory_window().unwrap();
                let token = server.bind(&window, &region, .., Rights::WRITE).await.unwrap();
                client.write(b"within", &token).await.unwrap();
                client.send(b"look").await.unwrap();
                server.receive().await.unwrap().unwrap();
                assert_eq!(region.to_vec(..6), b"within");
                server.take_back(&window).await.unwrap();
            }
        });
    });
}

#[test]
fn requests_about_keys_keep_what_they_need_until_they_end() {
    each_device(|context| {
        // On other devices a Send does not wait for a receive for long.
        if !context.attributes().services.contains(&Service::Ud) {
            return;
        }
        in_tokio(|| async {
            let few = options(|it| it.receives = 1);
            let (client, server) =
                connected(&endpoint(&context, Tokio::current()).with_options(few), b"").await;
            server.send(b"takes the receive").await.unwrap();
            let message = client.receive().await.unwrap().unwrap();
            // This one waits for a receive, and the requests behind it wait for its end.
            let mut waits = pin!(server.send(b"waits"));
            assert!(look(waits.as_mut()).is_pending());
            let region = server.domain().memory_region(64, Rights::BIND).unwrap();
            let window = server.domain().memory_window().unwrap();
            assert!(look(pin!(server.bind(&window, &region, .., Rights::WRITE)).as_mut()).is_pending());
            drop(region);
            drop(window);
            let region = server.domain().memory_region(64, Rights::READ).unwrap();
            assert!(look(pin!(server.local_invalidate(&region)).as_mut()).is_pending());
            drop(region);
            drop(message);
            waits.await.unwrap();
            assert_eq!(&client.receive().await.unwrap().unwrap()[..], b"waits");
            server.send(b"goes on").await.unwrap();
            assert_eq!(&client.receive().await.unwrap().unwrap()[..], b"goes on");
        });
    });
}
