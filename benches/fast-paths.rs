//! Does one of the fast paths again and again, for `cargo xtask instructions`, which counts what the
//! processor does in [`counted`].
//!
//! Usage: `fast-paths --list`, or `fast-paths PATH [DEVICES]`: prints how often it has done it. The program
//! has these devices, too, and uses none of them.
//!
//! Most of it is the access layer's, over the transport in memory: no system call, no other thread, nothing
//! that depends on time. Posts of sends are counted over a transport that sends nothing, so that they are
//! counted alone; and over `roce0`, from one queue pair of this process to another, where a post puts the
//! message into a channel in shared memory.

use adverb_core::attributes::{DeviceAttributes, Gid, PortAttributes};
use adverb_core::cm::ConnectionBackend;
use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Pair, Shape};
use adverb_core::cq::CompletionQueue;
use adverb_core::engine;
use adverb_core::error::Result;
use adverb_core::memory::Access;
use adverb_core::null;
use adverb_core::qp::{Attributes, QueuePairOptions, Queues, Service, Transition};
use adverb_core::region::Pages;
use adverb_core::request::{Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Status};
use adverb_core::transport::{Endpoint, Transport, TransportFactory};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// How often each is done.
const TIMES: usize = 4000;
/// Messages that are under way at once, where both sides take part.
const BATCH: usize = 100;
/// The device whose queue pairs send nothing.
const SILENT: TransportFactory = TransportFactory {
    device: "silent0",
    default: true,
    create: |wanted| {
        let made = (null::IB_FACTORY.create)(wanted)?;
        Ok(made.into_iter().map(|made| -> Arc<dyn Transport> { Arc::new(Silent(made)) }).collect())
    },
};

/// Everything that is done while this runs is counted, and nothing else.
#[unsafe(no_mangle)]
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}

/// What is counted, and under which name.
const PATHS: [(&str, fn()); 10] = [
    ("post-send", || post_sends("silent0", Opcode::Send)),
    ("post-write", || post_sends("silent0", Opcode::Write)),
    ("post-receive", post_receives),
    ("poll-empty", poll_empty),
    ("poll-one", || messages("nullib0", Part::Polls)),
    ("send-in-memory", || messages("nullib0", Part::Sends)),
    ("send-within-host", || messages("roce0", Part::Sends)),
    ("receive-within-host", || messages("roce0", Part::Receives)),
    ("poll-empty-within-host", polls_within_host),
    ("write-within-host", || writes("roce0")),
];

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "--list" {
        PATHS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    }
    match PATHS.iter().find(|(name, _)| *name == wanted) {
        Some((_, path)) => path(),
        None => panic!("{wanted:?} is no path; --list shows them"),
    }
    println!("{TIMES}");
}

fn pair(device: &'static str) -> Pair {
    let install = || engine::install(&[null::FACTORY, null::IB_FACTORY, SILENT, adverb_roce::FACTORY]);
    let beside = std::env::args().nth(2).map(|list| format!(",{list}")).unwrap_or_default();
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("ADVERB_DEVICE", format!("{device}{beside}")) };
    let site = Site::new(install, device, "127.0.0.1").by_attributes();
    let entries = TIMES as u32;
    let shape =
        Shape { sends: entries, receives: entries, receive_completions: entries, sges: 1, one_queue: false };
    Pair::of(&site, Service::Rc, shape, &Home::new(&site))
}

fn post_sends(device: &'static str, opcode: Opcode) {
    let pair = pair(device);
    let memory = Memory::open(&pair.client.domain, 4096);
    let sges = [memory.sge(0, 64)];
    let remote_address = memory.address(0);
    counted(&mut || {
        for wr_id in 0..TIMES as u64 {
            let data = Data::Registered(&sges);
            let request =
                SendRequest { wr_id, opcode, data, remote_address, rkey: 1, ..SendRequest::default() };
            assert!(pair.client.queue_pair.post_send(&request).is_ok());
        }
    });
}

fn post_receives() {
    let pair = pair("nullib0");
    let memory = Memory::open(&pair.server.domain, 4096);
    let sges = [memory.sge(0, 64)];
    counted(&mut || {
        for wr_id in 0..TIMES as u64 {
            assert!(pair.server.queue_pair.post_receive(&ReceiveRequest { wr_id, sges: &sges }).is_ok());
        }
    });
}

fn poll_empty() {
    let pair = pair("nullib0");
    counted(&mut || {
        for _ in 0..TIMES {
            assert!(pair.client.sends.poll(1, |_| ()).is_ok_and(|count| count == 0));
        }
    });
}

/// Which part of exchanging messages is counted.
#[derive(PartialEq, Eq)]
enum Part {
    /// Posts of sends, which put the message into the receiver's memory and both completions into their
    /// queues.
    Sends,
    /// Polls, each of which finds one completion.
    Polls,
    /// Polls that take in what the peer has sent, and find a completion for each message.
    Receives,
}

/// Polls of a queue pair that has a peer on this host, and to which nothing has come.
fn polls_within_host() {
    let pair = pair("roce0");
    let memory = Memory::open(&pair.server.domain, 4096);
    assert!(
        pair.server.queue_pair.post_receive(&ReceiveRequest { wr_id: 0, sges: &[memory.sge(0, 64)] }).is_ok()
    );
    let request = SendRequest { flags: SendFlags::SIGNALED, ..SendRequest::default() };
    assert!(pair.client.queue_pair.post_send(&request).is_ok());
    poll_until(&pair.server.receives, 1);
    poll_until(&pair.client.sends, 1);
    counted(&mut || {
        for _ in 0..TIMES {
            assert!(pair.client.sends.poll(1, |_| ()).is_ok_and(|count| count == 0));
        }
    });
}

fn messages(device: &'static str, part: Part) {
    let pair = pair(device);
    let memory = Memory::open(&pair.server.domain, 4096);
    let sges = [memory.sge(0, 64)];
    let (client, server) = (&pair.client, &pair.server);
    let either = |is_counted: bool, work: &mut dyn FnMut()| if is_counted { counted(work) } else { work() };
    // The first round, in which the two may have to find each other, does not count.
    for round in 0..=TIMES / BATCH {
        for wr_id in 0..BATCH as u64 {
            assert!(server.queue_pair.post_receive(&ReceiveRequest { wr_id, sges: &sges }).is_ok());
        }
        either(round > 0 && part == Part::Sends, &mut || {
            for wr_id in 0..BATCH as u64 {
                let (flags, data) = (SendFlags::SIGNALED, Data::Inline(&[&[1; 8]]));
                let request = SendRequest { wr_id, flags, data, ..SendRequest::default() };
                assert!(client.queue_pair.post_send(&request).is_ok());
            }
        });
        if part == Part::Receives {
            either(round > 0, &mut || poll_until(&server.receives, BATCH));
        } else {
            either(round > 0 && part == Part::Polls, &mut || {
                for _ in 0..BATCH {
                    poll_until(&server.receives, 1);
                }
            });
        }
        poll_until(&client.sends, BATCH);
    }
}

/// Posts of Writes into memory of the engine, which is mapped, so that each is carried out as it is posted.
/// Only the last of a round is reported, as programs do that measure rates.
fn writes(device: &'static str) {
    let pair = pair(device);
    let (client, server) = (&pair.client, &pair.server);
    let source = Memory::open(&client.domain, 4096);
    let target =
        Pages::for_peers(&server.domain, 4096, Access::LOCAL_WRITE | Access::REMOTE).expect("memory");
    let sges = [source.sge(0, 8)];
    let round = || {
        for wr_id in 1..=BATCH as u64 {
            let flags = if wr_id == BATCH as u64 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let request = SendRequest {
                wr_id,
                flags,
                opcode: Opcode::Write,
                data: Data::Registered(&sges),
                remote_address: target.start().as_ptr() as u64,
                rkey: target.key(),
                ..SendRequest::default()
            };
            assert!(client.queue_pair.post_send(&request).is_ok());
        }
    };
    let carried_out = || client.queue_pair.queues().counters.tx_direct.get();
    // Until the two have found each other, and the memory is mapped.
    let is_mapped = (0..TIMES).any(|_| {
        // The background thread takes part, and valgrind lets one thread run at a time.
        std::thread::sleep(Duration::from_millis(1));
        let before = carried_out();
        round();
        poll_until(&client.sends, 1);
        carried_out() - before == BATCH as u64
    });
    assert!(is_mapped, "the memory is not mapped");
    for _ in 0..TIMES / BATCH {
        counted(&mut || round());
        poll_until(&client.sends, 1);
    }
}

/// Polls until so many completions have been found.
fn poll_until(queue: &CompletionQueue, wanted: usize) {
    let mut found = 0;
    while found < wanted {
        found += queue
            .poll(wanted - found, |completion| assert_eq!(completion.status, Status::Success))
            .unwrap_or(0);
    }
}

/// The transport in memory, but that nothing leaves a send queue.
struct Silent(Arc<dyn Transport>);

impl Transport for Silent {
    fn attributes(&self) -> DeviceAttributes {
        self.0.attributes()
    }

    fn port(&self) -> PortAttributes {
        self.0.port()
    }

    fn gids(&self) -> Vec<Gid> {
        self.0.gids()
    }

    fn allocate_number(&self, options: &QueuePairOptions) -> Result<u32> {
        self.0.allocate_number(options)
    }

    fn release_number(&self, number: u32) {
        self.0.release_number(number);
    }

    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(SilentEndpoint(self.0.create_endpoint(queues)?)))
    }

    fn connections(&self) -> &dyn ConnectionBackend {
        self.0.connections()
    }
}

struct SilentEndpoint(Arc<dyn Endpoint>);

impl Endpoint for SilentEndpoint {
    fn transmit(&self) {}

    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()> {
        self.0.modify(transition, attributes)
    }

    fn is_connected_by_manager(&self) -> bool {
        self.0.is_connected_by_manager()
    }

    fn close(&self) {
        self.0.close();
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
