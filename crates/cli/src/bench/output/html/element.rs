//! Elements of HTML and SVG, written so that nothing in a text or attribute can be taken for markup.

use std::fmt;

/// An element with its attributes and what is in it.
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    content: Vec<Content>,
}

enum Content {
    Element(Element),
    Text(String),
}

/// Elements of HTML that have no end.
pub(super) fn is_void(name: &str) -> bool {
    ["meta", "br", "hr"].contains(&name)
}

impl Element {
    /// Without anything in it.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), content: Vec::new() }
    }

    /// Sets an attribute.
    pub(super) fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// Sets a coordinate, to a tenth of a pixel.
    pub(super) fn at(self, name: &'static str, value: f64) -> Self {
        self.with(name, format_args!("{value:.1}"))
    }

    /// Adds an element.
    pub(super) fn child(mut self, child: Self) -> Self {
        self.content.push(Content::Element(child));
        self
    }

    /// Adds elements.
    pub(super) fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.content.extend(children.into_iter().map(Content::Element));
        self
    }

    /// Adds a text.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.content.push(Content::Text(text.to_owned()));
        self
    }

    /// What the pointer over it shows.
    pub(super) fn hover(self, text: &str) -> Self {
        self.child(Self::new("title").text(text))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}", self.name)?;
        for (name, value) in &self.attributes {
            write!(f, " {name}=\"{}\"", escaped(value))?;
        }
        f.write_str(">")?;
        if is_void(self.name) {
            return Ok(());
        }
        for content in &self.content {
            match content {
                Content::Element(element) => element.fmt(f)?,
                // A style is no text: nothing in it is unescaped again.
                Content::Text(text) if self.name == "style" => f.write_str(text)?,
                Content::Text(text) => f.write_str(&escaped(text))?,
            }
        }
        write!(f, "</{}>", self.name)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_markup_by_accident() {
        let element = Element::new("a").with("title", "\"x\" & y").text("1 < 2").child(Element::new("br"));
        assert_eq!(element.to_string(), "<a title=\"&quot;x&quot; &amp; y\">1 &lt; 2<br></a>");
    }
}
