//! Programs of others, run in pairs: a server, and a client once the server listens.

use crate::pair::link::PEER_TIMEOUT;
use std::io::{Error, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a program is, if it is anywhere.
pub(in crate::bench) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// A TCP port that was free a moment ago.
pub(in crate::bench) fn free_port() -> Result<u16, String> {
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| format!("a free port: {error}"))
}

/// Runs a server that listens at `port`, and then a client, each with one half of the processors. What the
/// client prints.
pub(in crate::bench) fn pair(
    server: Command,
    client: Command,
    port: u16,
    limit: Duration,
) -> Result<String, String> {
    let until = Instant::now() + limit;
    let mut server = Running::start(server, 1)?;
    while !listens(port) {
        if let Some(how) = server.ended()? {
            return Err(how);
        }
        if Instant::now() > until {
            return Err(format!("{} does not listen at port {port}", server.name));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = Running::start(client, 0)?;
    let printed = client.finish(until)?;
    // Servers that serve for ever are ended; others get the time to say that something was wrong.
    server.finish(Instant::now() + PEER_TIMEOUT / 10).or_else(|how| match server.killed {
        true => Ok(String::new()),
        false => Err(how),
    })?;
    Ok(printed)
}

/// A program that runs. It is killed when this is dropped.
struct Running {
    name: String,
    process: Child,
    output: [Option<JoinHandle<String>>; 2],
    killed: bool,
}

impl Running {
    /// Starts a program that uses the n-th half of the processors only, where there are two.
    fn start(mut command: Command, half: usize) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let name =
            command.get_args().skip_while(|argument| *argument != "--").nth(1).map_or(name, |program| {
                // That is what is run by our own command.
                program.to_string_lossy().into_owned()
            });
        let processors = halves()[half];
        // SAFETY: between fork and exec only system calls on values of its own.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const processors);
                Ok(())
            })
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let output = [process.stdout.take().map(read), process.stderr.take().map(read)];
        Ok(Self { name, process, output, killed: false })
    }

    /// How the program has ended, if it has.
    fn ended(&mut self) -> Result<Option<String>, String> {
        match self.process.try_wait().map_err(|error: Error| error.to_string())? {
            None => Ok(None),
            Some(status) => Ok(Some(self.failure(&status.to_string()))),
        }
    }

    fn failure(&mut self, how: &str) -> String {
        let said: String = self.output.iter_mut().filter_map(|output| output.take()?.join().ok()).collect();
        let last = said
            .lines()
            .rfind(|line| !line.trim().is_empty() && !line.starts_with("---"))
            .unwrap_or_default();
        format!("{}: {how}: {}", self.name, last.trim())
    }

    /// Waits for its good end; what it has printed.
    fn finish(&mut self, until: Instant) -> Result<String, String> {
        loop {
            match self.process.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => {
                    let printed = self.output[0].take().and_then(|output| output.join().ok());
                    return Ok(printed.unwrap_or_default());
                }
                Some(status) => return Err(self.failure(&status.to_string())),
                None if Instant::now() > until => {
                    self.killed = true;
                    let _ = self.process.kill();
                    let _ = self.process.wait();
                    return Err(self.failure("not done in time"));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether anybody listens at this TCP port, in this network namespace.
fn listens(port: u16) -> bool {
    // "sl local_address rem_address st": hexadecimal; 0A is LISTEN.
    let port = format!(":{port:04X}");
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
        })
    })
}

/// The processors that this process may use, in two halves; twice all of them if there is but one.
fn halves() -> [libc::cpu_set_t; 2] {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: sets are plain bits, for which zero is a valid value; the size goes along.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size, &raw mut all);
        let which: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|processor| libc::CPU_ISSET(*processor, &all)).collect();
        if which.len() < 2 {
            return [all, all];
        }
        let (first, second) = which.split_at(which.len() / 2);
        [first, second].map(|half| {
            let mut set = std::mem::zeroed();
            half.iter().for_each(|processor| libc::CPU_SET(*processor, &mut set));
            set
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_is_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        assert!(listens(port));
        // Nobody can listen at the port that stands for any.
        assert!(!listens(0));
    }

    #[test]
    fn a_server_that_fails_says_why() {
        let mut server = Command::new("sh");
        server.args(["-c", "echo no luck >&2; exit 3"]);
        let error = pair(server, Command::new("true"), 1, PEER_TIMEOUT).expect_err("it has ended");
        assert!(error.contains("no luck") && error.contains('3'), "{error}");
    }

    #[test]
    fn names() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
    }
}
