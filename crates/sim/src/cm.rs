//! Two communication managers and a wire between them that loses, repeats and reorders; above each, a program
//! that makes and releases connections at random. The clock of a manager may leap, as after its machine was
//! suspended.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_proto::cm::{Config, Event, MAX_RETRIES, Manager, RESPONSE_TIMEOUT};
use adverb_wire::ib::cm::{Path, Rej, RejectReason, Rep, Req};

use crate::Random;

const SERVICE: u64 = 0x0106_1c06;

/// What a program thinks of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Active: it has asked.
    Asked,
    /// Passive: it was asked.
    WasAsked,
    /// Passive: it has accepted.
    Accepted,
    /// Active: the peer has accepted.
    Replied,
    Established,
    /// The peer wants to release.
    Leaving,
    /// The program has released the connection, or agreed to its release.
    Left,
    /// Over; timed wait may follow.
    Over,
    /// The program has lost interest.
    Destroyed,
}

#[derive(Debug)]
struct Connection {
    /// Random bytes that tell connections apart: the same at both ends.
    token: [u8; 8],
    stage: Stage,
    /// Timed wait is over, too.
    rested: bool,
}

/// What a program is going to do.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connect,
    Answer,
    Ready,
    /// Data have come.
    Data,
    Leave,
}

enum Item {
    Deliver { to: usize, bytes: Box<[u8; 256]> },
    Act { side: usize, connection: u32, step: Step },
    Leap { side: usize, by: Duration },
}

/// How unreliable the wire is: one in so many datagrams; 0 for none.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) lost: usize,
    pub(crate) repeated: usize,
    /// Leaps of the clock of each end, of up to [`LONGEST_LEAP`].
    pub(crate) leaps: usize,
}

/// The longest leap of a clock. Two of them are shorter than all retries together.
const LONGEST_LEAP: Duration = Duration::from_secs(20);
/// The time in which everything begins: programs plan their first steps for it, and clocks leap in it.
const BEGINNING: Duration = Duration::from_secs(6);

struct World {
    managers: [Manager<usize>; 2],
    programs: [BTreeMap<u32, Connection>; 2],
    agenda: BTreeMap<(Duration, usize), Item>,
    now: Duration,
    /// How far the clock of each end has leapt.
    leapt: [Duration; 2],
    entries: usize,
    random: Random,
    wire: Wire,
    next_qpn: u32,
    established: usize,
    events: u64,
}

fn token(private_data: &[u8]) -> [u8; 8] {
    private_data[..8].try_into().unwrap()
}

fn private_data<const N: usize>(token: [u8; 8]) -> [u8; N] {
    adverb_wire::ib::cm::private_data(&token).unwrap()
}

impl World {
    fn new(seed: u64, wire: Wire) -> World {
        let managers = [0, 1].map(|side| {
            let mut manager = Manager::new(Config {
                prefix: 5,
                prefix_bits: 3,
                key: [seed, side],
                ca_guid: side,
                max_connections: 100,
                patience: Duration::ZERO,
            });
            manager.listen(SERVICE, 100).unwrap();
            manager
        });
        World {
            managers,
            programs: [BTreeMap::new(), BTreeMap::new()],
            agenda: BTreeMap::new(),
            now: Duration::ZERO,
            leapt: [Duration::ZERO; 2],
            entries: 0,
            random: Random(seed),
            wire,
            next_qpn: 16,
            established: 0,
            events: 0,
        }
    }

    fn later(&mut self, at_most_ms: usize, item: Item) {
        self.entries += 1;
        let delay = Duration::from_millis(self.random.below(at_most_ms) as u64);
        self.agenda.insert((self.now + delay, self.entries), item);
    }

    fn plan(&mut self, side: usize, connection: u32, step: Step) {
        self.later(BEGINNING.as_millis() as usize, Item::Act { side, connection, step });
    }

    /// The time by the clock of an end.
    fn clock(&self, side: usize) -> Duration {
        self.now + self.leapt[side]
    }

    fn qpn(&mut self) -> u32 {
        self.next_qpn += 1;
        self.next_qpn
    }

    fn act(&mut self, side: usize, id: u32, step: Step) {
        let now = self.clock(side);
        if let Step::Connect = step {
            let token = token(&self.random.bytes(8));
            let req = Req {
                service_id: SERVICE,
                local_qpn: self.qpn(),
                remote_response_timeout: RESPONSE_TIMEOUT,
                local_response_timeout: RESPONSE_TIMEOUT,
                max_cm_retries: MAX_RETRIES,
                primary: Path { local_ack_timeout: 18, ..Path::default() },
                private_data: private_data(token),
                ..Req::default()
            };
            let id = self.managers[side].connect(1 - side, &req, now).unwrap();
            self.programs[side].insert(id, Connection { token, stage: Stage::Asked, rested: false });
            return;
        }
        let qpn = self.qpn();
        let one_in_eight = self.random.chance(8);
        let (manager, connection) = (&mut self.managers[side], self.programs[side].get_mut(&id).unwrap());
        let refusal = Rej {
            reason: RejectReason::CONSUMER_DEFINED,
            private_data: private_data(connection.token),
            ..Rej::default()
        };
        match (step, connection.stage) {
            (_, Stage::Over | Stage::Destroyed | Stage::Left) => {}
            (Step::Data, Stage::Accepted) => manager.establish(id).unwrap(),
            (Step::Data, _) => {}
            (_, stage) if one_in_eight => {
                if stage == Stage::WasAsked || stage == Stage::Replied {
                    manager.reject(id, &refusal, now).unwrap();
                } else {
                    manager.destroy(id, now);
                }
                connection.stage = Stage::Destroyed;
            }
            (Step::Answer, Stage::WasAsked) => {
                let rep =
                    Rep { local_qpn: qpn, private_data: private_data(connection.token), ..Rep::default() };
                manager.accept(id, &rep, now).unwrap();
                connection.stage = Stage::Accepted;
            }
            (Step::Ready, Stage::Replied) => {
                manager.ready(id).unwrap();
                connection.stage = Stage::Established;
                let token = connection.token;
                let peer = self.programs[1 - side].iter().find(|(_, peer)| peer.token == token);
                let peer = *peer.expect("the peer has accepted").0;
                self.plan(1 - side, peer, Step::Data);
                self.plan(side, id, Step::Leave);
            }
            (Step::Leave, Stage::Established | Stage::Leaving) => {
                manager.disconnect(id, now).unwrap();
                connection.stage = if connection.stage == Stage::Leaving { Stage::Over } else { Stage::Left };
            }
            (step, stage) => panic!("{step:?} in {stage:?}"),
        }
    }

    fn event(&mut self, side: usize, event: Event<usize>) {
        if let Event::Request { connection: id, peer, request } = &event {
            assert_eq!(*peer, 1 - side);
            let token = token(&request.private_data);
            // Never told twice.
            assert!(self.programs[side].values().all(|other| other.token != token), "told twice");
            let connection = Connection { token, stage: Stage::WasAsked, rested: false };
            assert!(self.programs[side].insert(*id, connection).is_none());
            self.plan(side, *id, Step::Answer);
            return;
        }
        let (Event::Reply { connection: id, .. }
        | Event::Established { connection: id }
        | Event::Rejected { connection: id, .. }
        | Event::TimedOut { connection: id }
        | Event::Disconnected { connection: id, .. }
        | Event::TimewaitExit { connection: id }) = event
        else {
            panic!("{event:?}")
        };
        let connection = self.programs[side].get_mut(&id).unwrap();
        assert!(!connection.rested, "{event:?}");
        let (next, step) = match (&event, connection.stage) {
            (Event::Reply { reply, .. }, Stage::Asked) => {
                assert_eq!(token(&reply.private_data), connection.token);
                (Stage::Replied, Some(Step::Ready))
            }
            (Event::Established { .. }, Stage::Accepted) => {
                self.established += 1;
                (Stage::Established, Some(Step::Leave))
            }
            (Event::Rejected { .. }, Stage::Destroyed | Stage::Over | Stage::Left | Stage::Leaving) => {
                panic!("{event:?} in {:?}", connection.stage)
            }
            (Event::Rejected { .. }, _) => (Stage::Over, None),
            (Event::TimedOut { .. }, Stage::Asked | Stage::Accepted) => {
                assert!(self.wire.lost > 0, "an end gives up that hears its peer");
                (Stage::Over, None)
            }
            (Event::Disconnected { asked: true, .. }, Stage::Accepted | Stage::Established) => {
                (Stage::Leaving, Some(Step::Leave))
            }
            (Event::Disconnected { asked: false, .. }, Stage::Left) => (Stage::Over, None),
            (Event::TimewaitExit { .. }, Stage::Over) => {
                connection.rested = true;
                (Stage::Over, None)
            }
            (event, stage) => panic!("{event:?} in {stage:?}"),
        };
        connection.stage = next;
        if let Some(step) = step {
            self.plan(side, id, step);
        }
    }

    /// Sends and tells all that there is.
    fn drain(&mut self) {
        for side in [0, 1] {
            while let Some((to, bytes)) = self.managers[side].poll_transmit() {
                assert_eq!(to, 1 - side);
                let bytes = Box::new(bytes);
                let Wire { lost, repeated, .. } = self.wire;
                if lost == 0 || !self.random.chance(lost) {
                    self.later(200, Item::Deliver { to, bytes: bytes.clone() });
                }
                if repeated != 0 && self.random.chance(repeated) {
                    self.later(3000, Item::Deliver { to, bytes });
                }
            }
            while let Some(event) = self.managers[side].poll_event() {
                self.event(side, event);
            }
        }
    }

    fn run(&mut self) {
        self.drain();
        loop {
            let agenda = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let leapt = self.leapt;
            let deadlines = [0, 1].map(|side: usize| {
                let deadline = self.managers[side].deadline();
                // One that a leap has passed is due now.
                deadline.map(|deadline| deadline.saturating_sub(leapt[side]).max(self.now))
            });
            let Some(now) = agenda.into_iter().chain(deadlines.into_iter().flatten()).min() else { break };
            assert!(now >= self.now);
            self.now = now;
            self.events += 1;
            for side in [0, 1] {
                if deadlines[side] == Some(now) {
                    let clock = self.clock(side);
                    self.managers[side].handle_timeout(clock);
                }
            }
            if agenda == Some(now) {
                match self.agenda.pop_first().unwrap().1 {
                    Item::Deliver { to, bytes } => {
                        // What is late or repeated is ignored.
                        let clock = self.clock(to);
                        let _ = self.managers[to].receive(&*bytes, 1 - to, clock);
                    }
                    Item::Leap { side, by } => self.leapt[side] += by,
                    Item::Act { side, connection, step } => self.act(side, connection, step),
                }
            }
            self.drain();
        }
    }
}

/// How a run has ended.
pub(crate) struct ManagersOutcome {
    /// Connections that were made, and those that were asked for.
    pub(crate) established: usize,
    pub(crate) asked: usize,
    /// Datagrams, timers and steps of the programs.
    pub(crate) events: u64,
}

/// Lets the programs work, and checks how it ends.
pub(crate) fn run(seed: u64, wire: Wire) -> ManagersOutcome {
    let mut world = World::new(seed, wire);
    for side in [0, 1] {
        for _ in 0..10 {
            world.plan(side, 0, Step::Connect);
        }
        for _ in 0..wire.leaps {
            let by = Duration::from_millis(world.random.below(LONGEST_LEAP.as_millis() as usize) as u64);
            world.later(3 * BEGINNING.as_millis() as usize, Item::Leap { side, by });
        }
    }
    world.run();
    for side in [0, 1] {
        for (id, connection) in &world.programs[side] {
            let over = matches!(connection.stage, Stage::Over | Stage::Destroyed);
            assert!(over, "{id:#x} {connection:?} without an end");
        }
        assert!(world.managers[side].is_empty());
    }
    ManagersOutcome { established: world.established, asked: 20, events: world.events }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(seed: u64, wire: Wire) -> ManagersOutcome {
        println!("seed {seed}");
        run(seed, wire)
    }

    // IB-CM-19, IB-CM-27, IB-CM-41
    #[test]
    fn reliable_wire() {
        let (mut established, mut of) = (0, 0);
        for seed in 0..30 {
            let outcome = seeded(seed, Wire { lost: 0, repeated: 0, leaps: 0 });
            established += outcome.established;
            of += outcome.asked;
        }
        // Programs refuse or lose interest at up to three points.
        assert!(established > of / 2, "{established} of {of}");
    }

    #[test]
    fn nobody_gives_up_because_a_clock_leaps() {
        for seed in 400..430 {
            seeded(seed, Wire { lost: 0, repeated: 0, leaps: 1 });
        }
    }

    // IB-CM-20, IB-CM-28, IB-CM-30, IB-CM-40
    #[test]
    fn some_loss() {
        for seed in 100..140 {
            seeded(seed, Wire { lost: 10, repeated: 10, leaps: 0 });
        }
    }

    #[test]
    fn much_loss() {
        for seed in 200..240 {
            seeded(seed, Wire { lost: 2, repeated: 3, leaps: 0 });
        }
    }

    // IB-CM-16
    #[test]
    fn nothing_arrives() {
        let outcome = seeded(300, Wire { lost: 1, repeated: 0, leaps: 0 });
        assert_eq!(outcome.established, 0);
    }
}
