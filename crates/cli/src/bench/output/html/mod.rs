//! A page with charts, complete in itself: no script, no picture, no font from elsewhere.

mod axis;
mod bars;
mod cards;
mod curves;
mod element;
mod palette;
mod plot;
mod tables;
mod tail;

use crate::bench::result::{Document, Layout, Section};
use element::Element;
use palette::Palette;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(document: &Document) -> String {
    let palette = Palette::of(document);
    let title = "adverb bench";
    let head = Element::new("head")
        .child(Element::new("meta").with("charset", "utf-8"))
        .child(
            Element::new("meta")
                .with("name", "viewport")
                .with("content", "width=device-width, initial-scale=1"),
        )
        .child(Element::new("meta").with("name", "color-scheme").with("content", "light dark"))
        .child(Element::new("title").text(title))
        .child(Element::new("style").text(STYLE));
    let mut main = Element::new("main").child(header(document)).child(cards::cards(document));
    main = main.children(comparisons(document));
    let curves = document.sections.iter().filter(|section| section.layout == Layout::Curves);
    let charts = curves.map(|section| figure(section, chart(section, &palette)));
    main = main.child(Element::new("div").with("class", "grid").children(charts));
    main = main.children(tail::tail(document, &palette));
    main = main.child(footer(document));
    let body = Element::new("body").child(main);
    let html = Element::new("html").with("lang", "en").child(head).child(body);
    format!("<!doctype html>\n{html}\n")
}

fn header(document: &Document) -> Element {
    let machine = &document.machine;
    let kind = if document.quick { "a quick run: rough numbers" } else { "medians" };
    let about = format!(
        "Version {}, {} ({} processors), Linux {}. Rounds: {}, {kind}; each yardstick is measured in the same round.",
        machine.version, machine.processor, machine.processors, machine.kernel, document.rounds
    );
    Element::new("header")
        .child(Element::new("h1").text("adverb bench"))
        .child(Element::new("p").with("class", "about").text(&about))
        .children(
            document
                .busy
                .iter()
                .chain(&document.missing)
                .map(|text| Element::new("p").with("class", "missing").text(text)),
        )
}

/// Lists and comparisons: bars of the ratios that have targets, unless the machine is busy.
fn comparisons(document: &Document) -> Vec<Element> {
    let sections = document.sections.iter().filter(|section| section.layout != Layout::Curves);
    let chart = |section| match document.busy {
        None => bars::ratios(section),
        Some(_) => Element::new("p").text("Targets are not judged: the machine is busy."),
    };
    sections.map(|section| figure(section, chart(section)).with("class", "wide")).collect()
}

/// Lines over sizes; bars where there is but one size.
fn chart(section: &Section, palette: &Palette) -> Element {
    let rows = section.rows();
    match rows.iter().all(|row| row.size == rows[0].size) {
        true => bars::values(section, palette),
        false => curves::curves(section, palette),
    }
}

fn figure(section: &Section, chart: Element) -> Element {
    let notes = section.notes.iter().map(|note| Element::new("p").with("class", "note").text(note));
    Element::new("figure")
        .child(
            Element::new("figcaption")
                .child(Element::new("h2").text(&section.name))
                .child(Element::new("p").text(&section.setting)),
        )
        .child(chart)
        .children(notes)
        .child(tables::details(section))
}

fn footer(document: &Document) -> Element {
    let mut text = "Thick lines are adverb, thin ones what it is compared with. The pointer over a point shows its numbers.".to_owned();
    if let Some(verdict) = document.verdict() {
        text += &format!(" {verdict}");
    }
    Element::new("footer").child(Element::new("p").text(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::json::tests::document;

    /// Whether every element that is opened is closed, in order, and no text has a bare `<` or `&`.
    fn check(page: &str) -> Result<usize, String> {
        let (mut open, mut elements) = (Vec::new(), 0);
        let page = page.strip_prefix("<!doctype html>\n").ok_or("no doctype")?;
        let mut rest = page;
        while let Some((text, from_tag)) = rest.split_once('<') {
            for entity in text.split('&').skip(1) {
                let known = ["lt;", "gt;", "amp;", "quot;"].iter().any(|name| entity.starts_with(name));
                known.then_some(()).ok_or_else(|| format!("a bare & in {text:?}"))?;
            }
            let (tag, after) = from_tag.split_once('>').ok_or("a tag without an end")?;
            let name: String =
                tag.trim_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
            if tag.matches('"').count() % 2 != 0 {
                return Err(format!("quotes in <{tag}>"));
            }
            match tag {
                _ if tag.starts_with('/') => {
                    let opened = open.pop();
                    (opened.as_ref() == Some(&name))
                        .then_some(())
                        .ok_or_else(|| format!("</{name}> ends {opened:?}"))?;
                }
                _ if tag.ends_with('/') || element::is_void(&name) => elements += 1,
                _ => {
                    elements += 1;
                    open.push(name);
                }
            }
            rest = after;
        }
        if open.is_empty() { Ok(elements) } else { Err(format!("open at the end: {open:?}")) }
    }

    #[test]
    fn the_page_is_well_formed_and_complete() {
        let page = page(&document());
        assert!(check(&page).expect("well-formed") > 100);
        for outside in ["http://", "https://", "<script", "<link", "<img", "url("] {
            let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains(outside), "{outside} would need something from elsewhere");
        }
        assert_eq!(page.matches("<figure").count(), 3);
        assert!(page.contains("over &lt;loopback&gt; &amp; back"), "texts are escaped");
        let missing = page.find("Not measured: a &lt;path&gt;.").expect("what is missing is said");
        assert!(missing < page.find("class=\"cards\"").expect("cards"), "and said first");
        assert!(!page.contains("NaN") && !page.contains("inf"), "coordinates are numbers");
    }

    #[test]
    fn the_check_sees_what_is_wrong() {
        assert!(check("<!doctype html>\n<p><b></p></b>").is_err());
        assert!(check("<!doctype html>\n<p>a & b</p>").is_err());
        assert_eq!(check("<!doctype html>\n<p><br>a &lt; b</p>"), Ok(2));
    }
}
