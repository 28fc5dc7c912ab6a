//! Findings that are not to be shown: a line each, `NAME [PROGRAM] [FUNCTION]`, with `*` for any.

use super::finding::Kind;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// The kind that the rule is about. None: any.
    kind: Option<Kind>,
    program: Option<String>,
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
                return Err(format!("line {}: wanted is NAME [PROGRAM] [FUNCTION]", number + 1));
            }
            let word =
                |place: usize| rest.get(place).filter(|word| **word != "*").map(|word| (*word).to_owned());
            rules.push(Rule { kind, program: word(0), function: word(1) });
        }
        Ok(Self { rules })
    }

    /// Whether this finding is not to be shown.
    pub(super) fn has(&self, kind: Kind, program: &str, function: Option<&str>) -> bool {
        self.rules.iter().any(|rule| {
            rule.kind.is_none_or(|wanted| wanted == kind)
                && rule.program.as_deref().is_none_or(|wanted| wanted == program)
                && rule.function.as_deref().is_none_or(|wanted| Some(wanted) == function)
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
        assert!(rules.has(Kind::SlotReused, "any", None));
        assert!(rules.has(Kind::ObjectLeaked, "rping", Some("main")));
        assert!(!rules.has(Kind::ObjectLeaked, "other", Some("main")));
        assert!(
            rules.has(Kind::BufferChanged, "x", Some("main")) && !rules.has(Kind::BufferChanged, "x", None)
        );
        assert!(!rules.has(Kind::WrongState, "x", None));
        assert!(Suppressions::parse("* x").is_ok_and(|rules| rules.has(Kind::WrongState, "x", None)));
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_allowed() {
        let why = Suppressions::parse("\nslots-reused\n").expect_err("no finding");
        assert!(why.starts_with("line 2:") && why.contains("slot-reused"), "{why}");
        let why = Suppressions::parse("slot-reused a b c").expect_err("too much");
        assert!(why.contains("[FUNCTION]"), "{why}");
    }
}
