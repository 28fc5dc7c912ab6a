//! `ibv_rc_pingpong` in Rust: two programs exchange the numbers of their queue pairs over a socket, and
//! connect the queue pairs by them. The peer is this program, or the one in C.
//!
//! Start `cargo run --release -p adverb --example rc_pingpong -- serve 192.0.2.2:18515`, and on another
//! machine `adverb run -- ibv_rc_pingpong -g 0 192.0.2.2`. Or start `adverb run -- ibv_rc_pingpong -g 0`, and
//! then this program with the argument `192.0.2.2:18515`. The number behind `-g` is that of an address that
//! leads to the peer: look at `ibv_devinfo -v`.

use adverb::{ConnectionOptions, Context, QueuePairOptions, RawAddress, Rights, WorkRequest};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
/// What the program in C sends unless told otherwise: `-s` and `-n` there.
const SIZE: usize = 4096;
const ROUNDS: u32 = 1000;
const RECEIVES: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut socket, side) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            let listener = TcpListener::bind(address)?;
            println!("listening at {}", listener.local_addr()?);
            (listener.accept()?.0, Side::Server)
        }
        [server] => (TcpStream::connect(server)?, Side::Client),
        _ => return Err("usage: rc_pingpong [serve] ADDRESS:PORT".into()),
    };

    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let (sends, receives) = (context.completion_queue(64)?, context.completion_queue(256)?);
    let options = QueuePairOptions { receive_queue: receives.clone(), ..QueuePairOptions::new(&sends) };
    let queue_pair = domain.queue_pair(options)?;
    // ANCHOR: receives
    for buffer in domain.buffers(RECEIVES, SIZE)? {
        queue_pair.post_receive(0, buffer)?;
    }
    // ANCHOR_END: receives

    // ANCHOR: connect
    let own = queue_pair.raw_address(socket.local_addr()?.ip())?;
    if side == Side::Client {
        own.write_to(&mut socket)?;
    }
    let peer = RawAddress::read_from(&mut socket)?;
    let connection = queue_pair.connect_raw(&own, &peer, &ConnectionOptions::new())?;
    // ANCHOR_END: connect
    // The client sends when it has the server's numbers: the server is connected by then.
    match side {
        Side::Server => {
            own.write_to(&mut socket)?;
            socket.read_exact(&mut [0; b"done\0".len()])?;
        }
        Side::Client => socket.write_all(b"done\0")?,
    }

    // ANCHOR: rounds
    // All of the messages are the same: a region can be sent while its last message is still on its way.
    let message = domain.memory_region(SIZE, Rights::empty())?;
    let start = Instant::now();
    if side == Side::Client {
        connection.post_send(WorkRequest::send(&message))?;
    }
    for round in 1..=ROUNDS {
        let ball = receives.wait(SOON)?.success()?;
        assert_eq!(ball.bytes, SIZE, "a message of the peer");
        connection.post_receive(0, ball.into_buffer())?;
        if side == Side::Server || round < ROUNDS {
            connection.post_send(WorkRequest::send(&message))?;
        }
        sends.wait(SOON)?.success()?;
    }
    // ANCHOR_END: rounds
    println!("{ROUNDS} messages of {SIZE} bytes there and back, {:?} each", start.elapsed() / ROUNDS);
    Ok(())
}
