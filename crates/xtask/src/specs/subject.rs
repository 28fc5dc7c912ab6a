//! Reads the lists of requirements by subject, `specs/ib-*.md` and `specs/roce.md`, and checks their form.

use super::citation;
use super::list::{self, Requirement, Standard};
use std::collections::BTreeMap;
use std::fmt::Display;

const HEADER: [&str; 2] = ["| ID | Level | Source | Requirement |", "|---|---|---|---|"];
/// The line of a file whose requirements are not all cited yet.
const WAITING: &str = "Status: not yet cited.";

/// Parses the list in the file `stem`.md; and says what is wrong with it.
pub(super) fn parse(stem: &str, text: &str) -> (Standard, Vec<String>) {
    let mut parser = Parser {
        stem,
        standard: Standard::new(stem),
        numbers: BTreeMap::new(),
        header_lines: None,
        problems: Vec::new(),
    };
    for (number, line) in text.lines().enumerate() {
        parser.line(number + 1, line.trim_end());
    }
    parser.check_numbers();
    (parser.standard, parser.problems)
}

struct Parser<'a> {
    stem: &'a str,
    standard: Standard,
    /// The running numbers of each prefix, with the line where each stands.
    numbers: BTreeMap<String, BTreeMap<usize, usize>>,
    /// How much of the table's header was seen, in a subject.
    header_lines: Option<usize>,
    problems: Vec<String>,
}

impl Parser<'_> {
    fn wrong(&mut self, line: usize, what: impl Display) {
        self.problems.push(format!("specs/{}.md:{line}: {what}", self.stem));
    }

    fn line(&mut self, number: usize, line: &str) {
        self.standard.mentions.extend(citation::ids(line).map(|id| (number, id.to_owned())));
        if number == 1 {
            self.title(line);
        } else if line.starts_with("## ") {
            self.header_lines = Some(0);
        } else if line == WAITING {
            self.standard.waiting = true;
        } else if line.starts_with('|') {
            match self.header_lines {
                Some(seen) if seen < HEADER.len() => {
                    self.header_lines = Some(seen + 1);
                    if line != HEADER[seen] {
                        self.wrong(number, format!("expected `{}`", HEADER[seen]));
                    }
                }
                Some(_) => self.row(number, line),
                None => self.wrong(number, "a row before the first heading of level 2"),
            }
        }
    }

    /// `# PREFIX, PREFIX: title`
    fn title(&mut self, line: &str) {
        let parts = line.strip_prefix("# ").and_then(|rest| rest.split_once(": "));
        let prefixes: Vec<_> = parts.map_or("", |(prefixes, _)| prefixes).split(", ").collect();
        match parts {
            Some((_, title)) if !title.is_empty() && prefixes.iter().all(|p| citation::is_prefix(p)) => {
                title.clone_into(&mut self.standard.title);
                self.numbers = prefixes.iter().map(|&p| (p.to_owned(), BTreeMap::new())).collect();
            }
            _ => self.wrong(1, "the first line is not `# PREFIX, PREFIX: title`"),
        }
    }

    fn row(&mut self, line_number: usize, line: &str) {
        let Some([id, level, source, text]) = list::cells(line) else {
            return self.wrong(line_number, "expected a row `| ID | level | source | requirement |`");
        };
        let number = id.rsplit_once('-').and_then(|(prefix, number)| {
            Some((self.numbers.get_mut(prefix)?, number.parse::<usize>().ok()?))
        });
        let Some((numbers, number)) = number else {
            return self.wrong(line_number, format!("{id} is not a prefix of the first line and a number"));
        };
        if numbers.insert(number, line_number).is_some() {
            self.wrong(line_number, format!("{id} stands twice"));
        }
        if !matches!(level, "MUST" | "SHOULD" | "MAY") {
            self.wrong(line_number, format!("level {level}: MUST, SHOULD or MAY"));
        }
        if source.is_empty() {
            self.wrong(line_number, "the source is empty");
        }
        match Requirement::new(id, level, text) {
            Some(requirement) => self.standard.requirements.push(requirement),
            None => self.wrong(line_number, "the requirement or the reason after `n/a:` is empty"),
        }
    }

    /// The numbers of a prefix are 1, 2, 3, … wherever they stand in the file.
    fn check_numbers(&mut self) {
        let mut problems = Vec::new();
        for (prefix, numbers) in &self.numbers {
            match numbers.iter().zip(1..).find(|&((&number, _), expected)| number != expected) {
                Some(((number, line), expected)) => {
                    problems.push((*line, format!("there is {prefix}-{number}, but no {prefix}-{expected}")))
                }
                None if numbers.is_empty() => problems.push((1, format!("there is no {prefix}-1"))),
                None => {}
            }
        }
        for (line, problem) in problems {
            self.wrong(line, problem);
        }
    }
}
