//! What users install: a tarball that works wherever it is unpacked, and a Debian package and a Python wheel
//! of the same.
//!
//! All hold `bin/adverb`, `lib/adverb/` with the libraries under the names that programs ask for, the manual
//! page, a few texts, suppressions for valgrind, the plug-in for pytest and the licences. The libraries lie
//! in a folder of their own, where only `adverb` looks, so nothing collides with rdma-core's packages.

mod architecture;
mod debian;
mod readme;
mod wheel;

pub(crate) use architecture::{ALL, Architecture};

use crate::cargo;
use crate::licences;
use crate::linked;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Built files, and their names in what is installed.
const PROGRAMS: [(&str, &str); 5] = [
    ("adverb", "bin/adverb"),
    ("libibverbs.so", "lib/adverb/libibverbs.so.1"),
    ("librdmacm.so", "lib/adverb/librdmacm.so.1"),
    ("libadverb_preload.so", "lib/adverb/libadverb_preload.so"),
    ("librspreload.so", "lib/adverb/librspreload.so"),
];
/// Other names: those that programs ask for with dlopen(3).
const LINKS: [(&str, &str); 2] =
    [("libibverbs.so.1", "lib/adverb/libibverbs.so"), ("librdmacm.so.1", "lib/adverb/librdmacm.so")];
/// Files of the repository.
const TEXTS: [(&str, &str); 10] = [
    ("packaging/python/pytest_adverb.py", "share/adverb/pytest_adverb.py"),
    ("packaging/valgrind.supp", "share/adverb/valgrind.supp"),
    ("packaging/adverb.1", "share/man/man1/adverb.1"),
    ("README.md", "share/doc/adverb/README.md"),
    ("CHANGELOG.md", "share/doc/adverb/CHANGELOG.md"),
    ("SECURITY.md", "share/doc/adverb/SECURITY.md"),
    ("docs/how-to/ci.md", "share/doc/adverb/docs/how-to/ci.md"),
    ("docs/errors.md", "share/doc/adverb/docs/errors.md"),
    ("LICENSE-MIT", "share/doc/adverb/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/adverb/LICENSE-APACHE"),
];

/// Builds all for this machine, in `dist/` of the target folder; a line for each.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let built = cargo::build(root, &[])?;
    let architecture = Architecture::of_this_machine()?;
    let dist = built.with_file_name("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).map_err(|e| format!("{}: {e}", dist.display()))?;
    }
    let metadata = linked::metadata(root, architecture)?;
    let files = package(root, &built, architecture, &metadata, &dist)?;
    Ok(files.iter().map(|file| format!("{}\n", file.display())).collect())
}

/// Makes every package of what was built for an architecture, in `dist`; their files. The dates in them are
/// those of SOURCE_DATE_EPOCH, if it is set.
pub(crate) fn package(
    root: &Path,
    built: &Path,
    architecture: &Architecture,
    metadata: &Value,
    dist: &Path,
) -> Result<Vec<PathBuf>, String> {
    let name = format!("adverb-{}-{}-linux", env!("CARGO_PKG_VERSION"), architecture.name);
    let tree = dist.join(&name);
    install(root, built, &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    put(&tree.join("share/doc/adverb/THIRD-PARTY"), &licences::text(metadata)?)?;
    readme::mend(&tree.join("share/doc/adverb"))?;
    for (_, name) in PROGRAMS {
        step(architecture.tool("strip").arg("--strip-debug").arg(tree.join(name)))?;
    }
    let tarball = dist.join(format!("{name}.tar.gz"));
    // gzip writes no name and no date of its own, where it compresses its standard input.
    step(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
            .arg(format!("--mtime=@{}", date()))
            .args(["--use-compress-program=gzip -9n", "-cf"])
            .arg(&tarball)
            .arg("-C")
            .arg(dist)
            .arg(&name),
    )?;
    let files = vec![
        tarball,
        debian::package(dist, &tree, architecture)?,
        wheel::package(root, dist, &tree, architecture)?,
    ];
    fs::remove_dir_all(&tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    Ok(files)
}

/// The date of what is packed, in seconds: SOURCE_DATE_EPOCH, or the beginning.
fn date() -> String {
    std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "0".to_owned())
}

/// Puts everything that is built or written into its place below `tree`.
fn install(root: &Path, built: &Path, tree: &Path) -> std::io::Result<()> {
    let programs = PROGRAMS
        .iter()
        .map(|(from, to)| (built.join(from), to, if to.starts_with("bin/") { 0o755 } else { 0o644 }));
    let texts = TEXTS.iter().map(|(from, to)| (root.join(from), to, 0o644));
    for (from, to, mode) in programs.chain(texts) {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().unwrap_or(tree))?;
        fs::copy(from, &to)?;
        fs::set_permissions(&to, Permissions::from_mode(mode))?;
    }
    LINKS.iter().try_for_each(|(to, name)| symlink(to, tree.join(name)))
}

/// The oldest C library that has everything the programs were linked with.
fn c_library(tree: &Path, architecture: &Architecture) -> Result<(u32, u32), String> {
    let mut newest = (2, 0);
    for (_, name) in PROGRAMS {
        let symbols = step(architecture.tool("objdump").arg("-T").arg(tree.join(name)))?;
        for version in symbols.split("GLIBC_").skip(1) {
            let version = version.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default();
            let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
            newest = newest.max((numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()));
        }
    }
    Ok(newest)
}

pub(crate) fn put(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Runs a command to success; what it printed.
pub(crate) fn step(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cannot start {:?}: {e}", command.get_program()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}
