//! Follows the addresses of the host: writes anew those files of devices whose text depends on them.
//!
//! PRACTICE-FILES-4. This is done here, and not by the library that the programs load: who asks the system for its addresses needs memory and time, and
//! that library runs in signal handlers. Programs that make system calls themselves see the change, too.

use super::{Content, Wanted, write_text};
use adverb_core::interfaces::{self, Interfaces};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// What a new file is called before it gets its place.
const NEW: &str = ".new";

/// A thread that keeps a folder's files as the host is, until dropped.
pub(super) struct Following {
    thread: Option<JoinHandle<()>>,
    /// What is sent by it ends the thread.
    stop: UnixDatagram,
}

struct Follower {
    changes: OwnedFd,
    root: PathBuf,
    /// All that the files depend on.
    now: Interfaces,
    wanted: Wanted,
    /// What is in the folder, by its place there.
    shown: HashMap<String, Content>,
}

impl Following {
    /// From `now` on, when `shown` was in the folder; `changes` is the socket that tells of them. The thread takes no signal.
    pub(super) fn start(
        changes: OwnedFd,
        root: PathBuf,
        now: Interfaces,
        wanted: Wanted,
        shown: Vec<(String, Content)>,
    ) -> io::Result<Self> {
        let (stop, stopped) = UnixDatagram::pair()?;
        let mut follower = Follower { changes, root, now, wanted, shown: shown.into_iter().collect() };
        // SAFETY: signal sets are plain data, filled before use; the old mask is restored.
        let thread = unsafe {
            let (mut all, mut old) = (zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            let thread = std::thread::Builder::new().name("files".into());
            let thread = thread.spawn(move || follower.run(&stopped));
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
            thread?
        };
        Ok(Self { thread: Some(thread), stop })
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let (Ok(_), Some(thread)) = (self.stop.send(&[0]), self.thread.take()) {
            let _ = thread.join();
        }
    }
}

impl Follower {
    fn run(&mut self, stopped: &UnixDatagram) {
        loop {
            let [changes, stopped] = [self.changes.as_raw_fd(), stopped.as_raw_fd()];
            let mut polled =
                [changes, stopped].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: a live array of its length.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
            if polled[1].revents != 0 {
                return;
            }
            interfaces::take_changes(changes);
            let now = interfaces::look();
            if now != self.now {
                self.now = now;
                self.update();
            }
        }
    }

    /// Writes what is another text than before, and removes what is there no more. Whoever has a file open keeps what it said.
    fn update(&mut self) {
        let before = std::mem::replace(&mut self.shown, self.wanted.entries(&self.now).into_iter().collect());
        for (path, content) in &self.shown {
            if before.get(path) != Some(content) {
                // Where there is no room any more, the file says what was.
                let _ = put(&self.root, path, content);
            }
        }
        for path in before.keys().filter(|path| !self.shown.contains_key(*path)) {
            let _ = fs::remove_file(below(&self.root, path));
        }
    }
}

/// Where a path is in the folder.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Gives a path this content, at one stroke.
fn put(root: &Path, path: &str, content: &Content) -> io::Result<()> {
    let (path, new) = (below(root, path), root.join(NEW));
    folder(path.parent().unwrap_or(root))?;
    match content {
        Content::Folder => return folder(&path),
        Content::Text(text) => {
            write_text(&new, text).and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o444)))
        }
        Content::Device => symlink("/dev/null", &new),
        Content::Link(target) => symlink(target, &new),
    }
    .and_then(|()| fs::rename(&new, &path))
    .inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Makes a folder if it is not there, for everybody to read, whatever the user's own mask.
fn folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            folder(path.parent().ok_or(e)?)?;
            folder(path)
        }
        Err(e) => Err(e),
    }
}
