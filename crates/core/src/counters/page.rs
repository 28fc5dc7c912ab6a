//! The memory that a process's counters are in.
//!
//! In a program of `adverb run` it is a file of the run ([`super::files`]), so that the counters stay when
//! the process has ended. Such a file is of one process at a time, which holds a lock on it. Its mapping
//! holds the lock, too, so a child that has not called exec keeps the file. The next process with the same
//! devices goes on with the file, and puts away the counters that are there. Elsewhere the page is a memfd,
//! and goes with the process. Where neither can be had it is ordinary memory.

use super::lines::{self, Lines};
use super::{Counters, files};
use crate::descriptor::set_length;
use crate::inspect::plain;
use crate::setting;
use std::ffi::{CStr, CString, c_void};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// The name under which a memfd shows in `/proc/PID/fd`, behind a word of the kernel's.
pub(super) const MEMFD: &str = "memfd:adverb-counters";
/// First word: the layout's version.
const MAGIC: u64 = 0x6164_7662_0000_0009;
/// Room for this many devices.
pub(super) const DEVICES: usize = crate::description::MOST;
/// Room for the name of one device, in bytes.
pub(super) const NAME: usize = 64;

/// The whole memory: a header, then the counters of each device.
#[repr(C)]
pub(crate) struct Page {
    magic: AtomicU64,
    /// Odd while something is put away.
    pub(super) changing: AtomicU64,
    /// Where the process is asked for its objects ([`crate::inspect`]); 0: nowhere.
    place: AtomicU64,
    /// Name of each device, zero-padded; all zero where there is none.
    pub(super) names: [[AtomicU8; NAME]; DEVICES],
    /// Lines of the process about its memory.
    pub(super) lines: Lines,
    pub(super) sets: [CounterSet; DEVICES],
}

/// The counters of a device.
#[repr(C)]
pub(super) struct CounterSet {
    /// The counters of this process.
    pub(super) own: Counters,
    /// The sum of the processes that had the memory before.
    pub(super) before: Counters,
}

impl Page {
    /// A page for this process and these devices. Lives as long as the process.
    pub(crate) fn create(names: &[&str]) -> &'static Self {
        let page = of_the_run(names).unwrap_or_else(of_its_own);
        page.name(names);
        page
    }

    /// Says where the process is asked for its objects.
    pub(crate) fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Release);
    }

    /// Says whose counters are in it.
    fn name(&self, names: &[&str]) {
        self.magic.store(MAGIC, Ordering::Relaxed);
        for (cells, name) in self.names.iter().zip(names) {
            for (cell, byte) in cells.iter().zip(name.bytes()) {
                cell.store(byte, Ordering::Relaxed);
            }
        }
    }

    /// The set of the device with this index; the last set for indices beyond the room.
    pub(crate) fn set(&'static self, index: usize) -> &'static Counters {
        &self.sets[index.min(DEVICES - 1)].own
    }

    /// Whether the page is new, or has these devices.
    fn fits(&self, names: &[&str]) -> bool {
        match self.magic.load(Ordering::Relaxed) {
            0 => true,
            MAGIC => self.names.iter().enumerate().all(|(index, cells)| {
                let name = names.get(index).copied().unwrap_or_default().bytes();
                cells
                    .iter()
                    .map(|cell| cell.load(Ordering::Relaxed))
                    .eq(name.chain(std::iter::repeat(0)).take(NAME))
            }),
            _ => false,
        }
    }

    /// Puts away the counters of an ended process on the first devices. Another process that reads meanwhile
    /// reads again.
    fn put_away(&self, devices: usize) {
        self.be_silent();
        self.set_place(0);
        let changing = self.changing.load(Ordering::Relaxed) | 1;
        self.changing.store(changing, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for set in self.sets.iter().take(devices) {
            set.own.move_to(&set.before);
        }
        fence(Ordering::SeqCst);
        self.changing.store(changing.wrapping_add(1), Ordering::Release);
    }
}

/// A page in a file of the run, if there is one.
fn of_the_run(names: &[&str]) -> Option<&'static Page> {
    let folder =
        CString::new(format!("{}/{}", setting::variable(setting::COUNTER_FILES)?, files::PLACE)).ok()?;
    // SAFETY: a C string and plain numbers.
    let folder = unsafe { libc::open(folder.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if folder < 0 {
        return None;
    }
    let page = is_private(folder).then(|| page_in(folder, names)).flatten();
    // SAFETY: the descriptor from above, of which nothing is kept.
    unsafe { libc::syscall(libc::SYS_close, folder) };
    page
}

/// Whether a folder is this user's and no other one's: after the run, any user may take its name.
fn is_private(folder: i32) -> bool {
    // SAFETY: all zero is a valid structure, and there is room for it; the call takes nothing.
    let (status, own) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        ((libc::fstat(folder, &raw mut status) == 0).then_some(status), libc::geteuid())
    };
    status.is_some_and(|status| status.st_uid == own && status.st_mode & 0o077 == 0)
}

fn page_in(folder: i32, names: &[&str]) -> Option<&'static Page> {
    for number in 0..files::PAGES {
        let name = CString::new(files::page_name(number)).ok()?;
        // SAFETY: an open descriptor, a C string and plain numbers.
        let fd = unsafe {
            libc::openat(
                folder,
                name.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW,
                0o600,
            )
        };
        if fd < 0 {
            return None;
        }
        match claim(fd, names) {
            Ok(page) => {
                crate::fork::own_descriptor(fd);
                return Some(page);
            }
            // SAFETY: the descriptor from above, of which nothing is kept.
            Err(next) => unsafe {
                libc::syscall(libc::SYS_close, fd);
                if !next {
                    return None;
                }
            },
        }
    }
    None
}

/// The page in a file, if no process has it. Else whether the next one may be free.
fn claim(fd: i32, names: &[&str]) -> Result<&'static Page, bool> {
    // SAFETY: an open descriptor and plain numbers.
    unsafe {
        if libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) != 0 {
            return Err(true);
        }
        // Memory that is there: a store for which the file system has no room ends the process.
        let used = std::mem::offset_of!(Page, sets) + size_of::<CounterSet>() * names.len().min(DEVICES);
        let is_there = set_length(fd, size_of::<Page>()).is_ok()
            && libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, used as libc::off_t) == 0;
        if !is_there {
            return Err(false);
        }
    }
    let page = map(libc::MAP_SHARED, fd).ok_or(false)?;
    if !page.fits(names) {
        // SAFETY: the mapping from above, which no thread uses any more.
        unsafe { libc::munmap(std::ptr::from_ref(page).cast_mut().cast::<c_void>(), size_of::<Page>()) };
        return Err(true);
    }
    page.put_away(names.len());
    Ok(page)
}

/// A page that goes with the process.
fn of_its_own() -> &'static Page {
    const NAME: &CStr = c"adverb-counters";
    // SAFETY: a C string and plain numbers.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    let is_shared = fd >= 0 && set_length(fd, size_of::<Page>()).is_ok();
    if fd >= 0 {
        crate::fork::own_descriptor(fd);
    }
    let page = match is_shared {
        true => map(libc::MAP_SHARED, fd),
        false => map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: all zero is a valid Page: numbers only.
    page.unwrap_or_else(|| Box::leak(unsafe { Box::<Page>::new_zeroed().assume_init() }))
}

fn map(flags: i32, fd: i32) -> Option<&'static Page> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping of the page's size: of the file, which has that size, or anonymous. All bytes
    // are a valid Page, of atomics only. `claim` unmaps a page that is not the process's alone, and knows of
    // no other user.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), size_of::<Page>(), access, flags, fd, 0);
        (page != libc::MAP_FAILED).then(|| &*page.cast::<Page>())
    }
}

/// The contents of a [`Page`], as read from its bytes.
pub(super) struct PageContents {
    /// Where the process is asked for its objects, if it is.
    pub(super) place: Option<u64>,
    /// The devices and their counters.
    pub(super) devices: Vec<DeviceCounters>,
    /// Lines of the process about its memory, and the count of those for which there was no room.
    pub(super) lines: (Vec<String>, u64),
}

/// A device, and its counters.
pub(super) struct DeviceCounters {
    pub(super) name: String,
    /// By the process that has the page.
    pub(super) own: Counters,
    /// The sum of the processes that had the page before.
    pub(super) before: Counters,
}

const CHANGING: usize = std::mem::offset_of!(Page, changing);
const NAMES: usize = std::mem::offset_of!(Page, names);
const LINES: usize = std::mem::offset_of!(Page, lines);
const SETS: usize = std::mem::offset_of!(Page, sets);

/// The devices of the page in a file, as it was when nothing was being put away; as it is where its owner
/// stopped while it did so. None of them is there if nothing is in it. Only the parts that are in use are
/// read: a page is long.
///
/// # Errors
/// There is no such file.
pub(super) fn read(path: &str) -> std::io::Result<Vec<DeviceCounters>> {
    /// How often it is read.
    const ATTEMPTS: u32 = 100;
    let file = open(path)?;
    let mut head = vec![0; LINES];
    if file.read_exact_at(&mut head, 0).is_err() || head[..8] != MAGIC.to_ne_bytes() {
        return Ok(Vec::new());
    }
    let names = &head[NAMES..];
    let used = names.chunks_exact(NAME).rposition(|name| name[0] != 0).map_or(0, |last| last + 1);
    let mut sets = vec![0; used * size_of::<CounterSet>()];
    let changing = || {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, CHANGING as u64).map(|()| u64::from_ne_bytes(word))
    };
    for _ in 0..ATTEMPTS {
        let before = changing()?;
        if file.read_exact_at(&mut sets, SETS as u64).is_err() {
            return Ok(Vec::new());
        }
        if before & 1 == 0 && changing()? == before {
            break;
        }
    }
    Ok(counted(&names[..used * NAME], &sets).unwrap_or_default())
}

/// Opens a file that may be any user's. Does not wait for it.
fn open(path: impl AsRef<std::path::Path>) -> std::io::Result<std::fs::File> {
    let file = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

/// The bytes of a page, read no further than a page goes.
pub(super) fn bytes_of(path: impl AsRef<std::path::Path>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(size_of::<Page>() as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The devices with these names and sets, each name once and as plain text: the page may be of a hostile
/// process. None if there are too few sets.
fn counted(names: &[u8], sets: &[u8]) -> Option<Vec<DeviceCounters>> {
    let mut words = sets.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    let mut devices: Vec<DeviceCounters> = Vec::new();
    for name in names.chunks_exact(NAME) {
        let (own, before) = (Counters::copied(&mut words)?, Counters::copied(&mut words)?);
        let name = plain(String::from_utf8_lossy(name).trim_end_matches('\0'));
        if !name.is_empty() && devices.iter().all(|known| known.name != name) {
            devices.push(DeviceCounters { name, own, before });
        }
    }
    Some(devices)
}

/// Reads a page. None if it is of another version.
pub(super) fn parse(bytes: &[u8]) -> Option<PageContents> {
    const PLACE: usize = std::mem::offset_of!(Page, place);
    if bytes.len() < size_of::<Page>() || bytes[..8] != MAGIC.to_ne_bytes() {
        return None;
    }
    let devices = counted(&bytes[NAMES..NAMES + NAME * DEVICES], &bytes[SETS..])?;
    let place = u64::from_ne_bytes(bytes[PLACE..PLACE + 8].try_into().expect("8 bytes"));
    Some(PageContents {
        place: (place != 0).then_some(place),
        devices,
        lines: lines::parse(&bytes[LINES..SETS]),
    })
}

/// Any bytes at any places of a page, from the second byte on: parts of three bytes of place and length, and
/// as many bytes as they say. Devices have names of their own, and all is plain text of a bounded length. A
/// page that another process can read from a file says the same. The first byte is odd where the page is cut.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    let Some((&how, mut rest)) = bytes.split_first() else { return };
    let mut page = vec![0; size_of::<Page>()];
    page[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    // Where the head, the names, the lines and the counters lie.
    let parts = [0..NAMES, NAMES..LINES, LINES..SETS, SETS..page.len()];
    while let [part, place, length, behind @ ..] = rest {
        let (said, left) = behind.split_at(usize::from(*length).min(behind.len()));
        let part = &mut page[parts[usize::from(*part) % parts.len()].clone()];
        let at = usize::from(*place) * part.len() / 256;
        part[at..].iter_mut().zip(said).for_each(|(byte, new)| *byte = *new);
        rest = left;
    }
    if how & 1 != 0 {
        page.truncate(page.len() * usize::from(how) / 256);
    }
    let Some(found) = parse(&page) else { return };
    let is_plain = |text: &str, most: usize| {
        // A byte that is no text, or a control character, becomes three.
        !text.is_empty() && text.len() <= 3 * most && !text.contains(char::is_control)
    };
    assert!(found.place != Some(0) && found.devices.len() <= DEVICES);
    for (number, device) in found.devices.iter().enumerate() {
        assert!(is_plain(&device.name, NAME), "{:?}", device.name);
        assert!(found.devices[..number].iter().all(|before| before.name != device.name));
        // Sums wrap.
        let sum = Counters::private();
        for counters in [&device.own, &device.before] {
            sum.add_all(counters);
        }
        for file in files::moving() {
            assert!(files::value(file, &sum).is_some());
        }
    }
    lines::check(&found.lines.0, is_plain);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::TEST_TIMEOUT;
    use std::fs::File;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::time::Instant;

    impl Page {
        /// A page in a file of this name.
        pub(in super::super) fn in_file(path: &str, names: &[&str]) -> &'static Self {
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            let page = claim(file.into_raw_fd(), names).expect("nobody has it");
            page.name(names);
            page
        }

        /// Ends the page as if its process had ended, and another one had the page.
        pub(in super::super) fn end(&self, devices: usize) {
            self.put_away(devices);
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let mut bytes = vec![0; size_of::<Page>()];
        assert!(parse(&bytes).is_none(), "no magic");
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        assert!(parse(&bytes).is_some_and(|page| page.devices.is_empty()));
        assert!(parse(&bytes[..bytes.len() - 1]).is_none(), "short");
        assert!(parse(&[]).is_none());
    }

    #[test]
    fn texts_of_others_move_no_cursor_and_name_each_device_once() {
        let mut bytes = vec![0; size_of::<Page>()];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        for (place, name) in [(0, &b"\x1b[2J"[..]), (1, b"a0"), (3, b"a0"), (4, b"a\0b")] {
            bytes[NAMES + place * NAME..][..name.len()].copy_from_slice(name);
        }
        let line = LINES + size_of::<Lines>() - 256;
        bytes[line..line + 4].copy_from_slice(b"\x1b[2J");
        let page = parse(&bytes).expect("a page");
        let names: Vec<_> = page.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["\u{fffd}[2J", "a0", "a\u{fffd}b"]);
        assert_eq!(page.lines.0, ["\u{fffd}[2J"]);
    }

    #[test]
    fn a_file_is_of_one_process_at_a_time_and_keeps_what_was_counted() {
        let path = std::env::temp_dir().join(format!("adverb-page-{}", std::process::id()));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let names = ["a0", "b0"];
        let first = open();
        let page = claim(first.as_raw_fd(), &names).expect("nobody has it");
        page.name(&names);
        page.set(1).tx_bytes.count(40, true);
        page.set(1).tx_bytes.add(2);
        assert_eq!(claim(open().as_raw_fd(), &names).err(), Some(true), "it has an owner");
        // The owner ends. A mapping holds the lock, too.
        drop(first);
        // SAFETY: the mapping from above, of which nothing is used any more.
        unsafe { libc::munmap(std::ptr::from_ref(page).cast_mut().cast(), size_of::<Page>()) };
        // Children of fork that tests beside this one have may hold the lock, too, until they end.
        let end = Instant::now() + TEST_TIMEOUT;
        // SAFETY: a plain call on a live descriptor, whose lock goes with it.
        while unsafe { libc::flock(open().as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            assert!(Instant::now() < end, "somebody has it still");
            std::thread::yield_now();
        }
        assert_eq!(claim(open().as_raw_fd(), &["a0"]).err(), Some(true), "other devices");
        // Such a child may have copies of the two descriptors above, too.
        let second = loop {
            let file = open();
            if let Ok(page) = claim(file.as_raw_fd(), &names) {
                let _ = file.into_raw_fd();
                break page;
            }
            assert!(Instant::now() < end, "nobody has it any more");
            std::thread::yield_now();
        };
        assert_eq!((second.sets[1].own.tx_bytes.get(), second.sets[1].before.tx_bytes.get()), (0, 42));
        assert_eq!(second.changing.load(Ordering::Relaxed) & 1, 0);
        std::fs::remove_file(path).unwrap();
    }
}
