//! Files of counters: what they say is counted when they are opened.
//!
//! Each process of the run counts in a file of its own, whose layout and meaning the command has written down
//! ([`Folder::known`]):
//!
//! - `=NAME CHANGING NAMES LENGTH MOST SETS SIZE BEFORE`: how these files are called before their number, in
//!   the folder; and where in them stand a word that is odd while all others change, the names of the devices
//!   (so long each, at most so many), and for each a set of counters (of that size), in it from `BEFORE` on
//!   what ended processes have counted.
//! - `=FILE UNIT COUNTER...`: beside a port, this file says the sum of these counters, each two words at this
//!   place of a set, divided by the unit.
//!
//! The sum is written to a new file that takes the place of the one to be opened, so that a process without
//! this library sees the sum of the last opening.

use crate::folder::Folder;
use crate::path::Path;
use crate::place::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often a page is read that changes meanwhile; its owner may be stopped.
const ATTEMPTS: u32 = 1000;
/// Most pages.
const PAGES: u32 = 1024;
/// Names of new files that are tried.
const NAMES: u32 = 8;
/// The longest number, with its newline.
const DIGITS: usize = 21;

/// Reads bytes at a place of a page; false if they are not there.
type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// Whether a name is that of a file of counters.
pub(crate) fn is_counter(known: &[u8], name: &[u8]) -> bool {
    // All have one, and few others.
    name.contains(&b'_')
        && recipes(known).any(|(file, _)| file.rsplit(|&byte| byte == b'/').next() == Some(name))
}

/// The lines: names, and the numbers behind.
fn lines(known: &[u8]) -> impl Iterator<Item = (&[u8], Numbers<'_>)> {
    known.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = line.strip_prefix(b"=")?;
        let end = line.iter().position(|&byte| byte == b' ')?;
        let (name, numbers) = line.split_at(end);
        Some((name, Numbers(numbers)))
    })
}

/// The lines about files of counters: the name of each file, and the numbers of its recipe.
fn recipes(known: &[u8]) -> impl Iterator<Item = (&[u8], Numbers<'_>)> {
    lines(known).skip(1)
}

/// Decimal numbers, with a space before each.
struct Numbers<'a>(&'a [u8]);

impl Iterator for Numbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let rest = self.0.strip_prefix(b" ")?;
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(end);
        self.0 = behind;
        digits.iter().try_fold(0u64, |number, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            number.checked_mul(10)?.checked_add(digit.into())
        })
    }
}

/// How a page is laid out.
#[derive(Clone, Copy)]
struct Layout {
    changing: u64,
    names: u64,
    length: u64,
    most: u64,
    sets: u64,
    size: u64,
    before: u64,
}

impl Layout {
    fn of(mut numbers: Numbers<'_>) -> Option<Self> {
        let mut next = || numbers.next();
        Some(Self {
            changing: next()?,
            names: next()?,
            length: next()?,
            most: next()?,
            sets: next()?,
            size: next()?,
            before: next()?,
        })
    }

    /// Where the set of a device begins; none if it is not in the page.
    fn set(&self, device: &[u8], read: Read<'_>) -> Option<u64> {
        let mut name = [0; 64];
        let name = name.get_mut(..self.length as usize)?;
        let index = (0..self.most).find(|index| {
            read(self.names + index * self.length, name)
                && name.split(|&byte| byte == 0).next() == Some(device)
        })?;
        Some(self.sets + index * self.size)
    }

    /// The sum of some counters of a set.
    fn sum(&self, set: u64, counters: &Numbers<'_>, read: Read<'_>) -> Option<u64> {
        let mut sum = 0u64;
        for counter in Numbers(counters.0) {
            for place in [set + counter, set + counter + self.before] {
                let [one, other] = [word(place, read)?, word(place + 8, read)?];
                sum = sum.wrapping_add(one).wrapping_add(other);
            }
        }
        Some(sum)
    }

    /// The sum of some counters of a device. It is read again if the page has changed meanwhile, [`ATTEMPTS`]
    /// times at most.
    fn steady_sum(&self, device: &[u8], counters: &Numbers<'_>, read: Read<'_>) -> Option<u64> {
        let set = self.set(device, read)?;
        let mut sum = None;
        for _ in 0..ATTEMPTS {
            let before = word(self.changing, read)?;
            sum = self.sum(set, counters, read);
            if before & 1 == 0 && word(self.changing, read)? == before {
                break;
            }
        }
        sum
    }
}

fn word(place: u64, read: Read<'_>) -> Option<u64> {
    let mut bytes = [0; 8];
    read(place, &mut bytes).then(|| u64::from_ne_bytes(bytes))
}

/// The device and the file of a path `.../infiniband/DEVICE/ports/1/FOLDER/NAME`: the file with its folder.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let (_, folder, port, ports, device) =
        (slashes.next()?, slashes.next()?, slashes.next()?, slashes.next()?, slashes.next()?);
    let file = path.get(folder + 1..)?;
    let is_port = path.get(ports..port)? == b"/ports";
    is_port.then_some((path.get(device + 1..ports)?, file))
}

/// Somebody opens `path`, which is in the folder.
pub(crate) fn opened(folder: &Folder, path: &Path) {
    let Some((device, file)) = split(path.after(0)) else { return };
    let Some((_, numbers)) = recipes(folder.known()).find(|(name, _)| *name == file) else { return };
    let _errno = Errno::keep();
    let _ = renew(folder, path, device, numbers);
}

/// Writes the values of a file. A function by itself: it needs more of the stack than other files.
#[cold]
#[inline(never)]
fn renew(folder: &Folder, path: &Path, device: &[u8], mut numbers: Numbers<'_>) -> Option<()> {
    let unit = numbers.next().filter(|unit| *unit > 0)?;
    let (pages, layout) = lines(folder.known()).next()?;
    let layout = Layout::of(layout)?;
    let mut room = [0; DIGITS];
    let mut name = Path::new();
    let mut sum = 0u64;
    for number in 0..PAGES {
        folder.below(b"/", &mut name)?;
        name.add(pages)?;
        name.add(decimal(number.into(), b"", &mut room))?;
        let Some(page) = Descriptor::open(name.c_str(0), libc::O_RDONLY, 0) else {
            // Where this user sees none, there may be some.
            match number {
                0 => return None,
                _ => break,
            }
        };
        let mut read = |place, bytes: &mut [u8]| page.read(place, bytes);
        sum = sum.wrapping_add(layout.steady_sum(device, &numbers, &mut read).unwrap_or_default());
    }
    let text = decimal(sum / unit, b"\n", &mut room);
    if !files_may_have(DIGITS) {
        return None;
    }
    let written = NAMES_BEFORE_US.fetch_add(1, Ordering::Relaxed);
    for attempt in 0..NAMES {
        let mut room = [0; DIGITS];
        folder.below(b"/.", &mut name)?;
        // SAFETY: takes nothing.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        name.add(decimal(thread.unsigned_abs(), b"-", &mut room))?;
        name.add(decimal(u64::from(written) << 3 | u64::from(attempt), b"", &mut room))?;
        let Some(file) =
            Descriptor::open(name.c_str(0), libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o444)
        else {
            continue;
        };
        return file.becomes(text, name.c_str(0), path.c_str(0)).then_some(());
    }
    None
}

/// Whether files of this process may have so many bytes: a write beyond would raise SIGXFSZ, which ends the
/// process.
fn files_may_have(bytes: usize) -> bool {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let no_new = std::ptr::null::<libc::rlimit64>();
    // SAFETY: fills a live local; nothing is changed.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, no_new, &raw mut limit) };
    result == 0 && limit.rlim_cur >= bytes as u64
}

/// The number of files that this process has written.
static NAMES_BEFORE_US: AtomicU32 = AtomicU32::new(0);

/// A descriptor, closed when dropped. By system calls, since the C library's functions are ours here.
struct Descriptor(libc::c_long);

impl Descriptor {
    fn open(name: &CStr, flags: libc::c_int, mode: libc::c_uint) -> Option<Self> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: a C string and plain numbers.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, mode) };
        (descriptor >= 0).then_some(Self(descriptor))
    }

    fn read(&self, place: u64, bytes: &mut [u8]) -> bool {
        // SAFETY: an open descriptor, and memory that is there, and as long.
        let length =
            unsafe { libc::syscall(libc::SYS_pread64, self.0, bytes.as_mut_ptr(), bytes.len(), place) };
        length as usize == bytes.len()
    }

    /// The new file gets its text, for everybody to read, and then another name.
    fn becomes(self, text: &[u8], name: &CStr, path: &CStr) -> bool {
        let here = libc::AT_FDCWD;
        // SAFETY: an open descriptor, memory that is there, C strings and plain numbers.
        unsafe {
            let is_whole = libc::syscall(libc::SYS_write, self.0, text.as_ptr(), text.len()) as usize
                == text.len()
                && libc::syscall(libc::SYS_fchmod, self.0, 0o444) == 0
                && libc::syscall(libc::SYS_renameat, here, name.as_ptr(), here, path.as_ptr()) == 0;
            if !is_whole {
                libc::syscall(libc::SYS_unlinkat, here, name.as_ptr(), 0);
            }
            is_whole
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this one's alone.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// A number in digits, with something behind.
fn decimal<'a>(mut number: u64, behind: &[u8], room: &'a mut [u8; DIGITS]) -> &'a [u8] {
    let mut start = DIGITS - behind.len().min(1);
    if let Some(end) = room.get_mut(start..) {
        end.copy_from_slice(behind);
    }
    loop {
        start -= 1;
        if let Some(digit) = room.get_mut(start) {
            *digit = b'0' + (number % 10) as u8;
        }
        number /= 10;
        if number == 0 {
            return room.get(start..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[u8] =
        b"0000:17\n=counted/c- 8 16 8 2 32 64 32\n=counters/port_xmit_data 4 0 16\n=counters/x_y 1 16\n";

    fn counters(name: &[u8]) -> Numbers<'static> {
        let mut numbers = recipes(KNOWN).find(|(file, _)| *file == name).expect("a line").1;
        numbers.next();
        numbers
    }

    /// A page with the devices `a` and `b`; the word at a place is its place, but for that which says what
    /// changes.
    fn read(changing: u64) -> impl FnMut(u64, &mut [u8]) -> bool {
        let mut asked = 0;
        move |place, bytes| {
            let word = match place {
                8 => {
                    asked += 1;
                    if asked > 2 { changing + 2 } else { changing + asked }
                }
                16 => u64::from_ne_bytes(*b"a\0\0\0\0\0\0\0"),
                24 => u64::from_ne_bytes(*b"b\0\0\0\0\0\0\0"),
                _ => place,
            };
            bytes.copy_from_slice(&word.to_ne_bytes());
            true
        }
    }

    #[test]
    fn counts_of_living_and_ended_processes_are_added_up() {
        let layout = Layout::of(lines(KNOWN).next().expect("a line").1).expect("seven numbers");
        // Sets at 32 and 96; in each, `before` begins at 32 of it.
        let of = |device: &[u8], name: &[u8]| layout.steady_sum(device, &counters(name), &mut read(0));
        assert_eq!(of(b"a", b"counters/x_y"), Some(48 + 56 + 80 + 88));
        assert_eq!(
            of(b"b", b"counters/port_xmit_data"),
            Some((96 + 104 + 128 + 136) + (112 + 120 + 144 + 152))
        );
        assert_eq!(of(b"c", b"counters/x_y"), None);
        assert_eq!(layout.steady_sum(b"a", &counters(b"counters/x_y"), &mut |_, _| false), None);
    }

    #[test]
    fn names_and_paths_of_files() {
        assert!(is_counter(KNOWN, b"port_xmit_data") && is_counter(KNOWN, b"x_y"));
        for other in [&b"c-"[..], b"", b"_", b"port_xmit", b"counters/x_y", b"x"] {
            assert!(!is_counter(KNOWN, other));
        }
        let file = b"/f/sys/devices/platform/adverb.0.auto/infiniband/roce0/ports/1/counters/x_y";
        assert_eq!(split(file), Some((&b"roce0"[..], &b"counters/x_y"[..])));
        for other in [&b"/f/sys/class/infiniband"[..], b"/a/b/c/d/e/f", b"x", b""] {
            assert_eq!(split(other), None);
        }
        let mut room = [0; DIGITS];
        assert_eq!(decimal(u64::MAX, b"\n", &mut room), b"18446744073709551615\n");
        assert_eq!(decimal(0, b"", &mut room), b"0");
        assert_eq!(Numbers(b" 1 x").collect::<Vec<_>>(), [1]);
    }
}
