//! Link arguments: soname, version nodes, and a stand-in for libibverbs.so.1 to link against.
//!
//! Cargo cannot make one shared library wait for another, so the linker gets a stand-in made here: a library
//! with the soname of the real one that defines the same private names, and nothing behind them.

use std::fmt::Write as _;

include!("link.rs");

macro_rules! rdmacm_exports {
    ($($kind:ident $node:literal: $($name:ident)*;)*) => {
        /// The names of librdmacm.
        const NAMES: &[&str] = &[$($(stringify!($name)),*),*];
    };
}

include!("exports.rs");

fn main() {
    let nodes = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("nodes.map");
    println!("cargo:rerun-if-changed={}", nodes.display());
    println!("cargo:rerun-if-changed=exports.rs");
    println!("cargo:rerun-if-changed=link.rs");
    let stand_in = build_stand_in(&PathBuf::from(variable("OUT_DIR")));
    for argument in link_arguments("librdmacm.so.1", &nodes) {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    println!("cargo:rustc-cdylib-link-arg={}", stand_in.display());
}

/// Builds the stand-in in `directory` and returns its path.
fn build_stand_in(directory: &Path) -> PathBuf {
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
    for argument in link_arguments("libibverbs.so.1", &nodes) {
        rustc.arg(format!("-Clink-arg={argument}"));
    }
    let status = rustc.arg("-o").arg(&library).arg(&code).status().expect("rustc runs");
    assert!(status.success(), "rustc could not build {}: {status}", library.display());
    library
}
