//! What somebody wants to know first, in a few numbers.

use super::curves::names;
use super::element::Element;
use crate::bench::output::number;
use crate::bench::result::{Document, Layout, Role, Row, Section, Unit};

/// A card for each section with curves.
pub(super) fn cards(document: &Document) -> Element {
    let sections = document.sections.iter().filter(|section| section.layout == Layout::Curves);
    Element::new("div").with("class", "cards").children(sections.filter_map(card))
}

/// The best that we have where it counts: times of the shortest messages, and the highest of the rates.
fn card(section: &Section) -> Option<Element> {
    let rows = section.rows();
    let own = rows.iter().filter(|row| row.role == Role::Measured && row.median.is_finite());
    let less = rows.first()?.unit.less_is_better();
    let smallest = rows.iter().map(|row| row.size).min()?;
    let best = match less {
        true => own.filter(|row| row.size == smallest).min_by(|a, b| a.median.total_cmp(&b.median))?,
        false => own.max_by(|a, b| a.median.total_cmp(&b.median))?,
    };
    let mut about = format!("{}, {}", number::size(best.size), best.name);
    if let Some(size) = knee(&rows, best).filter(|size| !less && *size < best.size) {
        about += &format!("; half of it from {}", number::size(size));
    }
    let short = rows.iter().find(|row| row.name == best.name && row.size == smallest);
    if let Some((row, rate)) = short.and_then(|row| Some((row, row.per_second?))) {
        about += &format!("; {} of {}", number::per_second(rate), number::size(row.size));
    }
    let others = names(&rows).into_iter().filter_map(|name| {
        let other = rows.iter().find(|row| row.name == name && row.size == best.size)?;
        (other.role == Role::Yardstick).then(|| faster(best, other))
    });
    Some(
        Element::new("div")
            .with("class", "card")
            .child(Element::new("h3").text(&section.name))
            .child(Element::new("p").with("class", "big").text(&number::value(best.unit, best.median)))
            .child(Element::new("p").with("class", "note").text(&about))
            .child(Element::new("p").with("class", "note").text("How many times as fast as"))
            .child(Element::new("ul").children(others)),
    )
}

/// The smallest size at which the line has half of its best.
fn knee(rows: &[Row], best: &Row) -> Option<usize> {
    let line = rows.iter().filter(|row| row.name == best.name && row.unit == Unit::BytesPerSecond);
    line.filter(|row| row.median * 2.0 >= best.median).map(|row| row.size).min()
}

/// How many times as fast it is as something else.
fn faster(row: &Row, other: &Row) -> Element {
    let ratio = match row.unit.less_is_better() {
        true => other.median / row.median,
        false => row.median / other.median,
    };
    let class = if ratio >= 1.0 { "good" } else { "less" };
    let number = Element::new("b").with("class", class).text(&format!("{} ×", number::ratio(ratio)));
    Element::new("li").child(number).child(Element::new("span").text(&other.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    #[test]
    fn a_card_says_how_fast_and_where_the_knee_is() {
        let card = card(&document().sections[1]).expect("it has curves").to_string();
        assert!(card.contains("4.00 GB/s") && card.contains("64 KiB, roce0"), "{card}");
        assert!(card.contains("0.33 ×") && card.contains("memory copy"), "{card}");
        assert!(card.contains("half of it from 64 KiB") || card.contains("1.25 M/s of 8 B"), "{card}");
    }
}
