//! What valgrind and the sanitizers are told about our libraries, so that they report the program's own
//! mistakes alone. It is set whatever the program is: in a job, the program that a sanitizer was built into
//! is a child of a child. What the user has set stays, and wins.

use crate::libraries;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Valgrind's variable.
pub(crate) const VALGRIND: &str = "VALGRIND_OPTS";

/// Options for one checker.
#[derive(Debug)]
pub(crate) struct Checker {
    /// The variable that it reads them from.
    pub(crate) variable: &'static str,
    /// Ours.
    pub(crate) option: OsString,
    /// What stands between options. Of two for the same thing, the checker takes the later.
    pub(crate) separator: u8,
}

impl Checker {
    /// The value of the variable, given the present one; none if ours is in it already.
    pub(crate) fn value(&self, present: Option<&OsStr>) -> Option<OsString> {
        let (ours, present) = (self.option.as_bytes(), present.unwrap_or_default().as_bytes());
        if present.is_empty() {
            return Some(self.option.clone());
        }
        let has = present.windows(ours.len()).any(|part| part == ours);
        (!has).then(|| OsString::from_vec([ours, &[self.separator], present].concat()))
    }
}

/// All checkers, for the libraries in `folder`.
pub(crate) fn all(folder: &Path) -> Vec<Checker> {
    let sanitizer = |variable, option: &str| Checker { variable, option: option.into(), separator: b':' };
    let mut all = vec![
        // It wants to be loaded first, as our libraries do: nothing that it watches is in them.
        sanitizer("ASAN_OPTIONS", "verify_asan_link_order=0"),
        // It does not see what our libraries do to keep their threads apart, since they were built without
        // it.
        sanitizer("TSAN_OPTIONS", "ignore_noninstrumented_modules=1"),
    ];
    if let Some(file) = suppressions(folder) {
        all.push(Checker { variable: VALGRIND, option: suppressing(&file), separator: b' ' });
    }
    all
}

/// The option that names a file of suppressions.
pub(crate) fn suppressing(file: &Path) -> OsString {
    OsString::from_vec([b"--suppressions=", file.as_os_str().as_bytes()].concat())
}

/// The file for valgrind: installed, it has a place of its own. None if it is not there, or has a name that
/// VALGRIND_OPTS cannot express.
pub(crate) fn suppressions(folder: &Path) -> Option<PathBuf> {
    let prefix = folder.parent().and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("share/adverb").join(libraries::SUPPRESSIONS));
    let beside = folder.join(libraries::SUPPRESSIONS);
    let file = if beside.is_file() { Some(beside) } else { installed.filter(|file| file.is_file()) };
    file.filter(|file| !file.as_os_str().as_bytes().iter().any(u8::is_ascii_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_user_stay_and_come_last() {
        let checker = Checker { variable: "X", option: "a=1".into(), separator: b':' };
        let value = |present: Option<&str>| checker.value(present.map(OsStr::new));
        assert_eq!(value(None).as_deref(), Some(OsStr::new("a=1")));
        assert_eq!(value(Some("")).as_deref(), Some(OsStr::new("a=1")));
        assert_eq!(value(Some("a=0:b=2")).as_deref(), Some(OsStr::new("a=1:a=0:b=2")));
        assert_eq!(value(Some("a=1:a=0")), None, "a run within a run");
    }
}
