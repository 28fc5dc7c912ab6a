//! `adverb top`: the processes of this user that use devices, and their queue pairs, as they work.

mod live;
mod report;
mod sample;
mod table;

use crate::failure::Failure;
use adverb_core::counters::Looker;
use adverb_core::inspect;
use sample::{Sample, uses};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use table::{Choice, Order};

/// Watch the programs that use devices: rates, queue pairs and their states, full queues, retries, errors
///
/// Keys: o, i, s, r, n and p sort by bytes out, bytes in, full send queues, retries, name and process. /
/// filters. t shows or hides the queue pairs. Space holds the view. q or Ctrl-C ends it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  adverb top
  adverb top --sort retries --filter ib_write
  adverb top --once --json | jq '.uses[].queue_pairs[].state'

Each process answers for its queue pairs. One in another network namespace, or one that is stopped, shows its counters alone.")]
pub(crate) struct Args {
    /// Print once and end
    #[arg(long)]
    once: bool,

    /// Print JSON
    #[arg(long, requires = "once")]
    json: bool,

    /// Seconds between two looks, from which rates follow
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,

    /// What comes first
    #[arg(long, value_enum, default_value_t = Order::Out)]
    sort: Order,

    /// Only what has this text in its process, name, device, queue pair or state
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

fn seconds(text: &str) -> Result<f64, String> {
    const ALLOWED: std::ops::RangeInclusive<f64> = 0.0..=3600.0;
    let number = text.parse::<f64>().ok().filter(|number| ALLOWED.contains(number));
    number.ok_or_else(|| "wanted is a number of seconds, from 0 to 3600".to_owned())
}

/// Shows what runs.
pub(crate) fn top(args: &Args) -> Result<ExitCode, Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let choice = Choice { order: args.sort, filter: args.filter.clone(), with_pairs: true };
    if args.once {
        let mut looker = Looker::default();
        let before = Sample::take(&mut looker, inspect::ANSWER_TIMEOUT);
        std::thread::sleep(interval);
        let now = uses(&before, &Sample::take(&mut looker, inspect::ANSWER_TIMEOUT));
        let text = if args.json { report::json(&now, &choice) } else { report::text(&now, &choice) };
        match std::io::stdout().write_all(text.as_bytes()) {
            // The reader has seen enough.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written.map_err(|e| Failure::own(format!("cannot write to standard output: {e}")))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("a live view needs a terminal: adverb top --once prints what is now"));
    }
    live::show(interval.max(live::SHORTEST), choice)
        .map_err(|e| Failure::own(format!("cannot use the terminal: {e}")))?;
    Ok(ExitCode::SUCCESS)
}
