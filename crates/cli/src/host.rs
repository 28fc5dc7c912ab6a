//! The host's own RDMA devices, which `adverb run --with-host-devices` shows beside adverb's.
//!
//! Their files stay where they are: the folder of the run's files gets links that lead there. The host is
//! asked by system calls, since this command may itself run under another `adverb run`, whose library shows
//! adverb's files.

use crate::environment;
use crate::failure::Failure;
use crate::libraries;
use adverb_core::description;
use adverb_core::setting;
use adverb_core::sysfs::Content;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The classes of sysfs in which programs look for devices; the first has their names.
const CLASSES: [&str; 3] = ["infiniband", "infiniband_verbs", "infiniband_mad"];
/// Where devices are opened.
const DEVICES: &str = "/dev/infiniband";
/// What of that stays ours: rdma_cm serves adverb's devices alone.
const OURS: &str = "rdma_cm";
/// A word that is in our libibverbs, and in no other.
const MARK: &[u8] = b"ADVERB_RDMACM";
/// Longest link of sysfs.
const LINK_MAX: usize = 4096;

/// The host's devices.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// Names of the host's devices, in order.
    names: Vec<String>,
    /// What is put into the folder of the run's files.
    entries: Vec<(String, Content)>,
    /// The library that serves them.
    library: Option<PathBuf>,
}

impl Host {
    /// The devices of this host, if the option asks for them, or the environment: a command around this one
    /// sets a variable there. `devices` is the list of adverb's devices, if one was given.
    ///
    /// # Errors
    /// When a name is ours, too, or nothing serves the devices.
    pub(crate) fn look(is_asked: bool, devices: Option<&str>) -> Result<Option<Self>, Failure> {
        let set = setting::host_library();
        if !is_asked && set.is_none() {
            return Ok(None);
        }
        let mut host = Self::at(Path::new("/"));
        host.library = set.map(PathBuf::from).or_else(library);
        host.check(&ours(devices))?;
        Ok(Some(host))
    }

    /// The host's devices as the folders below `root` show them, without a library.
    fn at(root: &Path) -> Self {
        let mut host = Self::default();
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        for class in CLASSES {
            let class = format!("/sys/class/{class}");
            for name in list(&below(&class)).unwrap_or_default() {
                let path = format!("{class}/{name}");
                let Some(target) = read_link(&below(&path)) else { continue };
                // The kernel follows the first link, in the folder, and comes to the second, which leads out
                // of it.
                let place = follow(&class, &target);
                host.entries.push((path, Content::Link(target)));
                host.entries.push((place.clone(), Content::Link(place)));
                if class.ends_with(CLASSES[0]) {
                    host.names.push(name);
                }
            }
        }
        for name in list(&below(DEVICES)).unwrap_or_default() {
            if name != OURS {
                let path = format!("{DEVICES}/{name}");
                host.entries.push((path.clone(), Content::Link(path)));
            }
        }
        host
    }

    /// Whether programs can tell the devices from these, and something serves them.
    fn check(&self, ours: &[String]) -> Result<(), Failure> {
        if let Some(name) = self.names.iter().find(|name| ours.contains(name)) {
            return Err(Failure::usage(format!(
                "--with-host-devices: the host has a device {name}, too; give adverb's another name: --devices 'NAME@transport=roce'"
            )));
        }
        if self.library.is_none() && !self.names.is_empty() {
            return Err(Failure::own(format!(
                "--with-host-devices: no {} of the host was found, which serves {}: install it (Debian's libibverbs1), or set {} to its absolute name",
                libraries::VERBS,
                self.names.join(", "),
                setting::HOST_DEVICES
            )));
        }
        Ok(())
    }

    /// What the user should know.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.names.is_empty().then_some("--with-host-devices: the host has no RDMA devices")
    }

    /// The library that serves them: none if there are no devices either.
    pub(crate) fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// What is put into the folder of the run's files.
    pub(crate) fn entries(&self) -> &[(String, Content)] {
        &self.entries
    }
}

/// The names of our devices.
fn ours(devices: Option<&str>) -> Vec<String> {
    let set = setting::devices();
    let known: Vec<_> = environment::TRANSPORTS.iter().map(|transport| transport.device).collect();
    match devices.or(set.as_deref()) {
        Some(list) => description::parse(list, &known).into_iter().flatten().map(|one| one.name).collect(),
        None => environment::TRANSPORTS.iter().filter(|t| t.default).map(|t| t.device.to_owned()).collect(),
    }
}

/// The host's libibverbs: the first of that name, where systems have it, that is not adverb's.
fn library() -> Option<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["/usr/local/lib64", "/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib", "/lib"];
    let folders = folders.map(Path::new);
    let all = folders.iter().flat_map(|folder| [folder.join(&multiarch), folder.to_path_buf()]);
    all.map(|folder| folder.join(libraries::VERBS)).find(|file| {
        let text = fs::read(file).unwrap_or_default();
        !text.is_empty() && !text.windows(MARK.len()).any(|word| word == MARK)
    })
}

/// The place that a link leads to which stands in a folder, by its words.
fn follow(folder: &str, target: &str) -> String {
    let mut place: Vec<&str> =
        if target.starts_with('/') { Vec::new() } else { folder.split('/').skip(1).collect() };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(place.pop()),
            name => place.push(name),
        }
    }
    format!("/{}", place.join("/"))
}

/// The names in a folder, in order; a name that is no text is left out.
fn list(folder: &Path) -> io::Result<Vec<String>> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a C string and plain numbers.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let opened = unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) };
    let entries = fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// The text of a link.
fn read_link(path: &Path) -> Option<String> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut text = vec![0u8; LINK_MAX];
    // SAFETY: a C string, and room of that length.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), text.as_mut_ptr(), text.len())
    };
    text.truncate(usize::try_from(length).ok()?);
    OsString::from_vec(text).into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn link(target: &str) -> Content {
        Content::Link(target.to_owned())
    }

    #[test]
    fn each_file_leads_to_where_the_host_has_it() {
        let root = std::env::temp_dir().join(format!("adverb-host-{}", std::process::id()));
        let real = "sys/devices/pci0000:80/0000:81:00.0/infiniband/mlx5_0";
        for folder in ["sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband", real] {
            fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        symlink(
            format!("../../{}", real.strip_prefix("sys/").expect("sys")),
            root.join("sys/class/infiniband/mlx5_0"),
        )
        .expect("a link");
        for file in
            ["sys/class/infiniband_verbs/abi_version", "dev/infiniband/uverbs0", "dev/infiniband/rdma_cm"]
        {
            fs::write(root.join(file), "").expect("a file");
        }
        let host = Host::at(&root);
        let expected = [
            (
                "/sys/class/infiniband/mlx5_0".to_owned(),
                link("../../devices/pci0000:80/0000:81:00.0/infiniband/mlx5_0"),
            ),
            (format!("/{real}"), link(&format!("/{real}"))),
            ("/dev/infiniband/uverbs0".to_owned(), link("/dev/infiniband/uverbs0")),
        ];
        assert_eq!((host.entries(), host.names.clone()), (&expected[..], vec!["mlx5_0".to_owned()]));
        fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn a_name_that_both_have_is_refused_with_the_way_out() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let library = Some(PathBuf::from("/usr/lib/libibverbs.so.1"));
        let host = Host { names: names(&["mlx5_0", "roce0"]), library, ..Host::default() };
        let why = host.check(&ours(None)).expect_err("roce0 is the default").to_string();
        assert!(
            why.contains("the host has a device roce0, too") && why.contains("--devices 'NAME@"),
            "{why}"
        );
        for (list, is_refused) in
            [("soft0@transport=roce", false), ("iwarp0", false), ("mlx5_[0-3]@numa=0", true), ("roce0", true)]
        {
            assert_eq!(host.check(&ours(Some(list))).is_err(), is_refused, "{list}");
        }
    }

    #[test]
    fn devices_that_nothing_serves_are_refused() {
        let host = Host { names: vec!["rxe0".to_owned()], ..Host::default() };
        let why = host.check(&[]).expect_err("no library").to_string();
        assert!(why.contains("rxe0") && why.contains("ADVERB_HOST_DEVICES"), "{why}");
        assert!(Host::default().check(&ours(None)).is_ok(), "and where there are none, nothing is missing");
    }
}
