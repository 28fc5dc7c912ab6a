//! perftest, unmodified, with our libraries in front.

use crate::bench::yardstick::programs;
use crate::libraries;
use std::process::Command;
use std::time::Duration;

/// The longest run of perftest that is waited for.
const LIMIT: Duration = Duration::from_secs(120);

/// perftest looks for the clock rate of its processor, in a moment. Where the processor is taken away in that
/// moment, perftest finds none, and all its figures are zero or infinite. So many runs in a row may be
/// without figures.
const RUNS: usize = 10;

/// What a program says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PerftestResult {
    /// Nanoseconds, the median; not a number of programs that measure throughput.
    pub(super) latency: f64,
    /// Messages per second; not a number of programs that measure latency.
    pub(super) rate: f64,
}

impl PerftestResult {
    /// Whether the figure is one: perftest knew the clock rate.
    fn is_measured(self) -> bool {
        [self.latency, self.rate]
            .into_iter()
            .filter(|figure| !figure.is_nan())
            .any(|figure| figure > 0.0 && figure.is_finite())
    }
}

/// What is missing, if it cannot be run.
pub(super) fn missing() -> Option<String> {
    if !programs::is_installed("ib_send_lat") {
        return Some("perftest is not installed (Debian package perftest)".into());
    }
    libraries::folder().err().map(|failure| failure.to_string())
}

/// Runs a program with so many messages of a size, and more options.
pub(super) fn run(
    program: &str,
    size: usize,
    count: usize,
    options: &[&str],
) -> Result<PerftestResult, String> {
    for _ in 0..RUNS {
        let found = run_once(program, size, count, options)?;
        if found.is_measured() {
            return Ok(found);
        }
    }
    Err(format!(
        "{program} has found no clock rate of the processor in {RUNS} runs, so it has no figures: the machine is too busy to measure anything"
    ))
}

fn run_once(program: &str, size: usize, count: usize, options: &[&str]) -> Result<PerftestResult, String> {
    let own = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    let port = programs::free_port()?;
    let command = || {
        let mut command = Command::new(&own);
        command.args(["run", "--device", "roce0", "--", program, "-F", "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &count.to_string()]).args(options);
        command
    };
    let mut client = command();
    client.arg("127.0.0.1");
    let printed = programs::pair(command(), client, port, LIMIT)?;
    let found = printed.lines().rev().find_map(|line| parse(program, line, size, count));
    found.ok_or_else(|| format!("{program} has printed no result"))
}

/// "bytes iterations min max typical ..." in microseconds, or "bytes iterations peak average rate" with
/// millions of messages per second.
fn parse(program: &str, line: &str, size: usize, count: usize) -> Option<PerftestResult> {
    let numbers: Option<Vec<f64>> = line.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
    let numbers = numbers?;
    if numbers.first() != Some(&(size as f64)) || numbers.get(1) != Some(&(count as f64)) {
        return None;
    }
    let number = *numbers.get(4)?;
    Some(match program.ends_with("_lat") {
        true => PerftestResult { latency: number * 1e3, rate: f64::NAN },
        false => PerftestResult { latency: f64::NAN, rate: number * 1e6 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = " 8       1000          7.35           79.44        8.78     \t  9.56    \t2.69   \t\t22.16   \t\t79.44";
        assert_eq!(parse("ib_send_lat", line, 8, 1000).map(|found| found.latency), Some(8780.0));
        let line = " 65536      1000             1191.18            1188.25\t\t   0.019012";
        assert_eq!(parse("ib_read_bw", line, 65536, 1000).map(|found| found.rate), Some(19012.0));
        let line = " 65536      1000             0.00               0.00\t\t   0.000000";
        let is_measured =
            |program, line: &str| parse(program, line, 65536, 1000).map(PerftestResult::is_measured);
        assert_eq!(is_measured("ib_read_bw", line), Some(false));
        assert_eq!(is_measured("ib_read_bw", &line.replace("0.000000", "0.019012")), Some(true));
        assert_eq!(is_measured("ib_send_lat", " 65536 1000 inf inf inf inf inf inf inf"), Some(false));
        assert_eq!(parse("ib_read_bw", " #bytes     #iterations    BW peak[MB/sec]", 8, 1), None);
        assert_eq!(parse("ib_read_bw", line, 65536, 999), None);
    }
}
