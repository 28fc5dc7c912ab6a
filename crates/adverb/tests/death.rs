//! A peer that falls silent, and what the program learns of it.

use adverb::{Context, Device, Listener, QueuePairOptions, Status, WorkRequest};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long anything may take before the test fails.
const SOON: Duration = Duration::from_secs(20);
/// What this process is in the test.
const ROLE: &str = "ADVERB_TEST_ROLE";
const NAME: &str = "a_connection_has_ended_when_its_queue_pair_has_failed_whether_or_not_the_peer_answers";

/// This program in another role, by the network alone. Nobody says goodbye for it.
fn in_role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture"]).env(ROLE, role);
    command.env("ADVERB_LOCAL", "off").env("ADVERB_DEVICE", "roce0").env_remove("ADVERB_RECORD");
    command
}

/// Killed when the test ends, however it does.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a child of ours that lives, and returns when none of its threads runs any more.
fn stop(child: &Child) {
    let (id, mut status) = (child.id() as libc::pid_t, 0);
    // SAFETY: a signal to a child of ours that nobody has waited for; the status has a place.
    unsafe {
        assert_eq!(libc::kill(id, libc::SIGSTOP), 0);
        assert_eq!(libc::waitpid(id, &mut status, libc::WUNTRACED), id);
    }
    assert!(libc::WIFSTOPPED(status));
}

fn context() -> Context {
    Device::all().unwrap().remove(0).open().unwrap()
}

/// Accepts one connection, and then waits for its end.
fn serve() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let queue = context.completion_queue(16).unwrap();
    let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    println!("\nport {}", listener.local_address().port());
    let connection = listener.accept(SOON).unwrap().accept(pair, b"", SOON).unwrap();
    connection.wait_disconnected(Duration::MAX);
}

fn connect() {
    let server = in_role("server").stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server(server);
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let port = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("port ")?.parse::<u16>().ok());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap()));
    let context = context();
    let domain = context.protection_domain().unwrap();
    let queue = context.completion_queue(16).unwrap();
    let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
    let connection = pair.connect(address, b"", SOON).unwrap();
    // It answers nothing any more, and nobody takes its place, as when its host has crashed.
    stop(&server.0);
    connection.post_send(WorkRequest::send(domain.buffer(8).unwrap())).unwrap();
    let completion = queue.wait(SOON).unwrap();
    assert_eq!(completion.status, Status::RetryExceeded);
    // It takes 17 seconds until nobody waits any more for the peer's answer to the end of the connection.
    assert!(connection.wait_disconnected(Duration::from_secs(8)));
}

#[test]
fn a_connection_has_ended_when_its_queue_pair_has_failed_whether_or_not_the_peer_answers() {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => serve(),
        Ok(_) => connect(),
        Err(_) => assert!(in_role("client").status().unwrap().success()),
    }
}

/// Starts this test program once more, in the network namespace of the test, with a pipe to it and one from
/// it.
fn beside(test: &str, role: &str, port: u16) -> (Child, impl Iterator<Item = String>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, format!("{role} {port}"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The only process that repeats nothing is one that exits. Who holds port 4791 may exit at the same time,
/// with the message in its socket: here it is stopped, so the message stays there.
// IB-CM-47
#[test]
fn a_peer_learns_of_the_end_though_the_holder_of_the_port_says_nothing() {
    const TEST: &str = "a_peer_learns_of_the_end_though_the_holder_of_the_port_says_nothing";
    let role = std::env::var(ROLE).ok();
    let role = role.as_deref().map(|role| role.split_once(' ').unwrap_or((role, "")));
    match role {
        None => {
            for local in ["auto", "off"] {
                let mut command = Command::new("unshare");
                // SAFETY: no arguments.
                if unsafe { libc::geteuid() } != 0 {
                    command.args(["--user", "--map-root-user"]);
                }
                command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
                command.arg(std::env::current_exe().unwrap()).args(["--exact", TEST, "--nocapture"]);
                command.env(ROLE, "main").env("ADVERB_LOCAL", local).env("ADVERB_DEVICE", "roce0");
                assert!(command.env_remove("ADVERB_RECORD").status().unwrap().success(), "{local}");
            }
        }
        Some(("main", _)) => {
            let (holder, mut said) = beside(TEST, "holder", 0);
            let mut holder = Server(holder);
            said.find(|line| line.contains("holds")).unwrap();
            let (context, listener) = listen();
            let domain = context.protection_domain().unwrap();
            let queue = context.completion_queue(16).unwrap();
            let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
            let (client, mut said) = beside(TEST, "client", listener.local_address().port());
            let mut client = Server(client);
            let connection = listener.accept(SOON).unwrap().accept(pair, b"", SOON).unwrap();
            said.find(|line| line.contains("connected")).unwrap();
            stop(&holder.0);
            drop(client.0.stdin.take());
            assert!(connection.wait_disconnected(SOON), "the client's end is not known");
            assert!(client.0.wait().unwrap().success());
            assert!(holder.0.try_wait().unwrap().is_none());
        }
        Some(("holder", _)) => {
            let _listens = listen();
            println!("\nholds the port");
            wait_for_word();
        }
        Some((_, port)) => {
            let context = context();
            let domain = context.protection_domain().unwrap();
            let queue = context.completion_queue(16).unwrap();
            let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
            let connection = pair.connect(address, b"", SOON).unwrap();
            println!("\nconnected");
            wait_for_word();
            drop(connection);
            // At once: no thread comes to repeat anything.
            std::process::exit(0);
        }
    }
}

fn listen() -> (Context, Listener) {
    let context = context();
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    (context, listener)
}
