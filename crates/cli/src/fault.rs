//! `adverb run --fault` and `adverb fault list`: which calls, completions and events fail.

use crate::failure::Failure;
use adverb_watch::fault::{DEFAULT_SEED, FAULT, SEED, STATUSES, check, event_names, operation_names};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// The options of faults.
#[derive(clap::Args)]
pub(crate) struct Failing {
    /// Let calls, completions or events fail, as in ibv_reg_mr:ENOMEM@3 ('adverb fault list' has the rules)
    #[arg(long, value_name = "RULES", value_parser = rules)]
    fault: Option<String>,

    /// The number from which faults by chance are drawn; the same number gives the same faults (1)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn rules(text: &str) -> Result<String, String> {
    check(text).map(|()| text.to_owned())
}

impl Failing {
    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fault = self.fault.clone().map(|rules| (FAULT, rules));
        fault.into_iter().chain(self.seed.map(|seed| (SEED, seed.to_string())))
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

fn list() -> String {
    let mut text = format!(
        "\
A rule says what fails, how, and when. Several rules have commas between them.

  CALL:ERRNO             a call of verbs or rdma_cm fails: ibv_reg_mr:ENOMEM, ibv_create_*:EAGAIN, rdma_connect:ENODEV
                         The call does nothing and answers as its manual page says. On a real fabric: the device has no
                         room left, a limit of the user is reached (ulimit -l), or the device is gone.
  completion:STATUS      a work request ends with this status in place of success, and its queue pair goes into the error
                         state: all requests behind it are flushed, as an adapter flushes them. The peer is not told;
                         its own requests fail when it needs an answer.
  completion:STATUS:opcode=OPCODE
                         the same, of one kind of completions
  event:EVENT@SECONDSs   an asynchronous event of each device, so long after the first call of the process. The device
                         goes on: the event is all that happens.

When:
  (nothing)              always
  @N                     the Nth time
  @N+                    from the Nth time on
  %P                     in P percent of all cases, drawn from the seed (--seed N, by default {DEFAULT_SEED})

Each process of a run counts by itself. ADVERB_LOG=warn shows each fault.

STATUS, and what happens on a real fabric:
"
    );
    for (name, _, meaning) in STATUSES {
        let _ = writeln!(text, "  {name:<22} {meaning}");
    }
    let names = |names: Vec<&str>| names.join(", ");
    let _ = writeln!(text, "\nOPCODE: {}", names(operation_names().collect()));
    let _ = writeln!(text, "EVENT: {}", names(event_names().collect()));
    text
}
