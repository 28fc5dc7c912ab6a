//! A chart of lines: logarithmic both ways, each line named where it ends.

use super::axis::{Axis, label, line, range, spread};
use super::element::Element;
use super::palette::Style;

/// A line.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) style: Style,
    /// The points of the line: x, y, and what the pointer shows there.
    pub(super) points: Vec<(f64, f64, String)>,
}

/// What is around the lines.
pub(super) struct Frame<'a> {
    /// The text that says what the chart shows, for readers who cannot see the chart.
    pub(super) title: &'a str,
    /// Values on the horizontal axis, and what they are called.
    pub(super) ticks: Vec<(f64, String)>,
    /// What values on the vertical axis are called.
    pub(super) value: &'a dyn Fn(f64) -> String,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 68.0;
/// Room for the names.
const RIGHT: f64 = 478.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 326.0;
/// Height of a line of text.
const TEXT: f64 = 15.0;

/// Draws it.
pub(super) fn plot(frame: &Frame, lines: &[Line]) -> Element {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::new(range_of_ticks(&frame.ticks), (LEFT + 8.0, RIGHT - 8.0));
    let y = Axis::new(range(all().map(|(_, y, _)| *y)), (BOTTOM, TOP));
    let mut svg = canvas(WIDTH, HEIGHT, frame.title);
    for value in y.decades() {
        let at = y.place(value);
        svg = svg.child(line(LEFT, at, RIGHT, at, "grid-line"));
        svg = svg.child(label(LEFT - 8.0, at + 4.0, "end", &(frame.value)(value)).with("class", "tick"));
    }
    let values: Vec<f64> = frame.ticks.iter().map(|(value, _)| *value).collect();
    let named = x.with_room(&values, 46.0);
    for (value, name) in &frame.ticks {
        let at = x.place(*value);
        svg = svg.child(line(at, TOP, at, BOTTOM, "grid-line"));
        if named.contains(value) {
            svg = svg.child(label(at, BOTTOM + 20.0, "middle", name).with("class", "tick"));
        }
    }
    svg = svg.child(line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"));
    // Ours above the others.
    let mut order: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    order.sort_by_key(|line| line.style.is_own());
    let ends: Vec<f64> = order.iter().map(|line| y.place(line.points[line.points.len() - 1].1)).collect();
    let names = spread(&ends, TEXT, (TOP + 4.0, BOTTOM));
    for ((line, end), place) in order.into_iter().zip(ends).zip(names) {
        svg = svg.child(drawn(line, x, y, end, place));
    }
    svg
}

/// One line with its marks and its name.
fn drawn(line: &Line, x: Axis, y: Axis, end: f64, name: f64) -> Element {
    let places: Vec<(f64, f64)> =
        line.points.iter().map(|(at, value, _)| (x.place(*at), y.place(*value))).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let marks = places.iter().zip(&line.points).map(|(&(x, y), (.., text))| {
        // Larger than what is seen, so that it is easily met.
        let field = Element::new("circle").at("cx", x).at("cy", y).with("r", 10).with("class", "field");
        Element::new("g").child(line.style.marker(x, y)).child(field).hover(text)
    });
    let last = places.last().map_or(RIGHT, |(x, _)| *x);
    let lead = format!("{:.1},{end:.1} {:.1},{name:.1}", last + 7.0, RIGHT + 4.0);
    Element::new("g")
        .with("class", line.style.class())
        .child(Element::new("polyline").with("points", path.join(" ")).with("class", "line"))
        .children(marks)
        .child(Element::new("polyline").with("points", lead).with("class", "lead"))
        .child(label(RIGHT + 8.0, name + 4.0, "start", &line.name).with("class", "name"))
}

/// An empty picture that is as wide as there is room.
pub(super) fn canvas(width: f64, height: f64, title: &str) -> Element {
    Element::new("svg")
        .with("viewBox", format_args!("0 0 {width} {height}"))
        .with("role", "img")
        .with("aria-label", title)
}

fn range_of_ticks(ticks: &[(f64, String)]) -> (f64, f64) {
    match (ticks.first(), ticks.last()) {
        (Some((first, _)), Some((last, _))) => (*first, *last),
        _ => (1.0, 10.0),
    }
}
