//! Says so when a program or one of its libraries has a libibverbs of its own inside, which no library put in
//! front can replace.
//!
//! Such a copy asks the kernel's RDMA core by netlink, and lists `/sys/class/infiniband_verbs` where that has
//! no answer; ours does neither. Where the core is loaded, and has no device, the copy never lists the
//! folder. This library examines each caller of the two, and names it if the words of libibverbs are in its
//! file: once for all programs of one `adverb run`, and on standard error, since without it the program only
//! says that there are no devices. The host's own library, where its devices are shown, is one that we have
//! asked for.

use crate::behind::behind;
use crate::calls::folder;
use crate::folder::Folder;
use crate::original::Original;
use crate::path::Path;
use crate::place::Errno;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is listed, and what older copies read first.
const LISTED: [&[u8]; 2] = [b"/sys/class/infiniband_verbs", b"/sys/class/infiniband_verbs/abi_version"];
/// The protocol of netlink by which the kernel tells of RDMA devices.
const NETLINK_RDMA: c_int = 20;
/// Named where the host's devices are shown, too: its libibverbs.
const HOST: &CStr = c"ADVERB_HOST_DEVICES";
/// How the names of that library's files begin.
const LIBRARY: &[u8] = b"libibverbs.so";
/// How the warnings of every libibverbs begin.
const WORDS: &[u8] = b"libibverbs: Warning: ";
/// This file exists once a program has been named.
const TOLD: &[u8] = b"/told";
/// Most callers that are looked through.
const DEPTH: usize = 8;

/// The originals, to be looked up when the library is initialised.
pub(crate) static ORIGINALS: &[&Original] = &[&SOCKET];

static SOCKET: Original = Original::new(c"socket");

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Most bytes of a file that are searched.
const SEARCHED_MAX: usize = 256 << 20;
/// Segments of a file that are searched.
const SEGMENTS: usize = 8;

/// The file that standard error was when the program started: its device and its number.
static STANDARD_ERROR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Whether the host's devices are shown, too.
static HAS_HOST: AtomicBool = AtomicBool::new(false);

/// The program starts.
pub(crate) fn begin() {
    // SAFETY: a C string; nobody changes the environment before `main`.
    HAS_HOST.store(!unsafe { libc::getenv(HOST.as_ptr()) }.is_null(), Ordering::Relaxed);
    for (kept, number) in STANDARD_ERROR.iter().zip(standard_error()) {
        kept.store(number, Ordering::Relaxed);
    }
}

/// What descriptor 2 is now; zeros if it is closed.
fn standard_error() -> [u64; 2] {
    // SAFETY: all zero is a valid structure, and there is room for it.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        match libc::fstat(libc::STDERR_FILENO, &raw mut status) {
            0 => [status.st_dev, status.st_ino],
            _ => [0, 0],
        }
    }
}

/// Somebody opens `path`.
pub(crate) fn opened(folder: &Folder, path: &[u8]) {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    let is_listed = folder.shown(path).is_some_and(|shown| LISTED.contains(&shown));
    if is_listed && !LOOKED.swap(true, Ordering::Relaxed) {
        let _errno = Errno::keep();
        look(folder, 1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    let original = behind!(SOCKET as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    if (domain, protocol) == (libc::AF_NETLINK, NETLINK_RDMA)
        && let Some(folder) = folder()
        && !LOOKED.swap(true, Ordering::Relaxed)
    {
        let _errno = Errno::keep();
        // By a library for netlink.
        look(folder, DEPTH);
    }
    // SAFETY: socket(2) takes any numbers.
    unsafe { original(domain, kind, protocol) }
}

/// Looks at so many files that called one another, the last one first.
#[cold]
#[inline(never)]
fn look(folder: &Folder, files: usize) {
    let callers = callers();
    let mut name = Path::new();
    if !callers.iter().take(files).any(|&caller| name_if_inside(caller, &mut name).is_some()) {
        return;
    }
    // The program may have put a file of its own in its place.
    let kept = STANDARD_ERROR.iter().map(|kept| kept.load(Ordering::Relaxed));
    if !kept.eq(standard_error()) || standard_error() == [0, 0] {
        return;
    }
    if !is_first(folder) {
        return;
    }
    let pieces: [&[u8]; 3] = [
        b"adverb: warning: ",
        name.after(0),
        b" has a libibverbs of its own inside: no other can be put in front of it, and it finds no devices of adverb's\n",
    ];
    let pieces =
        pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    // SAFETY: the bytes are there, and are only read.
    unsafe { libc::syscall(libc::SYS_writev, libc::STDERR_FILENO, pieces.as_ptr(), pieces.len()) };
}

/// Whether nobody has been named yet.
#[inline(never)]
fn is_first(folder: &Folder) -> bool {
    let mut told = Path::new();
    if folder.below(TOLD, &mut told).is_none() {
        return false;
    }
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
    let told = told.c_str(0).as_ptr();
    // SAFETY: a C string and plain numbers, and what was just opened.
    unsafe {
        let first = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, told, flags, 0o444);
        first >= 0 && libc::syscall(libc::SYS_close, first) == 0
    }
}

/// Where the call came from that this library answers.
struct Callers {
    /// Where the file begins that was met last; at first our own.
    last: *mut c_void,
    depth: usize,
    /// An address in each file, as many as there are.
    found: [usize; DEPTH],
    count: usize,
}

/// An address in each file that the call came through, the last one first; zeros behind.
fn callers() -> [usize; DEPTH] {
    extern "C" fn each(context: *mut c_void, data: *mut c_void) -> c_int {
        // SAFETY: the structure that the walk was begun with, which lives as long.
        let callers = unsafe { &mut *data.cast::<Callers>() };
        // SAFETY: the walk's own context.
        let at = unsafe { _Unwind_GetIP(context) };
        callers.depth += 1;
        if let Some(base) = base(at).filter(|base| *base != callers.last)
            && let Some(place) = callers.found.get_mut(callers.count)
        {
            *place = at;
            callers.last = base;
            callers.count += 1;
        }
        // Anything but 0 ends the walk.
        c_int::from(callers.count == DEPTH || callers.depth > 4 * DEPTH)
    }
    let mut callers = Callers { last: null_mut(), depth: 0, found: [0; DEPTH], count: 0 };
    if let Some(ours) = base(opened as *const () as usize) {
        callers.last = ours;
        // SAFETY: `each` takes what is passed.
        unsafe { _Unwind_Backtrace(each, (&raw mut callers).cast()) };
    }
    callers.found
}

/// Where the file begins in memory that an address belongs to.
fn base(address: usize) -> Option<*mut c_void> {
    // SAFETY: all zero is a valid structure, and any address may be asked for.
    unsafe {
        let mut information: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address as *const c_void, &raw mut information) != 0).then_some(information.dli_fbase)
    }
}

/// Writes the name of the file that an address belongs to, if the words are in it.
fn name_if_inside(address: usize, name: &mut Path) -> Option<()> {
    name.cut(0);
    struct Search<'a> {
        address: usize,
        name: &'a mut Path,
        /// Where the file is in memory: beginnings and lengths.
        segments: [(usize, usize); SEGMENTS],
    }
    unsafe extern "C" fn each(information: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the linker passes an object that is loaded, and what the search was begun with.
        let (object, search) = unsafe { (&*information, &mut *data.cast::<Search<'_>>()) };
        // SAFETY: the object's program headers.
        let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start =
            |header: &libc::Elf64_Phdr| (object.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        if !loaded().any(|header| search.address.wrapping_sub(start(header)) < header.p_memsz as usize) {
            return 0;
        }
        let constant =
            loaded().filter(|header| header.p_flags & libc::PF_R != 0 && header.p_flags & libc::PF_W == 0);
        for (segment, header) in search.segments.iter_mut().zip(constant) {
            *segment = (start(header), header.p_filesz as usize);
        }
        // SAFETY: the linker's own C string.
        let _ = search.name.add(unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes());
        1
    }
    let mut search = Search { address, name, segments: [(0, 0); SEGMENTS] };
    // SAFETY: `each` takes what is passed.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    // Not under the linker's lock: a large file takes its time.
    let mut left = SEARCHED_MAX;
    let has_words = search.segments.into_iter().any(|(start, length)| {
        let length = length.min(left);
        left -= length;
        // SAFETY: the segment is mapped as long as the object is loaded, and is not written to. It stays
        // loaded: a function of it is waiting for us.
        let found =
            unsafe { libc::memmem(start as *const c_void, length, WORDS.as_ptr().cast(), WORDS.len()) };
        !found.is_null()
    });
    let file = search.name.after(0).rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !has_words || file.starts_with(LIBRARY) && HAS_HOST.load(Ordering::Relaxed) {
        return None;
    }
    if search.name.length() == 0 {
        program(search.name)?;
    }
    Some(())
}

/// Writes the name of the program's own file.
fn program(name: &mut Path) -> Option<()> {
    let room = name.room(0);
    let (start, size) = (room.as_mut_ptr(), room.len());
    // SAFETY: a C string, and the room is there, and as long.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), start, size)
    };
    name.has(usize::try_from(length).ok()?);
    Some(())
}
