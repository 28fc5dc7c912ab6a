//! Findings that are not to be shown: a line each, `NAME [PROGRAM] [FUNCTION]`, with `*` for any.
//!
//! FUNCTION is the one that made the call. What is left at the end of a program has no call: FUNCTION is any
//! one on the way to where it was made. A library in place of the function stands for all its functions,
//! anywhere on the way.

use super::finding::Kind;
use super::site::Place;
use crate::calls::matches;

/// Where a finding comes from, as suppressions look at it. The nearest place comes first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin<'a> {
    /// The way to the call that shows the finding.
    pub(super) call: &'a [Place],
    /// The ways to where that was made which is left.
    pub(super) made: &'a [Place],
}

impl Origin<'_> {
    /// Whether the finding is of this function or library.
    fn is_of(self, wanted: &str) -> bool {
        let is_function = |place: &Place| place.function.as_deref().is_some_and(|name| matches(wanted, name));
        let is_library = |place: &Place| matches(wanted, &place.module);
        match names_library(wanted) {
            true => self.call.iter().chain(self.made).any(is_library),
            false => self.call.first().is_some_and(is_function) || self.made.iter().any(is_function),
        }
    }
}

/// Whether this is the name of a library, as `libX.so`, `libX.so.1` or `libX.so*`. A function such as
/// `main.solve` is none.
fn names_library(wanted: &str) -> bool {
    wanted.split_once(".so").is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(['.', '*']))
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// The kind that the rule is about. None: any.
    kind: Option<Kind>,
    program: Option<String>,
    /// The function, or the library.
    function: Option<String>,
}

/// The lines of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions {
    rules: Vec<Rule>,
}

impl Suppressions {
    /// Out of the text of the file. Empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// A text for the user that names the line, and what is allowed there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            let Some((name, rest)) = words.split_first() else { continue };
            let kind = Kind::from_name(name);
            if kind.is_none() && *name != "*" {
                let all: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
                return Err(format!(
                    "line {}: there is no finding {name:?}; there are {}",
                    number + 1,
                    all.join(", ")
                ));
            }
            if rest.len() > 2 {
                return Err(format!(
                    "line {}: wanted is NAME [PROGRAM] [FUNCTION], as in object-leaked * make_pool",
                    number + 1
                ));
            }
            let word =
                |place: usize| rest.get(place).filter(|word| **word != "*").map(|word| (*word).to_owned());
            rules.push(Rule { kind, program: word(0), function: word(1) });
        }
        Ok(Self { rules })
    }

    /// Whether a rule asks where a finding comes from.
    pub(super) fn ask_origin(&self) -> bool {
        self.rules.iter().any(|rule| rule.function.is_some())
    }

    /// Whether this finding is not to be shown.
    pub(super) fn has(&self, kind: Kind, program: &str, origin: Origin<'_>) -> bool {
        self.rules.iter().any(|rule| {
            rule.kind.is_none_or(|wanted| wanted == kind)
                && rule.program.as_deref().is_none_or(|wanted| wanted == program)
                && rule.function.as_deref().is_none_or(|wanted| origin.is_of(wanted))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_a_name_and_perhaps_a_program_and_a_function() {
        let text = "# known\nslot-reused\n\nobject-leaked rping * # as it is\nbuffer-changed * main\n";
        let rules = Suppressions::parse(text).expect("rules");
        let main = [place("main", "server")];
        let of_main = Origin { call: &main, made: &[] };
        let none = Origin::default();
        assert!(rules.has(Kind::SlotReused, "any", none));
        assert!(rules.has(Kind::ObjectLeaked, "rping", of_main));
        assert!(!rules.has(Kind::ObjectLeaked, "other", of_main));
        assert!(rules.has(Kind::BufferChanged, "x", of_main) && !rules.has(Kind::BufferChanged, "x", none));
        assert!(!rules.has(Kind::WrongState, "x", none));
        assert!(Suppressions::parse("* x").is_ok_and(|rules| rules.has(Kind::WrongState, "x", none)));
        assert!(rules.ask_origin() && !Suppressions::parse("* x").expect("a rule").ask_origin());
    }

    fn place(function: &str, module: &str) -> Place {
        Place { function: Some(function.to_owned()), module: module.to_owned(), ..Place::default() }
    }

    #[test]
    fn leaks_are_known_by_each_function_and_library_on_the_way_to_where_they_were_made() {
        let way =
            [place("grow", "libpool.so.1"), place("make_pool", "libpool.so.1"), place("main", "server")];
        let leak = Origin { call: &[], made: &way };
        let shown = |text: &str, origin| {
            !Suppressions::parse(text).expect("a rule").has(Kind::ObjectLeaked, "server", origin)
        };
        for text in ["grow", "make_pool", "make_*", "main", "libpool.so.1", "libpool.so*", "libpool*.so.1"] {
            let is_known = !text.contains("*.");
            assert_eq!(shown(&format!("object-leaked * {text}"), leak), !is_known, "{text}");
        }
        for text in ["pool", "make", "libpool.so", "server", "libother.so*"] {
            assert!(shown(&format!("object-leaked * {text}"), leak), "{text}");
        }
        let (solve, app) = ([place("main.solve", "server")], "object-leaked * main.solve");
        assert!(!shown(app, Origin { call: &[], made: &solve }), "a function");
        // A call is known by the function that made it, or by a library.
        let call = Origin { call: &way, made: &[] };
        assert!(!shown("object-leaked * grow", call) && shown("object-leaked * make_pool", call));
        assert!(!shown("object-leaked * libpool.so*", call));
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_allowed() {
        let why = Suppressions::parse("\nslots-reused\n").expect_err("no finding");
        assert!(why.starts_with("line 2:") && why.contains("slot-reused"), "{why}");
        let why = Suppressions::parse("slot-reused a b c").expect_err("too much");
        assert!(why.contains("[FUNCTION]"), "{why}");
    }
}
