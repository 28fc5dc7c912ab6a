//! Copies a file by RDMA: the receiver offers two halves of a buffer, the sender writes into one while the
//! receiver empties the other.
//!
//! Start `cargo run --release -p adverb --example copy_file -- receive 127.0.0.1:7471 COPY`, and then
//! `cargo run --release -p adverb --example copy_file -- send 127.0.0.1:7471 FILE`.

use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest};
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
const HALF: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", address, file] => receive(address.parse()?, file),
        ["send", address, file] => send(address.parse()?, file),
        _ => Err("usage: copy_file receive|send ADDRESS:PORT FILE".into()),
    }
}

/// "The half with this index has so many bytes", or "the half with this index is free again". No bytes: the
/// end.
fn note(half: usize, bytes: usize) -> [u8; 8] {
    let mut note = [0; 8];
    note[..4].copy_from_slice(&(half as u32).to_be_bytes());
    note[4..].copy_from_slice(&(bytes as u32).to_be_bytes());
    note
}

fn parse(note: &[u8]) -> Result<(usize, usize), Box<dyn Error>> {
    let word =
        |at: usize| note.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    match (word(0), word(4)) {
        (Some(half @ 0..=1), Some(bytes)) if bytes as usize <= HALF => Ok((half as usize, bytes as usize)),
        _ => Err("the peer sent something else than a note".into()),
    }
}

fn receive(address: SocketAddr, file: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(16)?);
    let listener = Listener::bind(&context, address, 1)?;
    println!("listening at {}", listener.local_address());
    let mut file = File::create(file)?;
    let halves = domain.memory_region(2 * HALF, Rights::WRITE)?;
    let options = QueuePairOptions { send_queue: sends.clone(), ..QueuePairOptions::new(&receives) };
    let queue_pair = domain.queue_pair(options)?;
    for buffer in domain.buffers(4, 8)? {
        queue_pair.post_receive(0, buffer)?;
    }
    let connection = listener.accept(SOON)?.accept(queue_pair, &halves.remote().to_bytes(), SOON)?;
    loop {
        let completion = receives.wait(SOON)?.success()?;
        let (half, bytes) = parse(completion.message())?;
        file.write_all(&halves.to_vec(half * HALF..half * HALF + bytes))?;
        connection.post_receive(0, completion.into_buffer())?;
        connection.post_send(WorkRequest::send(&note(half, 0)))?;
        sends.wait(SOON)?.success()?;
        if bytes == 0 {
            break;
        }
    }
    // The sender closes when it has the last note.
    connection.wait_disconnected(SOON);
    Ok(())
}

fn send(address: SocketAddr, file: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(16)?);
    let mut file = File::open(file)?;
    let options = QueuePairOptions { send_queue: sends.clone(), ..QueuePairOptions::new(&receives) };
    let queue_pair = domain.queue_pair(options)?;
    for buffer in domain.buffers(4, 8)? {
        queue_pair.post_receive(0, buffer)?;
    }
    let connection = queue_pair.connect(address, &[], SOON)?;
    let offered =
        RemoteMemory::from_bytes(connection.private_data()).ok_or("the receiver named no memory")?;
    let start = Instant::now();
    let mut free = domain.buffers(2, HALF)?;
    let (mut total, mut ended, mut answers_due) = (0, false, 0);
    for half in [0, 1].into_iter().cycle() {
        // A half is written again only after the note that it is free.
        while answers_due > usize::from(!ended) {
            let completion = receives.wait(SOON)?.success()?;
            parse(completion.message())?;
            connection.post_receive(0, completion.into_buffer())?;
            answers_due -= 1;
        }
        if ended {
            break;
        }
        let mut buffer = free.pop().ok_or("no buffer is free")?;
        let mut bytes = 0;
        while bytes < HALF {
            match file.read(&mut buffer[bytes..])? {
                0 => break,
                count => bytes += count,
            }
        }
        // The token is the peer's word: the memory may be too short.
        let there = offered.slice(half * HALF..half * HALF + bytes);
        let there = there.ok_or("the receiver named too little memory")?;
        connection.post_send(WorkRequest::write(buffer.slice(..bytes), &there))?;
        connection.post_send(WorkRequest::send(&note(half, bytes)))?;
        answers_due += 1;
        free.extend(sends.wait(SOON)?.success()?.buffer);
        sends.wait(SOON)?.success()?;
        total += bytes;
        ended = bytes == 0;
    }
    let took = start.elapsed();
    println!("{total} bytes in {took:.2?}: {:.0} MB/s", total as f64 / took.as_secs_f64() / 1e6);
    Ok(())
}
