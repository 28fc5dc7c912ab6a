//! How long the slow ones take: latency over percentiles, at the smallest size.

use super::curves::names;
use super::element::Element;
use super::palette::Palette;
use super::plot::{Frame, Line, plot};
use crate::bench::output::number;
use crate::bench::result::{Document, Layout, Row, Section, Unit};

/// Parts of all, and what they are called.
const TICKS: [(f64, &str); 4] = [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];

/// A chart for each section that has times; nothing if there is none.
pub(super) fn tail(document: &Document, palette: &Palette) -> Option<Element> {
    let sections = document.sections.iter().filter(|section| section.layout == Layout::Curves);
    let charts: Vec<Element> = sections.filter_map(|section| chart(section, palette)).collect();
    if charts.is_empty() {
        return None;
    }
    let heading = Element::new("h2").text("Percentiles at the smallest size");
    let about = "So many of the operations took at most so long; all rounds together.";
    let grid = Element::new("div").with("class", "grid").children(charts);
    Some(Element::new("section").child(heading).child(Element::new("p").text(about)).child(grid))
}

fn chart(section: &Section, palette: &Palette) -> Option<Element> {
    let rows = section.rows();
    let smallest = rows.iter().map(|row| row.size).min()?;
    let rows: Vec<Row> =
        rows.into_iter().filter(|row| row.size == smallest && row.percentiles.is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    let line = |name: &str| {
        let percentiles = rows.iter().find(|row| row.name == name).and_then(|row| row.percentiles);
        let points = percentiles.into_iter().flat_map(|percentiles| percentiles.points());
        let points = points.map(|(part, time)| {
            let text = format!(
                "{name}: {} % within {}",
                part * 100.0,
                number::value(Unit::Nanoseconds, time as f64)
            );
            (place(part), time as f64, text)
        });
        Line { name: name.to_owned(), style: palette.style(name), points: points.collect() }
    };
    let lines: Vec<Line> = names(&rows).into_iter().map(line).collect();
    let title = format!("{} of {}: percentiles", section.name, number::size(smallest));
    let frame = Frame {
        title: &title,
        ticks: TICKS.iter().map(|(part, name)| (place(*part), (*name).to_owned())).collect(),
        value: &|value| number::round(Unit::Nanoseconds, value),
    };
    let caption = Element::new("figcaption").child(Element::new("h3").text(&title));
    Some(Element::new("figure").child(caption).child(plot(&frame, &lines)))
}

/// Each step to the right is a tenth of those that are slower.
fn place(part: f64) -> f64 {
    1.0 / (1.0 - part)
}
