//! The thread that keeps the files of a run: it writes anew those of devices whose text depends on the
//! addresses of the host, and serves those of counters ([`super::live`]).
//!
//! PRACTICE-FILES-4. This is done here, and not by the library that the programs load: to ask the system for
//! its addresses takes memory and time, and that library runs in signal handlers. Programs that make system
//! calls themselves see the change, too.

use super::live::Live;
use super::{Content, FolderPlan, below, write_text};
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
pub(super) const NEW: &str = ".new";

/// A thread that keeps a folder's files as the host is, until dropped.
pub(super) struct Following {
    thread: Option<JoinHandle<()>>,
    /// What is sent by it is done, and answered.
    tell: UnixDatagram,
}

/// What the thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum FollowerCommand {
    /// The run is over.
    End,
    /// This process is about to be stopped.
    Rest,
    /// The thread goes on.
    GoOn,
}

struct Follower {
    /// The descriptor that tells of changes; none where the system has no such thing.
    changes: Option<OwnedFd>,
    root: PathBuf,
    /// All that the files depend on.
    now: Interfaces,
    wanted: FolderPlan,
    /// What is in the folder, by its place there.
    shown: HashMap<String, Content>,
    /// The files of counters; none where nobody is to find counters.
    live: Option<Live>,
}

impl Following {
    /// From `now` on, when `shown` was in the folder; `changes` is the socket that tells of them. `is_live`:
    /// programs that make system calls themselves find the folder, and counters in it. The thread takes no
    /// signal.
    pub(super) fn start(
        changes: Option<OwnedFd>,
        root: PathBuf,
        now: Interfaces,
        wanted: FolderPlan,
        shown: Vec<(String, Content)>,
        is_live: bool,
    ) -> io::Result<Self> {
        let (tell, told) = UnixDatagram::pair()?;
        let shown = shown.into_iter().collect();
        let mut follower = Follower { changes, root, now, wanted, shown, live: None };
        // SAFETY: signal sets are plain data, filled before use; the old mask is restored.
        let thread = unsafe {
            let (mut all, mut old) = (zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            let thread = std::thread::Builder::new().name("files".into());
            let thread = thread.spawn(move || follower.run(&told, is_live));
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
            thread?
        };
        Ok(Self { thread: Some(thread), tell })
    }

    /// Nobody waits for the thread from now on, since this process is about to be stopped.
    pub(super) fn rest(&self) {
        self.tell(FollowerCommand::Rest);
    }

    /// This process goes on.
    pub(super) fn go_on(&self) {
        self.tell(FollowerCommand::GoOn);
    }

    /// Returns when it is done, or when there is no thread.
    fn tell(&self, what: FollowerCommand) {
        if self.tell.send(&[what as u8]).is_ok() {
            let _ = self.tell.recv(&mut [0]);
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let (Ok(_), Some(thread)) = (self.tell.send(&[FollowerCommand::End as u8]), self.thread.take()) {
            let _ = thread.join();
        }
    }
}

impl Follower {
    fn run(&mut self, told: &UnixDatagram, is_live: bool) {
        if is_live {
            self.live = Some(Live::begin(&self.root, self.shown.iter()));
        }
        loop {
            // A negative descriptor is none to poll(2).
            let [signals, changed] = self.live.as_ref().map_or([-1; 2], Live::descriptors);
            let changes = self.changes.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let mut polled = [told.as_raw_fd(), changes, signals, changed].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            let patience = self.live.as_ref().map_or(-1, Live::patience);
            // SAFETY: a live array of its length.
            let woken = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, patience) };
            let [is_told, has_changes, is_wanted, is_changed] = polled.map(|polled| polled.revents != 0);
            if is_told && !self.obey(told) {
                return;
            }
            if has_changes {
                interfaces::take_changes(changes);
                let now = interfaces::look();
                if now != self.now {
                    self.now = now;
                    self.update();
                }
            }
            if let Some(live) = self.live.as_mut().filter(|_| woken == 0 || is_wanted || is_changed) {
                live.serve();
            }
        }
    }

    /// Does what the thread is told; false if that is to end.
    fn obey(&mut self, told: &UnixDatagram) -> bool {
        let mut word = [FollowerCommand::End as u8];
        let _ = told.recv(&mut word);
        let goes_on = word[0] != FollowerCommand::End as u8;
        if let Some(live) = &mut self.live {
            match word[0] == FollowerCommand::GoOn as u8 {
                true => live.go_on(),
                // Files that stay say what was counted at last.
                false => live.rest(),
            }
        }
        if goes_on {
            let _ = told.send(&word);
        }
        goes_on
    }

    /// Writes what is another text than before, and removes what is there no more. A program with a file open
    /// keeps the old text.
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
        if let Some(live) = &mut self.live {
            live.look_again(self.shown.iter());
        }
    }
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
