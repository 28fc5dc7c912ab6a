//! The async API, on tokio and on smol, on each device.

#[path = "ends/asynchronous.rs"]
mod ends;
#[path = "ends/ping_pong.rs"]
mod ping_pong;

use adverb::asynchronous::{
    AsyncConnection, AsyncDatagramQueuePair, AsyncEndpoint, AsyncListener, AsyncSharedReceiveQueue,
    ByteStream, Smol, Tokio,
};
use adverb::{AddressHandle, Buffer, ConnectError, End, MemoryRegion, MemoryWindow, RemoteMemory, Rights};
use ends::{connected, each_device, endpoint, in_tokio, listen, look, options};
use ping_pong::{echo, ping_pong};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn messages_there_and_back() {
    each_device(|context| {
        in_tokio(|| async {
            for spin in [Duration::ZERO, Duration::from_micros(50)] {
                let endpoint =
                    endpoint(&context, Tokio::current()).with_options(options(|it| it.spin = spin));
                let (client, server) = connected(&endpoint, b"").await;
                let served = tokio::spawn(async move { echo(&server).await });
                ping_pong(&client, 200).await;
                client.disconnect().unwrap();
                assert!(client.receive().await.unwrap().is_none());
                assert_eq!(client.closed().await.unwrap(), End::Here);
                served.await.unwrap();
            }
        });
    });
}

#[test]
fn messages_on_smol() {
    each_device(|context| {
        smol::block_on(async {
            let endpoint = endpoint(&context, Smol);
            let mut listener = listen(&endpoint);
            let address = listener.local_address();
            let served = smol::spawn(async move {
                let server = listener.accept().await.unwrap().accept(&[]).await.unwrap();
                echo(&server).await;
            });
            let client = endpoint.connect(address, &[]).await.unwrap();
            ping_pong(&client, 200).await;
            drop(client);
            served.await;
        });
    });
}

#[test]
fn memory_of_the_peer() {
    each_device(|context| {
        in_tokio(|| async {
            let endpoint = endpoint(&context, Tokio::current());
            let rights = Rights::READ | Rights::WRITE | Rights::ATOMIC;
            let region = endpoint.domain().memory_region(4096, rights).unwrap();
            let (client, _server) = connected(&endpoint, &region.remote().to_bytes()).await;
            let there = RemoteMemory::from_bytes(client.private_data()).unwrap();
            let mut buffer = client.buffer(1000).unwrap();
            buffer.fill(7);
            let buffer = client.write(buffer, &there.slice(64..).unwrap()).await.unwrap().unwrap();
            client.recycle(buffer);
            let mut back = client.buffer(1000).unwrap();
            assert_eq!(back[999], 7, "the buffer that was recycled");
            back.fill(0);
            let back = client.read(back, &there.slice(64..).unwrap()).await.unwrap();
            assert!(back.iter().all(|byte| *byte == 7));
            for old in 0..10 {
                assert_eq!(client.fetch_add(&there, 1).await.unwrap(), old);
            }
            assert_eq!(client.compare_swap(&there, 10, 100).await.unwrap(), 10);
            assert_eq!(client.compare_swap(&there, 10, 100).await.unwrap(), 100);
        });
    });
}

#[test]
fn a_future_that_is_dropped_leaves_everything_to_others() {
    each_device(|context| {
        in_tokio(|| async {
            let endpoint = endpoint(&context, Tokio::current()).with_options(options(|it| it.max_sends = 2));
            let (client, server) = connected(&endpoint, b"").await;
            // One that waits for a message, though none comes to it.
            {
                let mut waiting = pin!(client.receive());
                assert!(look(waiting.as_mut()).is_pending());
                server.send(b"for the next").await.unwrap();
            }
            assert_eq!(&client.receive().await.unwrap().unwrap()[..], b"for the next");
            // One that was posted: its buffer comes back.
            let mut buffer = client.buffer(100).unwrap();
            buffer.fill(9);
            {
                let mut sending = pin!(client.send(buffer));
                if let Poll::Ready(sent) = look(sending.as_mut()) {
                    client.recycle(sent.unwrap().unwrap());
                }
            }
            assert!(server.receive().await.unwrap().unwrap().iter().all(|byte| *byte == 9));
            // The completion has come by then.
            client.send(b"next").await.unwrap();
            server.receive().await.unwrap().unwrap();
            assert!(client.buffer(100).unwrap().iter().all(|byte| *byte == 9), "the buffer is lost");
            // Nobody looks at this one for a while, and nobody waits for it.
            let mut idle = pin!(client.receive());
            assert!(look(idle.as_mut()).is_pending());
            let served = async { echo(&server).await };
            let asks = async {
                client.send(b"one").await.unwrap();
                client.send(b"two").await.unwrap();
                assert_eq!(&idle.await.unwrap().unwrap()[..], b"one");
                assert_eq!(&client.receive().await.unwrap().unwrap()[..], b"two");
                client.disconnect().unwrap();
            };
            tokio::join!(served, asks);
        });
    });
}

#[test]
fn more_requests_than_places_wait_for_their_turn() {
    each_device(|context| {
        in_tokio(|| async {
            let few = options(|it| (it.max_sends, it.receives) = (3, 4));
            let endpoint = endpoint(&context, Tokio::current()).with_options(few);
            let (client, server) = connected(&endpoint, b"").await;
            let client = Arc::new(client);
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..200u32 {
                let client = client.clone();
                tasks.spawn(async move {
                    // Some give up, wherever they are.
                    let bytes = number.to_be_bytes();
                    let sent = client.send(&bytes);
                    match number % 7 {
                        0 => drop(tokio::time::timeout(Duration::from_micros(50), sent).await),
                        _ => drop(sent.await.unwrap()),
                    }
                });
            }
            let mut seen = vec![0; 200];
            let received = async {
                while seen.iter().enumerate().any(|(number, times)| number % 7 != 0 && *times == 0) {
                    let message = server.receive().await.unwrap().expect("a message");
                    seen[u32::from_be_bytes(message[..].try_into().unwrap()) as usize] += 1;
                }
            };
            tokio::join!(received, async {
                while tasks.join_next().await.is_some_and(|ended| ended.is_ok()) {}
            });
            assert!(seen.iter().all(|times| *times <= 1), "{seen:?}");
        });
    });
}

#[test]
fn all_who_wait_learn_of_the_end() {
    each_device(|context| {
        in_tokio(|| async {
            let endpoint = endpoint(&context, Tokio::current());
            let (client, server) = connected(&endpoint, b"").await;
            let client = Arc::new(client);
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..5 {
                let client = client.clone();
                tasks.spawn(async move { client.receive().await.unwrap().is_none() });
            }
            tokio::task::yield_now().await;
            drop(server);
            while let Some(ended) = tasks.join_next().await {
                assert!(ended.unwrap());
            }
            assert_eq!(client.closed().await.unwrap(), End::Peer);
            assert!(client.send(b"nobody").await.is_err());
        });
    });
}

#[test]
fn nobody_listens_and_nobody_answers() {
    each_device(|context| {
        in_tokio(|| async {
            let endpoint = endpoint(&context, Tokio::current());
            let listener = listen(&endpoint);
            let address = listener.local_address();
            // Nobody accepts: the time that was given is over, and a future that is dropped gives up.
            let short = adverb::ConnectionOptions::new().timeout(Duration::from_millis(20));
            let failed = endpoint.connect_with(address, &short).await.err().unwrap();
            assert!(matches!(&failed, ConnectError::Failed(error) if error.is_timeout()), "{failed}");
            drop(tokio::time::timeout(Duration::from_millis(5), endpoint.connect(address, &[])).await);
            drop(listener);
            let failed = endpoint.connect(address, &[]).await.err().unwrap();
            assert!(matches!(failed, ConnectError::NobodyListens), "{failed}");
        });
    });
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

async fn streams(endpoint: &AsyncEndpoint) -> (ByteStream, ByteStream) {
    let (client, server) = connected(endpoint, b"").await;
    let (client, server) = tokio::join!(ByteStream::open(client), ByteStream::open(server));
    (client.unwrap(), server.unwrap())
}

#[test]
fn streams_carry_all_bytes_both_ways() {
    each_device(|context| {
        in_tokio(|| async {
            for (receives, message_bytes) in [(6, 100), (16, 4096), (64, 1 << 16)] {
                let parts = options(|it| (it.receives, it.message_bytes) = (receives, message_bytes));
                let endpoint = endpoint(&context, Tokio::current()).with_options(parts);
                let (client, server) = streams(&endpoint).await;
                let length = message_bytes * 40 + 17;
                let mut ends = tokio::task::JoinSet::new();
                for stream in [client, server] {
                    let (mut reads, mut writes) = tokio::io::split(stream);
                    let all = bytes(length);
                    ends.spawn(async move {
                        writes.write_all(&all).await.unwrap();
                        writes.shutdown().await.unwrap();
                        assert_eq!(writes.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
                        // Until the other one has read all.
                        tokio::time::sleep(Duration::ZERO).await;
                        drop(writes);
                    });
                    ends.spawn(async move {
                        let mut came = Vec::new();
                        reads.read_to_end(&mut came).await.unwrap();
                        assert!(came == bytes(length), "{} of {length} bytes", came.len());
                    });
                }
                while let Some(ended) = ends.join_next().await {
                    ended.unwrap();
                }
            }
        });
    });
}

#[test]
fn the_end_of_a_stream_is_told_from_a_cut() {
    each_device(|context| {
        in_tokio(|| async {
            let endpoint = endpoint(&context, Tokio::current());
            let (mut client, mut server) = streams(&endpoint).await;
            client.write_all(b"half a word").await.unwrap();
            client.flush().await.unwrap();
            drop(client);
            let mut came = Vec::new();
            let failed = server.read_to_end(&mut came).await.unwrap_err();
            assert_eq!((failed.kind(), &came[..]), (ErrorKind::UnexpectedEof, &b"half a word"[..]));
            // A peer that makes no stream of its connection.
            let (client, server) = connected(&endpoint, b"").await;
            server.send(b"what is this?").await.unwrap();
            assert!(ByteStream::open(client).await.unwrap_err().to_string().contains("no part of a stream"));
            let few = endpoint.clone().with_options(options(|it| it.receives = 5));
            let (client, _server) = connected(&few, b"").await;
            assert!(ByteStream::open(client).await.unwrap_err().to_string().contains("at least 6"));
        });
    });
}

/// Futures go from thread to thread, with what they have borrowed.
#[test]
fn futures_may_be_sent() {
    fn sent<T: Send>(_: &T) {}
    fn shared<T: Send + Sync>() {}
    shared::<(AsyncConnection, AsyncEndpoint, AsyncListener)>();
    shared::<(AsyncDatagramQueuePair, AsyncSharedReceiveQueue)>();
    let _ = |datagrams: &AsyncDatagramQueuePair, way: &AddressHandle, queue: &AsyncSharedReceiveQueue| {
        sent(&datagrams.receive());
        sent(&datagrams.send(b"bytes", way, 1, 2));
        sent(&queue.receive());
    };
    let _ = |connection: &AsyncConnection, window: &MemoryWindow, region: &MemoryRegion| {
        sent(&connection.bind(window, region, .., Rights::READ));
        sent(&connection.local_invalidate(region));
    };
    let _ = |connection: &AsyncConnection, buffer: Buffer, remote: &RemoteMemory| {
        sent(&connection.receive());
        sent(&connection.send(b"bytes"));
        sent(&connection.read(buffer, remote));
        sent(&connection.fetch_add(remote, 1));
        sent(&connection.closed());
    };
}
