//! Programs that tasks run, cargo first of all.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds something as users have it; the folder that it is in.
pub(crate) fn build(root: &Path, what: &[&str]) -> Result<PathBuf, String> {
    build_by(root, "release", what)
}

/// Builds something by a profile of Cargo.toml; the folder that it is in.
pub(crate) fn build_by(root: &Path, profile: &str, what: &[&str]) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output(
        Command::new(&cargo).args(["build", "--profile", profile, "--quiet"]).args(what).current_dir(root),
    )?;
    let metadata = ["metadata", "--no-deps", "--format-version=1"];
    let metadata = output(Command::new(&cargo).args(metadata).current_dir(root))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(Path::new(metadata["target_directory"].as_str().unwrap_or("target")).join(profile))
}

/// What a program prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
}
