//! Finds the citations: IDs of requirements in `crates/`, `tests/` and `fuzz/`.

use super::rust;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

const FOLDERS: [&str; 3] = ["crates", "tests", "fuzz"];
/// This crate, whose tests name IDs that mean nothing.
const SELF: &str = "crates/xtask";

/// An ID in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Citation {
    pub(crate) id: String,
    pub(crate) file: String,
    pub(crate) line: usize,
    /// Whether a test names it, or code.
    pub(crate) in_test: bool,
}

/// All citations of the repository at `root`, in the order of files and lines.
pub(crate) fn scan(root: &Path) -> io::Result<Vec<Citation>> {
    let mut files = Vec::new();
    for folder in FOLDERS.iter().filter(|f| root.join(f).is_dir()) {
        walk(root, Path::new(folder), &mut files)?;
    }
    files.sort();
    let texts = files.iter().map(|f| read_text(&root.join(f))).collect::<io::Result<Vec<_>>>()?;
    let test_files: BTreeSet<PathBuf> =
        files.iter().zip(&texts).flat_map(|(file, text)| rust::test_files(file, text)).collect();
    let mut citations = Vec::new();
    for (file, text) in files.iter().zip(&texts) {
        let whole = is_test_path(file) || test_files.contains(file);
        cite(&file.to_string_lossy(), text, whole, &mut citations);
    }
    Ok(citations)
}

/// Adds the citations of one file, of which every one counts as a test's if `whole`.
pub(crate) fn cite(file: &str, text: &str, whole: bool, citations: &mut Vec<Citation>) {
    if !text.contains("RFC") {
        return;
    }
    let tests = if file.ends_with(".rs") { rust::test_lines(text) } else { Vec::new() };
    for (index, line) in text.lines().enumerate() {
        let in_test = whole || tests.iter().any(|range| range.contains(&index));
        citations.extend(ids(line).map(|id| Citation {
            id: id.to_owned(),
            file: file.to_owned(),
            line: index + 1,
            in_test,
        }));
    }
}

/// The IDs in a line, such as `RFC5044-7.1.2-8`.
pub(crate) fn ids(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("RFC").filter_map(|(start, _)| id_at(&line[start..]))
}

/// The ID with which `text` begins: `RFC`, digits, a section of digits, capitals and dots, a running number.
fn id_at(text: &str) -> Option<&str> {
    let span = |from: usize, ok: fn(&char) -> bool| -> Option<usize> {
        let length = text[from..].chars().take_while(ok).map(char::len_utf8).sum::<usize>();
        (length > 0).then_some(from + length)
    };
    let dash = |at: usize| text[at..].starts_with('-').then_some(at + 1);
    let number = span("RFC".len(), char::is_ascii_digit)?;
    let section = span(dash(number)?, |c| c.is_ascii_digit() || c.is_ascii_uppercase() || *c == '.')?;
    let end = span(dash(section)?, char::is_ascii_digit)?;
    Some(&text[..end])
}

/// Whether everything in the file is test code, judged by its path.
pub(crate) fn is_test_path(file: &Path) -> bool {
    let mut folders = file.components().map(|c| c.as_os_str());
    folders.next().is_some_and(|top| top == "fuzz")
        || file.components().any(|c| c.as_os_str() == "tests")
        || file.file_stem().is_some_and(|stem| stem == "tests")
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if entry.file_name() != "target" && path != Path::new(SELF) {
                walk(root, &path, files)?;
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// The file's text; empty if it is not text.
fn read_text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8(fs::read(path)?).unwrap_or_default())
}
