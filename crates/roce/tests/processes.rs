//! Two processes, of which one ends.

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, PATIENCE, Shape, Side, path};
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::request::{Opcode, Status};
use adverb_core::transport::TransportFactory;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];
/// Says to a child how it is to end.
const ENDING: &str = "ADVERB_TEST_ENDING";

fn site() -> Site {
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1")
}

/// A reliable queue pair in INIT.
fn side(site: &Site) -> Side {
    let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    side.begin();
    side
}

/// Takes the queue pair to RTS with a peer that gives up after half a second.
fn join(side: &Side, site: &Site, number: u32) {
    let attributes = Attributes {
        path: path(&side.context, site.address),
        path_mtu: 1024,
        destination: number,
        timeout: 14,
        retry_count: 7,
        ..Attributes::default()
    };
    let to_receive = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    side.to(State::Rtr, to_receive, &attributes);
    let to_send = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    side.to(State::Rts, to_send, &attributes);
}

/// The number in the next line that begins like this; what else there is the test harness has written.
fn number_behind(word: &str, lines: &mut impl BufRead) -> u32 {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "{word:?} does not come");
        if let Some((_, number)) = line.split_once(word) {
            return number.trim().parse().unwrap();
        }
    }
}

/// Receives one message, and ends at once.
fn child(ending: &str) {
    let site = site();
    let side = side(&site);
    println!("\nnumber {}", side.queue_pair.number());
    join(&side, &site, number_behind("number ", &mut std::io::stdin().lock()));
    side.post_receive(1, &[]);
    println!("\nready 1");
    let deadline = Instant::now() + PATIENCE;
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
fn whoever_ends_acknowledges_first() {
    if let Ok(ending) = std::env::var(ENDING) {
        return child(&ending);
    }
    let site = site();
    for ending in ["exit", "destroy", "error", "exit", "destroy", "error"] {
        let side = side(&site);
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "whoever_ends_acknowledges_first", "--nocapture"])
            .env(ENDING, ending)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap());
        let number = number_behind("number ", &mut lines);
        writeln!(other.stdin.take().unwrap(), "number {}", side.queue_pair.number()).unwrap();
        join(&side, &site, number);
        number_behind("ready ", &mut lines);
        side.post(1, Opcode::Send, &[], (0, 0));
        assert_eq!(side.sent().status, Status::Success, "{ending}");
        assert!(other.wait().unwrap().success(), "{ending}");
    }
}
