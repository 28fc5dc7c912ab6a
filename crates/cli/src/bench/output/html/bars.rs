//! Values beside each other, and how far each target is met.

use super::axis::{Axis, label, line, range};
use super::curves;
use super::element::Element;
use super::palette::Palette;
use super::plot::canvas;
use crate::bench::output::number;
use crate::bench::result::{Row, Section, Target};

const ROW: f64 = 26.0;
const WIDTH: f64 = 1000.0;

/// A bar for each row that has a target. To the right of the middle it is met: the bar says how many times
/// better it is than it must be.
pub(super) fn ratios(section: &Section) -> Element {
    let rows: Vec<Row> = section.rows().into_iter().filter(|row| row.target.is_some()).collect();
    let (left, right, top) = (330.0, 730.0, 26.0);
    // More than this is not told apart.
    const MOST: f64 = 4.0;
    let axis = Axis::new((1.0 / MOST, MOST), (left, right));
    let middle = axis.place(1.0);
    let bottom = top + ROW * rows.len() as f64;
    let mut svg = canvas(WIDTH, bottom + 10.0, &format!("{}: targets", section.name));
    for (value, text) in
        [(0.25, "4 × worse"), (0.5, "2 × worse"), (1.0, "target"), (2.0, "2 × better"), (4.0, "4 × better")]
    {
        let at = axis.place(value);
        svg = svg.child(line(at, top - 4.0, at, bottom, if value == 1.0 { "axis" } else { "grid-line" }));
        svg = svg.child(label(at, top - 10.0, "middle", text).with("class", "tick"));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = top + ROW * index as f64;
        let met = row.met == Some(true);
        let end = axis.place(score(row).clamp(1.0 / MOST, MOST));
        let (from, to) = (middle.min(end), middle.max(end));
        let name = match row.size {
            0 => row.name.clone(),
            size => format!("{}, {}", row.name, number::size(size)),
        };
        let bar = Element::new("rect")
            .at("x", from)
            .at("y", y + 5.0)
            .at("width", (to - from).max(3.0))
            .at("height", ROW - 10.0)
            .with("rx", 2)
            .with("class", if met { "met" } else { "missed" });
        svg = svg.child(
            Element::new("g")
                .child(label(left - 14.0, y + 17.0, "end", &name).with("class", "name"))
                .child(bar)
                .child(label(right + 14.0, y + 17.0, "start", &verdict(row)).with("class", "name"))
                .hover(&curves::text(row)),
        );
    }
    svg
}

/// How many times better it is than the target.
fn score(row: &Row) -> f64 {
    let value = row.ratio.unwrap_or(row.median);
    let score = match row.target {
        Some(Target::AtMost(limit)) => limit / value,
        Some(Target::AtLeast(limit)) => value / limit,
        None => 1.0,
    };
    match score.is_finite() {
        true => score,
        // Nothing of something that should be nothing.
        false if row.met == Some(true) => 1.0,
        false => 0.0,
    }
}

/// "✓ 1.15 ×, at most 1.2".
fn verdict(row: &Row) -> String {
    let sign = if row.met == Some(true) { '✓' } else { '✗' };
    let value = match row.ratio {
        Some(ratio) => format!("{} × {}", number::ratio(ratio), row.yardstick.as_deref().unwrap_or_default()),
        None => number::value(row.unit, row.median),
    };
    let target = row.target.map(|target| number::target(target, row.unit, row.ratio.is_some()));
    format!("{sign} {value}, {}", target.unwrap_or_default())
}

/// A mark for each row, the further to the right the larger its number is, on a logarithmic axis.
pub(super) fn values(section: &Section, palette: &Palette) -> Element {
    let rows = section.rows();
    let (left, right, width) = (196.0, 530.0, 640.0);
    let (least, most) = range(rows.iter().map(|row| row.median));
    let axis = Axis::new((least / 3.0, most), (left, right));
    let size = rows.first().map_or(0, |row| row.size);
    let title = format!("{} of {}", section.name, number::size(size));
    let mut svg = canvas(width, ROW * rows.len() as f64 + 10.0, &title);
    for (index, row) in rows.iter().enumerate() {
        let y = ROW * index as f64;
        let end = axis.place(row.median);
        let style = palette.style(&row.name);
        // Of messages of one size, their number says more than their bytes.
        let value = row.per_second.map_or_else(|| number::value(row.unit, row.median), number::per_second);
        svg = svg.child(
            Element::new("g")
                .with("class", style.class())
                .child(label(left - 10.0, y + 17.0, "end", &row.name).with("class", "name"))
                .child(line(left, y + 13.0, end, y + 13.0, "stem"))
                .child(style.marker(end, y + 13.0))
                .child(label(end + 12.0, y + 17.0, "start", &value).with("class", "name"))
                .hover(&curves::text(row)),
        );
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    #[test]
    fn scores_are_relative_to_the_target() {
        let row = |ratio, target| {
            let mut row = document().sections[0].rows().remove(0);
            (row.ratio, row.target, row.met) = (Some(ratio), Some(target), Some(true));
            row
        };
        assert_eq!(score(&row(0.6, Target::AtMost(1.2))), 2.0);
        assert_eq!(score(&row(0.5, Target::AtLeast(1.0))), 0.5);
        assert_eq!(score(&row(0.0, Target::AtMost(0.0))), 1.0);
    }
}
