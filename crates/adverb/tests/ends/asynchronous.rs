//! Async ends in one process, for tests.

#![allow(dead_code, reason = "each test uses a part")]

use adverb::asynchronous::{AsyncConnection, AsyncEndpoint, AsyncListener, AsyncOptions, Runtime};
use adverb::{Context, Device};
use std::future::Future;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long anything may take before the test fails.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Runs a test in tokio: with one thread, and with two.
pub(crate) fn in_tokio<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let time = |future| async { tokio::time::timeout(SOON, future).await.expect("the test takes too long") };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { time(test()).await });
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    threads.block_on(async { time(test()).await });
}

pub(crate) fn each_device(test: impl Fn(Context)) {
    Device::all().unwrap().iter().for_each(|device| test(device.open().unwrap()));
}

pub(crate) fn endpoint(context: &Context, runtime: impl Runtime) -> AsyncEndpoint {
    AsyncEndpoint::new(&context.protection_domain().unwrap(), runtime)
}

pub(crate) fn listen(endpoint: &AsyncEndpoint) -> AsyncListener {
    endpoint.listen(([127, 0, 0, 1], 0).into(), 16).unwrap()
}

/// Both ends of a connection: the client's, and the server's, which says `private_data`.
pub(crate) async fn connected(
    endpoint: &AsyncEndpoint,
    private_data: &[u8],
) -> (AsyncConnection, AsyncConnection) {
    let mut listener = listen(endpoint);
    let address = listener.local_address();
    let server = async { listener.accept().await.unwrap().accept(private_data).await.unwrap() };
    let (client, server) = tokio::join!(endpoint.connect(address, b"hello"), server);
    (client.unwrap(), server)
}

pub(crate) fn options(change: impl FnOnce(&mut AsyncOptions)) -> AsyncOptions {
    let mut options = AsyncOptions::default();
    change(&mut options);
    options
}

/// One look at a future, by a task that is never woken.
pub(crate) fn look<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(Waker::noop()))
}
