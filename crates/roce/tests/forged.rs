//! Messages of connection management made by hand, for connections of rdma_cm that stand.
//!
//! Whoever makes them knows no secret: queue pair numbers are told to everybody who asks, and the GUID is the
//! same in all processes.

#[path = "support/packets.rs"]
mod packets;
mod support;

use adverb_core::attributes::node_guid;
use adverb_core::cm::EventKind;
use adverb_core::conformance::fixture::{Pair, Shape, Side, expect, listener, parameters};
use adverb_core::request::Opcode;
use adverb_wire::ib::cm::{IpAddresses, Message, Path, Req, gid, port_space, private_data, service_id};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN};
use packets::{Peer, ROCE, datagram, send_only};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::site;

/// Says to a child that it is one.
const CHILD: &str = "ADVERB_TEST_FORGED";
/// A peer that answers no question about its queue pairs, as a kernel or an adapter; and one of these.
const ADAPTER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const NUMBER: u32 = 0x77;
/// Between two requests of a peer.
const PAUSE: Duration = Duration::from_millis(10);

/// One test runs at a time. A child that holds UDP port 4791 takes what has come there along when it ends,
/// and the other test sends its packets once.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A request for a connection with a queue pair of its sender, as a packet.
fn request(name: u32, number: u32, from: IpAddr, to: SocketAddr) -> Vec<u8> {
    let addresses = IpAddresses { source_port: 9, source: from, destination: to.ip() };
    let request = Req {
        local_communication_id: name,
        local_ca_guid: node_guid(),
        local_qpn: number,
        service_id: service_id(port_space::TCP, to.port()),
        // Half a second, eight times: a program that gets no processor for a while still answers in time. A
        // release that nobody answers is over in four seconds.
        local_response_timeout: 17,
        max_cm_retries: 7,
        path_mtu: 3,
        primary: Path { local_gid: gid(from), remote_gid: gid(to.ip()), ..Path::default() },
        private_data: private_data(&addresses.to_bytes()).unwrap(),
        ..Req::default()
    };
    datagram(GSI_QPN, GSI_QKEY, &Message::from(request).to_mad(name.into()).to_bytes())
}

/// Between two adverbs, nobody ends a connection by a request in the name of one of its queue pairs: there is
/// no answer, and both sides go on.
// ROCE-42
#[test]
fn a_request_releases_no_connection_between_adverbs() {
    if std::env::var(CHILD).is_ok() {
        return stands();
    }
    let _guard = alone();
    for way in ["auto", "off"] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_request_releases_no_connection_between_adverbs", "--nocapture"])
            .env(CHILD, "1")
            .env("ADVERB_LOCAL", way)
            .status();
        assert!(status.unwrap().success(), "{way}");
    }
}

fn stands() {
    let site = site();
    let pair = Pair::connect(&site);
    speak(&pair, 1);
    let counters = pair.server.context.device().counters();
    let goes_by_memory = std::env::var("ADVERB_LOCAL").is_ok_and(|way| way != "off");
    assert_eq!(counters.rx_local.get() > 0, goes_by_memory);
    let other = Peer::at(Ipv4Addr::LOCALHOST);
    for (name, own, side) in [(1, &pair.client, &pair.server), (2, &pair.server, &pair.client)] {
        let to = other.find(side, &site);
        other.send(to, &request(name, own.queue_pair.number(), site.address, site.at(7174)));
        // What comes by one socket is taken in in its order, so this is answered after the request would have
        // been.
        other.send(to, &Peer::ask(side.queue_pair.number(), 8, GSI_QKEY));
        assert_eq!(other.answer(), (8, to.port()), "an answer to the request");
    }
    speak(&pair, 2);
    pair.client.id.disconnect().unwrap();
    pair.ended();
}

/// One message.
fn speak(pair: &Pair, wr_id: u64) {
    pair.server.post_receive(wr_id, &[]);
    pair.client.post(wr_id, Opcode::Send, &[], (0, 0));
    pair.client.sent_well(wr_id);
    pair.server.received_well(wr_id);
}

/// A peer that is no adverb has lost its connection, and asks for another one from the same queue pair: the
/// old one ends, as the standard demands.
// IB-CM-33
#[test]
fn a_request_of_an_adapter_releases_its_connection() {
    let _guard = alone();
    let site = site();
    let (listener, events) = listener(&site);
    let service = listener.local_address().unwrap();
    let peer = Peer::at(ADAPTER);
    let (peer, address) = (&peer, site.at(ROCE));
    let ask = move |name| peer.send(address, &request(name, NUMBER, ADAPTER.into(), service));
    ask(1);
    let event = expect(&events, EventKind::ConnectRequest);
    let server = Side::new(&site, Shape::default(), event.identifier.clone(), events, true);
    drop(event);
    server.post_receive(1, &[]);
    let to = peer.find(&server, &site);
    server.id.accept(Some(&parameters())).unwrap();
    peer.send(to, &send_only(&server, server.queue_pair.attributes().rq_psn, b""));
    server.received_well(1);
    server.expect(EventKind::Established);
    // It asks until it is known that it answers no question.
    let (ended, has_ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut name = 2;
            while has_ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                ask(name);
                name += 1;
            }
        });
        let _ended = ended;
        server.ended();
    });
}
