//! In place of memory that processes share, for Miri, which knows none: one process has both sides, in
//! ordinary memory that is found by what its file says, and stays for ever. There are no seals.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

/// Where memory of a file begins.
#[derive(Clone, Copy)]
struct At(NonNull<u8>);

// SAFETY: an address alone; the function that hands it out says what type is there.
unsafe impl Send for At {}

static ALL: LazyLock<Mutex<HashMap<u64, At>>> = LazyLock::new(Mutex::default);

/// A file that names fresh memory of the size of a `T`, all zeros.
pub(crate) fn create<T>() -> io::Result<File> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed) + 1;
    let path = std::env::temp_dir().join(format!("adverb-ordinary-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.set_len(size_of::<T>() as u64)?;
    file.write_all_at(&number.to_ne_bytes(), 0)?;
    // SAFETY: of some size.
    let at = unsafe { alloc_zeroed(Layout::new::<T>()) };
    let at = At(NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?);
    ALL.lock().unwrap_or_else(|e| e.into_inner()).insert(number, at);
    Ok(file)
}

/// The memory that a file names.
pub(crate) fn find<T>(file: &File) -> io::Result<NonNull<T>> {
    let mut number = [0; 8];
    file.read_exact_at(&mut number, 0)?;
    let all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    let found = all.get(&u64::from_ne_bytes(number));
    Ok(found.ok_or(io::ErrorKind::InvalidData)?.0.cast())
}
