//! Tests of handshakes with a process that is this one itself.

use super::*;
use crate::channel::counted::CountedRecords;
use adverb_core::conformance::fixture::TEST_TIMEOUT;
use adverb_core::engine;
use adverb_local::Doorbell;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

/// A transport that remembers whether each verdict was a channel.
#[derive(Default)]
struct Transport {
    hub: Hub<Self>,
    verdicts: Mutex<Vec<bool>>,
}

impl Side for Transport {
    type Traffic = CountedRecords;

    fn hub(&self) -> &Hub<Self> {
        &self.hub
    }

    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        connection.send_with(&[message], descriptors)
    }

    fn hear(bytes: &[u8]) -> Option<&[u8]> {
        Some(bytes)
    }

    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel<CountedRecords>>> {
        Channel::new(CountedRecords::default(), ((), Box::new(())), parts, false)
    }

    fn decided(self: &Arc<Self>, _: libc::pid_t, _: &[u32], channel: Option<&Arc<Channel<CountedRecords>>>) {
        lock(&self.verdicts).push(channel.is_some());
    }

    fn forget(&self, channel: &Channel<CountedRecords>) {
        self.hub.leave(channel, || ());
    }
}

fn until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
}

/// An accepted offer: the transport, and both ends of the connection by which the offer has come.
fn accepted() -> (Arc<Transport>, Arc<Connection>, Connection) {
    engine::install(&[adverb_core::null::FACTORY]);
    let side = Arc::new(Transport::default());
    let [here, there] = Connection::pair().unwrap();
    let here = Arc::new(here);
    let memory = Segment::create().unwrap().1;
    let bells = [(); 2].map(|()| Doorbell::new().unwrap());
    let descriptors = [memory.as_raw_fd(), bells[0].as_fd().as_raw_fd(), bells[1].as_fd().as_raw_fd()];
    let offer = Message::of_process(What::Offer, 1, None).to_bytes();
    there.send_with(&[&offer], &descriptors).unwrap();
    let mut buffer = [0; 64];
    let (bytes, along) = here.receive_with(&mut buffer).unwrap();
    side.hub.handshakes.message(&side, bytes, along.descriptors, true, &here);
    let mut answer = [0; 64];
    let begin = Instant::now();
    let answer = loop {
        match there.receive(&mut answer) {
            Ok(answer) => break Message::parse(answer).unwrap().what,
            Err(_) => assert!(begin.elapsed() < TEST_TIMEOUT, "no answer"),
        }
        std::thread::yield_now();
    };
    assert_eq!(answer, What::Accept);
    (side, here, there)
}

/// A process that offers, and says nothing more, although it lives.
#[test]
fn an_offer_that_is_not_confirmed_ends_after_a_while() {
    let (side, here, there) = accepted();
    until(|| !lock(&side.verdicts).is_empty());
    assert_eq!(*lock(&side.verdicts), [false]);
    assert_eq!(side.hub.handshakes.sizes(), (1, 0));
    assert!(there.has_hung_up(), "the other learns it");
    // It comes too late.
    let confirm = Message::of_process(What::Confirm, 1, None).to_bytes();
    side.hub.handshakes.message(&side, &confirm, Descriptors::default(), true, &here);
    assert_eq!(*lock(&side.verdicts), [false]);
}

/// This process may have been stopped for long: it takes in what has come meanwhile before an offer is void.
#[test]
fn time_passes_in_two_halves() {
    engine::install(&[adverb_core::null::FACTORY]);
    let [here, there] = Connection::pair().unwrap();
    let here = Arc::new(here);
    let process = here.process();
    let accepted = || {
        let side = Arc::new(Transport::default());
        let stage = OfferStage::Accepted { found: None, is_late: false };
        let (segment, _) = Segment::create().unwrap();
        let offer =
            OpenOffer { segment, ours: Bell::new().unwrap(), theirs: Bell::new().unwrap(), process, stage };
        lock(&side.hub.handshakes.open).insert(key(&here), offer);
        assert_eq!(side.hub.handshakes.time_passes(&here), TimePassed::Half);
        side
    };
    let side = accepted();
    assert_eq!(side.hub.handshakes.time_passes(&here), TimePassed::All { process });
    assert_eq!(side.hub.handshakes.time_passes(&here), TimePassed::Needless);
    let side = accepted();
    let confirm = Message::of_process(What::Confirm, 1, None).to_bytes();
    side.hub.handshakes.message(&side, &confirm, Descriptors::default(), true, &here);
    assert_eq!(side.hub.handshakes.time_passes(&here), TimePassed::Needless);
    assert_eq!(*lock(&side.verdicts), [true]);
    assert!(!there.has_hung_up());
}
