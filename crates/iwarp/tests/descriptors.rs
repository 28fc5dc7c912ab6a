//! The process is out of descriptors. A test of its own, as the limit is the process's.

use adverb_core::cm::{AddressOptions, IncomingConnection, ListenSink};
use adverb_core::device::Device;
use adverb_proto::iwarp::mpa::{Config, Initiator, Revision, RtrKinds};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const CONFIG: Config = Config {
    revision: Revision::Two,
    crc: false,
    markers: false,
    ird: 1,
    ird_limit: 1,
    ord: 1,
    rtr: RtrKinds::NONE,
    large_fpdu: false,
    extensions: false,
};

struct Requests(Mutex<mpsc::Sender<Box<dyn IncomingConnection>>>);
impl ListenSink for Requests {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        let _ = self.0.lock().unwrap().send(request);
    }
}

fn limit_descriptors(to: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live local for both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

// Invariant: an idle process uses no CPU; reaching a limit is no busy loop.
#[test]
fn a_listener_rests_while_there_is_no_descriptor() {
    let log = std::env::temp_dir().join(format!("adverb-descriptors-{}", std::process::id()));
    // SAFETY: the only test of this process, and no other thread reads the environment yet.
    unsafe { std::env::set_var("ADVERB_LOG", format!("error:{}", log.display())) };
    adverb_core::engine::install(&[adverb_core::transport::TransportFactory {
        default: true,
        ..adverb_iwarp::FACTORY
    }]);
    let context = Device::all().unwrap()[0].open().unwrap();
    let connections = context.transport().connections();
    let (send, requests) = mpsc::channel();
    let listener = connections
        .reserve("127.0.0.1:0".parse().unwrap(), AddressOptions::default())
        .unwrap()
        .listen(8, Arc::new(Requests(Mutex::new(send))))
        .unwrap();
    adverb_core::log!(Error, "the log is open");
    let mut log_file = File::open(&log).unwrap();
    // One descriptor is left, which the connecting side takes.
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let before = limit_descriptors(next + 1);
    let started = Instant::now();
    let mut peer = TcpStream::connect(listener.local()).unwrap();
    let initiator = Initiator::new(&CONFIG, b"", Duration::ZERO, TEST_TIMEOUT).unwrap();
    peer.write_all(initiator.request()).unwrap();
    assert!(requests.recv_timeout(Duration::from_millis(500)).is_err(), "no descriptor is left");
    // The background thread may have had no processor so far.
    let (mut said, deadline) = (String::new(), Instant::now() + TEST_TIMEOUT);
    while !said.contains("accepting") {
        assert!(Instant::now() < deadline, "nobody has tried to accept: {said}");
        log_file.read_to_string(&mut said).unwrap();
        std::thread::yield_now();
    }
    limit_descriptors(before);
    requests.recv_timeout(TEST_TIMEOUT).expect("the connection is taken when there is a descriptor again");
    let elapsed = started.elapsed();
    let lines = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    let attempts = lines.lines().filter(|line| line.contains("accepting")).count();
    assert!(attempts >= 1, "{lines}");
    assert!(attempts as u128 <= elapsed.as_millis() / 100 + 2, "{attempts} attempts in {elapsed:?}");
}
