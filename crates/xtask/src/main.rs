//! What is done with the repository itself, run as `cargo xtask TASK`: checks, and packages.

mod cargo;
mod dist;
mod instructions;
mod layers;
mod licences;
mod linked;
mod names;
mod release;
mod sim;
mod specs;
mod stacks;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask specs [--list]
       cargo xtask dist
       cargo xtask release
       cargo xtask instructions [--renew]
       cargo xtask stacks
       cargo xtask layers
       cargo xtask names
       cargo xtask sim [--check [SECONDS] | --planted | OPTION...]

  specs    check that every requirement in specs/ is cited by code or tests, and print the coverage
  --list   print each requirement with the places that cite it, too
  dist     build what users install, as a tarball, a Debian package and a Python wheel for this machine, in dist/ of the target folder
  release  build what is published, for every processor and for old C libraries, the same bytes from the same commit, in release-files/ of the target folder
  instructions
           count the instructions of the fast paths under valgrind, and compare them with benches/instructions.txt
  --renew  write what is counted there
  stacks   check that the release libraries are content with the smallest stacks that threads can have
  layers   check that no part of the code knows one above it, by the table in ARCHITECTURE.md
  names    check that no type is named by a participle alone, that limits say their subject, that the public types of a layer have names of their own, and that comments stand alone and keep to the width of a line
  sim      run the protocols on a simulated clock and network, with random work and faults: `cargo xtask sim --help` has the options
  --check [SECONDS]
           with seeds that are always the same, and with those of the commit; or with fresh ones for so long
  --planted
           with faults in a copy of the sources, one at a time: each must be found
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (task, result) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["specs"] => ("specs", specs::run(&root(), false).map_err(|e| e.to_string())),
        ["specs", "--list"] => ("specs", specs::run(&root(), true).map_err(|e| e.to_string())),
        ["dist"] => ("dist", dist::run(&root()).map(|output| (output, true))),
        ["release"] => ("release", release::run(&root()).map(|output| (output, true))),
        ["instructions"] => ("instructions", instructions::run(&root(), false)),
        ["layers"] => ("layers", layers::run(&root())),
        ["names"] => ("names", names::run(&root())),
        ["stacks"] => ("stacks", stacks::run(&root())),
        ["instructions", "--renew"] => ("instructions", instructions::run(&root(), true)),
        ["sim", "--check"] => ("sim", sim::check(&root(), None)),
        ["sim", "--check", seconds] => ("sim", sim::check(&root(), Some(seconds))),
        ["sim", "--planted"] => ("sim", sim::planted(&root())),
        ["sim", ref options @ ..] => ("sim", sim::run(&root(), options)),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok((output, good)) => {
            // A reader that went away, such as `head`, is no reason to fail.
            let _ = std::io::stdout().write_all(output.as_bytes());
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("cargo xtask {task}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The top of the repository: two levels above this crate.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here).join("../..")
}
