//! The numbers behind a chart.

use super::element::Element;
use crate::bench::output::number;
use crate::bench::result::{Row, Section};

/// A table that opens on demand.
pub(super) fn details(section: &Section) -> Element {
    let heading = ["What", "Size", "Median", "per second", "99 %", "Ratio", "to"];
    let cells = |name, cells: &mut dyn Iterator<Item = String>| {
        Element::new("tr").children(cells.map(|cell| Element::new(name).text(&cell)).collect::<Vec<_>>())
    };
    let mut rows = section.rows();
    rows.sort_by_key(|row| row.size);
    let table = Element::new("table")
        .child(Element::new("thead").child(cells("th", &mut heading.iter().map(|&text| text.to_owned()))))
        .child(Element::new("tbody").children(rows.iter().map(|row| cells("td", &mut values(row)))));
    let scroll = Element::new("div").with("class", "scroll").child(table);
    Element::new("details").child(Element::new("summary").text("Numbers")).child(scroll)
}

fn values(row: &Row) -> impl Iterator<Item = String> {
    [
        row.name.clone(),
        if row.size == 0 { String::new() } else { number::size(row.size) },
        number::value(row.unit, row.median),
        row.per_second.map_or(String::new(), number::per_second),
        row.percentiles.map_or(String::new(), |p| number::value(row.unit, p.p99 as f64)),
        row.ratio.map_or(String::new(), number::ratio),
        row.yardstick.clone().unwrap_or_default(),
    ]
    .into_iter()
}
