//! Sets the requirements against the citations: the table, the listing, what is missing.

use super::citation::Citation;
use super::list::{Requirement, Standard};
use std::collections::BTreeMap;
use std::fmt::Write;

pub(crate) struct Coverage<'a> {
    standards: &'a [Standard],
    /// The citations of each ID.
    places: BTreeMap<&'a str, Vec<&'a Citation>>,
}

/// One line of the table.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) requirements: usize,
    pub(crate) in_code: usize,
    pub(crate) in_tests: usize,
    pub(crate) not_applicable: usize,
    pub(crate) uncited: usize,
}

impl<'a> Coverage<'a> {
    pub(crate) fn new(standards: &'a [Standard], citations: &'a [Citation]) -> Self {
        let mut places: BTreeMap<&str, Vec<&Citation>> = BTreeMap::new();
        for citation in citations {
            places.entry(&citation.id).or_default().push(citation);
        }
        Self { standards, places }
    }

    /// IDs that are cited and do not exist, requirements that nothing cites, and files that say so although
    /// all is cited.
    pub(crate) fn problems(&self) -> Vec<String> {
        let known = |id: &str| self.requirements().any(|r| r.id == id);
        let unknown = self.places.iter().filter(|(id, _)| !known(id));
        let unknown = unknown.flat_map(|(id, places)| {
            places.iter().map(move |c| format!("{}:{}: there is no {id} in specs/", c.file, c.line))
        });
        let finished = self.standards.iter().filter(|s| !s.waiting).flat_map(|s| &s.requirements);
        let uncited = finished.filter(|r| self.is_uncited(r));
        let uncited = uncited.map(|r| format!("nothing cites {}: {}", r.id, r.text));
        let idle = self.waiting().filter(|&(_, uncited)| uncited == 0);
        let idle = idle.map(|(s, _)| format!("{} says `not yet cited`, but all is cited", s.name));
        unknown.chain(uncited).chain(idle).collect()
    }

    /// The files that say that not all is cited yet, and how many of their requirements are not.
    fn waiting(&self) -> impl Iterator<Item = (&'a Standard, usize)> {
        let waiting = self.standards.iter().filter(|s| s.waiting);
        waiting.map(|s| (s, self.counts(&s.requirements).uncited))
    }

    pub(crate) fn table(&self) -> String {
        let mut table =
            format!("{:<14}  requirements  cited in code  cited in tests  n/a  uncited  title\n", "standard");
        let mut total = Counts::default();
        for standard in self.standards {
            let counts = self.counts(&standard.requirements);
            total = total.plus(counts);
            counts.row(&mut table, &standard.name, &standard.title);
        }
        total.row(&mut table, "all", "");
        for (standard, uncited) in self.waiting() {
            let _ = writeln!(table, "not yet cited: {uncited} requirements of {}", standard.name);
        }
        table
    }

    /// Each requirement with the places that cite it.
    pub(crate) fn listing(&self) -> String {
        let mut listing = String::new();
        for r in self.requirements() {
            let _ = writeln!(listing, "{} {} {}", r.id, r.level, r.text);
            if let Some(reason) = &r.not_applicable {
                let _ = writeln!(listing, "    n/a: {reason}");
            }
            for c in self.places_of(r) {
                let _ = writeln!(
                    listing,
                    "    {} {}:{}",
                    if c.in_test { "test" } else { "code" },
                    c.file,
                    c.line
                );
            }
        }
        listing.push('\n');
        listing
    }

    pub(crate) fn counts(&self, requirements: &[Requirement]) -> Counts {
        let count = |f: &dyn Fn(&Requirement) -> bool| requirements.iter().filter(|r| f(r)).count();
        Counts {
            requirements: requirements.len(),
            in_code: count(&|r| self.places_of(r).iter().any(|c| !c.in_test)),
            in_tests: count(&|r| self.places_of(r).iter().any(|c| c.in_test)),
            not_applicable: count(&|r| r.not_applicable.is_some()),
            uncited: count(&|r| self.is_uncited(r)),
        }
    }

    fn requirements(&self) -> impl Iterator<Item = &'a Requirement> {
        self.standards.iter().flat_map(|s| &s.requirements)
    }

    fn places_of(&self, requirement: &Requirement) -> &[&'a Citation] {
        self.places.get(requirement.id.as_str()).map_or(&[], Vec::as_slice)
    }

    fn is_uncited(&self, requirement: &Requirement) -> bool {
        requirement.not_applicable.is_none() && self.places_of(requirement).is_empty()
    }
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            requirements: self.requirements + other.requirements,
            in_code: self.in_code + other.in_code,
            in_tests: self.in_tests + other.in_tests,
            not_applicable: self.not_applicable + other.not_applicable,
            uncited: self.uncited + other.uncited,
        }
    }

    fn row(self, table: &mut String, name: &str, title: &str) {
        let Self { requirements, in_code, in_tests, not_applicable, uncited } = self;
        let line = format!(
            "{name:<14}  {requirements:>12}  {in_code:>13}  {in_tests:>14}  {not_applicable:>3}  {uncited:>7}  {title}"
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
}
