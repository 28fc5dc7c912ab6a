//! The client of `ibv_rc_pingpong`, in Rust: it exchanges numbers with the program in C over a socket, and connects its queue pair by them.
//!
//! Start `adverb run -- ibv_rc_pingpong -g 0`, and then `cargo run --release -p adverb --example rc_pingpong -- 127.0.0.1:18515`. The
//! server must use an address that leads to this host: look at `ibv_devinfo -v` for the number behind `-g`.

use adverb::{ConnectionOptions, Context, QueuePairOptions, RawAddress, Rights, WorkRequest};
use std::error::Error;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
/// What the program in C sends unless told otherwise: `-s` and `-n` there.
const SIZE: usize = 4096;
const ROUNDS: u64 = 1000;
const RECEIVES: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let server: SocketAddr = std::env::args().nth(1).ok_or("usage: rc_pingpong ADDRESS:PORT")?.parse()?;
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let (sends, receives) = (context.completion_queue(64)?, context.completion_queue(256)?);
    let options = QueuePairOptions { receive_queue: receives.clone(), ..QueuePairOptions::new(&sends) };
    let queue_pair = domain.queue_pair(options)?;
    for buffer in domain.buffers(RECEIVES, SIZE)? {
        queue_pair.post_receive(0, buffer)?;
    }
    let mut socket = TcpStream::connect(server)?;
    let own = queue_pair.raw_address(socket.local_addr()?.ip())?;
    own.write_to(&mut socket)?;
    let peer = RawAddress::read_from(&mut socket)?;
    let connection = queue_pair.connect_raw(&own, &peer, &ConnectionOptions::new())?;
    socket.write_all(b"done\0")?;

    // All of the messages are the same: a region can be sent while its last message is still on its way.
    let message = domain.memory_region(SIZE, Rights::empty())?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        connection.post_send(WorkRequest::send(&message))?;
        let ball = receives.wait(SOON)?.success()?;
        connection.post_receive(0, ball.into_buffer())?;
        sends.wait(SOON)?.success()?;
    }
    println!("{ROUNDS} messages of {SIZE} bytes there and back, {:?} each", start.elapsed() / ROUNDS as u32);
    Ok(())
}
