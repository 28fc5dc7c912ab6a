//! Unreliable datagrams, address handles and multicast.

use super::fixture::{Home, Memory, Pair, QKEY, Shape, Side, Site, path, signalled};
use crate::address_handle::AddressHandle;
use crate::attributes::gid_of;
use crate::error::PostError;
use crate::qp::{AttributeMask, Attributes, Path, Service, State};
use crate::request::{
    CompletionFlags, CompletionOpcode, Data, Datagram, Opcode, SendFlags, SendRequest, Status,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every receive of a datagram begins with the header of its route.
const GRH: usize = 40;

/// Datagrams to this number go to the group in the path.
const MULTICAST: u32 = 0xff_ffff;

fn sides<const N: usize>(site: &Site) -> Option<[Side; N]> {
    let has = site.open().attributes().services.contains(&Service::Ud);
    has.then(|| {
        [(); N].map(|()| {
            let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Ud);
            side.begin();
            side
        })
    })
}

fn post(side: &Side, request: &SendRequest<'_>, to: &Path, queue_pair: u32, qkey: u32) {
    let datagram = Some(Datagram { path: to, queue_pair, qkey });
    side.queue_pair.post_send(&SendRequest { datagram, ..*request }).unwrap();
}

/// Datagrams up to the port's MTU arrive whole, behind 40 bytes for the header, and name their sender.
// IB-UD-4, IB-UD-5, IB-UD-6, IB-UD-12, IB-UD-13, IB-UD-14, IB-UD-15, IB-UD-21, IB-PKT-27
pub fn datagrams(site: &Site) {
    let Some([client, server]) = sides(site) else { return };
    let peer_path = path(&client.context, site.address);
    let handle = AddressHandle::new(&client.domain, peer_path).unwrap();
    let mtu = client.context.port(1).unwrap().active_mtu as usize;
    let (from, to) = (Memory::open(&client.domain, mtu), Memory::open(&server.domain, mtu + GRH + 8));
    let bytes = from.fill(1);
    for (round, length) in [0, 1, 2, 3, 100, mtu - 1, mtu].into_iter().enumerate() {
        let wr_id = round as u64;
        for opcode in [Opcode::Send, Opcode::SendWithImmediate] {
            to.set(&[]);
            // The header goes over the border of two elements.
            server.post_receive(wr_id, &[to.sge(0, 30), to.sge(30, mtu + 18)]);
            let sges = [from.sge(0, length)];
            let request = SendRequest { wr_id, opcode, immediate: 0x0809, ..signalled(&sges, (0, 0)) };
            // With the highest bit the sender's own Q_Key goes out.
            let qkey = if length % 2 == 0 { QKEY } else { 1 << 31 };
            post(&client, &request, handle.path(), server.queue_pair.number(), qkey);
            client.sent_well(wr_id);
            let done = server.received_well(wr_id);
            assert_eq!(done.opcode, CompletionOpcode::Receive);
            assert_eq!(done.byte_length as usize, GRH + length);
            assert_eq!(done.source_queue_pair, client.queue_pair.number());
            let immediate = opcode == Opcode::SendWithImmediate;
            assert!(done.flags.contains(CompletionFlags::GRH));
            assert_eq!(done.flags.contains(CompletionFlags::WITH_IMMEDIATE), immediate);
            assert!(!immediate || done.immediate == 0x0809);
            let found = to.bytes();
            assert_eq!(found[GRH..][..length], bytes[..length], "{length} bytes");
            assert!(found[GRH + length..].iter().all(|byte| *byte == 0), "bytes behind {length}");
            assert_eq!(sender(&found, site.address), site.address, "the route header");
        }
    }
    // Inline, and from a shared address handle that is gone when the datagram is on its way.
    server.post_receive(50, &[to.all()]);
    let data: [&[u8]; 1] = [b"inline"];
    let request = SendRequest { wr_id: 50, data: Data::Inline(&data), ..signalled(&[], (0, 0)) };
    post(&client, &request, handle.path(), server.queue_pair.number(), QKEY);
    drop(handle);
    client.sent_well(50);
    server.received_well(50);
    assert_eq!(to.bytes()[GRH..][..6], *b"inline");
}

/// The sender of a datagram, from the header that lies in front of it. IPv4's is in the last 20 bytes.
fn sender(header: &[u8], like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => {
            assert_eq!((header[20], header[29]), (0x45, 17));
            IpAddr::from(<[u8; 4]>::try_from(&header[32..36]).unwrap())
        }
        IpAddr::V6(_) => {
            assert_eq!((header[0] >> 4, header[6]), (6, 17));
            IpAddr::from(<[u8; 16]>::try_from(&header[8..24]).unwrap())
        }
    }
}

/// A wrong Q_Key, a number that no queue pair has, too long a message, no receive: the datagram is lost, and
/// those behind it arrive.
// IB-PKT-46, IB-PKT-47, IB-UD-2, IB-UD-9, IB-UD-10, IB-UD-11, IB-UD-17
pub fn datagrams_that_go_nowhere(site: &Site) {
    let Some([client, server]) = sides(site) else { return };
    let peer_path = path(&client.context, site.address);
    let mtu = client.context.port(1).unwrap().active_mtu as usize;
    let from = Memory::open(&client.domain, mtu + 1);
    let to = Memory::open(&server.domain, mtu + GRH);
    let number = server.queue_pair.number();
    let short = [from.sge(0, 10)];
    let request = |wr_id| SendRequest { wr_id, ..signalled(&short, (0, 0)) };
    post(&client, &request(1), &peer_path, number, QKEY);
    client.sent_well(1);
    let reliable = Pair::of(site, Service::Rc, Shape::default(), &Home::new(site));
    for wr_id in [9, 10] {
        server.post_receive(wr_id, &[to.all()]);
    }
    post(&client, &request(2), &peer_path, number, QKEY + 1);
    post(&client, &request(3), &peer_path, reliable.server.queue_pair.number(), QKEY);
    post(&client, &request(4), &peer_path, number ^ 0x00f0_f0f0, QKEY);
    for wr_id in 2..5 {
        client.sent_well(wr_id);
    }
    let long = [from.all()];
    let long = SendRequest { wr_id: 5, ..signalled(&long, (0, 0)) };
    post(&client, &long, &peer_path, number, QKEY);
    let done = client.sent();
    // IB-UD-2, IB-UD-9
    assert_eq!((done.wr_id, done.status), (5, Status::LocalLength));
    assert_eq!(client.queue_pair.state(), State::Sqe);
    client.to(State::Rts, AttributeMask::empty(), &Attributes::default());
    post(
        &client,
        &SendRequest { immediate: 6, opcode: Opcode::SendWithImmediate, ..request(6) },
        &peer_path,
        number,
        QKEY,
    );
    client.sent_well(6);
    let mut done = server.received_well(9);
    if done.immediate == 0 {
        // The first one was still on its way when the receive was posted.
        done = server.received_well(10);
    }
    assert_eq!((done.immediate, done.byte_length as usize), (6, GRH + 10), "one that had to go nowhere");
    assert_eq!(server.queue_pair.state(), State::Rts);
}

/// Paths that lead nowhere are no address handles.
// IB-UD-19, IB-UD-20
pub fn address_handles(site: &Site) {
    let home = Home::new(site);
    if home.context.attributes().max_ah == 0 {
        return;
    }
    let peer_path = path(&home.context, site.address);
    for (wrong, what) in [
        (Path { port: 0, ..peer_path }, "port 0"),
        (Path { port: 2, ..peer_path }, "port 2"),
        (Path { is_global: false, ..peer_path }, "no GID"),
        (Path { gid: [0; 16], ..peer_path }, "zeros"),
        (Path { source_gid_index: 255, ..peer_path }, "an unknown source"),
    ] {
        assert_eq!(
            AddressHandle::new(&home.domain, wrong).err().expect(what).errno(),
            libc::EINVAL,
            "{what}"
        );
    }
    let users = home.domain.users().count();
    let handle = AddressHandle::new(&home.domain, peer_path).unwrap();
    assert_eq!(*handle.path(), peer_path);
    assert_eq!(home.domain.users().count(), users + 1);
    drop(handle);
    assert_eq!(home.domain.users().count(), users);
}

/// A datagram without an address, an address without a datagram, and operations that datagrams do not have.
// IB-UD-1, IB-UD-3, IB-QP-30
pub fn requests_that_are_no_datagrams(site: &Site) {
    let Some([client]) = sides(site) else { return };
    let peer_path = path(&client.context, site.address);
    let datagram = Some(Datagram { path: &peer_path, queue_pair: 2, qkey: QKEY });
    let without = signalled(&[], (0, 0));
    assert_eq!(client.queue_pair.post_send(&without), Err(PostError::Invalid));
    for opcode in [Opcode::Write, Opcode::Read, Opcode::FetchAdd, Opcode::SendWithInvalidate] {
        let request = SendRequest { opcode, datagram, ..without };
        assert_eq!(client.queue_pair.post_send(&request), Err(PostError::Unsupported), "{opcode:?}");
    }
    let pair = Pair::of(site, Service::Rc, Shape::default(), &Home::new(site));
    let with = SendRequest { datagram, flags: SendFlags::empty(), ..without };
    assert_eq!(pair.client.queue_pair.post_send(&with), Err(PostError::Invalid));
}

/// A datagram to a group comes to all its members, the sender too if it is one, and to no other queue pair.
// IB-UD-22, IB-UD-23, IB-UD-24, IB-UD-25, IB-UD-26, IB-UD-27, IB-PKT-53, ROCE-26
pub fn multicast(site: &Site) {
    let Some([client, first, second, stranger, deaf]) = sides(site) else { return };
    if client.context.attributes().max_mcast_grp == 0 {
        return;
    }
    let group = match site.address {
        IpAddr::V4(_) => gid_of(Ipv4Addr::new(239, 129, 2, 3).into()),
        IpAddr::V6(_) => gid_of(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x8102, 3).into()),
    };
    let refused = |result: crate::error::Result<()>| assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
    let reliable = Pair::of(site, Service::Rc, Shape::default(), &Home::new(site));
    refused(reliable.client.queue_pair.attach_multicast(&group));
    refused(first.queue_pair.attach_multicast(&gid_of(site.address)));
    refused(first.queue_pair.detach_multicast(&group));
    first.queue_pair.attach_multicast(&group).unwrap();
    second.queue_pair.attach_multicast(&group).unwrap();
    second.queue_pair.attach_multicast(&group).unwrap();
    assert_eq!(second.queue_pair.multicast_groups(), 1);
    // From the first address of the family: some loopbacks have no multicast.
    let gids = client.context.gids();
    let address = |gid: &crate::attributes::Gid| std::net::Ipv6Addr::from(gid.bytes).to_canonical();
    let from = gids.iter().map(address).find(|address| address.is_ipv4() == site.address.is_ipv4());
    let peer_path = Path { gid: group, ..path(&client.context, from.expect("an address of the family")) };
    let own = path(&client.context, site.address);
    let room = |side: &Side| Memory::open(&side.domain, GRH + 8);
    let memory = [room(&first), room(&second), room(&stranger)];
    let data: [&[u8]; 1] = [b"to all!!"];
    let request = SendRequest { data: Data::Inline(&data), ..signalled(&[], (0, 0)) };
    for (side, memory) in [&first, &second, &stranger].into_iter().zip(&memory) {
        for wr_id in 0..3 {
            side.post_receive(wr_id, &[memory.all()]);
        }
    }
    post(&client, &request, &peer_path, MULTICAST, QKEY);
    client.sent_well(0);
    for (side, memory) in [&first, &second].into_iter().zip(&memory) {
        let done = side.received_well(0);
        assert_eq!(done.source_queue_pair, client.queue_pair.number());
        assert_eq!(memory.bytes()[GRH..], *b"to all!!");
    }
    second.queue_pair.detach_multicast(&group).unwrap();
    // A member without a receive does not keep it from the others.
    // IB-UD-25
    deaf.queue_pair.attach_multicast(&group).unwrap();
    post(&client, &request, &peer_path, MULTICAST, QKEY);
    client.sent_well(0);
    first.received_well(1);
    client.queue_pair.attach_multicast(&group).unwrap();
    let own_memory = room(&client);
    for wr_id in 0..2 {
        client.post_receive(wr_id, &[own_memory.all()]);
    }
    post(&client, &request, &peer_path, MULTICAST, QKEY);
    client.sent_well(0);
    first.received_well(2);
    assert_eq!(client.received_well(0).source_queue_pair, client.queue_pair.number());
    assert_eq!(own_memory.bytes()[GRH..], *b"to all!!");
    // Datagrams that the others receive now were sent to them alone.
    let alone = SendRequest { opcode: Opcode::SendWithImmediate, immediate: 5, ..request };
    for (side, wr_id) in [(&second, 1), (&stranger, 0)] {
        post(&client, &alone, &own, side.queue_pair.number(), QKEY);
        client.sent_well(0);
        assert_eq!(side.received_well(wr_id).immediate, 5);
    }
}
