//! Two connected ends in one process, for tests.

#![allow(dead_code, reason = "each test uses a part")]

use adverb::{CompletionQueue, Connection, Context, Device, Listener, ProtectionDomain, QueuePairOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(40);

/// One end, whose sends and receives complete on queues of their own.
pub(crate) struct End {
    pub(crate) domain: ProtectionDomain,
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
    pub(crate) connection: Connection,
}

/// What an end is made of before it is connected.
pub(crate) struct Parts {
    pub(crate) domain: ProtectionDomain,
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
    pub(crate) options: QueuePairOptions,
}

pub(crate) fn each_device(test: impl Fn(&Device)) {
    let devices = Device::all().unwrap();
    assert!(!devices.is_empty());
    devices.iter().for_each(test);
}

pub(crate) fn parts(context: &Context) -> Parts {
    let domain = context.protection_domain().unwrap();
    let (sends, receives) = (context.completion_queue(64).unwrap(), context.completion_queue(64).unwrap());
    let options = QueuePairOptions { receive_queue: receives.clone(), ..QueuePairOptions::new(&sends) };
    Parts { domain, sends, receives, options }
}

pub(crate) fn listener(context: &Context) -> (Listener, SocketAddr) {
    let listener = Listener::bind(context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    (listener, address)
}

/// A client and a server; `change` sets up the options of both.
pub(crate) fn pair_with(device: &Device, change: impl Fn(&mut Parts) + Sync) -> (End, End) {
    let context = device.open().unwrap();
    let (listener, address) = listener(&context);
    let made = || {
        let mut parts = parts(&context);
        change(&mut parts);
        let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
        (parts, queue_pair)
    };
    let end = |parts: Parts, connection| End {
        domain: parts.domain,
        sends: parts.sends,
        receives: parts.receives,
        connection,
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (parts, queue_pair) = made();
            end(parts, queue_pair.connect(address, &[], SOON).unwrap())
        });
        let request = listener.accept(SOON).unwrap();
        let (parts, queue_pair) = made();
        let server = end(parts, request.accept(queue_pair, &[], SOON).unwrap());
        (client.join().unwrap(), server)
    })
}

pub(crate) fn pair(device: &Device) -> (End, End) {
    pair_with(device, |_| ())
}
