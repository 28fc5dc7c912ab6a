//! One program writes into another one's memory: here two threads, which could as well be two machines.

use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Result, Rights, WorkRequest};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let context = Context::open_default()?;
    let listener = Listener::bind(&context, ([127, 0, 0, 1], 0).into(), 1)?;
    let (server, address) = (context.clone(), listener.local_address());
    let server = std::thread::spawn(move || offer(&server, &listener));

    let domain = context.protection_domain()?;
    let completions = context.completion_queue(16)?;
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    let connection = queue_pair.connect(address, &[], SOON)?;
    let memory = RemoteMemory::from_bytes(connection.private_data()).expect("the server's token");
    let mut buffer = domain.buffer(5)?;
    buffer.copy_from_slice(b"hello");
    connection.post_send(WorkRequest::write(buffer, &memory))?;
    completions.wait(SOON)?.success()?;
    connection.disconnect()?;
    server.join().expect("the server's thread")
}

/// Offers 64 bytes to a client. The client's write needs no help of this thread.
fn offer(context: &Context, listener: &Listener) -> Result<()> {
    let domain = context.protection_domain()?;
    let region = domain.memory_region(64, Rights::WRITE)?;
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&context.completion_queue(16)?))?;
    let connection = listener.accept(SOON)?.accept(queue_pair, &region.remote().to_bytes(), SOON)?;
    connection.wait_disconnected(SOON);
    println!("{}", String::from_utf8_lossy(&region.to_vec(..5)));
    Ok(())
}
