//! UDP port 4791, and which process of the network namespace holds it.
//!
//! Kernels and adapters send everything there. The first process that wants the port holds it. It listens on
//! an abstract socket of a known name, and the others keep a connection to that. When the connection breaks,
//! the holder has gone, and the background thread of each of the others tries to bind the port. One of them
//! gets it.

#[cfg(any(test, fuzzing))]
mod effect;

use crate::handover::{self, HandoverKind};
use crate::lane::Lane;
use crate::lock;
use crate::multicast::Groups;
use crate::net::Net;
use crate::other_users::Purpose;
use crate::route::PORT;
use crate::seqpacket::{Connection, Descriptors, Listener, name};
use crate::socket::{Arrival, Socket};
use adverb_core::error::{Error, Result};
use adverb_core::log;
use adverb_core::reactor::{FAILED, PEER_CLOSED, READABLE, Readiness, Source, Token};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

#[cfg(any(test, fuzzing))]
pub(crate) use effect::try_effect;

/// The first and the longest pause before looking again for the port or its holder.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The name by which the holder is found. It never changes: processes with other versions of adverb look for
/// it.
fn holder_name() -> Vec<u8> {
    name("gate")
}

/// UDP port 4791, as this process sees it: held by this process, by another process of adverb, or by another
/// program.
#[derive(Default)]
pub(crate) struct UdpPort {
    held: AtomicBool,
    state: Mutex<State>,
    /// Groups and interfaces that a thread joins at this instant, and the answer once there is one.
    joins: Mutex<HashMap<(IpAddr, u32), Option<JoinResult>>>,
    answered: Condvar,
}

/// The result of a request to join a group: its packets arrive here, or why not (an errno).
type JoinResult = std::result::Result<(), i32>;

#[derive(Default)]
enum State {
    /// No thread has asked yet.
    #[default]
    Closed,
    /// This process holds the port.
    Holder {
        lane: Arc<Lane>,
        /// Kept for its name, by which others find this process.
        listener: Option<Listener>,
        /// The groups that other processes have joined.
        members: Vec<Member>,
    },
    /// Another process holds it.
    Member(Arc<Connection>),
    /// A process that does not answer holds it.
    Alone,
}

struct Member {
    group: IpAddr,
    interface: u32,
    connection: Arc<Connection>,
}

impl UdpPort {
    /// Takes the port, or finds its holder. Returns the lane of this process that comes first: on the port,
    /// or on a private one.
    pub(crate) fn open(&self, net: &Arc<Net>) -> Result<Arc<Lane>> {
        match Socket::bind(PORT) {
            Ok(socket) => {
                let lane = Lane::new(net, socket)?;
                self.hold(net, lane.clone());
                Ok(lane)
            }
            Err(error) => {
                let socket = Socket::bind(0).map_err(|error| Lane::cannot_open(&error))?;
                let lane = Lane::new(net, socket)?;
                if error.raw_os_error() == Some(libc::EADDRINUSE) {
                    self.follow(net, FIRST_PAUSE);
                } else {
                    log!(Warn, "UDP port {PORT} cannot be had ({error}): {LIMITS}");
                }
                Ok(lane)
            }
        }
    }

    /// Whether this process holds the port.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// The lane whose socket has the port, if this process holds it.
    pub(crate) fn lane(&self) -> Option<Arc<Lane>> {
        match &*lock(&self.state) {
            State::Holder { lane, .. } => Some(lane.clone()),
            _ => None,
        }
    }

    /// The lane whose socket has the port, if this process holds it, for the thread that ends the process.
    /// It waits for no lock, since a thread that holds one may have been stopped.
    pub(crate) fn lane_at_exit(&self) -> Option<Arc<Lane>> {
        match &*self.state.try_lock().ok()? {
            State::Holder { lane, .. } => Some(lane.clone()),
            _ => None,
        }
    }

    /// The state of the port in words for a person, for the list of devices.
    pub(crate) fn describe(&self) -> &'static str {
        const ANOTHER: &str = "held by another process with this engine";
        const STRANGER: &str =
            "held by something else (the kernel's rdma_rxe, or a program): connection requests do not arrive";
        match &*lock(&self.state) {
            State::Closed if Connection::open(&holder_name()).is_ok() => ANOTHER,
            State::Closed => match Socket::bind(PORT) {
                Ok(_) => "free",
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => STRANGER,
                Err(_) => "not to be had",
            },
            State::Holder { .. } => "held by this process",
            State::Member(_) => ANOTHER,
            State::Alone => STRANGER,
        }
    }

    fn hold(&self, net: &Arc<Net>, lane: Arc<Lane>) {
        let socket = lane.clone();
        *lock(&self.state) = State::Holder { lane, listener: None, members: Vec::new() };
        self.held.store(true, Ordering::Release);
        // Threads that join from now on see the new state.
        for (group, interface) in net.groups.all() {
            self.settle_join(&net.groups, group, interface, join(&socket.socket, group, interface));
        }
        self.be_found(net, FIRST_PAUSE);
    }

    /// Takes the name by which other processes find the holder. The holder before may still have it while it
    /// ends: then the background thread tries again.
    fn be_found(&self, net: &Arc<Net>, pause: Duration) {
        let bound = Listener::bind(&holder_name())
            .map_err(|error| Lane::cannot_open(&error))
            .and_then(|bound| net.serve_inlet(bound.fd(), Purpose::Watches).map(|_| bound));
        match bound {
            Ok(bound) => {
                if let State::Holder { listener, .. } = &mut *lock(&self.state) {
                    *listener = Some(bound);
                }
            }
            Err(error) => {
                if pause == LONGEST_PAUSE {
                    log!(Warn, "other processes do not find this one, which holds UDP port {PORT}: {error}");
                }
                self.later(net, pause, UdpPort::be_found);
            }
        }
    }

    /// Finds the holder and watches it, or looks again after a pause.
    fn follow(&self, net: &Arc<Net>, pause: Duration) {
        match Connection::open(&holder_name()) {
            Ok(connection) => {
                connection.learn_senders();
                let connection = Arc::new(connection);
                let fd = connection.fd();
                let trusted = connection.is_same_user();
                let watcher = Arc::new(Watcher {
                    net: net.clone(),
                    since: crate::time::now(),
                    pause,
                    connection: connection.clone(),
                    trusted,
                    token: OnceLock::new(),
                });
                let added = net
                    .engine()
                    .and_then(|engine| engine.reactor.add(fd, READABLE | PEER_CLOSED, watcher.clone()));
                match added {
                    Ok(token) => {
                        let _ = watcher.token.set(token);
                        {
                            let mut state = lock(&self.state);
                            // A process that holds the port itself follows no holder.
                            if matches!(*state, State::Holder { .. }) {
                                return;
                            }
                            *state = State::Member(connection.clone());
                        }
                        // Threads that join from now on see the new state.
                        for (group, interface) in net.groups.all() {
                            ask(&connection, HandoverKind::Join, group, interface);
                        }
                    }
                    Err(error) => {
                        log!(Warn, "the holder of UDP port {PORT} cannot be watched: {error}");
                        self.later(net, pause, UdpPort::look);
                    }
                }
            }
            Err(_) => {
                {
                    let mut state = lock(&self.state);
                    if matches!(*state, State::Holder { .. }) {
                        return;
                    }
                    if pause > Duration::from_millis(100) && !matches!(*state, State::Alone) {
                        log!(
                            Warn,
                            "UDP port {PORT} is held by something else (the kernel's rdma_rxe, or a program): {LIMITS}"
                        );
                        *state = State::Alone;
                    }
                }
                self.later(net, pause, UdpPort::look);
            }
        }
    }

    /// Does something after a pause, with a longer one for the next time.
    fn later(&self, net: &Arc<Net>, pause: Duration, what: fn(&UdpPort, &Arc<Net>, Duration)) {
        let Ok(engine) = net.engine() else { return };
        let next = (pause * 2).min(LONGEST_PAUSE);
        let _ = engine.reactor.set_timer(pause, Arc::new(Later { net: net.clone(), next, what }));
    }

    /// The port may be free, or held by another process than before.
    fn look(&self, net: &Arc<Net>, pause: Duration) {
        match Socket::bind(PORT).map_err(|error| Lane::cannot_open(&error)).and_then(|s| Lane::new(net, s)) {
            Ok(lane) => {
                log!(Info, "this process holds UDP port {PORT} from now on");
                net.counters().taken_over.add(1);
                self.hold(net, lane);
            }
            Err(_) => self.follow(net, pause),
        }
    }

    /// A queue pair of this process is the first, or was the last, in a group. Returns when packets of the
    /// group arrive here, or the holder of the port does not say so in time. Not from the background thread.
    pub(crate) fn multicast(&self, group: IpAddr, interface: u32, join: bool) -> Result<()> {
        if !join {
            return self.change_membership(group, interface, join);
        }
        lock(&self.joins).insert((group, interface), None);
        let result = self.change_membership(group, interface, join);
        lock(&self.joins).remove(&(group, interface));
        result
    }

    fn change_membership(&self, group: IpAddr, interface: u32, join: bool) -> Result<()> {
        // A request may be lost when the holder is new. It is repeated, since without the holder no packets
        // of the group arrive here.
        const PAUSES_MS: [u64; 6] = [50, 100, 200, 400, 500, 750];
        for pause in PAUSES_MS {
            match &*lock(&self.state) {
                // Other processes are in the group by this one's socket.
                State::Holder { members, .. }
                    if !join && members.iter().any(|it| it.group == group && it.interface == interface) =>
                {
                    return Ok(());
                }
                State::Holder { lane, .. } => {
                    let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
                    let changed = lane.socket.multicast(group, interface, join).map_err(errno);
                    return changed.map_err(|errno| cannot_join(group, interface, errno));
                }
                State::Member(connection) => {
                    let kind = if join { HandoverKind::Join } else { HandoverKind::Leave };
                    ask(connection, kind, group, interface);
                    // Another user's holder does not listen to us.
                    if !connection.is_same_user() {
                        return Ok(());
                    }
                }
                // Told when a holder is found.
                State::Closed => {}
                State::Alone => return Ok(()),
            }
            if !join {
                break;
            }
            let guard = lock(&self.joins);
            let answer = |joins: &HashMap<_, _>| joins.get(&(group, interface)).copied().flatten();
            let pause = Duration::from_millis(pause);
            let (joins, _) = self
                .answered
                .wait_timeout_while(guard, pause, |joins| answer(joins).is_none())
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(answer) = answer(&joins) {
                return answer.map_err(|errno| cannot_join(group, interface, errno));
            }
        }
        Ok(())
    }

    /// Another process answers a request to join a group. Only the holder of the port is believed. `own`: the
    /// groups of this process.
    pub(crate) fn holder_answers(
        &self,
        own: &Groups,
        group: IpAddr,
        interface: u32,
        answer: JoinResult,
        from: &Arc<Connection>,
    ) {
        let is_holder =
            matches!(&*lock(&self.state), State::Member(connection) if Arc::ptr_eq(connection, from));
        if is_holder {
            self.settle_join(own, group, interface, answer);
        }
    }

    /// Packets of a group arrive here from now on, or cannot be had: threads that wait for that are told. If
    /// none waits, this process has asked a new holder for the groups that it had joined through the one
    /// before.
    fn settle_join(&self, own: &Groups, group: IpAddr, interface: u32, answer: JoinResult) {
        if let Some(asked) = lock(&self.joins).get_mut(&(group, interface)) {
            *asked = Some(answer);
            self.answered.notify_all();
        } else if let Err(errno) = answer
            && own.all().contains(&(group, interface))
        {
            let why = cannot_join(group, interface, errno);
            log!(Warn, "no packets arrive any more, as the holder of UDP port {PORT} has changed: {why}");
        }
    }

    /// Another process joins or leaves a group. `own`: the groups of this one.
    pub(crate) fn member_asks(
        &self,
        own: &Groups,
        joins: bool,
        group: IpAddr,
        interface: u32,
        from: &Arc<Connection>,
    ) {
        let mut state = lock(&self.state);
        let State::Holder { lane, members, .. } = &mut *state else { return };
        let is_it = |member: &Member| {
            member.group == group && member.interface == interface && Arc::ptr_eq(&member.connection, from)
        };
        if joins {
            // One process can ask for as many groups as the system lets a socket join.
            let answer = if members.iter().any(is_it) {
                Ok(())
            } else if members.len() < 4096 {
                join(&lane.socket, group, interface)
            } else {
                Err(libc::ENOBUFS)
            };
            if answer.is_ok() && !members.iter().any(is_it) {
                members.push(Member { group, interface, connection: from.clone() });
            }
            match answer {
                Ok(()) => ask(from, HandoverKind::Joined, group, interface),
                Err(errno) => tell(from, HandoverKind::NotJoined, group, interface, errno as u16),
            }
        } else {
            leave(lane, members, own, is_it);
        }
    }

    /// Another process has gone. `own`: the groups of this one.
    pub(crate) fn member_left(&self, own: &Groups, connection: &Arc<Connection>) {
        if let State::Holder { lane, members, .. } = &mut *lock(&self.state) {
            leave(lane, members, own, |member| Arc::ptr_eq(&member.connection, connection));
        }
    }

    /// Gives a multicast packet to the processes that have joined its group.
    pub(crate) fn forward_multicast(&self, arrival: &Arrival<'_>) {
        let state = lock(&self.state);
        let State::Holder { members, .. } = &*state else { return };
        let mut told: Vec<&Arc<Connection>> = Vec::new();
        for member in members.iter().filter(|member| member.group == arrival.local) {
            if !told.iter().any(|known| Arc::ptr_eq(known, &member.connection)) {
                let _ =
                    member.connection.send(&[&handover::head(HandoverKind::Packet, arrival), arrival.bytes]);
                told.push(&member.connection);
            }
        }
    }
}

const LIMITS: &str = "queue pairs of this process reach peers whose addresses they know, but connection requests and other \
                      processes' questions do not arrive here. Device iwarp0 needs no such port";

fn join(socket: &Socket, group: IpAddr, interface: u32) -> JoinResult {
    socket.multicast(group, interface, true).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// The answer of a holder that cannot have a group's packets: there is a reason.
pub(crate) fn refusal(errno: u16) -> JoinResult {
    Err(if errno == 0 { libc::EIO } else { errno.into() })
}

fn cannot_join(group: IpAddr, interface: u32, errno: i32) -> Error {
    let why = io::Error::from_raw_os_error(errno);
    Error::new(errno, format!("the group {group} on interface {interface}: {why}"))
}

/// Removes members. A group without members makes room for another: a socket has only so many.
fn leave(lane: &Lane, members: &mut Vec<Member>, own: &Groups, leaves: impl Fn(&Member) -> bool) {
    let gone: Vec<(IpAddr, u32)> =
        members.iter().filter(|it| leaves(it)).map(|it| (it.group, it.interface)).collect();
    members.retain(|member| !leaves(member));
    for (group, interface) in gone {
        let is_in = members.iter().any(|it| it.group == group && it.interface == interface);
        if !is_in && !own.all().contains(&(group, interface)) {
            let _ = lane.socket.multicast(group, interface, false);
        }
    }
}

/// Tells the holder, or a member, of a group.
fn ask(connection: &Connection, kind: HandoverKind, group: IpAddr, interface: u32) {
    tell(connection, kind, group, interface, 0);
}

fn tell(connection: &Connection, kind: HandoverKind, group: IpAddr, interface: u32, errno: u16) {
    let arrival = Arrival {
        source: group,
        source_port: errno,
        local: group,
        local_port: 0,
        interface,
        class: 0,
        hops: 0,
        bytes: &[],
    };
    let _ = connection.send(&[&handover::head(kind, &arrival)]);
}

/// Watches the holder.
struct Watcher {
    net: Arc<Net>,
    /// When the holder was found, and the pause until the next look if it goes again soon.
    since: Duration,
    pause: Duration,
    connection: Arc<Connection>,
    /// Whether the holder ran as our user when it took the port, so that its packets count while it does.
    trusted: bool,
    token: OnceLock<Token>,
}

impl Source for Watcher {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        let mut buffer = vec![0; handover::LONGEST];
        for _ in 0..64 {
            match self.connection.receive_with(&mut buffer) {
                Ok(([], _)) => break,
                Ok((message, along)) => {
                    let trusted = self.trusted && along.is_same_user;
                    self.net.message(message, Descriptors::new(), trusted, &self.connection);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if readiness & (PEER_CLOSED | FAILED) != 0 {
                        break;
                    }
                    return;
                }
                Err(_) => break,
            }
        }
        if readiness & (PEER_CLOSED | FAILED) == 0 {
            return;
        }
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            engine.reactor.remove(*token, self.connection.fd());
        }
        // A holder that closes the connection at once serves as many processes of other users as it may.
        if !self.trusted && crate::time::now() - self.since < LONGEST_PAUSE {
            return self.net.udp_port.later(&self.net, self.pause, UdpPort::look);
        }
        self.net.udp_port.look(&self.net, FIRST_PAUSE);
    }
}

/// Something that is tried again.
struct Later {
    net: Arc<Net>,
    next: Duration,
    what: fn(&UdpPort, &Arc<Net>, Duration),
}

impl Source for Later {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        (self.what)(&self.net.udp_port, &self.net, self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket::Listener;

    #[test]
    fn only_the_holder_answers_and_only_what_is_waited_for() {
        let listener = name(&format!("port-test-{}", std::process::id()));
        let _listener = Listener::bind(&listener).unwrap();
        let [holder, other] = [(); 2].map(|()| Arc::new(Connection::open(&listener).unwrap()));
        let (udp_port, own) = (UdpPort::default(), Groups::default());
        *lock(&udp_port.state) = State::Member(holder.clone());
        let group: IpAddr = "239.1.2.3".parse().unwrap();
        udp_port.holder_answers(&own, group, 1, Ok(()), &holder);
        assert!(lock(&udp_port.joins).is_empty(), "nobody waits");
        lock(&udp_port.joins).insert((group, 1), None);
        udp_port.holder_answers(&own, group, 1, Ok(()), &other);
        assert_eq!(lock(&udp_port.joins)[&(group, 1)], None);
        udp_port.holder_answers(&own, group, 1, refusal(0), &holder);
        assert_eq!(lock(&udp_port.joins)[&(group, 1)], Some(Err(libc::EIO)));
        assert_eq!(refusal(libc::ENOBUFS as u16), Err(libc::ENOBUFS));
    }
}
