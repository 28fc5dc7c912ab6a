//! Link arguments that give the library its soname and its version nodes.
//!
//! The nodes are empty: each exported name carries its own version, written by the assembly in `src/export.rs`. Only
//! lld combines such a script with the one that rustc itself passes, so the lld that ships with rustc is named.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let directory = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let nodes = directory.join("nodes.map");
    println!("cargo:rerun-if-changed={}", nodes.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", nodes.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!("cargo:rustc-cdylib-link-arg=-B{}", lld_directory().display());
}

/// Where the wrappers of rustc's own lld lie.
fn lld_directory() -> PathBuf {
    let rustc = std::env::var("RUSTC").expect("set by cargo");
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().expect("rustc runs");
    let sysroot = String::from_utf8(output.stdout).expect("a path in UTF-8");
    let host = std::env::var("HOST").expect("set by cargo");
    PathBuf::from(sysroot.trim()).join("lib/rustlib").join(host).join("bin/gcc-ld")
}
