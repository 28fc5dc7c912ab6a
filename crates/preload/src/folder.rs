//! Which paths belong to RDMA devices, and where they are instead.
//!
//! The folder holds a tree of its own: below it each path stands once more, with links as the kernel has them. A path is walked as the kernel
//! walks it, component by component, so that `..` behind a link leads where it leads in sysfs. What the walk reaches is a file of the folder, or
//! it is the system's own, and then the system is asked as if this library were not there.

use crate::path::{Path, components, first};
use std::ffi::CStr;

/// What is the folder's alone, in components, whatever the system has there.
const OURS: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];

/// Where the folder adds to what the system has. A file that both have is the system's.
const SHARED: [&[u8]; 3] = [b"/sys/devices", b"/sys/bus/pci", b"/sys/class/pci_bus"];

/// The names under which iproute2's `rdma` is started, and where the one that knows our devices is in the folder.
const COMMANDS: [&[u8]; 5] = [b"rdma", b"/usr/bin/rdma", b"/bin/rdma", b"/usr/sbin/rdma", b"/sbin/rdma"];
const COMMAND: &[u8] = b"/bin/rdma";

const SYS: &[u8] = b"/sys/";

/// Longest name of the folder.
const FOLDER_MAX: usize = 255;
/// Most links in one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The folder that holds our files.
#[derive(Debug)]
pub(crate) struct Folder {
    bytes: [u8; FOLDER_MAX],
    length: usize,
}

/// What is at a path of the file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A link, whose text was read.
    Link,
    /// Something else.
    Other,
    /// Nothing, as far as can be seen.
    Nothing,
}

/// What a relative path says of where it may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hint {
    /// Nothing: to our files only from within `/sys` or `/dev`.
    None,
    /// Upwards; from elsewhere it leads to our files only if it names them.
    Up,
    /// It names them.
    Named,
}

/// How the walk looks at the file system: reads the link at a path, if it is one.
pub(crate) type Look = fn(&Path, &mut Path) -> Kind;

/// Whose a component is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The folder's.
    Folder,
    /// The folder's where the system has nothing.
    Either,
    /// A way to one of these.
    Way,
    /// The system's.
    System,
}

impl Folder {
    /// The folder with this name; none if the name is not absolute, or too long.
    pub(crate) fn new(name: &CStr) -> Option<Self> {
        let name = name.to_bytes();
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let mut bytes = [0; FOLDER_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        name.starts_with(b"/").then_some(Self { bytes, length: name.len() })
    }

    fn name(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// What is called so in the folder itself.
    pub(crate) fn below(&self, name: &[u8]) -> Option<Path> {
        Path::of(&[self.name(), name])
    }

    /// What to start instead of `path`, if it shows RDMA devices.
    pub(crate) fn command(&self, path: &[u8]) -> Option<Path> {
        COMMANDS.contains(&path).then(|| self.below(COMMAND))?
    }

    /// What a path of the folder is called by the kernel that shows it: none for other paths.
    pub(crate) fn shown<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        match path.strip_prefix(self.name())? {
            b"" => Some(b"/"),
            rest => rest.starts_with(b"/").then_some(rest),
        }
    }

    /// Whether a walk may find something at an absolute path.
    pub(crate) fn concerns(path: &[u8]) -> bool {
        let mut parts = components(path);
        match parts.next() {
            Some(b"sys") => true,
            Some(b"dev") => parts.next() == Some(b"infiniband"),
            _ => false,
        }
    }

    /// The same for a relative path, by its words alone.
    pub(crate) fn hint(path: &[u8]) -> Hint {
        components(path).fold(Hint::None, |hint, part| match part {
            b".." => hint.max(Hint::Up),
            _ if part.starts_with(b"infiniband") => Hint::Named,
            _ => hint,
        })
    }

    /// What to open instead of `path`, which begins in the folder `from` if it is relative. None: itself.
    ///
    /// `from` is a name as the system gives it: without links, of the folder or of the system. A link at the end of the path stays one, since the
    /// folder's links lead to what is in the folder, too, when the kernel follows them.
    pub(crate) fn file(&self, from: &[u8], path: &[u8], look: Look) -> Option<Path> {
        let is_absolute = path.starts_with(b"/");
        // Where the walk is, as the kernel would show it; empty for the root.
        let mut here = match is_absolute {
            true => Path::new(),
            false => Path::of(&[self.shown(from).unwrap_or(from)])?,
        };
        if here.as_bytes() == b"/" {
            here.cut(0);
        }
        // Whether the walk has followed a link of the folder, or has been to what the system may lack.
        let mut has_visited = false;
        let mut has_moved = !is_absolute && self.shown(from).is_some();
        let mut rest = Path::of(&[path])?;
        let mut links = 0;
        let mut owner = owner_of(here.as_bytes());
        while let Some((name, behind)) = first(rest.as_bytes()) {
            let ends = components(behind).next().is_none();
            // A slash behind the last name follows a link.
            let is_last = ends && behind.is_empty();
            if name == b".." {
                here.up();
                owner = owner_of(here.as_bytes());
                rest = Path::of(&[behind])?;
                continue;
            }
            let before = here.as_bytes().len();
            here.add(b"/")?;
            here.add(name)?;
            owner = owner_of(here.as_bytes());
            let returns = has_moved || components(behind).any(|part| part == b"..");
            if owner == Owner::System && !returns {
                return None;
            }
            // Outside of these folders nothing is looked at: a link there that leads into them, and out again, is not worth it.
            if owner == Owner::Way
                || owner == Owner::System && !has_moved && !here.as_bytes().starts_with(SYS)
            {
                rest = Path::of(&[behind])?;
                continue;
            }
            let mut target = Path::new();
            let mut kind = Kind::Nothing;
            if owner != Owner::System {
                kind = look(&Path::of(&[self.name(), here.as_bytes()])?, &mut target);
                has_moved |= kind == Kind::Link && !is_last;
                has_visited |= kind != Kind::Nothing || owner == Owner::Folder;
            }
            if kind == Kind::Nothing && owner != Owner::Folder {
                if !returns {
                    return None;
                }
                owner = Owner::System;
                kind = match is_last {
                    true => Kind::Other,
                    false => look(&here, &mut target),
                };
            }
            match kind {
                Kind::Link if !is_last => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    rest = Path::of(&[target.as_bytes(), b"/", behind])?;
                    here.cut(if target.as_bytes().starts_with(b"/") { 0 } else { before });
                }
                Kind::Link | Kind::Other => rest = Path::of(&[behind])?,
                // The system says what is wrong with it.
                Kind::Nothing => {
                    here.add(behind)?;
                    break;
                }
            }
        }
        // What the system has, too, is the system's.
        let is_ours = match owner {
            Owner::Folder => true,
            Owner::Either => look(&here, &mut Path::new()) == Kind::Nothing,
            Owner::Way | Owner::System => false,
        };
        let slash: &[u8] = if path.ends_with(b"/") || here.as_bytes().is_empty() { b"/" } else { b"" };
        if is_ours {
            return Path::of(&[self.name(), here.as_bytes(), slash]);
        }
        let found = Path::of(&[here.as_bytes(), slash])?;
        (has_moved || has_visited && found.as_bytes() != path).then_some(found)
    }
}

/// Whose a path without links is.
fn owner_of(path: &[u8]) -> Owner {
    let is_in =
        |root: &&[u8]| path.strip_prefix(*root).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
    let leads_to = |root: &&[u8]| root.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
    if OURS.iter().any(is_in) {
        Owner::Folder
    } else if SHARED.iter().any(|root| path != *root && is_in(root)) {
        Owner::Either
    } else if SHARED.contains(&path) || OURS.iter().chain(&SHARED).any(leads_to) {
        Owner::Way
    } else {
        Owner::System
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTER: &str = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";

    /// What the folder and the system have, and where links lead; `!` is no link.
    const FILES: [(&str, &str); 18] = [
        (
            "/f/sys/class/infiniband/mlx5_0",
            "../../devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband/mlx5_0",
        ),
        ("/f/sys/class/infiniband", "!"),
        ("/f/sys/devices/pci0000:16", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/numa_node", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/subsystem", "../../../../bus/pci"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband/mlx5_0", "!"),
        ("/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband/mlx5_0/ports", "!"),
        (
            "/f/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband/mlx5_0/device",
            "../../../0000:17:00.0",
        ),
        ("/f/sys/bus/pci/devices", "!"),
        ("/f/sys/bus/pci/devices/0000:17:00.0", "../../../devices/pci0000:16/0000:16:02.0/0000:17:00.0"),
        ("/sys/devices/pci0000:16", "!"),
        ("/sys/bus/pci/drivers", "!"),
        ("/sys/class/net", "!"),
        ("/sys/class/net/eth0", "../../devices/virtual/net/eth0"),
        ("/sys/bus/pci/devices", "!"),
    ];

    fn look(path: &Path, target: &mut Path) -> Kind {
        target.cut(0);
        match FILES.iter().find(|(known, _)| known.as_bytes() == path.as_bytes()) {
            None => Kind::Nothing,
            Some((_, "!")) => Kind::Other,
            Some((_, link)) => {
                target.add(link.as_bytes()).expect("room");
                Kind::Link
            }
        }
    }

    fn folder() -> Folder {
        Folder::new(c"/f").expect("a name")
    }

    fn text(path: Option<Path>) -> Option<String> {
        path.map(|path| String::from_utf8(path.as_bytes().to_vec()).expect("UTF-8"))
    }

    fn walked(from: &str, path: &str) -> Option<String> {
        text(folder().file(from.as_bytes(), path.as_bytes(), look))
    }

    // PRACTICE-FILES-1
    #[test]
    fn paths_lead_where_they_lead_in_sysfs() {
        let x = "/sys/class/infiniband/mlx5_0";
        for (path, found) in [
            (x.to_owned(), format!("/f{x}")),
            ("//sys/./class///infiniband/mlx5_0".to_owned(), format!("/f{x}")),
            (format!("{x}/"), format!("/f{ADAPTER}/infiniband/mlx5_0/")),
            (format!("{x}/ports"), format!("/f{ADAPTER}/infiniband/mlx5_0/ports")),
            (format!("{x}/.."), format!("/f{ADAPTER}/infiniband")),
            (format!("{x}/../.."), format!("/f{ADAPTER}")),
            (format!("{x}/../../numa_node"), format!("/f{ADAPTER}/numa_node")),
            (format!("{x}/device"), format!("/f{ADAPTER}/infiniband/mlx5_0/device")),
            (format!("{x}/device/numa_node"), format!("/f{ADAPTER}/numa_node")),
            (format!("{x}/device/subsystem/drivers"), "/sys/bus/pci/drivers".to_owned()),
            // Nothing is there, in either place.
            (format!("{x}/no/such"), format!("{ADAPTER}/infiniband/mlx5_0/no/such")),
            ("/sys/class/infiniband/none/x".to_owned(), "/f/sys/class/infiniband/none/x".to_owned()),
            (format!("{ADAPTER}/numa_node"), format!("/f{ADAPTER}/numa_node")),
            ("/sys/bus/pci/devices/0000:17:00.0/numa_node".to_owned(), format!("/f{ADAPTER}/numa_node")),
            (
                "/sys/bus/pci/devices/0000:17:00.0".to_owned(),
                "/f/sys/bus/pci/devices/0000:17:00.0".to_owned(),
            ),
            ("/dev/infiniband/uverbs0".to_owned(), "/f/dev/infiniband/uverbs0".to_owned()),
            ("/sys/class/net/../infiniband/mlx5_0".to_owned(), format!("/f{x}")),
            // What the system has, too, is the system's: the way to an adapter may have other things.
            (format!("{x}/../../../.."), "/sys/devices/pci0000:16".to_owned()),
            (format!("{x}/../../../../.."), "/sys/devices".to_owned()),
            ("/sys/class/infiniband/..".to_owned(), "/sys/class".to_owned()),
        ] {
            assert_eq!(walked("", &path), Some(found), "{path}");
        }
    }

    #[test]
    fn relative_paths_begin_where_the_process_is() {
        let device = format!("/f{ADAPTER}/infiniband/mlx5_0");
        for (from, path, found) in [
            (&*device, "../../numa_node", Some(format!("/f{ADAPTER}/numa_node"))),
            (&device, "ports", Some(format!("{device}/ports"))),
            (&device, "../../../../../../class/net", Some("/sys/class/net".to_owned())),
            ("/f/sys/class/infiniband", "../net/eth0", Some("/sys/class/net/eth0".to_owned())),
            ("/sys/class", "infiniband/mlx5_0/../..", Some(format!("/f{ADAPTER}"))),
            ("/", "sys/class/infiniband", Some("/f/sys/class/infiniband".to_owned())),
            ("/home/me", "../../sys/class/infiniband", Some("/f/sys/class/infiniband".to_owned())),
            ("/home/me", "../infiniband/x", None),
            ("/home/me", "sys/class/infiniband", None),
            ("/sys/class/net/eth0", "../../class/infiniband", None),
        ] {
            assert_eq!(walked(from, path), found, "{from} {path}");
        }
    }

    #[test]
    fn other_paths_are_left_alone() {
        for path in [
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/",
            "/sys/devices",
            "/sys/devices/pci0000:16",
            "/sys/devices/system/cpu/online",
            "/sys/devices/pci0000:16/power/control",
            "/sys/bus/pci/devices",
            "/sys/bus/pci/devices/0000:00:01.0/class",
            "/sys/bus/pci/drivers/x",
            "/sys/class/net/lo/mtu",
            "/sys/class/net/eth0/device/../x",
            "/sys/class/infiniband2",
            "/sys/class/infiniban",
            "/dev/infiniband.txt",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(walked("", path), None, "{path}");
        }
        for (path, concerns) in
            [("/sys/x", true), ("/dev/null", false), ("/dev/infiniband", true), ("/tmp/sys", false)]
        {
            assert_eq!(Folder::concerns(path.as_bytes()), concerns, "{path}");
        }
        for (path, hint) in [
            ("x/y", Hint::None),
            ("../x", Hint::Up),
            ("x/../infiniband_verbs", Hint::Named),
            ("sys/class/infiniband", Hint::Named),
            ("...", Hint::None),
        ] {
            assert_eq!(Folder::hint(path.as_bytes()), hint, "{path}");
        }
    }

    #[test]
    fn what_is_shown_is_the_path_in_sysfs() {
        let folder = folder();
        for (path, shown) in [
            ("/f/sys/class/infiniband", Some("/sys/class/infiniband")),
            ("/f", Some("/")),
            ("/fx/sys", None),
            ("/sys", None),
        ] {
            assert_eq!(folder.shown(path.as_bytes()), shown.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn lengths_have_ends() {
        let root = "/dev/infiniband/";
        let long = |length: usize| format!("{root}{}", "x".repeat(length - root.len()));
        let name = std::ffi::CString::new(format!("/{}", "n".repeat(FOLDER_MAX - 1))).expect("no zero");
        let widest = Folder::new(&name).expect("fits");
        let most = crate::path::LONGEST - FOLDER_MAX;
        let found = |length| text(widest.file(b"", long(length).as_bytes(), look)).map(|path| path.len());
        assert_eq!(found(most), Some(crate::path::LONGEST));
        assert_eq!([found(most + 1), found(10 * most)], [None, None]);
        let wider = std::ffi::CString::new(vec![b'/'; FOLDER_MAX + 2]).expect("no zero");
        assert!(Folder::new(&wider).is_none());
        assert!(Folder::new(c"relative").is_none());
        assert!(Folder::new(c"").is_none());
    }

    #[test]
    fn one_command_is_replaced() {
        assert_eq!(text(folder().command(b"rdma")).as_deref(), Some("/f/bin/rdma"));
        assert_eq!(text(folder().command(b"/usr/sbin/rdma")).as_deref(), Some("/f/bin/rdma"));
        for other in ["", "rdma2", "/home/rdma", "./rdma", "/usr/bin/rdma/", "/usr/bin/ip"] {
            assert!(folder().command(other.as_bytes()).is_none(), "{other}");
        }
    }
}
