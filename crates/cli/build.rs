//! Puts the drop-in libraries into the command, where nothing else brings them along.
//!
//! In the source tree `cargo build` makes them beside the command, and packages put them into a folder of
//! their own: then there is nothing to do. `cargo install` installs programs alone, so the command has to
//! carry its libraries. Cargo cannot make a program wait for shared libraries (artifact dependencies are not
//! stable), so they are built here, by cargo, with the profile and the versions of the workspace.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Packages of the libraries, what cargo calls their files, and where they lie in the source tree.
const LIBRARIES: [(&str, &str, &str); 4] = [
    ("adverb-libibverbs-cdylib", "ibverbs", "../libibverbs/cdylib"),
    ("adverb-librdmacm-cdylib", "rdmacm", "../librdmacm/cdylib"),
    ("adverb-preload", "adverb_preload", "../preload"),
    ("adverb-rspreload", "rspreload", "../rspreload"),
];

/// Files that the command unpacks beside the libraries.
const TEXTS: [&str; 2] = ["src/pytest_adverb.py", "src/valgrind.supp"];

/// As in the workspace's Cargo.toml, which a package of crates.io does not have. The libraries are stripped,
/// since they are in the command twice: in its file, and unpacked.
const PROFILE: &str = "\
[profile.release]
lto = \"fat\"
codegen-units = 1
strip = \"debuginfo\"
";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    served();
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let is_packed = !source.join(LIBRARIES[0].2).is_dir();
    let wanted = env::var_os("CARGO_FEATURE_EMBEDDED").is_some() || is_packed;
    let out = PathBuf::from(variable("OUT_DIR"));
    let files =
        if wanted && env::var_os("DOCS_RS").is_none() { build(&source, is_packed, &out) } else { Vec::new() };

    let mut hasher = DefaultHasher::new();
    for name in TEXTS {
        println!("cargo:rerun-if-changed={name}");
        let file = source.join(name);
        fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).hash(&mut hasher);
    }
    let mut code = String::from("pub(super) const LIBRARIES: &[(&str, &[u8])] = &[");
    for (name, file) in &files {
        fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).hash(&mut hasher);
        code += &format!("\n    ({name:?}, include_bytes!({file:?})),");
    }
    code += &format!("\n];\npub(super) const DIGEST: &str = \"{:016x}\";\n", hasher.finish());
    fs::write(out.join("embedded.rs"), code).expect("OUT_DIR is writable");
}

/// Says what it is that cannot be served, rather than that a library lacks a symbol.
fn served() {
    let [system, library, processor] =
        ["CARGO_CFG_TARGET_OS", "CARGO_CFG_TARGET_ENV", "CARGO_CFG_TARGET_ARCH"]
            .map(|name| env::var(name).unwrap_or_default());
    let why = match (&*system, &*library, &*processor) {
        ("linux", "gnu", "x86_64" | "aarch64") => return,
        ("linux", "gnu", _) => {
            format!("not for {processor}: it has what depends on the processor for x86_64 and aarch64 alone")
        }
        ("linux", _, _) => format!(
            "for programs of the GNU C library, and not of {library}: try the target {processor}-unknown-linux-gnu"
        ),
        _ => format!("for Linux, not for {system}"),
    };
    eprintln!("adverb is {why}. Nothing was installed.");
    std::process::exit(1);
}

/// Builds the libraries in a project of their own; the names that the command knows them by, and their files.
fn build(source: &Path, is_packed: bool, out: &Path) -> Vec<(String, PathBuf)> {
    let project = out.join("libraries");
    fs::create_dir_all(&project).expect("OUT_DIR is writable");
    let version = variable("CARGO_PKG_VERSION");
    let dependencies: String = LIBRARIES
        .iter()
        .map(|(package, _, place)| match is_packed {
            true => format!("{package} = \"={version}\"\n"),
            false => format!("{package} = {{ path = {:?} }}\n", source.join(place)),
        })
        .collect();
    let manifest = format!(
        "[package]\nname = \"adverb-libraries\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n[dependencies]\n{dependencies}{PROFILE}"
    );
    fs::write(project.join("Cargo.toml"), manifest).expect("OUT_DIR is writable");
    fs::write(project.join("lib.rs"), "").expect("OUT_DIR is writable");
    // The versions that the command was tested with; cargo leaves out what is not needed.
    let lock = [source.join("Cargo.lock"), source.join("../../Cargo.lock")];
    if let Some(lock) = lock.iter().find(|lock| lock.is_file()) {
        fs::copy(lock, project.join("Cargo.lock")).expect("OUT_DIR is writable");
    }
    if !is_packed {
        println!("cargo:rerun-if-changed=../");
    }

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(&project)
        .args(["build", "--message-format=json-render-diagnostics", "--target"])
        .arg(variable("TARGET"))
        // Not where the command itself is built: that folder is locked as long as this runs.
        .arg("--target-dir")
        .arg(out.join("target"))
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .stderr(Stdio::inherit());
    if variable("PROFILE") == "release" {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap_or_else(|e| panic!("cannot start cargo: {e}"));
    if !output.status.success() {
        eprintln!(
            "The libraries that adverb puts in front of programs could not be built: cargo's reasons are above. They are crates of their own, which cargo downloads."
        );
        std::process::exit(1);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    LIBRARIES.iter().map(|(_, name, _)| (format!("lib{name}.so"), built(&messages, name))).collect()
}

/// The file of the library of this name, from what cargo says of each that it has built: a line of JSON, in
/// which it is the only string that ends so.
fn built(messages: &str, name: &str) -> PathBuf {
    let target = format!("\"name\":\"{name}\"");
    messages
        .lines()
        .filter(|line| line.contains("\"reason\":\"compiler-artifact\"") && line.contains(&target))
        .flat_map(|line| line.split('"'))
        .find(|text| text.ends_with(".so"))
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("cargo has not said where lib{name}.so is"))
}

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
