//! Runs the simulation of the protocols (`crates/sim`), as it is or with faults planted into a copy of the
//! sources.

use crate::cargo;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where the planted faults stand.
const PLANTED: &str = "crates/sim/planted.txt";
/// The document that has the table of incast.
const INCAST: &str = "docs/design/congestion.md";
/// The crates that the simulation is made of.
const CRATES: [&str; 3] = ["wire", "proto", "sim"];
/// A planted fault must be found within so many seconds.
const LIMIT_S: u32 = 60;
/// What `./test` runs: seeds that are always the same, and others, which the commit determines: a commit that
/// passes once passes again.
const FIXED_SEEDS: u32 = 3000;
const COMMIT_SEEDS: u32 = 6000;

/// Builds the simulation, and runs it with these arguments. Its output goes to ours.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(String, bool), String> {
    let program = build(root)?;
    let status = Command::new(program).args(arguments).status().map_err(|error| error.to_string())?;
    Ok((String::new(), status.success()))
}

/// Runs fixed seeds, and those of the commit; with a number of seconds, fresh seeds for so long instead of
/// the latter. Each is a line as of cargo's tests.
///
/// # Errors
/// As [`run`].
pub(crate) fn check(root: &Path, seconds: Option<&str>) -> Result<(String, bool), String> {
    let program = build(root)?;
    let (fixed, of_commit, commit) =
        (FIXED_SEEDS.to_string(), COMMIT_SEEDS.to_string(), seed_of_commit(root));
    let others = match seconds {
        Some(seconds) => ("fresh_seeds", vec!["--seconds", seconds, "--from", "fresh"]),
        None => ("seeds_of_the_commit", vec!["--seeds", &of_commit, "--from", &commit]),
    };
    let mut cases = Cases::default();
    for (name, arguments) in [("fixed_seeds", vec!["--seeds", &fixed, "--from", "0"]), others] {
        // There is no end of seeds where the time is the limit.
        let all = ["--seeds", "1000000000"];
        let output = output(Command::new(&program).args(all).args(arguments))?;
        cases.add(name, output.status.success(), &String::from_utf8_lossy(&output.stdout));
    }
    let text = fs::read_to_string(root.join(INCAST)).map_err(|error| format!("{INCAST}: {error}"))?;
    let table = cargo::output(Command::new(&program).arg("--incast"))?;
    let is_written = !table.is_empty() && text.contains(&table);
    cases.add(
        "incast_table",
        is_written,
        &format!("the table of {INCAST} is that of cargo xtask sim --incast\n{table}"),
    );
    Ok(cases.finish())
}

/// Plants each fault into a copy of the sources, and has the simulation find it.
///
/// # Errors
/// As [`run`]; a fault that cannot be planted.
pub(crate) fn planted(root: &Path) -> Result<(String, bool), String> {
    let text = fs::read_to_string(root.join(PLANTED)).map_err(|error| format!("{PLANTED}: {error}"))?;
    let copy = root.join("target/planted");
    let mut cases = Cases::default();
    for fault in faults(&text)? {
        copy_sources(root, &copy)?;
        fault.plant(&copy)?;
        let program = build(&copy)?;
        let output = output(
            Command::new(program)
                .args(["--seeds", "1000000000", "--seconds", &LIMIT_S.to_string()])
                .env("RUST_BACKTRACE", "0"),
        )?;
        let said = String::from_utf8_lossy(&output.stdout);
        let is_found = output.status.code() == Some(1) && said.contains("FAILED");
        let how = said.lines().find(|line| line.starts_with("FAILED")).unwrap_or("not found");
        let how: String = how.chars().take(150).collect();
        println!("{}\n    {how}", fault.words);
        let name: String =
            fault.words.to_lowercase().chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        cases.add(name.trim_matches('_'), is_found, &said);
    }
    Ok(cases.finish())
}

/// The first seed of the commit that is checked out. Sources without a repository have one of their own.
fn seed_of_commit(root: &Path) -> String {
    let commit = output(Command::new("git").current_dir(root).args(["rev-parse", "--short=12", "HEAD"]));
    let digits = commit.map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned());
    let number = digits.ok().and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    number.unwrap_or(FIXED_SEEDS.into()).to_string()
}

fn build(root: &Path) -> Result<PathBuf, String> {
    Ok(cargo::build_by(root, "sim", &["-p", "adverb-sim"])?.join("adverb-sim"))
}

/// What a run has said, whether it has found a failure or not.
fn output(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))
}

struct PlantedFault {
    words: String,
    file: String,
    old: String,
    new: String,
}

impl PlantedFault {
    fn plant(&self, copy: &Path) -> Result<(), String> {
        let PlantedFault { words, file, old, new } = self;
        let path = copy.join(file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        if !text.contains(old) {
            return Err(format!("{PLANTED}: {words:?}: {file} has no {old:?}"));
        }
        write(&path, &text.replacen(old, new, 1))
    }
}

fn faults(text: &str) -> Result<Vec<PlantedFault>, String> {
    let mut found = Vec::new();
    for block in text.split("\n= ").skip(1) {
        let mut lines = block.lines().filter(|line| !line.is_empty());
        let words = lines.next().unwrap_or_default().to_owned();
        let mut next = |mark: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(mark));
            line.map(str::to_owned).ok_or_else(|| format!("{PLANTED}: {words:?} has no line with {mark:?}"))
        };
        let (file, old, new) = (next("@ ")?, next("- ")?, next("+ ")?);
        found.push(PlantedFault { words, file, old, new });
    }
    Ok(found)
}

/// The crates of the simulation as a workspace of their own.
fn copy_sources(root: &Path, copy: &Path) -> Result<(), String> {
    for name in CRATES {
        let part = Path::new("crates").join(name);
        copy_folder(&root.join(&part), &copy.join(&part))?;
    }
    let manifest =
        fs::read_to_string(root.join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    let members: Vec<String> = CRATES.iter().map(|name| format!("\"crates/{name}\"")).collect();
    let lines = manifest.lines().map(|line| match line {
        _ if line.starts_with("members") => format!("members = [{}]", members.join(", ")),
        _ if line.starts_with("default-members") => String::new(),
        _ => line.to_owned(),
    });
    write(&copy.join("Cargo.toml"), &lines.collect::<Vec<_>>().join("\n"))?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    write(&copy.join("Cargo.lock"), &lock)
}

/// Makes one folder as another one. Links are followed, and those that lead nowhere are left out. A file that
/// is right already is left alone: cargo builds nothing anew because of it.
fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(to).map_err(failed)? {
        let place = entry.map_err(failed)?.path();
        let is_there = place.file_name().is_some_and(|name| from.join(name).exists());
        if !is_there {
            let removed = if place.is_dir() { fs::remove_dir_all(&place) } else { fs::remove_file(&place) };
            removed.map_err(failed)?;
        }
    }
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &place)?;
        } else if path.exists() {
            let bytes = fs::read(&path).map_err(failed)?;
            if fs::read(&place).ok().as_ref() != Some(&bytes) {
                fs::write(&place, bytes).map_err(failed)?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Lines as of cargo's tests.
#[derive(Default)]
struct Cases {
    text: String,
    passed: usize,
    failed: usize,
}

impl Cases {
    fn add(&mut self, name: &str, is_good: bool, said: &str) {
        if is_good {
            self.passed += 1;
            let last = said.lines().next().unwrap_or_default();
            self.text += &format!("test sim::{name} ... ok ({last})\n");
        } else {
            self.failed += 1;
            // `./test` repeats the lines that begin with a space below the name: the failure, and how to see
            // it again.
            let failure: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("FAILED")).collect();
            let failure = failure.join("\n    ");
            self.text += &format!("{said}\ntest sim::{name} ... FAILED\n    {failure}\n");
        }
    }

    fn finish(self) -> (String, bool) {
        let Cases { text, passed, failed } = self;
        let word = if failed == 0 { "ok" } else { "FAILED" };
        (format!("{text}\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored\n"), failed == 0)
    }
}
