//! Each kind of memory goes its way, and the target says which, and why: in its log, and in its counters
//! (`adverb devices -v`).

use super::death::until;
use super::other::{OPEN, Other, Pair, Tier, Way};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::counters;
use adverb_core::request::{Opcode, SendRequest, Status};

const LENGTH: u64 = 5 << 12;

/// What a process says of its memory.
fn said(process: libc::pid_t) -> Vec<String> {
    let mut running = counters::running().into_iter();
    let found = running.find(|found| found.id == process as u32).expect("it has counters");
    assert_eq!(found.memory.1, 0);
    found.memory.0
}

/// The flag of private pages.
const PRIVATE: i32 = libc::MAP_PRIVATE;

#[test]
fn each_region_goes_its_way_and_says_why() {
    let _turn = turn();
    let log = format!("{}/ways-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let moved = "its pages are moved, peers map them (nobody else has them in use, and they are guarded)";
    let not_moved = "its pages are not moved: ";
    // From Linux 6.11 on.
    let is_asked = adverb_core::memory::common::may_be_had().is_ok();
    let rows: [(Tier, &str, i32, Way, String); 6] = [
        (Tier::Mapped, "device", 0, Way::Map, "peers map it as it is (it is the engine's own memory)".into()),
        (Tier::Mapped, "pages", 0, Way::Map, "peers map it as it is (it is the engine's own memory)".into()),
        (Tier::Mapped, "area", PRIVATE, Way::Map, moved.into()),
        (
            Tier::Mapped,
            "shared",
            0,
            if is_asked { Way::Map } else { Way::Kernel },
            if is_asked {
                "peers map it as it is, or else the kernel copies (it is shared memory of the program)".into()
            } else {
                format!("the kernel copies ({not_moved}it is shared, or not there to be read and written)")
            },
        ),
        (
            Tier::Number,
            "area",
            PRIVATE,
            Way::Kernel,
            format!("the kernel copies ({not_moved}ADVERB_WITHOUT names moved-pages)"),
        ),
        (
            Tier::Packets,
            "area",
            PRIVATE,
            Way::Packet,
            format!(
                "packets through shared memory ({not_moved}ADVERB_WITHOUT names moved-pages; and the kernel does not copy by its key)"
            ),
        ),
    ];
    for (tier, command, flags, way, words) in rows {
        let level = format!("info:{log}");
        let environment = [tier.environment(), &[("ADVERB_LOG", level.as_str())]].concat();
        let mut other = Other::start(&environment);
        other.ask("domain", &[]);
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let numbers = match command {
            "area" => vec![0, LENGTH, protection, OPEN.bits().into(), flags as u64],
            "shared" => vec![0, flags as u64, LENGTH, OPEN.bits().into()],
            _ => vec![0, 0, LENGTH, OPEN.bits().into()],
        };
        let answer = other.ask(command, &numbers);
        let pair = Pair::open(&mut other);
        let sges = [pair.memory.sge(0, 8)];
        let write = SendRequest {
            opcode: Opcode::Write,
            ..signalled(&sges, (answer[1] + LENGTH / 2, answer[2] as u32))
        };
        let process = other.process;
        assert!(said(process).is_empty(), "nobody has asked for it");
        let is_said =
            |line: &String| line.starts_with(&format!("{LENGTH} bytes at 0x")) && line.ends_with(&words);
        until(&format!("{words}: {:?}", said(process)), || {
            let (status, went) = pair.observe(&write);
            assert_eq!(status, Status::Success);
            other.ask("rest", &[]);
            went == way && said(process).iter().any(is_said)
        });
        assert_eq!(said(process).len(), 1);
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains(&words), "{text}");
        std::fs::remove_file(&log).unwrap();
        other.ask(if matches!(command, "area" | "shared") { "area-end" } else { "own-end" }, &[answer[0]]);
        assert!(said(process).is_empty(), "it is registered no more");
    }
}
