// How the drop-in libraries are linked. The build scripts of both include this file.
//
// The version nodes are empty: each exported name carries its own version, written by assembly. Only lld
// combines such a script with the one that rustc itself passes, so the lld that ships with rustc is named.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments for the C compiler that links a library with this soname and these version nodes.
fn link_arguments(soname: &str, nodes: &Path) -> Vec<String> {
    vec![
        format!("-Wl,-soname,{soname}"),
        format!("-Wl,--version-script={}", nodes.display()),
        // The engine's thread lives in the library, so it is never unloaded.
        "-Wl,-z,nodelete".to_owned(),
        "-fuse-ld=lld".to_owned(),
        format!("-B{}", lld_directory().display()),
    ]
}

/// Where the wrappers of rustc's own lld lie.
fn lld_directory() -> PathBuf {
    let output = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output().expect("rustc runs");
    let sysroot = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(sysroot.trim()).join("lib/rustlib").join(variable("HOST")).join("bin/gcc-ld")
}

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
