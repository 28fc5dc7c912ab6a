//! `adverb demo` as a user starts it.

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
    for shown in ["Write into the other's memory", "Read one byte past the end", "refused, nothing touched"] {
        assert!(text.contains(shown), "{shown:?} is missing in\n{text}");
    }
}

#[test]
fn the_demonstration_passes_where_there_is_no_ipv4() {
    let script = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args([
        "--map-root-user",
        "--net",
        "sh",
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_adverb"),
        "demo",
    ]);
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
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
fn the_demonstration_of_an_unknown_device_does_not_begin() {
    let output = adverb().args(["demo", "--device", "nothing0"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("there is no device 'nothing0'"), "{text}");
}
