//! Files of counters for programs that make system calls themselves: they are written when such a program
//! opens them.
//!
//! The thread of the files has a lease on each (fcntl(2), F_SETLEASE). The kernel lets a process that opens a
//! file wait until the thread has written what the processes of the run have counted until now, and has put a
//! new file with a lease in its place. So the next reader gets a new value, too, while the first one keeps
//! the old file open. Nothing is done while nobody looks.
//!
//! The library that `adverb run` preloads puts a new file in the place of the old one, too
//! ([`adverb_core::counters::files`]), and inotify tells of that. This thread then puts one of its own there,
//! since a rename leaves the lease on a file that nobody finds any more.
//!
//! Where the system has no leases or no inotify, the thread writes the files each second instead.

use super::Content;
use adverb_core::counters::{Counters, files};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a new file is called before it gets its place.
pub(super) const NEW: &str = ".counted";

// Of <fcntl.h>, which crate libc does not have for every C library.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// The thread or process that gets a signal (fcntl(2), struct f_owner_ex).
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// The files of counters of a run. It belongs to one thread, which has blocked all signals.
pub(super) struct Live {
    root: PathBuf,
    /// The kernel's notices; with none, the files are written each second.
    kernel: Option<Kernel>,
    /// The folder of each watch.
    watched: HashMap<i32, PathBuf>,
    files: HashMap<PathBuf, CounterFile>,
    /// What was counted when a file was handed out last.
    known: CountCache,
    /// Nobody is to wait for this thread, which is about to be stopped.
    rests: bool,
}

/// What was counted a moment ago: a program that reads all files of a device has the pages of the processes
/// read once. A file that has been handed out from it says something newer the next time.
#[derive(Default)]
struct CountCache {
    at: Option<Instant>,
    totals: Vec<(String, Counters)>,
    handed_out: HashSet<PathBuf>,
}

impl CountCache {
    /// How long the counts are good.
    const GOOD: Duration = Duration::from_millis(100);

    /// Whether a file may say what is known.
    fn is_good_for(&self, path: &Path, now: Instant) -> bool {
        let age = self.at.map(|at| now.saturating_duration_since(at));
        age.is_some_and(|age| age < Self::GOOD) && !self.handed_out.contains(path)
    }

    /// What a file is to say.
    fn totals(
        &mut self,
        path: &Path,
        now: Instant,
        count: impl FnOnce() -> Vec<(String, Counters)>,
    ) -> &[(String, Counters)] {
        if !self.is_good_for(path, now) {
            *self = Self { at: Some(now), totals: count(), handed_out: HashSet::new() };
        }
        self.handed_out.insert(path.to_owned());
        &self.totals
    }
}

/// What the kernel tells.
struct Kernel {
    /// The descriptor by which the kernel says who waits: a signal of this thread.
    signals: OwnedFd,
    /// The descriptor by which the kernel says who has closed a file, or put another one in its place.
    changed: OwnedFd,
}

impl Kernel {
    fn begin() -> io::Result<Self> {
        // SAFETY: a signal set that is filled before use, and plain flags.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigaddset(&raw mut set, signal());
            // Comes instead where too many signals wait.
            libc::sigaddset(&raw mut set, libc::SIGIO);
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            Ok(Self {
                signals: owned(libc::signalfd(-1, &raw const set, flags))?,
                changed: owned(libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK))?,
            })
        }
    }
}

/// A file of counters.
struct CounterFile {
    device: String,
    name: &'static str,
    file: File,
    /// The value that the file shows.
    value: u64,
    /// Whether a process that opens the file waits.
    leased: bool,
}

/// The signal by which the kernel says that somebody wants to open a file.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// The descriptor that a system call returned.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

impl Live {
    /// For the files of `shown`, in the thread that is to serve them.
    pub(super) fn begin<'a>(root: &Path, shown: impl Iterator<Item = (&'a String, &'a Content)>) -> Self {
        let mut live = Self {
            root: root.to_owned(),
            kernel: None,
            watched: HashMap::new(),
            files: HashMap::new(),
            known: CountCache::default(),
            rests: false,
        };
        let begun = Kernel::begin().map(|kernel| live.kernel = Some(kernel));
        if let Err(e) = begun {
            live.go_without(&e);
        }
        live.look_again(shown);
        live
    }

    /// Says once that readers may get values that are a second old.
    fn go_without(&mut self, why: &io::Error) {
        self.kernel = None;
        crate::failure::say(format_args!(
            "warning: --files {}: the system does not say who opens files of counters ({why}); they are written each second",
            self.root.display()
        ));
    }

    /// The files may be others now.
    pub(super) fn look_again<'a>(&mut self, shown: impl Iterator<Item = (&'a String, &'a Content)>) {
        let totals = self.totals();
        let shown: HashMap<PathBuf, _> =
            shown.filter_map(|(path, _)| Some((super::below(&self.root, path), split(path)?))).collect();
        self.files.retain(|path, _| shown.contains_key(path));
        for (path, (device, name)) in shown {
            if self.files.contains_key(&path) {
                continue;
            }
            // Before the file is there, so that nothing is missed.
            if let Err(e) = self.watch(path.parent().unwrap_or(&path)) {
                self.go_without(&e);
            }
            let value = value(&totals, &device, name);
            // Where there is no room any more, the file says what it said.
            let Ok((file, leased)) = self.new_file(&path, value) else { continue };
            self.files.insert(path, CounterFile { device, name, file, value, leased });
        }
    }

    /// A new file at this path, with a lease where the system has any; whether it has one.
    fn new_file(&mut self, path: &Path, value: u64) -> io::Result<(File, bool)> {
        let is_wanted = self.kernel.is_some() && !self.rests;
        let (file, leased) = write_new(&self.root, path, value, is_wanted)?;
        match leased {
            Ok(leased) => Ok((file, leased)),
            // Somebody looks at all files of the folder. The lease comes with the close.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok((file, false)),
            Err(e) => {
                self.go_without(&e);
                Ok((file, false))
            }
        }
    }

    /// Has the kernel say who closes files of a folder, or puts some there.
    fn watch(&mut self, folder: &Path) -> io::Result<()> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let name = CString::new(folder.as_os_str().as_bytes())?;
        // SAFETY: an open descriptor, a C string and plain flags.
        let watch = unsafe {
            libc::inotify_add_watch(
                kernel.changed.as_raw_fd(),
                name.as_ptr(),
                libc::IN_CLOSE_NOWRITE | libc::IN_MOVED_TO | libc::IN_ONLYDIR,
            )
        };
        if watch < 0 {
            return Err(io::Error::last_os_error());
        }
        self.watched.insert(watch, folder.to_owned());
        Ok(())
    }

    fn totals(&self) -> Vec<(String, Counters)> {
        count(&self.root)
    }

    /// What to wait for: [`Live::serve`] then has something to do.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        // A negative descriptor is none to poll(2).
        let of = |kernel: &Kernel| [kernel.signals.as_raw_fd(), kernel.changed.as_raw_fd()];
        self.kernel.as_ref().map_or([-1; 2], of)
    }

    /// How long to wait for that at most, in milliseconds as poll(2) takes them: then [`Live::serve`] has
    /// something to do, too.
    pub(super) fn patience(&self) -> libc::c_int {
        if self.kernel.is_some() || self.rests { -1 } else { 1000 }
    }

    /// Serves those who open files, and takes leases on files that have none.
    pub(super) fn serve(&mut self) {
        if self.kernel.is_none() {
            return self.write_all();
        }
        let (wanted, mut changed) = (self.wanted(), self.changed());
        if wanted.is_empty() && changed.is_empty() {
            return;
        }
        let now = Instant::now();
        if !wanted.is_empty() {
            let is_wanted = |counted: &CounterFile| wanted.contains(&counted.file.as_raw_fd());
            let paths = self.files.iter().filter(|(_, counted)| is_wanted(counted));
            let paths: Vec<_> = paths.map(|(path, _)| path.clone()).collect();
            paths.iter().for_each(|path| self.hand_out(path, now));
        }
        // Closes of files that have their leases change nothing.
        changed.retain(|path| self.is_open_to_all(path));
        if !self.rests && !changed.is_empty() {
            let totals = self.totals();
            changed.iter().for_each(|path| self.take_up(path, &totals));
        }
    }

    /// Each file says what is now, and none has a lease.
    fn write_all(&mut self) {
        let totals = self.totals();
        for (path, counted) in &mut self.files {
            let value = value(&totals, &counted.device, counted.name);
            if counted.is_at(path) {
                counted.write(value);
            } else if let Ok((file, _)) = write_new(&self.root, path, value, false) {
                (counted.file, counted.value) = (file, value);
            }
            counted.give_up();
        }
    }

    /// Answers a program that waits for this file with the values of now. A later program waits for other
    /// values.
    fn hand_out(&mut self, path: &Path, now: Instant) {
        let Some(counted) = self.files.get_mut(path) else { return };
        let totals = self.known.totals(path, now, || count(&self.root));
        let value = value(totals, &counted.device, counted.name);
        counted.write(value);
        if self.rests || !self.renew(path, value) {
            // Without a new one, the lease on this comes back when it is closed.
            self.files.get_mut(path).into_iter().for_each(CounterFile::give_up);
        }
    }

    /// A new file comes to this path. The old one is closed, so its readers go on. False where that cannot
    /// be.
    fn renew(&mut self, path: &Path, value: u64) -> bool {
        let made = self.new_file(path, value);
        let (Ok((file, leased)), Some(counted)) = (made, self.files.get_mut(path)) else { return false };
        (counted.file, counted.value, counted.leased) = (file, value, leased);
        true
    }

    /// The descriptors of files that somebody wants to open.
    fn wanted(&self) -> Vec<RawFd> {
        let mut wanted = Vec::new();
        let [signals, _] = self.descriptors();
        loop {
            // SAFETY: plain data, for which zero is valid, filled by the call; a live descriptor.
            let (length, information) = unsafe {
                let mut information: libc::signalfd_siginfo = zeroed();
                let size = size_of_val(&information);
                (libc::read(signals, (&raw mut information).cast(), size), information)
            };
            if length <= 0 {
                return wanted;
            }
            if information.ssi_signo == libc::SIGIO as u32 {
                // It names no file: it may be any.
                wanted.extend(self.files.values().map(|counted| counted.file.as_raw_fd()));
            } else {
                wanted.push(information.ssi_fd);
            }
        }
    }

    /// The files that somebody has closed, or put in the place of others.
    fn changed(&self) -> Vec<PathBuf> {
        const HEAD: usize = size_of::<libc::inotify_event>();
        let mut changed = Vec::new();
        let Some(kernel) = &self.kernel else { return changed };
        let mut bytes = [0; 4096];
        // SAFETY: a live descriptor, for as long as this runs; the file does not close it.
        let mut file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(kernel.changed.as_raw_fd()) });
        while let Ok(length @ 1..) = file.read(&mut bytes) {
            let mut rest = &bytes[..length];
            while let Some((head, behind)) = rest.split_at_checked(HEAD) {
                // SAFETY: as many bytes as an event has, and all values are valid.
                let event = unsafe { head.as_ptr().cast::<libc::inotify_event>().read_unaligned() };
                let Some((name, behind)) = behind.split_at_checked(event.len as usize) else { break };
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                if event.mask & libc::IN_Q_OVERFLOW != 0 {
                    changed.extend(self.files.keys().cloned());
                } else if let Some(folder) = self.watched.get(&event.wd) {
                    changed.push(folder.join(std::ffi::OsStr::from_bytes(name)));
                }
                rest = behind;
            }
        }
        changed
    }

    /// Whether the next process that opens this file would not wait, or would find another file.
    fn is_open_to_all(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(|counted| !counted.leased || !counted.is_at(path))
    }

    /// A process that opens the file from now on waits.
    fn take_up(&mut self, path: &Path, totals: &[(String, Counters)]) {
        let Some(counted) = self.files.get_mut(path) else { return };
        let value = value(totals, &counted.device, counted.name);
        if !counted.is_at(path) {
            // The library's.
            self.renew(path, value);
        } else if !counted.leased && self.kernel.is_some() {
            counted.write(value);
            // Another reader's close comes later.
            counted.lease();
        }
    }

    /// Nobody waits for this thread any more; the files say what is now.
    pub(super) fn rest(&mut self) {
        self.rests = true;
        self.write_all();
    }

    /// The files are served again.
    pub(super) fn go_on(&mut self) {
        self.rests = false;
        let (totals, paths) = (self.totals(), self.files.keys().cloned().collect::<Vec<_>>());
        paths.iter().for_each(|path| self.take_up(path, &totals));
    }
}

impl CounterFile {
    /// The kernel lets a process that opens the file wait, and tells this thread.
    fn lease(&mut self) {
        self.leased = lease(&self.file).is_ok();
    }

    /// Gives the file's lease up: programs that wait for it go on.
    fn give_up(&mut self) {
        self.leased = false;
        // SAFETY: an open descriptor and plain numbers.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }

    /// The number only grows, and never gets shorter: a reader finds an old or a new one.
    fn write(&mut self, value: u64) {
        // Where there is no room any more, the file says what was.
        if value > self.value && self.file.write_all_at(format!("{value}\n").as_bytes(), 0).is_ok() {
            self.value = value;
        }
    }

    /// Whether the file is the one at this path.
    fn is_at(&self, path: &Path) -> bool {
        let at = |status: fs::Metadata| (status.dev(), status.ino());
        match (self.file.metadata(), fs::symlink_metadata(path)) {
            (Ok(own), Ok(there)) => at(own) == at(there),
            _ => false,
        }
    }
}

/// The device and the file, of a path `.../infiniband/DEVICE/ports/1/FOLDER/NAME` whose text moves.
fn split(path: &str) -> Option<(String, &'static str)> {
    let (device, name) = path.split_once("/ports/1/")?;
    let name = files::moving().find(|moving| *moving == name)?;
    Some((device.rsplit_once('/')?.1.to_owned(), name))
}

/// What the processes of the run have counted until now.
fn count(root: &Path) -> Vec<(String, Counters)> {
    root.to_str().map(files::totals).unwrap_or_default()
}

fn value(totals: &[(String, Counters)], device: &str, name: &str) -> u64 {
    let counted = totals.iter().find(|(known, _)| known == device);
    counted.and_then(|(_, counters)| files::value(name, counters)).unwrap_or_default()
}

/// The kernel lets a process that opens the file wait, and tells the calling thread.
fn lease(file: &File) -> io::Result<()> {
    let file = file.as_raw_fd();
    // SAFETY: an open descriptor, plain numbers, and a live local.
    let done = unsafe {
        let owner = Owner { kind: F_OWNER_TID, id: libc::syscall(libc::SYS_gettid) as libc::pid_t };
        // The end of a lease has reset both.
        libc::fcntl(file, F_SETSIG, signal()) == 0
            && libc::fcntl(file, F_SETOWN_EX, &raw const owner) == 0
            && libc::fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A new file at this path, for everybody to read; a process that has the old one open keeps that. Whether
/// the file has a lease, if one is wanted.
fn write_new(root: &Path, path: &Path, value: u64, is_wanted: bool) -> io::Result<(File, io::Result<bool>)> {
    let new = root.join(NEW);
    let file = File::options().write(true).create_new(true).mode(0o444).open(&new)?;
    // Before anybody finds it.
    let leased = if is_wanted { lease(&file).map(|()| true) } else { Ok(false) };
    file.set_permissions(fs::Permissions::from_mode(0o444))
        .and_then(|()| file.write_all_at(format!("{value}\n").as_bytes(), 0))
        .and_then(|()| fs::rename(&new, path))
        .inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok((file, leased))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_device_are_counted_once_and_each_file_anew_when_it_is_read_again() {
        let (mut known, now) = (CountCache::default(), Instant::now());
        let (one, other) = (Path::new("/one"), Path::new("/other"));
        let counted = std::cell::Cell::new(0);
        let mut read = |path, at| {
            known.totals(path, at, || {
                counted.set(counted.get() + 1);
                Vec::new()
            });
            counted.get()
        };
        assert_eq!((read(one, now), read(other, now)), (1, 1));
        assert_eq!((read(one, now), read(other, now)), (2, 2), "the same file");
        assert_eq!(read(Path::new("/third"), now + CountCache::GOOD), 3, "it is old");
    }

    #[test]
    fn files_that_move_are_known_by_their_paths() {
        let at = "/sys/devices/platform/adverb.0.auto/infiniband/roce0/ports/1";
        assert_eq!(
            split(&format!("{at}/counters/port_xmit_data")),
            Some(("roce0".to_owned(), "counters/port_xmit_data"))
        );
        assert_eq!(split(&format!("{at}/counters/link_downed")), None);
        assert_eq!(split(&format!("{at}/state")), None);
    }
}
