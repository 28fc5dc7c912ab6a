//! States and attributes of queue pairs that attributes connect.

use super::fixture::{Home, Memory, Pair, Shape, Side, Site, path, signalled};
use crate::event::AsyncEventKind;
use crate::qp::{AttributeMask as M, Attributes, Path, Service, State};
use crate::request::{Opcode, SendRequest};

/// The attributes of a connected queue pair on the way to RTR and RTS, with values that are all good.
fn good(side: &Side, site: &Site) -> (Attributes, M, M) {
    let attributes = Attributes {
        path: path(&side.context, site.address),
        path_mtu: 256,
        destination: 0x1234,
        rq_psn: 0x00ab_cdef,
        sq_psn: 0x0012_3456,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 12,
        timeout: 17,
        retry_count: 6,
        rnr_retry: 5,
        ..Attributes::default()
    };
    let to_receive = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let to_send = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    (attributes, to_receive, to_send)
}

/// Values that the device does not have are refused and change nothing.
// IB-QP-2, IB-QP-11, IB-QP-14, IB-QP-15, IB-QP-16, IB-QP-19, IB-QP-20, IB-QP-21, IB-QP-22
// IB-PKT-44
pub fn attributes_are_checked(site: &Site) {
    let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    let queue_pair = &side.queue_pair;
    let refused = |state: State, mask: M, attributes: Attributes, what: &str| {
        let before = queue_pair.state();
        let attributes = Attributes { state: Some(state), ..attributes };
        let error = queue_pair.modify(&attributes, mask | M::STATE).expect_err(what);
        assert_eq!(error.errno(), libc::EINVAL, "{what}: {error}");
        assert_eq!(queue_pair.state(), before, "{what}");
    };
    let (attributes, to_receive, to_send) = good(&side, site);
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    refused(State::Init, init, Attributes { port: 2, ..attributes }, "port 2");
    refused(State::Init, init, Attributes { port: 1, pkey_index: 999, ..attributes }, "P_Key index 999");
    refused(State::Init, init | M::QKEY, Attributes { port: 1, ..attributes }, "a Q_Key");
    refused(State::Rtr, to_receive, attributes, "RESET to RTR");
    side.begin();
    let limits = side.context.attributes();
    let active = side.context.port(1).unwrap().active_mtu;
    let peer_path = attributes.path;
    let with = |path: Path| Attributes { path, ..attributes };
    for (attributes, what) in [
        (Attributes { path_mtu: 0, ..attributes }, "no MTU"),
        (Attributes { path_mtu: active * 2, ..attributes }, "an MTU above the port's"),
        (Attributes { destination: 1 << 24, ..attributes }, "a number of 25 bits"),
        (Attributes { min_rnr_timer: 32, ..attributes }, "timer 32"),
        (
            Attributes { max_dest_rd_atomic: limits.max_qp_rd_atom as u8 + 1, ..attributes },
            "more reads than the device takes",
        ),
        (with(Path { is_global: false, ..peer_path }), "no GID"),
        (with(Path { port: 2, ..peer_path }), "a path through port 2"),
        (with(Path { source_gid_index: 255, ..peer_path }), "an unknown source GID"),
        (with(Path { gid: [0; 16], ..peer_path }), "a destination of zeros"),
    ] {
        refused(State::Rtr, to_receive, attributes, what);
    }
    refused(State::Rtr, to_receive.difference(M::AV), attributes, "no path");
    refused(State::Rtr, to_receive | M::TIMEOUT, attributes, "a timeout too early");
    side.to(State::Rtr, to_receive, &attributes);
    for (attributes, what) in [
        (Attributes { timeout: 32, ..attributes }, "timeout 32"),
        (Attributes { retry_count: 8, ..attributes }, "8 retries"),
        (Attributes { rnr_retry: 8, ..attributes }, "8 RNR retries"),
        (
            Attributes { max_rd_atomic: limits.max_qp_init_rd_atom as u8 + 1, ..attributes },
            "more reads than the device starts",
        ),
    ] {
        refused(State::Rts, to_send, attributes, what);
    }
    side.to(State::Rts, to_send, &attributes);
    refused(State::Rts, M::RQ_PSN, attributes, "a new RQ PSN");
    refused(State::Rtr, to_receive, attributes, "RTS to RTR");
    refused(State::Sqe, M::empty(), attributes, "RTS to SQE");
}

/// A query returns the values that were set; RESET forgets them.
// IB-QP-10, IB-QP-13, IB-QP-22
pub fn attributes_are_kept(site: &Site) {
    let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    side.begin();
    let (attributes, to_receive, to_send) = good(&side, site);
    // Sequence numbers have 24 bits.
    let attributes = Attributes { rq_psn: attributes.rq_psn | 0xff << 24, ..attributes };
    side.to(State::Rtr, to_receive, &attributes);
    side.to(State::Rts, to_send | M::MIN_RNR_TIMER, &Attributes { min_rnr_timer: 31, ..attributes });
    let found = side.queue_pair.attributes();
    assert_eq!(found.state, Some(State::Rts));
    assert_eq!((found.path, found.path_mtu, found.destination), (attributes.path, 256, 0x1234));
    assert_eq!((found.rq_psn, found.sq_psn), (0x00ab_cdef, 0x0012_3456));
    assert_eq!((found.max_rd_atomic, found.max_dest_rd_atomic, found.min_rnr_timer), (3, 5, 31));
    assert_eq!((found.timeout, found.retry_count, found.rnr_retry, found.port), (17, 6, 5, 1));
    assert!(!found.sq_draining);
    side.to(State::Reset, M::empty(), &Attributes::default());
    let found = side.queue_pair.attributes();
    assert_eq!((found.state, found.destination, found.timeout), (Some(State::Reset), 0, 0));
}

/// In SQD requests that have begun end, the program is told, and posted requests wait for RTS.
// IB-QP-6, IB-QP-7, IB-RC-REQ-50
pub fn a_send_queue_drains(site: &Site) {
    let pair = Pair::connect(site);
    let (client, server) = (&pair.client, &pair.server);
    client.queue_pair.set_cookie(5);
    let (from, to) = (Memory::open(&client.domain, 100_000), Memory::open(&server.domain, 100_000));
    let bytes = from.fill(1);
    client.post(1, Opcode::Write, &[from.all()], (to.address(0), to.region.key()));
    let notify = Attributes { sqd_notify: true, ..Attributes::default() };
    client.to(State::Sqd, M::SQD_NOTIFY, &notify);
    client.raised(AsyncEventKind::SendQueueDrained, 5);
    let found = client.queue_pair.attributes();
    assert_eq!((found.state, found.sq_draining), (Some(State::Sqd), false));
    server.post_receive(2, &[]);
    client.post(2, Opcode::Send, &[], (0, 0));
    // The other direction goes on.
    client.post_receive(3, &[]);
    server.post(3, Opcode::Send, &[], (0, 0));
    server.sent_well(3);
    client.received_well(3);
    assert_eq!(server.receives.poll(1, |_| ()).unwrap(), 0, "it was sent in SQD");
    client.to(State::Sqd, M::TIMEOUT, &Attributes { timeout: 15, ..Attributes::default() });
    client.to(State::Rts, M::empty(), &Attributes::default());
    client.sent_well(1);
    client.sent_well(2);
    server.received_well(2);
    assert_eq!(to.bytes(), bytes);
    assert_eq!(client.queue_pair.attributes().timeout, 15);
    // Without being asked it raises no event.
    client.to(State::Sqd, M::SQD_NOTIFY, &Attributes::default());
    client.to(State::Rts, M::empty(), &Attributes::default());
    assert!(!client.context.events().ready(0).unwrap());
}

/// After RESET a queue pair is as new, and connects again, also with another peer.
// IB-QP-10
pub fn a_queue_pair_begins_anew(site: &Site) {
    let pair = Pair::connect(site);
    let third = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    third.begin();
    for peer in [&pair.server, &third] {
        let client = &pair.client;
        for side in [client, peer] {
            side.post_receive(9, &[]);
            side.to(State::Reset, M::empty(), &Attributes::default());
            side.begin();
        }
        client.join(peer, site);
        peer.join(client, site);
        peer.post_receive(1, &[]);
        let request = SendRequest { wr_id: 2, ..signalled(&[], (0, 0)) };
        client.queue_pair.post_send(&request).unwrap();
        client.sent_well(2);
        peer.received_well(1);
        assert!(!client.receives.channel().unwrap().ready(0).unwrap(), "RESET reports nothing");
    }
}
