//! libfabric's `fi_pingpong`, over its shared memory.

use super::programs;
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = "fi_pingpong";
const LIMIT: Duration = Duration::from_secs(60);
/// The provider that it may use.
pub(in crate::bench) const PROVIDER: &str = "shm";

/// What is missing, if it cannot be run.
pub(in crate::bench) fn missing() -> Option<&'static str> {
    (!programs::is_installed(PROGRAM))
        .then_some("fi_pingpong is not installed (Debian package libfabric-bin)")
}

/// Nanoseconds one way, on average over so many messages of a size.
pub(in crate::bench) fn latency(size: usize, count: usize) -> Result<f64, String> {
    let port = programs::free_port()?.to_string();
    let command = |direction: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", PROVIDER, "-e", "rdm", "-I", &count.to_string(), "-S", &size.to_string()]);
        command.args([direction, &port]);
        command
    };
    let mut client = command("-P");
    client.arg("127.0.0.1");
    let number = port.parse().map_err(|_| "a port is a number")?;
    let printed = programs::pair(command("-B"), client, number, LIMIT)?;
    parse(&printed).ok_or_else(|| format!("{PROGRAM} has printed no result"))
}

/// The last line: "bytes, sent, acknowledged, total, time, MB/sec, usec/xfer, Mxfers/sec".
fn parse(printed: &str) -> Option<f64> {
    let last = printed.lines().rfind(|line| !line.trim().is_empty())?;
    let microseconds: f64 = last.split_ascii_whitespace().nth(6)?.parse().ok()?;
    Some(microseconds * 1e3)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_last_line_counts() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       64      1k      =1k      125k        0.68s      0.19     338.94       0.00\n";
        assert_eq!(super::parse(printed), Some(338_940.0));
        assert_eq!(super::parse("bytes   #sent   #ack\n"), None);
    }
}
