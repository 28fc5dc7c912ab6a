//! Other users' processes stay with TCP. In a network namespace of its own.

use super::agent::all;
use super::other::{AGENT, OPEN, Other, Pair, Tier};
use adverb_core::conformance::fixture::{TEST_TIMEOUT, signalled};
use adverb_core::request::{Opcode, SendRequest, Status};
use adverb_core::seqpacket::{Connection, Listener, name};
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Says to a process that it is in the namespace.
const ROLE: &str = "ADVERB_TEST_ROLE";
/// The other user: nobody.
const NOBODY: u32 = 65_534;

/// Runs a test in a network namespace of its own, where it is root: truly, or with the IDs that its user has
/// been given.
fn in_a_namespace(test: &str) {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(own);
    command.args(["--exact", test, "--nocapture"]).env(ROLE, "main");
    let output = command.output().expect("unshare of util-linux");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "two users are needed: root, or subordinate IDs (/etc/subuid)\n{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// Channels of this process and operations without TCP, after enough Reads.
fn reads(other: Other, tier: Tier) -> (u64, bool) {
    reads_by(Pair::with(other, tier, OPEN.bits().into()), tier == Tier::Mapped)
}

/// `is_direct` is what is expected. A background thread without a processor brings it late, after more Reads.
fn reads_by(mut pair: Pair, is_direct: bool) -> (u64, bool) {
    let remote = pair.region(5 << 12, OPEN);
    let (before, deadline) = (pair.direct(), Instant::now() + TEST_TIMEOUT);
    let mut count = 0;
    while count < 200 || is_direct && pair.direct() == before && Instant::now() < deadline {
        let sges = [pair.memory.sge(0, 8)];
        let request = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.middle()) };
        assert_eq!(pair.observe(&request).0, Status::Success);
        pair.other.ask("rest", &[]);
        count += 1;
    }
    (pair.side.context.device().counters().local_channels.get(), pair.direct() > before)
}

#[test]
fn nothing_is_shared_with_others() {
    if std::env::var_os(AGENT).is_some() {
        return;
    }
    if std::env::var_os(ROLE).is_none() {
        return in_a_namespace("users::nothing_is_shared_with_others");
    }
    let mut nobody = Command::new("/proc/self/exe");
    nobody.uid(NOBODY).gid(NOBODY);
    assert_eq!(reads(Other::of(nobody), Tier::Off), (0, false), "another user");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    assert_eq!(reads(Other::of(elsewhere), Tier::Off), (0, false), "another user namespace");
    // And so that this means something:
    assert_eq!(reads(Other::start(&[]), Tier::Mapped), (1, true), "the same user");
}

/// The ports that the namespace of a test has for connections.
const PORTS: RangeInclusive<u16> = 40_000..=40_019;

/// Another user takes the names of an address and of all its connections: they go by TCP. The name of the
/// address alone keeps nobody apart.
#[test]
fn a_user_that_takes_all_names_leaves_connections_to_tcp() {
    const TEST: &str = "users::a_user_that_takes_all_names_leaves_connections_to_tcp";
    if std::env::var_os(AGENT).is_some() {
        return;
    }
    match std::env::var(ROLE).as_deref() {
        Err(_) => return in_a_namespace(TEST),
        Ok("takes") => return takes_names(),
        Ok(_) => {}
    }
    let range = format!("{} {}", PORTS.start(), PORTS.end());
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
    let is_direct = |takes_all: bool| {
        let mut other = Other::start(&[]);
        let port = other.ask("accept", &[all()])[0] as u16;
        let mut greedy = Command::new("/proc/self/exe");
        greedy.args(["--exact", TEST, "--nocapture"]).env(ROLE, "takes").uid(NOBODY).gid(NOBODY);
        let mut greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        writeln!(greedy.stdin.as_mut().unwrap(), "{port} {takes_all}").unwrap();
        let mut lines = BufReader::new(greedy.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "taken"));
        let result = reads_by(Pair::at(other, port, Tier::Mapped), !takes_all).1;
        greedy.kill().unwrap();
        greedy.wait().unwrap();
        result
    };
    assert!(!is_direct(true), "the connection goes by TCP");
    assert!(is_direct(false), "the process is found by the name of the connection");
}

/// Takes the name of an address, and perhaps those of all connections to it.
fn takes_names() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (port, takes_all) = line.trim().split_once(' ').unwrap();
    let mut names = vec![format!("iwarp/127.0.0.1/{port}")];
    if takes_all == "true" {
        names.extend(PORTS.map(|peer| format!("iwarp/127.0.0.1/{port}/127.0.0.1/{peer}")));
    }
    let _held: Vec<_> =
        names.iter().map(|taken| Listener::bind(&name(taken)).expect("a free name")).collect();
    println!("\ntaken");
    // Until it is killed.
    let _ = std::io::stdin().read_line(&mut line);
}

/// A process of another user asks for the other end of a connection, and gets no answer.
#[test]
fn another_user_is_not_told_of_connections() {
    const TEST: &str = "users::another_user_is_not_told_of_connections";
    if std::env::var_os(AGENT).is_some() {
        return;
    }
    match std::env::var(ROLE).as_deref() {
        Err(_) => return in_a_namespace(TEST),
        Ok("asks") => return asks(),
        Ok(_) => {}
    }
    let mut other = Other::start(&[]);
    let port = other.ask("accept", &[all()])[0];
    // The door is open as long as there is a connection.
    let mut pair = Pair::at(other, port as u16, Tier::Mapped);
    let remote = pair.region(5 << 12, OPEN);
    pair.reach(Opcode::Write, remote.middle());
    let answer = |user: u32| {
        let mut asks = Command::new("/proc/self/exe");
        asks.args(["--exact", TEST, "--nocapture"]).env(ROLE, "asks").env(PORT, port.to_string());
        let output = asks.uid(user).gid(user).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.lines().find_map(|line| line.strip_prefix("answer ").map(str::to_owned)).expect(&said)
    };
    assert_eq!(answer(NOBODY), "none");
    // And so that this means something:
    assert_eq!(answer(0), "[2, 0]", "the same user is told that such a connection is not there");
}

/// Says to a process by which port the other accepts.
const PORT: &str = "ADVERB_TEST_PORT";

/// Asks the process that accepts by a port for a connection that is not there.
fn asks() {
    let port = std::env::var(PORT).unwrap();
    let door = Connection::open(&name(&format!("iwarp/127.0.0.1/{port}"))).expect("a door");
    // The door may be closed already.
    let _ = door.send(&[&[1; 48]]);
    let mut buffer = [7; 64];
    let deadline = Instant::now() + TEST_TIMEOUT;
    let answer = loop {
        match door.receive(&mut buffer) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Ok(answer) if !answer.is_empty() => break format!("{:?}", &answer[..2]),
            _ => break "none".to_owned(),
        }
        assert!(Instant::now() < deadline, "neither an answer nor an end");
        std::thread::yield_now();
    };
    println!("\nanswer {answer}");
}
