//! `adverb bench`: what the operations cost, beside what raw TCP and UDP cost in the same run.

mod allocator;
mod iwarp;
mod measure;
mod network;
mod processors;
mod report;
mod roce;
mod scale;
mod target;
mod tcp;
mod udp;

use crate::failure::Failure;
use measure::{Place, RoundTrip, Session, TargetIs};
use report::Results;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use target::Watching;

/// Measure latency and throughput of every operation, against raw TCP and UDP in the same run
#[derive(clap::Args)]
#[command(after_help = "\
Two processes of this machine talk: iWARP over the loopback interface, RoCE between two network namespaces where the
system lets an ordinary user make them (that takes ip, and for loss tc, of iproute2), else over the loopback interface, too. Every quantity is measured once per round, its yardstick in the
same round; the table shows medians over the rounds, and the median of the ratios. Latencies are of 8 bytes, one way for sends and
writes (half of a ping-pong), there and back for reads and atomics. CRC is the iWARP checksum over every byte; RoCE always has its own.")]
pub(crate) struct Args {
    /// Device to measure, or all
    #[arg(long, value_name = "NAME", default_value = ALL)]
    device: String,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Measure less often per round: rough numbers in a second or two
    #[arg(long)]
    quick: bool,
    /// Be the other process
    #[arg(long, hide = true)]
    target: bool,
    /// Only do so many messages, writes or reads of 8 bytes, for somebody who watches
    #[arg(long, hide = true, num_args = 2, value_names = ["OPERATION", "COUNT"])]
    only: Option<Vec<String>>,
}

/// The device that is measured against UDP.
const ROCE: &str = "roce0";
const ALL: &str = "all";
/// A target process ends after this time, whatever happens.
const LIMIT: Duration = Duration::from_secs(3600);
/// Sizes of streams.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const BLOCK: usize = 64 << 10;

/// How much is done.
struct Effort {
    rounds: u16,
    /// Messages of 8 bytes in a round.
    messages: usize,
    /// Bytes of each stream in a round.
    bytes: usize,
    /// Connections at once.
    connections: usize,
}

impl Effort {
    /// Runs `work` once per round.
    fn rounds(&self, device: &str, mut work: impl FnMut() -> Result<(), String>) -> Result<(), String> {
        let watched = std::io::stderr().is_terminal();
        for round in 0..self.rounds {
            if watched {
                eprint!("\r{device}: round {} of {} ", round + 1, self.rounds);
                let _ = std::io::stderr().flush();
            }
            work()?;
        }
        if watched {
            eprint!("\r\x1b[K");
        }
        Ok(())
    }
}

/// Runs the benchmark.
pub(crate) fn bench(args: &Args) -> Result<ExitCode, Failure> {
    if args.target {
        target::serve(LIMIT);
        return Ok(ExitCode::SUCCESS);
    }
    let known = adverb::Device::known();
    let devices: Vec<&str> = match args.device.as_str() {
        ALL => known,
        name => known.into_iter().filter(|known| *known == name).collect(),
    };
    if devices.is_empty() {
        let known = adverb::Device::known().join(", ");
        return Err(Failure::own(format!("there is no device {:?}; there are: {known}", args.device)));
    }
    // The target decides about the checksum; this side leaves it off.
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var("ADVERB_CRC", "off");
        std::env::set_var("ADVERB_DEVICE", devices.join(","));
    }
    if let Some([operation, count]) = args.only.as_deref() {
        let count = count.parse().map_err(|error| Failure::own(format!("{count}: {error}")))?;
        return only(devices[0], operation, count).map(|()| ExitCode::SUCCESS).map_err(Failure::own);
    }
    let network = if devices.contains(&ROCE) { network::enter() } else { Ok(()) };
    let effort = Effort {
        rounds: args.rounds,
        messages: if args.quick { 500 } else { 5000 },
        bytes: if args.quick { 16 << 20 } else { 128 << 20 },
        connections: if args.quick { 256 } else { 10_000 },
    };
    let run = |device: &&str| match *device {
        ROCE => roce::run(device, network.clone(), &effort),
        _ => iwarp::run(device, &effort),
    };
    let all = devices.iter().map(run).collect::<Result<Vec<Results>, String>>().map_err(Failure::own)?;
    if args.json {
        let document = serde_json::json!({
            "processors": std::thread::available_parallelism().map_or(1, |n| n.get()),
            "rounds": args.rounds,
            "devices": all.iter().map(Results::json).collect::<Vec<_>>(),
        });
        println!("{document:#}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("adverb bench, {} rounds", args.rounds);
    let (mut targets, mut met) = (0, 0);
    for results in &all {
        println!("\n{}", results.table());
        let (more, well) = results.targets();
        (targets, met) = (targets + more, met + well);
    }
    println!("{met} of {targets} targets met");
    Ok(ExitCode::SUCCESS)
}

/// Nothing but one operation, so that whoever counts system calls sees no others.
fn only(device: &str, operation: &str, count: usize) -> Result<(), String> {
    let mut session = Session::start(device, Place::Here, false)?;
    match operation {
        "send" => session.send_latency(count)?,
        "write" => session.write_latency(Watching::Both, count)?,
        "read" => session.round_trip(RoundTrip::Read, TargetIs::Polling, count)?,
        other => return Err(format!("{other:?}: send, write and read are known")),
    };
    Ok(())
}
