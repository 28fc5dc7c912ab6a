//! A notice board in memory: the server offers it and then sleeps; visitors pin notices to it and read it,
//! and the server's program takes no part. Visitors that come at the same time share out the lines by an
//! atomic counter on the board.
//!
//! Start `cargo run -p adverb --example noticeboard -- serve 127.0.0.1:7471`, and then, as often as you like,
//! `cargo run -p adverb --example noticeboard -- 127.0.0.1:7471 "some text"`.

use adverb::{
    Buffer, CompletionQueue, Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest,
};
use std::error::Error;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const LINES: usize = 16;
const LINE: usize = 80;
/// The counter comes first, then the lines.
const BOARD: usize = 8 + LINES * LINE;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address.parse()?, usize::MAX),
        // For a while only: so many visitors.
        ["serve", address, visitors] => serve(address.parse()?, visitors.parse()?),
        [address, notice] => visit(address.parse()?, notice),
        _ => Err("usage: noticeboard serve ADDRESS:PORT [VISITORS], or noticeboard ADDRESS:PORT TEXT".into()),
    }
}

fn serve(address: SocketAddr, visitors: usize) -> Result<(), Box<dyn Error>> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let board = domain.memory_region(BOARD, Rights::all())?;
    let completions = context.completion_queue(16)?;
    let listener = Listener::bind(&context, address, 16)?;
    println!("listening at {}", listener.local_address());
    let mut connections = Vec::new();
    for _ in 0..visitors {
        let request = match listener.accept(Duration::from_secs(3600)) {
            Ok(request) => request,
            Err(error) if error.is_timeout() => continue,
            Err(error) => return Err(error.into()),
        };
        let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
        // The token of the board goes along with the answer.
        match request.accept(queue_pair, &board.remote().to_bytes(), SOON) {
            Ok(connection) => connections.push(connection),
            Err(error) => eprintln!("a visitor did not get in: {error}"),
        }
        connections.retain(|connection| connection.is_connected());
    }
    for connection in connections {
        connection.wait_disconnected(SOON);
    }
    Ok(())
}

fn visit(address: SocketAddr, notice: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let completions = context.completion_queue(16)?;
    let connection = domain.queue_pair(QueuePairOptions::new(&completions))?.connect(address, &[], SOON)?;
    // Whoever answers may be another program.
    let board = RemoteMemory::from_bytes(connection.private_data())
        .and_then(|memory| memory.slice(..BOARD))
        .ok_or("the server named no memory, or too little")?;
    let part = |range: Range<usize>| board.slice(range).ok_or("the board has no such part");
    let finish = |queue: &CompletionQueue| -> adverb::Result<Buffer> {
        Ok(queue.wait(SOON)?.success()?.into_buffer())
    };

    // Nobody else gets this number.
    connection.post_send(WorkRequest::fetch_add(domain.buffer(8)?, &part(0..8)?, 1))?;
    let mut number = [0; 8];
    number.copy_from_slice(&finish(&completions)?);
    let line = u64::from_ne_bytes(number) as usize % LINES;

    let mut text = domain.buffer(LINE)?;
    text.fill(b' ');
    let length = notice.len().min(LINE);
    text[..length].copy_from_slice(&notice.as_bytes()[..length]);
    let place = part(8 + line * LINE..8 + (line + 1) * LINE)?;
    connection.post_send(WorkRequest::write(text, &place))?;
    // A read behind a write sees what was written.
    connection.post_send(WorkRequest::read(domain.buffer(LINES * LINE)?, &part(8..BOARD)?))?;
    finish(&completions)?;
    let lines = finish(&completions)?;
    for line in lines.chunks(LINE).filter(|line| line[0] != 0) {
        println!("{}", String::from_utf8_lossy(line).trim_end());
    }
    Ok(())
}
