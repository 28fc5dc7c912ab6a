//! A server with a thread for each client. The clients fetch a text out of its memory, and send a message:
//! here all are threads of one program, which could as well be machines.

use adverb::{
    ConnectionRequest, Context, Listener, MemoryRegion, ProtectionDomain, QueuePairOptions, RemoteMemory,
    Result, Rights, WorkRequest,
};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const CLIENTS: usize = 3;
const TEXT: &[u8] = b"good morning";

fn main() -> Result<()> {
    let context = Context::open_default()?;
    let listener = Listener::bind(&context, ([127, 0, 0, 1], 0).into(), 16)?;
    let address = listener.local_address();
    let mut threads = Vec::new();
    for number in 1..=CLIENTS {
        let context = context.clone();
        threads.push(thread::spawn(move || visit(&context, address, number)));
    }

    let domain = context.protection_domain()?;
    let region = domain.memory_region(64, Rights::READ)?;
    region.write(0, TEXT);
    for _ in 0..CLIENTS {
        let request = listener.accept(SOON)?;
        let (domain, region) = (domain.clone(), region.clone());
        threads.push(thread::spawn(move || serve(request, &domain, &region)));
    }
    threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
}

// ANCHOR: serve
/// Prints the messages of one client until it has gone.
fn serve(request: ConnectionRequest, domain: &ProtectionDomain, region: &MemoryRegion) -> Result<()> {
    let completions = domain.context().completion_queue(16)?;
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    queue_pair.post_receive(0, domain.buffer(64)?)?;
    let connection = request.accept(queue_pair, &region.remote().to_bytes(), SOON)?;
    loop {
        // None: the client has ended the connection, and no message has taken the receive.
        let Some(received) = completions.wait(SOON)?.unless_flushed()? else { return Ok(()) };
        println!("{}", String::from_utf8_lossy(received.message()));
        connection.post_receive(0, received.into_buffer())?;
    }
}
// ANCHOR_END: serve

// ANCHOR: visit
fn visit(context: &Context, address: SocketAddr, number: usize) -> Result<()> {
    let domain = context.protection_domain()?;
    let completions = context.completion_queue(16)?;
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    let connection = queue_pair.connect(address, &[], SOON)?;
    let offered = RemoteMemory::from_bytes(connection.private_data()).expect("the server's token");
    // As many bytes as the buffer has: fewer than the token names.
    connection.post_send(WorkRequest::read(domain.buffer(TEXT.len())?, &offered))?;
    let read = completions.wait(SOON)?.success()?.into_buffer();
    let message = format!("client {number} has read {:?}", String::from_utf8_lossy(&read));
    connection.post_send(WorkRequest::send(message.as_bytes()))?;
    completions.wait(SOON)?.success()?;
    connection.disconnect()
}
// ANCHOR_END: visit
