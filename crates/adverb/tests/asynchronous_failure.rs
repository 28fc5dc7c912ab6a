//! A thread of the engine panics, and no task waits for ever. One test, since the engine is the process's.

#[path = "ends/asynchronous.rs"]
mod ends;

use adverb::Device;
use adverb::asynchronous::Tokio;
use adverb_core::engine;
use adverb_core::reactor::{READABLE, Readiness, Source};
use ends::{SOON, connected, endpoint, look};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;

/// A mistake in the background thread.
struct Mistake;

impl Source for Mistake {
    fn ready(self: Arc<Self>, _: Readiness) {
        panic!("a mistake that the test makes");
    }
}

#[test]
fn shared_receives_end_with_the_engine() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let all: Vec<_> = Device::all()
            .unwrap()
            .iter()
            .map(|device| {
                let endpoint = endpoint(&device.open().unwrap(), Tokio::current());
                let queue = endpoint.shared_receive_queue().unwrap();
                (endpoint.with_shared_receive_queue(&queue), queue)
            })
            .collect();
        let mut connections = Vec::new();
        for (endpoint, queue) in &all {
            connections.push(connected(endpoint, b"").await);
            assert!(look(pin!(queue.receive()).as_mut()).is_pending());
        }
        // A descriptor that is readable for ever: it would be reported again and again.
        let (_closed, readable) = std::io::pipe().map(|(reader, writer)| (drop(writer), reader)).unwrap();
        engine::engine().unwrap().reactor.add(readable.as_raw_fd(), READABLE, Arc::new(Mistake)).unwrap();
        for (_, queue) in &all {
            let outcome = tokio::time::timeout(SOON, queue.receive()).await.expect("it waits for ever");
            assert_eq!(outcome.unwrap_err().errno(), libc::EIO);
        }
    });
}
