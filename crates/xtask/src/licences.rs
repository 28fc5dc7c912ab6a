//! The licences of the crates that are linked into what users install.

use crate::linked;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// How the names of files with a licence begin.
const FILES: [&str; 4] = ["license", "licence", "copying", "notice"];

/// One text: each crate of others that a crate of this workspace is linked with, its licence, and the words
/// of all licences.
///
/// # Errors
/// When `metadata`, which `cargo metadata` has printed, is not what it should be.
pub(crate) fn text(metadata: &Value) -> Result<String, String> {
    let mut text =
        String::from("adverb contains the Rust standard library (MIT OR Apache-2.0) and these crates:\n\n");
    // Many crates have the same words.
    let mut by_words: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let of_others = linked::crates(metadata)?.into_iter().map(|(package, _)| package);
    for package in of_others.filter(|package| !package["source"].is_null()) {
        let field = |name| package[name].as_str().unwrap_or("unknown");
        let name = format!("{} {}", field("name"), field("version"));
        let _ = writeln!(text, "{name}: {}", field("license"));
        for words in words(Path::new(field("manifest_path"))) {
            by_words.entry(words).or_default().push(name.clone());
        }
    }
    for (words, crates) in by_words {
        let _ = write!(text, "\n{}\n{}:\n\n{}\n", "=".repeat(80), crates.join(", "), words.trim_end());
    }
    Ok(text)
}

/// What the licence files beside a manifest say.
fn words(manifest: &Path) -> Vec<String> {
    let mut files: Vec<_> = manifest
        .parent()
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            FILES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}
