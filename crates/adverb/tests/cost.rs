//! What an operation and an idle connection cost in memory. One test, so that nothing else allocates
//! meanwhile.

use adverb::{
    CompletionQueue, Connection, Device, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: everything is the system allocator's; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: handed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SOON: Duration = Duration::from_secs(20);
const OPERATIONS: usize = 2000;

/// Fewer allocations than this are of messages that find a lock taken on a busy machine, and not one for each
/// operation.
const FEW: u64 = OPERATIONS as u64 / 100;

struct End {
    queue: CompletionQueue,
    connections: Vec<Connection>,
    region: adverb::MemoryRegion,
}

/// Two ends with `count` connections between them; `connect` is called before each of them.
fn connected(device: &Device, count: usize, mut before_each: impl FnMut(usize)) -> (End, End) {
    let context = device.open().unwrap();
    let end = || {
        let domain = context.protection_domain().unwrap();
        let region = domain.memory_region(4096, Rights::all()).unwrap();
        let queue = context.completion_queue(1024).unwrap();
        (domain, End { queue, connections: Vec::with_capacity(count), region })
    };
    let ((near, mut client), (far, mut server)) = (end(), end());
    let listener = Listener::bind(&context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    for index in 0..count {
        before_each(index);
        std::thread::scope(|scope| {
            let options = QueuePairOptions { inline_bytes: 0, ..QueuePairOptions::new(&client.queue) };
            let queue_pair = near.queue_pair(options).unwrap();
            let connecting = scope.spawn(move || queue_pair.connect(address, &[], SOON).unwrap());
            let request = listener.accept(SOON).unwrap();
            let options = QueuePairOptions { inline_bytes: 0, ..QueuePairOptions::new(&server.queue) };
            let queue_pair = far.queue_pair(options).unwrap();
            server.connections.push(request.accept(queue_pair, &[], SOON).unwrap());
            client.connections.push(connecting.join().unwrap());
        });
    }
    (client, server)
}

fn no_allocation_per_operation(device: &Device) {
    let (client, server) = connected(device, 1, |_| {});
    let (from, to) = (&client.connections[0], &server.connections[0]);
    let there: RemoteMemory = server.region.remote().slice(..8).unwrap();
    let mut mine = Some(from.domain().buffer(8).unwrap());
    let mut theirs = Some(to.domain().buffer(8).unwrap());
    let mut run = |count: usize, operation: &str| {
        for _ in 0..count {
            let buffer = mine.take().unwrap();
            let request = match operation {
                "send" => WorkRequest::send(buffer),
                "write" => WorkRequest::write(buffer, &there),
                _ => WorkRequest::read(buffer, &there),
            };
            if operation == "send" {
                to.post_receive(0, theirs.take().unwrap()).unwrap();
            }
            from.post_send(request).unwrap();
            mine = client.queue.wait(SOON).unwrap().success().unwrap().buffer;
            if operation == "send" {
                theirs = server.queue.wait(SOON).unwrap().success().unwrap().buffer;
            }
        }
    };
    for operation in ["send", "write", "read"] {
        // Tables grow until they fit. On a busy machine, the list of channels that a lane polls grows later,
        // and the list of endpoints that wait for it.
        let calls = (0..5).map(|_| {
            let before = CALLS.load(Ordering::SeqCst);
            run(OPERATIONS, operation);
            CALLS.load(Ordering::SeqCst) - before
        });
        let least = calls.min().unwrap_or(u64::MAX);
        let name = device.name();
        assert!(least < FEW, "{least} allocations in {OPERATIONS} {operation} operations on {name}");
    }
}

fn little_memory_per_idle_connection(device: &Device) {
    // Tables grow by leaps, and buffers are made when a thread first needs them, perhaps amid some
    // connections: these do not count.
    const GROUP: usize = 16;
    const GROUPS: usize = 5;
    let mut used = Vec::with_capacity(GROUPS + 1);
    let ends = connected(device, GROUP * GROUPS, |index| {
        if index % GROUP == 0 {
            used.push(BYTES.load(Ordering::SeqCst));
        }
    });
    used.push(BYTES.load(Ordering::SeqCst));
    let mut groups: Vec<i64> = used.windows(2).map(|pair| (pair[1] - pair[0]) / (2 * GROUP as i64)).collect();
    groups.sort_unstable();
    let each = groups[GROUPS / 2];
    assert!(
        each <= 17 << 10,
        "{each} bytes for an idle queue pair of 128 + 128 requests on {}",
        device.name()
    );
    println!("{each} bytes per idle queue pair on {}", device.name());
    drop(ends);
}

#[test]
fn cost() {
    // SAFETY: the only test of this process, and no other thread reads the environment yet.
    unsafe { std::env::set_var("ADVERB_DEVICE", "roce0,iwarp0") };
    let devices = Device::all().unwrap();
    assert_eq!(devices.len(), 2);
    for device in devices {
        no_allocation_per_operation(&device);
        little_memory_per_idle_connection(&device);
    }
}
