//! A thread of the engine panics: calls that wait end with an error. One test, since the engine is the
//! process's.

use adverb_core::engine;
use adverb_core::error::Result;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::transport::TransportFactory;
use adverb_rsocket::{Socket, Vector, find, socket};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long anything may take before the test fails.
const SOON: Duration = Duration::from_secs(20);

static TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];

/// A mistake in the background thread.
struct Mistake;

impl Source for Mistake {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        panic!("a mistake that the test makes");
    }
}

fn open(kind: i32) -> Socket {
    find(socket(libc::AF_INET, kind, 0).unwrap()).unwrap()
}

fn receive(socket: &Socket) -> Result<usize> {
    let mut room = [0u8; 16];
    let parts = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
    // SAFETY: live locals.
    socket.receive(&mut unsafe { Vector::new(&parts) }?, 0).map(|(length, _)| length)
}

#[test]
fn nobody_waits_for_a_thread_that_is_no_more() {
    engine::install(TRANSPORTS);
    let listener = open(libc::SOCK_STREAM);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(4).unwrap();
    let address = listener.local_address().unwrap();
    let client = std::thread::spawn(move || {
        let client = open(libc::SOCK_STREAM);
        client.connect(address).map(|()| client)
    });
    let (accepted, _) = listener.accept().unwrap();
    let client = client.join().unwrap().unwrap();
    let datagrams = open(libc::SOCK_DGRAM);
    datagrams.bind("127.0.0.1:0".parse().unwrap()).unwrap();

    let (sender, outcomes) = mpsc::channel();
    let wait = |work: Box<dyn Fn() -> Result<usize> + Send>| {
        let sender = sender.clone();
        // Twice: the second call finds what the first one was told.
        std::thread::spawn(move || (0..2).try_for_each(|_| sender.send(work())));
    };
    wait(Box::new(move || listener.accept().map(|_| 1)));
    wait(Box::new(move || receive(&datagrams)));
    // The end of a stream, as a peer that has gone leaves it, is an answer, too.
    wait(Box::new(move || {
        receive(&client).and_then(|length| if length == 0 { Err(end()) } else { Ok(length) })
    }));
    let accepted = find(accepted).unwrap();
    wait(Box::new(move || {
        receive(&accepted).and_then(|length| if length == 0 { Err(end()) } else { Ok(length) })
    }));
    engine::engine().unwrap().reactor.set_timer(Duration::ZERO, Arc::new(Mistake)).unwrap();
    for _ in 0..8 {
        outcomes.recv_timeout(SOON).unwrap().unwrap_err();
    }
    let late = open_error();
    assert!(late.is_err());
}

fn end() -> adverb_core::error::Error {
    adverb_core::error::Error::new(libc::ECONNRESET, "the end")
}

/// Nothing new begins.
fn open_error() -> Result<()> {
    let socket = find(socket(libc::AF_INET, libc::SOCK_STREAM, 0)?)?;
    socket.bind("127.0.0.1:0".parse().unwrap())
}
