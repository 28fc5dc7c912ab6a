//! Faults in a file of TOML: the same words as on the command line, one fault in a table or in a list.

use adverb_watch::fault::check_rule;
use std::fmt::Write as _;
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// How names of such files end.
pub(super) const ENDING: &str = ".toml";

/// A file with each form of a rule, for a person.
pub(super) const EXAMPLE: &str = "\
seed = 7
rules = [\"ibv_reg_mr:ENOMEM@3\"]

[[fault]]
rule = \"wire:loss\"
opcode = \"SEND\"
when = \"%5\"
";

/// What a run wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultPlan {
    /// The rules, with commas between them.
    pub(super) rules: String,
    pub(super) seed: Option<u64>,
}

/// What is wrong, and behind how many bytes of the file.
struct Wrong {
    at: usize,
    why: String,
}

fn wrong<T>(at: usize, why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at, why: why.into() })
}

/// Says what is wrong, and shows a file that is right.
fn misshapen<T>(at: usize, why: impl AsRef<str>) -> Result<T, Wrong> {
    let mut why = format!("{}; a file of faults is as this one:\n", why.as_ref());
    for line in EXAMPLE.lines() {
        let _ = write!(why, "\n    {line}");
    }
    wrong(at, why.replace("\n    \n", "\n\n"))
}

/// Keys of the file.
const OF_FILE: [&str; 3] = ["seed", "rules", "fault"];

/// Keys of a fault with texts that work. Those between the first and the last one are options of its rule, in
/// the order in which they stand in one.
const OF_FAULT: [(&str, &str); 8] = [
    ("rule", "\"wire:loss\""),
    ("opcode", "\"SEND\""),
    ("direction", "\"out\""),
    ("peer", "\"10.0.0.2\""),
    ("jitter", "\"2ms\""),
    ("qp", "2, or qp = \"0x1a2b\""),
    ("device", "\"roce0\""),
    ("when", "\"%5\", or when = \"@3\""),
];

/// A word for the kind of a value, for a person.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The number, if it is one from 0 on.
fn number(value: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(value.as_str(), value.radix()).ok()
}

/// What stands in a file, before its rules are looked at.
struct FileParts {
    /// Each rule, behind how many bytes of the file it stands.
    rules: Vec<(usize, String)>,
    seed: Option<u64>,
}

/// The parts of a file.
fn read_table(file: &DeTable<'_>) -> Result<FileParts, Wrong> {
    for key in file.keys() {
        let name = key.get_ref().as_ref();
        if OF_FAULT.iter().any(|(known, _)| *known == name) {
            return misshapen(
                key.span().start,
                format!("{name} stands in a table of its fault, behind a line [[fault]]"),
            );
        }
        if !OF_FILE.contains(&name) {
            return misshapen(
                key.span().start,
                format!("{name:?} is no key of a file of faults; there are {}", OF_FILE.join(", ")),
            );
        }
    }
    let seed = match file.get("seed") {
        None => None,
        Some(value) => match value.get_ref().as_integer().and_then(number) {
            Some(seed) => Some(seed),
            None => {
                return wrong(
                    value.span().start,
                    format!("seed: wanted is a number from 0 to {}, as in seed = 7", u64::MAX),
                );
            }
        },
    };
    let mut rules = Vec::new();
    if let Some(list) = file.get("rules") {
        let DeValue::Array(all) = list.get_ref() else { return wrong_list(list) };
        for value in all.iter() {
            let DeValue::String(rule) = value.get_ref() else { return wrong_list(value) };
            rules.push((value.span().start, rule.to_string()));
        }
    }
    if let Some(list) = file.get("fault") {
        let DeValue::Array(all) = list.get_ref() else { return wrong_tables(list) };
        for value in all.iter() {
            let DeValue::Table(fault) = value.get_ref() else { return wrong_tables(value) };
            rules.push((value.span().start, rule_of(value.span().start, fault)?));
        }
    }
    Ok(FileParts { rules, seed })
}

fn wrong_list<T>(found: &Spanned<DeValue<'_>>) -> Result<T, Wrong> {
    wrong(
        found.span().start,
        format!(
            "rules: {} stands here; wanted is a list of texts, as in rules = [\"wire:loss%5\", \"ibv_reg_mr:ENOMEM@3\"]",
            kind(found.get_ref())
        ),
    )
}

fn wrong_tables<T>(found: &Spanned<DeValue<'_>>) -> Result<T, Wrong> {
    misshapen(
        found.span().start,
        format!(
            "fault: {} stands here; wanted are tables, each behind a line [[fault]]",
            kind(found.get_ref())
        ),
    )
}

/// The fault of a table, as a rule of the command line.
fn rule_of(at: usize, fault: &DeTable<'_>) -> Result<String, Wrong> {
    for key in fault.keys() {
        let name = key.get_ref().as_ref();
        if OF_FILE.contains(&name) {
            return misshapen(key.span().start, format!("{name} stands before all tables [[fault]]"));
        }
        if !OF_FAULT.iter().any(|(known, _)| *known == name) {
            let all: Vec<_> = OF_FAULT.iter().map(|(known, _)| *known).collect();
            return misshapen(
                key.span().start,
                format!("{name:?} is no key of a fault; there are {}", all.join(", ")),
            );
        }
    }
    let mut text = String::new();
    for (name, example) in OF_FAULT {
        let Some(found) = fault.get(name) else {
            if name == "rule" {
                return misshapen(at, "this fault has no rule, which says what fails");
            }
            continue;
        };
        let value = match found.get_ref() {
            DeValue::String(value) => value.to_string(),
            DeValue::Integer(value) if name == "qp" => {
                number(value).map_or_else(|| value.to_string(), |nth| nth.to_string())
            }
            other => {
                return wrong(
                    found.span().start,
                    format!(
                        "{name}: {} stands here; wanted is a text, as in {name} = {example}",
                        kind(other)
                    ),
                );
            }
        };
        let _ = match name {
            "rule" => write!(text, "{value}"),
            "when" if !value.starts_with(['@', '%']) => {
                return wrong(
                    found.span().start,
                    format!(
                        "when: {value:?} begins with neither @ nor %; wanted is a text, as in when = {example}"
                    ),
                );
            }
            "when" => write!(text, "{value}"),
            _ => write!(text, ":{name}={value}"),
        };
    }
    Ok(text)
}

/// Out of a file.
///
/// # Errors
/// The line, and what is wrong there.
pub(super) fn read(name: &str) -> Result<FaultPlan, String> {
    const MOST: u64 = 1 << 20;
    let text = match std::fs::metadata(name) {
        Ok(status) if status.len() > MOST => return Err(format!("{name}: a file of faults has up to 1 MiB")),
        _ => std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?,
    };
    parse(&text).map_err(|(line, why)| format!("{name}:{line}: {why}"))
}

fn parse(text: &str) -> Result<FaultPlan, (usize, String)> {
    let line =
        |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    read_text(text).map_err(|wrong| (line(wrong.at), wrong.why))
}

fn read_text(text: &str) -> Result<FaultPlan, Wrong> {
    let file = match DeTable::parse(text) {
        Ok(file) => file,
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            return misshapen(at, format!("this is no TOML: {}", error.message()));
        }
    };
    let found = read_table(file.get_ref())?;
    let mut rules = Vec::new();
    for (at, rule) in found.rules {
        let checked = match rule.contains(',') {
            true => Err("a comma stands in no rule: each rule has a place of its own".to_owned()),
            false => check_rule(&rule),
        };
        checked.or_else(|why| wrong(at, format!("{rule}: {why}")))?;
        rules.push(rule);
    }
    if rules.is_empty() {
        return misshapen(0, "no fault is there");
    }
    Ok(FaultPlan { rules: rules.join(","), seed: found.seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_that_users_are_shown_work() {
        let rules = "ibv_reg_mr:ENOMEM@3,wire:loss:opcode=SEND%5";
        assert_eq!(parse(EXAMPLE), Ok(FaultPlan { rules: rules.to_owned(), seed: Some(7) }));
        for (name, example) in OF_FAULT.iter().filter(|(name, _)| *name != "rule") {
            for (place, value) in example.split(&format!(", or {name} = ")).enumerate() {
                let rule = if ["qp", "jitter"].contains(name) { "completion:delay=5ms" } else { "wire:loss" };
                let text = format!("[[fault]]\nrule = \"{rule}\"\n{name} = {value}\n");
                assert!(parse(&text).is_ok(), "{place}: {text}");
            }
        }
    }

    #[test]
    fn a_file_says_the_same_as_the_command_line() {
        let text = r#"
            seed = 7
            rules = ["ibv_reg_mr:ENOMEM@3"]

            [[fault]]
            rule = "wire:delay=5ms"
            jitter = "2ms"
            direction = "out"
            peer = "fd00::2"
            opcode = "SEND"
            when = "@2s..5s%10"

            [[fault]]
            rule = "completion:reorder"
            qp = 2
            device = "roce0"

            [[fault]]
            rule = "ibv_post_send:EAGAIN"
            qp = "0x1a"

            [[fault]]
            rule = "peer:kill@100posts"
        "#;
        let rules = "ibv_reg_mr:ENOMEM@3,wire:delay=5ms:opcode=SEND:direction=out:peer=fd00::2:jitter=2ms@2s..5s%10,completion:reorder:qp=2:device=roce0,ibv_post_send:EAGAIN:qp=0x1a,peer:kill@100posts";
        assert_eq!(parse(text), Ok(FaultPlan { rules: rules.to_owned(), seed: Some(7) }));
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line_and_the_allowed_words() {
        for (text, line, why) in [
            ("seed = 1", 1, "[[fault]]"),
            ("", 1, "no fault is there; a file of faults is as this one:"),
            ("\n\n[[fault]]\nrule = \"wire:lose\"\n", 3, "partition"),
            (
                "[[fault]]\nrule = \"wire:loss\"\npercent = 3\n",
                3,
                "\"percent\" is no key of a fault; there are rule,",
            ),
            ("[[fault]]\nrule = \"wire:loss\"\nseed = 3\n", 3, "seed stands before all tables"),
            ("\nseeds = 3\n", 2, "\"seeds\" is no key of a file of faults; there are seed, rules, fault;"),
            ("rule = \"wire:loss\"\n", 1, "rule stands in a table of its fault, behind a line [[fault]]"),
            ("\n[[fault]]\nwhen = \"%5\"\n", 2, "this fault has no rule"),
            (
                "[[fault]]\nrule = 3\n",
                2,
                "rule: a number stands here; wanted is a text, as in rule = \"wire:loss\"",
            ),
            ("[[fault]]\nrule = \"wire:loss\"\nwhen = 3\n", 3, "as in when = \"%5\""),
            ("[[fault]]\nrule = \"wire:loss\"\nwhen = \"5%\"\n", 3, "\"5%\" begins with neither @ nor %"),
            ("[[fault]]\nrule = \"wire:loss\"\ndevice = [\"roce0\"]\n", 3, "device: a list stands here"),
            ("[[fault]]\nrule = \"completion:reorder\"\nqp = true\n", 3, "as in qp = 2, or qp = \"0x1a2b\""),
            ("[[fault]]\nrule = \"completion:reorder\"\nqp = -1\n", 1, "second queue pair"),
            ("[[fault]]\nrule = wire:loss\n", 2, "this is no TOML: "),
            (
                "[fault]\nrule = \"wire:loss\"\n",
                1,
                "fault: a table stands here; wanted are tables, each behind a line [[fault]]",
            ),
            ("fault = [1]\n", 1, "fault: a number stands here"),
            (
                "rules = \"wire:loss\"\n",
                1,
                "rules: a text stands here; wanted is a list of texts, as in rules = [",
            ),
            ("rules = [\n1]\n", 2, "rules: a number stands here"),
            ("\nrules = [\"wire:loss\",\n\"ibv_regmr:ENOMEM\"]\n", 3, "ibv_reg_mr"),
            ("seed = -1\n", 1, "seed: wanted is a number from 0 to"),
            ("seed = \"7\"\n", 1, "as in seed = 7"),
            ("[[fault]\n", 1, "this is no TOML: "),
            ("rules = [\"wire:loss,wire:cut\"]\n", 1, "a comma"),
        ] {
            let said = parse(text).expect_err(text);
            assert!(said.0 == line && said.1.contains(why), "{text}: {said:?}");
        }
        assert!(read("/no/such/file.toml").is_err_and(|why| why.starts_with("/no/such/file.toml: ")));
    }
}
