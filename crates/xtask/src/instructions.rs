//! Instructions of the fast paths, counted by valgrind's callgrind and compared with what they were.
//!
//! Only instructions of our own program count, not those of the C library, whose routines depend on the
//! processor: so the counts are the same on every machine, as long as the compiler is.

use crate::cargo::{self, output};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The counts that are expected.
const BASELINE: &str = "benches/instructions.txt";
/// More than this part above them is too much.
const TOLERANCE: f64 = 0.03;
/// A count may be above the expected one by this part where another thread takes part in the path.
/// The smallest counts of two runs differed by 0.064, where the machine was busy in one of them.
const TOLERANCE_SHARED: f64 = 0.08;
/// A count may be above the expected one by this part where another compiler has made the program.
/// Only a greater difference says something about our code.
const TOLERANCE_BETWEEN_COMPILERS: f64 = 0.25;
/// Paths of these names take as many where the program has more devices than it uses.
const SHARED: &str = "-within-host";
/// Seven more devices.
const MORE_DEVICES: &str = "d[1-7]@rate=100";
/// More than this part above the count of the single device is too much.
const TOLERANCE_AMONG: f64 = 0.08;
/// Counts of these paths differ by a part of up to 0.08 from run to run, since another thread takes part: the
/// smallest is taken, once so many in a row were not clearly below it. On a busy machine most are large.
const COUNTS_IN_VAIN: usize = 6;
/// A count is clearly below another one by more than this part.
const CLEARLY: f64 = 0.01;
/// The function of the program whose work is counted.
const COUNTED: &str = "counted";

const HEADING: &str = "\
# Instructions of one operation: architecture, name, count. Written by `cargo xtask instructions --renew`.
";

/// Counts, and compares with the baseline; or writes that anew. A line for each path, and whether all is
/// well.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path, renew: bool) -> Result<(String, bool), String> {
    let program = build(root)?;
    let names = output(Command::new(&program).arg("--list"))?;
    let counts = names.lines().map(|name| Ok((name.to_owned(), smallest(&program, name, None)?)));
    let counts = counts.collect::<Result<Vec<_>, String>>()?;
    let file = root.join(BASELINE);
    let baseline = std::fs::read_to_string(&file).unwrap_or_default();
    if renew {
        let text = renewed(&baseline, &counts, &compiler()?);
        std::fs::write(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
        return Ok((text, true));
    }
    let made_by = baseline.lines().find_map(|line| line.strip_prefix(&compiler_line(""))).unwrap_or("?");
    let tolerance = if compiler()? == made_by { TOLERANCE } else { TOLERANCE_BETWEEN_COMPILERS };
    let shared = counts.iter().filter(|(name, _)| name.ends_with(SHARED));
    let among = shared.map(|(name, alone)| {
        let among = smallest(&program, name, Some(MORE_DEVICES))?;
        Ok(Count::new(&format!("{name}-among-eight"), among, *alone, "alone", TOLERANCE_AMONG))
    });
    let among = among.collect::<Result<Vec<_>, String>>()?;
    if among.is_empty() {
        return Err(format!("no path is called *{SHARED}, so none was counted among eight devices"));
    }
    let counts = expected(&baseline, &counts, tolerance).chain(among);
    let (mut text, good) = compare(&counts.collect::<Vec<_>>());
    if !good {
        let _ = write!(
            text,
            "\nA fast path takes other instructions than {BASELINE} says, or has no line there. See where they go:\n\n    \
             valgrind --tool=callgrind --toggle-collect={COUNTED} {} PATH && callgrind_annotate callgrind.out.*\n\n\
             Among eight devices, a path takes what it takes alone: give the list \"{MORE_DEVICES}\" behind PATH.\n\
             If it is meant to be so, write down the new counts, and say in the commit why:\n\n    \
             cargo xtask instructions --renew\n\n\
             (The counts there were made with {made_by}; this is {}.)\n",
            program.display(),
            compiler()?,
        );
    }
    Ok((text, good))
}

/// Builds the program; where it is.
fn build(root: &Path) -> Result<PathBuf, String> {
    Ok(cargo::build(root, &["-p", "adverb-roce", "--example", "fast-paths"])?.join("examples/fast-paths"))
}

/// The smallest of some counts, where they differ from run to run.
fn smallest(program: &Path, name: &str, beside: Option<&str>) -> Result<f64, String> {
    let mut least = count(program, name, beside)?;
    let mut left = if name.ends_with(SHARED) { COUNTS_IN_VAIN } else { 0 };
    while left > 0 {
        let next = count(program, name, beside)?;
        left = if next < least * (1.0 - CLEARLY) { COUNTS_IN_VAIN } else { left - 1 };
        least = least.min(next);
    }
    Ok(least)
}

/// Instructions of one operation, where the program has these devices, too.
fn count(program: &Path, name: &str, beside: Option<&str>) -> Result<f64, String> {
    let file = std::env::temp_dir().join(format!("adverb-callgrind-{}-{name}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "-q", &format!("--toggle-collect={COUNTED}")]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display())).arg(program).arg(name);
    valgrind.args(beside);
    let times = output(&mut valgrind);
    let profile = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    let times: f64 =
        times?.trim().parse().map_err(|_| format!("{name} does not say how often it was done"))?;
    let profile = profile.map_err(|error| format!("{}: {error}", file.display()))?;
    let own = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match own_instructions(&profile, &own) {
        0 => Err(format!("{name}: callgrind has counted nothing in {own}")),
        all => Ok(all as f64 / times),
    }
}

/// The instructions in a profile that belong to the file of this name. Lines are "ob=(1) path" (the path only
/// the first time), "fn=...", "line cost", and "calls=...", behind which the cost of the called function
/// stands, which that one has, too.
fn own_instructions(profile: &str, own: &str) -> u64 {
    let mut files: BTreeMap<&str, bool> = BTreeMap::new();
    let (mut is_own, mut of_call, mut sum) = (false, false, 0);
    for line in profile.lines() {
        let object = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob="));
        if let Some((number, path)) = object.map(|object| object.split_once(' ').unwrap_or((object, ""))) {
            if !path.is_empty() {
                files.insert(number, path.rsplit('/').next() == Some(own));
            }
            if line.starts_with("ob=") {
                is_own = files.get(number).copied().unwrap_or(false);
            }
        } else if line.starts_with("calls=") {
            of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if is_own && !of_call {
                sum += cost.unwrap_or(0);
            }
            of_call = false;
        }
    }
    sum
}

/// A count, and what it is compared with.
struct Count {
    name: String,
    count: f64,
    said: String,
    good: bool,
}

impl Count {
    /// More than the part `tolerance` above `expected` is bad; `whose` says what that is.
    fn new(name: &str, count: f64, expected: f64, whose: &str, tolerance: f64) -> Self {
        let change = count / expected - 1.0;
        let said = format!("{expected:.1} {whose}, {:+.1} %", change * 100.0);
        Self { name: name.to_owned(), count, said, good: change <= tolerance }
    }
}

/// Compares with the baseline.
fn expected(baseline: &str, counts: &[(String, f64)], tolerance: f64) -> impl Iterator<Item = Count> {
    counts.iter().map(move |(name, count)| {
        let known = lines(baseline).find(|(arch, known, _)| *arch == std::env::consts::ARCH && known == name);
        match known {
            None => Count { name: name.clone(), count: *count, said: "not known".to_owned(), good: false },
            Some((.., known)) => {
                let least = if name.ends_with(SHARED) { TOLERANCE_SHARED } else { 0.0 };
                Count::new(name, *count, known, "before", tolerance.max(least))
            }
        }
    })
}

/// A line for each count, in the words of cargo's tests, and whether all are as they were.
fn compare(counts: &[Count]) -> (String, bool) {
    let mut text = String::new();
    for Count { name, count, said, good } in counts {
        let verdict = if *good { "ok" } else { "FAILED" };
        let _ = writeln!(text, "test instructions::{name} ({count:.1}; {said}) ... {verdict}");
    }
    let bad = counts.iter().filter(|count| !count.good).count();
    let verdict = if bad == 0 { "ok" } else { "FAILED" };
    let _ =
        writeln!(text, "\ntest result: {verdict}. {} passed; {bad} failed; 0 ignored", counts.len() - bad);
    (text, bad == 0)
}

/// Architecture, name and count of each line.
fn lines(baseline: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    baseline.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?, fields.next()?, fields.next()?.parse().ok()?))
    })
}

/// The baseline with other counts for this architecture.
fn renewed(baseline: &str, counts: &[(String, f64)], compiler: &str) -> String {
    let others =
        lines(baseline).filter(|(arch, ..)| *arch != std::env::consts::ARCH && !arch.starts_with('#'));
    let others = others.map(|(arch, name, count)| format!("{arch} {name} {count:.1}\n"));
    let own = counts.iter().map(|(name, count)| format!("{} {name} {count:.1}\n", std::env::consts::ARCH));
    format!("{HEADING}{}\n{}", compiler_line(compiler), others.chain(own).collect::<String>())
}

fn compiler_line(compiler: &str) -> String {
    format!("# {}: {compiler}", std::env::consts::ARCH)
}

fn compiler() -> Result<String, String> {
    output(Command::new("rustc").arg("--version")).map(|version| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_others_and_of_calls_do_not_count() {
        let profile = "positions: line\nevents: Ir\nfl=(1) ???\nob=(1) /a/fast-paths\nfn=(1) counted\n10 5\n+1 7\n\
                       cob=(2) /lib/libc.so.6\ncfn=(2) memcpy\ncalls=3 0\n12 900\n14 1\n\nob=(2)\nfn=(2)\n0 900\n\n\
                       ob=(1)\nfn=(3) other\n* 20\n";
        assert_eq!(own_instructions(profile, "fast-paths"), 33);
    }

    #[test]
    fn more_is_worse_and_unknown_is_bad() {
        let arch = std::env::consts::ARCH;
        let baseline = format!("# text\n{arch} post 100\nother post 1\n");
        let counted = |baseline: &str, count| {
            let counts = [("post".to_owned(), count)];
            compare(&expected(baseline, &counts, TOLERANCE).collect::<Vec<_>>())
        };
        let judged = |count| counted(&baseline, count);
        assert!(judged(102.9).1 && judged(50.0).1);
        assert!(!judged(103.1).1 && !counted("", 1.0).1);
        assert!(
            judged(150.0).0.contains("test instructions::post (150.0; 100.0 before, +50.0 %) ... FAILED")
        );
        assert!(judged(150.0).0.ends_with("test result: FAILED. 0 passed; 1 failed; 0 ignored\n"));
        let among = |count| Count::new("post-among-eight", count, 1000.0, "alone", TOLERANCE_AMONG).good;
        assert!(among(1079.0) && !among(1081.0));
    }

    #[test]
    fn renewing_keeps_other_architectures() {
        let text = renewed("# old\nother post 1\n", &[("post".to_owned(), 12.34)], "rustc 9");
        assert!(text.contains("other post 1.0\n") && text.contains(" post 12.3\n") && !text.contains("old"));
        assert!(text.contains(&format!("# {}: rustc 9\n", std::env::consts::ARCH)));
    }
}
