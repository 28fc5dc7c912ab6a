//! What the pages of the program's memory permit, asked when a region is registered.
//!
//! Drivers pin a region's pages for what the region permits, and say EFAULT where the mapping does not permit that. The kernel tells of a mapping within half a microsecond
//! (PROCMAP_QUERY, Linux 6.11); an older one would have to print all of them, so there only holes are found, and a write that the mapping does not permit fails when it is made.

use super::moved::mapping_at;
use crate::{fork, setting};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The mappings of the process, as far as the kernel tells of single ones.
#[derive(Debug)]
pub struct Mappings(Option<File>);

/// What is found of a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Every page permits it.
    Permitted,
    /// A page is there that does not.
    Forbidden,
    /// A page is not mapped.
    Hole,
    /// The kernel does not tell.
    Unknown,
}

impl Mappings {
    /// For this process, until dropped.
    pub(crate) fn open() -> Self {
        let wanted = !setting::without("procmap-query");
        // Of the thread: the main one may have ended, and has no memory then.
        let file = wanted.then(|| File::open("/proc/thread-self/maps").ok()).flatten();
        let file = file.filter(|file| mapping_at(file, 0).is_ok());
        file.iter().for_each(|file| fork::own_descriptor(file.as_raw_fd()));
        Self(file)
    }

    /// Whether all pages of [`start`, `end`) may be read, or, if `written`, written.
    pub(super) fn look(&self, start: usize, end: usize, written: bool) -> Found {
        let Some(file) = &self.0 else { return Found::Unknown };
        let wanted = if written { libc::PROT_WRITE } else { libc::PROT_READ };
        let (mut at, mut found) = (start, Found::Permitted);
        while at < end {
            match mapping_at(file, at) {
                Ok(Some((end, protection))) => {
                    if protection & wanted == 0 {
                        found = Found::Forbidden;
                    }
                    at = end;
                }
                Ok(None) => return Found::Hole,
                Err(_) => return Found::Unknown,
            }
        }
        found
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| fork::disown_descriptor(file.as_raw_fd()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pages_permit_is_told() {
        const PAGE: usize = 4096;
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping.
            unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE, protection, flags, -1, 0) as usize }
        };
        let area = map(libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: pages of this test.
        unsafe {
            libc::mprotect((area + PAGE) as *mut _, PAGE, libc::PROT_READ);
            libc::mprotect((area + 2 * PAGE) as *mut _, PAGE, libc::PROT_NONE);
        }
        let mappings = Mappings::open();
        if mappings.0.is_none() {
            return assert_eq!(mappings.look(area, area + 1, true), Found::Unknown);
        }
        let look = |from: usize, to: usize, written| mappings.look(area + from, area + to, written);
        assert_eq!(look(0, PAGE, true), Found::Permitted);
        assert_eq!((look(1, PAGE + 1, true), look(1, 2 * PAGE, false)), (Found::Forbidden, Found::Permitted));
        assert_eq!(look(PAGE, 2 * PAGE + 1, false), Found::Forbidden);
        assert_eq!(look(3 * PAGE, 4 * PAGE, true), Found::Permitted);
        // SAFETY: as above.
        unsafe { libc::munmap((area + PAGE) as *mut _, PAGE) };
        assert_eq!((look(0, PAGE, true), look(0, PAGE + 1, true)), (Found::Permitted, Found::Hole));
    }
}
