//! A program that sees devices of the host's beside adverb's (`ADVERB_HOST_DEVICES`), with a host's library
//! that only answers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use adverb_abi_tests::{Folder, compile, install, output_of};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn run(program: &Path, libraries: &Path, argument: &str, host: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.arg(argument).env("LD_LIBRARY_PATH", libraries);
    for variable in ["ADVERB_DEVICE", "ADVERB_LOG", "ADVERB_HOST_DEVICES"] {
        command.env_remove(variable);
    }
    command.envs(host.map(|host| ("ADVERB_HOST_DEVICES", host))).output().expect("it runs")
}

#[test]
fn every_call_gets_to_the_side_that_has_the_object() {
    let folder = Folder::new("hosts");
    let libraries = install(&folder);
    let text = std::fs::read_to_string(source("hosts.c")).expect("a source");
    let program = compile(&folder, "hosts", &text).expect("it compiles");
    let host = folder.path().join("host.so");
    let map = format!("-Wl,--version-script={}", source("host.map").display());
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O1", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &map, "-o"]);
    output_of(compiler.arg(&host).arg(source("host.c")).arg("-lpthread"));
    let ours = libraries.join("libibverbs.so.1");
    for (argument, host, said) in [
        ("both", Some(&host), ""),
        ("ours", None, ""),
        // A library that cannot be used, as ours, is named, and the program goes on without.
        ("refused", Some(&ours), "cannot be loaded, so the host's devices are missing: "),
    ] {
        let output = run(&program, &libraries, argument, host.map(PathBuf::as_path));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{argument}: {}\n{errors}", output.status);
        assert!(errors.contains(said) && errors.is_empty() == said.is_empty(), "{argument}: {errors}");
    }
}
