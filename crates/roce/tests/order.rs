//! In which order things are seen, on each way that packets take: up to 100,000 messages there and back, and
//! reads with writes behind them. The way is chosen once in a process, so each has one of its own.

use adverb_core::conformance::fixture::{
    Home, Memory, Pair, QKEY, Shape, Side, TEST_TIMEOUT, path, signalled,
};
use adverb_core::conformance::{
    self, End, Site, a_long_conversation, converse, pair_with_one_queue_each, replies, rounds, runs_again,
};
use adverb_core::cq::CompletionQueue;
use adverb_core::qp::{
    AttributeMask as M, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State,
};
use adverb_core::request::{Datagram, Opcode, ReceiveRequest, SendRequest, Status};
use adverb_core::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};
use adverb_core::transport::TransportFactory;
use adverb_core::xrc::{XrcDomain, XrcDomainOptions};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Messages there and back before each change. A mistake of the order that programs have met showed in one of
/// ten. By the network, a reply by another queue pair may come early now and then, and the test counts how
/// often.
const SOME: u32 = 10_000;
/// Messages there and back in the night, when [`LONG`] is set.
const MANY: u32 = 100_000;
const LONG: &str = "ADVERB_TEST_LONG";
/// By what messages go there and back.
const CONVERSATIONS: [&str; 4] = [
    "conversation",
    "conversation_of_extended_connections",
    "conversation_of_unreliable_connections",
    "conversation_of_datagrams",
];

/// Messages of a conversation.
fn many() -> u32 {
    if std::env::var_os(LONG).is_some() { MANY } else { SOME }
}

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1").by_attributes()
}

#[test]
fn conversation() {
    a_long_conversation(&site());
}

#[test]
fn conversations_of_all_kinds() {
    if rounds().is_some() {
        conformance::a_send_is_complete_before_its_reply(&site());
    }
}

fn with_one_queue_each(site: &Site, service: Service) -> Pair {
    Pair::of(site, service, Shape { one_queue: true, ..Shape::default() }, &Home::new(site))
}

/// A conversation by unreliable connections: Sends wait for nobody there, and complete as soon as they have
/// left.
#[test]
fn conversation_of_unreliable_connections() {
    if let Some(rounds) = rounds() {
        let site = site();
        let pair = with_one_queue_each(&site, Service::Uc);
        assert_eq!(replies(&pair, 64, false, rounds), 0, "replies that came before");
    }
}

/// A conversation by unreliable datagrams: no reply comes before the completion of the message that it
/// answers.
#[test]
fn conversation_of_datagrams() {
    /// Bytes in front of each datagram, for the header of its route.
    const ROUTE: usize = 40;
    let Some(rounds) = rounds() else { return };
    let site = site();
    let Pair { client, server } = with_one_queue_each(&site, Service::Ud);
    let peer_path = path(&client.context, site.address);
    let memories = [&client, &server].map(|side| Memory::open(&side.domain, ROUTE + 2 * 64));
    let receive = |side: &Side, memory: &Memory| side.post_receive(1, &[memory.sge(0, ROUTE + 64)]);
    let send = |side: &Side, memory: &Memory, peer: &Side| {
        let sges = [memory.sge(ROUTE + 64, 64)];
        let datagram = Datagram { path: &peer_path, queue_pair: peer.queue_pair.number(), qkey: QKEY };
        let request = SendRequest {
            wr_id: 2,
            opcode: Opcode::Send,
            datagram: Some(datagram),
            ..signalled(&sges, (0, 0))
        };
        side.queue_pair.post_send(&request).unwrap();
    };
    let ends = [
        End {
            queue: &client.sends,
            receive: &|| receive(&client, &memories[0]),
            send: &|| send(&client, &memories[0], &server),
        },
        End {
            queue: &server.sends,
            receive: &|| receive(&server, &memories[1]),
            send: &|| send(&server, &memories[1], &client),
        },
    ];
    assert_eq!(converse(ends, rounds), 0, "replies that came before");
}

#[test]
fn reads() {
    if rounds().is_some() {
        conformance::reads_alone_bring_nothing_of_later_requests(&site());
    }
}

/// Two connections between the same two ends, each with completion queues of its own: one end speaks by the
/// first, and is answered by the second. Whoever sees the answer finds what it answers complete, unless
/// another thread is taking in the acknowledgement at another socket at that instant.
#[test]
fn conversation_of_two_connections() {
    let Some(rounds) = rounds() else { return };
    let (asking, answering) = (pair_with_one_queue_each(&site()), pair_with_one_queue_each(&site()));
    let rounds = u64::from(rounds);
    asking.server.post_receive(0, &[]);
    let answer = || {
        for round in 0..rounds {
            poll(&asking.server.receives, 1);
            asking.server.post_receive(round, &[]);
            answering.server.post(round, Opcode::Send, &[], (0, 0));
            poll(&answering.server.sends, 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(answer);
        let mut early = 0;
        for round in 0..rounds {
            answering.client.post_receive(round, &[]);
            asking.client.post(round, Opcode::Send, &[], (0, 0));
            poll(&answering.client.receives, 1);
            let there = asking.client.sends.poll(1, |done| assert_eq!(done.status, Status::Success)).unwrap();
            if there == 0 {
                early += 1;
                poll(&asking.client.sends, 1);
            }
        }
        // By the network the background thread may be at the socket of the acknowledgement when the answer is
        // found at another one. A channel has both, one behind the other, whoever takes them out. On a busy
        // machine a thread loses its processor between the two more often: in about 1 % of the rounds.
        // Without the order it is most of them.
        let most = if std::env::var("ADVERB_LOCAL").unwrap() == "off" { rounds / 10 } else { 0 };
        assert!(early <= most, "{early} answers of {rounds} came before");
    });
}

/// Two messages come at once by one connection, and the answer goes by another one. One thread takes both in,
/// and the first of them from the queue. Another thread finds the second message and answers it, though it
/// has taken in nothing. The answer comes after the completions of both messages.
#[test]
fn conversation_of_two_connections_by_two_threads() {
    let Some(rounds) = rounds() else { return };
    let (asking, answering) = (pair_with_one_queue_each(&site()), pair_with_one_queue_each(&site()));
    let rounds = u64::from(rounds);
    std::thread::scope(|scope| {
        // Either thread hears of the other's end.
        let ((go, told), (tells, gone)) = (channel(), channel());
        let queue = &asking.server.receives;
        scope.spawn(move || {
            for () in told {
                poll(queue, 1);
                tells.send(()).unwrap();
            }
        });
        let mut early = 0;
        for round in 0..rounds {
            answering.client.post_receive(round, &[]);
            for _ in 0..2 {
                asking.server.post_receive(round, &[]);
            }
            for _ in 0..2 {
                asking.client.post(round, Opcode::Send, &[], (0, 0));
            }
            go.send(()).unwrap();
            gone.recv().unwrap();
            poll(queue, 1);
            answering.server.post(round, Opcode::Send, &[], (0, 0));
            poll(&answering.client.receives, 1);
            let there = asking.client.sends.poll(2, |done| assert_eq!(done.status, Status::Success)).unwrap();
            early += u64::from(there < 2);
            poll(&asking.client.sends, 2 - there);
            poll(&answering.server.sends, 1);
        }
        assert_eq!(early, 0, "answers of {rounds} that came before");
    });
}

/// Polls until so many completions have come.
fn poll(queue: &CompletionQueue, count: usize) {
    let limit = Instant::now() + TEST_TIMEOUT;
    let mut found = 0;
    while found < count {
        found += queue.poll(count - found, |done| assert_eq!(done.status, Status::Success)).unwrap();
        assert!(Instant::now() < limit, "a completion does not come");
    }
}

/// Requests that a queue pair has in its queue at once.
const DEEP: usize = 16;

/// Writes and Sends wait behind reads of which the responder cannot keep all, and still nothing is sent
/// twice: this requester would fail.
#[test]
fn requests_behind_long_reads() {
    if rounds().is_none() {
        return;
    }
    const LONG: usize = 8 << 20;
    const PART: usize = 192 << 10;
    let Pair { client, server } = Pair::connect(&site());
    let retries = Attributes { timeout: 0, retry_count: 0, ..Attributes::default() };
    client.to(State::Sqd, M::empty(), &Attributes::default());
    client.to(State::Sqd, M::TIMEOUT | M::RETRY_COUNT, &retries);
    client.to(State::Rts, M::empty(), &Attributes::default());
    let (there, back) = (Memory::open(&server.domain, LONG), Memory::open(&client.domain, LONG));
    let new = Memory::open(&client.domain, 8);
    new.set(&[0xff; 8]);
    let remote = |at: usize| (there.address(at), there.region.key());
    for round in 0..4 {
        let old = there.fill(round);
        server.post_receive(round, &[]);
        client.post(1, Opcode::Read, &[back.all()], remote(0));
        client.post(2, Opcode::Write, &[new.all()], remote(LONG - 8));
        client.post(3, Opcode::Send, &[], (0, 0));
        for wr_id in 1..=3 {
            client.sent_well(wr_id);
        }
        server.received_well(round);
        assert!(back.bytes() == old, "round {round}: what was there before");
        assert_eq!(there.bytes()[LONG - 8..], new.bytes(), "round {round}: what was written");
    }
    // Without a pause, so that there is always something to be answered.
    let old = there.fill(9);
    let steps = LONG / PART;
    for step in 0..2 * steps {
        if step >= DEEP {
            client.sent_well((step - DEEP) as u64);
        }
        let at = step / 2 * PART;
        if step % 2 == 0 {
            client.post(step as u64, Opcode::Read, &[back.sge(at, PART)], remote(at));
        } else {
            client.post(step as u64, Opcode::Write, &[new.all()], remote(at));
        }
    }
    for step in 2 * steps - DEEP..2 * steps {
        client.sent_well(step as u64);
    }
    let read = steps * PART;
    assert!(back.bytes()[..read] == old[..read], "what was there before");
}

/// One end of XRC: what it sends goes by one queue pair, what it receives comes by another one.
struct XrcEnd {
    home: Home,
    queue: Arc<CompletionQueue>,
    receives: Arc<SharedReceiveQueue>,
    initiator: Arc<QueuePair>,
    target: Arc<QueuePair>,
    memory: Memory,
}

impl XrcEnd {
    fn new(site: &Site) -> Self {
        let home = Home::new(site);
        let domain = XrcDomain::open(&home.context, XrcDomainOptions::default()).unwrap();
        let queue = CompletionQueue::new(&home.context, 64, None).unwrap();
        let sizes = SharedReceiveQueueAttributes { max_wr: 16, max_sge: 1, limit: 0 };
        let receives = SharedReceiveQueue::new_extended(&home.domain, sizes, &domain, &queue, None).unwrap();
        let options = QueuePairOptions {
            send_cq: queue.clone(),
            receive_cq: queue.clone(),
            srq: None,
            capabilities: Capabilities { max_send_wr: 16, max_send_sge: 1, ..Capabilities::default() },
            service: Service::XrcSend,
            signal_all: true,
        };
        let initiator = QueuePair::new(&home.domain, options).unwrap();
        let target = QueuePair::new_target(&domain).unwrap();
        target.enter_handle(1, &domain, true).unwrap();
        let memory = Memory::open(&home.domain, 128);
        Self { home, queue, receives, initiator, target, memory }
    }

    fn connect(&self, peer: &Self, site: &Site) {
        let attributes = |number: u32| Attributes {
            path: path(&self.home.context, site.address),
            path_mtu: 1024,
            destination: number,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            port: 1,
            ..Attributes::default()
        };
        let route = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let retries = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let deep = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        for (pair, number, to_receive, to_send) in [
            (&self.initiator, peer.target.number(), route, M::SQ_PSN | retries),
            (&self.target, peer.initiator.number(), route | deep, M::SQ_PSN | M::TIMEOUT),
        ] {
            let to_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
            for (state, mask) in [(State::Init, to_init), (State::Rtr, to_receive), (State::Rts, to_send)] {
                let attributes = Attributes { state: Some(state), ..attributes(number) };
                pair.modify(&attributes, mask | M::STATE).unwrap();
            }
        }
    }

    fn receive(&self) {
        self.receives.post_receive(&ReceiveRequest { wr_id: 1, sges: &[self.memory.sge(0, 64)] }).unwrap();
    }

    fn send(&self, peer: &Self) {
        let sges = [self.memory.sge(64, 64)];
        let request =
            SendRequest { wr_id: 2, shared_queue: peer.receives.number(), ..signalled(&sges, (0, 0)) };
        self.initiator.post_send(&request).unwrap();
    }
}

impl Drop for XrcEnd {
    fn drop(&mut self) {
        self.initiator.destroy();
        self.target.leave_handle(1);
    }
}

#[test]
fn conversation_of_extended_connections() {
    if let Some(rounds) = rounds() {
        let site = site();
        let (here, there) = (XrcEnd::new(&site), XrcEnd::new(&site));
        here.connect(&there, &site);
        there.connect(&here, &site);
        let ends = [
            End { queue: &here.queue, receive: &|| here.receive(), send: &|| here.send(&there) },
            End { queue: &there.queue, receive: &|| there.receive(), send: &|| there.send(&here) },
        ];
        assert_eq!(converse(ends, rounds), 0, "replies that came before");
    }
}

/// The ways of packets: by the network, with trains and without on either side, and by shared memory.
const NETWORK: &[(&str, &str)] = &[("ADVERB_LOCAL", "off")];
const SINGLE: &[(&str, &str)] = &[("ADVERB_LOCAL", "off"), ("ADVERB_WITHOUT", "gso")];
const CUT: &[(&str, &str)] = &[("ADVERB_LOCAL", "off"), ("ADVERB_WITHOUT", "gro")];
const MEMORY: &[(&str, &str)] = &[("ADVERB_LOCAL", "auto")];
const STRICT: &[(&str, &str)] = &[("ADVERB_LOCAL", "strict")];
/// By shared memory where neither process reads the other's.
const COPIED: &[(&str, &str)] = &[("ADVERB_LOCAL", "strict"), ("ADVERB_WITHOUT", "cma")];

// PRACTICE-ORDER-1
#[test]
fn by_the_network_a_send_is_complete_before_its_reply() {
    if rounds().is_none() {
        for test in CONVERSATIONS {
            runs_again(test, NETWORK, many());
        }
        runs_again("conversations_of_all_kinds", NETWORK, many());
    }
}

// PRACTICE-ORDER-1
#[test]
fn without_trains_a_send_is_complete_before_its_reply() {
    if rounds().is_none() {
        for way in [SINGLE, CUT] {
            for test in CONVERSATIONS {
                runs_again(test, way, many());
            }
        }
    }
}

// PRACTICE-ORDER-1
#[test]
fn by_shared_memory_a_send_is_complete_before_its_reply() {
    if rounds().is_none() {
        for test in CONVERSATIONS {
            runs_again(test, MEMORY, many());
            runs_again(test, STRICT, many());
        }
        for way in [MEMORY, STRICT] {
            runs_again("conversations_of_all_kinds", way, many());
        }
    }
}

// PRACTICE-ORDER-1
#[test]
fn on_each_way_a_send_is_complete_before_a_reply_by_another_completion_queue() {
    if rounds().is_none() {
        for (way, rounds) in [(NETWORK, SOME), (SINGLE, SOME), (MEMORY, many()), (STRICT, many())] {
            runs_again("conversation_of_two_connections", way, rounds);
        }
    }
}

// PRACTICE-ORDER-1
#[test]
fn by_shared_memory_a_send_is_complete_before_a_reply_to_what_another_thread_has_taken_in() {
    if rounds().is_none() {
        for way in [MEMORY, STRICT] {
            runs_again("conversation_of_two_connections_by_two_threads", way, SOME);
        }
    }
}

// PRACTICE-ORDER-2
#[test]
fn on_each_way_a_read_brings_nothing_of_later_requests() {
    if rounds().is_none() {
        for way in [NETWORK, SINGLE, MEMORY, STRICT] {
            runs_again("reads", way, 0);
        }
    }
}

// PRACTICE-ORDER-2
#[test]
fn on_each_way_requests_behind_long_reads_cost_no_retry() {
    if rounds().is_none() {
        for way in [NETWORK, SINGLE, MEMORY, STRICT, COPIED] {
            runs_again("requests_behind_long_reads", way, 0);
        }
    }
}
