//! A message goes back and forth, and its time is taken.
//!
//! Start `cargo run --release -p adverb --example ping_pong -- serve 127.0.0.1:7471`, and in another
//! terminal, or on another machine, `cargo run --release -p adverb --example ping_pong -- 127.0.0.1:7471`.

use adverb::{CompletionQueue, Connection, Context, Listener, QueuePair, QueuePairOptions, WorkRequest};
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let context = Context::open_default()?;
    // Sends and receives complete on queues of their own, so that each side knows what it waits for.
    let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(16)?);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            let listener = Listener::bind(&context, address.parse()?, 1)?;
            println!("listening at {}", listener.local_address());
            let request = listener.accept(SOON)?;
            println!("{} has come", request.peer_address());
            let connection = request.accept(ready(&context, &sends, &receives)?, &[], SOON)?;
            for _ in 0..ROUNDS {
                return_ball(&connection)?;
            }
            connection.wait_disconnected(SOON);
        }
        [address] => {
            let address: SocketAddr = address.parse()?;
            let connection = ready(&context, &sends, &receives)?.connect(address, &[], SOON)?;
            let start = Instant::now();
            connection.post_send(WorkRequest::send(b"ping"))?;
            spin(&sends)?;
            for _ in 1..ROUNDS {
                return_ball(&connection)?;
            }
            let last = spin(&receives)?;
            assert_eq!(last.message(), b"ping");
            println!("{ROUNDS} messages there and back, {:?} each way", start.elapsed() / (2 * ROUNDS));
        }
        _ => return Err("usage: ping_pong [serve] ADDRESS:PORT".into()),
    }
    Ok(())
}

/// A queue pair with a receive posted, before anybody can send.
fn ready(
    context: &Context,
    sends: &CompletionQueue,
    receives: &CompletionQueue,
) -> adverb::Result<QueuePair> {
    let domain = context.protection_domain()?;
    let options = QueuePairOptions { send_queue: sends.clone(), ..QueuePairOptions::new(receives) };
    let queue_pair = domain.queue_pair(options)?;
    for buffer in domain.buffers(2, 64)? {
        queue_pair.post_receive(0, buffer)?;
    }
    Ok(queue_pair)
}

/// Waits for the message, sends it back out of its buffer, and offers the buffer for a later message. Another
/// one is offered meanwhile.
fn return_ball(connection: &Connection) -> adverb::Result<()> {
    let ball = spin(connection.receive_queue())?;
    let length = ball.bytes;
    connection.post_send(WorkRequest::send(ball.into_buffer().slice(..length)))?;
    let sent = spin(connection.send_queue())?;
    Ok(connection.post_receive(0, sent.into_buffer())?)
}

/// The next completion, waited for busily.
fn spin(queue: &CompletionQueue) -> adverb::Result<adverb::Completion> {
    loop {
        if let Some(completion) = queue.poll()? {
            return completion.success();
        }
    }
}
