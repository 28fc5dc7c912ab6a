//! One line for each row, for spreadsheets and data frames.

use crate::bench::result::{Document, Row, Target};
use std::fmt::Display;

const HEADING: &str = "section,setting,name,size,unit,role,median,per_second,min,p50,p90,p99,p999,max,\
                       yardstick,yardstick_median,ratio,target,limit,met,samples";

/// A heading and a line for each row, as RFC 4180 has it, but for line feeds alone at the ends of lines.
pub(super) fn csv(document: &Document) -> String {
    let mut text = format!("{HEADING}\n");
    for section in &document.sections {
        for row in section.rows() {
            let fields = [section.name.clone(), section.setting.clone()].into_iter().chain(fields(&row));
            text += &fields.map(|field| quoted(&field)).collect::<Vec<_>>().join(",");
            text.push('\n');
        }
    }
    text
}

fn fields(row: &Row) -> impl Iterator<Item = String> {
    let p = row.percentiles;
    let (target, limit) = match row.target {
        None => ("", None),
        Some(Target::AtMost(limit)) => ("at_most", Some(limit)),
        Some(Target::AtLeast(limit)) => ("at_least", Some(limit)),
    };
    [
        row.name.clone(),
        row.size.to_string(),
        word(row.unit),
        word(row.role),
        row.median.to_string(),
        optional(row.per_second),
        optional(p.map(|p| p.min)),
        optional(p.map(|p| p.p50)),
        optional(p.map(|p| p.p90)),
        optional(p.map(|p| p.p99)),
        optional(p.map(|p| p.p999)),
        optional(p.map(|p| p.max)),
        row.yardstick.clone().unwrap_or_default(),
        optional(row.yardstick_median),
        optional(row.ratio),
        target.to_owned(),
        optional(limit),
        optional(row.met),
        row.samples.iter().map(f64::to_string).collect::<Vec<_>>().join(" "),
    ]
    .into_iter()
}

/// The word for a value, as in JSON.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn optional(value: Option<impl Display>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    #[test]
    fn lines_have_the_fields_of_the_heading() {
        let text = csv(&document());
        let fields = HEADING.split(',').count();
        assert_eq!(text.lines().next(), Some(HEADING));
        for line in text.lines().skip(2) {
            // Only what comes last in this document has commas inside of quotes.
            let quoted =
                line.split('"').skip(1).step_by(2).map(|part| part.matches(',').count()).sum::<usize>();
            assert_eq!(line.matches(',').count() - quoted, fields - 1, "{line}");
        }
        assert!(text.contains("\"raw \"\"TCP\"\", stream\",65536,bytes_per_second,yardstick,2000000000,"));
    }
}
