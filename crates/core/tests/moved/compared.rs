//! Compares calls on shared pages with the same calls on private ones: the kernel answers the same, and the
//! same is there afterwards.

use crate::support::*;
use std::io::BufRead;

/// Pages of each area, and those of them that there are at first.
const ALL_PAGES: usize = 160;
const FIRST: usize = 32;
const COUNT: usize = 64;

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Two areas: what is done in one is done in the other.
struct Areas {
    shared: usize,
    private: usize,
    seed: u64,
    moves: bool,
    /// Leaves addresses behind when it moves; then nothing is locked, since how much of that is locked
    /// afterwards depends on how the area is cut into mappings.
    leaves: bool,
    said: Vec<String>,
}

/// A call on an area that begins at the address given: what it answers, 0 or a number of errno.
type Call<'a> = &'a dyn Fn(usize) -> i32;

fn answer(result: i64) -> i32 {
    if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// Which pages of an area may be read, and written.
fn rights(area: usize) -> Vec<(bool, bool)> {
    let mut rights = vec![(false, false); ALL_PAGES];
    for line in std::io::BufReader::new(std::fs::File::open("/proc/self/maps").unwrap()).lines() {
        let line = line.unwrap();
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let own = number(start).max(area)..number(end).min(area + ALL_PAGES * PAGE);
        for page in own.step_by(PAGE) {
            rights[(page - area) / PAGE] = (rest.starts_with('r'), rest[1..].starts_with('w'));
        }
    }
    rights
}

impl Areas {
    fn new(seed: u64) -> Self {
        // Where the system puts nothing by itself.
        let area = |number: usize| {
            let area = (1 << 40) + (number << 30);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let place = (area + FIRST * PAGE) as *mut _;
            // SAFETY: a new mapping where nothing is.
            assert_eq!(unsafe { libc::mmap(place, COUNT * PAGE, BOTH, flags, -1, 0) }, place);
            area
        };
        let (shared, private) = (area(0), area(1));
        let mut areas = Self {
            shared,
            private,
            seed,
            moves: seed.is_multiple_of(2),
            leaves: seed.is_multiple_of(4),
            said: Vec::new(),
        };
        (FIRST..FIRST + COUNT).for_each(|page| areas.store(page));
        areas
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) as usize % below
    }

    fn store(&mut self, page: usize) {
        for at in [0, 1000, PAGE - 8] {
            let value = self.random(usize::MAX) as u64 | 1;
            set(self.shared + page * PAGE + at, value);
            set(self.private + page * PAGE + at, value);
        }
    }

    /// Both answer the same.
    fn call(&mut self, what: String, call: Call<'_>) -> i32 {
        let (shared, private) = (call(self.shared), call(self.private));
        self.said.push(format!("{what}: {shared}"));
        assert_eq!(shared, private, "{:#?}", self.said);
        shared
    }

    /// A range of pages, half of them near what is there.
    fn range(&mut self, most: usize) -> (usize, usize) {
        let first = self.random(ALL_PAGES - 1);
        let length = 1 + self.random(most.min(ALL_PAGES - first));
        (first, length.min(ALL_PAGES - first))
    }

    fn compare(&mut self) {
        let (shared, private) = (rights(self.shared), rights(self.private));
        assert_eq!(shared, private, "{:#?}", self.said);
        for (page, (may_be_read, _)) in shared.iter().enumerate() {
            for at in [0, 1000, PAGE - 8].into_iter().filter(|_| *may_be_read) {
                let there = |area: usize| get(area + page * PAGE + at);
                assert_eq!(there(self.shared), there(self.private), "page {page}: {:#?}", self.said);
            }
        }
    }

    fn advise(&mut self, first: usize, length: usize) {
        self.call(format!("drop {first}+{length}"), &|area| {
            // SAFETY: pages of the test, or none.
            let dropped =
                unsafe { libc::madvise((area + first * PAGE) as *mut _, length * PAGE, libc::MADV_DONTNEED) };
            answer(dropped.into())
        });
    }

    /// Several ranges in one call.
    fn advise_all(&mut self, ranges: &[(usize, usize)]) {
        self.call(format!("drop {ranges:?}"), &|area| {
            let part = |(first, length): &(usize, usize)| libc::iovec {
                iov_base: (area + first * PAGE) as *mut _,
                iov_len: length * PAGE,
            };
            let parts: Vec<_> = ranges.iter().map(part).collect();
            // SAFETY: pages of the test, or none.
            let dropped = unsafe {
                let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
                let advice = libc::MADV_DONTNEED;
                let parts = (parts.as_ptr(), parts.len());
                let done = libc::syscall(libc::SYS_process_madvise, process, parts.0, parts.1, advice, 0);
                libc::close(process as i32);
                done
            };
            // How much was done counts, too.
            if dropped < 0 { answer(dropped) } else { -(dropped as i32 / PAGE as i32) }
        });
    }

    fn lock(&mut self, first: usize, length: usize, is_locked: bool) {
        self.call(format!("lock {first}+{length} {is_locked}"), &|area| {
            let (at, length) = ((area + first * PAGE) as *const _, length * PAGE);
            // SAFETY: pages of the test, or none.
            answer(
                unsafe { if is_locked { libc::mlock(at, length) } else { libc::munlock(at, length) } }.into(),
            )
        });
    }

    fn protect(&mut self, first: usize, length: usize, protection: i32) {
        self.call(format!("protect {first}+{length} {protection}"), &|area| {
            // SAFETY: pages of the test, or none.
            answer(
                unsafe { libc::mprotect((area + first * PAGE) as *mut _, length * PAGE, protection) }.into(),
            )
        });
    }

    fn unmap(&mut self, first: usize, length: usize) {
        self.call(format!("unmap {first}+{length}"), &|area| {
            // SAFETY: pages of the test, or none.
            answer(unsafe { libc::munmap((area + first * PAGE) as *mut _, length * PAGE) }.into())
        });
    }

    fn replace(&mut self, first: usize, length: usize) {
        self.call(format!("replace {first}+{length}"), &|area| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: pages of the test, or none.
            let place =
                unsafe { libc::mmap((area + first * PAGE) as *mut _, length * PAGE, BOTH, flags, -1, 0) };
            answer(place as i64)
        });
    }

    /// As above, but there are too few addresses.
    fn replace_in_vain(&mut self, first: usize, length: usize) {
        let least = libc::rlimit { rlim_cur: 1 << 20, rlim_max: libc::RLIM_INFINITY };
        let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain limits.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const least) };
        let call = |area: usize| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: pages of the test, or none.
            let place =
                unsafe { libc::mmap((area + first * PAGE) as *mut _, length * PAGE, BOTH, flags, -1, 0) };
            answer(place as i64)
        };
        let answers = (call(self.shared), call(self.private));
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const all) };
        self.said.push(format!("replace {first}+{length} in vain: {answers:?}"));
        assert_eq!(answers.0, answers.1, "{:#?}", self.said);
    }

    /// Longer, where it is.
    fn grow(&mut self, first: usize, length: usize) {
        self.call(format!("grow {first} to {length}"), &|area| {
            // SAFETY: a page of the test, or none.
            let place = unsafe { libc::mremap((area + first * PAGE) as *mut _, PAGE, length * PAGE, 0) };
            answer(place as i64)
        });
    }

    /// Page by page: how they are cut into mappings is none of a program's business.
    fn relocate(&mut self, first: usize, length: usize, to: usize, keep: i32) {
        self.said.push(format!("move {first}+{length} to {to}, {keep}"));
        for area in [self.shared, self.private] {
            for page in 0..length {
                let (from, to) = (area + (first + page) * PAGE, area + (to + page) * PAGE);
                let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | keep;
                // SAFETY: pages of the test, or none.
                unsafe { libc::mremap(from as *mut _, PAGE, PAGE, how, to as *mut libc::c_void) };
            }
        }
    }

    /// The whole of what is there, from a page on, becomes shorter, or moves.
    fn relocate_all(&mut self, first: usize, to: usize) {
        let rights = rights(self.private);
        let length = (first..ALL_PAGES).take_while(|page| rights[*page].1).count();
        if length == 0 || first.abs_diff(to) < length || to + length > ALL_PAGES {
            return;
        }
        let move_in = |area: usize| {
            let (from, to) = ((area + first * PAGE) as *mut _, (area + to * PAGE) as *mut libc::c_void);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: pages of the test, or none.
            answer(unsafe { libc::mremap(from, length * PAGE, length * PAGE, how, to) } as i64)
        };
        let answers = (move_in(self.shared), move_in(self.private));
        self.said.push(format!("move all {first}+{length} to {to}: {answers:?}"));
        // One of them is cut into several mappings.
        if answers.0 != answers.1 {
            let area = if answers.0 != 0 { self.shared } else { self.private };
            for page in 0..length {
                let (from, to) = (area + (first + page) * PAGE, area + (to + page) * PAGE);
                let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: pages of the test, or none.
                unsafe { libc::mremap(from as *mut _, PAGE, PAGE, how, to as *mut libc::c_void) };
            }
        }
    }

    fn anything(&mut self) {
        let (first, length) = self.range(24);
        // What is cut and moved does not become longer here (SECURITY.md).
        let choice = self.random(22);
        let moves = self.moves;
        match choice {
            0..3 => self.advise(first, length),
            3 => {
                let more = self.range(8);
                let most = self.range(8);
                self.advise_all(&[(first, length), more, most]);
            }
            4..6 => self.lock(first, length, !self.leaves),
            6..8 => self.lock(first, length, false),
            8 => self.protect(first, length, libc::PROT_READ),
            9..11 => self.protect(first, length, BOTH),
            11 => self.unmap(first, length.min(6)),
            12 => self.replace(first, length.min(4)),
            13 => self.replace_in_vain(first, length),
            14..17 if !moves => self.grow(first, length),
            14.. if !moves => self.advise(first, length),
            14..17 => self.lock(first, length, false),
            17..19 => {
                let to = self.random(ALL_PAGES);
                self.relocate_all(first, to);
            }
            kept => {
                let to = self.random(ALL_PAGES - length);
                if first.abs_diff(to) >= length {
                    self.relocate(
                        first,
                        length,
                        to,
                        if kept == 19 && self.leaves { libc::MREMAP_DONTUNMAP } else { 0 },
                    );
                }
            }
        }
        for _ in 0..8 {
            let page = self.random(ALL_PAGES);
            if rights(self.shared)[page].1 && rights(self.private)[page].1 {
                self.store(page);
            }
        }
        self.compare();
    }
}

pub(crate) fn anything() {
    let domain = domain();
    let first: u64 = std::env::var("SEED").ok().map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + 10 {
        let mut areas = Areas::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (region, _) = shared(&domain, areas.shared + FIRST * PAGE, COUNT * PAGE);
        areas.compare();
        areas.said.push(format!("seed {seed}"));
        for round in 0..100 {
            if round == 50 {
                region.deregister();
                areas.compare();
            }
            areas.anything();
        }
        for area in [areas.shared, areas.private] {
            // SAFETY: pages of the test.
            unsafe { libc::munmap(area as *mut _, ALL_PAGES * PAGE) };
        }
    }
}
