//! Which paths belong to RDMA devices, and where they are instead.

use std::ffi::{CStr, c_char};

/// What the kernel would fill, in components.
const OURS: [&[&[u8]]; 4] = [
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"sys", b"class", b"infiniband_mad"],
    &[b"dev", b"infiniband"],
];

/// The names under which iproute2's `rdma` is started, and where the one that knows our devices is in the folder.
const COMMANDS: [&[u8]; 5] = [b"rdma", b"/usr/bin/rdma", b"/bin/rdma", b"/usr/sbin/rdma", b"/sbin/rdma"];
const COMMAND: &[u8] = b"/bin/rdma";

/// Longest name of the folder, and longest path that is replaced. What is longer is left alone.
const FOLDER_MAX: usize = 255;
const PATH_MAX: usize = 511;

/// The folder that holds our files, below which each path stands once more.
#[derive(Debug)]
pub(crate) struct Folder {
    bytes: [u8; FOLDER_MAX],
    length: usize,
}

/// A path in place of another, with its terminator.
#[derive(Debug)]
pub(crate) struct Path([u8; FOLDER_MAX + PATH_MAX + 1]);

impl Folder {
    /// The folder with this name; none if the name is not absolute, or too long.
    pub(crate) fn new(name: &CStr) -> Option<Self> {
        let name = name.to_bytes();
        let mut bytes = [0; FOLDER_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        name.starts_with(b"/").then_some(Self { bytes, length: name.len() })
    }

    /// What to open instead of `path`, if it belongs to RDMA devices.
    pub(crate) fn file(&self, path: &[u8]) -> Option<Path> {
        OURS.iter().any(|ours| is_below(path, ours)).then(|| self.join(path))?
    }

    /// What to start instead of `path`, if it shows RDMA devices.
    pub(crate) fn command(&self, path: &[u8]) -> Option<Path> {
        COMMANDS.contains(&path).then(|| self.join(COMMAND))?
    }

    fn join(&self, path: &[u8]) -> Option<Path> {
        let mut joined = [0; FOLDER_MAX + PATH_MAX + 1];
        let (front, rest) = joined.split_at_mut_checked(self.length)?;
        front.copy_from_slice(self.bytes.get(..self.length)?);
        // One byte stays zero: the terminator.
        rest.split_last_mut()?.1.get_mut(..path.len())?.copy_from_slice(path);
        Some(Path(joined))
    }
}

impl Path {
    /// The path as a C string, as long as `self` lives.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Whether an absolute path names the folder `ours` or something in it, by its words alone.
fn is_below(path: &[u8], ours: &[&[u8]]) -> bool {
    let Some((b'/', path)) = path.split_first() else { return false };
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && part != b".");
    let mut depth = 0_usize;
    ours.iter().all(|&wanted| parts.next() == Some(wanted))
        && parts.all(|part| {
            let next = if part == b".." { depth.checked_sub(1) } else { depth.checked_add(1) };
            depth = next.unwrap_or_default();
            next.is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> Folder {
        Folder::new(c"/tmp/f").expect("a name")
    }

    fn text(path: Option<Path>) -> Option<String> {
        // SAFETY: a path is a C string as long as it lives.
        path.map(|path| unsafe { CStr::from_ptr(path.as_ptr()) }.to_str().expect("UTF-8").to_owned())
    }

    #[test]
    fn paths_of_devices_stand_in_the_folder() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/roce0/ports/1/state",
            "//sys/./class///infiniband/roce0",
            "/sys/class/infiniband/roce0/device/../node_type",
            "/sys/class/infiniband_verbs/uverbs0/ibdev",
            "/sys/class/infiniband_mad/abi_version",
            "/dev/infiniband/uverbs0",
        ] {
            assert_eq!(text(folder().file(path.as_bytes())), Some(format!("/tmp/f{path}")));
        }
    }

    #[test]
    fn other_paths_are_left_alone() {
        for path in [
            "",
            "/",
            "/sys/class",
            "/sys/class/net/lo/mtu",
            "/sys/class/infiniband2",
            "/sys/class/infiniban",
            "/sys/class/infiniband/../net",
            "/sys/class/infiniband/roce0/../../net",
            "/dev/infiniband.txt",
            "sys/class/infiniband",
            "./dev/infiniband",
            "/home/sys/class/infiniband",
        ] {
            assert!(folder().file(path.as_bytes()).is_none(), "{path}");
        }
    }

    #[test]
    fn lengths_have_ends() {
        let root = b"/dev/infiniband/";
        let long = |length: usize| [&root[..], &vec![b'x'; length - root.len()]].concat();
        let name = std::ffi::CString::new([b"/", &vec![b'n'; FOLDER_MAX - 1][..]].concat()).expect("no zero");
        let widest = Folder::new(&name).expect("fits");
        assert_eq!(text(widest.file(&long(PATH_MAX))).map(|path| path.len()), Some(FOLDER_MAX + PATH_MAX));
        assert!(widest.file(&long(PATH_MAX + 1)).is_none());
        let wider = std::ffi::CString::new(vec![b'/'; FOLDER_MAX + 1]).expect("no zero");
        assert!(Folder::new(&wider).is_none());
        assert!(Folder::new(c"relative").is_none());
        assert!(Folder::new(c"").is_none());
    }

    #[test]
    fn one_command_is_replaced() {
        assert_eq!(text(folder().command(b"rdma")).as_deref(), Some("/tmp/f/bin/rdma"));
        assert_eq!(text(folder().command(b"/usr/sbin/rdma")).as_deref(), Some("/tmp/f/bin/rdma"));
        for other in ["", "rdma2", "/home/rdma", "./rdma", "/usr/bin/rdma/", "/usr/bin/ip"] {
            assert!(folder().command(other.as_bytes()).is_none(), "{other}");
        }
    }
}
