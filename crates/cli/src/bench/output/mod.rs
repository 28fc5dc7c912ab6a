//! How results are shown. No format knows a measurement: all they see is [`super::result`].

mod csv;
mod html;
mod json;
mod number;
mod text;

use super::result::Document;
use std::path::Path;

/// For people at a terminal.
pub(super) fn text(document: &Document) -> String {
    text::text(document)
}

/// For programs.
pub(super) fn json(document: &Document) -> String {
    json::json(document)
}

/// For spreadsheets, into a file, or to standard output for `-`.
pub(super) fn write_csv(document: &Document, file: &Path) -> Result<(), String> {
    write(file, &csv::csv(document))
}

/// For people with a browser, likewise.
pub(super) fn write_html(document: &Document, file: &Path) -> Result<(), String> {
    write(file, &html::page(document))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    if file == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
