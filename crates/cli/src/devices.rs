//! `adverb devices`: what a program would see, and why something is missing.

use crate::environment;
use crate::failure::Failure;
use crate::interfaces;
use crate::libraries;
use adverb_core::attributes::{DeviceAttributes, TransportType};
use adverb_core::counters;
use adverb_core::description::Addresses;
use adverb_core::device::{Context, Device};
use adverb_core::engine;
use adverb_core::memory::ways;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Show the RDMA devices that a program would see, and why something is missing
///
/// Exit status: 0 when all is there, 1 when a device, a library or every address is missing.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) devices: environment::Devices,

    /// Show limits and operations, how processes of this host reach each other's memory, and the counters of
    /// this user's running programs
    #[arg(long, short)]
    verbose: bool,
}

/// Prints the devices.
pub(crate) fn devices(args: &Args) -> Result<ExitCode, Failure> {
    environment::warnings(&args.devices).iter().for_each(|text| eprintln!("adverb: warning: {text}"));
    if let Some(list) = args.devices.list() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(environment::DEVICE, list) };
    }
    engine::install(environment::TRANSPORTS);
    let engine = engine::engine().map_err(|e| Failure::own(format!("cannot look for devices: {e}")))?;
    let mut out = String::new();
    for device in engine.devices() {
        let context =
            device.open().map_err(|e| Failure::own(format!("cannot open {}: {e}", device.name())))?;
        describe(&mut out, device, &context, args.verbose);
    }
    let mut complete = true;
    let mut missing = |out: &mut String, what: &str, why: &str| {
        complete = false;
        let _ = writeln!(out, "{what} is missing: {why}");
    };
    for (name, reason) in engine.missing() {
        missing(&mut out, name, reason);
    }
    if engine.devices().is_empty() && engine.missing().is_empty() {
        missing(&mut out, "every device", "this build has none");
    }
    match libraries::folder() {
        Ok(folder) => {
            let _ = writeln!(out, "libraries: {}", folder.display());
        }
        Err(failure) => missing(&mut out, "a library", &failure.to_string()),
    }
    let shown = |device: &str| {
        engine.devices().iter().any(|known| known.description().like == device)
            || engine.missing().iter().any(|(name, _)| name == device)
    };
    for other in environment::TRANSPORTS.iter().filter(|transport| !shown(transport.device)) {
        let name = other.device;
        let _ = writeln!(
            out,
            "not chosen: {name} (adverb run --device {name}, or {}={name})",
            environment::DEVICE
        );
    }
    let addresses: Vec<_> = interfaces::addresses(&Addresses::All).into_values().flatten().collect();
    if addresses.is_empty() {
        let hint = adverb_core::interfaces::hint();
        missing(&mut out, "every address", &format!("programs cannot connect at all{hint}"));
    } else if addresses.iter().all(|address| address.is_loopback()) {
        out.push_str(
            "note: only loopback addresses: programs can connect within this network namespace only\n",
        );
    }
    if !addresses.is_empty() && !addresses.iter().any(|address| address.is_ipv6()) {
        out.push_str("note: no IPv6 addresses: connections over IPv6 are not possible\n");
    }
    if args.verbose {
        out.push_str("within this host:\n");
        for line in ways::survey() {
            let _ = writeln!(out, "    {line}");
        }
        show_running(&mut out);
    }
    std::io::stdout()
        .write_all(out.as_bytes())
        .map_err(|e| Failure::own(format!("cannot write to standard output: {e}")))?;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(out: &mut String, device: &Device, context: &Context, verbose: bool) {
    let attributes = context.attributes();
    let transport = match attributes.transport {
        TransportType::Iwarp => "iWARP over TCP",
        TransportType::Ib => "RoCE v2 over UDP",
    };
    let state = match context.port(1) {
        Ok(port) if port.active => "active",
        _ => "down",
    };
    let _ =
        writeln!(out, "{}: {transport}, {state}, node GUID {}", device.name(), guid(attributes.node_guid));
    for (interface, addresses) in interfaces::addresses(&device.description().addresses) {
        let list: Vec<_> = addresses.iter().map(|address| address.to_string()).collect();
        let _ = writeln!(out, "    {interface}: {}", list.join(", "));
    }
    for note in device.transport().notes() {
        let _ = writeln!(out, "    {note}");
    }
    if verbose {
        limits(out, &attributes);
    }
}

fn limits(out: &mut String, attributes: &DeviceAttributes) {
    let _ = writeln!(
        out,
        "    at most {} queue pairs with {} requests of {} elements (reads: {}), {} bytes inline",
        attributes.max_qp,
        attributes.max_qp_wr,
        attributes.max_sge,
        attributes.max_sge_rd,
        attributes.max_inline_data,
    );
    let _ = writeln!(
        out,
        "    at most {} completion queues of {} entries, {} regions, {} reads in and {} out per queue pair",
        attributes.max_cq,
        attributes.max_cqe,
        attributes.max_mr,
        attributes.max_qp_rd_atom,
        attributes.max_qp_init_rd_atom,
    );
    let services: Vec<_> = attributes.services.iter().map(|service| service.to_string()).collect();
    let operations: Vec<_> = attributes.operations.iter().map(|operation| operation.name()).collect();
    let _ = writeln!(out, "    services: {}", services.join(", "));
    let _ = writeln!(out, "    operations: {}", operations.join(", "));
}

fn guid(number: u64) -> String {
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", number >> shift & 0xffff));
    groups.join(":")
}

fn show_running(out: &mut String) {
    let mut any = false;
    for process in counters::running() {
        for (device, counters) in &process.devices {
            // This command has looked at the device, too.
            if process.id == std::process::id() {
                continue;
            }
            let busy: Vec<_> = counters.all().into_iter().filter(|(_, _, value)| *value != 0).collect();
            any = true;
            let place = if process.elsewhere { ", in another network namespace" } else { "" };
            let _ = writeln!(out, "\n{} (process {}{place}) on {device}:", process.name, process.id);
            if busy.is_empty() {
                out.push_str("    nothing has come or gone yet\n");
            }
            for (_, meaning, value) in busy {
                let _ = writeln!(out, "    {value:>16}  {meaning}");
            }
        }
        let (regions, more) = &process.memory;
        if !regions.is_empty() {
            let _ = writeln!(
                out,
                "\n{} (process {}), how peers of this host reach its memory:",
                process.name, process.id
            );
            for region in regions {
                let _ = writeln!(out, "    {region}");
            }
        }
        if *more > 0 {
            let _ = writeln!(out, "    and {more} more");
        }
    }
    if !any {
        out.push_str("no program of this user is using a device now\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_in_groups() {
        assert_eq!(guid(0x0200_1234_abcd_0001), "0200:1234:abcd:0001");
    }
}
