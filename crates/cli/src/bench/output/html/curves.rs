//! One quantity over sizes.

use super::element::Element;
use super::palette::Palette;
use super::plot::{Frame, Line, plot};
use crate::bench::output::number;
use crate::bench::result::{Row, Section};

/// A line for each name.
pub(super) fn curves(section: &Section, palette: &Palette) -> Element {
    let rows = section.rows();
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let lines: Vec<Line> = names(&rows)
        .into_iter()
        .map(|name| {
            let mut points: Vec<_> = rows
                .iter()
                .filter(|row| row.name == name && row.median.is_finite())
                .map(|row| (row.size as f64, row.median, text(row)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { name: name.to_owned(), style: palette.style(name), points }
        })
        .collect();
    let unit = rows[0].unit;
    let frame = Frame {
        title: &format!("{}, {}", section.name, section.setting),
        ticks: sizes.iter().map(|size| (*size as f64, number::size(*size))).collect(),
        value: &|value| number::round(unit, value),
    };
    plot(&frame, &lines)
}

/// The names of the rows, each once.
pub(super) fn names(rows: &[Row]) -> Vec<&str> {
    rows.iter().fold(Vec::new(), |mut names, row| {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
        names
    })
}

/// All that is known of a point.
pub(super) fn text(row: &Row) -> String {
    let mut text =
        format!("{}, {}: {}", row.name, number::size(row.size), number::value(row.unit, row.median));
    if let Some(rate) = row.per_second {
        text += &format!(", {}", number::per_second(rate));
    }
    if let Some(p) = row.percentiles {
        text += &format!(", 99 %: {}", number::value(row.unit, p.p99 as f64));
    }
    if let (Some(ratio), Some(yardstick)) = (row.ratio, &row.yardstick) {
        text += &format!("; {} × {yardstick}", number::ratio(ratio));
    }
    text
}
