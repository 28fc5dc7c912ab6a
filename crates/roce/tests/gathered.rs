//! Posts that wait to be gathered, by the network: they leave together, and all of them leave.

mod support;

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape, Side, TEST_TIMEOUT};
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::request::{Opcode, Status};
use std::io::{BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use support::{join, number_behind};

/// Says to a child how it is to end.
const ENDING: &str = "ADVERB_TEST_ENDING";
/// Requests that are under way at once.
const DEEP: u32 = 32;

fn shape() -> Shape {
    Shape { sends: DEEP, receives: DEEP, receive_completions: DEEP, ..Shape::default() }
}

/// Counters belong to the whole process, so one test runs at a time.
fn alone() -> (MutexGuard<'static, ()>, Site) {
    static ONE: Mutex<()> = Mutex::new(());
    (ONE.lock().unwrap_or_else(|e| e.into_inner()), site())
}

/// The network, within one process, too.
fn site() -> Site {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: before the first engine of the process; the tests' own threads wait here.
    ONCE.call_once(|| unsafe { std::env::set_var("ADVERB_LOCAL", "off") });
    support::site()
}

fn pair(site: &Site) -> Pair {
    let pair = Pair::of(site, Service::Rc, shape(), &Home::new(site));
    // Where the peer lives is known now, and polls are expected.
    pair.server.post_receive(0, &[]);
    pair.client.post(0, Opcode::Send, &[], (0, 0));
    pair.client.sent_well(0);
    pair.server.received_well(0);
    pair
}

/// A program that posts one request at a time, and then polls until all are complete.
#[test]
fn a_stream_of_single_posts_leaves_in_trains() {
    const ROUNDS: u64 = 50;
    let (_guard, site) = alone();
    let Pair { client, server } = pair(&site);
    let memory = Memory::open(&client.domain, 64);
    let there = Memory::open(&server.domain, 64 * DEEP as usize);
    let counters = client.context.device().counters();
    let mut fewest = u64::MAX;
    for round in 0..ROUNDS {
        let calls = counters.tx_calls.get();
        let data = memory.fill(round);
        for index in 0..DEEP as usize {
            server.post_receive(index as u64, &[there.sge(64 * index, 64)]);
        }
        for index in 0..DEEP {
            client.post(index.into(), Opcode::Send, &[memory.all()], (0, 0));
        }
        for index in 0..DEEP {
            client.sent_well(index.into());
        }
        for index in 0..DEEP {
            server.received_well(index.into());
        }
        assert!(there.bytes().chunks(64).all(|message| message == data), "round {round}");
        // The acknowledgements are counted, too: both ends are here.
        fewest = fewest.min(counters.tx_calls.get() - calls);
    }
    // Where this thread is kept from its processor, the background thread sends what waits: not in all
    // rounds.
    assert!(fewest <= u64::from(DEEP) / 2, "{fewest} system calls for {DEEP} messages");
}

/// A program that posts, and waits for something else than a completion: the peer has all of it, and none of
/// the polls is this end's.
#[test]
fn posts_that_wait_to_be_gathered_leave_without_a_poll() {
    let (_guard, site) = alone();
    let Pair { client, server } = pair(&site);
    for round in 0..100 {
        for index in 0..DEEP {
            server.post_receive(index.into(), &[]);
        }
        for index in 0..DEEP {
            client.post(index.into(), Opcode::Send, &[], (0, 0));
        }
        for index in 0..DEEP {
            server.received_well(index.into());
        }
        for index in 0..DEEP {
            client.sent_well(index.into());
        }
        assert_eq!(client.queue_pair.state(), State::Rts, "round {round}");
    }
}

/// The program goes to sleep until a completion event comes.
#[test]
fn posts_that_wait_to_be_gathered_leave_before_the_program_sleeps() {
    let (_guard, site) = alone();
    let Pair { client, server } = pair(&site);
    for _ in 0..100 {
        for index in 0..4 {
            server.post_receive(index, &[]);
            client.post(index, Opcode::Send, &[], (0, 0));
        }
        client.sends.arm(false).unwrap();
        for index in 0..4 {
            server.received_well(index);
        }
        for index in 0..4 {
            client.sent_well(index);
        }
    }
}

fn side(site: &Site) -> Side {
    let side = Side::unconnected(&Home::new(site), shape(), Service::Rc);
    side.begin();
    side
}

/// Posts many messages without a poll in between, and ends at once.
fn child(ending: &str) -> ! {
    let site = site();
    let side = side(&site);
    println!("\nnumber {}", side.queue_pair.number());
    join(&side, &site, number_behind("number ", &mut std::io::stdin().lock()));
    side.post(0, Opcode::Send, &[], (0, 0));
    side.sent_well(0);
    for index in 1..DEEP {
        side.post(index.into(), Opcode::Send, &[], (0, 0));
    }
    match ending {
        "exit" => std::process::exit(0),
        "destroy" => drop(side),
        _ => side.to(State::Error, M::empty(), &Attributes::default()),
    }
    // SAFETY: ends the process, without the engine's part in it.
    unsafe { libc::_exit(0) }
}

fn ending_child(side: &Side, site: &Site, ending: &str) -> Child {
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "posts_leave_before_their_sender_ends", "--nocapture"])
        .env(ENDING, ending)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let number = number_behind("number ", &mut BufReader::new(other.stdout.take().unwrap()));
    // First: the other process posts as soon as it knows the number, and a packet that comes before this is
    // repeated after a while only.
    join(side, site, number);
    writeln!(other.stdin.as_mut().unwrap(), "number {}", side.queue_pair.number()).unwrap();
    other
}

#[test]
fn posts_leave_before_their_sender_ends() {
    if let Ok(ending) = std::env::var(ENDING) {
        child(&ending);
    }
    let (_guard, site) = alone();
    for ending in ["exit", "destroy", "error", "exit", "destroy", "error"] {
        let side = side(&site);
        for index in 0..DEEP {
            side.post_receive(index.into(), &[]);
        }
        let mut other = ending_child(&side, &site, ending);
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut received = 0;
        while received < DEEP as usize {
            received +=
                side.receives.poll(16, |done| assert_eq!(done.status, Status::Success, "{ending}")).unwrap();
            assert!(Instant::now() < deadline, "{ending}: {received} of {DEEP} messages have come");
            std::thread::yield_now();
        }
        assert!(other.wait().unwrap().success(), "{ending}");
    }
}
