//! What is in the packages, as CycloneDX has it: each crate with its version, its licence, and what it is
//! linked with.

use crate::linked;
use serde_json::{Value, json};

/// The list, in JSON. `date` is in seconds since 1970.
pub(super) fn list(metadata: &Value, date: &str) -> Result<String, String> {
    let crates = linked::crates(metadata)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    let address =
        |id: &str| crates.iter().find(|(package, _)| package["id"] == id).map(|(package, _)| url(package));
    for (package, linked) in &crates {
        let mut component = json!({
            "type": "library",
            "bom-ref": url(package),
            "name": package["name"],
            "version": package["version"],
            "purl": url(package),
        });
        if let Some(licence) = package["license"].as_str() {
            // Cargo once had a slash where SPDX has a word.
            component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
        }
        components.push(component);
        let linked: Vec<_> = linked.iter().filter_map(|id| address(id)).collect();
        dependencies.push(json!({"ref": url(package), "dependsOn": linked}));
    }
    let adverb = format!("pkg:generic/adverb@{version}");
    let direct: Vec<_> = crates
        .iter()
        .filter(|(package, _)| package["source"].is_null())
        .map(|(package, _)| url(package))
        .collect();
    dependencies.push(json!({"ref": adverb, "dependsOn": direct}));
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time(date)?,
            "component": {"type": "application", "bom-ref": adverb, "name": "adverb", "version": version},
        },
        "components": components,
        "dependencies": dependencies,
    });
    serde_json::to_string_pretty(&list).map(|text| text + "\n").map_err(|e| e.to_string())
}

/// How the world names a crate.
fn url(package: &Value) -> String {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

/// Seconds since 1970 as RFC 3339 writes them.
fn time(seconds: &str) -> Result<String, String> {
    let seconds: i64 = seconds.parse().map_err(|_| format!("{seconds}: not a date"))?;
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March, so that the leap day is their last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day = shifted.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (of_month, month) =
        (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    Ok(format!(
        "{year:04}-{month:02}-{of_month:02}T{:02}:{:02}:{:02}Z",
        rest / 3_600,
        rest / 60 % 60,
        rest % 60
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(time("0").as_deref(), Ok("1970-01-01T00:00:00Z"));
        assert_eq!(time("951782400").as_deref(), Ok("2000-02-29T00:00:00Z"));
        assert_eq!(time("1798761599").as_deref(), Ok("2026-12-31T23:59:59Z"));
        assert!(time("soon").is_err());
    }

    #[test]
    fn each_crate_is_named_with_its_licence_and_what_it_is_linked_with() {
        let metadata = json!({
            "workspace_default_members": ["a"],
            "packages": [
                {"id": "a", "name": "ours", "version": "1.0.0", "license": "MIT", "source": null},
                {"id": "b", "name": "theirs", "version": "2.0.0", "license": "MIT/Apache-2.0", "source": "registry"},
                {"id": "c", "name": "test", "version": "3.0.0", "license": "MIT", "source": "registry"},
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "c", "dep_kinds": [{"kind": "dev"}]},
                ]},
                {"id": "b", "deps": []},
            ]},
        });
        let list: Value = serde_json::from_str(&list(&metadata, "0").unwrap()).unwrap();
        let names: Vec<_> =
            list["components"].as_array().unwrap().iter().map(|one| one["purl"].clone()).collect();
        assert_eq!(names, ["pkg:cargo/ours@1.0.0", "pkg:cargo/theirs@2.0.0"]);
        assert_eq!(list["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(list["dependencies"][0]["dependsOn"], json!(["pkg:cargo/theirs@2.0.0"]));
    }
}
