//! `adverb run`: starts a program with our libraries in front and stays its parent.

use crate::check::Check;
use crate::environment::{self, Front};
use crate::failure::{self, Failure};
use crate::files::Files;
use crate::host::Host;
use crate::trace::{self, Trace};
use crate::{check, checkers, fault, libraries, program, rdma, said, summary, supervise};
use adverb_core::setting;
use adverb_roce::orphans::Record;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Run a program on adverb's RDMA device, and its children too
///
/// The program is not changed and nothing is installed: the dynamic linker is told to use adverb's libibverbs
/// and librdmacm. A static program gets no devices itself, but what it starts does. Signals and the terminal
/// reach the program as if it had been started directly.
///
/// Exit status: the program's own, or 128 + N when signal N ended it. 127 when there is no such program, 126
/// when it cannot be run this way (setuid, musl, another architecture). The code of --check-exit when that
/// finds something. 125 when adverb itself failed, 2 for a wrong option or a variable with a value that means
/// nothing.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  adverb run -- rping -s -v
  adverb run --device iwarp0 -- ib_write_lat -R -a 192.168.0.2
  adverb run --rsockets -- redis-server --save ''
  adverb run --log info --pcap /tmp/rping.pcapng -- rping -c -a 127.0.0.1 -C 1
  adverb run --trace calls.txt -- ibv_rc_pingpong -g 0
  adverb run --fault completion:RETRY_EXC_ERR@10 -- ib_write_bw 192.168.0.2
  adverb run --check --check-exit 3 -- ./program
  sudo adverb run -- PROGRAM          (not: adverb run -- sudo PROGRAM, sudo drops the variables)")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) devices: environment::Devices,

    /// Make rsockets of the program's TCP and UDP sockets: they go over RDMA
    #[arg(long)]
    rsockets: bool,

    /// Show the host's own RDMA devices, too, behind adverb's; rdma_cm stays with adverb's
    #[arg(long)]
    with_host_devices: bool,

    #[command(flatten)]
    said: said::LogOptions,

    #[command(flatten)]
    told: summary::SummaryOptions,

    #[command(flatten)]
    trace: trace::TraceOptions,

    #[command(flatten)]
    fault: fault::Failing,

    #[command(flatten)]
    check: check::CheckOptions,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program to its end.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (name, arguments) = args.command.split_first().expect("clap requires one");
    let mut summary = args.told.begin(&args.command)?;
    let start = program::find(name)
        .map_err(|why| args.check.meant(name).unwrap_or(why))
        .inspect_err(|why| summary.refuse(why))?;
    args.fault.check_seed()?;
    let host = Host::look(args.with_host_devices, args.devices.list())?;
    if host.is_none() {
        args.fault.check_devices(&environment::seen(&args.devices))?;
    }
    let of_host = host.as_ref().and_then(Host::warning).map(str::to_owned);
    for warning in start.warnings.iter().chain(&environment::warnings(&args.devices)).chain(&of_host) {
        failure::say(format_args!("warning: {warning}"));
    }
    let folder = libraries::folder()?;
    let front = Front::new(&folder, args.rsockets)?;
    let present = |name| std::env::var_os(name);

    let files = Files::make(args.devices.list(), host.as_ref(), args.said.files())
        .map_err(|e| Failure::own(format!("cannot write the files of devices: {e}")))?;
    // What the preloaded library does for the program's children.
    let file = if rdma::is_asked(&args.command) { files.rdma() } else { start.file.clone() };

    let mut command = Command::new(file);
    command
        .args(&start.arguments)
        .args(arguments)
        .env(
            environment::LIBRARY_PATH,
            front.library_path_before(present(environment::LIBRARY_PATH).as_deref()),
        )
        .env(environment::PRELOAD, front.preload_before(present(environment::PRELOAD).as_deref()));
    if start.arguments.is_empty() {
        command.arg0(name);
    }
    if let Some(devices) = args.devices.list() {
        command.env(environment::DEVICE, devices);
    }
    if let Some(library) = host.as_ref().and_then(Host::library) {
        command.env(setting::HOST_DEVICES, library);
    }
    command
        .envs(environment::absolute_files())
        .envs(args.said.variables(args.rsockets, args.fault.is_asked()));
    for checker in checkers::all(&folder) {
        if let Some(value) = checker.value(present(checker.variable).as_deref()) {
            command.env(checker.variable, value);
        }
    }
    let traced = args.trace.begin()?;
    let checked = args.check.begin()?;
    command.envs(traced.iter().flat_map(Trace::variables)).envs(args.fault.variables());
    command.envs(checked.iter().flat_map(Check::variables));
    command.env(environment::FILES, files.path());
    // Without it, the peers of a killed program find out by themselves, later.
    let watching = Record::create().and_then(|(value, watch)| {
        command.env(Record::VARIABLE, value);
        watch.start()
    });
    let ended = supervise::run(&mut command, &files)
        .map_err(|e| Failure::cannot_run(format!("cannot start {}: {e}", start.file.display())));
    if let Ok(watching) = watching {
        watching.end();
    }
    if let Some(traced) = traced {
        traced.end();
    }
    let found = checked.as_ref().and_then(Check::status);
    let ended = ended.map(|status| found.unwrap_or(status));
    summary.end(&files, ended.as_ref());
    ended.map(ExitCode::from)
}
