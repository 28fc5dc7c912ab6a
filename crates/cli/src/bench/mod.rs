//! `adverb bench`: what the operations cost, beside what raw TCP costs in the same run.

mod allocator;
mod measure;
mod report;
mod target;
mod tcp;

use crate::failure::Failure;
use measure::{RoundTrip, Session, TargetIs, Times};
use report::{Results, Sample, Target, Unit};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Measure latency and throughput of every operation, against raw TCP in the same run
#[derive(clap::Args)]
#[command(after_help = "\
Two processes of this machine talk over the loopback interface. Every quantity is measured once per round, its yardstick in the
same round; the table shows medians over the rounds, and the median of the ratios. Latencies are of 8 bytes, one way for sends and
writes (half of a ping-pong), there and back for reads and atomics. CRC is the iWARP checksum over every byte.")]
pub(crate) struct Args {
    /// Device to measure [default: the first that programs see]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
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

/// A target process ends after this time, whatever happens.
const LIMIT: Duration = Duration::from_secs(3600);
/// Sizes of streams.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const BLOCK: usize = 64 << 10;

const TCP_ONE_WAY: &str = "raw TCP, one way";
const TCP_THERE_AND_BACK: &str = "raw TCP, there and back";
const TCP_STREAM: &str = "raw TCP stream";

/// Runs the benchmark.
pub(crate) fn bench(args: &Args) -> Result<ExitCode, Failure> {
    if args.target {
        target::serve(LIMIT);
        return Ok(ExitCode::SUCCESS);
    }
    // The target decides about the checksum; this side leaves it off.
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("ADVERB_CRC", "off") };
    let device = match &args.device {
        Some(name) => {
            // SAFETY: as above.
            unsafe { std::env::set_var("ADVERB_DEVICE", name) };
            name.clone()
        }
        None => {
            let context = adverb::Context::open_default().map_err(|error| Failure::own(error.to_string()))?;
            context.device().name().to_owned()
        }
    };
    if let Some([operation, count]) = args.only.as_deref() {
        let count = count.parse().map_err(|error| Failure::own(format!("{count}: {error}")))?;
        return only(&device, operation, count).map(|()| ExitCode::SUCCESS).map_err(Failure::own);
    }
    let results = run(&device, args).map_err(Failure::own)?;
    if args.json {
        println!("{}", results.json(&device, args.rounds.into()));
    } else {
        println!("adverb bench: {device} over loopback, {} rounds\n", args.rounds);
        println!("{}", results.table());
        let (targets, met) = results.targets();
        println!("{met} of {targets} targets met");
    }
    Ok(ExitCode::SUCCESS)
}

/// Nothing but one operation, so that whoever counts system calls sees no others.
fn only(device: &str, operation: &str, count: usize) -> Result<(), String> {
    let mut session = Session::start(device, false)?;
    match operation {
        "send" => session.send_latency(count)?,
        "write" => session.write_latency(count)?,
        "read" => session.round_trip(RoundTrip::Read, TargetIs::Polling, count)?,
        other => return Err(format!("{other:?}: send, write and read are known")),
    };
    Ok(())
}

fn run(device: &str, args: &Args) -> Result<Results, String> {
    let mut plain = Session::start(device, false)?;
    plain.start_tcp()?;
    let mut checked = Session::start(device, true)?;
    let mut results = Results::default();
    for round in 0..args.rounds {
        if std::io::stderr().is_terminal() {
            eprint!("\rround {} of {} ", round + 1, args.rounds);
            let _ = std::io::stderr().flush();
        }
        latencies(&mut plain, &mut checked, &mut results, if args.quick { 500 } else { 5000 })?;
        let bytes = if args.quick { 16 << 20 } else { 128 << 20 };
        streams(&mut plain, &mut checked, &mut results, bytes)?;
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    results.add(Sample {
        name: "allocations per message",
        size: 8,
        unit: Unit::Count,
        // The least of some: a table that grows once is not a cost per message.
        value: (0..3).try_fold(f64::MAX, |least, _| Ok::<_, String>(plain.allocations(5000)?.min(least)))?,
        times: None,
        yardstick: None,
        target: Some(Target::AtMost(0.0)),
    });
    results.add(Sample {
        name: "memory per idle connection",
        size: 0,
        unit: Unit::Bytes,
        value: plain.idle_memory(64)?,
        times: None,
        yardstick: None,
        target: Some(Target::AtMost(16384.0)),
    });
    Ok(results)
}

fn latencies(
    plain: &mut Session,
    checked: &mut Session,
    results: &mut Results,
    rounds: usize,
) -> Result<(), String> {
    let mut add = |name, times: Times, yardstick: Option<&'static str>, target| {
        results.add(Sample {
            name,
            size: 8,
            unit: Unit::Nanoseconds,
            value: times.value_at_quantile(0.5) as f64,
            times: Some(times),
            yardstick: yardstick.map(|name| (name, 8)),
            target,
        });
    };
    use RoundTrip::{CompareSwap, FetchAdd, Read, WriteThenRead};
    use TargetIs::{Polling, Sleeping};
    // Half before and half after what is compared with it, so that drift meets both.
    let (mut one_way, mut round_trip) = plain.tcp_latency(rounds / 2)?;
    let send = plain.send_latency(rounds)?;
    let write = plain.write_latency(rounds)?;
    let (more, longer) = plain.tcp_latency(rounds / 2)?;
    one_way.add(more).and_then(|()| round_trip.add(longer)).map_err(|error| error.to_string())?;
    add(TCP_ONE_WAY, one_way, None, None);
    let tcp = Some(TCP_ONE_WAY);
    add("send", send, tcp, Some(Target::AtMost(1.3)));
    add("send, CRC", checked.send_latency(rounds)?, tcp, None);
    add("write", write, tcp, None);
    add(TCP_THERE_AND_BACK, round_trip, None, None);
    let tcp = Some(TCP_THERE_AND_BACK);
    let asleep = Some(Target::AtMost(3.0));
    add("read", plain.round_trip(Read, Polling, rounds)?, tcp, None);
    add("read, target sleeping", plain.round_trip(Read, Sleeping, rounds)?, Some("read"), asleep);
    const WRITE_READ: &str = "write, then read it";
    add(WRITE_READ, plain.round_trip(WriteThenRead, Polling, rounds)?, tcp, None);
    let times = plain.round_trip(WriteThenRead, Sleeping, rounds)?;
    add("write, then read it, target sleeping", times, Some(WRITE_READ), asleep);
    if plain.offers(adverb::Opcode::FetchAdd) {
        add("fetch and add", plain.round_trip(FetchAdd, Polling, rounds)?, tcp, None);
        add("compare and swap", plain.round_trip(CompareSwap, Polling, rounds)?, tcp, None);
    }
    Ok(())
}

fn streams(
    plain: &mut Session,
    checked: &mut Session,
    results: &mut Results,
    bytes: usize,
) -> Result<(), String> {
    use TargetIs::{Polling, Sleeping};
    for size in SIZES {
        // Small blocks are dear: fewer of them. A multiple of the window of messages in any case.
        let count = (bytes / size.max(16 << 10)).next_multiple_of(64);
        let mut add = |name, value, yardstick: Option<&'static str>, target: Option<f64>| {
            results.add(Sample {
                name,
                size,
                unit: Unit::BytesPerSecond,
                value,
                times: None,
                yardstick: yardstick.map(|name| (name, size)),
                target: target.filter(|_| size == BLOCK).map(Target::AtLeast),
            });
        };
        let tcp = Some(TCP_STREAM);
        add("memory copy", measure::memory_copy(size, count), None, None);
        // The yardstick before and after what is compared with it.
        let before = plain.tcp_stream(size, count / 2)?;
        let send = if size <= BLOCK { Some(plain.send_stream(size, count)?) } else { None };
        let write = plain.one_sided_stream(false, Polling, size, count)?;
        let after = plain.tcp_stream(size, count / 2)?;
        add(TCP_STREAM, 2.0 / (1.0 / before + 1.0 / after), None, None);
        if let Some(send) = send {
            add("send stream", send, tcp, None);
        }
        add("write stream", write, tcp, Some(0.8));
        add("read stream", plain.one_sided_stream(true, Polling, size, count)?, tcp, Some(0.8));
        add("write stream, CRC", checked.one_sided_stream(false, Polling, size, count)?, tcp, Some(0.6));
        add("read stream, CRC", checked.one_sided_stream(true, Polling, size, count)?, tcp, Some(0.6));
        let sleeping = plain.one_sided_stream(false, Sleeping, size, count)?;
        add("write stream, target sleeping", sleeping, Some("write stream"), Some(0.8));
        let sleeping = plain.one_sided_stream(true, Sleeping, size, count)?;
        add("read stream, target sleeping", sleeping, Some("read stream"), Some(0.8));
    }
    Ok(())
}
