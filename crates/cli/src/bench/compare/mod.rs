//! Unmodified perftest on `roce0` against UCX in shared memory, two processes of one host.

pub(super) mod idle;
pub(super) mod overlap;
mod perftest;

use super::progress::Progress;
use super::result::{Layout, Sample, Section, Target, Unit};
use super::session::Times;
use super::yardstick::event::{self, Way};
use super::yardstick::ucx;
use std::process::Command;

/// What is taken from what a program prints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Latency,
    /// Messages per second.
    Messages,
    /// Bytes per second.
    Bytes,
}

impl Quantity {
    fn unit(self) -> Unit {
        match self {
            Self::Latency => Unit::Nanoseconds,
            Self::Messages => Unit::PerSecond,
            Self::Bytes => Unit::BytesPerSecond,
        }
    }

    fn of(self, size: usize, latency: f64, per_second: f64) -> f64 {
        match self {
            Self::Latency => latency,
            Self::Messages => per_second,
            Self::Bytes => per_second * size as f64,
        }
    }
}

/// A program of perftest and a test of UCX that do the same.
struct Match {
    program: &'static str,
    test: &'static str,
    size: usize,
    quantity: Quantity,
    target: Target,
}

const fn latency(program: &'static str, test: &'static str, most: f64) -> Match {
    Match { program, test, size: 8, quantity: Quantity::Latency, target: Target::AtMost(most) }
}

const fn rate(program: &'static str, test: &'static str, size: usize, least: f64) -> Match {
    let quantity = if size == 8 { Quantity::Messages } else { Quantity::Bytes };
    Match { program, test, size, quantity, target: Target::AtLeast(least) }
}

const MATCHES: [Match; 11] = [
    latency("ib_send_lat", "tag_lat", 1.1),
    latency("ib_write_lat", "ucp_put_lat", 1.4),
    rate("ib_write_bw", "ucp_put_bw", 8, 0.65),
    rate("ib_send_bw", "tag_bw", 8, 1.5),
    rate("ib_write_bw", "ucp_put_bw", 4 << 10, 1.2),
    rate("ib_write_bw", "ucp_put_bw", 64 << 10, 0.9),
    rate("ib_write_bw", "ucp_put_bw", 1 << 20, 1.0),
    rate("ib_read_bw", "ucp_get", 64 << 10, 0.9),
    rate("ib_read_bw", "ucp_get", 1 << 20, 1.0),
    rate("ib_send_bw", "tag_bw", 64 << 10, 1.5),
    rate("ib_send_bw", "tag_bw", 1 << 20, 1.5),
];

impl Match {
    /// How many messages each of the programs moves.
    fn count(&self, quick: bool) -> usize {
        let count = match self.quantity {
            Quantity::Latency => 20_000,
            // The beginning, where memory is brought into reach, is to be a small part.
            Quantity::Messages => 1_000_000,
            Quantity::Bytes => (4 << 30) / self.size,
        };
        if quick { (count / 100).max(100) } else { count }
    }
}

const EVENTFD: &str = "eventfd ping-pong";
const FUTEX: &str = "futex ping-pong";

/// Runs it all.
///
/// # Errors
/// What has to be installed, or built, first.
pub(super) fn run(rounds: u16, quick: bool) -> Result<Section, String> {
    let wanted = [perftest::missing(), ucx::missing().map(str::to_owned)];
    let missing: Vec<String> = wanted.into_iter().flatten().collect();
    if !missing.is_empty() {
        return Err(format!("nothing to compare: {}", missing.join("; ")));
    }
    let local = std::env::var("ADVERB_LOCAL").unwrap_or_else(|_| {
        // SAFETY: no other thread runs yet; the programs that are measured inherit it.
        unsafe { std::env::set_var("ADVERB_LOCAL", "auto") };
        "auto".into()
    });
    let setting =
        format!("on roce0 (ADVERB_LOCAL={local}) against ucx_perftest (UCX_TLS={})", ucx::TRANSPORTS);
    let mut section = Section::new("perftest", setting, Layout::Comparison);
    let mut progress = Progress::new(usize::from(rounds) * (MATCHES.len() + 3) + 2);
    for round in 1..=rounds {
        let mut say = |what: &str| progress.step(&format!("round {round} of {rounds}: {what}"));
        say("ucx_perftest");
        against_ucx(quick, &mut section, &mut say)?;
        events(quick, &mut section, &mut say)?;
    }
    progress.step("idle connections");
    section.note(format!("{}, {}.", version("perftest"), version("ucx-utils")));
    idle::add(&mut section)?;
    progress.step("computing beside a write");
    overlap::add(rounds, &mut section)?;
    Ok(section)
}

fn against_ucx(quick: bool, section: &mut Section, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let tests = MATCHES.each_ref().map(|pair| ucx::Test {
        name: pair.test,
        size: pair.size,
        count: pair.count(quick),
    });
    for (pair, found) in MATCHES.iter().zip(ucx::run(&tests)?) {
        let name = format!("UCX {}", pair.test);
        let value = pair.quantity.of(pair.size, found.latency, found.rate);
        section.add(Sample::new(&name, pair.size, pair.quantity.unit(), value).into_yardstick());
        say(&format!("{}, {} bytes", pair.program, pair.size));
        // A message of a few nanoseconds is not to be measured together with a look at the clock before it.
        let options: &[&str] = if pair.quantity == Quantity::Messages { &["-N"] } else { &[] };
        let found = perftest::run(pair.program, pair.size, pair.count(quick), options)?;
        let value = pair.quantity.of(pair.size, found.latency, found.rate);
        let sample = Sample::new(pair.program, pair.size, pair.quantity.unit(), value);
        section.add(sample.against(&name, pair.size).target(Some(pair.target)));
    }
    Ok(())
}

/// Sleeping until an event comes.
fn events(quick: bool, section: &mut Section, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let count = if quick { 200 } else { 10_000 };
    say("eventfd and futex");
    let yardstick = |name, times: Times| Sample::of_times(name, 8, times).into_yardstick();
    section.add(yardstick(EVENTFD, event::ping_pong(Way::Eventfd, count)?));
    section.add(yardstick(FUTEX, event::ping_pong(Way::Futex, count)?).against(EVENTFD, 8));
    say("ib_send_lat -e");
    let found = perftest::run("ib_send_lat", 8, count, &["-e"])?;
    let sample = Sample::new("ib_send_lat -e", 8, Unit::Nanoseconds, found.latency);
    section.add(sample.against(EVENTFD, 8).target(Some(Target::AtMost(1.3))));
    Ok(())
}

/// "perftest 4.5+0.17-1", as the package manager knows it.
fn version(package: &str) -> String {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    let version =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if version.is_empty() {
        format!("{package} of an unknown version")
    } else {
        format!("{package} {version}")
    }
}
