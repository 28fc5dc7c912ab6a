//! The engine is invisible in its host: its descriptors are close-on-exec, and the environment and the limits
//! stay as they are.

use adverb::{
    CompletionQueue, Connection, Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Says to this test what the process is.
const ROLE: &str = "ADVERB_TEST_ROLE";
const SOON: Duration = Duration::from_secs(60);
const TEST: &str = "the_engine_leaves_its_host_as_it_is";

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]).env(ROLE, role).env("ADVERB_DEVICE", "roce0,iwarp0");
    command.env("ADVERB_LOCAL", "auto").stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The descriptors of the process, what they are, and whether an executed program has them.
fn descriptors() -> BTreeMap<i32, (PathBuf, bool)> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let link = std::fs::read_link(entry.path()).ok()?;
        // SAFETY: plain numbers.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        // Without the folder that is read here.
        (!link.ends_with("fd")).then_some((number, (link, flags & libc::FD_CLOEXEC == 0)))
    };
    entries.filter_map(of).collect()
}

/// All limits of the process that the system has.
fn limits() -> Vec<(u64, u64)> {
    let mut limits = Vec::new();
    for resource in 0.. {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a live local.
        if unsafe { libc::getrlimit(resource as _, &raw mut limit) } != 0 {
            break;
        }
        limits.push((limit.rlim_cur, limit.rlim_max));
    }
    limits
}

fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

struct Server {
    listener: Listener,
    context: Context,
}

impl Server {
    fn on(device: &str) -> Self {
        let context = Context::open(device).unwrap();
        let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
        Self { listener, context }
    }
}

/// A process that lets one client in on each device, and gives it memory.
fn serve() {
    let servers = ["roce0", "iwarp0"].map(Server::on);
    let addresses = servers.each_ref().map(|server| server.listener.local_address().to_string());
    println!("\nat {}", addresses.join(" "));
    let _held = servers.each_ref().map(|server| {
        let domain = server.context.protection_domain().unwrap();
        let queue = server.context.completion_queue(16).unwrap();
        let region = domain.memory_region(1 << 16, Rights::all()).unwrap();
        let queue_pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
        let request = server.listener.accept(SOON).unwrap();
        (request.accept(queue_pair, &region.remote().to_bytes(), SOON).unwrap(), region)
    });
    // Until the client ends.
    let _ = std::io::stdin().read(&mut [0; 1]);
}

/// A connection by which something was written.
fn connect(device: &str, address: SocketAddr) -> (Listener, CompletionQueue, Connection) {
    let Server { context, listener } = Server::on(device);
    let domain = context.protection_domain().unwrap();
    let queue = context.completion_queue(16).unwrap();
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
    let connection = queue_pair.connect(address, &[], SOON).unwrap();
    let memory = RemoteMemory::from_bytes(connection.private_data()).unwrap();
    for length in [8, 1 << 16] {
        let buffer = domain.buffer(length).unwrap();
        connection.post_send(WorkRequest::write(buffer, &memory.slice(..length).unwrap())).unwrap();
        queue.wait(SOON).unwrap().success().unwrap();
    }
    (listener, queue, connection)
}

/// Whether a descriptor is the file of another process's memory.
fn is_memory_of(link: &std::path::Path, process: u32) -> bool {
    link == std::path::Path::new(&format!("/proc/{process}/mem"))
}

fn look() {
    let mut server = again("serves").spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find_map(|line| line.strip_prefix("at ").map(str::to_owned)).unwrap();
    let addresses = line.split(' ').map(|address| address.parse().unwrap());
    let (before, limits_before, environment_before) = (descriptors(), limits(), environment());
    let connections: Vec<_> =
        ["roce0", "iwarp0"].iter().zip(addresses).map(|(device, address)| connect(device, address)).collect();
    // A thread of the engine looks for the peer's memory, and may find it after the Writes have ended.
    let (deadline, process) = (Instant::now() + SOON, server.id());
    while !descriptors().values().any(|(link, _)| is_memory_of(link, process)) {
        assert!(Instant::now() < deadline, "the peer's memory is not found: {:?}", descriptors());
        std::thread::yield_now();
    }
    let after = descriptors();
    let made: Vec<_> = after.iter().filter(|(number, _)| !before.contains_key(number)).collect();
    assert!(made.len() > 4, "{made:?}");
    let inherited: Vec<_> = made.iter().filter(|(_, (_, is_inherited))| *is_inherited).collect();
    assert!(inherited.is_empty(), "executed programs have {inherited:?}");
    assert!(before.iter().all(|(number, what)| after.get(number) == Some(what)), "{before:?}, {after:?}");
    assert_eq!(limits(), limits_before);
    assert_eq!(environment(), environment_before);
    // An executed program does not have the memory of the peer, and a child of fork neither.
    assert!(made.iter().any(|(_, (link, _))| is_memory_of(link, server.id())), "{made:?}");
    // SAFETY: the child looks at its own descriptors, and ends without a handler.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let has_it = descriptors().values().any(|(link, _)| is_memory_of(link, server.id()));
        // SAFETY: a plain number.
        unsafe { libc::_exit(i32::from(has_it)) };
    }
    let mut status = -1;
    // SAFETY: a live local, and a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "a child of fork has the peer's memory");
    drop(connections);
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

// Invariant 8.
#[test]
fn the_engine_leaves_its_host_as_it_is() {
    match std::env::var(ROLE).as_deref() {
        Ok("serves") => serve(),
        Ok(_) => look(),
        Err(_) => {
            let output = again("looks").stderr(Stdio::piped()).output().unwrap();
            let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(output.status.success(), "{}", said.concat());
        }
    }
}
