//! What is published: the packages for every processor, which run with old C libraries, the crates, the
//! installer, a list of what is in them, and checksums.
//!
//! The same commit makes the same bytes, wherever it is built: no path of the machine is in them, and dates
//! are the commit's.

mod baseline;
mod contents;

use crate::dist::{self, ALL, put, step};
use crate::linked;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that no registry has: tasks and tests of this repository.
const OURS_ALONE: [&str; 2] = ["xtask", "adverb-abi-tests"];

/// Builds all; a line for each file.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let root = &root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let date = date(root)?;
    // SAFETY: no other thread runs in this program.
    unsafe { std::env::set_var("SOURCE_DATE_EPOCH", &date) };
    let architecture = dist::Architecture::of_this_machine()?;
    let metadata = linked::metadata(root, architecture)?;
    let target = PathBuf::from(metadata["target_directory"].as_str().unwrap_or("target"));
    let folder = target.join("release-files");
    let _ = fs::remove_dir_all(&folder);
    let work = target.join("baseline");

    let mut files = Vec::new();
    for architecture in &ALL {
        let linker = baseline::linker(&work, architecture)?;
        let built = build(root, &target, architecture, &linker)?;
        let metadata = linked::metadata(root, architecture)?;
        files.extend(dist::package(root, &built, architecture, &metadata, &folder)?);
    }
    files.extend(crates(root, &target, &folder)?);
    let installer = folder.join("install.sh");
    fs::copy(root.join("packaging/install.sh"), &installer).map_err(|e| e.to_string())?;
    files.push(installer);
    let list = folder.join(format!("adverb-{}.cdx.json", env!("CARGO_PKG_VERSION")));
    put(&list, &contents::list(&metadata, &date)?)?;
    files.push(list);

    let mut names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    names.sort();
    let sums = step(Command::new("sha256sum").args(&names).current_dir(&folder))?;
    put(&folder.join("SHA256SUMS"), &sums)?;
    Ok(format!("{}\n{sums}", folder.display()))
}

/// When the commit was made, in seconds; SOURCE_DATE_EPOCH says it where there is no repository.
fn date(root: &Path) -> Result<String, String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(date) => Ok(date),
        Err(_) => {
            let log = ["log", "-1", "--format=%ct"];
            Ok(step(Command::new("git").args(log).current_dir(root))?.trim().to_owned())
        }
    }
}

/// The folder of the command and the libraries for an architecture.
fn build(
    root: &Path,
    target: &Path,
    architecture: &dist::Architecture,
    linker: &Path,
) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .map_err(|_| "neither CARGO_HOME nor HOME is set")?;
    let triple = architecture.target();
    library(&triple)?;
    let name = triple.to_uppercase().replace('-', "_");
    let flags = [
        format!("--remap-path-prefix={}=/adverb", root.display()),
        format!("--remap-path-prefix={}=/target", target.display()),
        format!("--remap-path-prefix={home}=/cargo"),
        "-Clink-arg=-Wl,--build-id=none".to_owned(),
    ];
    step(
        Command::new(cargo)
            .args(["build", "--quiet", "--release", "--locked", "--target", &triple])
            .env(format!("CARGO_TARGET_{name}_LINKER"), linker)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .current_dir(root),
    )?;
    Ok(target.join(triple).join("release"))
}

/// Rust's own library for an architecture, which rustup has.
fn library(triple: &str) -> Result<(), String> {
    let folder = step(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    step(Command::new("rustup").args(["target", "add", triple])).map(drop)
}

/// The crates as crates.io takes them.
fn crates(root: &Path, target: &Path, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let others = OURS_ALONE.iter().flat_map(|name| ["--exclude", name]);
    let packed = target.join("package");
    let _ = fs::remove_dir_all(&packed);
    let arguments = ["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty"];
    step(Command::new(cargo).args(arguments).args(others).current_dir(root))?;
    let end = format!("-{}.crate", env!("CARGO_PKG_VERSION"));
    let mut copied = Vec::new();
    for entry in fs::read_dir(&packed).map_err(|e| format!("{}: {e}", packed.display()))? {
        let name = entry.map_err(|e| e.to_string())?.file_name();
        if name.to_string_lossy().ends_with(&end) {
            fs::copy(packed.join(&name), folder.join(&name)).map_err(|e| e.to_string())?;
            copied.push(folder.join(&name));
        }
    }
    Ok(copied)
}
