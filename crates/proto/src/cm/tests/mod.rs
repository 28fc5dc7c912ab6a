//! Each rule by itself, between two managers that hear each other.

mod hostile;
mod making;
mod release;
mod sidr;

use super::*;

use adverb_wire::ib::cm::{
    Drep, Dreq, Mra, Path, RejectReason, Rtu, about, interval, port_space, private_data, service_id,
    sidr_status,
};
use adverb_wire::ib::mad::{Header, class, method};
use proptest::prelude::*;

const ZERO: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
/// Long enough for everything.
const EVER: Duration = Duration::from_secs(1 << 20);
const ACTIVE: u8 = 1;
const PASSIVE: u8 = 2;
const STRANGER: u8 = 3;
const ACTIVE_QPN: u32 = 0x11;
const PASSIVE_QPN: u32 = 0x22;

fn service() -> u64 {
    service_id(port_space::TCP, 7174)
}

fn config(peer: u8) -> Config {
    Config {
        prefix: peer.into(),
        prefix_bits: 8,
        key: [0x1234_5678_9abc_def0, peer.into()],
        ca_guid: peer.into(),
        max_connections: 64,
        patience: Duration::ZERO,
    }
}

fn req() -> Req {
    Req {
        service_id: service(),
        local_qpn: ACTIVE_QPN,
        starting_psn: 7,
        remote_response_timeout: RESPONSE_TIMEOUT,
        local_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: MAX_RETRIES,
        primary: Path { local_ack_timeout: 19, ..Path::default() },
        private_data: private_data(b"please").unwrap(),
        ..Req::default()
    }
}

fn rep() -> Rep {
    Rep { local_qpn: PASSIVE_QPN, private_data: private_data(b"welcome").unwrap(), ..Rep::default() }
}

fn no() -> Rej {
    Rej {
        reason: RejectReason::CONSUMER_DEFINED,
        private_data: private_data(b"no").unwrap(),
        ..Rej::default()
    }
}

fn parse(bytes: &[u8]) -> (u64, Message) {
    let mad = Mad::parse(bytes).unwrap();
    (mad.header.transaction_id.get(), Message::parse(mad).unwrap())
}

/// Everything that a manager sends.
fn sent(manager: &mut Manager<u8>) -> Vec<(u8, u64, Message)> {
    std::iter::from_fn(|| manager.poll_transmit())
        .map(|(to, bytes)| {
            let (transaction_id, message) = parse(&bytes);
            (to, transaction_id, message)
        })
        .collect()
}

fn events(manager: &mut Manager<u8>) -> Vec<Event<u8>> {
    std::iter::from_fn(|| manager.poll_event()).collect()
}

/// Two managers that hear each other.
struct Pair {
    active: Manager<u8>,
    passive: Manager<u8>,
    now: Duration,
}

impl Pair {
    fn new() -> Pair {
        let mut passive = Manager::new(config(PASSIVE));
        passive.listen(service(), 4).unwrap();
        Pair { active: Manager::new(config(ACTIVE)), passive, now: ZERO }
    }

    /// Delivers what the active side sends; returns it.
    fn forth(&mut self) -> Vec<Message> {
        let messages = sent(&mut self.active);
        for (to, transaction_id, message) in &messages {
            assert_eq!(*to, PASSIVE);
            let _ = self.passive.receive(&message.to_mad(*transaction_id).to_bytes(), ACTIVE, self.now);
        }
        messages.into_iter().map(|(_, _, message)| message).collect()
    }

    /// Delivers what the passive side sends; returns it.
    fn back(&mut self) -> Vec<Message> {
        let messages = sent(&mut self.passive);
        for (to, transaction_id, message) in &messages {
            assert_eq!(*to, ACTIVE);
            let _ = self.active.receive(&message.to_mad(*transaction_id).to_bytes(), PASSIVE, self.now);
        }
        messages.into_iter().map(|(_, _, message)| message).collect()
    }

    /// Active asks, and passive hears it.
    fn ask(&mut self) -> (u32, u32) {
        let a = self.active.connect(PASSIVE, &req(), self.now).unwrap();
        self.forth();
        let [Event::Request { connection: b, peer: ACTIVE, .. }] = events(&mut self.passive)[..] else {
            panic!()
        };
        (a, b)
    }

    /// Passive accepts, and active hears it.
    fn agree(&mut self) -> (u32, u32) {
        let (a, b) = self.ask();
        self.passive.accept(b, &rep(), self.now).unwrap();
        self.back();
        assert!(matches!(events(&mut self.active)[..], [Event::Reply { connection, .. }] if connection == a));
        (a, b)
    }

    fn establish(&mut self) -> (u32, u32) {
        let (a, b) = self.agree();
        self.active.ready(a).unwrap();
        self.forth();
        assert_eq!(events(&mut self.passive), [Event::Established { connection: b }]);
        (a, b)
    }

    /// Nothing is left, at the latest when all time has passed.
    fn end(mut self) {
        for manager in [&mut self.active, &mut self.passive] {
            manager.handle_timeout(self.now + SECOND * 10);
            assert!(manager.is_empty() && manager.remotes.is_empty() && manager.deadlines.is_empty());
            assert_eq!(manager.deadline(), None);
        }
    }
}

/// Runs a manager's clock until it has nothing to wait for; returns when it sent what.
fn wait(manager: &mut Manager<u8>) -> Vec<(Duration, Message)> {
    let mut messages = Vec::new();
    while let Some(at) = manager.deadline() {
        manager.handle_timeout(at);
        messages.extend(sent(manager).into_iter().map(|(_, _, message)| (at, message)));
    }
    messages
}
