//! The transport as the manager sees it.

use super::route::{Recipient, Service, route};
use super::{Manager, ManagerHost, ManagerPeer, elsewhere, ports};
use crate::contacts::Contacts;
use crate::gsi::{MadHandler, MadSource};
use crate::handover::{HandoverKind, head};
use crate::handover_queue::LOOKS;
use crate::limit::Limit;
use crate::lock;
use crate::net::Net;
use crate::numbers::block_name;
use crate::observer::Direction;
use crate::other_users::Purpose;
use crate::route::PORT;
use crate::seqpacket::Connection;
use crate::socket::Arrival;
use adverb_core::attributes::{Gid, gid_of};
use adverb_core::error::Result;
use adverb_core::{log, watch, wire};
use adverb_proto::cm::StaleClaim;
use adverb_wire::ib::mad::{MAD_LEN, class};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

impl ManagerHost for Net {
    fn block(&self) -> Result<u16> {
        Net::block(self)
    }

    fn open(&self) -> Result<()> {
        self.primary().map(drop)
    }

    fn send(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        // An acknowledgement of a queue pair may have gone to port 4791, and lie in this process's own
        // socket. It goes first.
        // PRACTICE-ORDER-1
        let comes_back = self.owner_here(peer, mad).filter(|_| self.udp_port.is_held());
        if comes_back.is_some()
            && let Some(lane) = self.udp_port.lane()
        {
            lane.receive_all_but_management();
            self.handover_queue.hand_over_all(self);
        }
        self.send_beside(comes_back, local, peer, mad);
    }

    fn send_at_exit(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        // Nobody repeats it: the holder of port 4791 may exit at the same time, with the message in its
        // socket.
        self.send_beside(self.owner_here(peer, mad), local, peer, mad);
    }

    fn port_of(&self, address: IpAddr, queue_pair: u32) -> Option<u16> {
        self.locator.known(address, queue_pair)
    }

    fn believes_stale(&self, claim: StaleClaim) -> bool {
        self.endpoints().get(&claim.local_qpn).is_none_or(|own| own.may_have_lost(claim.remote_qpn))
    }

    fn gids(&self) -> Vec<Gid> {
        self.gids.all()
    }

    fn mtu_of(&self, local: IpAddr) -> Option<u32> {
        // A queue pair takes no more than the port's MTU (IB-QP-20), though one of its interfaces may.
        Some(self.gids.mtu_of(local)?.min(self.gids.active_mtu()?))
    }

    fn admit(&self, connection: Connection) -> Result<Arc<Connection>> {
        self.serve_connection(connection, Purpose::Asks)
    }

    fn now(&self) -> Duration {
        crate::time::now()
    }
}

impl Net {
    /// The block of queue pair numbers whose process a datagram is for, if it goes to port 4791 of this host
    /// and is for another process than this one.
    fn owner_here(&self, peer: SocketAddr, mad: &[u8; MAD_LEN]) -> Option<u16> {
        let Recipient::Block(block) = route(mad) else { return None };
        let is_here = matches!(peer.port(), 0 | PORT)
            && self.gids.all().iter().any(|gid| gid.bytes == gid_of(peer.ip()))
            && !self.block().is_ok_and(|own| own == block);
        is_here.then_some(block)
    }

    /// Sends a datagram from process to process to the owner of a block, if there is one, or else by the
    /// network.
    fn send_beside(&self, owner: Option<u16>, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        // Faults of the wire are the network's: there is no way beside it then.
        let owner = owner.filter(|_| wire::get().is_none());
        if owner.is_some_and(|block| self.hand_over_at_once(block, local, peer, mad)) {
            return;
        }
        if let Err(error) = self.gsi.send(&self.this(), local, peer, mad) {
            log!(Warn, "a message to {peer} cannot be sent: {error}");
        }
    }

    /// The owner of a block has the datagram now: this process may end in the next instant, without an exit
    /// handler, and what it has refused or ended must still be known.
    fn hand_over_at_once(&self, block: u16, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) -> bool {
        let interface = match peer {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let arrival = Arrival {
            source: local,
            source_port: PORT,
            local: peer.ip(),
            local_port: PORT,
            interface,
            class: 0,
            hops: 0,
            bytes: mad,
        };
        let told = self.tell(block, HandoverKind::Management, &arrival);
        if told {
            self.counters().handed_over.add(1);
            if watch::packets() {
                self.gsi.show(Direction::To(peer.ip()), &arrival);
            }
        }
        told
    }
}

/// A manager that hears the transport's management datagrams.
pub(crate) fn attach(net: &Arc<Net>) -> Arc<Manager> {
    let manager = Manager::new(net.clone());
    let receiver = Receiver::new(net, manager.clone());
    net.gsi.set_handler(class::COMMUNICATION, Arc::new(receiver));
    net.gsi.set_handler(elsewhere::CLASS, Arc::new(Notices(manager.clone())));
    manager
}

/// Takes the datagrams of connection management, and where this process holds UDP port 4791 passes on what is
/// for another one.
struct Receiver {
    net: Weak<Net>,
    manager: Arc<Manager>,
    /// Processes that serve ports, by the names of their sockets.
    services: Mutex<Contacts<Vec<u8>>>,
    /// How often processes are looked for, for the datagrams from an address.
    looks: Limit,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// The datagram is for this process, or for nobody who lives: then it is answered here.
    Here,
    Passed,
    /// Too much has been looked for, because of its sender: it asks again.
    Dropped,
}

impl MadHandler for Receiver {
    fn mad(&self, mad: &[u8; MAD_LEN], from: MadSource) {
        let Some(net) = self.net.upgrade() else { return };
        let holder = net.udp_port.is_held();
        let course = if from.handed_over || !holder {
            Course::Here
        } else {
            self.pass_on(&net, mad, &from, crate::time::now())
        };
        match course {
            Course::Here => {
                let peer = ManagerPeer::new(from.local, from.peer, from.scope);
                // Nobody but another adverb sends to a port of our own, and it hears answers where it sends
                // from.
                let direct = (!from.handed_over && !holder).then_some(from.peer_port);
                self.manager.receive(mad, peer, direct);
            }
            Course::Passed => net.counters().handed_over.add(1),
            Course::Dropped => net.counters().unknown.add(1),
        }
    }
}

/// Takes word of where to ask.
pub(super) struct Notices(pub(super) Arc<Manager>);

impl MadHandler for Notices {
    fn mad(&self, mad: &[u8; MAD_LEN], from: MadSource) {
        if let Some((transaction, name, port)) = elsewhere::parse(mad) {
            self.0.ask_at(transaction, name, &ManagerPeer::new(from.local, from.peer, from.scope), port);
        }
    }
}

impl Receiver {
    fn new(net: &Arc<Net>, manager: Arc<Manager>) -> Self {
        Self {
            net: Arc::downgrade(net),
            manager,
            services: Mutex::default(),
            looks: Limit::new(LOOKS.0, LOOKS.1),
        }
    }

    fn pass_on(&self, net: &Net, mad: &[u8; MAD_LEN], from: &MadSource, now: Duration) -> Course {
        let arrival = from.arrival(mad);
        let destination = route(mad);
        let is_known = match destination {
            Recipient::Here => return Course::Here,
            Recipient::Block(block) if net.block().is_ok_and(|own| own == block) => return Course::Here,
            Recipient::Service(service) if self.manager.serves(service, from.local) => return Course::Here,
            Recipient::Block(block) => net.knows(block),
            Recipient::Service(service) => {
                let services = lock(&self.services);
                names(service, &arrival).iter().any(|name| services.get(name).is_some())
            }
        };
        // An unknown recipient is looked up by connect(2), which costs more than the datagram.
        if !is_known && !self.looks.allows(&from.peer, now) {
            return Course::Dropped;
        }
        let passed = match destination {
            Recipient::Here => false,
            Recipient::Block(block) => {
                net.tell(block, HandoverKind::Management, &arrival)
                    // A process that is alive but does not take the datagram is still the recipient.
                    || Connection::open(&block_name(block)).is_ok()
            }
            Recipient::Service(service) => self.pass_to_service(service, &arrival),
        };
        if passed { Course::Passed } else { Course::Here }
    }

    fn pass_to_service(&self, service: Service, arrival: &Arrival<'_>) -> bool {
        let send = |connection: &Connection| {
            let kind =
                if connection.is_same_user() { HandoverKind::Management } else { HandoverKind::Locate };
            connection.send(&[&head(kind, arrival)[..], arrival.bytes])
        };
        let names = names(service, arrival);
        let Some(listener) = ports::choose(names.into_iter().filter_map(|name| self.contact(name))) else {
            return false;
        };
        // If the listener's socket is full, the datagram is lost, and the peer repeats it.
        let _ = send(&listener);
        true
    }

    /// The contact that listens under a name.
    fn contact(&self, name: Vec<u8>) -> Option<Arc<Connection>> {
        let known = lock(&self.services).get(&name);
        if let Some(known) = known.filter(|known| !known.has_hung_up()) {
            return Some(known);
        }
        // None yet, or the one before is gone.
        match Connection::open(&name) {
            Ok(connection) => Some(lock(&self.services).keep(name, connection)),
            Err(_) => {
                lock(&self.services).forget(&name);
                None
            }
        }
    }
}

/// The names by which a service is found that a request is for.
fn names(service: Service, arrival: &Arrival<'_>) -> [Vec<u8>; 2] {
    let link = match arrival.local {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => arrival.interface,
        _ => 0,
    };
    service.names(ManagerPeer::at(arrival.local, 0, link))
}

#[cfg(test)]
mod tests {
    use super::super::route::COUNTED;
    use super::*;
    use crate::seqpacket::Listener;
    use adverb_wire::ib::cm::{Dreq, Message};
    use std::net::Ipv4Addr;

    /// A disconnect request for a connection of a process.
    fn disconnect(block: u16) -> [u8; MAD_LEN] {
        let id = u32::from(block) << COUNTED;
        let request = Dreq { local_communication_id: 5, remote_communication_id: id, ..Dreq::default() };
        Message::from(request).to_mad(1).to_bytes()
    }

    /// Who sends datagrams for nobody has us look for nobody so often, and not for each. For whom we know,
    /// nobody looks.
    #[test]
    fn management_datagrams_for_nobody_cost_little() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let receiver = Receiver::new(&net, Manager::new(net.clone()));
        let [sender, other] = [1, 2].map(|host| IpAddr::from([192, 0, 2, host]));
        let now = Duration::from_secs(1000);
        let goes = |block, from, now| {
            let from = MadSource::between((Ipv4Addr::LOCALHOST, PORT).into(), from, PORT);
            receiver.pass_on(&net, &disconnect(block), &from, now)
        };
        // The last block belongs to nobody, whatever other tests claim.
        let nobody = 0xfff;
        let bind = |block: u16| Some((block, Listener::bind(&block_name(block)).ok()?));
        let (somebody, _lives) = (1..nobody).rev().find_map(bind).expect("a free block");
        // The two senders may share a limit: it is whole again after a second.
        assert_eq!(goes(somebody, other, now - Duration::from_secs(1)), Course::Passed);
        let courses: Vec<_> = (0..1000).map(|_| goes(nobody, sender, now)).collect();
        let looked = courses.iter().filter(|course| **course == Course::Here).count();
        let dropped = courses.iter().filter(|course| **course == Course::Dropped).count();
        assert_eq!((looked, dropped), (LOOKS.1 as usize, 1000 - LOOKS.1 as usize));
        assert_eq!(goes(somebody, sender, now), Course::Passed, "nobody is looked for");
        assert_eq!(goes(nobody, sender, now + Duration::from_secs(1)), Course::Here);
    }
}
