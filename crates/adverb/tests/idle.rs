//! An idle process uses no CPU: with open devices, a listener, connections, an armed completion queue and a
//! thread that waits.

use adverb::{
    CompletionQueue, Connection, Device, Listener, ProtectionDomain, QueuePairOptions, WorkRequest,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Says to this test that it is the process that is idle.
const IS_IDLE: &str = "ADVERB_TEST_IS_IDLE";
const SOON: Duration = Duration::from_secs(60);
/// In so long a time without work no thread may run. Whatever a connection does on its own is to be seen in
/// it.
const REST: Duration = Duration::from_secs(3);
/// The work before may leave some: late acknowledgements, files that are mapped a little longer, the last
/// look of a thread.
const MOST_RESTS: usize = 10;

/// How often each thread has run and for how long in ticks, but for the main thread and this one.
fn activity() -> BTreeMap<i32, String> {
    let main = std::process::id() as i32;
    // SAFETY: no arguments.
    let own = unsafe { libc::gettid() };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let threads = threads.map(|thread| thread.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
    let of = |thread: i32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
        let (stat, status) = (read("stat")?, read("status")?);
        let (name, rest) = stat.split_once(") ")?;
        // As proc(5) counts them, the user time is the 14th and the system time the 15th. The state is the
        // third.
        let times: Vec<&str> = rest.split(' ').skip(11).take(2).collect();
        let switches: Vec<&str> = status.lines().filter(|line| line.contains("ctxt_switches")).collect();
        Some(format!("{name}) ticks {} {}", times.join("+"), switches.join(" ")))
    };
    threads
        .filter(|thread| ![main, own].contains(thread))
        .filter_map(|thread| Some((thread, of(thread)?)))
        .collect()
}

/// A side of a connection.
struct End {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    connection: Connection,
}

/// A device with a listener and a connection that has carried a message.
fn connected(device: &Device) -> (Listener, [End; 2]) {
    let context = device.open().unwrap();
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    let made = || {
        let queue = context.completion_queue(16).unwrap();
        (context.protection_domain().unwrap(), queue)
    };
    let ((near, client), (far, server)) = (made(), made());
    let ends = std::thread::scope(|scope| {
        let (domain, queue) = (near.clone(), client.clone());
        let connecting = scope.spawn(move || {
            let queue_pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
            let connection = queue_pair.connect(address, &[], SOON).unwrap();
            End { domain, queue, connection }
        });
        let request = listener.accept(SOON).unwrap();
        let queue_pair = far.queue_pair(QueuePairOptions::new(&server)).unwrap();
        let connection = request.accept(queue_pair, &[], SOON).unwrap();
        [connecting.join().unwrap(), End { domain: far, queue: server, connection }]
    });
    send(&ends[0], &ends[1]);
    (listener, ends)
}

fn send(from: &End, to: &End) {
    to.connection.post_receive(0, to.domain.buffer(8).unwrap()).unwrap();
    from.connection.post_send(WorkRequest::send(from.domain.buffer(8).unwrap())).unwrap();
    for end in [from, to] {
        end.queue.wait(SOON).unwrap().success().unwrap();
    }
}

fn be_idle() {
    let all: Vec<_> = Device::all().unwrap().iter().map(connected).collect();
    for (_, [near, far]) in &all {
        near.queue.arm().unwrap();
        far.connection.post_receive(1, far.domain.buffer(8).unwrap()).unwrap();
    }
    std::thread::scope(|scope| {
        for (_, [_, far]) in &all {
            scope.spawn(|| far.queue.wait(100 * SOON).unwrap().success().unwrap());
        }
        let (mut seen, mut last) = (Vec::new(), BTreeMap::new());
        for _ in 0..MOST_RESTS {
            let before = activity();
            std::thread::sleep(REST);
            let after = activity();
            if after == before {
                seen.clear();
                last = after;
                break;
            }
            seen.push((before, after));
        }
        for (_, [near, _]) in &all {
            near.connection.post_send(WorkRequest::send(near.domain.buffer(8).unwrap())).unwrap();
        }
        // The threads that wait have ended by now, or will. A test that fails leaves none of them asleep.
        assert!(seen.is_empty(), "threads run though there is nothing to do:\n{:#?}", seen.last());
        // Two threads that wait, and the engine's.
        assert_eq!((all.len(), last.len()), (2, 3), "{last:?}");
    });
}

/// This test again in a network namespace of its own, where no other process has anything to ask.
fn again(way: &str) -> Child {
    let mut command = Command::new("unshare");
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "an_idle_process_uses_no_cpu", "--nocapture"]).env(IS_IDLE, "1");
    command.env("ADVERB_LOCAL", way).env("ADVERB_DEVICE", "roce0,iwarp0");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare of util-linux")
}

// Invariant 6.
#[test]
fn an_idle_process_uses_no_cpu() {
    if std::env::var_os(IS_IDLE).is_some() {
        return be_idle();
    }
    for (way, child) in ["auto", "off"].map(|way| (way, again(way))) {
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let said = said.concat();
        assert!(output.status.success() && said.contains("1 passed"), "ADVERB_LOCAL={way}: {said}");
    }
}
