//! The client of `rping`, in Rust: it lends its memory to the server in C, which reads a text there, and
//! writes it back to another place.
//!
//! Start `adverb run -- rping -s -a 127.0.0.1 -p 7174`, and then
//! `cargo run --release -p adverb --example rping -- 127.0.0.1:7174`.

use adverb::{Connection, Context, MemoryRegion, QueuePairOptions, Rights, WorkRequest};
use std::error::Error;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
const ROUNDS: u8 = 100;
/// Bytes of the text, with the zero at its end. The server's buffer has as many: `-S` there.
const SIZE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).ok_or("usage: rping ADDRESS:PORT")?.parse()?;
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(16)?);
    let options = QueuePairOptions { receive_queue: receives, ..QueuePairOptions::new(&sends) };
    let queue_pair = domain.queue_pair(options)?;
    queue_pair.post_receive(0, domain.buffer(MESSAGE)?)?;
    let connection = queue_pair.connect(server, &[], SOON)?;

    let source = domain.memory_region(SIZE, Rights::READ)?;
    let sink = domain.memory_region(SIZE, Rights::WRITE)?;
    for round in 0..ROUNDS {
        let mut text = [b'A' + round % 26; SIZE];
        text[SIZE - 1] = 0;
        source.write(0, &text);
        lend(&connection, &source)?;
        lend(&connection, &sink)?;
        assert_eq!(sink.to_vec(..), text, "what the server has read comes back");
    }
    connection.disconnect()?;
    println!("{ROUNDS} texts of {SIZE} bytes were read by the server, and written back");
    Ok(())
}

/// Bytes of a message of rping.
const MESSAGE: usize = 16;

/// Names a region to the server in rping's form, and waits until the server has used it.
fn lend(connection: &Connection, region: &MemoryRegion) -> adverb::Result<()> {
    let token = region.remote();
    let mut message = [0; MESSAGE];
    message[..8].copy_from_slice(&token.address().to_be_bytes());
    message[8..12].copy_from_slice(&token.key().to_be_bytes());
    message[12..].copy_from_slice(&(token.len() as u32).to_be_bytes());
    connection.post_send(WorkRequest::send(&message))?;
    connection.send_queue().wait(SOON)?.success()?;
    let go_ahead = connection.receive_queue().wait(SOON)?.success()?;
    connection.post_receive(0, go_ahead.into_buffer())?;
    Ok(())
}
