//! Link arguments: soname and version nodes.

include!("link.rs");

fn main() {
    let nodes = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("nodes.map");
    println!("cargo:rerun-if-changed={}", nodes.display());
    println!("cargo:rerun-if-changed=link.rs");
    for argument in link_arguments("libibverbs.so.1", &nodes) {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
