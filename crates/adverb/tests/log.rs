//! What the log says of a program's packets and mistakes. Each test runs itself again as the program whose
//! log it reads.

use adverb::{
    Buffer, Cause, CompletionQueue, Connection, Context, Listener, MemoryRegion, QueuePairOptions,
    RemoteMemory, Rights, Status, WorkRequest,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Says to a test that it is the program.
const PROGRAM: &str = "ADVERB_TEST_PROGRAM";

fn is_program() -> bool {
    std::env::var_os(PROGRAM).is_some()
}

/// What the program of `test` has written to its log, and its process ID.
fn log_of(test: &str, environment: &[(&str, &str)]) -> (String, u32) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", test, "--nocapture"]).env(PROGRAM, "1").envs(environment.iter().copied());
    let program = program.stdout(Stdio::null()).stderr(Stdio::piped());
    let program = program.current_dir(env!("CARGO_TARGET_TMPDIR")).spawn().unwrap();
    let process = program.id();
    let output = program.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (said, process)
}

/// One end of a connection, with a region that the other end may use.
struct End {
    queue: CompletionQueue,
    region: MemoryRegion,
    connection: Connection,
    peer: RemoteMemory,
}

const REGION: usize = 4096;

impl End {
    fn buffer(&self, length: usize) -> Buffer {
        self.connection.domain().buffer(length).unwrap()
    }

    /// Posts a request and waits for its end.
    fn run(&self, request: WorkRequest<'_>) -> adverb::Completion {
        self.connection.post_send(request).unwrap();
        self.queue.wait(SOON).unwrap()
    }
}

/// Both ends in this process. The regions, and the queue pairs, have these rights.
fn pair(rights: Rights, of_queue_pairs: Rights) -> (End, End) {
    let context = Context::open_default().unwrap();
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    let parts = || {
        let domain = context.protection_domain().unwrap();
        let queue = context.completion_queue(64).unwrap();
        let region = domain.memory_region(REGION, rights).unwrap();
        let options = QueuePairOptions { rights: of_queue_pairs, ..QueuePairOptions::new(&queue) };
        let queue_pair = domain.queue_pair(options).unwrap();
        (queue, region, queue_pair)
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (queue, region, queue_pair) = parts();
            let connection = queue_pair.connect(address, &region.remote().to_bytes(), SOON).unwrap();
            let peer = RemoteMemory::from_bytes(connection.private_data()).unwrap();
            End { queue, region, connection, peer }
        });
        let request = listener.accept(SOON).unwrap();
        let peer = RemoteMemory::from_bytes(request.private_data()).unwrap();
        let (queue, region, queue_pair) = parts();
        let connection = request.accept(queue_pair, &region.remote().to_bytes(), SOON).unwrap();
        (client.join().unwrap(), End { queue, region, connection, peer })
    })
}

/// Every operation, each many times, so that it goes in all ways that there are.
fn use_everything() {
    let (client, server) = pair(Rights::all(), Rights::all());
    for number in 0..300 {
        server.connection.post_receive(1, server.buffer(16)).unwrap();
        for request in [
            WorkRequest::send(client.buffer(16)),
            WorkRequest::write(client.buffer(24), &client.peer.slice(..24).unwrap()),
            WorkRequest::read(client.buffer(32), &client.peer.slice(..32).unwrap()),
            WorkRequest::fetch_add(client.buffer(8), &client.peer.slice(..8).unwrap(), number),
        ] {
            client.run(request).success().unwrap();
        }
        server.queue.wait(SOON).unwrap().success().unwrap();
    }
    drop(server.region);
}

#[test]
fn every_packet_is_shown_whatever_way_it_goes() {
    if is_program() {
        return use_everything();
    }
    let test = "every_packet_is_shown_whatever_way_it_goes";
    for (way, sent, came) in [
        ("off", "-> 127.0.0.1: ", "<- 127.0.0.1: "),
        ("strict", "-> 127.0.0.1 in shared memory: ", "<- 127.0.0.1 in shared memory: "),
        ("auto", "-> 127.0.0.1 in shared memory: ", "<- 127.0.0.1 in shared memory: "),
    ] {
        let environment =
            [("ADVERB_DEVICE", "roce0"), ("ADVERB_LOCAL", way), ("ADVERB_LOG", "packets:log-%p.txt")];
        let (said, process) = log_of(test, &environment);
        assert!(!said.contains("adverb["), "all of it is in the file: {said}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{process}.txt"));
        let log = std::fs::read_to_string(&path).expect("a file with the process ID in its name");
        std::fs::remove_file(path).unwrap();
        let has = |text: &str| log.lines().any(|line| line.contains(text));
        for direction in [sent, came] {
            assert!(has(&format!("packet: {direction}Send Only of 16 bytes, ")), "{way}: {direction}");
            assert!(has(&format!("packet: {direction}Acknowledge, message ")), "{way}: {direction}");
        }
        assert!(has(": REQ (asks for a connection), transaction ") && has(": RTU (ready to use)"), "{way}");
        // By packets, or without them: each of the 300 is there once.
        let times = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        for (packet, operation) in [
            ("Write Only of 24 bytes, ", "Write of 24 bytes at 0x"),
            ("Read Request, 32 bytes at 0x", "Read of 32 bytes at 0x"),
            ("fetch-and-add of 0x", "fetch-and-add of 8 bytes at 0x"),
        ] {
            let packets = times(&format!("packet: {sent}{packet}"));
            let operations = times(operation);
            assert!(packets + operations >= 300, "{way}: {packets} and {operations} of {packet}");
            assert_eq!(
                times(&format!("carried out in memory of process {process}")) > 0,
                has(" tx_direct="),
                "{way}"
            );
            assert!(way == "auto" || operations == 0, "{way}");
        }
    }
}

/// Mistakes that the peer refuses, each on a connection of its own. The program asserts what completions say
/// of them.
fn make_mistakes() {
    let refused = |done: adverb::Completion, cause| {
        assert_eq!((done.status != Status::Success, done.cause), (true, cause), "{done:?}");
    };
    // On iWARP a write is complete when it has been sent; the refusal ends the connection.
    let is_roce = Context::open_default().unwrap().device().name() == "roce0";
    let write = |client: &End, to: &RemoteMemory, cause| {
        let done = client.run(WorkRequest::write(client.buffer(64), to));
        if is_roce {
            refused(done, cause);
        } else {
            assert!(client.connection.wait_disconnected(SOON));
        }
    };

    let (client, _server) = pair(Rights::READ, Rights::all());
    write(&client, &client.peer, Cause::PeerAccess);

    let (client, _server) = pair(Rights::all(), Rights::all());
    let past = RemoteMemory::new(client.peer.address() + 4090, 64, client.peer.key());
    write(&client, &past, Cause::PeerAccess);

    let (client, server) = pair(Rights::all(), Rights::all());
    let peer = client.peer;
    drop(server.region);
    write(&client, &peer, Cause::PeerAccess);

    let (client, _server) = pair(Rights::all(), Rights::READ);
    write(&client, &client.peer, Cause::PeerInvalid);

    let (client, server) = pair(Rights::all(), Rights::all());
    server.connection.post_receive(1, server.buffer(50)).unwrap();
    client.connection.post_send(WorkRequest::send(client.buffer(100))).unwrap();
    refused(server.queue.wait(SOON).unwrap(), Cause::ReceiveTooSmall);
}

#[test]
fn a_refusal_says_what_was_wanted_and_what_there_is() {
    if is_program() {
        return make_mistakes();
    }
    for (device, way) in [("roce0", "off"), ("roce0", "strict"), ("roce0", "auto"), ("iwarp0", "auto")] {
        let environment = [("ADVERB_DEVICE", device), ("ADVERB_LOCAL", way), ("ADVERB_LOG", "info")];
        let (log, _) = log_of("a_refusal_says_what_was_wanted_and_what_there_is", &environment);
        let lines: Vec<_> =
            log.lines().filter(|line| line.contains("the peer's write of 64 bytes at 0x")).collect();
        let expected: [&[&str]; 3] = [
            &[
                " is refused: the region of key 0x",
                " permits LOCAL_WRITE",
                "REMOTE_READ",
                "; wanted is REMOTE_WRITE",
            ],
            &[
                " is refused: the bytes end 58 bytes past the end of the region of key 0x",
                ", which has 4096 bytes at 0x",
            ],
            &[" is refused: key 0x", " is gone: its region was deregistered, or it was invalidated"],
        ];
        assert_eq!(lines.len(), expected.len(), "{device} {way}: {log}");
        for (line, parts) in lines.iter().zip(expected) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line} lacks one of {parts:?}");
        }
        for text in [
            "the peer's write is refused: the queue pair has no REMOTE_WRITE in its qp_access_flags",
            "a message of 100 bytes is refused: it has taken a receive of 50 bytes",
            ", of 50 bytes, failed: a message was longer than the receive",
        ] {
            assert_eq!(log.matches(text).count(), 1, "{device} {way}: {text} in {log}");
        }
        if device == "roce0" {
            let failed = "a write of 64 bytes at 0x";
            assert_eq!(log.matches(failed).count(), 4, "{way}: {log}");
            assert!(log.contains(", failed: the peer refused access to its memory"), "{way}: {log}");
        }
    }
}

#[test]
fn a_client_whose_server_is_on_another_device_is_told_so() {
    if is_program() {
        let devices = adverb::Device::all().unwrap();
        for (server, client) in [(0, 1), (1, 0)] {
            let [server, client] = [&devices[server], &devices[client]].map(|device| device.open().unwrap());
            let listener = Listener::bind(&server, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
            let queue = client.completion_queue(4).unwrap();
            let domain = client.protection_domain().unwrap();
            let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
            pair.connect(listener.local_address(), b"", SOON).map(drop).unwrap_err();
        }
        return;
    }
    let (log, _) = log_of(
        "a_client_whose_server_is_on_another_device_is_told_so",
        &[("ADVERB_DEVICE", "roce0,iwarp0"), ("ADVERB_LOG", "warn")],
    );
    for device in ["roce0", "iwarp0"] {
        let told = format!("is not reached from {device} (ADVERB_DEVICE");
        assert_eq!(log.matches(&told).count(), 1, "{log}");
    }
}
