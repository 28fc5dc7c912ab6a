//! `adverb demo` and `adverb bench` as a user starts them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn adverb() -> Command {
    Command::new(env!("CARGO_BIN_EXE_adverb"))
}

#[test]
fn the_demonstration_passes() {
    let output = adverb().arg("demo").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.lines().last().unwrap().starts_with("demo PASSED: "), "{text}");
    for shown in ["write into the other's memory", "read one byte past the end", "refused, nothing touched"] {
        assert!(text.contains(shown), "{shown:?} is missing in\n{text}");
    }
}

#[test]
fn the_demonstration_fails_in_time_when_a_process_dies() {
    let start = Instant::now();
    let mut demo = adverb().arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    // "Server: process N at A. Client: process M."
    let processes = lines.find(|line| line.starts_with("Server: process ")).unwrap();
    let server: i32 = processes.split(' ').nth(2).unwrap().parse().unwrap();
    // SAFETY: takes no pointers. The process lives as long as the demonstration, which is far from its end.
    assert_eq!(unsafe { libc::kill(server, libc::SIGKILL) }, 0);
    let last = lines.last().unwrap();
    assert!(last.starts_with("demo FAILED on "), "{last}");
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(50));
}

#[test]
fn the_demonstration_of_an_unknown_device_fails() {
    let output = adverb().args(["demo", "--device", "nothing0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().last().unwrap().contains("nothing0"), "{text}");
}

/// Measures roughly; the rows of a device, all of which hold a number.
fn bench(device: &str) -> Vec<serde_json::Value> {
    let arguments = ["bench", "--quick", "--rounds", "1", "--json", "--device", device];
    let output = adverb().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["devices"][0]["device"], device);
    let rows = document["devices"][0]["results"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["median"].as_f64().is_some_and(|median| median >= 0.0)));
    rows.clone()
}

#[track_caller]
fn have_targets(rows: &[serde_json::Value], names: &[&str]) {
    let with_target: Vec<&str> =
        rows.iter().filter(|row| !row["met"].is_null()).map(|row| row["name"].as_str().unwrap()).collect();
    for name in names {
        assert!(with_target.contains(name), "{name} has no target in {with_target:?}");
    }
}

#[test]
fn the_benchmark_measures_every_target_of_iwarp() {
    let names = [
        "send",
        "write stream",
        "read stream",
        "write stream, CRC",
        "read stream, CRC",
        "read, target sleeping",
        "write stream, target sleeping",
        "read stream, target sleeping",
        "allocations per message",
        "memory per idle connection",
    ];
    have_targets(&bench("iwarp0"), &names);
}

#[test]
fn the_benchmark_measures_every_target_of_roce() {
    // Loss is measured where the system lets an ordinary user make network namespaces.
    let names = [
        "send",
        "write to one who spins on memory",
        "write stream",
        "writes of 64 processes together",
        "allocations per message",
        "connections per second",
        "memory per connected queue pair, 16 + 16 requests",
    ];
    have_targets(&bench("roce0"), &names);
}
