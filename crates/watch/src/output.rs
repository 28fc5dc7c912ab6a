//! The file of a trace: whole lines, gathered in memory of the process and written by the thread that fills
//! it, or by one that looks after the rest.
//!
//! A line that comes [`LATE`] after the file was written last is written at once, so that a program that is
//! killed or stuck has its last calls in the file; in between, many lines make one system call. Of a program
//! that is killed at most the lines of [`LATE`] are missing. Its last line may be cut: a kernel that kills a
//! thread amid `write` ends the copy where a page of the file ends.

use crate::requests::Requests;
use crate::setting::{Format, Target};
use adverb_core::cancel::CancellationGuard;
use adverb_core::clock;
use adverb_core::engine;
use adverb_core::log;
use adverb_core::setting;
use adverb_core::signals::{SignalMask, without_sigpipe};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// How long a line may wait, in nanoseconds.
const LATE: u64 = 10_000_000;
/// How much may wait.
const FULL: usize = 256 << 10;

/// What a fork counts up: a child has no thread that writes, and its own process ID.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process is a child of fork, counted from the one that began the trace.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The trace of this process.
pub(crate) struct Output {
    target: Target,
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Something waits to be written later.
    condition: UnsafeCell<libc::pthread_cond_t>,
    state: UnsafeCell<State>,
    /// Signals of a thread that forks, which has the mutex.
    forking: UnsafeCell<Option<SignalMask>>,
}

// SAFETY: the state and the signals belong to the thread that holds the mutex.
unsafe impl Sync for Output {}
// SAFETY: as above.
unsafe impl Send for Output {}

/// What the mutex protects.
pub(crate) struct State {
    buffer: Vec<u8>,
    file: Option<File>,
    /// Device and inode: a program may close descriptors that are not its own.
    identity: (u64, u64),
    written: u64,
    has_thread: bool,
    /// The trace has ended: it could not be written.
    ended: bool,
    /// The program ends: every line is written at once.
    at_once: bool,
    forks: u32,
    /// Requests that are under way.
    pub(crate) requests: Requests,
}

impl Output {
    /// Opens the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(target: Target) -> io::Result<Self> {
        let mut state = State {
            buffer: Vec::new(),
            file: None,
            identity: (0, 0),
            written: 0,
            has_thread: false,
            ended: false,
            at_once: false,
            forks: forks(),
            requests: Requests::default(),
        };
        state.open(&target)?;
        Ok(Self {
            target,
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            condition: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            state: UnsafeCell::new(state),
            forking: UnsafeCell::new(None),
        })
    }

    pub(crate) fn format(&self) -> Format {
        self.target.format
    }

    fn lock(&self) {
        // SAFETY: initialized, and it lives as long as the process.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// Takes the lock, and says whether it could. It gives up after a second: the thread that has the lock
    /// may wait for the reader of a pipe.
    fn lock_soon(&self) -> bool {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a time in a live local, and a mutex that is initialized.
        unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time);
            time.tv_sec += 1;
            libc::pthread_mutex_timedlock(self.mutex.get(), &raw const time) == 0
        }
    }

    /// Does something with the state. The thread is not cancelled meanwhile, and runs no handler of a signal:
    /// one that calls verbs would come here.
    pub(crate) fn with<T>(&'static self, work: impl FnOnce(&mut State) -> T) -> T {
        let (_whole, _signals) = (CancellationGuard::new(), SignalMask::new());
        self.lock();
        self.locked(work)
    }

    /// Does something with the state, and gives up the mutex that this thread has.
    fn locked<T>(&'static self, work: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: the mutex is held, and `work` does not come here.
        let state = unsafe { &mut *self.state.get() };
        if state.forks != forks() {
            state.begin_in_child(&self.target);
        }
        let result = work(state);
        self.unlock();
        result
    }

    /// Appends whole lines. In a program with many calls most lines wait for others.
    pub(crate) fn append(&'static self, lines: &[u8], now: u64) {
        self.with(|state| {
            if state.ended {
                return;
            }
            let was_empty = state.buffer.is_empty();
            state.buffer.extend_from_slice(lines);
            let is_late = now.saturating_sub(state.written) >= LATE;
            if state.at_once || is_late || state.buffer.len() >= FULL {
                state.flush(&self.target);
                state.written = now;
            } else if was_empty {
                state.has_thread = state.has_thread || start_thread(self);
                if state.has_thread {
                    // SAFETY: initialized.
                    unsafe { libc::pthread_cond_signal(self.condition.get()) };
                } else {
                    state.flush(&self.target);
                }
            }
        });
    }

    /// Writes what waits; from now on every line at once.
    pub(crate) fn end(&'static self) {
        let (_whole, _signals) = (CancellationGuard::new(), SignalMask::new());
        if !self.lock_soon() {
            return;
        }
        self.locked(|state| {
            state.flush(&self.target);
            state.at_once = true;
            if self.target.format == Format::Chrome && self.target.is_own() && !state.ended {
                // The list ends. Its last element must have no comma behind it.
                let last = format!(
                    "{{\"name\":\"end of the trace\",\"ph\":\"i\",\"s\":\"p\",\"ts\":{},\"pid\":{},\"tid\":{}}}\n]\n",
                    clock::device().saturating_sub(crate::format::base()) / 1000,
                    std::process::id(),
                    std::process::id()
                );
                state.buffer.extend_from_slice(last.as_bytes());
                state.flush(&self.target);
                state.ended = true;
            }
        });
    }

    /// Writes what waits, and no more: the thread may be in the middle of an allocation.
    pub(crate) fn break_off(&'static self) {
        let (_whole, _signals) = (CancellationGuard::new(), SignalMask::new());
        if self.lock_soon() {
            self.locked(|state| state.flush(&self.target));
        }
    }

    /// What the thread does that looks after lines that wait.
    fn look_after(&'static self) {
        loop {
            self.lock();
            // SAFETY: the mutex is held in every look at the state, and given up by the wait.
            unsafe {
                while (*self.state.get()).buffer.is_empty() {
                    libc::pthread_cond_wait(self.condition.get(), self.mutex.get());
                }
            }
            self.unlock();
            std::thread::sleep(std::time::Duration::from_nanos(LATE));
            self.with(|state| {
                state.flush(&self.target);
                state.written = clock::device();
            });
        }
    }

    /// Keeps the state whole over forks: it is locked while the process is copied.
    pub(crate) fn survive_forks(&'static self) {
        SURVIVOR.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
        // SAFETY: static functions that may run at a fork: they take and leave one mutex, and count.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
}

/// Counts forks, without a trace in lines.
pub(crate) fn count_forks() {
    // SAFETY: a static function that may run at a fork: there is no state that it would take over.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

static SURVIVOR: std::sync::atomic::AtomicPtr<Output> =
    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

fn survivor() -> Option<&'static Output> {
    // SAFETY: null, or what `survive_forks` was given, which lives as long as the process.
    unsafe { SURVIVOR.load(Ordering::Acquire).as_ref() }
}

extern "C" fn before_fork() {
    if let Some(output) = survivor() {
        let signals = SignalMask::new();
        output.lock();
        // SAFETY: the mutex is held.
        unsafe { *output.forking.get() = Some(signals) };
    }
}

extern "C" fn in_parent() {
    if let Some(output) = survivor() {
        // SAFETY: the mutex is held since `before_fork`.
        let signals = unsafe { (*output.forking.get()).take() };
        output.unlock();
        drop(signals);
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(output) = survivor() {
        // The parent's threads wait for the mutex and the condition, as they stand here: nobody would ever
        // come. SAFETY: this is the only thread, and what it replaces is plain data.
        unsafe {
            output.mutex.get().write(libc::PTHREAD_MUTEX_INITIALIZER);
            output.condition.get().write(libc::PTHREAD_COND_INITIALIZER);
            drop((*output.forking.get()).take());
        }
    }
}

/// Starts the thread that looks after lines that wait: whether that is possible. It is one of the engine's:
/// as a thread of the program, it would keep the pages of regions from being moved.
fn start_thread(output: &'static Output) -> bool {
    // After a panic in it, lines wait for the next call that writes. The engine goes on.
    let work = move || drop(catch_unwind(AssertUnwindSafe(|| output.look_after())));
    engine::existing().is_some_and(|engine| engine.reactor.helpers.spawn("adverb-trace", work).is_ok())
}

impl State {
    fn open(&mut self, target: &Target) -> io::Result<()> {
        let name = setting::file(&target.file);
        let mut file = File::options().append(true).create(true).open(&name)?;
        let status = file.metadata()?;
        self.identity = (status.dev(), status.ino());
        let begin = crate::format::begin(target.format);
        if !begin.is_empty() && status.is_file() {
            // One of several processes begins the list, as far as the file system has locks.
            let _ = file.lock();
            let is_new = file.metadata()?.len() == 0;
            let begun = if is_new { without_sigpipe(|| file.write_all(begin)) } else { Ok(()) };
            let _ = file.unlock();
            begun?;
        } else if !begin.is_empty() {
            without_sigpipe(|| file.write_all(begin))?;
        }
        self.buffer.extend_from_slice(&crate::format::Process::own().line(target.format));
        self.file = Some(file);
        Ok(())
    }

    /// A child of fork has nothing to write, and no thread. Its file is its own if the process ID is in the
    /// name.
    fn begin_in_child(&mut self, target: &Target) {
        self.forks = forks();
        self.buffer.clear();
        self.requests = Requests::default();
        self.has_thread = false;
        (self.at_once, self.written) = (false, 0);
        self.file = None;
        if !self.ended {
            self.reopen(target);
        }
    }

    fn reopen(&mut self, target: &Target) {
        if let Err(error) = self.open(target) {
            self.give_up(target, &error);
        }
    }

    /// Writes what waits, in whole lines.
    fn flush(&mut self, target: &Target) {
        if self.buffer.is_empty() || self.ended {
            return;
        }
        if !self.is_open() {
            // The number may be that of a file of the program by now.
            std::mem::forget(self.file.take());
            let waiting = std::mem::take(&mut self.buffer);
            self.reopen(target);
            self.buffer.extend_from_slice(&waiting);
        }
        let Some(file) = &mut self.file else { return };
        let result = write_whole(file, &self.buffer);
        self.buffer.clear();
        if let Err(error) = result {
            self.give_up(target, &error);
        }
    }

    /// Whether the descriptor is still that of the file.
    fn is_open(&self) -> bool {
        let found = self.file.as_ref().and_then(|file| file.metadata().ok());
        found.is_some_and(|status| (status.dev(), status.ino()) == self.identity)
    }

    fn give_up(&mut self, target: &Target, error: &io::Error) {
        self.ended = true;
        self.buffer = Vec::new();
        let name = setting::file(&target.file);
        log::say(format_args!("the trace ends here: {name} cannot be written: {error}"));
    }
}

/// Writes lines. If only a part can be written, the file gets no part of a line.
fn write_whole(file: &mut File, lines: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < lines.len() {
        let result = without_sigpipe(|| {
            // SAFETY: bytes that are borrowed.
            match unsafe { libc::write(file.as_raw_fd(), lines[done..].as_ptr().cast(), lines.len() - done) }
            {
                -1 => Err(io::Error::last_os_error()),
                written => Ok(written as usize),
            }
        });
        match result {
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // What another process has appended meanwhile stays.
                let line = lines[..done].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let cut = (done - line) as u64;
                let end = file.stream_position().unwrap_or(0);
                if cut > 0 && file.metadata().is_ok_and(|status| status.is_file() && status.len() == end) {
                    let _ = file.set_len(end - cut);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}
