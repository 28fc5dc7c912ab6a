//! The environment variables that put our libraries in front of a program's own.

use crate::failure::Failure;
use crate::libraries;
use adverb_core::setting;
use adverb_core::transport::TransportFactory;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Names the devices that a program sees.
pub(crate) const DEVICE: &str = "ADVERB_DEVICE";
/// Folders that the dynamic linker searches first.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Libraries that the dynamic linker loads before all others; beats a program's own DT_RPATH.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Names the folder with the devices' files to the preloaded library.
pub(crate) const FILES: &str = "ADVERB_FILES";

/// The transports of this version.
pub(crate) const TRANSPORTS: &[TransportFactory] = &[adverb_roce::FACTORY, adverb_iwarp::FACTORY];

/// What to put in front of [`LIBRARY_PATH`] and [`PRELOAD`].
#[derive(Debug)]
pub(crate) struct Front {
    /// The library folder.
    pub(crate) library_path: OsString,
    /// The libraries.
    pub(crate) preload: Vec<OsString>,
}

impl Front {
    /// For the libraries in `folder`; with the one that makes rsockets of sockets if `rsockets` says so.
    ///
    /// # Errors
    /// When `folder` contains a character that the dynamic linker takes for a separator in LD_LIBRARY_PATH.
    pub(crate) fn new(folder: &Path, rsockets: bool) -> Result<Self, Failure> {
        let bytes = folder.as_os_str().as_bytes();
        if bytes.iter().any(|byte| b":;".contains(byte)) {
            return Err(Failure::own(format!(
                "the library folder {} has a colon or semicolon in its name, which LD_LIBRARY_PATH cannot express: \
                 move it",
                folder.display()
            )));
        }
        // LD_PRELOAD knows no quoting; where the path has a space, the bare name is found through LD_LIBRARY_PATH.
        let spaced = bytes.contains(&b' ');
        let place =
            |name: &&str| if spaced { OsString::from(name) } else { folder.join(name).into_os_string() };
        let mut names = vec![libraries::VERBS, libraries::CM, libraries::PRELOAD];
        names.extend(rsockets.then_some(libraries::RSOCKETS));
        let preload = names.iter().map(place).collect();
        Ok(Self { library_path: folder.as_os_str().to_owned(), preload })
    }

    /// The value of LD_LIBRARY_PATH, given the present one.
    pub(crate) fn library_path_before(&self, present: Option<&OsStr>) -> OsString {
        prepend(std::slice::from_ref(&self.library_path), present, |byte| byte == b':' || byte == b';')
    }

    /// The value of LD_PRELOAD, given the present one.
    pub(crate) fn preload_before(&self, present: Option<&OsStr>) -> OsString {
        prepend(&self.preload, present, |byte| byte == b':' || byte == b' ')
    }
}

/// `front`, then what `present` has beside it. Empty entries of `present` go: in LD_LIBRARY_PATH they would mean the
/// current folder.
fn prepend(front: &[OsString], present: Option<&OsStr>, separator: fn(u8) -> bool) -> OsString {
    let present = present.map(OsStr::as_bytes).unwrap_or_default();
    let rest = present
        .split(|&byte| separator(byte))
        .filter(|entry| !entry.is_empty() && !front.iter().any(|ours| ours.as_bytes() == *entry));
    let all: Vec<&[u8]> = front.iter().map(|entry| entry.as_bytes()).chain(rest).collect();
    OsString::from_vec(all.join(&b':'))
}

fn devices() -> Vec<&'static str> {
    TRANSPORTS.iter().map(|transport| transport.device).collect()
}

/// Looks at the variables that the user has set; `device` overrides one of them.
///
/// # Errors
/// Names the first whose value means nothing, and what is allowed.
pub(crate) fn check(device: Option<&str>) -> Result<(), Failure> {
    let overridden = device.map(|_| DEVICE);
    let wrong = setting::wrong(&devices()).into_iter().find(|(name, _)| Some(*name) != overridden);
    wrong.map_or(Ok(()), |(_, text)| Err(Failure::usage(text)))
}

/// The variables that name a file relative to this folder, with its absolute name: a program, or a child of it, may go elsewhere before it writes.
pub(crate) fn absolute_files() -> Vec<(&'static str, String)> {
    let Ok(folder) = std::env::current_dir() else { return Vec::new() };
    let absolute = |name| {
        let value = setting::variable(name)?;
        Some((name, setting::with_absolute_file(name, &value, &folder)?))
    };
    setting::SETTINGS.iter().filter_map(|setting| absolute(setting.name)).collect()
}

/// Checks a comma list of device names.
///
/// # Errors
/// A text for the user that names the wrong entry and what exists.
pub(crate) fn device_list(list: &str) -> Result<String, String> {
    list.split(',').try_for_each(|name| device(name).map(drop))?;
    Ok(list.to_owned())
}

/// Checks the name of one device.
///
/// # Errors
/// As [`device_list`].
pub(crate) fn device(name: &str) -> Result<String, String> {
    let known = devices();
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    let known = known.join(", ");
    Err(match name {
        "" => format!("an empty device name; devices: {known}"),
        _ => format!("there is no device '{name}'; devices: {known}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_first_and_the_rest_stays() {
        let front = Front::new(Path::new("/a/libs"), false).expect("plain path");
        assert_eq!(front.library_path_before(None), "/a/libs");
        assert_eq!(front.library_path_before(Some(OsStr::new("/x::/y"))), "/a/libs:/x:/y");
        assert_eq!(
            front.preload_before(Some(OsStr::new("one.so two.so"))),
            "/a/libs/libibverbs.so.1:/a/libs/librdmacm.so.1:/a/libs/libadverb_preload.so:one.so:two.so"
        );
    }

    #[test]
    fn nesting_adds_nothing() {
        let front = Front::new(Path::new("/a/libs"), false).expect("plain path");
        let once = front.preload_before(Some(OsStr::new("one.so")));
        assert_eq!(front.preload_before(Some(&once)), once);
        let once = front.library_path_before(Some(OsStr::new("/x")));
        assert_eq!(front.library_path_before(Some(&once)), once);
    }

    #[test]
    fn paths_that_the_linker_cannot_express() {
        let front = Front::new(Path::new("/a b/libs"), true).expect("a space is fine in LD_LIBRARY_PATH");
        assert_eq!(
            front.preload_before(None),
            "libibverbs.so.1:librdmacm.so.1:libadverb_preload.so:librspreload.so"
        );
        assert!(Front::new(Path::new("/a:b"), false).is_err());
    }

    #[test]
    fn device_lists() {
        assert_eq!(device_list("iwarp0").as_deref(), Ok("iwarp0"));
        assert_eq!(
            device_list("iwarp0,mlx5_0").expect_err("unknown"),
            "there is no device 'mlx5_0'; devices: roce0, iwarp0"
        );
        assert!(device_list("").expect_err("empty").starts_with("an empty device name"));
        assert!(device_list("iwarp0,").is_err());
    }
}
