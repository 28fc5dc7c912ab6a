//! Checks of the repository itself, run as `cargo xtask TASK`.

mod specs;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask specs [--list]

  specs    check that every requirement in specs/ is cited by code or tests, and print the coverage
  --list   print each requirement with the places that cite it, too
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let list = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["specs"] => false,
        ["specs", "--list"] => true,
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match specs::run(&root(), list) {
        Ok((output, good)) => {
            // A reader that went away, such as `head`, is no reason to fail.
            let _ = std::io::stdout().write_all(output.as_bytes());
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("cargo xtask specs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The top of the repository: two levels above this crate.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here).join("../..")
}
