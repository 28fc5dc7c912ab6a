//! The Python wheel.

use super::architecture::Architecture;
use super::{LINKS, c_library, date, step};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the wheel's file. The tag says which C library the programs need: the one that they were linked
/// with, symbol by symbol.
pub(super) fn package(
    root: &Path,
    dist: &Path,
    tree: &Path,
    architecture: &Architecture,
) -> Result<PathBuf, String> {
    let folder = dist.join("wheel");
    step(Command::new("cp").arg("-a").arg(tree).arg(&folder))?;
    for (to, name) in LINKS {
        stand_in(&folder.join(name), to, architecture)?;
    }
    let (major, minor) = c_library(tree, architecture)?;
    let tag = format!("manylinux_{major}_{minor}_{}", architecture.name);
    let path = step(
        Command::new("python3")
            .arg(root.join("packaging/wheel"))
            .args([&folder, Path::new(env!("CARGO_PKG_VERSION")), Path::new(&tag), dist])
            .env("SOURCE_DATE_EPOCH", date()),
    )?;
    fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(PathBuf::from(path.trim()))
}

/// In place of a link, of which wheels have none: an empty library that needs the one that the link leads to.
/// A copy of that would be a second engine in a program that asks for both names; with this, either name
/// finds the same.
fn stand_in(link: &Path, to: &str, architecture: &Architecture) -> Result<(), String> {
    let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::remove_file(link).map_err(|e| format!("{}: {e}", link.display()))?;
    step(
        architecture
            .tool("gcc")
            .args([
                "-shared",
                "-nostdlib",
                "-Wl,--no-as-needed",
                "-Wl,--build-id=none",
                "-Wl,--allow-shlib-undefined",
            ])
            .arg(format!("-Wl,-soname,{name}"))
            .arg("-o")
            .arg(link)
            .arg(link.with_file_name(to)),
    )?;
    step(architecture.tool("strip").arg(link)).map(drop)
}
