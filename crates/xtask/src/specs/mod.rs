//! Which requirement of which standard is met where: `specs/*.md` against the citations in code and tests.
//! `specs/README.md` describes the format and what a citation is.

mod citation;
mod list;
mod report;
mod rust;
mod subject;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

/// Checks the repository at `root`: what to print, and whether all is well.
pub(crate) fn run(root: &Path, all: bool) -> io::Result<(String, bool)> {
    let (standards, mut problems) = list::read(&root.join("specs"))?;
    let citations = citation::scan(root)?;
    let coverage = report::Coverage::new(&standards, &citations);
    problems.extend(coverage.problems());
    let mut output = if all { coverage.listing() } else { String::new() };
    output += &coverage.table();
    output.extend(problems.iter().map(|problem| format!("error: {problem}\n")));
    Ok((output, problems.is_empty()))
}
