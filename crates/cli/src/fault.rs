//! `adverb run --fault` and `adverb fault list`: which calls, completions and events fail.

mod file;

use crate::failure::Failure;
use adverb_core::setting;
use adverb_core::wire::Kind;
use adverb_watch::fault::{
    COMPLETION, DEFAULT_SEED, DEVICE, EVENTS, FAULT, PEER, RunDevice, SEED, STATUSES, WIRE, check,
    check_devices, operation_names,
};
use file::FaultPlan;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// The options of faults.
#[derive(clap::Args)]
pub(crate) struct Failing {
    /// Let calls, completions, packets, the device or the process fail, as in wire:loss%1 ('adverb fault
    /// list' has the rules). A name that ends with .toml is a file of rules, as 'adverb fault list' shows one
    #[arg(long, value_name = "RULES", value_parser = wanted)]
    fault: Option<FaultPlan>,

    /// The number from which faults by chance are drawn; the same number gives the same faults (1)
    #[arg(long, value_name = "N", value_parser = number)]
    seed: Option<u64>,
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("wanted is a number from 0 to {}", u64::MAX))
}

fn wanted(text: &str) -> Result<FaultPlan, String> {
    if text.ends_with(file::ENDING) && !text.contains(',') {
        return file::read(text);
    }
    check(text).map(|()| FaultPlan { rules: text.to_owned(), seed: None })
}

impl Failing {
    /// Whether the user wants any.
    pub(crate) fn is_asked(&self) -> bool {
        self.fault.is_some() || setting::variable(FAULT).is_some_and(|rules| !rules.trim().is_empty())
    }

    /// Whether a seed has rules to draw for.
    ///
    /// # Errors
    /// It has none, and what is allowed.
    pub(crate) fn check_seed(&self) -> Result<(), Failure> {
        match self.seed {
            Some(seed) if !self.is_asked() => Err(Failure::usage(format!(
                "--seed {seed}: there are no faults to draw; add --fault RULES ('adverb fault list' has them), set {FAULT}, or leave the seed out"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether each rule can do something with the devices that the program sees.
    ///
    /// # Errors
    /// The rule, and what is allowed.
    pub(crate) fn check_devices(&self, known: &[RunDevice]) -> Result<(), Failure> {
        let rules = match &self.fault {
            Some(wanted) => Some(wanted.rules.clone()),
            None => setting::variable(FAULT).filter(|rules| !rules.trim().is_empty()),
        };
        rules.map_or(Ok(()), |rules| check_devices(&rules, known)).map_err(Failure::usage)
    }

    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let rules = self.fault.as_ref().map(|wanted| (FAULT, wanted.rules.clone()));
        let seed = self.seed.or(self.fault.as_ref().and_then(|wanted| wanted.seed));
        rules.into_iter().chain(seed.map(|seed| (SEED, seed.to_string())))
    }
}

/// Explain the faults that `adverb run --fault` can make
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the rules, and what a real fabric does when such a thing happens
    List,
}

/// Carries the command out.
pub(crate) fn fault(args: &Args) -> Result<ExitCode, Failure> {
    let Action::List = args.action;
    std::io::stdout()
        .write_all(list().as_bytes())
        .map_err(|error| Failure::own(format!("cannot write to standard output: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Words with their meanings, in lines of a terminal.
fn explained<'a>(text: &mut String, words: impl Iterator<Item = (String, &'a str)>) {
    const MARGIN: usize = 25;
    const WIDTH: usize = 118;
    for (word, meaning) in words {
        let mut line = format!("  {word:<22} ");
        for part in meaning.split(' ') {
            if line.len() + part.len() > WIDTH {
                let _ = writeln!(text, "{}", line.trim_end());
                line = " ".repeat(MARGIN);
            }
            line.push_str(part);
            line.push(' ');
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn list() -> String {
    let example: String =
        file::EXAMPLE.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect();
    let mut text = format!(
        "\
A rule says what fails, how, and when. Several rules have commas between them.

A file of rules (FILE.toml) has them in a list, as here, or one in each table [[fault]], with its options and its time beside it:
{example}
The keys of a table are rule, opcode, direction, peer, jitter, qp, device and when. Those before the tables are seed and rules.

  CALL:ERRNO             a call of verbs or rdma_cm fails: ibv_reg_mr:ENOMEM, ibv_create_*:EAGAIN, rdma_connect:ENODEV
                         The call does nothing and answers as its manual page says. On a real fabric: the device has no
                         room left, a limit of the user is reached (ulimit -l), or the device is gone.
  completion:STATUS      a work request ends with this status in place of success, and its queue pair goes into the error
                         state: all requests behind it are flushed, as an adapter flushes them. The peer is not told;
                         its own requests fail when it needs an answer.
  completion:STATUS:opcode=OPCODE:qp=N
                         the same, of one kind of completions, or of one queue pair
  completion:delay=TIME, completion:reorder
                         completions come late, or after one of another queue pair. Those of one work queue keep their order.
  wire:KIND              something happens to packets between this process and the network, or before they are taken in.
                         Packets within this host go by the network then, as with ADVERB_LOCAL=off.
  wire:KIND:direction=out:peer=ADDRESS[/BITS]:opcode=PACKET:jitter=TIME
                         the same, of packets that this process sends (out) or gets (in), of one peer, of one kind
  event:EVENT            an asynchronous event of each device, or of the queue pair that posts (with a time: of each one). It is
                         all that happens.
  device:KIND            something happens to the devices of the process, with what programs see and are told of it
  peer:KIND              something happens to the process, which its peers see

Which, behind any of these before when it strikes:
  qp=N, qp=0xNUMBER      the Nth queue pair that the process makes, or the one with this number: of completions, of calls about
                         a queue pair (ibv_post_send), of events about one, and of peer:cut
  device=NAME            one device of several: of everything but peer:kill, restart and stall, and calls of rdma_cm

When, behind calls, completions and the wire:
  (nothing)              always
  @N                     the Nth time
  @N+, @N..M             from the Nth time on; from the Nth to the Mth
  @2s..5s, @2s..         from two seconds after the first call of the process to five; or on and on
  %P                     in P percent of these cases, drawn from the seed (--seed N, by default {DEFAULT_SEED})
When, behind event, device and peer:
  @2s                    two seconds after the first call of the process (s, ms, us)
  @100posts              with the 100th call that posts to a send queue
  @100completions        with the 100th completion that was polled
  @2s..5s, @0s..100posts from then on until then: of device
  @100posts+3s           from then on for three seconds: of device

A rule that can do nothing on the devices of the run is refused, as wire:cut on roce0 alone.
Each process of a run counts by itself. ADVERB_LOG=warn shows each fault, and the rules that never struck.

STATUS, and what happens on a real fabric:
"
    );
    explained(&mut text, STATUSES.iter().map(|(name, _, meaning)| (name.to_string(), *meaning)));
    for (title, prefix, kinds) in [
        ("completion", "completion:", COMPLETION),
        ("wire", "wire:", WIRE),
        ("device", "device:", DEVICE),
        ("peer", "peer:", PEER),
    ] {
        let _ = writeln!(text, "\nKIND of {title}, and what happens on a real fabric:");
        explained(
            &mut text,
            kinds.iter().map(|(name, value, meaning)| (format!("{prefix}{name}{value}"), *meaning)),
        );
    }
    let _ = writeln!(text, "\nEVENT, and what it means on a real fabric:");
    explained(&mut text, EVENTS.iter().map(|(name, _, meaning)| (name.to_string(), *meaning)));
    let names = |names: Vec<&str>| names.join(", ");
    let _ = writeln!(text, "\nOPCODE: {}", names(operation_names().collect()));
    let _ = writeln!(text, "PACKET: {}", names(Kind::ALL.iter().map(|(name, _)| *name).collect()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shows_both_forms_of_a_file() {
        let text = list();
        for part in ["\n  rules = [\"ibv_reg_mr:ENOMEM@3\"]\n\n  [[fault]]\n", "\n  when = \"%5\"\n"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
