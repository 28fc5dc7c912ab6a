//! Valgrind and the sanitizers report nothing of a program that makes no mistake, run as users run it, and
//! still report what is the program's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use adverb_abi_tests::{Folder, command, output_of};

/// Compiles the program with these options.
fn compile(folder: &Folder, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("checked.c");
    let program = folder.path().join("checked");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-g", "-O1"]).args(options).arg("-I").arg(env!("CARGO_MANIFEST_DIR")).arg("-o");
    output_of(compiler.arg(&program).arg(source).args(["-libverbs", "-lpthread"]));
    program
}

/// Runs it in a shell, as jobs do, below a checker if there is one.
fn run(checker: &[&str], program: &Path, way: &str, mistake: &str) -> Output {
    let mut command = Command::new(command());
    command.args(["run", "--device", "roce0", "--", "sh", "-c", "\"$@\" && true", "sh"]).args(checker);
    for variable in
        ["ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "VALGRIND_OPTS", "ADVERB_LOG", "ADVERB_PCAP"]
    {
        command.env_remove(variable);
    }
    command.arg(program).arg(mistake).env("ADVERB_LOCAL", way).output().expect("adverb")
}

/// A good program is not complained about, and one with a mistake is, by something that says `expected`.
fn judge(name: &str, options: &[&str], checker: &[&str], expected: &str) {
    let folder = Folder::new(name);
    let program = compile(&folder, options);
    for way in ["auto", "off"] {
        let output = run(checker, &program, way, "none");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {way}: {}\n{said}", output.status);
        assert!(String::from_utf8_lossy(&output.stdout).contains(" checks"), "{name}, {way}: {said}");
    }
    let output = run(checker, &program, "auto", "leak");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(expected), "{name}: {}\n{said}", output.status);
}

#[test]
fn address_sanitizer_reports_what_is_the_programs_own() {
    judge("asan", &["-fsanitize=address"], &[], "detected memory leaks");
}

#[test]
fn leak_sanitizer_reports_what_is_the_programs_own() {
    judge("lsan", &["-fsanitize=leak"], &[], "detected memory leaks");
}

#[test]
fn thread_sanitizer_reports_what_is_the_programs_own() {
    judge("tsan", &["-fsanitize=thread"], &[], "data race");
}

#[test]
fn valgrind_reports_what_is_the_programs_own() {
    let valgrind = ["valgrind", "--quiet", "--leak-check=full", "--error-exitcode=9"];
    judge("valgrind", &[], &valgrind, "definitely lost");
}
