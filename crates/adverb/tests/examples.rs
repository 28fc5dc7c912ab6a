//! The example programs do what they say, between processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn example(name: &str) -> Command {
    // target/debug/deps/examples-… is beside target/debug/examples.
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    Command::new(path.join("examples").join(name))
}

struct Server {
    process: Child,
    address: String,
    /// Closed when its standard output is.
    ended: Receiver<()>,
}

/// Starts a server and waits until it says where it listens.
fn serve(name: &str, arguments: &[&str]) -> Server {
    let mut child = example(name).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening at ").unwrap().to_owned();
    let (sender, ended) = channel();
    // The pipe stays open, and is emptied, as long as the server runs.
    std::thread::spawn(move || {
        let _ = (output.lines().count(), sender.send(()));
    });
    Server { process: child, address, ended }
}

impl Server {
    fn ends_well(&mut self) {
        self.ended.recv_timeout(Duration::from_secs(30)).expect("the server does not end");
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client(name: &str, arguments: &[&str]) -> String {
    let output = example(name).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn hello() {
    assert_eq!(client("hello", &[]), "hello\n");
}

#[test]
fn clients() {
    for device in ["roce0", "iwarp0"] {
        let output = example("clients").env("ADVERB_DEVICE", device).output().unwrap();
        assert!(output.status.success(), "{device}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let wanted = [1, 2, 3].map(|number| format!("client {number} has read \"good morning\""));
        assert_eq!(lines, wanted, "{device}");
    }
}

#[test]
fn async_rpc() {
    // The squares of all numbers below 1000.
    let wanted =
        format!("100 clients have asked 1000 questions: {}\n", (0..1000u64).map(|it| it * it).sum::<u64>());
    for device in ["roce0", "iwarp0"] {
        let output = example("async_rpc").env("ADVERB_DEVICE", device).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, wanted, "{device}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn ping_pong() {
    let mut server = serve("ping_pong", &["serve", "127.0.0.1:0"]);
    assert!(client("ping_pong", &[&server.address]).starts_with("10000 messages there and back"));
    server.ends_well();
}

#[test]
fn loopback() {
    let said = client("loopback", &[]);
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["received 66", "sent"]);
}

#[test]
fn loopback_where_only_the_manager_connects() {
    let output = example("loopback").env("ADVERB_DEVICE", "iwarp0").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("connection manager"), "{said}");
}

#[test]
fn rc_pingpong() {
    let mut server = serve("rc_pingpong", &["serve", "127.0.0.1:0"]);
    assert!(
        client("rc_pingpong", &[&server.address]).starts_with("1000 messages of 4096 bytes there and back")
    );
    server.ends_well();
}

#[test]
fn noticeboard() {
    let mut server = serve("noticeboard", &["serve", "127.0.0.1:0", "2"]);
    assert_eq!(client("noticeboard", &[&server.address, "first"]), "first\n");
    assert_eq!(client("noticeboard", &[&server.address, "second"]), "first\nsecond\n");
    server.ends_well();
}

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn copy_file() {
    let directory = scratch("copy_file");
    for length in [0usize, 1, 1 << 20, 5_000_001] {
        let (from, to) = (directory.join("from"), directory.join("to"));
        let bytes: Vec<u8> = (0..length).map(|i| (i * 31 + (i >> 8) * 7) as u8).collect();
        std::fs::write(&from, &bytes).unwrap();
        let mut server = serve("copy_file", &["receive", "127.0.0.1:0", to.to_str().unwrap()]);
        let said = client("copy_file", &["send", &server.address, from.to_str().unwrap()]);
        assert!(said.starts_with(&format!("{length} bytes in ")), "{said}");
        server.ends_well();
        assert!(std::fs::read(&to).unwrap() == bytes, "{length} bytes");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
