//! Reads the lists of requirements that follow an RFC section by section, `specs/rfcNNNN.md`, and checks
//! their form.

use super::{citation, subject};
use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

const HEADER: [&str; 2] = ["| ID | Level | In text | Requirement |", "|---|---|---|---|"];

/// One standard, or one subject of a standard: a file of `specs/`.
#[derive(Debug)]
pub(crate) struct Standard {
    /// The file's name without its extension, in capitals; of an RFC also what its IDs begin with: `RFC5044`.
    pub(crate) name: String,
    /// What follows the name in the file's title.
    pub(crate) title: String,
    pub(crate) requirements: Vec<Requirement>,
    /// Whether the file says that requirements are still waiting for their citations.
    pub(crate) waiting: bool,
    /// Every ID in the file, with its line.
    pub(super) mentions: Vec<(usize, String)>,
}

#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) id: String,
    pub(crate) level: String,
    pub(crate) text: String,
    /// Why code cannot answer it, if so.
    pub(crate) not_applicable: Option<String>,
}

/// Reads every list in `folder`, sorted by name; and says what is wrong with them.
pub(crate) fn read(folder: &Path) -> io::Result<(Vec<Standard>, Vec<String>)> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths
        .retain(|p| p.extension().is_some_and(|e| e == "md") && p.file_stem().is_some_and(|s| s != "README"));
    paths.sort();
    let (mut standards, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let (standard, mut wrong) = parse(&stem, &fs::read_to_string(&path)?);
        standards.push(standard);
        problems.append(&mut wrong);
    }
    problems.extend(dangling(&standards));
    Ok((standards, problems))
}

/// IDs that a list mentions, in a reason for instance, although no list has them.
pub(crate) fn dangling(standards: &[Standard]) -> Vec<String> {
    let known: BTreeSet<_> = standards.iter().flat_map(|s| &s.requirements).map(|r| &r.id).collect();
    let mentions = standards.iter().flat_map(|s| s.mentions.iter().map(move |m| (&s.name, m)));
    let unknown = mentions.filter(|(_, (_, id))| !known.contains(id));
    unknown
        .map(|(name, (line, id))| format!("specs/{}.md:{line}: there is no {id}", name.to_lowercase()))
        .collect()
}

impl Standard {
    /// The standard of the file `stem`.md, before its first line is read.
    pub(super) fn new(stem: &str) -> Self {
        Self {
            name: stem.to_uppercase(),
            title: String::new(),
            requirements: Vec::new(),
            waiting: false,
            mentions: Vec::new(),
        }
    }
}

impl Requirement {
    /// A requirement from the cells of its row; nothing if its text, or its reason after `n/a:`, is empty.
    pub(super) fn new(id: &str, level: &str, text: &str) -> Option<Self> {
        let (text, not_applicable) = match text.split_once("n/a:") {
            Some((text, reason)) => (text.trim(), Some(reason.trim().to_owned())),
            None => (text, None),
        };
        let complete = !text.is_empty() && not_applicable.as_ref().is_none_or(|reason| !reason.is_empty());
        let (id, level, text) = (id.to_owned(), level.to_owned(), text.to_owned());
        complete.then_some(Self { id, level, text, not_applicable })
    }
}

/// Parses the list in the file `stem`.md; and says what is wrong with it.
pub(crate) fn parse(stem: &str, text: &str) -> (Standard, Vec<String>) {
    if !stem.starts_with("rfc") {
        return subject::parse(stem, text);
    }
    let mut parser = Parser {
        stem,
        standard: Standard::new(stem),
        seen: BTreeSet::new(),
        section: None,
        problems: Vec::new(),
    };
    for (number, line) in text.lines().enumerate() {
        parser.line(number + 1, line.trim_end());
    }
    parser.end_section();
    if parser.standard.requirements.is_empty() {
        parser.problems.push(format!("specs/{stem}.md has no requirement"));
    }
    (parser.standard, parser.problems)
}

struct Parser<'a> {
    stem: &'a str,
    standard: Standard,
    section: Option<Section>,
    seen: BTreeSet<String>,
    problems: Vec<String>,
}

/// The section being read, with what its lines said so far.
struct Section {
    number: String,
    line: usize,
    /// The numbers of its line `Text: n MUST. IDs: m.`
    announced: Option<(usize, usize)>,
    header_lines: usize,
    ids: usize,
    /// The keywords that IDs and reasons account for.
    accounted: usize,
    left_out: bool,
}

impl Parser<'_> {
    fn wrong(&mut self, line: usize, what: impl std::fmt::Display) {
        self.problems.push(format!("specs/{}.md:{line}: {what}", self.stem));
    }

    fn line(&mut self, number: usize, line: &str) {
        self.standard.mentions.extend(citation::ids(line).map(|id| (number, id.to_owned())));
        if number == 1 {
            match title(line, &self.standard.name) {
                Some(title) => self.standard.title = title,
                None => self.wrong(1, "the first line is not `# RFC NNNN: title` for this file's RFC"),
            }
        } else if let Some(heading) = line.strip_prefix("## ") {
            self.end_section();
            self.section = Some(Section {
                number: heading.split(' ').next().unwrap_or_default().to_owned(),
                line: number,
                announced: None,
                header_lines: 0,
                ids: 0,
                accounted: 0,
                left_out: false,
            });
        } else if self.section.is_some() && !line.is_empty() {
            self.section_line(number, line);
        }
    }

    fn section_line(&mut self, number: usize, line: &str) {
        let Some(section) = &mut self.section else { return };
        if section.announced.is_none() {
            section.announced = announcement(line);
            if section.announced.is_none() {
                self.wrong(number, "expected `Text: n MUST. IDs: m.` under the heading");
            }
        } else if section.left_out {
            match reason(line) {
                Some((count, _)) => section.accounted += count,
                None => self.wrong(number, "expected `- n: reason` under `Left out:`"),
            }
        } else if line == "Left out:" {
            section.left_out = true;
        } else if section.header_lines < HEADER.len() {
            let expected = HEADER[section.header_lines];
            section.header_lines += 1;
            if line != expected {
                self.wrong(number, format!("expected `{expected}`"));
            }
        } else {
            self.row(number, line);
        }
    }

    fn row(&mut self, number: usize, line: &str) {
        let Some(section) = &mut self.section else { return };
        section.ids += 1;
        let expected = format!("{}-{}-{}", self.standard.name, section.number, section.ids);
        let Some([id, level, count, text]) = cells(line) else {
            return self.wrong(number, "expected a row `| ID | level | number | requirement |`");
        };
        let Ok(count) = count.parse::<usize>() else {
            return self.wrong(number, format!("`{count}` is not a number of words"));
        };
        section.accounted += count;
        if id != expected {
            self.wrong(number, format!("the ID is {id}, expected {expected}"));
        }
        if !self.seen.insert(id.to_owned()) {
            self.wrong(number, format!("{id} stands twice"));
        }
        if !matches!((level, count), ("MUST", _) | ("SHOULD" | "MAY", 0)) {
            self.wrong(number, format!("level {level} with {count} words: MUST, or SHOULD or MAY with 0"));
        }
        match Requirement::new(id, level, text) {
            Some(requirement) => self.standard.requirements.push(requirement),
            None => self.wrong(number, "the requirement or the reason after `n/a:` is empty"),
        }
    }

    fn end_section(&mut self) {
        let Some(section) = self.section.take() else { return };
        let Some((in_text, ids)) = section.announced else {
            return self.wrong(section.line, "the section has no line `Text: n MUST. IDs: m.`");
        };
        if ids != section.ids {
            self.wrong(section.line, format!("announces {ids} IDs and lists {}", section.ids));
        }
        if in_text != section.accounted {
            let accounted = section.accounted;
            self.wrong(
                section.line,
                format!("the text has {in_text} words, the list accounts for {accounted}"),
            );
        }
    }
}

fn title(line: &str, name: &str) -> Option<String> {
    let number = name.strip_prefix("RFC")?;
    let title = line.strip_prefix("# RFC ")?.strip_prefix(number)?.strip_prefix(": ")?;
    (!title.is_empty()).then(|| title.to_owned())
}

fn announcement(line: &str) -> Option<(usize, usize)> {
    let (in_text, ids) = line.strip_prefix("Text: ")?.split_once(" MUST. IDs: ")?;
    Some((in_text.parse().ok()?, ids.strip_suffix('.')?.parse().ok()?))
}

fn reason(line: &str) -> Option<(usize, &str)> {
    let (count, reason) = line.strip_prefix("- ")?.split_once(": ")?;
    Some((count.parse().ok().filter(|&n| n > 0)?, reason))
}

/// The four cells of a row.
pub(super) fn cells(line: &str) -> Option<[&str; 4]> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<_> = inner.split('|').map(str::trim).collect();
    cells.try_into().ok()
}
