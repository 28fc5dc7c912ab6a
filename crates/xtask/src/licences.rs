//! The licences of the crates that are linked into what users install.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// How the names of files with a licence begin.
const FILES: [&str; 4] = ["license", "licence", "copying", "notice"];

/// One text: each crate of others that a crate of this workspace is linked with, its licence, and the words of all licences.
///
/// # Errors
/// When `metadata`, which `cargo metadata` has printed, is not what it should be.
pub(crate) fn text(metadata: &Value) -> Result<String, String> {
    let packages: BTreeMap<&str, &Value> =
        list(metadata, "packages").map(|package| (id(package), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").map(|node| (id(node), node)).collect();
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = list(metadata, "workspace_default_members").filter_map(Value::as_str).collect();
    if next.is_empty() {
        return Err("cargo metadata names no members".to_owned());
    }
    while let Some(id) = next.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.get(id).ok_or_else(|| format!("cargo metadata does not know {id}"))?;
        let linked = list(node, "deps").filter(|dependency| {
            // A kind of null: neither for building nor for testing.
            list(dependency, "dep_kinds").any(|kind| kind["kind"].is_null())
        });
        next.extend(linked.filter_map(|dependency| dependency["pkg"].as_str()));
    }
    let mut text =
        String::from("adverb contains the Rust standard library (MIT OR Apache-2.0) and these crates:\n\n");
    // Many crates have the same words.
    let mut by_words: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in
        found.iter().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null())
    {
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

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap_or_default()
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
