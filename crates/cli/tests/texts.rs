//! What users read names every variable that they can set, and its values.

use adverb_core::setting::{FEATURES, SETTINGS};
use std::path::Path;
use std::process::Command;

/// A file of the repository, without the marks of its format.
fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).expect(name).replace("\\-", "-")
}

#[test]
fn every_variable_is_explained_everywhere() {
    let help = Command::new(env!("CARGO_BIN_EXE_adverb")).arg("--help").output().expect("adverb --help");
    let help = String::from_utf8(help.stdout).expect("text");
    for (place, text) in
        [("--help", help), ("the manual page", file("packaging/adverb.1")), ("README.md", file("README.md"))]
    {
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
    for (place, text) in [("the manual page", file("packaging/adverb.1")), ("README.md", file("README.md"))] {
        let lacking: Vec<_> = FEATURES.iter().filter(|feature| !text.contains(**feature)).collect();
        assert!(lacking.is_empty(), "{place} lacks {lacking:?}");
    }
}
