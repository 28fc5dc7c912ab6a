//! What the ABI tests share: a C compiler for small programs, and the libraries as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A fresh folder for one test, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates the folder; `name` tells the tests of one process apart.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adverb-abi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays behind in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a C program against the installed headers and libraries; `Err` holds what the compiler said.
pub fn compile(folder: &Folder, name: &str, source: &str) -> Result<PathBuf, String> {
    compile_with(folder, name, source, &[])
}

/// Compiles a C program as [`compile`] does, with further options for the compiler.
pub fn compile_with(folder: &Folder, name: &str, source: &str, options: &[&str]) -> Result<PathBuf, String> {
    let (file, program) = (folder.path().join(format!("{name}.c")), folder.path().join(name));
    std::fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O1", "-I", env!("CARGO_MANIFEST_DIR")]).args(options);
    compiler.arg("-o").arg(&program).arg(&file);
    let output = compiler.args(["-Wl,--as-needed", "-lrdmacm", "-libverbs", "-lpthread", "-ldl"]).output();
    let output =
        output.map_err(|error| format!("cannot run cc ({error}); install gcc and libibverbs-dev"))?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Runs a program and returns its standard output.
pub fn output_of(program: &mut Command) -> String {
    let output = program.output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// The command, with the drop-in libraries beside it, built once in a process.
pub fn command() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--message-format=json"]);
        for package in ["cli", "preload", "rspreload", "libibverbs-cdylib", "librdmacm-cdylib"] {
            cargo.arg(format!("--package=adverb-{package}"));
        }
        // As for the tests of the workspace: cargo has built most of it for them.
        cargo.args(["--package=adverb-core", "--features=adverb-core/conformance"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let messages = output_of(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
        let name = "/adverb\"";
        let end = messages.find(name).expect("cargo names the command that it built");
        let start = messages[..end].rfind('"').expect("the path is quoted") + 1;
        PathBuf::from(&messages[start..end + name.len() - 1])
    })
}

/// The folder that holds the drop-in libraries.
pub fn libraries() -> &'static Path {
    command().parent().expect("the command is in a folder")
}

/// Makes the names under which programs ask for the libraries, in a folder for `LD_LIBRARY_PATH`.
pub fn install(folder: &Folder) -> PathBuf {
    let (built, names) = (libraries(), folder.path().join("lib"));
    std::fs::create_dir_all(&names).expect("a folder");
    for library in ["libibverbs.so", "librdmacm.so"] {
        for name in [library.to_owned(), format!("{library}.1")] {
            std::os::unix::fs::symlink(built.join(library), names.join(name)).expect("a fresh name");
        }
    }
    names
}

/// The exported `name@NODE` pairs of a library, sorted; the nodes' own names are left out.
pub fn exported(library: &Path) -> Vec<String> {
    let table = output_of(Command::new("objdump").arg("-T").arg(library));
    let mut pairs: Vec<String> = table
        .lines()
        .filter(|line| line.len() > 25 && line.starts_with(|first: char| first.is_ascii_hexdigit()))
        .filter(|line| !line.contains("*UND*") && !line.contains("*ABS*"))
        .map(|line| {
            let mut words = line.split_whitespace().rev();
            let name = words.next().expect("a name");
            let node = words.next().expect("a node").trim_matches(['(', ')']);
            format!("{name}@{node}")
        })
        .collect();
    pairs.sort();
    pairs
}

/// The pairs of a checked-in list: one per line, `#` begins a comment.
pub fn listed(list: &str) -> Vec<String> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut pairs: Vec<String> = lines.map(str::to_owned).collect();
    pairs.sort();
    pairs
}
