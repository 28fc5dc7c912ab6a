//! Which paths belong to RDMA devices, and where they are instead.
//!
//! The folder holds a tree of its own: below it each path stands once more, with links as the kernel has
//! them. A path is walked as the kernel walks it, component by component, so that `..` behind a link leads
//! where it leads in sysfs. What the walk reaches is a file of the folder, or it is the system's own, and
//! then the system is asked as if this library were not there.

use crate::counted;
use crate::path::{Path, Rest, components, first};
use std::ffi::CStr;

/// The classes that are the folder's alone, whatever the system has there. So is `/dev/infiniband`.
const CLASSES: [&[u8]; 3] = [b"infiniband", b"infiniband_verbs", b"infiniband_mad"];
/// How the names of platform devices of ours begin.
const PLATFORM: &[u8] = b"adverb.";

/// The names under which iproute2's `rdma` is started, and where the one that knows our devices is in the
/// folder.
const COMMANDS: [&[u8]; 5] = [b"rdma", b"/usr/bin/rdma", b"/bin/rdma", b"/usr/sbin/rdma", b"/sbin/rdma"];
const COMMAND: &[u8] = b"/bin/rdma";
/// The file of the folder with its PCI buses, a line each, and the recipes of counters ([`crate::counted`]).
const KNOWN: &[u8] = b"/known";

const SYS: &[u8] = b"/sys/";

/// Longest name of the folder; `adverb` refuses longer ones.
const FOLDER_MAX: usize = 255;
/// Most links in one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The folder that holds our files.
#[derive(Debug)]
pub(crate) struct Folder {
    bytes: [u8; FOLDER_MAX],
    length: usize,
    /// The PCI buses of its devices: lines as `0000:17`; and lines that begin with `=`, of counters.
    known: &'static [u8],
}

/// What is at a path of the file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A link, and how long its text is, which was read.
    Link(usize),
    /// Something else.
    Other,
    /// Nothing, as far as can be seen.
    Nothing,
}

/// What a relative path says of where it may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hint {
    /// Nothing: to our files only from within them.
    None,
    /// Upwards, or to a file of counters; from elsewhere it leads to our files only if it names them.
    Up,
    /// The path names our files.
    Named,
}

/// How the walk looks at the file system: reads the link at a path into the room, if it is one.
pub(crate) type Look = fn(&CStr, &mut [u8]) -> Kind;

/// The owner of a component.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The folder's, with all below.
    Folder,
    /// The system's where the system has it, else the folder's; with all below.
    Either,
    /// A way to one of these, which is the system's.
    Way,
    /// The system's.
    System,
}

impl Folder {
    /// The folder with this name; none if the name is not absolute, or too long. `read` reads a file.
    pub(crate) fn new(name: &CStr, read: impl FnOnce(&CStr) -> &'static [u8]) -> Option<Self> {
        let name = name.to_bytes();
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let mut folder = Self { bytes: [0; FOLDER_MAX], length: name.len(), known: b"" };
        folder.bytes.get_mut(..name.len())?.copy_from_slice(name);
        if !name.starts_with(b"/") {
            return None;
        }
        let mut file = Path::new();
        folder.below(KNOWN, &mut file)?;
        folder.known = read(file.c_str(0));
        Some(folder)
    }

    fn name(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// How long its name is.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether a path begins with its name, and goes on.
    pub(crate) fn is_below(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Whether the name of a bus (`0000:17`), of its root (`pci0000:17`) or of what is on it (`0000:17:00.0`)
    /// tells of a bus of ours.
    fn is_on_bus(&self, name: &[u8]) -> bool {
        let name = name.strip_prefix(b"pci").unwrap_or(name);
        let mut numbers = name.splitn(3, |&byte| byte == b':');
        let (Some(domain), Some(bus)) = (numbers.next(), numbers.next()) else { return false };
        let Some(name) = name.get(..domain.len() + 1 + bus.len()) else { return false };
        self.known.split(|&byte| byte == b'\n').any(|line| line == name)
    }

    /// The lines of what the folder's maker wrote down for this library.
    pub(crate) fn known(&self) -> &'static [u8] {
        self.known
    }

    /// Whether a component is a name that the folder adds to what a system without RDMA has.
    fn names(&self, part: &[u8]) -> bool {
        part.starts_with(b"infiniband") || part.starts_with(PLATFORM) || self.is_on_bus(part)
    }

    /// Writes what is called so in the folder itself.
    pub(crate) fn below(&self, name: &[u8], found: &mut Path) -> Option<()> {
        found.cut(0);
        found.add(self.name())?;
        found.add(name)
    }

    /// Whether something else is started instead of a command, since it shows RDMA devices:
    /// [`Self::command`].
    pub(crate) fn is_command(path: &[u8]) -> bool {
        COMMANDS.contains(&path)
    }

    /// Writes what is started instead.
    pub(crate) fn command(&self, found: &mut Path) -> Option<()> {
        self.below(COMMAND, found)
    }

    /// What a path of the folder's files is called by the kernel that shows it: none for other paths. The
    /// folder itself, and what is in it besides, keeps its name.
    pub(crate) fn shown<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(self.name())?;
        let is_ours = rest.starts_with(SYS)
            || matches!(self.owner_of(components(rest)), Owner::Folder if rest.starts_with(b"/"));
        is_ours.then_some(rest)
    }

    /// Whether a text that may have been cut off can be such a path.
    pub(crate) fn may_show(&self, path: &[u8]) -> bool {
        path.starts_with(self.name())
    }

    /// Whether a walk may find something at an absolute path, or a path from the root, by its words alone.
    pub(crate) fn concerns(&self, path: &[u8]) -> bool {
        let is_sys = components(path).next() == Some(b"sys");
        match is_sys && components(path).any(|part| part == b"..") {
            true => components(path).any(|part| self.names(part)),
            false => matches!(self.owner_of(components(path)), Owner::Folder | Owner::Either),
        }
    }

    /// How a relative path may lead to our files, by its words alone.
    pub(crate) fn hint(&self, path: &[u8]) -> Hint {
        components(path).fold(Hint::None, |hint, part| match part {
            b".." => hint.max(Hint::Up),
            // In the folder of a descriptor it may be ours.
            _ if counted::is_counter(self.known, part) => hint.max(Hint::Up),
            _ if hint != Hint::Named && self.names(part) => Hint::Named,
            _ => hint,
        })
    }

    /// Writes what to open instead of `path`, which begins in the folder that `begin` writes if it is
    /// relative, and says behind how many bytes it begins. None: itself.
    ///
    /// `begin` gives a name as the system does: without links, of the folder or of the system. A link at the
    /// end of the path stays one, since the folder's links lead to what is in the folder, too, when the
    /// kernel follows them.
    pub(crate) fn file(
        &self,
        path: &[u8],
        begin: impl FnOnce(&mut [u8]) -> Option<usize>,
        look: Look,
        found: &mut Path,
    ) -> Option<usize> {
        // The folder's name, and behind it where the walk is, as the kernel would show it; the root is empty.
        self.below(b"", found)?;
        let root = self.length;
        // Whether the walk has followed a link of the folder, or has been to what the system may lack.
        let mut has_visited = false;
        let mut has_moved = false;
        if !path.starts_with(b"/") {
            let length = begin(found.room(root))?;
            found.has(root + length);
            has_moved = self.shown(found.after(root)).is_some();
            if has_moved {
                found.take_out(root, root);
            } else if found.after(root) == b"/" {
                found.cut(root);
            }
        }
        // Whose this is, and how long the path is that says so.
        let (mut owner, mut decided) = self.decide(found.after(root));
        decided += root;
        if owner == Owner::Either {
            owner = if has_moved { Owner::Folder } else { Owner::System };
        }
        let mut rest = Rest::new();
        rest.begin(path)?;
        let mut links = 0;
        while let Some((name, behind)) = first(rest.as_bytes()) {
            // A slash behind the last name follows a link.
            let is_last = behind.is_empty();
            let returns = has_moved || components(behind).any(|part| part == b"..");
            let left = behind.len();
            if name == b".." {
                found.up(root);
                rest.keep(left);
                if found.length() < decided {
                    owner = Owner::Way;
                }
                continue;
            }
            let before = found.length();
            found.add(b"/")?;
            found.add(name)?;
            rest.keep(left);
            if owner == Owner::Way {
                owner = self.owner_of(components(found.after(root)));
                decided = found.length();
                if owner == Owner::Either {
                    let is_there = look(found.c_str(root), rest.room()) != Kind::Nothing;
                    owner = if is_there { Owner::System } else { Owner::Folder };
                }
            }
            let kind = match owner {
                Owner::Way => continue,
                Owner::Folder | Owner::Either => {
                    has_visited = true;
                    look(found.c_str(0), rest.room())
                }
                Owner::System if !returns => return None,
                // Outside of sysfs nothing is looked at: a link there that leads into it, and out again, is
                // not worth it.
                Owner::System if !has_moved && !found.after(root).starts_with(SYS) => continue,
                Owner::System if is_last => Kind::Other,
                Owner::System => look(found.c_str(root), rest.room()),
            };
            match kind {
                Kind::Link(length) if !is_last => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    has_moved |= owner == Owner::Folder;
                    rest.follow(length)?;
                    found.cut(if rest.as_bytes().starts_with(b"/") { root } else { before });
                    if found.length() < decided {
                        owner = Owner::Way;
                    }
                }
                Kind::Link(_) | Kind::Other => {}
                // The system says what is wrong with it.
                Kind::Nothing => {
                    found.add(rest.as_bytes())?;
                    break;
                }
            }
        }
        if path.ends_with(b"/") || found.length() == root {
            found.add(b"/")?;
        }
        if owner == Owner::Folder {
            return Some(0);
        }
        (has_moved || has_visited && found.after(root) != path).then_some(root)
    }

    /// The owner of a path without links, and how much of it says so.
    fn decide(&self, path: &[u8]) -> (Owner, usize) {
        let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends.chain([path.len()]) {
            let owner = self.owner_of(components(path.get(..end).unwrap_or_default()));
            if owner != Owner::Way {
                return (owner, end);
            }
        }
        (Owner::Way, 0)
    }

    /// The owner of a path without links, by its components.
    fn owner_of<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Owner {
        let mut first: [&[u8]; 5] = [b""; 5];
        let count = first.iter_mut().zip(parts).map(|(first, part)| *first = part).count();
        let either = |is_ours: bool| if is_ours { Owner::Either } else { Owner::System };
        match first.get(..count).unwrap_or_default() {
            [] | [b"dev" | b"sys"] | [b"sys", b"class" | b"bus" | b"devices"] => Owner::Way,
            [b"dev", b"infiniband", ..] => Owner::Folder,
            [b"sys", b"class", class, ..] if CLASSES.contains(class) => Owner::Folder,
            [b"sys", b"class", b"pci_bus"] | [b"sys", b"devices", b"platform"] => Owner::Way,
            [b"sys", b"bus", b"pci"] | [b"sys", b"bus", b"pci", b"devices"] => Owner::Way,
            [b"sys", b"class", b"pci_bus", name, ..] => either(self.is_on_bus(name)),
            [b"sys", b"bus", b"pci", b"devices", name] => either(self.is_on_bus(name)),
            [b"sys", b"devices", b"platform", name, ..] => either(name.starts_with(PLATFORM)),
            [b"sys", b"devices", name, ..] => either(name.starts_with(b"pci") && self.is_on_bus(name)),
            _ => Owner::System,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTER: &str = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";

    /// What the folder and the system have, and where links lead; `!` is no link.
    const FILES: [(&str, &str); 26] = [
        // A device of the host's.
        ("/f/sys/class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0"),
        ("/sys/devices/virtual", "!"),
        ("/sys/devices/virtual/infiniband", "!"),
        ("/sys/devices/virtual/infiniband/rxe0", "!"),
        ("/sys/devices/virtual/infiniband/rxe0/device", "../../../pci0000:80/0000:83:00.0"),
        ("/sys/devices/pci0000:80", "!"),
        ("/sys/devices/pci0000:80/0000:83:00.0", "!"),
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
        ("/f/sys/bus/pci/devices/0000:83:00.0", "../../../devices/pci0000:82/0000:82:01.0/0000:83:00.0"),
        ("/sys/bus/pci/devices/0000:83:00.0", "../../../devices/pci0000:80/0000:83:00.0"),
        ("/sys/bus/pci/drivers", "!"),
        ("/sys/class/net", "!"),
        ("/sys/class/net/eth0", "../../devices/virtual/net/eth0"),
        ("/sys/bus/pci/devices", "!"),
    ];

    fn look(path: &CStr, room: &mut [u8]) -> Kind {
        match FILES.iter().find(|(known, _)| known.as_bytes() == path.to_bytes()) {
            None => Kind::Nothing,
            Some((_, "!")) => Kind::Other,
            Some((_, link)) => {
                room[..link.len()].copy_from_slice(link.as_bytes());
                Kind::Link(link.len())
            }
        }
    }

    fn folder() -> Folder {
        Folder::new(c"/f", |file| {
            assert_eq!(file, c"/f/known");
            b"0000:16\n0000:17\n0000:83\n=counted/c 0\n=counters/port_xmit_data 4 8\n"
        })
        .expect("a name")
    }

    fn found(folder: &Folder, from: &str, path: &[u8]) -> Option<String> {
        let mut found = Path::new();
        let begin = |room: &mut [u8]| {
            room[..from.len()].copy_from_slice(from.as_bytes());
            Some(from.len())
        };
        let start = folder.file(path, begin, look, &mut found)?;
        Some(String::from_utf8(found.after(start).to_vec()).expect("UTF-8"))
    }

    fn walked(from: &str, path: &str) -> Option<String> {
        found(&folder(), from, path.as_bytes())
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
            (format!("{x}/no/such"), format!("/f{ADAPTER}/infiniband/mlx5_0/no/such")),
            ("/sys/class/infiniband/none/x".to_owned(), "/f/sys/class/infiniband/none/x".to_owned()),
            (format!("{ADAPTER}/numa_node"), format!("/f{ADAPTER}/numa_node")),
            ("/sys/bus/pci/devices/0000:17:00.0/numa_node".to_owned(), format!("/f{ADAPTER}/numa_node")),
            (
                "/sys/bus/pci/devices/0000:17:00.0".to_owned(),
                "/f/sys/bus/pci/devices/0000:17:00.0".to_owned(),
            ),
            ("/dev/infiniband/uverbs0".to_owned(), "/f/dev/infiniband/uverbs0".to_owned()),
            ("/sys/class/net/../infiniband/mlx5_0".to_owned(), format!("/f{x}")),
            // The host's own device: the link is the folder's, and all behind it the system's.
            ("/sys/class/infiniband/rxe0".to_owned(), "/f/sys/class/infiniband/rxe0".to_owned()),
            (
                "/sys/class/infiniband/rxe0/ports/1/gids/0".to_owned(),
                "/sys/devices/virtual/infiniband/rxe0/ports/1/gids/0".to_owned(),
            ),
            (
                "/sys/class/infiniband/rxe0/device/vendor".to_owned(),
                "/sys/devices/pci0000:80/0000:83:00.0/vendor".to_owned(),
            ),
            // The way there is the system's.
            (format!("{x}/../../../.."), "/f/sys/devices/pci0000:16".to_owned()),
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
            "/sys/devices/pci0000:80",
            "/sys/devices/system/cpu/online",
            "/sys/devices/pci0000:80/power/control",
            "/sys/bus/pci/devices",
            "/sys/bus/pci/devices/0000:00:01.0/class",
            "/sys/bus/pci/drivers/x",
            "/sys/class/net/lo/mtu",
            "/sys/class/net/eth0/device/../x",
            "/sys/class/infiniband2",
            // An adapter of the machine, though the folder has one in the same slot.
            "/sys/bus/pci/devices/0000:83:00.0",
            "/sys/bus/pci/devices/0000:83:00.0/vendor",
            "/sys/class/infiniban",
            "/dev/infiniband.txt",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(walked("", path), None, "{path}");
        }
        // No system call is made for these.
        for (path, concerns) in [
            ("/sys/x", false),
            ("/dev/null", false),
            ("/dev/infiniband", true),
            ("/tmp/sys", false),
            ("/sys/class/infiniband_verbs/x", true),
            ("/sys/class/net/lo/device/../x", false),
            ("/sys/class/net/../infiniband", true),
            ("/sys/bus/pci/devices", false),
            ("/sys/bus/pci/devices/0000:17:00.0/x", true),
            ("/sys/bus/pci/devices/0000:18:00.0/x", false),
            ("/sys/devices/pci0000:16/x", true),
            ("/sys/devices/pci0000:00/0000:00:01.0", false),
            ("/sys/devices/platform/adverb.0.auto", true),
            ("/sys/devices/platform/x", false),
            ("/sys/class/pci_bus/0000:17", true),
            ("sys/class/infiniband", true),
            ("etc/passwd", false),
        ] {
            assert_eq!(folder().concerns(path.as_bytes()), concerns, "{path}");
        }
        for (path, hint) in [
            ("x/y", Hint::None),
            ("../x", Hint::Up),
            ("x/../infiniband_verbs", Hint::Named),
            ("sys/class/infiniband", Hint::Named),
            ("...", Hint::None),
            ("port_xmit_data", Hint::Up),
            ("counters/port_xmit_data", Hint::Up),
            ("port_xmit", Hint::None),
            ("xmit_data 4", Hint::None),
        ] {
            assert_eq!(folder().hint(path.as_bytes()), hint, "{path}");
        }
    }

    #[test]
    fn a_path_in_the_folder_is_shown_as_its_path_in_the_system() {
        let folder = folder();
        for (path, shown) in [
            ("/f/sys/class/infiniband", Some("/sys/class/infiniband")),
            // What removes the folder is not to remove the root.
            ("/f", None),
            ("/f/bin", None),
            ("/f/sys", None),
            ("/f/sys/bus/pci", Some("/sys/bus/pci")),
            ("/f/dev/infiniband/uverbs0", Some("/dev/infiniband/uverbs0")),
            ("/f/sys/bus/pci/devices/0000:17:00.0", Some("/sys/bus/pci/devices/0000:17:00.0")),
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
        let widest = Folder::new(&name, |_| b"").expect("fits");
        let most = crate::path::LONGEST - FOLDER_MAX;
        let length = |length| found(&widest, "", long(length).as_bytes()).map(|path| path.len());
        assert_eq!(length(most), Some(crate::path::LONGEST));
        assert_eq!([length(most + 1), length(10 * most)], [None, None]);
        let wider = std::ffi::CString::new(vec![b'/'; FOLDER_MAX + 2]).expect("no zero");
        assert!(Folder::new(&wider, |_| b"").is_none());
        assert!(Folder::new(c"relative", |_| b"").is_none());
        assert!(Folder::new(c"", |_| b"").is_none());
    }

    #[test]
    fn one_command_is_replaced() {
        for ours in ["rdma", "/usr/sbin/rdma"] {
            assert!(Folder::is_command(ours.as_bytes()), "{ours}");
        }
        let mut found = Path::new();
        folder().command(&mut found).expect("fits");
        assert_eq!(found.c_str(0), c"/f/bin/rdma");
        for other in ["", "rdma2", "/home/rdma", "./rdma", "/usr/bin/rdma/", "/usr/bin/ip"] {
            assert!(!Folder::is_command(other.as_bytes()), "{other}");
        }
    }
}
