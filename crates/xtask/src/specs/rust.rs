//! Which lines of a Rust file are test code: the bodies of `#[cfg(test)] mod name { … }`.

use std::ops::Range;
use std::path::{Path, PathBuf};

const ATTRIBUTE: &str = "#[cfg(test)]";

/// The files that `#[cfg(test)] mod name;` in `file` stands for.
pub(crate) fn test_files(file: &Path, text: &str) -> Vec<PathBuf> {
    if file.extension().is_none_or(|e| e != "rs") {
        return Vec::new();
    }
    let code = blank(text);
    let folder = file.parent().unwrap_or(Path::new(""));
    let folder = match file.file_stem().and_then(|s| s.to_str()) {
        Some("mod" | "lib" | "main") | None => folder.to_owned(),
        Some(stem) => folder.join(stem),
    };
    let outlined =
        modules(&code).filter_map(|(_, name, after)| (code[after..].starts_with(';')).then_some(name));
    outlined.flat_map(|name| [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")]).collect()
}

/// The lines (from 0) of the inline test modules of a Rust file.
pub(crate) fn test_lines(text: &str) -> Vec<Range<usize>> {
    let code = blank(text);
    let line = |at: usize| code[..at].matches('\n').count();
    let inline = modules(&code).filter(|&(_, _, after)| code[after..].starts_with('{'));
    inline.map(|(start, _, after)| line(start)..line(after + body(&code[after..])) + 1).collect()
}

/// The test modules in blanked code: where the attribute starts, the name, and where `;` or `{` stands.
fn modules(code: &str) -> impl Iterator<Item = (usize, &str, usize)> {
    code.match_indices(ATTRIBUTE).filter_map(|(start, _)| {
        let mut at = start + ATTRIBUTE.len();
        at += spaces(&code[at..]);
        while code[at..].starts_with("#[") {
            at += code[at..].find(']')? + 1;
            at += spaces(&code[at..]);
        }
        let item = code[at..].find(['{', ';'])?;
        let name = code[at..at + item].trim().rsplit_once("mod ").map(|(_, name)| name)?;
        let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        plain.then_some((start, name, at + item))
    })
}

fn spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// The length of the block with which `code` begins, braces included.
fn body(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// The text with comments, strings and character literals turned into spaces, byte for byte, lines kept.
fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let literal = literal(rest, code.chars().next_back());
        let length = literal.unwrap_or(c.len_utf8());
        if literal.is_some() {
            code.extend(rest[..length].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
        } else {
            code.push(c);
        }
        rest = &rest[length..];
    }
    code
}

/// The length of the comment, string or character literal with which `rest` begins, if it does.
fn literal(rest: &str, before: Option<char>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !in_word || before == Some('b')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = 1 + hashes + 1;
            return Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()));
        }
    }
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    // A quote begins a character if it closes after one, or after an escape; otherwise it begins a lifetime.
    let mut inner = rest.strip_prefix('\'')?.chars();
    match inner.next()? {
        '\\' => Some(quoted(rest, '\'')),
        c if inner.next() == Some('\'') => Some(2 + c.len_utf8()),
        _ => None,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}
