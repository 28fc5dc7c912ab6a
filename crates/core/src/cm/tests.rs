//! Tests of the generic part's promises, which hold for any transport: states, errors, backlog, channels,
//! acknowledgement.

use super::*;
use crate::conformance::fixture::{
    Pair, Shape, TEST_TIMEOUT, expect, listener, parameters, request, resolved, resolved_identifier,
};
use crate::device::Device;
use crate::error::Error;
use crate::null::tests::site;
use crate::qp::{Service, State};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn calls_in_the_wrong_state() {
    let site = site();
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    assert_eq!(id.state(), IdentifierState::Idle);
    let peer = site.at(9);
    for result in [
        id.resolve_route(SECOND),
        id.connect(None),
        id.accept(None),
        id.reject(&[]),
        id.disconnect(),
        id.notify(),
        id.establish(),
        id.join_multicast(address("239.0.0.1:0").ip(), 0),
        id.set_path(),
        id.queue_pair_attributes(State::Init).map(drop),
    ] {
        assert_eq!(errno(result), libc::EINVAL);
    }
    id.resolve_address(None, peer, SECOND).unwrap();
    assert_eq!(id.state(), IdentifierState::AddressResolved);
    assert_eq!(id.peer_address(), Some(peer));
    assert_ne!(id.local_address().unwrap().port(), 0);
    for result in [
        id.bind(site.at(0)),
        id.listen(1),
        id.resolve_address(None, peer, SECOND),
        id.connect(None),
        id.set_family_only(true),
    ] {
        assert_eq!(errno(result), libc::EINVAL);
    }
    expect(&channel, EventKind::AddressResolved);
    id.resolve_route(SECOND).unwrap();
    assert_eq!(errno(id.resolve_route(SECOND)), libc::EINVAL);
    assert_eq!(id.state(), IdentifierState::RouteResolved);
    // Without a queue pair there is nothing to connect.
    assert_eq!(errno(id.connect(Some(&parameters()))), libc::EINVAL);
    id.destroy();
    assert_eq!(id.state(), IdentifierState::Destroying);
    assert_eq!(errno(id.bind(site.at(0))), libc::EINVAL);
    assert!(channel.try_get().unwrap().is_none(), "events of a destroyed identifier");
}

#[test]
fn addresses_that_do_not_go_together() {
    let _ = site();
    let channel = EventChannel::new().unwrap();
    let new = || Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    let (v4, v6) = (address("127.0.0.1:7"), address("[::1]:7"));
    assert_eq!(errno(new().resolve_address(Some(v4), v6, SECOND)), libc::EINVAL);
    let bound = new();
    bound.bind(v4_any()).unwrap();
    assert_eq!(errno(bound.resolve_address(None, v6, SECOND)), libc::EINVAL);
    let port = bound.local_address().unwrap().port();
    // The address that was bound counts, and its port stays.
    bound.resolve_address(None, v4, SECOND).unwrap();
    assert_eq!(bound.local_address(), Some(address(&format!("127.0.0.1:{port}"))));
    expect(&channel, EventKind::AddressResolved);
    assert_eq!(errno(new().bind(address("[fe80::1]:0"))), libc::EINVAL);
    assert_eq!(errno(new().resolve_address(None, address("[fe80::1]:7"), SECOND)), libc::EINVAL);
    assert_eq!(errno(new().bind(address("192.0.2.1:0"))), libc::EADDRNOTAVAIL);
    // A program that resolves the unspecified address gets this host.
    let anywhere = new();
    anywhere.resolve_address(None, address("0.0.0.0:7"), SECOND).unwrap();
    assert_eq!(anywhere.peer_address(), Some(v4));
}

fn v4_any() -> SocketAddr {
    address("0.0.0.0:0")
}

#[test]
fn a_failed_resolution_can_be_repeated() {
    let _ = site();
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    id.bind(address("127.0.0.1:0")).unwrap();
    // From the loopback there is no way to a documentation address.
    let failed = id.resolve_address(None, address("192.0.2.1:7"), SECOND);
    assert_ne!(errno(failed), 0);
    assert_eq!(id.state(), IdentifierState::AddressBound);
    id.resolve_address(None, address("127.0.0.1:7"), SECOND).unwrap();
    expect(&channel, EventKind::AddressResolved);
}

#[test]
fn the_backlog_is_a_limit() {
    let site = site();
    let channel = EventChannel::new().unwrap();
    let listener = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    listener.bind(site.at(0)).unwrap();
    listener.listen(2).unwrap();
    let peer = listener.local_address().unwrap();
    let connect = || {
        let client = resolved(&site, Shape::default(), peer);
        client.id.connect(None).unwrap();
        client
    };
    let waiting = [connect(), connect()];
    assert!(waiting.iter().all(|client| client.channel.try_get().unwrap().is_none()));
    connect().expect(EventKind::Rejected);
    // A request that was fetched makes room, though it is not answered yet.
    let first = expect(&channel, EventKind::ConnectRequest);
    let third = connect();
    assert!(third.channel.try_get().unwrap().is_none());
    connect().expect(EventKind::Rejected);
    drop(first);
    waiting[0].expect(EventKind::Rejected);
}

#[test]
fn destroying_waits_for_the_acknowledgement() {
    let site = site();
    let (listener, channel) = listener(&site);
    let client = resolved(&site, Shape::default(), listener.local_address().unwrap());
    client.id.connect(None).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    let destroyed = AtomicBool::new(false);
    let (started, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.send(()).unwrap();
            listener.destroy();
            destroyed.store(true, Ordering::SeqCst);
        });
        wait.recv().unwrap();
        while listener.state() != IdentifierState::Destroying {
            std::thread::yield_now();
        }
        // The new identifier does not need its listener any more.
        let server = event.identifier.clone();
        server.reject(b"bye").unwrap();
        assert!(!destroyed.load(Ordering::SeqCst));
        drop(event);
    });
    assert!(destroyed.load(Ordering::SeqCst));
    client.expect(EventKind::Rejected);
}

#[test]
fn migration_takes_waiting_events_along() {
    let site = site();
    let old = EventChannel::new().unwrap();
    let [moving, staying] = [0; 2].map(|_| Identifier::new(Some(&old), PortSpace::Tcp).unwrap());
    for id in [&moving, &staying] {
        id.resolve_address(None, site.at(7), SECOND).unwrap();
    }
    moving.resolve_route(SECOND).unwrap();
    let new = EventChannel::new().unwrap();
    moving.migrate(Some(&new)).unwrap();
    let event = expect(&old, EventKind::AddressResolved);
    assert!(Arc::ptr_eq(&event.identifier, &staying));
    assert!(old.try_get().unwrap().is_none());
    expect(&new, EventKind::AddressResolved);
    let event = expect(&new, EventKind::RouteResolved);
    assert!(Arc::ptr_eq(&event.identifier, &moving));
    drop(event);
    assert!(!moving.is_synchronous());
    moving.migrate(None).unwrap();
    assert!(moving.is_synchronous());
    assert_eq!(errno(staying.wait_event()), libc::EINVAL);
}

#[test]
fn accepting_without_parameters_takes_what_was_asked() {
    let site = site();
    let (listener, channel) = listener(&site);
    let client = resolved(&site, Shape::default(), listener.local_address().unwrap());
    let mut asked = parameters();
    asked.connection.responder_resources = 3;
    asked.connection.initiator_depth = MAXIMUM;
    client.id.connect(Some(&asked)).unwrap();
    let server = request(&site, Shape::default(), &channel);
    server.id.accept(None).unwrap();
    server.expect(EventKind::Established);
    let event = client.expect(EventKind::Established);
    let most = site.open().attributes().max_qp_rd_atom as u8;
    assert_eq!((event.parameters.responder_resources, event.parameters.initiator_depth), (3, most));
    assert_eq!(event.parameters.retry_count, 7);
    assert_eq!(errno(server.id.accept(None)), libc::EINVAL);
}

#[test]
fn options_have_their_time() {
    let site = site();
    let channel = EventChannel::new().unwrap();
    let [first, second, third] = [0; 3].map(|_| Identifier::new(Some(&channel), PortSpace::Tcp).unwrap());
    for id in [&first, &second] {
        id.set_reuse_address(true).unwrap();
        id.set_type_of_service(0x20).unwrap();
        id.set_family_only(true).unwrap();
    }
    first.bind(site.at(0)).unwrap();
    let shared = first.local_address().unwrap();
    second.bind(shared).unwrap();
    assert_eq!(errno(third.bind(shared)), libc::EADDRINUSE);
    assert_eq!(errno(first.set_reuse_address(false)), libc::EINVAL);
    first.set_ack_timeout(14).unwrap();
    assert_eq!(first.ack_timeout(), Some(14));
    assert_eq!(errno(first.set_ack_timeout(32)), libc::EINVAL);
    let datagrams = Identifier::new(Some(&channel), PortSpace::Udp).unwrap();
    assert_eq!(errno(datagrams.set_ack_timeout(14)), libc::EINVAL);
    third.resolve_address(None, site.at(7), SECOND).unwrap();
    third.set_path().unwrap();
    assert_eq!(third.state(), IdentifierState::RouteResolved);
    expect(&channel, EventKind::AddressResolved);
    expect(&channel, EventKind::RouteResolved);
    assert_eq!(errno(third.set_path()), libc::EINVAL);
}

#[test]
fn datagrams_where_there_are_none() {
    let site = site();
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), PortSpace::Udp).unwrap();
    assert_eq!(id.service(), Service::Ud);
    id.bind(site.at(0)).unwrap();
    assert_ne!(id.local_address().unwrap().port(), 0);
    assert_eq!(errno(id.listen(1)), libc::ENOSYS);
    // No device is fixed yet.
    assert_eq!(errno(id.join_multicast(address("239.0.0.1:0").ip(), 0)), libc::EINVAL);
    id.resolve_address(None, site.at(7), SECOND).unwrap();
    assert_eq!(errno(id.join_multicast(address("239.0.0.1:0").ip(), 0)), libc::ENOSYS);
    id.resolve_route(SECOND).unwrap();
    assert_eq!(errno(id.connect(None)), libc::ENOSYS);
    let side = Pair::connect(&site).client;
    let fresh = Identifier::new(Some(&channel), PortSpace::Udp).unwrap();
    fresh.bind(site.at(0)).unwrap();
    assert_eq!(errno(fresh.attach_queue_pair(&side.queue_pair)), libc::EINVAL);
    assert_eq!(errno(Identifier::with_service(None, PortSpace::Tcp, Service::Ud)), libc::EINVAL);
    assert!(Identifier::with_service(None, PortSpace::Ib, Service::Ud).is_ok());
}

#[test]
fn listening_without_binding() {
    let site = site();
    let channel = EventChannel::new().unwrap();
    let idle = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    idle.listen(-1).unwrap();
    let port = idle.local_address().unwrap().port();
    assert_eq!(idle.state(), IdentifierState::Listen);
    assert_eq!(errno(idle.listen(1)), libc::EINVAL);
    let (client, client_channel) = resolved_identifier(site.at(port));
    assert_eq!(client.peer_address(), Some(site.at(port)));
    drop(client);
    assert!(client_channel.try_get().unwrap().is_none());
}

#[test]
fn the_outcome_of_an_event() {
    let site = site();
    let (listener, channel) = listener(&site);
    let client = resolved(&site, Shape::default(), listener.local_address().unwrap());
    client.id.connect(None).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    assert!(event.outcome().is_ok());
    event.identifier.destroy();
    let event = client.expect(EventKind::Rejected);
    assert_eq!(errno(event.outcome()), libc::ECONNREFUSED);
    assert!(event.outcome().unwrap_err().to_string().contains("RDMA_CM_EVENT_REJECTED"));
}

#[test]
fn several_devices() {
    let site = site();
    let devices = Device::all().unwrap();
    let names: Vec<_> = devices.iter().map(|device| device.name().to_owned()).collect();
    assert_eq!(names[..2], ["null0", "null1"]);
    let channel = EventChannel::new().unwrap();
    let new = || Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    // PRACTICE-DEVICES-5: a loopback or wildcard address fixes no device, and is held on all of them.
    let bound = new();
    bound.bind(site.at(0)).unwrap();
    assert!(bound.device().is_none());
    let everywhere = new();
    everywhere.bind(v4_any()).unwrap();
    assert!(everywhere.device().is_none());
    let taken = everywhere.local_address().unwrap().port();
    for device in &devices {
        let connections = device.transport().connections();
        let reserved = connections.reserve(site.at(taken), AddressOptions::default());
        assert_eq!(errno(reserved), libc::EADDRNOTAVAIL, "{}", device.name());
    }
    everywhere.listen(1).unwrap();
    assert_eq!(everywhere.lock().listeners.len(), devices.len());
    // A port that is taken on one of them is no port for a wildcard address. On the others nobody has it:
    // tests beside this one take ports, too.
    let second = devices[1].transport().connections();
    let end = Instant::now() + TEST_TIMEOUT;
    let held = loop {
        let free = new();
        free.bind(v4_any()).unwrap();
        let port = free.local_address().unwrap().port();
        free.destroy();
        match second.reserve(site.at(port), AddressOptions::default()) {
            Ok(held) => break held,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    let unlucky = new();
    let conflict = SocketAddr::new(v4_any().ip(), held.local().port());
    assert_eq!(errno(unlucky.bind(conflict)), libc::EADDRNOTAVAIL);
    drop(held);
    // A child that a test beside this one has may keep the port for a moment.
    while let Err(error) = unlucky.bind(conflict) {
        assert!(Instant::now() < end, "{error}");
        std::thread::yield_now();
    }
    // Resolving a peer fixes the device, and lets the port of the others go.
    unlucky.resolve_address(None, site.at(7), SECOND).unwrap();
    assert_eq!(unlucky.device().unwrap().name(), "null0");
    assert!(second.reserve(site.at(conflict.port()), AddressOptions::default()).is_ok());
}
