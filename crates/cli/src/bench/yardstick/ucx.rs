//! UCX's own benchmark, `ucx_perftest`, over its shared memory.

use super::programs;
use std::process::Command;
use std::time::Duration;

/// The transports that it may use: shared memory, and copies from one process to the other.
pub(in crate::bench) const TRANSPORTS: &str = "posix,cma,self";
const PROGRAM: &str = "ucx_perftest";
/// The longest run of UCX's programs that is waited for.
const LIMIT: Duration = Duration::from_secs(180);

/// One of UCX's tests, on so many messages of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) struct Test {
    pub(in crate::bench) name: &'static str,
    pub(in crate::bench) size: usize,
    pub(in crate::bench) count: usize,
}

/// What came of a test.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::bench) struct UcxResult {
    pub(in crate::bench) test: Test,
    /// Nanoseconds, the median.
    pub(in crate::bench) latency: f64,
    /// Messages per second.
    pub(in crate::bench) rate: f64,
}

/// What is missing, if it cannot be run.
pub(in crate::bench) fn missing() -> Option<&'static str> {
    (!programs::is_installed(PROGRAM)).then_some("ucx_perftest is not installed (Debian package ucx-utils)")
}

/// Runs tests one after the other, in one pair of processes.
pub(in crate::bench) fn run(tests: &[Test]) -> Result<Vec<UcxResult>, String> {
    let file = std::env::temp_dir().join(format!("adverb-bench-{}.ucx", std::process::id()));
    let lines = tests.iter().enumerate().map(|(index, Test { name, size, count })| {
        format!("{index} -t {name} -s {size} -n {count} -w {}\n", count / 10 + 1)
    });
    std::fs::write(&file, lines.collect::<String>()).map_err(|error| error.to_string())?;
    let port = programs::free_port()?;
    let command = || {
        let mut command = Command::new(PROGRAM);
        // Numbers only, with commas.
        command.args(["-f", "-v", "-p", &port.to_string(), "-b"]).arg(&file);
        command.env("UCX_TLS", TRANSPORTS).env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command
    };
    let mut client = command();
    client.arg("127.0.0.1");
    let printed = programs::pair(command(), client, port, LIMIT);
    let _ = std::fs::remove_file(&file);
    let printed = printed?;
    let found: Vec<UcxResult> = printed.lines().filter_map(|line| parse(line, tests)).collect();
    match found.len() == tests.len() {
        true => Ok(found),
        false => Err(format!("{PROGRAM} has printed {} of {} results", found.len(), tests.len())),
    }
}

/// "index,iterations,median,average,overall latency,average,overall bandwidth,average,overall rate", times in
/// microseconds.
fn parse(line: &str, tests: &[Test]) -> Option<UcxResult> {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |index: usize| fields.get(index)?.trim().parse::<f64>().ok();
    let test = *tests.get(fields.first()?.parse::<usize>().ok()?)?;
    Some(UcxResult { test, latency: number(2)? * 1e3, rate: number(8)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let tests = [Test { name: "tag_lat", size: 8, count: 1000 }];
        let line = "0,1000,0.634,26.352,502.121,0.29,0.02,37948,1992";
        assert_eq!(parse(line, &tests), Some(UcxResult { test: tests[0], latency: 634.0, rate: 1992.0 }));
        assert_eq!(parse("/tmp/x,iterations,50.0_percentile_lat", &tests), None);
        assert_eq!(parse("1,2,3,4,5,6,7,8,9", &tests), None);
    }
}
