//! Measures 8-byte ping-pongs of two processes on tokio: over a Unix socket, and over connections of the
//! async API.
//!
//! Usage: `cargo bench -p adverb --bench async [-- ROUNDS]` (default: 5)
//!
//! In each round every way is measured once. The table shows medians of the rounds, and medians of the ratios
//! to the Unix socket. The measuring process starts the other one, and tells it the way by its argument. Both
//! talk over a socket that is the other's standard input, until they have the connection.

use adverb::Context;
use adverb::asynchronous::{AsyncConnection, AsyncEndpoint, AsyncOptions, Tokio};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Ping-pongs before the clock starts, and those that are measured.
const FIRST: u32 = 2_000;
const ROUND_TRIPS: u32 = 20_000;
/// How long a future looks for its completion, where both sides spin.
const SPIN: Duration = Duration::from_millis(1);
const ANYWHERE: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// How the bytes go.
#[derive(Clone, Copy)]
enum Way {
    Unix,
    Asleep,
    Spinning,
}

impl Way {
    const ALL: [Self; 3] = [Self::Unix, Self::Asleep, Self::Spinning];

    /// The argument of a way, the words of the table for it, and the most time that it may take, as a part of
    /// the Unix socket's.
    const fn about(self) -> (&'static str, &'static str, Option<f64>) {
        match self {
            Self::Unix => ("unix", "tokio, a Unix socket", None),
            Self::Asleep => ("asleep", "adverb, both sides sleep", Some(0.8)),
            Self::Spinning => ("spinning", "adverb, both sides spin", Some(0.2)),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.about().0 == name)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure(5).await,
        [argument] => match Way::named(argument) {
            Some(way) => answer(way).await,
            None => measure(argument.parse().map_err(|_| format!("{argument}: how many rounds?"))?).await,
        },
        _ => Err("one argument at most, the number of rounds".into()),
    }
}

async fn measure(rounds: usize) -> Result<()> {
    let mut times = [const { Vec::new() }; Way::ALL.len()];
    for _ in 0..rounds {
        for (way, times) in Way::ALL.into_iter().zip(&mut times) {
            times.push(measure_once(way).await?.as_secs_f64() * 1e6);
        }
    }
    let [unix, ..] = &times;
    println!("{:32} {:>9} {:>7} {:>12}", "8 bytes, one way", "median", "ratio", "target");
    for (way, times) in Way::ALL.into_iter().zip(&times) {
        let (_, words, target) = way.about();
        let ratio = median(times.iter().zip(unix).map(|(time, unix)| time / unix));
        let target = target.map_or(String::new(), |most| format!("at most {most}"));
        println!("{words:32} {:>6.2} µs {ratio:>7.2} {target:>12}", median(times.iter().copied()));
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Half the time of a round trip, the mean of many.
async fn measure_once(way: Way) -> Result<Duration> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(way.about().0)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    let mut control = to_tokio(ours)?;
    let time = match way {
        Way::Unix => {
            for _ in 0..FIRST {
                bounce_socket(&mut control).await?;
            }
            let start = Instant::now();
            for _ in 0..ROUND_TRIPS {
                bounce_socket(&mut control).await?;
            }
            start.elapsed()
        }
        Way::Asleep | Way::Spinning => {
            let port = control.read_u16().await?;
            let connection = endpoint(way)?.connect((ANYWHERE.0, port).into(), &[]).await?;
            for _ in 0..FIRST {
                bounce(&connection).await?;
            }
            let start = Instant::now();
            for _ in 0..ROUND_TRIPS {
                bounce(&connection).await?;
            }
            start.elapsed()
        }
    };
    drop(control);
    child.wait()?;
    Ok(time / ROUND_TRIPS / 2)
}

async fn bounce_socket(socket: &mut UnixStream) -> Result<()> {
    socket.write_all(&[1; 8]).await?;
    socket.read_exact(&mut [0; 8]).await?;
    Ok(())
}

async fn bounce(connection: &AsyncConnection) -> Result<()> {
    connection.send(&[1; 8]).await?;
    connection.receive().await?.ok_or("the other process has gone")?;
    Ok(())
}

/// The other process: sends back what comes.
async fn answer(way: Way) -> Result<()> {
    let mut control = to_tokio(std::io::stdin().as_fd().try_clone_to_owned()?.into())?;
    match way {
        Way::Unix => {
            let mut bytes = [0; 8];
            while control.read_exact(&mut bytes).await.is_ok() {
                control.write_all(&bytes).await?;
            }
        }
        Way::Asleep | Way::Spinning => {
            let mut listener = endpoint(way)?.listen(ANYWHERE.into(), 1)?;
            control.write_u16(listener.local_address().port()).await?;
            let connection = listener.accept().await?.accept(&[]).await?;
            while let Some(message) = connection.receive().await? {
                connection.send(&message[..]).await?;
            }
        }
    }
    Ok(())
}

fn endpoint(way: Way) -> Result<AsyncEndpoint> {
    let domain = Context::open_default()?.protection_domain()?;
    let spin = if matches!(way, Way::Spinning) { SPIN } else { Duration::ZERO };
    Ok(AsyncEndpoint::new(&domain, Tokio::current())
        .with_options(AsyncOptions { spin, ..AsyncOptions::default() }))
}

fn to_tokio(socket: std::os::unix::net::UnixStream) -> Result<UnixStream> {
    socket.set_nonblocking(true)?;
    Ok(UnixStream::from_std(socket)?)
}
