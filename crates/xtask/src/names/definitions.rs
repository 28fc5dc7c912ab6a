//! The types and constants that a Rust file defines, those inside functions and macros, too.

use crate::layers::item_of_tests;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A struct, an enum, a union, a trait, or a name for another type.
    Type,
    /// A constant, or a static.
    Constant,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// `pub` or `pub(crate)`, and no part of a test.
    pub(super) is_public: bool,
}

/// The definitions in a Rust file.
///
/// # Errors
/// The text is no Rust.
pub(super) fn of(text: &str) -> Result<Vec<Definition>, String> {
    let tokens = text.parse::<TokenStream>().map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    visit(tokens, false, &mut found);
    Ok(found)
}

fn visit(tokens: TokenStream, is_test: bool, found: &mut Vec<Definition>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    // Up to here, what stands there is only for tests.
    let mut tests_until = 0;
    for at in 0..tokens.len() {
        if let Some(length) = item_of_tests(&tokens[at..]) {
            tests_until = tests_until.max(at + length);
        }
        let is_test = is_test || at < tests_until;
        match &tokens[at] {
            TokenTree::Group(group) => visit(group.stream(), is_test, found),
            TokenTree::Ident(word) => {
                let kind = match word.to_string().as_str() {
                    "struct" | "enum" | "union" | "trait" | "type" => Kind::Type,
                    "const" | "static" => Kind::Constant,
                    _ => continue,
                };
                let mut behind = tokens[at + 1..].iter();
                let name = behind.find_map(|token| match token {
                    TokenTree::Ident(name) if *name == "mut" => None,
                    token => Some(token),
                });
                if let Some(TokenTree::Ident(name)) = name {
                    let name = name.to_string();
                    found.push(Definition { kind, name, is_public: !is_test && is_public(&tokens[..at]) });
                }
            }
            _ => {}
        }
    }
}

/// Whether `pub` or `pub(crate)` stands in front, perhaps with `unsafe` between.
fn is_public(before: &[TokenTree]) -> bool {
    let before = match before {
        [before @ .., TokenTree::Ident(word)] if *word == "unsafe" => before,
        _ => before,
    };
    match before {
        [.., TokenTree::Ident(word)] => *word == "pub",
        [.., TokenTree::Ident(word), TokenTree::Group(scope)] => {
            *word == "pub"
                && scope.delimiter() == Delimiter::Parenthesis
                && scope.stream().to_string() == "crate"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let found = of(text).expect("Rust").into_iter();
        found
            .map(|one| format!("{:?} {}{}", one.kind, one.name, if one.is_public { "+" } else { "" }))
            .collect()
    }

    #[test]
    fn definitions_are_found_wherever_they_stand() {
        let text = "pub struct A<T>(T); fn f() { enum B {} const C: u8 = 1; } mod m { pub(crate) unsafe trait D {} \
                    macro_rules! n { () => { pub type E = u8; } } } static mut F: u8 = 2;";
        assert_eq!(found(text), ["Type A+", "Type B", "Constant C", "Type D+", "Type E+", "Constant F"]);
    }

    #[test]
    fn private_ones_and_those_of_tests_are_not_public() {
        let text = "pub(super) struct A; #[cfg(test)] mod tests { pub struct B; } #[cfg(test)] #[derive(Debug)] pub enum C {} pub union D { d: u8 }";
        assert_eq!(found(text), ["Type A", "Type B", "Type C", "Type D+"]);
    }

    #[test]
    fn comments_and_texts_define_nothing() {
        assert_eq!(found("/// struct A; const B\nconst C: &str = \"struct D\";"), ["Constant C"]);
    }
}
