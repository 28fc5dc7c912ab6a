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
    if ids(text).next().is_none() {
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

/// The IDs in a text, such as `RFC5044-7.1.2-8` or `IB-RC-REQ-12`.
pub(crate) fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.')));
    words.filter_map(|word| id_of_rfc(word).or_else(|| id_of_subject(word)))
}

/// The ID with which `word` begins: `RFC`, digits, a section of digits, capitals and dots, a running number.
fn id_of_rfc(word: &str) -> Option<&str> {
    let span = |from: usize, ok: fn(&char) -> bool| -> Option<usize> {
        let length = word[from..].chars().take_while(ok).count();
        (length > 0).then_some(from + length)
    };
    let dash = |at: usize| word[at..].starts_with('-').then_some(at + 1);
    let number = span(word.strip_prefix("RFC").map(|rest| word.len() - rest.len())?, char::is_ascii_digit)?;
    let section = span(dash(number)?, |c| c.is_ascii_digit() || c.is_ascii_uppercase() || *c == '.')?;
    let end = span(dash(section)?, char::is_ascii_digit)?;
    Some(&word[..end])
}

/// The ID with which `word` begins: words of capitals of which the first is `IB`, `ROCE` or `PRACTICE`, a
/// running number.
fn id_of_subject(word: &str) -> Option<&str> {
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let prefix = word[..digits].strip_suffix('-')?;
    let end = word[digits..].find(|c: char| !c.is_ascii_digit()).map_or(word.len(), |length| digits + length);
    is_prefix(prefix).then_some(&word[..end])
}

/// Whether IDs of a subject may begin so.
pub(crate) fn is_prefix(text: &str) -> bool {
    let mut words = text.split('-');
    matches!(words.next(), Some("IB" | "ROCE" | "PRACTICE"))
        && words.all(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Whether everything in the file is test code, judged by its path.
pub(crate) fn is_test_path(file: &Path) -> bool {
    let mut folders = file.components().map(|c| c.as_os_str());
    folders.next().is_some_and(|top| top == "fuzz")
        || file.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "conformance")
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
