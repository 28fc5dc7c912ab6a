//! `adverb bench` as a user starts it. Times and rates are not judged here: these machines are busy.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn adverb() -> Command {
    Command::new(env!("CARGO_BIN_EXE_adverb"))
}

/// Measures roughly; the rows of a device, all of which hold a number, and those that are counts meet their
/// targets.
fn targets(device: &str) -> Vec<serde_json::Value> {
    let arguments = ["bench", "--quick", "--rounds", "1", "--json", "--device", device];
    let output = adverb().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sections = document["sections"].as_array().unwrap();
    let section = sections.iter().find(|section| section["name"] == device).expect("the device's section");
    assert_eq!(section["layout"], "list");
    if device == "roce0" {
        within_this_host(&document);
    }
    let rows = section["results"].as_array().unwrap();
    for row in rows {
        let median = row["median"].as_f64().expect("a number");
        match row["unit"].as_str().expect("a unit") {
            // However busy the machine: what is counted is what it is.
            "count" => assert_eq!(row["met"], true, "{row}"),
            // Resident memory is also that of threads that ran at the same time, by chance.
            "bytes" => {
                let most = row["target"]["at_most"].as_f64().expect("a target");
                assert!(median < 2.0 * most, "{row}");
            }
            _ => assert!(median.is_finite() && median > 0.0, "{row}"),
        }
    }
    rows.clone()
}

/// The first section is that of the host itself. The benchmark tries several times to have it.
fn within_this_host(document: &Value) {
    let section = &document["sections"][0];
    assert_eq!(section["name"], "Within this host:", "{}", document["missing"]);
    assert_eq!(document["missing"], serde_json::json!([]));
    let rows = section["results"].as_array().unwrap();
    let measured: Vec<_> = rows.iter().filter(|row| row["role"] == "measured").collect();
    assert_eq!(measured.len(), 7);
    assert!(measured.iter().all(|row| row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0)), "{rows:?}");
}

#[track_caller]
fn have_targets(rows: &[serde_json::Value], names: &[&str]) {
    let with_target: Vec<&str> =
        rows.iter().filter(|row| !row["met"].is_null()).map(|row| row["name"].as_str().unwrap()).collect();
    for name in names {
        assert!(with_target.contains(name), "{name} has no target in {with_target:?}");
    }
}

#[test]
fn the_benchmark_measures_every_target_of_iwarp() {
    let names = [
        "send",
        "write stream",
        "read stream",
        "write stream, CRC",
        "read stream, CRC",
        "read, target sleeping",
        "write stream, target sleeping",
        "read stream, target sleeping",
        "allocations per message",
        "memory per idle connection",
    ];
    have_targets(&targets("iwarp0"), &names);
}

#[test]
fn the_benchmark_measures_every_target_of_roce() {
    // Loss is measured where the system lets an ordinary user make network namespaces.
    let names = [
        "send",
        "write to one who spins on memory",
        "write stream",
        "writes of 64 processes together",
        "allocations per message",
        "connections per second",
        "memory per connected queue pair, 16 + 16 requests",
    ];
    have_targets(&targets("roce0"), &names);
}

/// A folder of its own that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adverb-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_sweep_measures_every_operation_of_every_path_and_writes_all_formats() {
    let folder = Folder::new("sweep");
    let (csv, html) = (folder.0.join("all.csv"), folder.0.join("all.html"));
    let arguments = ["bench", "--quick", "--rounds", "1", "--sizes", "8,4k,1m", "--json"];
    let output = adverb().args(arguments).arg("--csv").arg(&csv).arg("--report").arg(&html).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("round 1 of 1"), "progress is said in lines where there is no terminal: {said}");

    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((document["rounds"].as_u64(), document["quick"].as_bool()), (Some(1), Some(true)));
    assert!(document["machine"]["processors"].as_u64() >= Some(1));
    let sections = document["sections"].as_array().unwrap();
    for operation in ["Send", "Write", "Read", "Fetch and add"] {
        for quantity in ["latency", "throughput"] {
            let name = format!("{operation}: {quantity}");
            let section = sections.iter().find(|section| section["name"] == name);
            let section = section.unwrap_or_else(|| panic!("no section {name:?}"));
            assert_eq!(section["layout"], "curves");
            let sizes: &[u64] = if operation == "Fetch and add" { &[8] } else { &[8, 4096, 1 << 20] };
            for line in ["iwarp0 over TCP", "roce0 over UDP", "raw TCP", "memory alone"] {
                for size in sizes {
                    check_point(section, line, *size);
                }
            }
        }
    }

    let rows: usize = sections.iter().map(|section| section["results"].as_array().unwrap().len()).sum();
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("section,setting,name,size,unit,role,median,"));
    assert_eq!(csv.lines().count(), rows + 1);
    let html = std::fs::read_to_string(html).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    for part in ["<svg", "prefers-color-scheme", "iwarp0 over TCP", "Percentiles"] {
        assert!(html.contains(part), "{part:?} is missing");
    }
}

#[test]
fn a_measurement_that_fails_is_tried_again_and_named_first() {
    let folder = Folder::new("missing");
    let html = folder.0.join("all.html");
    let mut command = adverb();
    command.args([
        "bench", "--quick", "--rounds", "1", "--sizes", "8", "--device", "roce0", "--json", "--report",
    ]);
    let output = command.arg(&html).env("ADVERB_WITHOUT", "memfd").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected =
        "Not measured, though tried 5 times: roce0 in shared memory. The two processes shared no memory: ";
    assert!(document["missing"][0].as_str().is_some_and(|text| text.starts_with(expected)), "{document}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.find(expected).unwrap() < page.find("class=\"cards\"").unwrap(), "it stands on top");
}

#[track_caller]
fn check_point(section: &Value, line: &str, size: u64) {
    let rows = section["results"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == line && row["size"] == size);
    let row = row.unwrap_or_else(|| panic!("no {line} of {size} bytes in {}", section["name"]));
    assert!(row["median"].as_f64().is_some_and(|median| median > 0.0), "{row}");
    let measured = row["role"] == "measured";
    assert_eq!(measured, row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
    match row["unit"].as_str() {
        Some("nanoseconds") => {
            assert!(row["percentiles"]["p99"].as_u64() >= row["percentiles"]["p50"].as_u64())
        }
        Some("bytes_per_second") => assert!(row["per_second"].as_f64().is_some_and(|rate| rate > 0.0)),
        other => panic!("{other:?} is no unit of a sweep"),
    }
}

#[test]
fn a_comparison_without_its_programs_says_which_packages_have_them() {
    let empty = Folder::new("nothing");
    let output = adverb().args(["bench", "--compare"]).env("PATH", &empty.0).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("perftest") && said.contains("ucx-utils"), "{said}");
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in
        [&["--sizes", "7"][..], &["--sizes", "8m"], &["--rounds", "0"], &["--device", "nothing0"]]
    {
        let output = adverb().arg("bench").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}
