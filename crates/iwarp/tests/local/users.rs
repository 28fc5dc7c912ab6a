//! Other users' processes stay with TCP. In a network namespace of its own.

use super::other::{AGENT, OPEN, Other, Pair, Tier};
use adverb_core::conformance::fixture::signalled;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Says to a process that it is in the namespace.
const ROLE: &str = "ADVERB_TEST_ROLE";
/// The other user: nobody.
const NOBODY: u32 = 65_534;

/// Runs a test in a network namespace of its own, where it is root: truly, or with the IDs that its user has been given.
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

/// Channels of this process and operations without TCP, after enough Writes.
fn writes(other: Other, tier: Tier) -> (u64, bool) {
    let mut pair = Pair::with(other, tier, OPEN.bits().into());
    let remote = pair.region(5 << 12, OPEN);
    let before = pair.direct();
    for _ in 0..200 {
        let sges = [pair.memory.sge(0, 8)];
        let request = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.middle()) };
        assert_eq!(pair.observe(&request).0, Status::Success);
        pair.other.ask("rest", &[]);
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
    assert_eq!(writes(Other::of(nobody), Tier::Off), (0, false), "another user");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    assert_eq!(writes(Other::of(elsewhere), Tier::Off), (0, false), "another user namespace");
    // And so that this means something:
    assert_eq!(writes(Other::start(&[]), Tier::Mapped), (1, true), "the same user");
}
