//! What a manager keeps of a connection, and of what surrounds it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adverb_wire::ib::mad::Mad;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// REQ is sent.
    ReqSent,
    /// REQ has come; the program has to answer.
    ReqReceived,
    /// REP is sent.
    RepSent,
    /// REP has come; the program has to answer.
    RepReceived,
    Established,
    /// DREQ is sent.
    DreqSent,
    /// DREQ has come; the program has to answer.
    DreqReceived,
    /// Released, but old packets may still come.
    Timewait,
    /// SIDR_REQ is sent.
    SidrSent,
    /// SIDR_REQ has come; the program has to answer.
    SidrReceived,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection<P> {
    pub(super) state: State,
    pub(super) peer: P,
    /// The transaction of the messages that make the connection.
    pub(super) transaction_id: u64,
    /// The transaction of the messages that release the connection.
    pub(super) release_transaction_id: u64,
    pub(super) service_id: u64,
    /// The peer has asked for the connection, and may do it again: its message may still be under way.
    pub(super) requested: bool,
    /// The peer's communication ID, or 0 if it is not known yet.
    pub(super) remote_id: u32,
    pub(super) remote_guid: u64,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    /// Time from a message to the same message again.
    pub(super) timeout: Duration,
    pub(super) max_retries: u8,
    pub(super) retries: u8,
    /// Whether the peer has chosen these two: then there is a limit to all of it.
    pub(super) is_chosen_by_peer: bool,
    /// When the last message may be sent.
    pub(super) until: Duration,
    /// Time from a message to the same message again, in place of `timeout`, when the peer has said that its
    /// answer will take longer.
    pub(super) delay: Option<Duration>,
    /// How long a packet and its acknowledgement take at most.
    pub(super) round_trip: Duration,
    pub(super) deadline: Option<Duration>,
    /// Until when a service that nobody offers is asked for again.
    pub(super) patient_until: Duration,
    /// The message that is sent until it is answered.
    pub(super) message: Option<Box<Mad>>,
    /// The program has no interest any more.
    pub(super) destroyed: bool,
}

impl<P> Connection<P> {
    pub(super) fn new(peer: P, state: State, service_id: u64) -> Connection<P> {
        Connection {
            state,
            peer,
            transaction_id: 0,
            release_transaction_id: 0,
            service_id,
            requested: false,
            remote_id: 0,
            remote_guid: 0,
            local_qpn: 0,
            remote_qpn: 0,
            timeout: Duration::ZERO,
            max_retries: 0,
            retries: 0,
            is_chosen_by_peer: false,
            until: Duration::MAX,
            delay: None,
            round_trip: Duration::ZERO,
            deadline: None,
            patient_until: Duration::ZERO,
            message: None,
            destroyed: false,
        }
    }
}

/// What a peer calls one of its things.
// IB-CM-15
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Remote<P> {
    pub(super) kind: Kind,
    pub(super) peer: P,
    pub(super) ca_guid: u64,
    pub(super) number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    CommunicationId,
    QueuePair,
    SidrRequest,
}

/// The answer to a request that is forgotten. It is given again if the same request comes again.
#[derive(Debug)]
pub(super) struct Answer<P> {
    pub(super) to: Remote<P>,
    pub(super) until: Duration,
    pub(super) mad: Mad,
}

/// A service that somebody listens for.
#[derive(Debug)]
pub(super) struct Listener<P> {
    backlog: usize,
    group: fn(P) -> [P; 2],
    /// Requests that the program has not answered: how many, and whose.
    pub(super) unanswered: usize,
    by_group: BTreeMap<P, Group<P>>,
    /// Counts the requests, in order to know the oldest.
    asked: u64,
}

/// The unanswered requests of a group of peers, by its members: each with its number in order, the oldest
/// first.
type Group<P> = BTreeMap<P, VecDeque<(u64, u32)>>;

/// What becomes of a request, by the number of those that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// The request waits, too.
    Free,
    /// The request takes the place of this one, of a peer that has more than the newcomer would have.
    InsteadOf(u32),
    /// There is no room, and no request that should give way.
    Full,
}

impl<P: Copy + Ord> Listener<P> {
    pub(super) fn new(backlog: usize, group: fn(P) -> [P; 2]) -> Listener<P> {
        Listener { backlog: backlog.max(1), group, unanswered: 0, by_group: BTreeMap::new(), asked: 0 }
    }

    pub(super) fn room_for(&self, peer: P) -> Room {
        if self.unanswered < self.backlog {
            return Room::Free;
        }
        let [group, member] = (self.group)(peer);
        let own = self.by_group.get(&group);
        let of_group = |group: &Group<P>| group.values().map(VecDeque::len).sum::<usize>();
        let busiest = self.by_group.values().max_by_key(|group| of_group(group));
        if let Some(busiest) = busiest
            && of_group(busiest) > own.map_or(0, of_group) + 1
        {
            return Room::InsteadOf(oldest_of_the_busiest(busiest).1);
        }
        // The group has its share. A member that has most of it keeps no other member out.
        let Some(own) = own else { return Room::Full };
        match oldest_of_the_busiest(own) {
            (most, oldest) if most > own.get(&member).map_or(0, VecDeque::len) + 1 => Room::InsteadOf(oldest),
            _ => Room::Full,
        }
    }

    pub(super) fn ask(&mut self, peer: P, id: u32) {
        let [group, member] = (self.group)(peer);
        let requests = self.by_group.entry(group).or_default().entry(member).or_default();
        requests.push_back((self.asked, id));
        self.asked += 1;
        self.unanswered += 1;
    }

    /// A request has got its answer. It may have been counted by another listener for the same service.
    pub(super) fn answered(&mut self, peer: P, id: u32) {
        let [group, member] = (self.group)(peer);
        let Some(members) = self.by_group.get_mut(&group) else { return };
        let Some(requests) = members.get_mut(&member) else { return };
        let before = requests.len();
        requests.retain(|(_, known)| *known != id);
        self.unanswered -= before - requests.len();
        if requests.is_empty() {
            members.remove(&member);
        }
        if members.is_empty() {
            self.by_group.remove(&group);
        }
    }
}

/// Finds the member of a group that has the most requests: how many, and the oldest one. Of several such
/// members, the one that has waited the longest.
fn oldest_of_the_busiest<P>(group: &Group<P>) -> (usize, u32) {
    let requests = group.values().max_by_key(|requests| (requests.len(), Reverse(requests[0])));
    let requests = requests.expect("a group that has no request is forgotten");
    (requests.len(), requests[0].1)
}
