//! The mappings at this instant, and which of them the kernel does not drop, for the guard: it allocates
//! nothing here, and takes no lock of the program's.

use super::Refusal;
use super::file::Identity;
use super::maps::{self, Vma};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// The program's memory. For one thread, which has to last as long as this.
pub(super) struct ProgramMaps {
    maps: File,
    smaps: File,
    status: File,
    has_query: bool,
    /// Longer than the longest line.
    text: Box<[u8]>,
}

/// The mappings could not be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableMaps;

impl ProgramMaps {
    /// Opens the files in `/proc` about the program's memory, for the calling thread.
    pub(super) fn open(has_query: bool) -> Result<Self, Refusal> {
        let open = |path| File::open(path).map_err(|error| Refusal::because(path, &error));
        let mut mapped = Self {
            maps: open("/proc/thread-self/maps")?,
            smaps: open("/proc/thread-self/smaps")?,
            status: open("/proc/thread-self/status")?,
            has_query,
            text: vec![0; 16 << 10].into(),
        };
        // The kernel allocates its memory for a file now, at the first reading.
        let (mut some, mut more) = (0, 0);
        let looked = mapped.each(0, usize::MAX, |_| {
            some += 1;
            some < 2
        });
        looked
            .and_then(|()| {
                lines(&mapped.smaps, &mut mapped.text, |_| {
                    more += 1;
                    more < 2
                })
            })
            .map_err(|UnreadableMaps| Refusal::System("/proc/thread-self/maps", libc::EIO))?;
        Ok(mapped)
    }

    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        [&self.maps, &self.smaps, &self.status].map(AsRawFd::as_raw_fd)
    }

    /// Memory that it uses, as addresses and lengths.
    pub(super) fn own(&self) -> (usize, usize) {
        (self.text.as_ptr() as usize, self.text.len())
    }

    /// Calls `each` with the mappings that have bytes in [`start`, `end`), in their order, until it says no.
    pub(super) fn each(
        &mut self,
        start: usize,
        end: usize,
        mut each: impl FnMut(&Vma) -> bool,
    ) -> Result<(), UnreadableMaps> {
        if !self.has_query {
            return lines(&self.maps, &mut self.text, |line| {
                maps::parse_line(line).is_none_or(|vma| vma.start < end && (vma.end <= start || each(&vma)))
            });
        }
        let mut at = start;
        while at < end {
            match maps::next(&self.maps, at) {
                Ok(Some(vma)) if vma.start < end => {
                    at = vma.end;
                    if !each(&vma) {
                        break;
                    }
                }
                Ok(_) => break,
                Err(_) => return Err(UnreadableMaps),
            }
        }
        Ok(())
    }

    /// How far from `start` on, at most to `end`, MADV_DONTNEED goes. The kernel takes one mapping after the
    /// other, passes over holes, and stops at a mapping that may not be dropped. Locked memory is such a one,
    /// but for MADV_DONTNEED_LOCKED (`with_locked`). The first mapping may be dropped if a thread waits there
    /// (`waits`).
    pub(super) fn may_be_dropped(
        &mut self,
        file: Identity,
        start: usize,
        end: usize,
        with_locked: bool,
        waits: bool,
    ) -> Result<usize, UnreadableMaps> {
        let (mut count, mut are_plain) = (0, true);
        self.each(start, end, |vma| {
            count += 1;
            are_plain &= vma.file == file || vma.is_anonymous() && vma.protection & libc::PROT_WRITE != 0;
            true
        })?;
        if count < 2 && waits || are_plain && (with_locked || self.locked() == Some(0)) {
            return Ok(end);
        }
        let (mut inside, mut reached) = (None, end);
        lines(&self.smaps, &mut self.text, |line| {
            if let Some(vma) = maps::parse_line(line) {
                inside = Some(vma).filter(|vma| vma.end > start);
                return vma.start < end;
            }
            let Some(vma) = &inside else { return true };
            let Some(flags) = line.strip_prefix(b"VmFlags:") else { return true };
            let has = |flag: &[u8]| flags.split(|byte| *byte == b' ').any(|one| one == flag);
            let is_sealed = has(b"sl") && vma.is_anonymous() && vma.protection & libc::PROT_WRITE == 0;
            if has(b"pf") || is_sealed || has(b"lo") && !with_locked {
                reached = vma.start.max(start);
            }
            reached == end
        })?;
        Ok(reached)
    }

    /// KiB of locked memory.
    fn locked(&mut self) -> Option<u64> {
        let mut locked = None;
        let looked = lines(&self.status, &mut self.text, |line| {
            let number = line.strip_prefix(b"VmLck:").and_then(|rest| std::str::from_utf8(rest).ok());
            locked = number.and_then(|number| number.split_ascii_whitespace().next()?.parse().ok());
            locked.is_none()
        });
        looked.ok().and(locked)
    }

    /// Whether there is a hole in [`start`, `end`).
    pub(super) fn has_hole(&mut self, start: usize, end: usize) -> Result<bool, UnreadableMaps> {
        let mut reached = start;
        self.each(start, end, |vma| {
            let goes_on = vma.start <= reached;
            if goes_on {
                reached = vma.end;
            }
            goes_on
        })?;
        Ok(reached < end)
    }
}

/// Calls `each` with the lines of a file of `/proc`, until it says no.
fn lines(file: &File, text: &mut [u8], mut each: impl FnMut(&[u8]) -> bool) -> Result<(), UnreadableMaps> {
    let (mut at, mut filled) = (0, 0);
    loop {
        let room = text.get_mut(filled..).filter(|room| !room.is_empty()).ok_or(UnreadableMaps)?;
        let read = file.read_at(room, at).map_err(|_| UnreadableMaps)?;
        if read == 0 {
            return Ok(());
        }
        at += read as u64;
        filled += read;
        let mut begin = 0;
        let known = text.get(..filled).unwrap_or_default();
        while let Some(length) = known[begin..].iter().position(|byte| *byte == b'\n') {
            if !each(&known[begin..begin + length]) {
                return Ok(());
            }
            begin += length + 1;
        }
        text.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::far::far_address;

    fn pages(count: usize) -> usize {
        // SAFETY: a fresh anonymous mapping, with a hole behind it.
        unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let pages = libc::mmap(far_address(), (count + 1) << 12, protection, flags, -1, 0) as usize;
            libc::munmap((pages + (count << 12)) as *mut _, 4096);
            pages
        }
    }

    const NO_FILE: Identity = Identity { major: 0, minor: 0, inode: 1 };

    #[test]
    fn both_ways_say_what_is_mapped_and_what_is_not() {
        let area = pages(8);
        // SAFETY: pages of this test.
        unsafe {
            libc::munmap((area + (2 << 12)) as *mut _, 4096);
            libc::mprotect((area + (5 << 12)) as *mut _, 4096, libc::PROT_READ);
        }
        for has_query in [false, maps::probe_query()] {
            let mut mapped = ProgramMaps::open(has_query).unwrap();
            let mut found = Vec::new();
            mapped
                .each(area, area + (8 << 12), |vma| {
                    found.push((vma.start.max(area), vma.end.min(area + (8 << 12)), vma.protection));
                    true
                })
                .unwrap();
            let at = |page: usize| area + (page << 12);
            let all = [(at(0), at(2), 3), (at(3), at(5), 3), (at(5), at(6), 1), (at(6), at(8), 3)];
            assert_eq!(found, all);
            assert_eq!(mapped.has_hole(area, at(2)), Ok(false));
            assert_eq!(mapped.has_hole(area, at(3)), Ok(true));
            assert_eq!(mapped.has_hole(at(3), at(8)), Ok(false));
            assert_eq!(mapped.has_hole(at(7), at(9)), Ok(true));
        }
    }

    #[test]
    fn the_kernel_stops_at_locked_memory() {
        let area = pages(8);
        let mut mapped = ProgramMaps::open(maps::probe_query()).unwrap();
        let mut until = |from: usize, to: usize, all| {
            mapped.may_be_dropped(NO_FILE, area + (from << 12), area + (to << 12), all, true)
        };
        assert_eq!(until(0, 8, false), Ok(area + (8 << 12)));
        // SAFETY: pages of this test.
        assert_eq!(unsafe { libc::mlock((area + (3 << 12)) as *const _, 4096) }, 0);
        assert_eq!(until(0, 8, false), Ok(area + (3 << 12)));
        assert_eq!(until(0, 3, false), Ok(area + (3 << 12)));
        assert_eq!(until(4, 8, false), Ok(area + (8 << 12)));
        assert_eq!(until(0, 8, true), Ok(area + (8 << 12)));
    }
}
