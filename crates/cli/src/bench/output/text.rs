//! Tables for a terminal.

use super::number;
use crate::bench::result::{Document, Layout, Row, Section};
use crate::pair::table::Table;

/// All sections, each with its table, and how many targets are met.
pub(super) fn text(document: &Document) -> String {
    let judged = document.busy.is_none();
    let mut text = format!("adverb bench, {} rounds\n", document.rounds);
    for missing in document.busy.iter().chain(&document.missing) {
        text += &format!("\n{missing}\n");
    }
    for section in &document.sections {
        text += &format!("\n{} {}\n\n", section.name, section.setting);
        text += &match section.layout {
            Layout::List => list(section, judged),
            Layout::Curves => curves(section),
            Layout::Comparison => comparison(section, judged),
        }
        .to_string();
        for note in &section.notes {
            text += &format!("\n{note}\n");
        }
    }
    if let Some(verdict) = document.verdict() {
        text += &format!("\n{verdict}\n");
    }
    text
}

fn list(section: &Section, judged: bool) -> Table {
    let mut table = Table::new(["What", "Size", "Median", "99 %", "Ratio", "to", "Target", ""]);
    for row in section.rows() {
        table.row(vec![
            row.name.clone(),
            size(&row),
            number::value(row.unit, row.median),
            row.percentiles.map_or(String::new(), |p| number::value(row.unit, p.p99 as f64)),
            ratio(&row),
            row.yardstick.clone().unwrap_or_default(),
            target(&row),
            verdict(&row, judged).into(),
        ]);
    }
    table
}

fn comparison(section: &Section, judged: bool) -> Table {
    let mut table = Table::new(["What", "Size", "Median", "Yardstick", "Median", "Ratio", "Target", ""]);
    for row in section.rows().iter().filter(|row| row.yardstick.is_some() || row.target.is_some()) {
        table.row(vec![
            row.name.clone(),
            size(row),
            number::value(row.unit, row.median),
            row.yardstick.clone().unwrap_or_default(),
            row.yardstick_median.map_or(String::new(), |median| number::value(row.unit, median)),
            ratio(row),
            target(row),
            verdict(row, judged).into(),
        ]);
    }
    table
}

/// A row for each size, and a column for each name.
fn curves(section: &Section) -> Table {
    let rows = section.rows();
    let mut names: Vec<&str> = Vec::new();
    let mut sizes: Vec<usize> = Vec::new();
    for row in &rows {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
        if !sizes.contains(&row.size) {
            sizes.push(row.size);
        }
    }
    sizes.sort_unstable();
    let mut table = Table::new(std::iter::once("Size").chain(names.iter().copied()));
    for size in sizes {
        let cell = |name: &&str| {
            let row = rows.iter().find(|row| row.size == size && row.name == *name);
            row.map_or("-".into(), |row| match row.ratio {
                Some(ratio) => {
                    format!("{} ({} ×)", number::value(row.unit, row.median), number::ratio(ratio))
                }
                None => number::value(row.unit, row.median),
            })
        };
        table.row(std::iter::once(number::size(size)).chain(names.iter().map(cell)).collect());
    }
    table
}

fn size(row: &Row) -> String {
    if row.size == 0 { String::new() } else { number::size(row.size) }
}

fn ratio(row: &Row) -> String {
    row.ratio.map_or(String::new(), number::ratio)
}

fn target(row: &Row) -> String {
    row.target.map_or(String::new(), |target| number::target(target, row.unit, row.ratio.is_some()))
}

/// A busy machine is not judged.
fn verdict(row: &Row, judged: bool) -> &'static str {
    match row.met.filter(|_| judged) {
        None => "",
        Some(true) => "met",
        Some(false) => "missed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    #[test]
    fn each_layout_has_its_table() {
        let text = text(&document());
        for part in ["adverb bench, 1 rounds", "Yardstick", "at most 1.3", "64 KiB", "2 of 2 targets met"] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_busy_machine_is_not_judged() {
        let mut document = document();
        document.busy = Some("The machine is busy.".into());
        let text = text(&document);
        for part in ["The machine is busy.\n", "2 targets, not judged"] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains(" met"), "{text}");
    }
}
