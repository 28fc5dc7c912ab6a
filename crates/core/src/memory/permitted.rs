//! Whether the pages of the program's memory permit the rights of a region, asked when it is registered.
//!
//! Drivers pin a region's pages with the rights of the region, and say EFAULT where the mapping lacks one.
//! The kernel tells of a mapping within half a microsecond (PROCMAP_QUERY, Linux 6.11). An older one would
//! have to print all mappings. So there only holes are found, and a write that the mapping does not permit
//! fails when it is made.

use super::keys::{Access, Entry};
use super::moved::mapping_at;
use crate::error::{Error, Result};
use crate::{fork, setting};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The mappings of the process, as far as the kernel tells of single ones.
#[derive(Debug)]
pub struct Mappings(Option<File>);

/// The answer for a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Every page permits it.
    Permitted,
    /// A page is there that does not.
    Forbidden,
    /// The kernel does not tell of pages from this address on: none is mapped there, or the address has a
    /// tag, or the kernel never tells.
    Untold(usize),
}

impl Mappings {
    /// Opens the mappings of this process, until dropped.
    pub(crate) fn open() -> Self {
        let wanted = !setting::without("procmap-query");
        // Of the thread: the main one may have ended, and has no memory then.
        let file = wanted.then(|| File::open("/proc/thread-self/maps").ok()).flatten();
        let file = file.filter(|file| mapping_at(file, 0).is_ok());
        file.iter().for_each(|file| fork::own_descriptor(file.as_raw_fd()));
        Self(file)
    }

    /// Whether the pages of a region are mapped with its rights. Pages of memory on demand are found when
    /// they are used.
    ///
    /// # Errors
    /// EFAULT if they are not.
    // PRACTICE-CALL-5
    pub(crate) fn check(&self, entry: &Entry) -> Result<()> {
        let &Entry { address, length, access, .. } = entry;
        if access.contains(Access::ON_DEMAND) {
            return Ok(());
        }
        let written = writes(access);
        let end = address.saturating_add(length as usize);
        let what = match self.look(address, end, written) {
            Permission::Permitted => return Ok(()),
            // PROCMAP_QUERY takes the tag of an address for a part of its number; mincore(2) does not.
            Permission::Untold(from) if is_mapped(from, end) => return Ok(()),
            Permission::Untold(_) => "are not all mapped",
            Permission::Forbidden if written => "are to be written, and not all mapped for that",
            Permission::Forbidden => "are not all mapped to be read",
        };
        Err(Error::new(libc::EFAULT, format!("the {length} bytes at {address:#x} {what}")))
    }

    /// Whether pages that were found good for one access have to be looked at for another.
    pub(crate) fn wants_more(before: Access, access: Access) -> bool {
        writes(access) && !writes(before) || before.contains(Access::ON_DEMAND)
    }

    /// Whether all pages of [`start`, `end`) may be read, or, if `written`, written.
    pub(crate) fn look(&self, start: usize, end: usize, written: bool) -> Permission {
        let Some(file) = &self.0 else { return Permission::Untold(start) };
        let wanted = if written { libc::PROT_WRITE } else { libc::PROT_READ };
        let mut at = start;
        while at < end {
            match mapping_at(file, at) {
                Ok(Some((_, protection))) if protection & wanted == 0 => return Permission::Forbidden,
                Ok(Some((end, _))) => at = end,
                Ok(None) | Err(_) => return Permission::Untold(at),
            }
        }
        Permission::Permitted
    }
}

/// Whether the pages of a region with this access are to be written.
fn writes(access: Access) -> bool {
    access.intersects(Access::LOCAL_WRITE | Access::MW_BIND)
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| fork::disown_descriptor(file.as_raw_fd()));
    }
}

/// Whether every page of [`start`, `end`) is mapped: mincore(2) answers ENOMEM for a hole. By itself: it
/// needs more of the stack than those whose pages are told.
#[cold]
#[inline(never)]
fn is_mapped(start: usize, end: usize) -> bool {
    const PAGES: usize = 1024;
    // SAFETY: sysconf takes a plain number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut residence = [0u8; PAGES];
    let mut from = start & !(page - 1);
    while from < end {
        let part = (end - from).min(PAGES * page);
        // SAFETY: `residence` has a byte for each page of `part`; mincore only looks at the mappings.
        if unsafe { libc::mincore(from as *mut _, part, residence.as_mut_ptr()) } != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
        {
            return false;
        }
        from += part;
    }
    true
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const PAGE: usize = 4096;

    /// Four pages that may be read and written, but for the second, which may only be read, and the third,
    /// not even that; and behind them a hole. They stay, as others of another number. Their addresses are far
    /// below all that the kernel chooses, so that no other test gets those of the hole.
    pub(crate) fn area(number: usize) -> usize {
        let area = (64 << 30) + (number << 30);
        let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping where there is none, and pages of it.
        unsafe {
            assert_eq!(libc::mmap(area as *mut _, 4 * PAGE, both, flags, -1, 0) as usize, area);
            libc::mprotect((area + PAGE) as *mut _, PAGE, libc::PROT_READ);
            libc::mprotect((area + 2 * PAGE) as *mut _, PAGE, libc::PROT_NONE);
        }
        area
    }

    #[test]
    fn mappings_tell_whether_pages_permit_the_rights() {
        let area = area(0);
        let mappings = Mappings::open();
        if mappings.0.is_none() {
            return assert_eq!(mappings.look(area, area + 1, true), Permission::Untold(area));
        }
        let look = |from: usize, to: usize, written| mappings.look(area + from, area + to, written);
        assert_eq!(look(0, PAGE, true), Permission::Permitted);
        assert_eq!(
            (look(1, PAGE + 1, true), look(1, 2 * PAGE, false)),
            (Permission::Forbidden, Permission::Permitted)
        );
        assert_eq!(look(PAGE, 2 * PAGE + 1, false), Permission::Forbidden);
        assert_eq!(look(3 * PAGE, 4 * PAGE, true), Permission::Permitted);
        assert_eq!(look(3 * PAGE, 4 * PAGE + 1, true), Permission::Untold(area + 4 * PAGE));
    }
}
