//! The folder that holds what the kernel would show of RDMA devices, for the programs of one `adverb run`.
//!
//! The library that `adverb run` preloads (`crates/preload`) opens its files instead. They say how things
//! are: when addresses or interfaces change, this process writes anew what follows from them ([`follow`]).
//! Those of counters that library writes when a program opens them, and this process where a program opens
//! them by system calls of its own ([`live`]).

use crate::environment;
use crate::host::Host;
use crate::libraries;
use crate::supervise::Stops;
use adverb_core::counters::{self, Counters};
use adverb_core::interfaces::{self, Interfaces};
use adverb_core::setting;
use adverb_core::sysfs::{self, Content};
use adverb_core::transport;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

mod follow;
mod live;

use follow::Following;

/// Every folder's name begins so.
const PREFIX: &str = "adverb-files-";
/// Where somebody has been told of a libibverbs that no other can be put in front of.
const TOLD: &str = "told";
/// What the preloaded library must know: the buses of the devices, since what else stands in the same folders
/// of sysfs is not theirs, and what the files of counters are sums of.
const KNOWN: &str = "known";
/// A folder of the user's is ours while this is in it, which stands there first.
const MARK: &str = ".adverb";
/// Longest name of a folder that the preloaded library takes.
const LONGEST_NAME: usize = 255;
/// Names that are tried; others may belong to somebody else.
const NAMES: u32 = 100;
/// Where files are memory.
const MEMORY: &str = "/dev/shm";

/// What becomes of a folder when the run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    /// The folder goes, and if that cannot be, when another one is made in the same place.
    Goes,
    /// The user has named it, and it stays. Its mode is the user's, too.
    Stays,
}

/// A folder of this run's.
struct Place {
    path: PathBuf,
    /// Locked as long as the folder is in use.
    lock: File,
    afterwards: Afterwards,
}

impl Place {
    /// Makes it, for nobody else to look in.
    fn make_in(place: &Path) -> io::Result<Self> {
        let place = place.canonicalize()?;
        for number in 0..NAMES {
            let path = place.join(format!("{PREFIX}{}-{number}", std::process::id()));
            fits(&path)?;
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let made = Self { lock: open(&path)?, path, afterwards: Afterwards::Goes };
            // A process that sweeps may have been faster: then the folder is gone, or will be.
            if lock(&made.lock, libc::LOCK_SH).is_ok() && made.lock.metadata()?.nlink() > 0 {
                return Ok(made);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A folder that the user has named. What an earlier run has left there goes.
    fn named(place: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o755).create(place.parent().unwrap_or(place))?;
        let is_new = match DirBuilder::new().mode(0o755).create(place) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        let path = place.canonicalize()?;
        let named = Self { lock: open(&path)?, path, afterwards: Afterwards::Stays };
        named.is_ours_alone()?;
        if is_new {
            // Others may look, whatever the umask.
            named.lock.set_permissions(Permissions::from_mode(0o755))?;
        }
        lock(&named.lock, libc::LOCK_EX).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other("another run has its files there now: give each a folder of its own")
            }
            _ => e,
        })?;
        clear(&named.path)?;
        Ok(named)
    }

    /// Another user who can write there could have this one write elsewhere, by links.
    fn is_ours_alone(&self) -> io::Result<()> {
        let status = self.lock.metadata()?;
        if status.uid() != user() {
            return Err(io::Error::other("it belongs to another user: name one of your own"));
        }
        match status.mode() & 0o022 {
            0 => Ok(()),
            _ => Err(io::Error::other("other users can write there: chmod go-w takes that from them")),
        }
    }

    /// Whether the files of the place are in memory.
    fn is_memory(&self) -> bool {
        // SAFETY: all zero is a valid structure, there is room for it, and the descriptor is open.
        unsafe {
            let mut status: libc::statfs = std::mem::zeroed();
            libc::fstatfs(self.lock.as_raw_fd(), &raw mut status) == 0 && status.f_type == libc::TMPFS_MAGIC
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.afterwards == Afterwards::Goes {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The folder of the run's files.
pub(crate) struct Files {
    /// The thread that writes into the folder; it ends before that goes. None where there is no thread to be
    /// had.
    following: Option<Following>,
    folder: Place,
    /// Where processes have their counters, if the folder itself is not in memory: a process must not wait
    /// for a disk.
    counted: Option<Place>,
}

impl Drop for Files {
    fn drop(&mut self) {
        // It writes at last what was counted.
        self.following = None;
        if self.counted.is_some() {
            // Somebody else could make a folder of the name that it leads to.
            let _ = fs::remove_file(self.folder.path.join(counters::files::PLACE));
        }
    }
}

impl Files {
    /// Makes it, for the devices of a comma list or those that the environment names, and for the host's, if
    /// there are any to show. `named`: the folder, where the user has named one.
    ///
    /// # Errors
    /// When the folder, or no place for temporary files, can be written to; says why of each.
    pub(crate) fn make(devices: Option<&str>, host: Option<&Host>, named: Option<&Path>) -> io::Result<Self> {
        if let Some(named) = named {
            let wrong = |e| io::Error::other(format!("{}: {e}", named.display()));
            // Where the counters of killed runs are.
            sweep(Path::new(MEMORY));
            return Place::named(named)
                .and_then(|folder| Self::make_in(folder, devices, host))
                .map_err(wrong);
        }
        let mut wrong = Vec::new();
        let places = places();
        places.iter().for_each(|place| sweep(place));
        for place in &places {
            match Place::make_in(place).and_then(|folder| Self::make_in(folder, devices, host)) {
                Ok(files) => return Ok(files),
                Err(e) => wrong.push(format!("{}: {e}", place.display())),
            }
        }
        Err(io::Error::other(wrong.join("; ")))
    }

    fn make_in(folder: Place, devices: Option<&str>, host: Option<&Host>) -> io::Result<Self> {
        let counted = folder.path.join(counters::files::PLACE);
        let elsewhere = if folder.is_memory() { None } else { Place::make_in(Path::new(MEMORY)).ok() };
        let has_counters = match &elsewhere {
            // The system's users are not to count in each other's place.
            None => folder.is_memory() && DirBuilder::new().mode(0o700).create(&counted).is_ok(),
            Some(elsewhere) => elsewhere.is_memory() && symlink(&elsewhere.path, &counted).is_ok(),
        };
        // The socket first, so that nothing is missed.
        let changes = interfaces::changes(true).ok();
        let now = interfaces::look();
        let is_named = folder.afterwards == Afterwards::Stays;
        let wanted = FolderPlan { is_named, ..FolderPlan::of(devices, has_counters, host) };
        let shown = wanted.entries(&now);
        fill(&folder.path, &shown, host)?;
        if folder.afterwards == Afterwards::Goes {
            // A program may look at its devices as another user than it was started as; nobody but us changes
            // them, whatever the umask.
            fs::set_permissions(&folder.path, Permissions::from_mode(0o755))?;
        }
        let is_live = has_counters && is_named;
        let following = Following::start(changes, folder.path.clone(), now, wanted, shown, is_live).ok();
        Ok(Self { following, folder, counted: elsewhere })
    }

    /// Whether processes can count for the run.
    pub(crate) fn count(&self) -> bool {
        self.folder.path.join(counters::files::PLACE).is_dir()
    }

    /// What the processes of the run have counted on each device until now.
    pub(crate) fn totals(&self) -> Vec<(String, Counters)> {
        self.folder.path.to_str().map(counters::files::totals).unwrap_or_default()
    }

    /// The command that stands for iproute2's `rdma`.
    pub(crate) fn rdma(&self) -> PathBuf {
        rdma_in(&self.folder.path)
    }

    /// The absolute path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.folder.path
    }
}

impl Stops for Files {
    fn about_to_stop(&self) {
        self.following.iter().for_each(Following::rest);
    }

    fn goes_on(&self) {
        self.following.iter().for_each(Following::go_on);
    }
}

/// The preloaded library says nothing where a name is too long for it.
fn fits(folder: &Path) -> io::Result<()> {
    let length = folder.as_os_str().len();
    if length > LONGEST_NAME {
        let why = format!("its name has {length} bytes, and at most {LONGEST_NAME} are possible");
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, why));
    }
    Ok(())
}

/// Where the command that stands for iproute2's `rdma` is in a folder.
fn rdma_in(folder: &Path) -> PathBuf {
    folder.join("bin/rdma")
}

/// Puts everything into a folder.
fn fill(root: &Path, entries: &[(String, Content)], host: Option<&Host>) -> io::Result<()> {
    // Nobody else changes what is there, and everybody may read it, whatever the user's own mask. No thread
    // runs yet.
    let _mask = Mask::set(0o022);
    let mut known = File::options().write(true).create_new(true).mode(0o644).open(root.join(KNOWN))?;
    known.write_all((buses(entries) + &counters::files::recipes()).as_bytes())?;
    let mut folders = HashSet::from([root.to_owned()]);
    let mut folder = |path: &Path| -> io::Result<()> {
        let missing: Vec<_> = path.ancestors().take_while(|path| !folders.contains(*path)).collect();
        let missing: Vec<_> = missing.into_iter().map(Path::to_owned).collect();
        for path in missing.into_iter().rev() {
            DirBuilder::new().mode(0o755).create(&path)?;
            folders.insert(path);
        }
        Ok(())
    };
    // Most have the text of another one, and are that one by a further name, but those that programs may
    // write. On a disk, a new file costs most where many have just been removed: ext4 looks for an inode that
    // has rested.
    let mut written: HashMap<&str, PathBuf> = HashMap::new();
    for (path, content) in entries.iter().chain(host.iter().flat_map(|host| host.entries())) {
        let path = below(root, path);
        match content {
            Content::Folder => folder(&path)?,
            _ => folder(path.parent().unwrap_or(root))?,
        }
        match content {
            Content::Folder => {}
            Content::Text(text) => {
                // Not every file system gives a file two names.
                let mut same = written.get(&**text).filter(|_| !is_writable(&path));
                if same.take_if(|same| fs::hard_link(same, &path).is_ok()).is_some() {
                    continue;
                }
                write_text(&path, text)?;
                if !is_writable(&path) {
                    written.insert(text, path);
                }
            }
            // A device that everybody may read and write, and that does nothing.
            Content::Device => symlink("/dev/null", &path)?,
            Content::Link(target) => symlink(target, &path)?,
        }
    }
    folder(&root.join("bin"))?;
    symlink(libraries::own_file()?, rdma_in(root))
}

/// Writes a file that is not there yet.
fn write_text(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o444).open(path)?;
    file.write_all(format!("{text}\n").as_bytes())
}

/// Whether sysfs lets root write a file: what he writes there is not to change others.
fn is_writable(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "node_desc" || name == "numa_node")
}

/// The PCI buses on which entries stand, a line each, as the preloaded library reads them.
fn buses(entries: &[(String, Content)]) -> String {
    let of = |path: &str| {
        let (place, name) = path.rsplit_once('/')?;
        let bus = match place {
            "/sys/class/pci_bus" => name,
            "/sys/bus/pci/devices" => name.rsplit_once(':')?.0,
            _ => return None,
        };
        Some(format!("{bus}\n"))
    };
    entries.iter().filter_map(|(path, _)| of(path)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Writes the files of devices into a folder of the user's, where they stay; what was written there before
/// goes. Returns its whole name.
///
/// # Errors
/// When it cannot be written, or has something else in it.
pub(crate) fn write(place: &Path, devices: Option<&str>) -> io::Result<PathBuf> {
    let place = Place::named(place)?;
    // Processes of several users may use it, one after the other, so there is nobody to count for.
    fill(&place.path, &FolderPlan::of(devices, false, None).entries(&interfaces::look()), None)?;
    Ok(place.path.clone())
}

/// Removes what has been written into a folder of the user's before.
///
/// # Errors
/// It has something else in it, or cannot be written.
fn clear(place: &Path) -> io::Result<()> {
    fits(place)?;
    let ours = ["sys", "dev", "bin", KNOWN, TOLD, MARK, counters::files::PLACE].map(OsString::from);
    let there: Vec<_> =
        fs::read_dir(place)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    // A fill may have been cut short, so the mark is there as long as anything else is.
    let is_marked = there.iter().any(|name| name == MARK) || rdma_in(place).is_symlink();
    let is_own = |name: &OsString| ours.contains(name) || is_new(name.as_bytes());
    let is_ours = there.is_empty() || is_marked && there.iter().all(is_own);
    if !is_ours {
        return Err(io::Error::other("it is not empty: a folder of its own is wanted"));
    }
    let mark = place.join(MARK);
    match File::options().write(true).create_new(true).mode(0o644).open(&mark) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && fs::symlink_metadata(&mark)?.is_file() => {}
        made => drop(made?),
    }
    for name in there.iter().filter(|name| *name != MARK) {
        let path = place.join(name);
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    Ok(())
}

/// Whether a file was to take the place of another one: this process's, or of the preloaded library
/// (`.THREAD-NUMBER`).
fn is_new(name: &[u8]) -> bool {
    let Some(name) = name.strip_prefix(b".") else { return false };
    let is_of_library =
        name.contains(&b'-') && name.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
    [follow::NEW, live::NEW].iter().any(|new| new.as_bytes()[1..] == *name) || is_of_library
}

/// Where a path is in the folder.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The process's mask of modes, which gets its value back.
struct Mask(libc::mode_t);

impl Mask {
    fn set(mask: libc::mode_t) -> Self {
        // SAFETY: any mask will do, and the call cannot fail.
        Self(unsafe { libc::umask(mask) })
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::umask(self.0) };
    }
}

/// Where the folder may be, best first: where the environment says; in memory, where it costs a tenth. But
/// what an ordinary user has there goes when he logs out, though his programs run on (RemoveIPC of
/// logind.conf(5)).
fn places() -> [PathBuf; 2] {
    let (memory, temporary) = (PathBuf::from(MEMORY), std::env::temp_dir());
    match std::env::var_os("TMPDIR").is_none() && user() == 0 {
        true => [memory, temporary],
        false => [temporary, memory],
    }
}

fn user() -> libc::uid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// What is wanted in the folder, beside entries of the host's own.
struct FolderPlan {
    /// A comma list; else those that the environment names.
    devices: Option<String>,
    with_counters: bool,
    beside_host: bool,
    /// Programs that know nothing of us read the folder.
    is_named: bool,
}

impl FolderPlan {
    fn of(devices: Option<&str>, with_counters: bool, host: Option<&Host>) -> Self {
        let beside_host = host.is_some_and(|host| host.library().is_some());
        let devices = devices.map(str::to_owned).or_else(setting::devices);
        Self { devices, with_counters, beside_host, is_named: false }
    }

    /// What stands there when the interfaces are so. A device that cannot be made is left out, as it is in
    /// the program.
    fn entries(&self, now: &Interfaces) -> Vec<(String, Content)> {
        interfaces::seen_as(now.clone(), || self.entries_now())
    }

    fn entries_now(&self) -> Vec<(String, Content)> {
        let made = transport::make(environment::TRANSPORTS, self.devices.as_deref());
        let made: Vec<_> = made.iter().flatten().collect();
        let devices: Vec<_> =
            made.iter().map(|(description, transport)| (description, &**transport)).collect();
        let mut entries = sysfs::entries(&devices, self.with_counters, self.beside_host);
        if self.is_named {
            // rxe and siw have no such file, but node_exporter 1.5 takes what has none for no adapter.
            let beside = |(path, _): &(String, Content)| {
                Some((format!("{}/board_id", path.strip_suffix("/fw_ver")?), Content::Text("adverb".into())))
            };
            let boards: Vec<_> = entries.iter().filter_map(beside).collect();
            entries.extend(boards);
        }
        entries
    }
}

/// Removes what has been left behind by those who were killed.
fn sweep(place: &Path) {
    let user = user();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user);
        if ours && open(&entry.path()).is_ok_and(|folder| lock(&folder, libc::LOCK_EX).is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn open(folder: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(folder)
}

/// Locks a folder if that can be done at once.
fn lock(folder: &File, how: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the file is.
    match unsafe { libc::flock(folder.as_raw_fd(), how | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
