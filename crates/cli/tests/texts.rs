//! What users read names every variable that they can set, and its values; and every counter.

use adverb_core::attributes::TransportType;
use adverb_core::counters::{Counters, files};
use adverb_core::setting::{FEATURES, SETTINGS};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// A file of the repository, without the marks of its format.
fn file(name: &str) -> String {
    std::fs::read_to_string(path(name)).expect(name).replace("\\-", "-")
}

/// The rows between the marks of `part` in a file are `rows`. With ADVERB_TEST_WRITE in the environment they
/// are put there.
fn holds(name: &str, part: &str, rows: &str) {
    let text = std::fs::read_to_string(path(name)).expect(name);
    let end = format!("<!-- end of {part} -->");
    let begin = text.find(&format!("<!-- {part}: ")).expect("the mark where the rows begin");
    let begin = begin + text[begin..].find('\n').expect("a line") + 1;
    let stop = text.find(&end).expect("the mark where the rows end");
    if std::env::var_os("ADVERB_TEST_WRITE").is_some() {
        let text = format!("{}{rows}{}", &text[..begin], &text[stop..]);
        std::fs::write(path(name), text).expect(name);
    } else {
        let how = "ADVERB_TEST_WRITE=1 cargo test -p adverb-cli --test texts";
        assert_eq!(&text[begin..stop], rows, "{name} has old rows; {how} writes them anew");
    }
}

#[test]
fn the_page_of_settings_has_the_table_of_the_code() {
    let mut rows = String::from("| variable | values | meaning | default |\n|---|---|---|---|\n");
    for setting in &SETTINGS {
        let form = setting.form.replace('|', "\\|");
        writeln!(rows, "| `{}` | `{form}` | {} | {} |", setting.name, setting.meaning, setting.default)
            .unwrap();
    }
    holds("docs/settings.md", "settings", &rows);
}

#[test]
fn the_page_of_counters_has_those_of_the_code_and_their_files() {
    let mut rows = String::from("| counter | counts |\n|---|---|\n");
    for (name, meaning, _) in Counters::private().all() {
        writeln!(rows, "| `{name}` | {meaning} |").unwrap();
    }
    holds("docs/counters.md", "counters", &rows);
    // Those that always say 0 are named by no row.
    let text = file("docs/counters.md");
    let rows: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let told: Vec<_> = rows.iter().filter(|name| name.contains('/')).collect();
    assert!(!told.is_empty());
    let files: Vec<_> = files::names(TransportType::Ib).collect();
    assert!(told.iter().all(|name| files.contains(name)), "{told:?} are not all in {files:?}");
    let silent = files.iter().filter(|name| !rows.contains(name)).count();
    assert_eq!(silent, files::ALWAYS_ZERO, "files that count are missing: {told:?}");
}

#[test]
fn every_variable_is_explained_everywhere() {
    let help = Command::new(env!("CARGO_BIN_EXE_adverb")).arg("--help").output().expect("adverb --help");
    let help = String::from_utf8(help.stdout).expect("text");
    for (place, text) in [
        ("--help", help),
        ("the manual page", file("packaging/adverb.1")),
        ("docs/settings.md", file("docs/settings.md")),
    ] {
        for setting in &SETTINGS {
            // What is said where it is explained: up to the next one.
            let explained: Vec<_> =
                text.split("ADVERB_").filter_map(|part| part.strip_prefix(&setting.name[7..])).collect();
            assert!(!explained.is_empty(), "{place} lacks {}", setting.name);
            let has = |word: &str| {
                let mut all = explained.iter().flat_map(|part| part.split(|c: char| !c.is_ascii_lowercase()));
                all.any(|found| found == word)
            };
            // Where the values are words, each of them.
            let words = setting.form.split('|').filter(|word| word.chars().all(|c| c.is_ascii_lowercase()));
            for word in words {
                assert!(has(word), "{place} lacks the value {word} of {}", setting.name);
            }
        }
    }
    for (place, text) in
        [("the manual page", file("packaging/adverb.1")), ("docs/settings.md", file("docs/settings.md"))]
    {
        let lacking: Vec<_> = FEATURES.iter().filter(|feature| !text.contains(**feature)).collect();
        assert!(lacking.is_empty(), "{place} lacks {lacking:?}");
    }
}
