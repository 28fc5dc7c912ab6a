//! Link arguments: soname, version nodes, and a stand-in for libibverbs.so.1 to link against.
//!
//! Cargo cannot make one shared library wait for another, so the linker gets a stand-in made here: a library with the
//! soname of the real one that defines the same private names, and nothing behind them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

macro_rules! rdmacm_exports {
    ($($node:literal: $($name:ident)*;)*) => {
        /// The names of librdmacm.
        const NAMES: &[&str] = &[$($(stringify!($name)),*),*];
    };
}

include!("../exports.rs");

fn main() {
    let directory = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let nodes = directory.join("nodes.map");
    let exports = directory.join("../exports.rs");
    println!("cargo:rerun-if-changed={}", nodes.display());
    println!("cargo:rerun-if-changed={}", exports.display());
    let lld = format!("-B{}", lld_directory().display());
    let stand_in = build_stand_in(&PathBuf::from(variable("OUT_DIR")), &lld);
    for argument in [
        "-Wl,-soname,librdmacm.so.1",
        &format!("-Wl,--version-script={}", nodes.display()),
        "-Wl,-z,nodelete",
        "-fuse-ld=lld",
        &lld,
        &stand_in.display().to_string(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}

/// Builds the stand-in in `directory` and returns its path.
fn build_stand_in(directory: &Path, lld: &str) -> PathBuf {
    let mut source = String::from("core::arch::global_asm!(\".text\"");
    for name in NAMES {
        write!(
            source,
            ", \".globl stand_in_{name}\", \".type stand_in_{name}, @function\", \"stand_in_{name}: ret\", \
             \".symver stand_in_{name}, adverb_{name}@@ADVERB_RDMACM\""
        )
        .expect("writing to a string");
    }
    source.push_str(");\n");
    let (code, nodes, library) =
        (directory.join("stand_in.rs"), directory.join("stand_in.map"), directory.join("libibverbs.so.1"));
    std::fs::write(&code, source).expect("OUT_DIR is writable");
    std::fs::write(&nodes, "ADVERB_RDMACM { };\n").expect("OUT_DIR is writable");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-type=cdylib", "--edition=2024", "-Cpanic=abort", "--target", &variable("TARGET")]);
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    for argument in [
        "-Wl,-soname,libibverbs.so.1",
        &format!("-Wl,--version-script={}", nodes.display()),
        "-fuse-ld=lld",
        lld,
    ] {
        rustc.arg(format!("-Clink-arg={argument}"));
    }
    let status = rustc.arg("-o").arg(&library).arg(&code).status().expect("rustc runs");
    assert!(status.success(), "rustc could not build {}: {status}", library.display());
    library
}

/// Where the wrappers of rustc's own lld lie: only lld combines a version script with the one that rustc passes.
fn lld_directory() -> PathBuf {
    let output = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output().expect("rustc runs");
    let sysroot = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(sysroot.trim()).join("lib/rustlib").join(variable("HOST")).join("bin/gcc-ld")
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
