//! The end of a runtime: what it keeps, and what becomes of connections that are used still.

#[path = "ends/asynchronous.rs"]
mod ends;

use adverb::asynchronous::{Runtime, Smol, Task, Tokio, Watch};
use ends::{SOON, connected, each_device, endpoint};
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;
use std::{io, thread};

/// A runtime of a program's own: its tasks run while somebody is in `block_on`. smol watches descriptors for
/// it.
struct Own(Arc<Queue>);

/// Tasks that can go on, and the thread that runs them.
#[derive(Default)]
struct Queue {
    ready: Mutex<VecDeque<Arc<OwnTask>>>,
    thread: Mutex<Option<Thread>>,
}

struct OwnTask {
    future: Mutex<Option<Task>>,
    queue: Weak<Queue>,
}

impl Queue {
    fn wake_thread(&self) {
        self.thread.lock().unwrap().iter().for_each(Thread::unpark);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A descriptor that a task watches keeps the task.
        let ready = std::mem::take(&mut *self.ready.lock().unwrap());
        ready.iter().for_each(|task| drop(task.future.lock().unwrap().take()));
    }
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        self.wake_thread();
    }
}

impl Wake for OwnTask {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.ready.lock().unwrap().push_back(self);
            queue.wake_thread();
        }
    }
}

impl Own {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        *self.0.thread.lock().unwrap() = Some(thread::current());
        let waker = Waker::from(self.0.clone());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                return output;
            }
            loop {
                let Some(task) = self.0.ready.lock().unwrap().pop_front() else { break };
                let waker = Waker::from(task.clone());
                let mut place = task.future.lock().unwrap();
                let context = &mut std::task::Context::from_waker(&waker);
                if place.as_mut().is_some_and(|future| future.as_mut().poll(context).is_ready()) {
                    *place = None;
                }
            }
            thread::park_timeout(SOON);
        }
    }
}

impl Runtime for Own {
    fn watch(&self, descriptor: OwnedFd) -> io::Result<Box<dyn Watch>> {
        Smol.watch(descriptor)
    }

    fn spawn(&self, task: Task) {
        let queue = Arc::downgrade(&self.0);
        Arc::new(OwnTask { future: Mutex::new(Some(task)), queue }).wake();
    }
}

#[test]
fn a_runtime_of_the_programs_own_is_dropped_with_what_uses_it() {
    each_device(|context| {
        let queue = Arc::new(Queue::default());
        let kept = Arc::downgrade(&queue);
        let own = Own(queue.clone());
        let endpoint = endpoint(&context, Own(queue));
        own.block_on(async {
            let (client, server) = connected(&endpoint, b"").await;
            client.send(b"hello").await.unwrap();
            assert_eq!(&server.receive().await.unwrap().unwrap()[..], b"hello");
        });
        // The tasks of both connections lie in the queue, and nobody runs them any more.
        drop(endpoint);
        assert!(kept.upgrade().is_some_and(|queue| !queue.ready.lock().unwrap().is_empty()));
        drop(own);
        // The thread of smol may be waking a task at this moment, and has the queue meanwhile.
        let deadline = Instant::now() + SOON;
        while kept.upgrade().is_some() {
            assert!(Instant::now() < deadline, "something keeps the runtime");
            thread::yield_now();
        }
    });
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn operations_end_with_the_runtime_of_their_connection() {
    each_device(|context| {
        let (first, second) = (tokio(), tokio());
        let (client, server) =
            first.block_on(async { connected(&endpoint(&context, Tokio::current()), b"").await });
        let ended = |error: adverb::Error| {
            assert!(error.to_string().contains("the runtime has ended"), "{error}");
            assert_eq!(error.errno(), libc::ECANCELED);
        };
        second.block_on(async {
            // One waits already, and others come later.
            let mut waits = pin!(client.receive());
            assert!(is_pending(waits.as_mut()).await);
            first.shutdown_background();
            ended(tokio::time::timeout(SOON, waits).await.expect("nobody has woken it").unwrap_err());
            ended(client.send(b"into the void").await.unwrap_err());
            ended(server.receive().await.unwrap_err());
            assert!(tokio::time::timeout(SOON, client.closed()).await.expect("nobody has woken it").is_err());
        });
    });
}

/// Whether a future waits, after a look of this task.
async fn is_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
