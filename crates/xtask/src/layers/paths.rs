//! The paths in a Rust file that begin with a crate: `crate::qp::Queues`, `adverb_core::{cq, qp}`. Inside
//! macros, too.

use super::PREFIX;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// The beginning of a path: a crate, as the code calls it, and the name behind it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Start {
    pub(super) part: String,
    pub(super) module: String,
}

/// The beginnings of the paths in a Rust file, but for items that `#[cfg(test)]` or the like leaves out of
/// what ships.
///
/// # Errors
/// The text is no Rust.
pub(super) fn of(text: &str) -> Result<BTreeSet<Start>, String> {
    let tokens = text.parse::<TokenStream>().map_err(|error| error.to_string())?;
    let mut found = BTreeSet::new();
    visit(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    Ok(found)
}

fn visit(tokens: &[TokenTree], found: &mut BTreeSet<Start>) {
    let mut at = 0;
    while at < tokens.len() {
        if let Some(length) = item_of_tests(&tokens[at..]) {
            at += length;
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) => visit(&group.stream().into_iter().collect::<Vec<_>>(), found),
            TokenTree::Ident(part) if is_crate(&part.to_string()) && is_sep(tokens, at + 1) => {
                for module in behind(tokens.get(at + 3)) {
                    found.insert(Start { part: part.to_string(), module });
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether a name may be that of a crate of ours.
fn is_crate(name: &str) -> bool {
    name == "crate" || name.starts_with(PREFIX)
}

/// Whether `::` stands there.
fn is_sep(tokens: &[TokenTree], at: usize) -> bool {
    [at, at + 1]
        .iter()
        .all(|&at| matches!(tokens.get(at), Some(TokenTree::Punct(sign)) if sign.as_char() == ':'))
}

/// The names behind `crate::`: one, or the first of each path in braces.
fn behind(token: Option<&TokenTree>) -> Vec<String> {
    match token {
        Some(TokenTree::Ident(name)) => vec![name.to_string()],
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            let paths = inner.split(|token| matches!(token, TokenTree::Punct(sign) if sign.as_char() == ','));
            paths.filter_map(|path| path.first()).map(ToString::to_string).collect()
        }
        _ => Vec::new(),
    }
}

/// The modules with files of their own that only tests and models have.
pub(super) fn modules_of_tests(text: &str) -> Vec<String> {
    let Ok(tokens) = text.parse::<TokenStream>() else { return Vec::new() };
    let tokens: Vec<_> = tokens.into_iter().collect();
    let items = (0..tokens.len())
        .filter_map(|at| item_of_tests(&tokens[at..]).map(|length| &tokens[at..at + length]));
    let names = items.filter_map(|item| match item {
        [.., TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(_)] if word == "mod" => {
            Some(name.to_string())
        }
        _ => None,
    });
    names.collect()
}

/// The length of an item that has an attribute by which only tests and models have it.
pub(crate) fn item_of_tests(tokens: &[TokenTree]) -> Option<usize> {
    let [TokenTree::Punct(sign), TokenTree::Group(attribute), rest @ ..] = tokens else { return None };
    if sign.as_char() != '#' || !is_for_tests(&attribute.stream().to_string()) {
        return None;
    }
    // Up to its body, or to the end of a line without one.
    let end = rest.iter().position(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(sign) => sign.as_char() == ';',
        _ => false,
    });
    Some(2 + end.map_or(rest.len(), |end| end + 1))
}

fn is_for_tests(attribute: &str) -> bool {
    let words: Vec<&str> = attribute
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words.first() == Some(&"cfg")
        && !words.contains(&"not")
        && words.iter().any(|word| ["test", "loom", "fuzzing", "conformance"].contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        of(text).expect("Rust").into_iter().map(|start| format!("{} {}", start.part, start.module)).collect()
    }

    #[test]
    fn paths_are_found_wherever_they_stand() {
        let text = "use crate::{error::Error, lock}; use adverb_core::qp::Queues; fn f() { println!(\"{}\", crate::log::LEVEL); g::<crate::cq::Queue>() }";
        assert_eq!(found(text), ["adverb_core qp", "crate cq", "crate error", "crate lock", "crate log"]);
    }

    #[test]
    fn comments_and_texts_are_no_paths() {
        assert_eq!(found("/// See [`crate::qp`].\nconst A: &str = \"crate::cq\"; // crate::lock\n"), [""; 0]);
    }

    #[test]
    fn files_of_tests_are_known_by_their_modules() {
        let text = "mod kept; #[cfg(any(test, fuzzing))] pub(crate) mod effect; #[cfg(test)] mod tests { mod inner; } mod more;";
        assert_eq!(modules_of_tests(text), ["effect"]);
    }

    #[test]
    fn paths_in_code_for_tests_alone_do_not_count() {
        let text = "#[cfg(test)] mod tests { use crate::null; } #[cfg(any(test, feature = \"conformance\"))] fn f() -> crate::a::B { crate::c() } \
                    #[cfg(test)] use crate::d; #[cfg(not(test))] use crate::kept;";
        assert_eq!(found(text), ["crate kept"]);
    }
}
