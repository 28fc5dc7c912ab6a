//! The Debian package.

use super::architecture::Architecture;
use super::{c_library, put, readme, step};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Before a removal: what Python leaves beside the plug-in for pytest, where root runs it.
const REMOVAL: &str = "#!/bin/sh\nset -e\nrm -rf \"${DPKG_ROOT:-}/usr/share/adverb/__pycache__\"\n";

/// The address that the hosting gives to the account of a repository. The field needs one, and the project
/// has no mailbox: reports go to the home page.
fn address(repository: &str) -> Option<String> {
    let (host, path) = repository.strip_prefix("https://")?.split_once('/')?;
    let (account, _) = path.split_once('/')?;
    Some(format!("{account}@users.noreply.{host}"))
}

/// The Debian package of what is in `tree`.
pub(super) fn package(dist: &Path, tree: &Path, architecture: &Architecture) -> Result<PathBuf, String> {
    let (version, architecture, tools) = (env!("CARGO_PKG_VERSION"), architecture.debian, architecture);
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
    readme::mend(&documents)?;
    let (major, minor) = c_library(tree, tools)?;
    let oldest = format!("{major}.{minor}");
    let size = step(Command::new("du").arg("-sk").arg(folder.join("usr")))?;
    let home = env!("CARGO_PKG_REPOSITORY");
    let maintainer = address(home).ok_or_else(|| format!("{home}: not an account's repository"))?;
    // dpkg looks at Pre-Depends before it unpacks, so a refusal leaves nothing. What Depends lacks, dpkg
    // finds out afterwards, and leaves the files.
    let control = format!(
        "Package: adverb\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The adverb authors <{maintainer}>\n\
         Homepage: {home}\n\
         Installed-Size: {}\n\
         Pre-Depends: libc6 (>= {}), libgcc-s1\n\
         Suggests: ibverbs-utils, rdmacm-utils, perftest\n\
         Section: net\n\
         Priority: optional\n\
         Description: RDMA verbs without RDMA hardware, kernel modules or root\n \
         A complete RDMA stack in the application's own process. Programs written for\n \
         libibverbs and librdmacm run unmodified under \"adverb run\", over RoCEv2 or\n \
         iWARP, with adapters, the kernel's drivers or adverb at the other end.\n",
        size.split_whitespace().next().unwrap_or("0"),
        oldest,
    );
    put(&folder.join("DEBIAN/control"), &control)?;
    let script = folder.join("DEBIAN/prerm");
    put(&script, REMOVAL)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let package = dist.join(format!("adverb_{version}_{architecture}.deb"));
    step(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&folder).arg(&package))?;
    fs::remove_dir_all(&folder).map_err(|e| e.to_string())?;
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_repositorys_account() {
        assert_eq!(
            address("https://example.org/team/tool").as_deref(),
            Some("team@users.noreply.example.org")
        );
        assert_eq!(address("https://example.org/team"), None);
        assert_eq!(address("git@example.org:team/tool"), None);
        assert!(address(env!("CARGO_PKG_REPOSITORY")).is_some());
    }
}
