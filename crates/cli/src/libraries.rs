//! Where the drop-in libraries are: beside an installed command, in the build tree that it was built in, or
//! in the command's own file.

use crate::embedded;
use crate::failure::Failure;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The names that the dynamic linker looks for: the one that programs are linked with comes first.
pub(crate) const VERBS: &str = "libibverbs.so.1";
/// The connection manager's library.
pub(crate) const CM: &str = "librdmacm.so.1";

/// The library that shows the files of RDMA devices.
pub(crate) const PRELOAD: &str = "libadverb_preload.so";

/// The library that makes rsockets of a program's sockets.
pub(crate) const RSOCKETS: &str = "librspreload.so";

/// The file of suppressions for valgrind.
pub(crate) const SUPPRESSIONS: &str = "valgrind.supp";

/// Each name in the library folder and the file in the build tree that it stands for; the name that programs
/// are linked with first.
pub(crate) const LINKS: [(&str, &str); 6] = [
    (VERBS, "libibverbs.so"),
    ("libibverbs.so", "libibverbs.so"),
    (CM, "librdmacm.so"),
    ("librdmacm.so", "librdmacm.so"),
    (PRELOAD, PRELOAD),
    (RSOCKETS, RSOCKETS),
];

/// What is in the file of suppressions.
pub(crate) const SUPPRESSIONS_TEXT: &str = include_str!("valgrind.supp");

/// The name of the folder of links in a build tree.
const LINK_FOLDER: &str = "adverb-libs";

/// The absolute path of the folder that holds the drop-in libraries under the names that programs ask for.
///
/// # Errors
/// Says which command builds missing libraries, or why the folder of links cannot be made.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    let exe = own_file().map_err(|e| Failure::own(format!("cannot find my own file: {e}")))?;
    let beside = exe.parent().ok_or_else(|| Failure::own(format!("{} has no folder", exe.display())))?;
    folder_for(beside)
}

/// The file of this command. Where there is no /proc, the kernel still says by what name it was started
/// (getauxval(3)).
pub(crate) fn own_file() -> io::Result<PathBuf> {
    std::env::current_exe().or_else(|error| {
        // SAFETY: takes a number; what it returns, unless it is 0, is a C string that stays as long as the
        // process.
        let name = unsafe {
            let name = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
            if name.is_null() {
                return Err(error);
            }
            CStr::from_ptr(name)
        };
        fs::canonicalize(OsStr::from_bytes(name.to_bytes()))
    })
}

fn folder_for(beside: &Path) -> Result<PathBuf, Failure> {
    if let Some(installed) = beside.parent().map(|prefix| prefix.join("lib/adverb"))
        && [VERBS, CM, PRELOAD, RSOCKETS].iter().all(|name| installed.join(name).is_file())
    {
        return Ok(installed);
    }
    let missing: Vec<_> = ["libibverbs.so", "librdmacm.so", PRELOAD, RSOCKETS]
        .into_iter()
        .filter(|name| !beside.join(name).is_file())
        .collect();
    if !missing.is_empty() && embedded::is_here() {
        return embedded::folder();
    }
    if !missing.is_empty() {
        let release = if beside.ends_with("debug") { "" } else { " --release" };
        return Err(Failure::own(format!(
            "{} missing in {}. Build the libraries in the source tree:\n\n    \
             cargo build{release}\n\n\
             A command that was copied from there finds them no more: run it where it was built, or use what `cargo xtask dist` makes, \
             where {VERBS}, {CM}, {PRELOAD} and {RSOCKETS} lie in ../lib/adverb/",
            missing.join(" and "),
            beside.display(),
        )));
    }
    let folder = beside.join(LINK_FOLDER);
    make_links(&folder).map_err(|e| {
        Failure::own(format!(
            "cannot make the folder of library links {}: {e}. Make the folder writable once, or install: \
             {VERBS}, {CM}, {PRELOAD} and {RSOCKETS} go into ../lib/adverb/ beside the command's folder",
            folder.display()
        ))
    })?;
    Ok(folder)
}

/// Makes every link that is not right yet, and the file of suppressions. Several processes may do this at
/// once: a link is made under a name of its own and moved into place, so at every instant each name is either
/// absent (the first time) or right. A folder that is right already is not written to.
fn make_links(folder: &Path) -> io::Result<()> {
    for (name, file) in LINKS {
        let link = folder.join(name);
        let target = Path::new("..").join(file);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".{name}.{}", std::process::id()));
        match fs::remove_file(&draft) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => symlink(&target, &draft)?,
        }
        fs::rename(&draft, &link)?;
    }
    let file = folder.join(SUPPRESSIONS);
    if fs::read_to_string(&file).is_ok_and(|found| found == SUPPRESSIONS_TEXT) {
        return Ok(());
    }
    let draft = folder.join(format!(".{SUPPRESSIONS}.{}", std::process::id()));
    fs::write(&draft, SUPPRESSIONS_TEXT)?;
    fs::rename(&draft, &file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes away when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("adverb-libraries-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("temporary folder");
            Self(path)
        }

        fn file(&self, name: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().expect("inside")).expect("folder");
            fs::write(path, name).expect("file");
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_build_tree_gets_links_once() {
        let tree = Folder::new("links");
        tree.file("debug/libibverbs.so");
        tree.file("debug/librdmacm.so");
        tree.file("debug/libadverb_preload.so");
        tree.file("debug/librspreload.so");
        let folder = folder_for(&tree.0.join("debug")).expect("complete");
        assert_eq!(folder, tree.0.join("debug/adverb-libs"));
        for (name, file) in LINKS {
            assert_eq!(fs::read_to_string(folder.join(name)).expect("link"), format!("debug/{file}"));
        }
        assert!(fs::read_to_string(folder.join(SUPPRESSIONS)).expect("file").contains("obj:*libibverbs.so*"));
        let made =
            |name: &str| fs::symlink_metadata(folder.join(name)).expect("link").modified().expect("time");
        let before = made(VERBS);
        folder_for(&tree.0.join("debug")).expect("still complete");
        assert_eq!(made(VERBS), before, "a right link is left alone");
    }

    #[test]
    fn a_wrong_link_is_replaced() {
        let tree = Folder::new("wrong");
        tree.file("release/libibverbs.so");
        tree.file("release/librdmacm.so");
        tree.file("release/libadverb_preload.so");
        tree.file("release/librspreload.so");
        fs::create_dir(tree.0.join("release/adverb-libs")).expect("folder");
        symlink("/nowhere", tree.0.join("release/adverb-libs").join(CM)).expect("link");
        let folder = folder_for(&tree.0.join("release")).expect("complete");
        assert_eq!(fs::read_link(folder.join(CM)).expect("link"), Path::new("../librdmacm.so"));
    }

    #[test]
    fn an_installed_command_uses_its_own_libraries() {
        let prefix = Folder::new("installed");
        prefix.file("lib/adverb/libibverbs.so.1");
        prefix.file("lib/adverb/librdmacm.so.1");
        prefix.file("lib/adverb/libadverb_preload.so");
        prefix.file("lib/adverb/librspreload.so");
        fs::create_dir(prefix.0.join("bin")).expect("folder");
        assert_eq!(folder_for(&prefix.0.join("bin")).expect("complete"), prefix.0.join("lib/adverb"));
    }

    #[test]
    fn missing_libraries_name_the_command_that_builds_them() {
        let tree = Folder::new("missing");
        tree.file("debug/libibverbs.so");
        let failure = folder_for(&tree.0.join("debug")).expect_err("one is missing");
        let text = failure.to_string();
        assert!(
            text.starts_with("librdmacm.so and libadverb_preload.so and librspreload.so missing in "),
            "{text}"
        );
        assert!(text.contains("cargo build\n"), "{text}");
    }
}
