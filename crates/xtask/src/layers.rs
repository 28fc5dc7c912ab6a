//! Which part of the code may know which: the table of layers in ARCHITECTURE.md, held against the paths in
//! the code.
//!
//! A room is a crate, or a module at the top of a crate that the table names by itself. A room may know rooms
//! of its own row and of the rows below. Code of tests may know everything.

mod paths;
mod table;

pub(crate) use paths::item_of_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};
use table::Table;

/// Where the table is.
const DOCUMENT: &str = "ARCHITECTURE.md";
/// What the names of our crates begin with in code.
const PREFIX: &str = "adverb_";

/// A room, as the table names it: a crate without the prefix of all of ours, or such a crate and a module of
/// it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    part: String,
    module: Option<String>,
}

impl std::fmt::Display for Room {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.module {
            Some(module) => write!(out, "{}::{module}", self.part),
            None => out.write_str(&self.part),
        }
    }
}

/// The code of `from` names something of `to`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: Room,
    to: Room,
}

/// Checks the repository at `root`. A line for each row of the table, and one for each arrow or room that is
/// wrong; and whether all is well.
///
/// # Errors
/// The table, or a file, cannot be read.
pub(crate) fn run(root: &Path) -> Result<(String, bool), String> {
    let table = table(root)?;
    let mut arrows = BTreeMap::new();
    for source in sources(root).map_err(|error| format!("crates: {error}"))? {
        let text = fs::read_to_string(root.join(&source.file))
            .map_err(|error| format!("{}: {error}", source.file.display()))?;
        let found = paths::of(&text).map_err(|error| format!("{}: {error}", source.file.display()))?;
        let from = Room { part: source.part.clone(), module: source.module.clone() };
        for path in found {
            let to = match path.part.strip_prefix(PREFIX) {
                Some(part) => Room { part: part.to_owned(), module: Some(path.module) },
                None if path.part == "crate" => Room { part: source.part.clone(), module: Some(path.module) },
                None => continue,
            };
            arrows.entry(Arrow { from: from.clone(), to }).or_insert_with(|| source.file.clone());
        }
    }
    let wrong = wrong(&table, &arrows);
    let mut text = String::new();
    for row in &table.rows {
        let _ = writeln!(
            text,
            "{:>24}  {}",
            row.name,
            row.rooms.iter().map(Room::to_string).collect::<Vec<_>>().join(" ")
        );
    }
    let _ = writeln!(text);
    for line in &wrong {
        let _ = writeln!(text, "{line}");
    }
    let verdict = if wrong.is_empty() { "ok" } else { "FAILED" };
    let _ = writeln!(text, "test layers::no_arrow_runs_up ... {verdict}");
    let failed = usize::from(!wrong.is_empty());
    let _ = writeln!(text, "\ntest result: {verdict}. {} passed; {failed} failed; 0 ignored", 1 - failed);
    Ok((text, wrong.is_empty()))
}

/// The name of the row that each file belongs to, of files that ship and have one.
///
/// # Errors
/// The table, or a file, cannot be read.
pub(crate) fn rows_of_files(root: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
    let table = table(root)?;
    let sources = sources(root).map_err(|error| format!("crates: {error}"))?.into_iter();
    let rows = sources.filter_map(|source| {
        let (_, row) = table.find(&Room { part: source.part, module: source.module })?;
        Some((source.file, table.rows[row].name.clone()))
    });
    Ok(rows.collect())
}

/// The table in the document.
fn table(root: &Path) -> Result<Table, String> {
    let document = root.join(DOCUMENT);
    let text = fs::read_to_string(&document).map_err(|error| format!("{}: {error}", document.display()))?;
    Table::parse(&text).map_err(|error| format!("{DOCUMENT}: {error}"))
}

/// What is wrong, a line each.
fn wrong(table: &Table, arrows: &BTreeMap<Arrow, PathBuf>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut unknown = BTreeSet::new();
    for (arrow, file) in arrows.iter().filter(|(arrow, _)| !table.only_lists(&arrow.from)) {
        let file = file.display();
        let (Some((from, from_row)), to) = (table.find(&arrow.from), table.find(&arrow.to)) else {
            if unknown.insert(arrow.from.clone()) {
                lines.push(format!("{file}: {} stands in no row of {DOCUMENT}", arrow.from));
            }
            continue;
        };
        let Some((to, to_row)) = to else { continue };
        if from == to || to_row >= from_row {
            continue;
        }
        lines.push(format!(
            "{file}: {from} ({}) knows {to} ({}), which is above it",
            table.rows[from_row].name, table.rows[to_row].name
        ));
    }
    for room in table.rows.iter().flat_map(|row| &row.rooms) {
        if !arrows.keys().any(|arrow| {
            [&arrow.from, &arrow.to]
                .into_iter()
                .any(|end| table.find(end).is_some_and(|(found, _)| found == room))
        }) {
            lines.push(format!("{DOCUMENT}: nothing in the code is called {room}"));
        }
    }
    lines.sort();
    lines.dedup();
    lines
}

/// A file of a crate, and the room that it belongs to.
struct Source {
    part: String,
    module: Option<String>,
    file: PathBuf,
}

/// All files of the crates but those of tests. `crates/xtask` is no part of what the table shows.
fn sources(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for part in fs::read_dir(root.join("crates"))? {
        let part = part?.file_name().to_string_lossy().into_owned();
        let top = Path::new("crates").join(&part).join("src");
        if part == "xtask" || !root.join(&top).is_dir() {
            continue;
        }
        let mut files = Vec::new();
        walk(root, &top, &mut files)?;
        let mut tests = BTreeSet::new();
        for file in &files {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let folder = if ["mod", "lib", "main"].contains(&stem) {
                file.with_file_name("")
            } else {
                file.with_extension("")
            };
            let modules = paths::modules_of_tests(&fs::read_to_string(root.join(file))?);
            tests.extend(modules.into_iter().map(|module| folder.join(module)));
        }
        for file in files {
            // A module of tests may have files of its own below it.
            if tests.iter().any(|test| file == test.with_extension("rs") || file.starts_with(test)) {
                continue;
            }
            let inner = file.strip_prefix(&top).unwrap_or(&file);
            let first =
                inner.components().next().map(|first| first.as_os_str().to_string_lossy().into_owned());
            let module = first.map(|first| first.trim_end_matches(".rs").to_owned());
            let module = module.filter(|module| module != "lib" && module != "main");
            sources.push(Source { part: part.clone(), module, file });
        }
    }
    Ok(sources)
}

/// The Rust files below `folder`, in the order of their names.
pub(crate) fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(root.join(folder))?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            walk(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
<!-- layers -->
| layer | rooms |
|---|---|
| top | `front` |
| middle | `core::{cq, qp}` |
| bottom | `core::lock` `wire` |

<!-- /layers -->
";

    fn judge(arrows: &[(&str, &str)]) -> Vec<String> {
        let room = |name: &str| {
            let (part, module) = name.split_once("::").unzip();
            Room { part: part.unwrap_or(name).to_owned(), module: module.map(str::to_owned) }
        };
        // Every room is there.
        let all = [
            ("front::a", "core::qp::b"),
            ("core::qp", "core::cq"),
            ("core::qp", "core::lock"),
            ("core::qp", "wire::c"),
        ];
        let arrows = all
            .iter()
            .chain(arrows)
            .map(|(from, to)| (Arrow { from: room(from), to: room(to) }, PathBuf::from("file.rs")));
        wrong(&Table::parse(TABLE).expect("a table"), &arrows.collect())
    }

    #[test]
    fn arrows_run_down_or_along() {
        assert_eq!(judge(&[]), [""; 0]);
        assert_eq!(judge(&[("core::cq", "core::qp")]), [""; 0]);
        assert_eq!(
            judge(&[("wire::a", "core::qp")]),
            ["file.rs: wire (bottom) knows core::qp (middle), which is above it"]
        );
        assert_eq!(
            judge(&[("core::cq", "front::x")]),
            ["file.rs: core::cq (middle) knows front (top), which is above it"]
        );
    }

    #[test]
    fn every_room_has_its_row() {
        assert_eq!(
            judge(&[("core::new", "core::lock")]),
            ["file.rs: core::new stands in no row of ARCHITECTURE.md"]
        );
        assert_eq!(judge(&[("other", "wire::x")]), ["file.rs: other stands in no row of ARCHITECTURE.md"]);
    }
}
