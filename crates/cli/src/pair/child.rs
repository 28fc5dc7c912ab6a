//! A second process of this program, which is told what to do line by line, and answers each line with one.

use adverb_core::signals::without_sigpipe;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The other process, as the one that directs it sees it. It is killed when this is dropped.
pub(crate) struct Child<C, R> {
    name: &'static str,
    process: std::process::Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    types: PhantomData<(C, R)>,
}

impl<C: Serialize, R: DeserializeOwned> Child<C, R> {
    /// Starts this program again with these arguments and, beside its own, this environment.
    pub(crate) fn start(
        name: &'static str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
        let mut process = Command::new(&program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting {} again: {error}", program.display()))?;
        let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("the pipes to the new process are missing".into());
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { name, process, orders, answers, types: PhantomData })
    }

    /// The child's process ID.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Tells it what to do. Does not wait.
    pub(crate) fn order(&mut self, command: &C) -> Result<(), String> {
        let line = serde_json::to_string(command).map_err(|error| error.to_string())?;
        // It may have been killed, and that is to be told.
        let told = without_sigpipe(|| writeln!(self.orders, "{line}"));
        told.map_err(|_| format!("the {} process has ended", self.name))
    }

    /// The child's answer to the oldest order that is not answered, by `deadline`.
    pub(crate) fn answer(&mut self, deadline: Instant) -> Result<R, String> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match self.answers.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("the {} did not answer in time", self.name));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(match self.process.wait() {
                    Ok(status) => format!("the {} process has ended ({status})", self.name),
                    Err(error) => format!("the {} process has ended ({error})", self.name),
                });
            }
        };
        let answer: Result<R, String> = serde_json::from_str(&line)
            .map_err(|error| format!("the {} answered {line:?}: {error}", self.name))?;
        answer.map_err(|text| format!("{}: {text}", self.name))
    }

    /// Orders and waits for the answer.
    pub(crate) fn ask(&mut self, command: &C, deadline: Instant) -> Result<R, String> {
        self.order(command)?;
        self.answer(deadline)
    }
}

impl<C, R> Drop for Child<C, R> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other end: carries out the orders that come in on standard input until it closes, and ends the process
/// after `limit`.
pub(crate) fn serve<C: DeserializeOwned, R: Serialize>(
    limit: Duration,
    mut carry_out: impl FnMut(C) -> Result<R, String>,
) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        std::process::exit(3);
    });
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = serde_json::from_str(&line).map_err(|error| error.to_string()).and_then(&mut carry_out);
        match serde_json::to_string(&answer) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("{{\"Err\":\"{error}\"}}"),
        }
    }
}
