//! The `adverb` command: runs unmodified RDMA programs on machines without RDMA hardware.

mod bench;
mod cdi;
mod check;
mod checkers;
mod demo;
mod devices;
mod elf;
mod embedded;
mod env;
mod environment;
mod failure;
mod fault;
mod files;
mod host;
mod interfaces;
mod libraries;
mod pair;
mod program;
mod rdma;
mod run;
mod said;
mod summary;
mod supervise;
mod top;
mod trace;

use adverb_core::setting::SETTINGS;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// RDMA verbs on any Linux machine: no RDMA hardware, no kernel module, no root, no daemon.
#[derive(Parser)]
#[command(name = "adverb", version, after_help = more(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Env(env::Args),
    Cdi(cdi::Args),
    Devices(devices::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Fault(fault::Args),
    Top(top::Args),
    Trace(trace::Args),
    Check(check::Args),
}

const EXAMPLES: &str = "\
Examples:
  adverb demo                                   see RDMA work between two processes
  adverb bench                                  measure it, against raw TCP
  adverb run -- ibv_devices                     list the RDMA devices that a program sees
  adverb run -- rping -s &                      a server, and
  adverb run -- rping -c -a 127.0.0.1 -C 10 -v  a client that talks to it
  adverb run --device iwarp0 -- ib_write_bw -R  choose the device
  adverb run --trace calls.txt -- ibv_devinfo   every call of verbs and rdma_cm, with arguments
  adverb run --fault ibv_reg_mr:ENOMEM@3 -- rping -s   the third ibv_reg_mr fails
  adverb run --check -- ibv_rc_pingpong -g 0    mistakes in the use of verbs, with their remedies
  adverb run --with-host-devices -- ibv_devices beside the host's own devices
  eval \"$(adverb env)\"                          the same for everything started from this shell
  adverb devices -v                             what is there, and what running programs have done
  adverb top                                    watch running programs and their queue pairs
";

/// The page that helps first.
const HELP: &str = concat!(
    "It does not work? Look here: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/how-to/troubleshooting.md"
);

/// Examples, the variables, and where to look when something does not work.
fn more() -> String {
    let variables = SETTINGS.iter().map(|setting| {
        let value = format!("{}={}", setting.name, setting.form);
        format!("\n  {value:<40} {}", setting.meaning)
    });
    format!("{EXAMPLES}\nEnvironment:{}\n\n{HELP}", variables.collect::<String>())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if rdma::is_asked(&arguments) {
        return ended(rdma::rdma(&arguments), false);
    }
    let command = Cli::parse().command;
    if !matches!(command, Command::Run(_)) {
        // As in any filter: `adverb demo | head` ends quietly. Sockets never raise the signal, and `run`
        // leaves it as it was. SAFETY: no thread runs yet, and the default action is no function of ours.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    let starts = match &command {
        Command::Run(args) => Some(&args.devices),
        Command::Env(args) => Some(&args.devices),
        Command::Cdi(args) => Some(&args.devices),
        Command::Devices(args) => Some(&args.devices),
        Command::Demo(_)
        | Command::Bench(_)
        | Command::Fault(_)
        | Command::Top(_)
        | Command::Trace(_)
        | Command::Check(_) => None,
    };
    let runs = matches!(command, Command::Run(_));
    let result = environment::check(starts).and_then(|()| match command {
        Command::Run(args) => run::run(&args),
        Command::Env(args) => env::env(&args),
        Command::Cdi(args) => cdi::cdi(&args),
        Command::Devices(args) => devices::devices(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Fault(args) => fault::fault(&args),
        Command::Top(args) => top::top(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Check(args) => check::check(&args),
    });
    ended(result, runs)
}

fn ended(result: Result<ExitCode, failure::Failure>, runs: bool) -> ExitCode {
    result.unwrap_or_else(|failure| {
        failure::say(format_args!("{failure}"));
        ExitCode::from(failure.status(runs))
    })
}
