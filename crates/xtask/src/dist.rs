//! What users install: a tarball that works wherever it is unpacked, and a Debian package of the same.
//!
//! Both hold `bin/adverb`, `lib/adverb/` with the libraries under the names that programs ask for, the manual page, a few texts, suppressions for valgrind and the licences. The
//! libraries lie in a folder of their own, where only `adverb` looks, so nothing collides with rdma-core's packages.

use crate::licences;
use serde_json::Value;
use std::fmt::Write as _;
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
const TEXTS: [(&str, &str); 9] = [
    ("packaging/valgrind.supp", "share/adverb/valgrind.supp"),
    ("packaging/adverb.1", "share/man/man1/adverb.1"),
    ("README.md", "share/doc/adverb/README.md"),
    ("CHANGELOG.md", "share/doc/adverb/CHANGELOG.md"),
    ("SECURITY.md", "share/doc/adverb/SECURITY.md"),
    ("docs/ci.md", "share/doc/adverb/docs/ci.md"),
    ("docs/errors.md", "share/doc/adverb/docs/errors.md"),
    ("LICENSE-MIT", "share/doc/adverb/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/adverb/LICENSE-APACHE"),
];

/// Builds both; a line for each.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    step(Command::new(&cargo).args(["build", "--quiet", "--release"]).current_dir(root))?;
    let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--locked", "--format-version=1", &platform];
    let metadata = step(Command::new(&cargo).args(arguments).current_dir(root))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let target = PathBuf::from(metadata["target_directory"].as_str().unwrap_or_default());

    let dist = target.join("dist");
    let name = format!("adverb-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let tree = dist.join(&name);
    if dist.exists() {
        fs::remove_dir_all(&dist).map_err(|e| format!("{}: {e}", dist.display()))?;
    }
    install(root, &target.join("release"), &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    put(&tree.join("share/doc/adverb/THIRD-PARTY"), &licences::text(&metadata)?)?;
    mend_readme(&tree.join("share/doc/adverb"))?;
    for (_, name) in PROGRAMS {
        step(Command::new("strip").arg("--strip-debug").arg(tree.join(name)))?;
    }

    let tarball = dist.join(format!("{name}.tar.gz"));
    step(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-czf"])
            .arg(&tarball)
            .arg("-C")
            .arg(&dist)
            .arg(&name),
    )?;
    let package = debian(&dist, &tree)?;
    Ok(format!("{}\n{}\n", tarball.display(), package.display()))
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

/// The Debian package of what is in `tree`.
fn debian(dist: &Path, tree: &Path) -> Result<PathBuf, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("no Debian architecture for {other}")),
    };
    let version = env!("CARGO_PKG_VERSION");
    let folder = dist.join("deb");
    fs::create_dir_all(folder.join("DEBIAN")).map_err(|e| e.to_string())?;
    step(Command::new("cp").arg("-a").arg(tree).arg(folder.join("usr")))?;
    step(Command::new("gzip").arg("-9n").arg(folder.join("usr/share/man/man1/adverb.1")))?;
    let documents = folder.join("usr/share/doc/adverb");
    step(Command::new("gzip").arg("-9n").arg(documents.join("CHANGELOG.md")))?;
    let mut copyright = String::from("adverb is licensed under MIT or Apache-2.0, as you like.\n");
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY"] {
        let path = documents.join(file);
        let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
        let _ = write!(copyright, "\n{text}");
        fs::remove_file(path).map_err(|e| e.to_string())?;
    }
    put(&documents.join("copyright"), &copyright)?;
    mend_readme(&documents)?;
    let size = step(Command::new("du").arg("-sk").arg(folder.join("usr")))?;
    let control = format!(
        "Package: adverb\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The adverb authors <adverb@localhost>\n\
         Installed-Size: {}\n\
         Depends: libc6 (>= {}), libgcc-s1\n\
         Suggests: ibverbs-utils, rdmacm-utils, perftest\n\
         Section: net\n\
         Priority: optional\n\
         Description: RDMA verbs without RDMA hardware, kernel modules or root\n \
         A complete RDMA stack in the application's own process. Programs written for\n \
         libibverbs and librdmacm run unmodified under \"adverb run\", over RoCEv2 or\n \
         iWARP, with adapters, the kernel's drivers or adverb at the other end.\n",
        size.split_whitespace().next().unwrap_or("0"),
        c_library(tree)?,
    );
    put(&folder.join("DEBIAN/control"), &control)?;
    let package = dist.join(format!("adverb_{version}_{architecture}.deb"));
    step(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&folder).arg(&package))?;
    Ok(package)
}

/// The oldest C library that has everything the programs were linked with.
fn c_library(tree: &Path) -> Result<String, String> {
    let mut newest = (2, 0);
    for (_, name) in PROGRAMS {
        let symbols = step(Command::new("objdump").arg("-T").arg(tree.join(name)))?;
        for version in symbols.split("GLIBC_").skip(1) {
            let version = version.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default();
            let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
            newest = newest.max((numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()));
        }
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}

/// Links to files that are not in the folder become words: what is installed is not the source tree.
fn mend_readme(folder: &Path) -> Result<(), String> {
    let path = folder.join("README.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    put(&path, &without_dead_links(&text, |target| folder.join(target).exists()))
}

/// `[text](target)` where `target` is a file that is there, or an address; else `text` and where to look for it.
fn without_dead_links(text: &str, is_there: impl Fn(&str) -> bool) -> String {
    let mut mended = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        mended.push_str(before);
        let parts = link[1..].split_once("](").and_then(|(words, tail)| {
            let (target, after) = tail.split_once(')')?;
            (!words.contains(['[', '\n']) && !target.contains('\n')).then_some((words, target, after))
        });
        let Some((words, target, after)) = parts else {
            mended.push('[');
            rest = &link[1..];
            continue;
        };
        if target.contains("://") || is_there(target) {
            mended.push_str(&link[..link.len() - after.len()]);
        } else {
            mended.push_str(words);
            mended.push_str(" (in the source)");
        }
        rest = after;
    }
    mended + rest
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Runs a command to success; what it printed.
fn step(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cannot start {:?}: {e}", command.get_program()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let text = "a [b](b.md), [c](docs/c.md), [d](https://d) `x[1]` ([e])\n[f](f)";
        let mended = without_dead_links(text, |target| target == "b.md");
        assert_eq!(mended, "a [b](b.md), c (in the source), [d](https://d) `x[1]` ([e])\nf (in the source)");
        assert_eq!(without_dead_links(text, |_| true), text);
    }
}
