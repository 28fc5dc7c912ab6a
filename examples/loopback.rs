//! A queue pair that is connected to itself: a message from one buffer of the program to another one.
//!
//! Start `cargo run --release -p adverb --example loopback`. The device must connect by numbers, as `roce0`
//! does.

use adverb::{CompletionOpcode, ConnectionOptions, Context, QueuePairOptions, WorkRequest};
use std::error::Error;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: connect
    let context = Context::open_default()?;
    let completions = context.completion_queue(16)?;
    let domain = context.protection_domain()?;
    let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    let own = queue_pair.raw_address([127, 0, 0, 1].into())?;
    let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    // ANCHOR_END: connect

    // ANCHOR: post
    connection.post_receive(0, domain.buffer(8)?)?;
    let mut number = domain.buffer(8)?;
    number.copy_from_slice(&66_u64.to_ne_bytes());
    connection.post_send(WorkRequest::send(number))?;
    // ANCHOR_END: post

    // ANCHOR: complete
    for _ in 0..2 {
        let completion = completions.wait(SOON)?.success()?;
        match completion.operation {
            CompletionOpcode::Receive => {
                println!("received {}", u64::from_ne_bytes(completion.message().try_into()?));
            }
            _ => println!("sent"),
        }
    }
    // ANCHOR_END: complete
    Ok(())
}
