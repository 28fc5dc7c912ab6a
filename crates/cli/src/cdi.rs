//! `adverb cdi`: what gives a container devices, for container engines that know the Container Device
//! Interface.

use crate::checkers;
use crate::environment::{self, Front};
use crate::failure::Failure;
use crate::libraries;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Print a CDI specification: with it, containers have devices
///
/// For podman, Docker, containerd and CRI-O. Devices by CDI are files and variables alone here: no device
/// node, no privileges. The container's programs need the GNU C library, at least as new as `adverb run`
/// needs it on the host. A container that sets LD_LIBRARY_PATH or LD_PRELOAD itself loses its own values.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  adverb cdi >/etc/cdi/adverb.json
  podman run --rm --device adverb/rdma=all IMAGE ibv_devinfo
  podman run --rm --device adverb/rdma=iwarp0 IMAGE rping -s")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) devices: environment::Devices,

    /// Make rsockets of programs' TCP and UDP sockets: they go over RDMA
    #[arg(long)]
    rsockets: bool,
}

/// The oldest version of the specification that has all that is used here.
const VERSION: &str = "0.3.0";
/// Vendor and class.
const KIND: &str = "adverb/rdma";
/// The name that stands for the devices of the command line, or the default.
const ALL: &str = "all";
/// Where the libraries are in containers: no image has anything there.
const FOLDER: &str = "/opt/adverb/lib/adverb";

/// Prints it.
pub(crate) fn cdi(args: &Args) -> Result<ExitCode, Failure> {
    for warning in environment::warnings(&args.devices) {
        eprintln!("adverb: warning: {warning}");
    }
    let text = specification(&libraries::folder()?, args.devices.list(), args.rsockets)?;
    let text = serde_json::to_string_pretty(&text).expect("strings alone");
    writeln!(io::stdout(), "{text}")
        .map_err(|e| Failure::own(format!("cannot write to standard output: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

/// The specification for the libraries in `folder`, with `devices` as the device called all.
fn specification(folder: &Path, devices: Option<&str>, rsockets: bool) -> Result<Value, Failure> {
    let inside = Path::new(FOLDER);
    let mut mounts = Vec::new();
    for (name, _) in libraries::LINKS {
        mounts.push(mount(&folder.join(name), name)?);
    }
    let front = Front::new(inside, rsockets)?;
    let mut variables = vec![
        variable(environment::LIBRARY_PATH, &front.library_path_before(None))?,
        variable(environment::PRELOAD, &front.preload_before(None))?,
    ];
    for checker in checkers::all(folder) {
        let suppressions = checkers::suppressions(folder).filter(|_| checker.variable == checkers::VALGRIND);
        let option = match suppressions {
            Some(file) => {
                mounts.push(mount(&file, libraries::SUPPRESSIONS)?);
                checkers::suppressing(&inside.join(libraries::SUPPRESSIONS))
            }
            None => checker.option,
        };
        variables.push(variable(checker.variable, &option)?);
    }
    let device = |name: &str, list: Option<&str>| {
        let mut variables = variables.clone();
        variables.extend(list.map(|list| format!("{}={list}", environment::DEVICE)));
        json!({"name": name, "containerEdits": {"env": variables, "mounts": mounts}})
    };
    let single =
        environment::TRANSPORTS.iter().map(|transport| device(transport.device, Some(transport.device)));
    let all: Vec<Value> = [device(ALL, devices)].into_iter().chain(single).collect();
    Ok(json!({"cdiVersion": VERSION, "kind": KIND, "devices": all}))
}

/// Shows a file of the host under this name. The file itself, not a link: what a link leads to is not in the
/// container.
fn mount(file: &Path, name: &str) -> Result<Value, Failure> {
    let file = file.canonicalize().map_err(|e| Failure::own(format!("{}: {e}", file.display())))?;
    let host = text(file.as_os_str())?;
    let options = ["ro", "nosuid", "nodev", "bind"];
    Ok(json!({"hostPath": host, "containerPath": format!("{FOLDER}/{name}"), "options": options}))
}

fn variable(name: &str, value: &OsStr) -> Result<String, Failure> {
    Ok(format!("{name}={}", text(value)?))
}

/// JSON has text alone.
fn text(value: &OsStr) -> Result<&str, Failure> {
    value
        .to_str()
        .ok_or_else(|| Failure::own(format!("{} is not text in UTF-8, which JSON needs", value.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_container_gets_files_and_variables_and_no_device_node() {
        let folder = std::env::temp_dir().join(format!("adverb-cdi-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("temporary folder");
        for name in libraries::LINKS.map(|(name, _)| name).into_iter().chain([libraries::SUPPRESSIONS]) {
            fs::write(folder.join(name), name).expect("a file");
        }
        let made = specification(&folder, Some("mlx5_0@numa=0"), false).expect("a specification");
        fs::remove_dir_all(&folder).expect("ours");
        let devices = made["devices"].as_array().expect("a list");
        let names: Vec<_> = devices.iter().filter_map(|device| device["name"].as_str()).collect();
        assert_eq!(names, ["all", "roce0", "iwarp0"]);
        let edits = devices[0]["containerEdits"].as_object().expect("edits");
        assert_eq!(edits.keys().collect::<Vec<_>>(), ["env", "mounts"]);
        let variables: Vec<_> =
            edits["env"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert!(variables.contains(&"ADVERB_DEVICE=mlx5_0@numa=0"), "{variables:?}");
        assert!(variables.contains(&"LD_LIBRARY_PATH=/opt/adverb/lib/adverb"), "{variables:?}");
        // What a variable names must be shown.
        let shown: Vec<_> = edits["mounts"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|mount| mount["containerPath"].as_str())
            .collect();
        let named =
            variables.iter().flat_map(|set| set.split(['=', ':'])).filter(|word| word.starts_with(FOLDER));
        let missing: Vec<_> = named.filter(|file| *file != FOLDER && !shown.contains(file)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
