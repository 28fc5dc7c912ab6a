//! Requests and answers of other processes about UDP port 4791, in any order, and a model of their effects:
//! members, requests to join, and the groups of the socket.

use super::*;
use crate::handover::HEAD;
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Other processes.
const OTHERS: usize = 3;
/// Interfaces: the one without a network behind it, and none.
const INTERFACES: [u32; 2] = [1, 0x7fff_ffff];

/// Both ends of a connection from another process.
struct Other {
    here: Arc<Connection>,
    there: Connection,
}

impl Other {
    fn new() -> Self {
        let [here, there] = Connection::pair().expect("two sockets");
        Self { here: Arc::new(here), there }
    }

    /// The next message that the other process has been sent, if there is one.
    fn hears(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 512];
        self.there.receive(&mut buffer).ok().map(<[u8]>::to_vec)
    }
}

/// The lane of a holder, on any port: it is made once.
fn lane() -> Arc<Lane> {
    static LANE: OnceLock<(Arc<Net>, Arc<Lane>)> = OnceLock::new();
    let make = || {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let lane = Lane::new(&net, Socket::bind(0).expect("a socket")).expect("a lane");
        (net, lane)
    };
    LANE.get_or_init(make).1.clone()
}

fn group_of(choice: u8) -> IpAddr {
    match choice >> 6 {
        // No group at all.
        3 => Ipv4Addr::new(127, 0, 0, choice).into(),
        2 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0xad7b, u16::from(choice)).into(),
        _ => Ipv4Addr::new(239, 255, 123, choice & 31).into(),
    }
}

fn about(group: IpAddr, interface: u32, errno: u16, bytes: &[u8]) -> Arrival<'_> {
    let port = errno;
    Arrival {
        source: group,
        source_port: port,
        local: group,
        local_port: 0,
        interface,
        class: 0,
        hops: 0,
        bytes,
    }
}

/// Joins, leaves, answers, packets of groups, and ends of processes.
pub(crate) fn try_effect(bytes: &[u8]) {
    let Some((role, steps)) = bytes.split_first() else { return };
    let lane = lane();
    let (udp_port, own) = (UdpPort::default(), Groups::default());
    let mut others: [Other; OTHERS] = std::array::from_fn(|_| Other::new());
    let is_holder = role & 1 == 0;
    *lock(&udp_port.state) = match is_holder {
        true => State::Holder { lane: lane.clone(), listener: None, members: Vec::new() },
        false => State::Member(others[0].here.clone()),
    };
    // The members' connections, and the requests of this process to join groups.
    let mut members: Vec<(IpAddr, u32, usize)> = Vec::new();
    let mut joins: HashMap<(IpAddr, u32), Option<JoinResult>> = HashMap::new();
    let mut ever = HashSet::new();
    for step in steps.as_chunks::<4>().0 {
        let [choice, who, which, errno] = *step;
        let who = usize::from(who) % OTHERS;
        let (group, interface) = (group_of(which), INTERFACES[usize::from(errno >> 7)]);
        let from = others[who].here.clone();
        match choice & 7 {
            0..=2 => {
                udp_port.member_asks(&own, true, group, interface, &from);
                ever.insert((group, interface));
                if is_holder {
                    let message = others[who].hears().expect("a request to join is answered");
                    let (kind, arrival) = handover::parse(&message).expect("a message of ours");
                    assert_eq!((arrival.local, arrival.interface), (group, interface));
                    let member = (group, interface, who);
                    match kind {
                        HandoverKind::Joined if !members.contains(&member) => members.push(member),
                        HandoverKind::Joined => {}
                        kind => {
                            assert_eq!((kind, members.contains(&member)), (HandoverKind::NotJoined, false));
                            assert_ne!(arrival.source_port, 0, "there is a reason");
                        }
                    }
                }
            }
            3 => {
                udp_port.member_asks(&own, false, group, interface, &from);
                members.retain(|member| *member != (group, interface, who));
            }
            4 => {
                udp_port.member_left(&own, &from);
                members.retain(|(.., known)| *known != who);
                if is_holder || who != 0 {
                    others[who] = Other::new();
                }
            }
            5 => {
                let answer = if choice & 8 == 0 { Ok(()) } else { refusal(errno.into()) };
                udp_port.holder_answers(&own, group, interface, answer, &from);
                if !is_holder
                    && who == 0
                    && let Some(asked) = joins.get_mut(&(group, interface))
                {
                    *asked = Some(answer);
                }
            }
            6 => {
                lock(&udp_port.joins).insert((group, interface), None);
                joins.insert((group, interface), None);
            }
            _ => {
                let packet = [which; 100];
                udp_port.forward_multicast(&about(group, interface, 1, &packet));
                for (number, other) in others.iter().enumerate() {
                    let is_in = members.iter().any(|member| (member.0, member.2) == (group, number));
                    let told = other.hears();
                    assert_eq!(told.is_some(), is_in, "each member once, and nobody else");
                    assert!(told.is_none_or(|told| told[HEAD..] == packet));
                }
            }
        }
        assert!(others.iter().all(|other| other.hears().is_none()), "nobody asked");
        assert_eq!(*lock(&udp_port.joins), joins, "only the holder answers, and only what is waited for");
        if let State::Holder { members: known, .. } = &*lock(&udp_port.state) {
            let who =
                |member: &Member| others.iter().position(|it| Arc::ptr_eq(&it.here, &member.connection));
            let known: Vec<_> =
                known.iter().map(|it| (it.group, it.interface, who(it).expect("it is there"))).collect();
            assert_eq!(known, members);
        }
    }
    for other in &others {
        udp_port.member_left(&own, &other.here);
    }
    // A socket can be in few groups only. So it has left each group that no process is in any more.
    for (group, interface) in ever {
        assert!(lane.socket.multicast(group, interface, false).is_err(), "{group} is still joined");
    }
}
