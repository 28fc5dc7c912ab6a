//! The drop-in libraries of a command that `cargo install` has made: they are in its own file, and are
//! unpacked once, into a folder of the user's. The plug-in for pytest comes with them.

use crate::failure::Failure;
use crate::libraries;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The plug-in for pytest. Packages have it in share/adverb.
const PLUG_IN: &str = "pytest_adverb.py";
const PLUG_IN_TEXT: &str = include_str!("pytest_adverb.py");

// The files, each with its name; none in a command that finds them beside itself. DIGEST tells those of one
// build from those of another.
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Whether this command carries its libraries.
pub(crate) fn is_here() -> bool {
    !LIBRARIES.is_empty()
}

/// The absolute path of the folder with the libraries, under the names that programs ask for. It stays:
/// programs of `adverb run` may start others after it has ended.
///
/// # Errors
/// Names the folders that were tried, and why none can be used.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    let name = format!("{}-{DIGEST}", env!("CARGO_PKG_VERSION"));
    let mut why = String::new();
    for place in places(|variable| std::env::var_os(variable).map(PathBuf::from)) {
        match unpacked(&place, &name, LIBRARIES) {
            Ok(folder) => return Ok(folder),
            Err(e) => why += &format!("\n    {}: {e}", place.display()),
        }
    }
    Err(Failure::own(format!(
        "nowhere to unpack the libraries. Set XDG_CACHE_HOME to a folder of yours that can be written to.{why}"
    )))
}

/// Where the libraries may be unpacked, the best first.
fn places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let others = std::env::temp_dir().join(format!("adverb-{user}"));
    cache
        .map(|cache| cache.join("adverb"))
        .into_iter()
        .chain([others])
        .filter(|place| place.is_absolute())
        .collect()
}

/// The folder `name` in `place` with all the files, made if need be. Several processes may do so at once: a
/// folder gets its name when it is whole. `place` itself has a link to the plug-in that was unpacked last:
/// its path has no digest in it, so that users can write it down.
fn unpacked(place: &Path, name: &str, files: &[(&str, &[u8])]) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(place)?;
    nobody_elses(place)?;
    let folder = place.join(name);
    if is_whole(&folder, files) {
        if !place.join(PLUG_IN).exists() {
            link_plug_in(place, name);
        }
        return Ok(folder);
    }
    let draft = place.join(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    let made = fill(&draft, files).and_then(|()| {
        // What was there before was damaged. Somebody else's, whole by now, stays.
        if !is_whole(&folder, files) {
            let _ = fs::remove_dir_all(&folder);
        }
        fs::rename(&draft, &folder)
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    match made {
        Err(e) if !is_whole(&folder, files) => Err(e),
        _ => {
            link_plug_in(place, name);
            Ok(folder)
        }
    }
}

/// Has the link in `place` lead to the plug-in of the folder `name`. Devices do not need it, so a place that
/// cannot be written to is no failure.
fn link_plug_in(place: &Path, name: &str) {
    let draft = place.join(format!(".{PLUG_IN}.{}", std::process::id()));
    let _ = fs::remove_file(&draft);
    let made =
        symlink(Path::new(name).join(PLUG_IN), &draft).and_then(|()| fs::rename(&draft, place.join(PLUG_IN)));
    if made.is_err() {
        let _ = fs::remove_file(&draft);
    }
}

/// Libraries that others could change would be their way into the user's programs.
fn nobody_elses(place: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(place)?;
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write there"))
}

/// Each name in the folder, and the file that it stands for: itself, or the one that it is a link to.
fn names<'a>(files: &'a [(&'a str, &[u8])]) -> impl Iterator<Item = (&'static str, &'static str, &'a [u8])> {
    libraries::LINKS.iter().filter_map(|&(name, from)| {
        let (_, bytes) = files.iter().find(|(file, _)| *file == from)?;
        // The first name of a file is the file.
        let (first, _) = libraries::LINKS.iter().find(|(_, other)| *other == from)?;
        Some((name, *first, *bytes))
    })
}

fn is_whole(folder: &Path, files: &[(&str, &[u8])]) -> bool {
    names(files).all(|(name, _, bytes)| {
        fs::metadata(folder.join(name)).is_ok_and(|found| found.len() == bytes.len() as u64)
    }) && [libraries::SUPPRESSIONS, PLUG_IN].iter().all(|name| folder.join(name).is_file())
}

fn fill(draft: &Path, files: &[(&str, &[u8])]) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(draft)?;
    for (name, first, bytes) in names(files) {
        let path = draft.join(name);
        if name == first { fs::write(path, bytes)? } else { symlink(first, path)? }
    }
    fs::write(draft.join(PLUG_IN), PLUG_IN_TEXT)?;
    fs::write(draft.join(libraries::SUPPRESSIONS), libraries::SUPPRESSIONS_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FILES: &[(&str, &[u8])] = &[
        ("libibverbs.so", b"verbs"),
        ("librdmacm.so", b"cm"),
        ("libadverb_preload.so", b"files"),
        ("librspreload.so", b"sockets"),
    ];

    /// A folder of the user's, which goes when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("adverb-embedded-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            DirBuilder::new().mode(0o700).create(&path).expect("temporary folder");
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What is in a folder, in the order of the names.
    fn names_in(folder: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().expect("text")).collect();
        names.sort();
        names
    }

    #[test]
    fn each_name_leads_to_its_library_and_a_second_name_to_the_same_file() {
        let place = Place::new("names");
        let folder = unpacked(&place.0, "1", FILES).expect("unpacked");
        assert_eq!(fs::read(folder.join("libibverbs.so.1")).expect("a file"), b"verbs");
        assert_eq!(fs::read(folder.join("librspreload.so")).expect("a file"), b"sockets");
        // Two files would be two engines in a program that asks for both names.
        let inode = |name: &str| fs::metadata(folder.join(name)).expect("a file").ino();
        assert_eq!(inode("libibverbs.so"), inode("libibverbs.so.1"));
        assert_eq!(names_in(&place.0), ["1", PLUG_IN], "drafts are gone");
    }

    #[test]
    fn the_plug_in_has_a_path_that_stays_and_is_that_of_the_last_build() {
        let place = Place::new("plug-in");
        let path = place.0.join(PLUG_IN);
        let leads_to = || fs::read_link(&path).expect("a link");
        unpacked(&place.0, "1", FILES).expect("unpacked");
        assert_eq!(fs::read_to_string(&path).expect("a file"), PLUG_IN_TEXT);
        unpacked(&place.0, "2", FILES).expect("unpacked");
        assert_eq!(leads_to(), Path::new("2").join(PLUG_IN));
        // A build whose folder is there leaves the link alone, unless it leads nowhere.
        unpacked(&place.0, "1", FILES).expect("there");
        assert_eq!(leads_to(), Path::new("2").join(PLUG_IN));
        fs::remove_dir_all(place.0.join("2")).expect("ours");
        unpacked(&place.0, "1", FILES).expect("there");
        assert_eq!(leads_to(), Path::new("1").join(PLUG_IN));
        assert_eq!(names_in(&place.0), ["1", PLUG_IN]);
    }

    #[test]
    fn a_damaged_folder_is_made_anew_and_a_whole_one_left_alone() {
        let place = Place::new("damaged");
        let folder = unpacked(&place.0, "1", FILES).expect("unpacked");
        let before = fs::metadata(&folder).expect("a folder").ino();
        assert_eq!(unpacked(&place.0, "1", FILES).expect("there"), folder);
        assert_eq!(fs::metadata(&folder).expect("a folder").ino(), before);
        fs::write(folder.join("librdmacm.so.1"), "half").expect("writable");
        fs::write(folder.join("librdmacm.so.1"), "").expect("writable");
        unpacked(&place.0, "1", FILES).expect("made anew");
        assert_eq!(fs::read(folder.join("librdmacm.so.1")).expect("a file"), b"cm");
    }

    #[test]
    fn a_place_that_others_may_write_to_is_refused() {
        let place = Place::new("others");
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).expect("ours");
        let error = unpacked(&place.0, "1", FILES).expect_err("anybody could put libraries there");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_dir(&place.0).expect("a folder").count(), 0, "nothing is left behind");
    }

    #[test]
    fn the_cache_comes_before_the_folder_of_temporary_files() {
        let set = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/me"));
        assert_eq!(places(set)[0], Path::new("/home/me/.cache/adverb"));
        let set = |name: &str| (name == "XDG_CACHE_HOME").then(|| PathBuf::from("relative"));
        assert!(places(set).iter().all(|place| place.is_absolute()));
    }

    #[test]
    fn libraries_in_the_command_are_built_as_in_the_workspace() {
        let build = include_str!("../build.rs");
        let workspace = include_str!("../../../Cargo.toml");
        let (_, profile) = workspace.split_once("[profile.release]").expect("a profile");
        for line in
            profile.lines().filter(|line| line.starts_with("lto") || line.starts_with("codegen-units"))
        {
            assert!(build.contains(&line.replace('"', "\\\"")), "{line}");
        }
    }
}
