//! Faults in a file of TOML: the same words as on the command line, one fault in a table.

use adverb_watch::fault::check_rule;
use serde::Deserialize;
use std::fmt::Write as _;
use toml::Spanned;

/// How names of such files end.
pub(super) const ENDING: &str = ".toml";

/// What a run wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultPlan {
    /// The rules, with commas between them.
    pub(super) rules: String,
    pub(super) seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: Option<u64>,
    #[serde(default)]
    rules: Vec<Spanned<String>>,
    #[serde(default)]
    fault: Vec<Spanned<Fault>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    rule: String,
    opcode: Option<String>,
    direction: Option<String>,
    peer: Option<String>,
    jitter: Option<String>,
    qp: Option<QueuePair>,
    device: Option<String>,
    when: Option<String>,
}

/// `2`, or `"0x1a2b"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum QueuePair {
    Nth(u64),
    Text(String),
}

impl Fault {
    /// The fault as a rule of the command line.
    fn text(&self) -> String {
        let mut text = self.rule.clone();
        let pair = self.qp.as_ref().map(|pair| match pair {
            QueuePair::Nth(nth) => nth.to_string(),
            QueuePair::Text(text) => text.clone(),
        });
        let options = [
            ("opcode", &self.opcode),
            ("direction", &self.direction),
            ("peer", &self.peer),
            ("jitter", &self.jitter),
            ("qp", &pair),
            ("device", &self.device),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                let _ = write!(text, ":{name}={value}");
            }
        }
        text + self.when.as_deref().unwrap_or_default()
    }
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
    let line = |at: usize| 1 + text[..at.min(text.len())].bytes().filter(|byte| *byte == b'\n').count();
    let file: File = toml::from_str(text)
        .map_err(|error| (line(error.span().map_or(0, |span| span.start)), error.message().to_owned()))?;
    let single = file.rules.into_iter().map(|rule| (rule.span().start, rule.into_inner()));
    let tables = file.fault.into_iter().map(|fault| (fault.span().start, fault.into_inner().text()));
    let mut rules = Vec::new();
    for (at, rule) in single.chain(tables) {
        let checked = match rule.contains(',') {
            true => Err("a comma stands in no rule: each rule has a place of its own".to_owned()),
            false => check_rule(&rule),
        };
        checked.map_err(|why| (line(at), format!("{rule}: {why}")))?;
        rules.push(rule);
    }
    if rules.is_empty() {
        return Err((1, "no fault is there; wanted are tables [[fault]] with rule = \"...\"".to_owned()));
    }
    Ok(FaultPlan { rules: rules.join(","), seed: file.seed })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_wrong_is_said_with_its_line_and_what_is_allowed() {
        for (text, line, why) in [
            ("seed = 1", 1, "[[fault]]"),
            ("\n\n[[fault]]\nrule = \"wire:lose\"\n", 3, "partition"),
            ("[[fault]]\nrule = \"wire:loss\"\npercent = 3\n", 3, "`when`"),
            ("\nrules = [\"wire:loss\",\n\"ibv_regmr:ENOMEM\"]\n", 3, "ibv_reg_mr"),
            ("seed = -1\n", 1, "u64"),
            ("[[fault]\n", 1, "]"),
            ("rules = [\"wire:loss,wire:cut\"]\n", 1, "a comma"),
        ] {
            let said = parse(text).expect_err(text);
            assert!(said.0 == line && said.1.contains(why), "{text}: {said:?}");
        }
        assert!(read("/no/such/file.toml").is_err_and(|why| why.starts_with("/no/such/file.toml: ")));
    }
}
