//! Says so when a program or one of its libraries has a libibverbs of its own inside, which no library put in front can replace.
//!
//! Such a copy lists `/sys/class/infiniband_verbs` to look for devices, which ours never does. Whoever lists that folder is looked at, and named if
//! the words of libibverbs are in its file: once for all programs of one `adverb run`, and on standard error, since without it the program only says
//! that there are no devices.

use crate::folder::Folder;
use crate::path::Path;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is listed, and what older copies read first.
const LISTED: [&[u8]; 2] = [b"/sys/class/infiniband_verbs", b"/sys/class/infiniband_verbs/abi_version"];
/// How the warnings of every libibverbs begin.
const WORDS: &[u8] = b"libibverbs: Warning: ";
/// The folder has it once somebody has been named.
const TOLD: &[u8] = b"/told";
/// Most callers that are looked through.
const DEPTH: usize = 8;

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Somebody opens `path`.
pub(crate) fn opened(folder: &Folder, path: &Path) {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    let is_listed = folder.shown(path.as_bytes()).is_some_and(|shown| LISTED.contains(&shown));
    if is_listed && !LOOKED.swap(true, Ordering::Relaxed) {
        look(folder);
    }
}

#[cold]
#[inline(never)]
fn look(folder: &Folder) {
    let Some(caller) = caller() else { return };
    let Some(name) = name_if_inside(caller) else { return };
    let Some(told) = folder.below(TOLD) else { return };
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a C string and plain numbers.
    let first = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, told.as_ptr(), flags, 0o444) };
    let Ok(first) = c_int::try_from(first) else { return };
    if first < 0 {
        return;
    }
    let text = Path::of(&[
        b"adverb: warning: ",
        name.as_bytes(),
        b" has a libibverbs of its own inside: no other can be put in front of it, and it finds no devices of adverb's\n",
    ]);
    if let Some(text) = text {
        let bytes = text.as_bytes();
        // SAFETY: the bytes are there.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, bytes.as_ptr(), bytes.len()) };
    }
    // SAFETY: just opened.
    unsafe { libc::syscall(libc::SYS_close, first) };
}

/// Where the call came from that this library answers.
struct Callers {
    ours: *mut c_void,
    depth: usize,
    found: usize,
}

fn caller() -> Option<usize> {
    extern "C" fn each(context: *mut c_void, data: *mut c_void) -> c_int {
        // SAFETY: the structure that the walk was begun with, which lives as long.
        let callers = unsafe { &mut *data.cast::<Callers>() };
        // SAFETY: the walk's own context.
        let at = unsafe { _Unwind_GetIP(context) };
        callers.depth += 1;
        let is_ours = base(at).is_none_or(|base| base == callers.ours);
        if !is_ours {
            callers.found = at;
        }
        // Anything but 0 ends the walk.
        c_int::from(!is_ours || callers.depth > 4 * DEPTH)
    }
    let mut callers = Callers { ours: base(opened as *const () as usize)?, depth: 0, found: 0 };
    // SAFETY: `each` takes what is passed.
    unsafe { _Unwind_Backtrace(each, (&raw mut callers).cast()) };
    (callers.found != 0).then_some(callers.found)
}

/// Where the file begins in memory that an address belongs to.
fn base(address: usize) -> Option<*mut c_void> {
    // SAFETY: all zero is a valid structure, and any address may be asked for.
    unsafe {
        let mut information: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address as *const c_void, &raw mut information) != 0).then_some(information.dli_fbase)
    }
}

/// The name of the file that an address belongs to, if the words are in it.
fn name_if_inside(address: usize) -> Option<Path> {
    struct Search {
        address: usize,
        name: Option<Path>,
    }
    unsafe extern "C" fn each(information: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the linker passes an object that is loaded, and what the search was begun with.
        let (object, search) = unsafe { (&*information, &mut *data.cast::<Search>()) };
        // SAFETY: the object's program headers.
        let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start =
            |header: &libc::Elf64_Phdr| (object.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        if !loaded().any(|header| search.address.wrapping_sub(start(header)) < header.p_memsz as usize) {
            return 0;
        }
        let has_words = loaded()
            .filter(|header| header.p_flags & libc::PF_R != 0 && header.p_flags & libc::PF_W == 0)
            .any(|header| {
                // SAFETY: the segment is mapped as long as the object is loaded, which the linker sees to meanwhile, and is not written to.
                let found = unsafe {
                    libc::memmem(
                        start(header) as *const c_void,
                        header.p_filesz as usize,
                        WORDS.as_ptr().cast(),
                        WORDS.len(),
                    )
                };
                !found.is_null()
            });
        if has_words {
            // SAFETY: the linker's own C string.
            let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
            search.name = if name.is_empty() { program() } else { Path::of(&[name]) };
        }
        1
    }
    let mut search = Search { address, name: None };
    // SAFETY: `each` takes what is passed.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    search.name
}

/// The program's own file.
fn program() -> Option<Path> {
    let mut name = Path::new();
    let (room, size) = name.room();
    // SAFETY: a C string, and the room is there, and as long.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), room, size)
    };
    name.has(usize::try_from(length).ok()?);
    Some(name)
}
