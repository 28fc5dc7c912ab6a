//! Two processes of one host: how they reach each other, and what happens when one ends.

#[path = "support/packets.rs"]
mod packets;
mod support;

use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape, Side, TEST_TIMEOUT};
use adverb_core::conformance::{End, Site, runs_again, speak};
use adverb_core::cq::CompletionQueue;
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::request::{Opcode, Status};
use packets::{Peer, send_only};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Instant;
use support::{StoppedProcess, join, number_behind, site};

/// Says to a child how it is to end.
const ENDING: &str = "ADVERB_TEST_ENDING";
/// Bytes of a message that goes in all ways that there are.
const LONG: usize = 300_000;

/// A reliable queue pair in INIT.
fn side(site: &Site) -> Side {
    let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    side.begin();
    side
}

/// Receives one message, and ends at once.
fn child(ending: &str) {
    let site = site();
    let side = side(&site);
    println!("\nnumber {}", side.queue_pair.number());
    join(&side, &site, number_behind("number ", &mut std::io::stdin().lock()));
    side.post_receive(1, &[]);
    println!("\nready 1");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while side.receives.poll(1, |_| ()).unwrap() == 0 {
        assert!(Instant::now() < deadline, "nothing comes");
        std::thread::yield_now();
    }
    match ending {
        "exit" => std::process::exit(0),
        "destroy" => drop(side),
        _ => side.to(State::Error, M::empty(), &Attributes::default()),
    }
    // SAFETY: ends the process, without the engine's part in it.
    unsafe { libc::_exit(0) }
}

/// However the receiver of a message ends once it has it, the sender's request succeeds.
// IB-RC-RSP-49
#[test]
fn a_receiver_that_ends_acknowledges_first() {
    if let Ok(ending) = std::env::var(ENDING) {
        return child(&ending);
    }
    let site = site();
    for ending in ["exit", "destroy", "error", "exit", "destroy", "error"] {
        let side = side(&site);
        let (mut other, _lines) =
            peer("a_receiver_that_ends_acknowledges_first", &side, &site, &[(ENDING, ending)]);
        side.post(1, Opcode::Send, &[], (0, 0));
        assert_eq!(side.sent().status, Status::Success, "{ending}");
        assert!(other.wait().unwrap().success(), "{ending}");
    }
}

/// A process that runs a test of this name as somebody's peer, and its queue pair, joined with `side` and
/// ready. It says what it is by this variable.
fn peer(test: &str, side: &Side, site: &Site, environment: &[(&str, &str)]) -> (Child, impl BufRead + use<>) {
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ENDING, "peer")
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap());
    let number = number_behind("number ", &mut lines);
    writeln!(other.stdin.as_mut().unwrap(), "number {}", side.queue_pair.number()).unwrap();
    join(side, site, number);
    number_behind("ready ", &mut lines);
    (other, lines)
}

/// The peer: receives one long message, sends it back, and lives until its input ends.
fn echo() {
    let site = site();
    let side = side(&site);
    let memory = Memory::open(&side.domain, LONG);
    println!("\nnumber {}", side.queue_pair.number());
    let mut input = std::io::stdin().lock();
    join(&side, &site, number_behind("number ", &mut input));
    side.post_receive(1, &[memory.all()]);
    println!("\nready 1");
    side.received_well(1);
    side.post(2, Opcode::Send, &[memory.all()], (0, 0));
    side.sent_well(2);
    println!("\nlocal {}", side.context.device().counters().rx_local.get());
    let mut rest = String::new();
    while input.read_line(&mut rest).is_ok_and(|count| count > 0) {}
}

/// A long message there and back. Returns the packets that the peer has got through shared memory.
fn there_and_back(test: &str, environment: &[(&str, &str)]) -> u32 {
    let site = site();
    let side = side(&site);
    let memory = Memory::open(&side.domain, 2 * LONG);
    let bytes = memory.fill(7);
    let (mut other, mut lines) = peer(test, &side, &site, environment);
    side.post_receive(1, &[memory.sge(LONG, LONG)]);
    side.post(1, Opcode::Send, &[memory.sge(0, LONG)], (0, 0));
    side.sent_well(1);
    side.received_well(1);
    let local = number_behind("local ", &mut lines);
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    assert_eq!(memory.bytes()[LONG..], bytes[..LONG]);
    local
}

#[test]
fn processes_of_one_host_share_memory() {
    if std::env::var(ENDING).is_ok() {
        return echo();
    }
    assert!(there_and_back("processes_of_one_host_share_memory", &[]) > 0);
}

#[test]
fn without_reading_each_others_memory() {
    if std::env::var(ENDING).is_ok() {
        return echo();
    }
    let packets = there_and_back("without_reading_each_others_memory", &[("ADVERB_WITHOUT", "cma")]);
    assert!(packets as usize > LONG / 4096, "{packets} packets cannot have held all of it");
}

#[test]
fn a_process_without_shared_memory_is_reached_by_the_network() {
    if std::env::var(ENDING).is_ok() {
        return echo();
    }
    let test = "a_process_without_shared_memory_is_reached_by_the_network";
    assert_eq!(there_and_back(test, &[("ADVERB_LOCAL", "off")]), 0);
    assert_eq!(there_and_back(test, &[("ADVERB_WITHOUT", "memfd")]), 0);
}

/// While connections go by shared memory nothing that comes by the network counts for them, though all of it
/// is right.
#[test]
fn the_network_changes_nothing_on_what_goes_by_shared_memory() {
    let site = site();
    if !setting_is_not_off() {
        return runs_again(
            "the_network_changes_nothing_on_what_goes_by_shared_memory",
            &[("ADVERB_LOCAL", "auto")],
            1,
        );
    }
    let Pair { client, server } = Pair::of(&site, Service::Rc, Shape::default(), &Home::new(&site));
    let other = Peer::at(Ipv4Addr::LOCALHOST);
    let to = other.find(&server, &site);
    let memory = Memory::open(&server.domain, 16);
    server.post_receive(1, &[memory.all()]);
    server.post_receive(2, &[memory.all()]);
    let counters = server.context.device().counters();
    let misaddressed = counters.misaddressed.get();
    other.send(to, &send_only(&server, server.queue_pair.attributes().rq_psn, b"FORGED by nobody"));
    let deadline = Instant::now() + TEST_TIMEOUT;
    while counters.misaddressed.get() == misaddressed {
        assert!(Instant::now() < deadline, "it is not dropped");
        assert_eq!(server.receives.poll(0, |_| ()).unwrap(), 0);
        std::thread::yield_now();
    }
    let genuine = Memory::open(&client.domain, 7);
    genuine.set(b"genuine");
    client.post(1, Opcode::Send, &[genuine.all()], (0, 0));
    client.sent_well(1);
    assert_eq!(server.received_well(1).byte_length, 7);
    assert_eq!(memory.bytes()[..7], *b"genuine");
    assert!(counters.rx_local.get() > 0, "it has gone by the network");
}

/// The inodes of the segments that a process has mapped: two processes share what both have.
fn segments(process: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let lines = maps.lines().filter(|line| line.contains("adverb-local"));
    lines.map(|line| line.split_whitespace().nth(4).unwrap().to_owned()).collect()
}

/// A peer that is killed amid a stream of messages: what it has not answered fails at once, and nothing of it
/// stays.
#[test]
fn a_killed_peer_fails_what_is_under_way() {
    if std::env::var(ENDING).is_ok() {
        return echo();
    }
    let site = site();
    let side = side(&site);
    let memory = Memory::open(&side.domain, LONG);
    let (mut other, _lines) = peer("a_killed_peer_fails_what_is_under_way", &side, &site, &[]);
    side.post_receive(1, &[memory.all()]);
    side.post(1, Opcode::Send, &[memory.all()], (0, 0));
    side.sent_well(1);
    side.received_well(1);
    let theirs = segments(other.id());
    // Other tests of this process share segments with their peers meanwhile.
    let is_shared = || segments(std::process::id()).iter().any(|segment| theirs.contains(segment));
    assert!(is_shared());
    other.kill().unwrap();
    other.wait().unwrap();
    side.post(2, Opcode::Send, &[memory.all()], (0, 0));
    assert_eq!(side.sent().status, Status::RetryExceeded);
    let deadline = Instant::now() + TEST_TIMEOUT;
    // Whoever found the peer gone may be about to say so.
    while side.queue_pair.state() != State::Error {
        assert!(Instant::now() < deadline, "the queue pair is not in error");
        std::thread::yield_now();
    }
    drop(side);
    while is_shared() {
        assert!(Instant::now() < deadline, "the segment stays mapped");
        std::thread::yield_now();
    }
}

/// Waits for an event of the queue's channel, in a thread that is left behind if none comes.
fn wait_for_event(queue: &Arc<CompletionQueue>) {
    let (tell, told) = mpsc::channel();
    let channel = queue.channel().unwrap().clone();
    std::thread::spawn(move || tell.send(channel.wait().is_ok()));
    assert_eq!(told.recv_timeout(TEST_TIMEOUT), Ok(true), "no event");
}

/// A killed peer wakes a thread that waits for an event, with nothing between the two but the memory that
/// they share.
#[test]
fn a_killed_peer_wakes_a_thread_that_waits_for_an_event() {
    if std::env::var(ENDING).is_ok() {
        return echo();
    }
    let site = site();
    let side = side(&site);
    let memory = Memory::open(&side.domain, LONG);
    let (mut other, _lines) = peer("a_killed_peer_wakes_a_thread_that_waits_for_an_event", &side, &site, &[]);
    side.sends.arm(false).unwrap();
    side.post(1, Opcode::Send, &[memory.all()], (0, 0));
    wait_for_event(&side.sends);
    side.sent_well(1);
    // It is stopped first, so that it takes nothing in any more.
    let stopped = StoppedProcess::new(other.id() as libc::pid_t);
    side.sends.arm(false).unwrap();
    side.post(2, Opcode::Send, &[memory.all()], (0, 0));
    other.kill().unwrap();
    other.wait().unwrap();
    std::mem::forget(stopped);
    wait_for_event(&side.sends);
    assert_eq!(side.sent().status, Status::RetryExceeded);
}

/// Messages there and back, for each of which both processes wait in turn for an event: of a queue pair that
/// goes by the network if `ADVERB_LOCAL` is off.
const ROUNDS: u64 = 1000;

fn wait_well(queue: &CompletionQueue, wr_id: u64) {
    let mut found = 0;
    let mut poll =
        || queue.poll(1, |entry| found += u64::from(entry.status == Status::Success && entry.wr_id == wr_id));
    while poll().unwrap() == 0 {
        queue.arm(false).unwrap();
        if poll().unwrap() > 0 {
            break;
        }
        queue.channel().unwrap().wait().unwrap();
    }
    assert_eq!(found, 1);
}

fn waits_and_answers() {
    let site = site();
    let side = side(&site);
    println!("\nnumber {}", side.queue_pair.number());
    side.post_receive(0, &[]);
    join(&side, &site, number_behind("number ", &mut std::io::stdin().lock()));
    println!("\nready 1");
    for round in 0..ROUNDS {
        wait_well(&side.receives, round);
        side.post_receive(round + 1, &[]);
        side.post(round, Opcode::Send, &[], (0, 0));
        wait_well(&side.sends, round);
    }
    println!("\nlocal {}", side.context.device().counters().rx_local.get());
}

/// With two processes at once, of which one may be reached by the network alone.
#[test]
fn processes_wait_for_each_other() {
    if std::env::var(ENDING).is_ok() {
        return waits_and_answers();
    }
    let (tell, told) = mpsc::channel();
    for way in ["auto", "off"] {
        let tell = tell.clone();
        std::thread::spawn(move || {
            let site = site();
            let side = side(&site);
            side.post_receive(0, &[]);
            let (mut other, mut lines) =
                peer("processes_wait_for_each_other", &side, &site, &[("ADVERB_LOCAL", way)]);
            for round in 0..ROUNDS {
                side.post(round, Opcode::Send, &[], (0, 0));
                wait_well(&side.sends, round);
                wait_well(&side.receives, round);
                side.post_receive(round + 1, &[]);
                tell.send(None).unwrap();
            }
            let local = number_behind("local ", &mut lines);
            assert!(other.wait().unwrap().success());
            tell.send(Some((way, local > 0))).unwrap();
        });
    }
    drop(tell);
    // Each round has its time: on busy processors all of them together take long.
    let mut ways = Vec::new();
    while ways.len() < 2 {
        ways.extend(told.recv_timeout(2 * TEST_TIMEOUT).expect("nobody wakes"));
    }
    ways.sort_unstable();
    let here = setting_is_not_off();
    assert_eq!(ways, [("auto", here), ("off", false)]);
}

/// Messages there and back between two processes. In the night there are ten times as many: on busy
/// processors, each needs two changes of the process.
fn answers() -> u32 {
    if std::env::var_os("ADVERB_TEST_LONG").is_some() { 100_000 } else { 10_000 }
}

/// One end of a conversation with another process, by a queue pair whose Sends and receives complete in one
/// queue. `meets` connects it, once a first receive is posted. Returns how many answers came before the Send
/// that they answer was complete.
fn converses(begins: bool, meets: impl FnOnce(&Side, &Site)) -> (u32, Side) {
    let site = site();
    let shape = Shape { one_queue: true, ..Shape::default() };
    let side = Side::unconnected(&Home::new(&site), shape, Service::Rc);
    side.begin();
    let memory = Memory::open(&side.domain, 128);
    let end = End {
        queue: &side.sends,
        receive: &|| side.post_receive(1, &[memory.sge(0, 64)]),
        send: &|| side.post(2, Opcode::Send, &[memory.sge(64, 64)], (0, 0)),
    };
    if !begins {
        (end.receive)();
    }
    meets(&side, &site);
    let early = speak(&end, begins, answers());
    (early, side)
}

// PRACTICE-ORDER-1
#[test]
fn between_processes_a_send_is_complete_before_its_reply() {
    const TEST: &str = "between_processes_a_send_is_complete_before_its_reply";
    if std::env::var(ENDING).is_ok() {
        let (early, side) = converses(false, |side, site| {
            println!("\nnumber {}", side.queue_pair.number());
            join(side, site, number_behind("number ", &mut std::io::stdin().lock()));
            println!("\nready 1");
        });
        println!("\nearly {early}\nlocal {}", side.context.device().counters().rx_local.get());
        return;
    }
    for way in ["auto", "strict", "off"] {
        let mut other = None;
        let (early, _side) = converses(true, |side, site| {
            let (child, lines) = peer(TEST, side, site, &[("ADVERB_LOCAL", way)]);
            other = Some((child, lines));
        });
        let (mut child, mut lines) = other.unwrap();
        let theirs = number_behind("early ", &mut lines);
        assert_eq!((early, theirs), (0, 0), "{way}: replies that came before, here and there");
        let goes_by_memory = number_behind("local ", &mut lines) > 0;
        assert_eq!(goes_by_memory, way != "off" && setting_is_not_off(), "{way}");
        assert!(child.wait().unwrap().success());
    }
}

/// Whether this process shares memory.
fn setting_is_not_off() -> bool {
    std::env::var("ADVERB_LOCAL").is_ok_and(|way| way != "off")
}

/// The peer: receives one long message, and then a second one if it comes before its input ends. It says how
/// that went: 1 if what came was sent, 2 if it was not, 3 if nothing came.
fn receiver() {
    let site = site();
    let side = side(&site);
    let memory = Memory::open(&side.domain, LONG);
    println!("\nnumber {}", side.queue_pair.number());
    let mut input = std::io::stdin().lock();
    join(&side, &site, number_behind("number ", &mut input));
    side.post_receive(1, &[memory.all()]);
    side.post_receive(2, &[memory.all()]);
    println!("\nready 1");
    side.received_well(1);
    println!("\nfirst 1");
    let mut rest = String::new();
    while input.read_line(&mut rest).is_ok_and(|count| count > 0) {}
    let mut status = None;
    side.receives.poll(1, |completion| status = Some(completion.status)).unwrap();
    let right = memory.bytes().iter().all(|byte| *byte == 1);
    println!(
        "\nverdict {}",
        match status {
            Some(Status::Success) if right => 1,
            Some(Status::Success) => 2,
            _ => 3,
        }
    );
}

/// While the receiver is stopped, `change` happens to what is under way to it. Returns how that ended here
/// and there.
fn while_it_is_stopped(test: &str, change: impl FnOnce(&Side, &mut Option<Memory>)) -> (Status, u32) {
    let site = site();
    let side = side(&site);
    let first = Memory::open(&side.domain, LONG);
    first.set(&[1; LONG]);
    let mut memory = Some(Memory::open(&side.domain, LONG));
    memory.as_ref().unwrap().set(&[1; LONG]);
    let (mut other, mut lines) = peer(test, &side, &site, &[]);
    side.post(1, Opcode::Send, &[first.all()], (0, 0));
    side.sent_well(1);
    number_behind("first ", &mut lines);
    {
        let _stopped = StoppedProcess::new(other.id() as libc::pid_t);
        side.post(2, Opcode::Send, &[memory.as_ref().unwrap().all()], (0, 0));
        change(&side, &mut memory);
    }
    let status = side.sent().status;
    if let Some(memory) = &memory {
        protect(memory, libc::PROT_READ | libc::PROT_WRITE);
    }
    drop(other.stdin.take());
    let verdict = number_behind("verdict ", &mut lines);
    assert!(other.wait().unwrap().success());
    (status, verdict)
}

#[test]
fn a_flushed_message_is_not_read_any_more() {
    if std::env::var(ENDING).is_ok() {
        return receiver();
    }
    let ended = while_it_is_stopped("a_flushed_message_is_not_read_any_more", |side, memory| {
        side.to(State::Error, M::empty(), &Attributes::default());
        memory.as_ref().unwrap().set(&[2; LONG]);
    });
    assert_eq!(ended, (Status::Flushed, 3));
}

#[test]
fn a_deregistered_region_is_not_read_any_more() {
    if std::env::var(ENDING).is_ok() {
        return receiver();
    }
    let ended = while_it_is_stopped("a_deregistered_region_is_not_read_any_more", |_, memory| {
        let memory = memory.take().unwrap();
        memory.region.deregister();
        memory.set(&[2; LONG]);
    });
    assert_eq!(ended, (Status::LocalProtection, 3));
}

/// Memory that its program has unmapped is that program's fault, and not that of who was to read it.
#[test]
fn a_send_of_unmapped_memory_fails_at_its_sender() {
    if std::env::var(ENDING).is_ok() {
        return receiver();
    }
    let ended = while_it_is_stopped("a_send_of_unmapped_memory_fails_at_its_sender", |_, memory| {
        protect(memory.as_ref().unwrap(), libc::PROT_NONE);
    });
    assert_eq!(ended, (Status::LocalProtection, 3));
}

/// Changes what the program may do with the whole pages of some memory.
fn protect(memory: &Memory, protection: libc::c_int) {
    const PAGE: u64 = 4096;
    let start = memory.address(0).next_multiple_of(PAGE);
    let end = memory.address(LONG) / PAGE * PAGE;
    // SAFETY: whole pages of memory that nobody uses meanwhile but by routines that bear it; they stay
    // mapped, so nothing else comes there.
    let done = unsafe { libc::mprotect(start as *mut libc::c_void, (end - start) as usize, protection) };
    assert_eq!(done, 0);
}
