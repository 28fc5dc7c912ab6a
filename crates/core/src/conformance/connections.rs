//! Connection management: events, their order and content.

use super::fixture::{
    Pair, Shape, Side, Site, TEST_TIMEOUT, expect, listener, parameters, request, resolved,
    resolved_identifier,
};
use crate::cm::{
    AddressFlags, AddressInfo, ConnectionParameters, EventChannel, EventKind, Identifier, IdentifierState,
    Parameters, PortSpace,
};
use crate::memory::Access;
use crate::qp::{Service, State};
use crate::request::{Opcode, Status};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::fixture::Memory;

fn with_data(data: &[u8]) -> Parameters<'_> {
    Parameters { private_data: data, ..parameters() }
}

/// Private data may come padded with zeros.
#[track_caller]
fn assert_data(found: &[u8], sent: &[u8]) {
    assert!(found.starts_with(sent), "{found:02x?} instead of {sent:02x?}");
    assert!(found[sent.len()..].iter().all(|byte| *byte == 0), "{found:02x?}");
}

/// The whole way, with private data both ways, and the end by the active side.
pub fn connects_and_disconnects(site: &Site) {
    let (listener, channel) = listener(site);
    listener.set_cookie(77);
    let address = listener.local_address().unwrap();
    let client = resolved(site, Shape::default(), address);
    assert_eq!(client.id.peer_address(), Some(address));
    assert_eq!(client.id.local_address().unwrap().ip(), site.address);
    client.id.connect(Some(&with_data(b"may I?"))).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    assert_eq!(event.status, 0);
    assert_eq!(event.listener.as_ref().unwrap().cookie(), 77);
    assert_data(&event.private_data, b"may I?");
    let server = Side::new(site, Shape::default(), event.identifier.clone(), channel.clone(), true);
    drop(event);
    assert_eq!(server.id.local_address(), Some(address));
    assert_eq!(server.id.peer_address().unwrap().ip(), site.address);
    assert_eq!(server.id.peer_address().unwrap().port(), client.id.local_address().unwrap().port());
    let memory = Memory::new(&server.domain, 8, Access::LOCAL_WRITE);
    for wr_id in 0..4 {
        server.post_receive(wr_id, &[memory.all()]);
    }
    server.id.accept(Some(&with_data(b"you may"))).unwrap();
    let event = server.expect(EventKind::Established);
    assert_eq!(event.status, 0);
    assert!(std::sync::Arc::ptr_eq(&event.identifier, &server.id));
    let event = client.expect(EventKind::Established);
    assert_eq!(event.status, 0);
    assert_data(&event.private_data, b"you may");
    assert_eq!(server.queue_pair.state(), State::Rts);
    assert_eq!(client.queue_pair.state(), State::Rts);
    client.id.disconnect().unwrap();
    client.ended();
    server.ended();
    assert_eq!(client.id.state(), IdentifierState::Disconnect);
    assert_eq!(server.id.state(), IdentifierState::Disconnect);
    for wr_id in 0..4 {
        let flushed = server.received();
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
    client.id.disconnect().unwrap();
    // It ends once. Half a second later, its number may be used again.
    let mut later = std::iter::from_fn(|| client.channel.try_get().unwrap());
    assert!(later.next().is_none_or(|event| event.kind == EventKind::TimewaitExit));
    assert!(later.next().is_none());
}

/// The passive side ends it.
pub fn the_passive_side_disconnects(site: &Site) {
    let pair = Pair::connect(site);
    pair.server.id.disconnect().unwrap();
    pair.ended();
}

/// Both end it at once: each hears of it once.
pub fn both_sides_disconnect(site: &Site) {
    let pair = Pair::connect(site);
    std::thread::scope(|scope| {
        for side in [&pair.client, &pair.server] {
            scope.spawn(|| side.id.disconnect().unwrap());
        }
    });
    pair.ended();
    for side in [&pair.client, &pair.server] {
        if let Some(event) = side.channel.try_get().unwrap() {
            assert_ne!(event.kind, EventKind::Disconnected);
        }
    }
}

/// The end is not reported while what came before it waits to be polled; not for long, so one of a few tries
/// must show it.
pub fn the_end_waits_for_polls(site: &Site) {
    let waited = (0..20).filter(|_| {
        let pair = Pair::connect(site);
        let memory = Memory::open(&pair.server.domain, 8);
        let from = Memory::new(&pair.client.domain, 8, Access::LOCAL_WRITE);
        pair.server.post_receive(1, &[memory.all()]);
        pair.client.post(2, Opcode::Send, &[from.all()], (0, 0));
        pair.client.sent_well(2);
        pair.client.id.disconnect().unwrap();
        while pair.server.id.state() != IdentifierState::Disconnect {
            std::thread::yield_now();
        }
        let event = pair.server.channel.try_get().unwrap();
        pair.server.received_well(1);
        match &event {
            Some(event) => assert_eq!(event.kind, EventKind::Disconnected),
            None => drop(pair.server.expect(EventKind::Disconnected)),
        }
        event.is_none()
    });
    assert_ne!(waited.count(), 0);
}

/// A message that was posted before the disconnect still arrives.
pub fn a_message_posted_before_a_disconnect_arrives(site: &Site) {
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, 5000), Memory::open(&pair.server.domain, 5000));
    let sent = from.fill(1);
    pair.server.post_receive(1, &[to.all()]);
    pair.client.post(1, Opcode::Send, &[from.all()], (0, 0));
    pair.client.id.disconnect().unwrap();
    pair.server.received_well(1);
    assert_eq!(to.bytes(), sent);
    pair.ended();
}

/// One side's abilities are the limits of the other side's requests.
pub fn negotiates_depths(site: &Site) {
    let (listener, channel) = listener(site);
    let client = resolved(site, Shape::default(), listener.local_address().unwrap());
    let depths = |responder_resources, initiator_depth| Parameters {
        connection: ConnectionParameters {
            responder_resources,
            initiator_depth,
            ..ConnectionParameters::default()
        },
        ..Parameters::default()
    };
    let too_deep = u8::try_from(site.open().attributes().max_qp_rd_atom + 1);
    if let Ok(too_deep) = too_deep.map_err(drop).and_then(|deep| if deep < 255 { Ok(deep) } else { Err(()) })
    {
        assert_eq!(client.id.connect(Some(&depths(too_deep, 1))).unwrap_err().errno(), libc::EINVAL);
    }
    client.id.connect(Some(&depths(3, 5))).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    assert_eq!((event.parameters.responder_resources, event.parameters.initiator_depth), (5, 3));
    let server = Side::new(site, Shape::default(), event.identifier.clone(), channel.clone(), true);
    server.id.accept(Some(&depths(2, 1))).unwrap();
    server.expect(EventKind::Established);
    let event = client.expect(EventKind::Established);
    assert!((1..=2).contains(&event.parameters.initiator_depth), "{event:?}");
    assert!(event.parameters.responder_resources <= 1, "{event:?}");
    // More reads than the peer takes at once: they wait their turn.
    let (here, there) = (Memory::open(&client.domain, 64), Memory::open(&server.domain, 64));
    let bytes = there.fill(5);
    for wr_id in 0..8 {
        let at = 8 * wr_id as usize;
        client.post(wr_id, Opcode::Read, &[here.sge(at, 8)], (there.address(at), there.region.key()));
    }
    for wr_id in 0..8 {
        client.sent_well(wr_id);
    }
    assert_eq!(here.bytes(), bytes);
}

/// Private data of every length up to the limit passes; longer data is refused and changes nothing.
pub fn private_data_has_limits(site: &Site) {
    let context = site.open();
    let limits = context.transport().connections().private_data_limits();
    let data: Vec<u8> = (0..=limits.request.max(limits.accept)).map(|n| n as u8 + 1).collect();
    for (length, answer) in [(0, 1), (1, 0), (limits.request, limits.accept)] {
        let (listener, channel) = listener(site);
        let client = resolved(site, Shape::default(), listener.local_address().unwrap());
        let too_long = with_data(&data[..=limits.request]);
        assert_eq!(client.id.connect(Some(&too_long)).unwrap_err().errno(), libc::EINVAL);
        client.id.connect(Some(&with_data(&data[..length]))).unwrap();
        let event = expect(&channel, EventKind::ConnectRequest);
        assert_data(&event.private_data, &data[..length]);
        let server = Side::new(site, Shape::default(), event.identifier.clone(), channel.clone(), true);
        let too_long = with_data(&data[..=limits.accept]);
        assert_eq!(server.id.accept(Some(&too_long)).unwrap_err().errno(), libc::EINVAL);
        server.id.accept(Some(&with_data(&data[..answer]))).unwrap();
        server.expect(EventKind::Established);
        assert_data(&client.expect(EventKind::Established).private_data, &data[..answer]);
    }
}

/// A refusal with a reason.
pub fn rejects_with_private_data(site: &Site) {
    let (listener, channel) = listener(site);
    let client = resolved(site, Shape::default(), listener.local_address().unwrap());
    let memory = Memory::open(&client.domain, 8);
    client.post_receive(3, &[memory.all()]);
    client.id.connect(None).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    event.identifier.reject(b"not today").unwrap();
    assert_eq!(event.identifier.reject(b"").unwrap_err().errno(), libc::EINVAL);
    let event = client.expect(EventKind::Rejected);
    assert_ne!(event.status, 0);
    assert_data(&event.private_data, b"not today");
    assert_eq!(event.outcome().unwrap_err().errno(), libc::ECONNREFUSED);
    assert_eq!(client.queue_pair.state(), State::Error);
    assert_eq!(client.received().status, Status::Flushed);
}

/// The port is taken, but no process listens.
pub fn nobody_listens(site: &Site) {
    let channel = EventChannel::new().unwrap();
    let silent = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    silent.bind(site.at(0)).unwrap();
    let client = resolved(site, Shape::default(), silent.local_address().unwrap());
    client.id.connect(None).unwrap();
    let event = client.expect(EventKind::Rejected);
    assert_eq!(event.outcome().unwrap_err().errno(), libc::ECONNREFUSED);
    assert_ne!(event.status, 0);
}

/// A request whose identifier is destroyed, and one that was never fetched.
pub fn requests_without_an_answer_are_refused(site: &Site) {
    let (listener, channel) = listener(site);
    let client = resolved(site, Shape::default(), listener.local_address().unwrap());
    client.id.connect(None).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    event.identifier.destroy();
    drop(event);
    assert_ne!(client.expect(EventKind::Rejected).status, 0);
    let client = resolved(site, Shape::default(), listener.local_address().unwrap());
    client.id.connect(None).unwrap();
    assert!(channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap());
    listener.destroy();
    assert!(channel.try_get().unwrap().is_none());
    assert_ne!(client.expect(EventKind::Rejected).status, 0);
}

/// The initiator is gone when its request is accepted.
pub fn an_initiator_gives_up(site: &Site) {
    let (listener, channel) = listener(site);
    let client = resolved(site, Shape::default(), listener.local_address().unwrap());
    client.id.connect(None).unwrap();
    let server = request(site, Shape::default(), &channel);
    client.queue_pair.destroy();
    client.id.destroy();
    if server.id.accept(None).is_ok() {
        loop {
            assert!(channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap());
            if channel.get().unwrap().kind != EventKind::Established {
                break;
            }
        }
    }
    assert_eq!(server.queue_pair.state(), State::Error);
}

/// A port belongs to one identifier at a time.
pub fn ports_are_taken_once(site: &Site) {
    let channel = EventChannel::new().unwrap();
    let new = || Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    let first = new();
    first.bind(site.at(0)).unwrap();
    let address = first.local_address().unwrap();
    // A loopback address fixes no device.
    let open = site.open();
    let expected = (!site.address.is_loopback()).then(|| open.device().name().to_owned());
    assert_eq!(first.device().map(|device| device.name().to_owned()), expected);
    assert_eq!(first.bind(site.at(0)).unwrap_err().errno(), libc::EINVAL);
    let second = new();
    assert_eq!(second.bind(address).unwrap_err().errno(), libc::EADDRINUSE);
    first.listen(1).unwrap();
    assert_eq!(second.bind(address).unwrap_err().errno(), libc::EADDRINUSE);
    first.destroy();
    second.bind(address).unwrap();
    second.listen(1).unwrap();
    assert_eq!(second.local_address(), Some(address));
    // 192.0.2.0/24 and 2001:db8::/32 are for documentation: no host has them.
    let foreign: IpAddr = match site.address {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    assert_eq!(new().bind(SocketAddr::new(foreign, 0)).unwrap_err().errno(), libc::EADDRNOTAVAIL);
}

/// A listener on all addresses has no device; its requests have.
pub fn a_wildcard_listener(site: &Site) {
    let channel = EventChannel::new().unwrap();
    let listener = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    let any: IpAddr = match site.address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    listener.bind(SocketAddr::new(any, 0)).unwrap();
    listener.listen(4).unwrap();
    assert!(listener.device().is_none());
    let address = site.at(listener.local_address().unwrap().port());
    let client = resolved(site, Shape::default(), address);
    client.id.connect(None).unwrap();
    let server = request(site, Shape::default(), &channel);
    assert_eq!(server.id.local_address(), Some(address));
    server.id.accept(None).unwrap();
    server.expect(EventKind::Established);
    client.expect(EventKind::Established);
}

/// Queue pairs that the program manages itself and names in the parameters.
pub fn a_queue_pair_of_the_program(site: &Site) {
    let (listener, channel) = listener(site);
    let (id, client_channel) = resolved_identifier(listener.local_address().unwrap());
    let client = Side::new(site, Shape::default(), id, client_channel, false);
    assert_eq!(client.id.connect(None).unwrap_err().errno(), libc::EINVAL);
    let to_init = |side: &Side| {
        let (attributes, mask) = side.id.queue_pair_attributes(State::Init).unwrap();
        side.queue_pair.modify(&attributes, mask).unwrap();
    };
    to_init(&client);
    client.id.connect(Some(&Parameters { queue_pair: Some(&client.queue_pair), ..parameters() })).unwrap();
    let event = expect(&channel, EventKind::ConnectRequest);
    let server = Side::new(site, Shape::default(), event.identifier.clone(), channel.clone(), false);
    drop(event);
    to_init(&server);
    server.id.accept(Some(&Parameters { queue_pair: Some(&server.queue_pair), ..parameters() })).unwrap();
    server.expect(EventKind::Established);
    client.expect(EventKind::Established);
    assert_eq!(client.queue_pair.state(), State::Rts);
    server.id.disconnect().unwrap();
    client.ended();
    server.ended();
}

/// Identifiers without a channel: each call waits for its outcome.
pub fn synchronous_identifiers(site: &Site) {
    let info = AddressInfo {
        flags: AddressFlags::PASSIVE,
        port_space: Some(PortSpace::Tcp),
        service: Some(Service::Rc),
        source: Some(site.at(0)),
        ..AddressInfo::default()
    };
    let listener = Identifier::for_address(&info).unwrap();
    listener.listen(1).unwrap();
    let peer = listener.local_address().unwrap();
    let side = |id: std::sync::Arc<Identifier>| {
        let channel = id.channel().unwrap();
        Side::new(site, Shape::default(), id, channel, true)
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let info =
                AddressInfo { flags: AddressFlags::default(), destination: Some(peer), source: None, ..info };
            let client = side(Identifier::for_address(&info).unwrap());
            client.id.connect(None).unwrap();
            let event = client.id.wait_event().unwrap();
            assert_eq!(event.kind, EventKind::Established, "{event:?}");
            client.id.disconnect().unwrap();
            assert_eq!(client.id.wait_event().unwrap().kind, EventKind::Disconnected);
            assert_eq!(client.id.disconnect().unwrap_err().errno(), libc::EINVAL);
        });
        let event = listener.get_request().unwrap();
        assert!(event.identifier.is_synchronous());
        let server = side(event.identifier.clone());
        drop(event);
        server.id.accept(None).unwrap();
        assert_eq!(server.id.wait_event().unwrap().kind, EventKind::Established);
        assert_eq!(server.id.wait_event().unwrap().kind, EventKind::Disconnected);
    });
}

/// Connections that are made at the same time do not mix.
pub fn many_connections_through_one_listener(site: &Site) {
    let (listener, channel) = listener(site);
    let address = listener.local_address().unwrap();
    let clients: Vec<Side> = (0..24u8)
        .map(|number| {
            let client = resolved(site, Shape::default(), address);
            client.id.connect(Some(&with_data(&[number + 1]))).unwrap();
            client
        })
        .collect();
    let mut servers = Vec::new();
    for _ in &clients {
        let event = expect(&channel, EventKind::ConnectRequest);
        let number = event.private_data[0];
        let server_channel = EventChannel::new().unwrap();
        event.identifier.migrate(Some(&server_channel)).unwrap();
        let server = Side::new(site, Shape::default(), event.identifier.clone(), server_channel, true);
        let memory = Memory::open(&server.domain, 1);
        server.post_receive(u64::from(number), &[memory.all()]);
        server.id.accept(Some(&with_data(&[number ^ 0x55]))).unwrap();
        server.expect(EventKind::Established);
        servers.push((number, server, memory));
    }
    for (index, client) in clients.iter().enumerate() {
        let number = index as u8 + 1;
        assert_eq!(client.expect(EventKind::Established).private_data[0], number ^ 0x55);
        let memory = Memory::open(&client.domain, 1);
        memory.set(&[number]);
        client.post(1, Opcode::Send, &[memory.all()], (0, 0));
        client.sent_well(1);
    }
    for (number, server, memory) in &servers {
        server.received_well(u64::from(*number));
        assert_eq!(memory.bytes(), [*number]);
    }
}

/// A side that destroys its queue pair, or its identifier, without a word: the other side hears of it.
pub fn a_peer_vanishes(site: &Site) {
    let pair = Pair::connect(site);
    let memory = Memory::open(&pair.server.domain, 8);
    pair.server.post_receive(9, &[memory.all()]);
    pair.client.queue_pair.destroy();
    pair.server.ended();
    assert_eq!(pair.server.received().status, Status::Flushed);
    let pair = Pair::connect(site);
    pair.server.id.destroy();
    pair.client.ended();
}
