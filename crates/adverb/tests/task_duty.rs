//! A task that sleeps is woken by what arrives, and the background thread sleeps on. It is there as soon as
//! the task's thread does something else.

#[path = "ends/ping_pong.rs"]
mod ping_pong;

use adverb::asynchronous::{AsyncEndpoint, Tokio};
use adverb::{Context, Device, Listener, QueuePairOptions};
use ping_pong::{echo, ping_pong};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails.
const SOON: Duration = Duration::from_secs(60);
const ANYWHERE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
/// Says to a test that it is the other process, and where this one listens.
const PEER: &str = "ADVERB_TEST_PEER";

/// This test once more, in a process that talks to this one.
fn other_process(test: &str, device: &Device, ports: &[u16]) -> Child {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(PEER, ports.join(","))
        .env("ADVERB_DEVICE", device.name());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn has_passed(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let said = said.concat();
    assert!(output.status.success() && said.contains("1 passed"), "the other process: {said}");
}

/// Where the other process listens, in that process.
fn peers() -> Option<Vec<SocketAddr>> {
    let ports = std::env::var(PEER).ok()?;
    Some(ports.split(',').map(|port| (ANYWHERE.0, port.parse().unwrap()).into()).collect())
}

fn endpoint(context: &Context) -> AsyncEndpoint {
    AsyncEndpoint::new(&context.protection_domain().unwrap(), Tokio::current())
}

fn in_tokio(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON, test).await.expect("the test takes too long") });
}

/// How often the background thread has gone to sleep.
fn sleeps_of_the_background_thread() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let background = threads.filter(|thread| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "adverb")
    });
    let status = background.map(|thread| std::fs::read_to_string(thread.join("status")).unwrap());
    let counts = status.map(|status| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    });
    counts.sum()
}

#[test]
fn an_arriving_message_wakes_the_task_and_not_the_background_thread() {
    if let Some(peers) = peers() {
        return in_tokio(async {
            let context = Context::open_default().unwrap();
            let connection = endpoint(&context).connect(peers[0], &[]).await.unwrap();
            echo(&connection).await;
        });
    }
    const ROUNDS: u32 = 20;
    /// The time after which it looks whether the task comes back.
    const LOOK: Duration = Duration::from_micros(400);
    for device in Device::all().unwrap() {
        in_tokio(async {
            let context = device.open().unwrap();
            let mut listener = endpoint(&context).listen(ANYWHERE.into(), 1).unwrap();
            let test = "an_arriving_message_wakes_the_task_and_not_the_background_thread";
            let child = other_process(test, &device, &[listener.local_address().port()]);
            let connection = listener.accept().await.unwrap().accept(&[]).await.unwrap();
            // Each message and each acknowledgement would wake it. On a busy machine some batches are so long
            // that it takes part: these say nothing, and the next ones are shorter.
            let end = Instant::now() + SOON / 2;
            let (mut rounds, mut woken, mut judged) = (ROUNDS, None, 0);
            while Instant::now() < end {
                let (before, start) = (sleeps_of_the_background_thread(), Instant::now());
                ping_pong(&connection, rounds).await;
                let sleeps = u128::from(sleeps_of_the_background_thread() - before);
                let looks = start.elapsed().as_micros() / LOOK.as_micros();
                if looks > u128::from(rounds) * 3 / 2 {
                    rounds = (rounds / 2).max(2);
                    continue;
                }
                judged += 1;
                // Without a task on duty, there are two for each round: more than the looks of a quick batch
                // can excuse.
                if sleeps < looks + u128::from(rounds) / 2 {
                    woken = None;
                    break;
                }
                woken = Some((sleeps, rounds));
            }
            assert!(judged > 0, "{}: no batch was quick", device.name());
            assert_eq!(woken, None, "{}: wake-ups, rounds", device.name());
            drop(connection);
            has_passed(child);
        });
    }
}

#[test]
fn a_task_that_computes_keeps_nobody_from_what_arrives() {
    if let Some(peers) = peers() {
        return in_tokio(async {
            let context = Context::open_default().unwrap();
            let endpoint = endpoint(&context);
            let connection = endpoint.connect(peers[0], &[]).await.unwrap();
            let other = endpoint.connect(peers[1], &[]).await.unwrap();
            // The peer acknowledges, too.
            connection.send(b"compute").await.unwrap();
            other.send(b"meanwhile").await.unwrap();
            assert_eq!(&connection.receive().await.unwrap().expect("an answer")[..], b"done");
        });
    }
    for device in Device::all().unwrap() {
        let context = device.open().unwrap();
        let others = Listener::bind(&context, ANYWHERE.into(), 1).unwrap();
        let port = others.local_address().port();
        let (tell, told) = mpsc::channel();
        let domain = context.protection_domain().unwrap();
        let thread = std::thread::spawn(move || {
            let queue = domain.context().completion_queue(16).unwrap();
            let queue_pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
            queue_pair.post_receive(0, domain.buffer(64).unwrap()).unwrap();
            let connection = others.accept(SOON).unwrap().accept(queue_pair, &[], SOON).unwrap();
            let message = queue.wait(SOON).unwrap().success().unwrap();
            tell.send(message.message().to_vec()).unwrap();
            connection.wait_disconnected(SOON);
        });
        in_tokio(async {
            let mut listener = endpoint(&context).listen(ANYWHERE.into(), 1).unwrap();
            let test = "a_task_that_computes_keeps_nobody_from_what_arrives";
            let child = other_process(test, &device, &[listener.local_address().port(), port]);
            let connection = listener.accept().await.unwrap().accept(&[]).await.unwrap();
            let message = connection.receive().await.unwrap().expect("a message");
            assert_eq!(&message[..], b"compute");
            // The thread of the runtime does nothing else meanwhile.
            assert_eq!(told.recv_timeout(SOON).unwrap(), b"meanwhile");
            connection.send(b"done").await.unwrap();
            assert!(connection.receive().await.unwrap().is_none());
            has_passed(child);
        });
        thread.join().unwrap();
    }
}
