//! A C library to link with that is older than this machine's, so that programs run where it is as old.
//!
//! A program asks for the symbol versions of the library that it was linked with. Zig brings lists of those
//! of every version of the GNU C library, and makes libraries of them that have the names, the versions and
//! nothing behind them. They and the objects that go into each program are found first by the compiler that
//! links.

use crate::dist::{Architecture, put, step};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest C library that programs are to run with: that of RHEL 8 and of the wheels of this field.
const OLDEST: &str = "2.28";
/// Zig, as a package of PyPI.
const ZIG: &str = "ziglang==0.17.1";
/// What is asked for with `-l`, and what it leads to. The C library itself is a script.
const LIBRARIES: [(&str, &str); 6] = [
    ("libpthread.so", "libpthread.so.0"),
    ("libdl.so", "libdl.so.2"),
    ("librt.so", "librt.so.1"),
    ("libutil.so", "libutil.so.1"),
    ("libm.so", "libm.so.6"),
    ("libresolv.so", "libresolv.so.2"),
];

/// A program that links for an architecture, with the old C library. All it needs is made in `work`.
pub(super) fn linker(work: &Path, architecture: &Architecture) -> Result<PathBuf, String> {
    let folder = work.join(architecture.name);
    let program = work.join(format!("{}-link", architecture.name));
    if program.exists() {
        return Ok(program);
    }
    let tools = work.join("tools");
    if !tools.join("bin/pip").exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(&tools))?;
        step(Command::new(tools.join("bin/pip")).args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            ZIG,
        ]))?;
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for file in parts(work, &tools, architecture)? {
        let name = file.file_name().unwrap_or_default().to_owned();
        fs::copy(&file, folder.join(name)).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    for (name, to) in LIBRARIES {
        symlink(to, folder.join(name)).map_err(|e| e.to_string())?;
    }
    let at = folder.display();
    // Zig's file of the dynamic linker has a name of its own.
    let script = format!(
        "GROUP ( {at}/libc.so.6 {at}/libc_nonshared.a AS_NEEDED ( {at}/{} ) )\n",
        architecture.linker
    );
    put(&folder.join("libc.so"), &script)?;
    // The compiler's own libraries may be of this machine's time: a program that is linked with them asks for
    // nothing of theirs that is newer.
    let words = format!("{} -B'{at}' -Wl,--allow-shlib-undefined", architecture.tool_name("gcc"));
    put(&program, &format!("#!/bin/sh\nexec {words} \"$@\"\n"))?;
    fs::set_permissions(&program, Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    Ok(program)
}

/// The files that Zig links a program with, which it makes for that: it names them where it says what it
/// does.
fn parts(work: &Path, tools: &Path, architecture: &Architecture) -> Result<Vec<PathBuf>, String> {
    let source = work.join("empty.c");
    put(&source, "int main(void) { return 0; }\n")?;
    let output = Command::new(tools.join("bin/python"))
        .args(["-m", "ziglang", "cc", "-fPIE", "-pie", "-v", "-target"])
        .arg(format!("{}-linux-gnu.{OLDEST}", architecture.name))
        .arg(&source)
        .arg("-o")
        .arg(work.join("empty"))
        .env("ZIG_GLOBAL_CACHE_DIR", work.join("cache"))
        .env("ZIG_LOCAL_CACHE_DIR", work.join("cache"))
        .current_dir(work)
        .output()
        .map_err(|e| format!("zig: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let is_part = |name: &str| {
        name.ends_with("/Scrt1.o")
            || name.ends_with("/libc_nonshared.a")
            || (name.contains("/lib") || name.contains("/ld-")) && name.contains(".so.")
    };
    let line = said
        .lines()
        // The parts are linked before the program.
        .rfind(|line| line.starts_with("ld.lld"))
        .ok_or_else(|| format!("zig has not linked:\n{said}"))?;
    let found: Vec<_> = line
        .split_whitespace()
        .filter(|word| is_part(word))
        .map(|word| work.join(word))
        // The dynamic linker is named as programs name it, too.
        .filter(|file| file.starts_with(work))
        .collect();
    // The file of the dynamic linker, by the name in it.
    let linker = found.iter().find(|file| file.ends_with("libld.so.2")).map(|file| {
        let named = work.join(architecture.linker);
        fs::copy(file, &named).map(|_| named)
    });
    match linker {
        Some(linker) => Ok(found.into_iter().chain([linker.map_err(|e| e.to_string())?]).collect()),
        None => Err(format!("zig has linked without the dynamic linker:\n{line}")),
    }
}
