use super::citation::{self, Citation};
use super::list::{self, Standard};
use super::report::{Counts, Coverage};
use super::rust;
use std::path::{Path, PathBuf};

const GOOD: &str = "\
# RFC 9: Ninth

Prose is free here.

## 1 One
Text: 3 MUST. IDs: 2.

| ID | Level | In text | Requirement |
|---|---|---|---|
| RFC9-1-1 | MUST | 2 | It works. |
| RFC9-1-2 | SHOULD | 0 | It is quick. n/a: nobody knows. |

Left out:
- 1: same as RFC9-1-1.

## A.2 Two
Text: 1 MUST. IDs: 1.

| ID | Level | In text | Requirement |
|---|---|---|---|
| RFC9-A.2-1 | MUST | 1 | It ends. |
";

const SUBJECT: &str = "\
# IB-X, IB-X-Y: Example

Prose is free here.

## One
Prose is free here, too.

| ID | Level | Source | Requirement |
|---|---|---|---|
| IB-X-1 | MUST | 9.1 | It works. |
| IB-X-3 | MAY | A17 | It is quick. n/a: nobody knows. |

## Two

| ID | Level | Source | Requirement |
|---|---|---|---|
| IB-X-Y-1 | SHOULD | Linux | It ends. |
| IB-X-2 | MUST | 9.2 | It begins, as IB-X-1 says. |
";

fn good() -> Standard {
    let (standard, problems) = list::parse("rfc9", GOOD);
    assert_eq!(problems, [""; 0]);
    standard
}

/// The problems after `from` was replaced by `to` in the good list.
fn problems_with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    let (standard, mut problems) = list::parse("rfc9", &GOOD.replace(from, to));
    problems.extend(list::dangling(&[standard]));
    problems.join("\n")
}

fn cited(file: &str, text: &str) -> Vec<(String, usize, bool)> {
    let mut citations = Vec::new();
    citation::cite(file, text, false, &mut citations);
    citations.into_iter().map(|c| (c.id, c.line, c.in_test)).collect()
}

fn citation(id: &str, in_test: bool) -> Citation {
    Citation { id: id.into(), file: "f".into(), line: 7, in_test }
}

#[test]
fn a_good_list_is_read_whole() {
    let standard = good();
    assert_eq!((standard.name.as_str(), standard.title.as_str()), ("RFC9", "Ninth"));
    let ids: Vec<_> = standard.requirements.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, ["RFC9-1-1", "RFC9-1-2", "RFC9-A.2-1"]);
    assert_eq!(standard.requirements[1].text, "It is quick.");
    assert_eq!(standard.requirements[1].not_applicable.as_deref(), Some("nobody knows."));
    assert_eq!(standard.requirements[0].not_applicable, None);
    assert_eq!(list::dangling(&[standard]), [""; 0]);
}

#[test]
fn a_malformed_list_is_refused() {
    for (from, to, problem) in [
        ("# RFC 9:", "# RFC 8:", "specs/rfc9.md:1: the first line is not"),
        ("Text: 3 MUST. IDs: 2.", "Text: 3.", "specs/rfc9.md:6: expected `Text:"),
        ("Text: 3 MUST", "Text: 4 MUST", "specs/rfc9.md:5: the text has 4 words, the list accounts for 3"),
        ("MUST. IDs: 2", "MUST. IDs: 3", "specs/rfc9.md:5: announces 3 IDs and lists 2"),
        ("| ID | Level |", "| ID | Rank |", "specs/rfc9.md:8: expected `| ID | Level |"),
        ("| RFC9-1-2 |", "| RFC9-1-3 |", "specs/rfc9.md:11: the ID is RFC9-1-3, expected RFC9-1-2"),
        ("| RFC9-1-2 |", "| RFC9-1-1 |", "specs/rfc9.md:11: RFC9-1-1 stands twice"),
        ("| MUST | 2 |", "| OUGHT | 2 |", "specs/rfc9.md:10: level OUGHT"),
        ("| SHOULD | 0 |", "| SHOULD | 1 |", "specs/rfc9.md:11: level SHOULD with 1"),
        ("| MUST | 2 |", "| MUST | two |", "specs/rfc9.md:10: `two` is not a number"),
        ("It works. |", "It works.", "specs/rfc9.md:10: expected a row"),
        ("It works.", "It | works.", "specs/rfc9.md:10: expected a row"),
        ("n/a: nobody knows.", "n/a:", "specs/rfc9.md:11: the requirement or the reason"),
        ("- 1: same", "- same", "specs/rfc9.md:14: expected `- n: reason`"),
        ("same as RFC9-1-1", "same as RFC9-1-9", "specs/rfc9.md:14: there is no RFC9-1-9"),
    ] {
        let problems = problems_with(from, to);
        assert!(problems.contains(problem), "{from} -> {to}: {problems}");
    }
    assert!(!list::parse("rfc9", "# RFC 9: Ninth\n").1.is_empty());
}

#[test]
fn a_list_by_subject_is_read_whole() {
    let (standard, problems) = list::parse("ib-x", SUBJECT);
    assert_eq!(problems, [""; 0]);
    assert_eq!((standard.name.as_str(), standard.title.as_str()), ("IB-X", "Example"));
    let ids: Vec<_> = standard.requirements.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, ["IB-X-1", "IB-X-3", "IB-X-Y-1", "IB-X-2"]);
    assert_eq!(standard.requirements[1].not_applicable.as_deref(), Some("nobody knows."));
    assert!(!standard.waiting);
    assert_eq!(list::dangling(&[standard]), [""; 0]);
}

#[test]
fn a_malformed_list_by_subject_is_refused() {
    for (from, to, problem) in [
        ("# IB-X, IB-X-Y: Example", "# Example", "specs/ib-x.md:1: the first line is not"),
        ("# IB-X, IB-X-Y:", "# IB-X, XY:", "specs/ib-x.md:1: the first line is not"),
        ("# IB-X, IB-X-Y:", "# IB-X, IB-X-Y, IB-Z:", "specs/ib-x.md:1: there is no IB-Z-1"),
        ("## One", "# One", "specs/ib-x.md:8: a row before the first heading"),
        ("| Source | Requirement |", "| Section | Requirement |", "specs/ib-x.md:8: expected `| ID |"),
        ("| IB-X-2 |", "| IB-X-4 |", "specs/ib-x.md:11: there is IB-X-3, but no IB-X-2"),
        ("| IB-X-2 |", "| IB-X-1 |", "specs/ib-x.md:18: IB-X-1 stands twice"),
        ("| IB-X-2 |", "| IB-Z-1 |", "specs/ib-x.md:18: IB-Z-1 is not a prefix"),
        ("| MUST | 9.2 |", "| OUGHT | 9.2 |", "specs/ib-x.md:18: level OUGHT"),
        ("| MUST | 9.2 |", "| MUST | |", "specs/ib-x.md:18: the source is empty"),
        ("It works. |", "It works.", "specs/ib-x.md:10: expected a row"),
        ("n/a: nobody knows.", "n/a:", "specs/ib-x.md:11: the requirement or the reason"),
        ("as IB-X-1 says", "as IB-X-9 says", "specs/ib-x.md:18: there is no IB-X-9"),
    ] {
        assert!(SUBJECT.contains(from), "{from}");
        let (standard, mut problems) = list::parse("ib-x", &SUBJECT.replacen(from, to, 1));
        problems.extend(list::dangling(&[standard]));
        assert!(problems.join("\n").contains(problem), "{from} -> {to}: {problems:?}");
    }
}

#[test]
fn a_file_that_waits_for_citations_is_reported_and_no_error() {
    let waiting = SUBJECT.replace("## One", "Status: not yet cited.\n\n## One");
    let (standard, problems) = list::parse("ib-x", &waiting);
    assert_eq!(problems, [""; 0]);
    let standards = [standard];
    let mut citations = vec![citation("IB-X-1", false)];
    let coverage = Coverage::new(&standards, &citations);
    assert_eq!(coverage.problems(), [""; 0]);
    assert!(coverage.table().ends_with("not yet cited: 2 requirements of IB-X\n"), "{}", coverage.table());
    citations.extend(["IB-X-2", "IB-X-Y-1"].map(|id| citation(id, true)));
    let coverage = Coverage::new(&standards, &citations);
    assert_eq!(coverage.problems(), ["IB-X says `not yet cited`, but all is cited"]);
}

#[test]
fn ids_are_found_in_text() {
    for (text, expected) in [
        (
            "// RFC5044-7.1.2-8, RFC5044-A.4-1: see RFC 5044, RFC5044, RFC5044-7.1 and rfc1-2-3",
            &["RFC5044-7.1.2-8", "RFC5044-A.4-1"][..],
        ),
        ("(IB-RC-REQ-12; ROCE-3), IB-X-4.", &["IB-RC-REQ-12", "ROCE-3", "IB-X-4"]),
        ("IB-PKT, FIB-PKT-1, IB-pkt-1, IB-PKT-n, IB1, ROCE- 1, IB--1", &[]),
    ] {
        assert_eq!(citation::ids(text).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn test_code_is_told_from_code() {
    let text = "\
// RFC9-1-1
fn f() -> char { '{' }
#[cfg(test)]
#[allow(dead_code)]
mod inner {
    // RFC9-1-2 with a brace }
    const S: &str = \"}\"; const R: &str = r#\"\"}\"#; const C: char = '}'; /* } */
    fn g<'a>(x: &'a str) -> &'a str { x } // RFC9-1-3
}
// RFC9-1-4
#[cfg(test)]
fn helper() {}
// RFC9-1-5
";
    let found = cited("crates/x/src/lib.rs", text);
    let expected = [(1, 1, false), (2, 6, true), (3, 8, true), (4, 10, false), (5, 13, false)];
    assert_eq!(found, expected.map(|(n, line, in_test)| (format!("RFC9-1-{n}"), line, in_test)));
}

#[test]
fn test_files_are_told_by_their_path() {
    let is_test = |path: &str| citation::is_test_path(Path::new(path));
    for path in [
        "tests/programs/run",
        "crates/x/tests/a/b.rs",
        "crates/x/src/y/tests.rs",
        "crates/x/src/conformance/z.rs",
        "fuzz/fuzz_targets/f.rs",
    ] {
        assert!(is_test(path), "{path}");
    }
    for path in ["crates/x/src/lib.rs", "crates/x/src/contests.rs", "crates/fuzz/src/lib.rs"] {
        assert!(!is_test(path), "{path}");
    }
}

#[test]
fn modules_in_their_own_files_are_found() {
    let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\npub(crate) mod c;\n#[cfg(test)]\nmod d { }\n";
    let files = |file: &str| rust::test_files(Path::new(file), text);
    let expected = |names: [&str; 4]| names.map(PathBuf::from).to_vec();
    assert_eq!(files("x/lib.rs"), expected(["x/b.rs", "x/b/mod.rs", "x/c.rs", "x/c/mod.rs"]));
    assert_eq!(files("x/y.rs"), expected(["x/y/b.rs", "x/y/b/mod.rs", "x/y/c.rs", "x/y/c/mod.rs"]));
    assert_eq!(files("x/y.md"), expected([""; 4])[..0]);
}

#[test]
fn coverage_counts_and_complains() {
    let standards = [good()];
    let citations = [citation("RFC9-1-1", false), citation("RFC9-1-1", true), citation("RFC9-3-1", true)];
    let coverage = Coverage::new(&standards, &citations);
    let counts = coverage.counts(&standards[0].requirements);
    assert_eq!(counts, Counts { requirements: 3, in_code: 1, in_tests: 1, not_applicable: 1, uncited: 1 });
    let problems = coverage.problems();
    assert_eq!(problems, ["f:7: there is no RFC9-3-1 in specs/", "nothing cites RFC9-A.2-1: It ends."]);
    assert!(coverage.table().contains("RFC9"));
    assert!(coverage.listing().contains("RFC9-1-1 MUST It works.\n    code f:7\n    test f:7\n"));
}
