//! `adverb bench`: what the operations cost, beside what else moves as many bytes in the same run.

mod allocator;
mod compare;
mod cost;
mod iwarp;
mod latency;
mod network;
mod output;
mod processors;
mod progress;
mod result;
mod roce;
mod scale;
mod session;
mod stream;
mod sweep;
mod target;
mod yardstick;

use crate::failure::Failure;
use latency::RoundTrip;
use progress::Progress;
use result::{Document, Machine, Section, Target};
use session::{Place, Session, TargetIs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use target::Watching;

/// Measure every operation, against raw TCP and UDP, memory, UCX and libfabric in the same run
#[derive(clap::Args)]
#[command(after_help = "\
Without --sweep or --compare it measures, between two processes of this machine: roce0 within the host, in shared memory; iWARP over the
loopback interface; and RoCE between two network namespaces. Where the system does not let an ordinary user make these, RoCE goes over the
loopback interface, too. Namespaces take ip, and for loss tc, of iproute2. The last two have targets: ratios to raw TCP and UDP that adverb
is to reach on a machine that does nothing else. A path that misses its target is slower than wanted; it works. Latencies are of 8 bytes, one
way for sends and writes (half of a ping-pong), there and back for reads and atomics. CRC is the iWARP checksum over every byte; RoCE always
has its own.

--sweep measures every operation over sizes, for each way from one process to another on one host. Beside it are memory itself, raw TCP and
UDP, and, where they are installed, ucx_perftest (Debian package ucx-utils) and fi_pingpong (libfabric-bin). With --compare it runs perftest
(Debian package perftest), unmodified, against ucx_perftest.

Every quantity is measured once per round, its yardstick in the same round; tables show medians over the rounds, and medians of the
ratios.

Examples:
  adverb bench                                     this host, and the targets
  adverb bench --report report.html                everything over sizes, with charts
  adverb bench --sweep --device roce0 --csv -      for a spreadsheet
  adverb bench --compare                           perftest against UCX on one host")]
pub(crate) struct Args {
    /// The device to measure, or all
    #[arg(long, value_name = "NAME", default_value = ALL)]
    device: String,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure every operation over sizes
    #[arg(long)]
    sweep: bool,
    /// The sizes, in bytes, KiB (k) or MiB (m): multiples of 8, at most 4m
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,
    /// Compare perftest on roce0 with UCX in shared memory
    #[arg(long)]
    compare: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Write a line for each result, to standard output for -
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with charts, and measure over sizes, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Measure less often per round: rough numbers in a few seconds
    #[arg(long)]
    quick: bool,
    /// Be the other process
    #[arg(long, hide = true)]
    target: bool,
    /// Be the process that measures
    #[arg(long, hide = true)]
    worker: bool,
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
/// The most allocations on a message's path: none. What happens now and then may allocate, such as a timer
/// for a message that is before its receive.
const ALLOCATIONS: Target = Target::AtMost(0.001);
/// Sizes of a sweep, and of a quick one.
const SWEEP: [usize; 9] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const QUICK_SWEEP: [usize; 3] = [8, 4 << 10, 1 << 20];

/// "8", "64k", "4m".
fn size(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, shift) = match lower.strip_suffix(['k', 'm']) {
        Some(digits) => (digits, if lower.ends_with('k') { 10 } else { 20 }),
        None => (lower.as_str(), 0),
    };
    let size: usize = digits.parse().map_err(|_| format!("{text:?} is no size"))?;
    match size.checked_mul(1 << shift) {
        Some(size) if size > 0 && size <= 4 << 20 && size.is_multiple_of(8) => Ok(size),
        _ => Err("a size is a multiple of 8 bytes, at least 8 bytes and at most 4 MiB".into()),
    }
}

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
    fn new(args: &Args) -> Self {
        Self {
            rounds: args.rounds,
            messages: if args.quick { 500 } else { 5000 },
            bytes: if args.quick { 16 << 20 } else { 128 << 20 },
            connections: if args.quick { 256 } else { 10_000 },
        }
    }

    /// Runs `work` once per round.
    fn rounds(&self, device: &str, mut work: impl FnMut() -> Result<(), String>) -> Result<(), String> {
        let mut progress = Progress::new(usize::from(self.rounds));
        for round in 1..=self.rounds {
            progress.step(&format!("{device}: round {round} of {}", self.rounds));
            work()?;
        }
        Ok(())
    }
}

/// What to say of a machine that has more to do than it has processors, by its file `/proc/loadavg`. Judging
/// by targets makes no sense there.
fn busy(loadavg: &str, processors: i64) -> Option<String> {
    let load: f64 = loadavg.split(' ').next()?.parse().ok()?;
    (load > processors as f64).then(|| {
        format!(
            "The machine is busy (load average {load}, {processors} processors): do not trust the figures."
        )
    })
}

/// Runs the benchmark.
pub(crate) fn bench(args: &Args) -> Result<ExitCode, Failure> {
    if args.target {
        target::serve(LIMIT);
        return Ok(ExitCode::SUCCESS);
    }
    if args.worker {
        sweep::serve(LIMIT);
        return Ok(ExitCode::SUCCESS);
    }
    let known = adverb::Device::known();
    let devices: Vec<&str> = match args.device.as_str() {
        ALL => known,
        name => known.into_iter().filter(|known| *known == name).collect(),
    };
    if devices.is_empty() {
        let known = adverb::Device::known().join(", ");
        return Err(Failure::usage(format!("there is no device {:?}; there are: {known}", args.device)));
    }
    if let Some([operation, count]) = args.only.as_deref() {
        let count = count.parse().map_err(|error| Failure::usage(format!("{count}: {error}")))?;
        if operation == "overlap" {
            return compare::overlap::print(count).map(|()| ExitCode::SUCCESS).map_err(Failure::own);
        }
        settle(&devices);
        return only(devices[0], operation, count).map(|()| ExitCode::SUCCESS).map_err(Failure::own);
    }
    // SAFETY: asks for a number. All of the machine, as the load average is, whatever part of it this process
    // may use.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let busy = busy(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default(), processors);
    if let Some(hint) = &busy {
        eprintln!("adverb: warning: {hint}");
    }
    let sweeps = args.sweep || args.report.is_some() || !args.sizes.is_empty();
    let (mut sections, mut missing) = (Vec::new(), Vec::new());
    if !sweeps && !args.compare {
        (sections, missing) = targets(&devices, args).map_err(Failure::own)?;
    } else {
        // Programs of others on this host shall not meet ours, as far as the system allows.
        let _ = network::enter();
        if args.compare {
            // SAFETY: no other thread exists yet.
            unsafe { std::env::set_var("ADVERB_DEVICE", ROCE) };
        }
    }
    if args.compare {
        sections.push(compare::run(args.rounds, args.quick).map_err(Failure::own)?);
    }
    if sweeps {
        let default: &[usize] = if args.quick { &QUICK_SWEEP } else { &SWEEP };
        let plan = sweep::Plan {
            devices: &devices,
            sizes: if args.sizes.is_empty() { default } else { &args.sizes },
            rounds: args.rounds,
            milliseconds: if args.quick { 2 } else { 40 },
        };
        let (swept, without) = sweep::run(&plan).map_err(Failure::own)?;
        sections.extend(swept);
        missing.extend(without);
    }
    let (machine, rounds, quick) = (Machine::this(), args.rounds, args.quick);
    let document = Document { machine, rounds, quick, busy, missing, sections };
    show(args, &document).map_err(Failure::own)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args, document: &Document) -> Result<(), String> {
    if let Some(file) = &args.csv {
        output::write_csv(document, file)?;
    }
    if let Some(file) = &args.report {
        output::write_html(document, file)?;
    }
    let taken = [&args.csv, &args.report]
        .iter()
        .any(|file| file.as_ref().is_some_and(|file| file.as_os_str() == "-"));
    match taken {
        true => {}
        false if args.json => print!("{}", output::json(document)),
        false => print!("{}", output::text(document)),
    }
    Ok(())
}

/// Sets the environment of the processes that measure over networks.
fn settle(devices: &[&str]) {
    // The target decides about the checksum; this side leaves it off.
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var("ADVERB_CRC", "off");
        std::env::set_var("ADVERB_DEVICE", devices.join(","));
        std::env::set_var("ADVERB_LOCAL", "off");
    }
}

/// A few numbers of the way that programs of one host take, then what has a target. Also what could not be
/// measured, and why.
fn targets(devices: &[&str], args: &Args) -> Result<(Vec<Section>, Vec<String>), String> {
    settle(devices);
    let effort = &Effort::new(args);
    let network = if devices.contains(&ROCE) { network::enter() } else { Ok(()) };
    let (mut sections, mut missing) = (Vec::new(), Vec::new());
    if devices.contains(&ROCE) {
        match sweep::here(args.rounds, args.quick) {
            Ok(section) => sections.push(section),
            Err(why) => missing.push(why),
        }
    }
    for device in devices {
        sections.push(match *device {
            ROCE => roce::run(device, network.clone(), effort)?,
            _ => iwarp::run(device, effort)?,
        });
    }
    Ok((sections, missing))
}

/// Does nothing but one operation, so that a tool that counts system calls sees no others.
fn only(device: &str, operation: &str, count: usize) -> Result<(), String> {
    let mut session = Session::start(device, Place::Here, false)?;
    match operation {
        "send" => session.send_latency(8, count)?,
        "write" => session.write_latency(Watching::Both, 8, count)?,
        "read" => session.round_trip(RoundTrip::Read, TargetIs::Polling, 8, count)?,
        other => return Err(format!("{other:?}: send, write, read and overlap are known")),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_busy_machine_is_told() {
        let busy = |text| super::busy(text, 2);
        assert!(
            busy("2.01 0.50 0.10 3/200 4711\n").is_some_and(|hint| hint.contains("load average 2.01, 2 "))
        );
        assert!(["2.00 9.00 9.00 3/200 4711\n", "", "much"].iter().all(|text| busy(text).is_none()));
    }

    #[test]
    fn sizes() {
        assert_eq!(super::size("64k"), Ok(65536));
        assert_eq!(super::size("8"), Ok(8));
        assert_eq!(super::size("4M"), Ok(4 << 20));
        assert!(
            ["", "k", "0", "7", "5m", "-8", "99999999999999999999"]
                .iter()
                .all(|text| super::size(text).is_err())
        );
    }
}
