//! Where RoCE is measured: two network namespaces and a cable (veth) between them, made without privileges
//! where the system allows it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The address on this side of the cable.
pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 1));
/// The target's.
pub(super) const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 2));
const MTU: u32 = 9000;

/// Moves this process, which must have no other thread, into a network namespace of its own.
///
/// # Errors
/// Why it cannot; it is where it was then.
pub(super) fn enter() -> Result<(), String> {
    // A process that may make a namespace need not be allowed to do anything in it: a child tries it first.
    let mut probe = ip("link add cable type veth peer name end");
    // SAFETY: this process has no other thread, so its child may do what it could do itself.
    unsafe { probe.pre_exec(move_apart) };
    run(&mut probe)?;
    move_apart().map_err(|error| format!("a network namespace: {error}"))?;
    run(&mut ip("link set lo up"))
}

/// Moves the calling thread, and those that it will start, into a new network namespace.
pub(super) fn move_apart() -> std::io::Result<()> {
    // SAFETY: a plain number.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        return Ok(());
    }
    // SAFETY: they take nothing.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: plain numbers.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    std::fs::write("/proc/self/setgroups", "deny")?;
    // As its root, it keeps its rights over the namespace when it starts a program.
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Lays the cable from the namespace of this process to that of another one.
pub(super) fn lay_cable(to: u32) -> Result<(), String> {
    run(&mut ip(&format!("link add cable mtu {MTU} type veth peer name cable mtu {MTU} netns {to}")))?;
    plug(HERE)
}

/// Makes use of the end of the cable in this namespace.
pub(super) fn plug(address: IpAddr) -> Result<(), String> {
    run(&mut ip("link set lo up"))?;
    run(&mut ip(&format!("address add {address}/24 dev cable")))?;
    run(&mut ip("link set cable up"))
}

/// Has datagrams leave this namespace one by one, not in trains: each of them can be lost alone then.
pub(super) fn single_datagrams(single: bool) -> Result<(), String> {
    run(&mut ip(&format!("link set cable gso_max_segs {}", if single { 1 } else { 65535 })))
}

/// Loses each datagram that comes into this namespace with a probability of 1 %.
///
/// A classic packet filter draws a random number, and what it picks goes to an interface at which nobody
/// listens. That happens behind the cable, where nothing is a train any more; netem in front of it would lose
/// whole trains.
pub(super) fn lose(losing: bool) -> Result<(), String> {
    // There may be none yet.
    let _ = run(&mut tc("qdisc del dev cable ingress"));
    if !losing {
        return Ok(());
    }
    // ld rand; jge 2^32 / 100: 0, else -1, 0 (no match)
    const ONE_IN_A_HUNDRED: &str = "4,32 0 0 4294963256,53 1 0 42949673,6 0 0 4294967295,6 0 0 0";
    // It stays from one round to the next.
    let _ = run(&mut ip("link add nowhere type veth peer name nobody"));
    run(&mut ip("link set nowhere up"))?;
    run(&mut tc("qdisc add dev cable ingress"))?;
    let mut filter = tc("filter add dev cable ingress protocol ip prio 1 bpf bytecode");
    filter.arg(ONE_IN_A_HUNDRED).args("classid 1:1 action mirred egress redirect dev nowhere".split(' '));
    run(&mut filter)
}

fn ip(arguments: &str) -> Command {
    tool("ip", arguments)
}

fn tc(arguments: &str) -> Command {
    tool("tc", arguments)
}

fn tool(name: &str, arguments: &str) -> Command {
    let mut command = Command::new(name);
    // Users often do not have the directories of system programs there.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(arguments.split(' '));
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} of iproute2 is not installed"),
        _ => format!("{name}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}", text.lines().next().unwrap_or("failed").trim()))
}
