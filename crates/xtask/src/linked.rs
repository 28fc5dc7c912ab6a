//! The crates that are linked into what users install.

use crate::cargo;
use crate::dist::Architecture;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What `cargo metadata` prints, of the crates that are built for an architecture.
pub(crate) fn metadata(root: &Path, architecture: &Architecture) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("--filter-platform={}", architecture.target());
    let arguments = ["metadata", "--locked", "--format-version=1", &platform];
    let metadata = cargo::output(Command::new(cargo).args(arguments).current_dir(root))?;
    serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))
}

/// Every crate that a default member of the workspace is linked with, these included, in the order of their
/// IDs: its package, and the IDs of those that it is linked with itself.
///
/// # Errors
/// When `metadata` is not what it should be.
pub(crate) fn crates(metadata: &Value) -> Result<Vec<(&Value, Vec<&str>)>, String> {
    let packages: BTreeMap<&str, &Value> =
        list(metadata, "packages").map(|package| (id(package), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").map(|node| (id(node), node)).collect();
    let mut found = BTreeMap::new();
    let mut next: Vec<&str> = list(metadata, "workspace_default_members").filter_map(Value::as_str).collect();
    if next.is_empty() {
        return Err("cargo metadata names no members".to_owned());
    }
    while let Some(id) = next.pop() {
        if found.contains_key(id) {
            continue;
        }
        let unknown = || format!("cargo metadata does not know {id}");
        let node = nodes.get(id).ok_or_else(unknown)?;
        let linked: BTreeSet<&str> = list(node, "deps")
            // A kind of null: neither for building nor for testing.
            .filter(|dependency| list(dependency, "dep_kinds").any(|kind| kind["kind"].is_null()))
            .filter_map(|dependency| dependency["pkg"].as_str())
            .collect();
        next.extend(&linked);
        found.insert(id, (*packages.get(id).ok_or_else(unknown)?, linked.into_iter().collect()));
    }
    Ok(found.into_values().collect())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap_or_default()
}
