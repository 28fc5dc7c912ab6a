//! Names that say too little: types called by a participle alone, limits called PATIENCE, and public types of
//! one layer that share a name. Doc comments that say nothing by themselves, and comments that are too wide.
//!
//! docs/style.md has the rules for readers. The layers are those of ARCHITECTURE.md, as `cargo xtask layers`
//! reads them.

mod allowed;
mod comments;
mod definitions;
mod words;

use crate::layers;
use allowed::{CONSTANTS, Exception, Homonym, NAMESAKES, PARTICIPLES};
use definitions::{Definition, Kind};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with code.
const FOLDERS: [&str; 4] = ["benches", "crates", "fuzz", "tests"];
/// Names of constants that do not say what waits for what, or what is counted.
const MUTE: [&str; 2] = ["PATIENCE", "TURN"];

/// Where the exceptions stand.
const LIST: &str = "crates/xtask/src/names/allowed.rs";

/// A definition, and where it is.
#[derive(Debug)]
struct Place {
    /// From the top of the repository.
    file: String,
    /// The name of the layer, of code that ships and has one.
    layer: Option<String>,
    definition: Definition,
}

/// Checks the repository at `root`. A line for each wrong name and for each stale exception; and whether all
/// is well.
///
/// # Errors
/// The table of layers, or a file, cannot be read.
pub(crate) fn run(root: &Path) -> Result<(String, bool), String> {
    let files = files(root)?;
    let places = places(root, &files)?;
    let checks = [
        ("no_type_is_a_lone_participle", participles(&places, PARTICIPLES)),
        ("every_limit_says_its_subject", mute(&places, CONSTANTS)),
        ("public_types_of_a_layer_have_names_of_their_own", namesakes(&places, NAMESAKES)),
        ("every_doc_comment_stands_alone", leaning(&files)),
        ("no_line_of_a_comment_is_too_long", long(&files)),
    ];
    let mut text = String::new();
    let mut failed = 0;
    for (name, lines) in &checks {
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
        failed += usize::from(!lines.is_empty());
        let _ = writeln!(text, "test names::{name} ... {}", if lines.is_empty() { "ok" } else { "FAILED" });
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = checks.len() - failed;
    let _ = writeln!(text, "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    Ok((text, failed == 0))
}

/// All files of the repository with code, by their names from its top, and what is in them.
fn files(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let mut names = Vec::new();
    for folder in FOLDERS {
        layers::walk(root, Path::new(folder), &mut names).map_err(|error| format!("{folder}: {error}"))?;
    }
    let read = |name: PathBuf| {
        let text =
            fs::read_to_string(root.join(&name)).map_err(|error| format!("{}: {error}", name.display()))?;
        Ok((name, text))
    };
    names.into_iter().map(read).collect()
}

/// All definitions of the repository.
fn places(root: &Path, files: &[(PathBuf, String)]) -> Result<Vec<Place>, String> {
    let layers = layers::rows_of_files(root)?;
    let mut places = Vec::new();
    for (file, text) in files {
        let name = file.display().to_string();
        for definition in definitions::of(text).map_err(|error| format!("{name}: {error}"))? {
            places.push(Place { file: name.clone(), layer: layers.get(file).cloned(), definition });
        }
    }
    Ok(places)
}

/// A line for each doc comment that leans on another one.
fn leaning(files: &[(PathBuf, String)]) -> Vec<String> {
    let of_file = |(file, text): &(PathBuf, String)| {
        let all = comments::leaning(text).into_iter();
        let says = all.map(|(line, words)| {
            format!("{}:{line}: the doc comment begins with {words:?}: say what the item is", file.display())
        });
        says.collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// A line for each line of a comment that is too long.
fn long(files: &[(PathBuf, String)]) -> Vec<String> {
    let of_file = |(file, text): &(PathBuf, String)| {
        let all = comments::long(text).into_iter();
        let says = all.map(|(line, length)| {
            format!("{}:{line}: the comment has {length} characters: break the line", file.display())
        });
        says.collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// Types that are called by a participle alone, and exceptions for which there is none.
fn participles(places: &[Place], allowed: &[Exception]) -> Vec<String> {
    let types = places.iter().filter(|place| place.definition.kind == Kind::Type);
    let found: Vec<_> = types.filter(|place| words::is_participle(&place.definition.name)).collect();
    judge(&found, allowed, |name| format!("the type {name} is named by a participle alone"))
}

/// Constants whose name is no more than that something waits or takes turns, and exceptions for which there
/// is none.
fn mute(places: &[Place], allowed: &[Exception]) -> Vec<String> {
    let constants = places.iter().filter(|place| place.definition.kind == Kind::Constant);
    let found: Vec<_> = constants.filter(|place| MUTE.contains(&place.definition.name.as_str())).collect();
    judge(&found, allowed, |name| format!("the constant {name} does not say what waits, or what is counted"))
}

/// A line for each that no exception permits, and for each exception that permits none.
fn judge(found: &[&Place], allowed: &[Exception], fault: impl Fn(&str) -> String) -> Vec<String> {
    let permits = |below: &str, name: &str, place: &Place| {
        place.definition.name == name && place.file.starts_with(below)
    };
    let exceptions: Vec<_> = allowed
        .iter()
        .flat_map(|exception| exception.names.iter().map(|name| (exception.below, *name)))
        .collect();
    let wrong = found
        .iter()
        .filter(|place| !exceptions.iter().any(|(below, name)| permits(below, name, place)))
        .map(|place| format!("{}: {}", place.file, fault(&place.definition.name)));
    let stale = exceptions
        .iter()
        .filter(|(below, name)| !found.iter().any(|place| permits(below, name, place)))
        .map(|(below, name)| format!("{LIST}: {name} below {below} is no exception any more"));
    wrong.chain(stale).collect()
}

/// Names that public types of one layer share, and exceptions for which there are no two.
fn namesakes(places: &[Place], allowed: &[Homonym]) -> Vec<String> {
    let mut found: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for place in places {
        let definition = &place.definition;
        if let (Some(layer), Kind::Type, true) = (&place.layer, definition.kind, definition.is_public) {
            found.entry((layer, &definition.name)).or_default().push(&place.file);
        }
    }
    found.retain(|_, files| files.len() > 1);
    let permits = |exception: &Homonym, layer: &str, name: &str| {
        exception.layer == layer && exception.names.contains(&name)
    };
    let wrong = found
        .iter()
        .filter(|((layer, name), _)| !allowed.iter().any(|exception| permits(exception, layer, name)));
    let wrong = wrong.map(|((layer, name), files)| {
        format!("{}: the layer \"{layer}\" has several public types called {name}", files.join(", "))
    });
    let exceptions =
        allowed.iter().flat_map(|exception| exception.names.iter().map(move |name| (exception.layer, *name)));
    let stale = exceptions.filter(|exception| !found.contains_key(exception));
    let stale = stale.map(|(layer, name)| format!("{LIST}: {name} of \"{layer}\" is no exception any more"));
    wrong.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, Option<&str>, &str)]) -> Vec<Place> {
        let all = files.iter().flat_map(|&(file, layer, text)| {
            definitions::of(text).expect("Rust").into_iter().map(move |definition| Place {
                file: file.to_owned(),
                layer: layer.map(str::to_owned),
                definition,
            })
        });
        all.collect()
    }

    #[test]
    fn lone_participles_are_refused_unless_there_is_a_reason() {
        let places = places(&[
            ("crates/a/src/b.rs", None, "struct Told; enum SentNak {} type Segments = ();"),
            ("crates/c/tests/d.rs", None, "trait Seen {} struct Seed;"),
        ]);
        let exception = |below, names| Exception { below, names, reason: "" };
        assert_eq!(
            participles(&places, &[exception("crates/c", &["Seed"])]),
            [
                "crates/a/src/b.rs: the type Told is named by a participle alone",
                "crates/c/tests/d.rs: the type Seen is named by a participle alone"
            ]
        );
        let all = [
            exception("crates/a", &["Told"]),
            exception("crates/c", &["Seed"]),
            exception("crates", &["Seen"]),
        ];
        assert_eq!(participles(&places, &all), [""; 0]);
        let elsewhere = [all[1], all[2], exception("crates/c", &["Told"])];
        assert_eq!(
            participles(&places, &elsewhere),
            [
                "crates/a/src/b.rs: the type Told is named by a participle alone",
                "crates/xtask/src/names/allowed.rs: Told below crates/c is no exception any more"
            ]
        );
    }

    #[test]
    fn limits_need_a_subject() {
        let text = "const PATIENCE: u8 = 1; mod m { pub static TURN: u8 = 2; } const LINGER_TIMEOUT: u8 = 3; fn f() { const PATIENCE: u8 = 4; }";
        let line = |name| format!("a.rs: the constant {name} does not say what waits, or what is counted");
        assert_eq!(
            mute(&places(&[("a.rs", None, text)]), &[]),
            [line("PATIENCE"), line("TURN"), line("PATIENCE")]
        );
    }

    #[test]
    fn public_types_of_one_layer_have_one_meaning() {
        let places = places(&[
            (
                "a.rs",
                Some("low"),
                "pub struct Lane; pub(crate) enum Place {} struct Kind; pub(super) struct Look;",
            ),
            ("b.rs", Some("low"), "pub(crate) trait Lane {} pub struct Kind; pub(crate) struct Look;"),
            ("c.rs", Some("high"), "pub struct Place;"),
            ("d.rs", None, "pub struct Place;"),
        ]);
        assert_eq!(
            namesakes(&places, &[]),
            ["a.rs, b.rs: the layer \"low\" has several public types called Lane"]
        );
        let allowed = Homonym { layer: "low", names: &["Lane"], reason: "" };
        assert_eq!(namesakes(&places, &[allowed]), [""; 0]);
        let more = Homonym { names: &["Lane", "Place"], ..allowed };
        assert_eq!(
            namesakes(&places, &[more]),
            ["crates/xtask/src/names/allowed.rs: Place of \"low\" is no exception any more"]
        );
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(PARTICIPLES.iter().chain(CONSTANTS).all(|exception| !exception.reason.is_empty()));
        assert!(NAMESAKES.iter().all(|exception| !exception.reason.is_empty()));
    }
}
