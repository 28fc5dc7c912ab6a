//! Which line looks how: the same name looks the same in all charts, and no two lines differ by colour alone.

use super::element::Element;
use crate::bench::result::{Document, Layout, Role};

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Style {
    role: Role,
    index: usize,
}

/// Styles of each role that are told apart.
const STYLES: usize = 5;

impl Style {
    /// The class that has its colour, width and dashes.
    pub(super) fn class(self) -> String {
        let role = if self.role == Role::Measured { "own" } else { "other" };
        format!("{role} {role}{}", self.index % STYLES)
    }

    /// Whether the style is for our own numbers.
    pub(super) fn is_own(self) -> bool {
        self.role == Role::Measured
    }

    /// A mark of its own form.
    pub(super) fn marker(self, x: f64, y: f64) -> Element {
        let r = if self.is_own() { 4.5 } else { 3.5 };
        let polygon = |points: &[(f64, f64)]| {
            let text: Vec<String> =
                points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + r * dx, y + r * dy)).collect();
            Element::new("polygon").with("points", text.join(" "))
        };
        let marker = match self.index % STYLES {
            0 => Element::new("circle").at("cx", x).at("cy", y).at("r", r),
            1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
            2 => polygon(&[(0.0, -1.3), (1.2, 0.9), (-1.2, 0.9)]),
            3 => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
            _ => polygon(&[(0.0, 1.3), (1.2, -0.9), (-1.2, -0.9)]),
        };
        marker.with("class", "mark")
    }
}

/// The styles of a page.
pub(super) struct Palette(Vec<(String, Style)>);

impl Palette {
    /// Gives every line of every chart a style, in the order in which they appear.
    pub(super) fn of(document: &Document) -> Self {
        let mut all: Vec<(String, Style)> = Vec::new();
        for section in document.sections.iter().filter(|section| section.layout == Layout::Curves) {
            for row in section.rows() {
                if all.iter().all(|(name, _)| *name != row.name) {
                    let index = all.iter().filter(|(_, style)| style.role == row.role).count();
                    all.push((row.name, Style { role: row.role, index }));
                }
            }
        }
        Self(all)
    }

    /// The style of a line.
    pub(super) fn style(&self, name: &str) -> Style {
        let known = self.0.iter().find(|(known, _)| known == name);
        known.map_or(Style { role: Role::Yardstick, index: 0 }, |(_, style)| *style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    #[test]
    fn names_keep_their_styles() {
        let palette = Palette::of(&document());
        assert_eq!(palette.style("roce0").class(), "own own0");
        assert_eq!(palette.style("memory copy").class(), "other other0");
    }
}
