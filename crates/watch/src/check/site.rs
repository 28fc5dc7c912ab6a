//! Places in the program: the return addresses behind a call, and what they are called.
//!
//! Addresses are gathered when a call begins, which is quick. Names are looked up only for a finding.

use super::known::{self, Walk};
use adverb_core::cancel::CancellationGuard;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

/// How many addresses are kept: behind a call of a header's inline function stands the function of the
/// program.
pub(super) const FRAMES: usize = 6;

/// The functions of the program that a call has come through, the nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Site {
    frames: [usize; FRAMES],
}

/// Where the code of this library lies.
fn own_code() -> &'static Range<usize> {
    struct Search {
        address: usize,
        found: Range<usize>,
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: the structures are the dynamic linker's and ours, and live during the call.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        let (mut low, mut high) = (usize::MAX, 0);
        for index in 0..info.dlpi_phnum {
            // SAFETY: as many headers are there.
            let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
            if header.p_type == libc::PT_LOAD {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                (low, high) = (low.min(start), high.max(start + header.p_memsz as usize));
            }
        }
        if (low..high).contains(&search.address) {
            search.found = low..high;
            return 1;
        }
        0
    }
    static CODE: OnceLock<Range<usize>> = OnceLock::new();
    CODE.get_or_init(|| {
        let mut search = Search { address: own_code as *const () as usize, found: 0..0 };
        // SAFETY: the function fits, and the search lives during the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    })
}

/// Walks the stack of the calling thread.
#[inline(never)]
fn walk() -> Walk {
    let own = own_code();
    let mut walk = Walk::default();
    // SAFETY: nothing else of the process uses this crate, whose lock is for tables of symbols; walking the
    // stack needs none.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let address = frame.ip() as usize;
            // The end of a stack is a frame without an address, which stands nowhere.
            if address == 0 {
                return false;
            }
            if walk.count == 0 && own.contains(&address) {
                return true;
            }
            walk.site.frames[walk.count] = address;
            // On x86-64, the return address stands below the place that the stack has after the return.
            walk.slots[walk.count] = (frame.sp() as usize).wrapping_sub(size_of::<usize>());
            walk.count += 1;
            walk.count < FRAMES
        });
    }
    walk
}

impl Site {
    /// The place that the calling thread has come from, outside of this library.
    pub(super) fn here() -> Self {
        walk().site
    }

    /// The place that the calling thread has come from, for a call that it makes again and again. The number
    /// `call` stands for one way through this library.
    #[inline(never)]
    pub(super) fn of_call(call: usize) -> Self {
        let mark = 0_usize;
        let depth = std::hint::black_box(&raw const mark) as usize;
        known::find(call, depth).unwrap_or_else(|| {
            // Where the stack of a thread lies is read in a file.
            let _whole = CancellationGuard::new();
            let walk = walk();
            known::remember(call, depth, &walk);
            walk.site
        })
    }

    #[cfg(test)]
    pub(super) fn at(address: usize) -> Self {
        Self::through(&[address])
    }

    #[cfg(test)]
    pub(super) fn through(addresses: &[usize]) -> Self {
        let mut site = Self::default();
        site.frames[..addresses.len()].copy_from_slice(addresses);
        site
    }

    /// The addresses, the nearest first.
    pub(super) fn frames(&self) -> &[usize; FRAMES] {
        &self.frames
    }

    /// The nearest address; 0 if there is none.
    pub(super) fn address(&self) -> usize {
        self.frames[0]
    }

    /// Whether the site says anything.
    pub(super) fn is_known(&self) -> bool {
        self.frames[0] != 0
    }

    /// The function of the program that made the call, not one of `verbs.h`, and those that called it, as far
    /// as they are shown.
    pub(super) fn places(&self) -> Vec<Place> {
        /// More are not shown.
        const MOST: usize = 3;
        self.up_to(MOST)
    }

    /// All functions of the program that are known, in the same order. Their names take longer to look up
    /// than those that are shown.
    pub(super) fn all_places(&self) -> Vec<Place> {
        self.up_to(usize::MAX)
    }

    fn up_to(&self, most: usize) -> Vec<Place> {
        let mut places = Vec::new();
        let mut header = None;
        for address in self.frames.iter().filter(|address| **address != 0) {
            for place in Place::all_at(*address) {
                if place.begins_program() || places.len() == most {
                    return places;
                }
                if places.is_empty() && place.is_header() {
                    header.get_or_insert(place);
                } else {
                    places.push(place);
                }
            }
        }
        if places.is_empty() { header.into_iter().collect() } else { places }
    }
}

/// A place in the program, with its names as far as there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) function: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    /// The program or library, without its folder.
    pub(super) module: String,
    /// Behind its beginning.
    pub(super) offset: usize,
}

impl Place {
    /// The places at an address: functions that were inlined there come first.
    fn all_at(address: usize) -> Vec<Self> {
        // SAFETY: the structure is plain data and filled by the call; the address is only looked up.
        let (module, offset) = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(address as *const c_void, &raw mut info) != 0 && !info.dli_fname.is_null() {
                let name = CStr::from_ptr(info.dli_fname).to_string_lossy();
                let short = name.rsplit('/').next().unwrap_or_default().to_owned();
                (short, address - info.dli_fbase as usize)
            } else {
                (String::new(), address)
            }
        };
        let mut places = Vec::new();
        backtrace::resolve(address as *mut c_void, |symbol| {
            places.push(Self {
                function: symbol.name().map(|name| name.to_string()),
                file: symbol.filename().map(|file| file.display().to_string()),
                line: symbol.lineno(),
                module: module.clone(),
                offset,
            });
        });
        if places.is_empty() {
            places.push(Self { module, offset, ..Self::default() });
        }
        places
    }

    /// Whether the place is in an inline function of the headers of verbs or rdma_cm.
    fn is_header(&self) -> bool {
        let headers = ["infiniband/verbs.h", "rdma/rdma_verbs.h", "rdma/rdma_cma.h"];
        let in_header =
            self.file.as_deref().is_some_and(|file| headers.iter().any(|header| file.ends_with(header)));
        let names = [
            "ibv_",
            "__ibv_",
            "___ibv_",
            "rdma_post_",
            "rdma_get_send_comp",
            "rdma_get_recv_comp",
            "rdma_reg_",
        ];
        in_header
            || self.file.is_none()
                && self
                    .function
                    .as_deref()
                    .is_some_and(|name| names.iter().any(|known| name.starts_with(known)))
    }

    /// Whether the function at the place is what calls `main` or a thread.
    fn begins_program(&self) -> bool {
        let name = self.function.as_deref().unwrap_or_default();
        name.starts_with("__libc_start")
            || ["_start", "start_thread", "clone", "clone3", "__clone", "__clone3"].contains(&name)
            || self.function.is_none()
                && (self.module.starts_with("libc.so") || self.module.starts_with("ld-"))
    }

    /// For a person.
    pub(super) fn text(&self) -> String {
        let at = match (&self.file, self.line) {
            (Some(file), Some(line)) => {
                format!("{}:{line}", file.rsplit('/').next().unwrap_or(file))
            }
            _ => format!("{}+{:#x}", self.module, self.offset),
        };
        match &self.function {
            Some(function) => format!("{function} ({at})"),
            None => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_as_well_as_it_is_known() {
        let mut place = Place { module: "program".to_owned(), offset: 0x1234, ..Place::default() };
        assert_eq!(place.text(), "program+0x1234");
        place.function = Some("main".to_owned());
        assert_eq!(place.text(), "main (program+0x1234)");
        (place.file, place.line) = (Some("/a/b/c.c".to_owned()), Some(7));
        assert_eq!(place.text(), "main (c.c:7)");
        assert!(!place.is_header());
        place.file = Some("/usr/include/infiniband/verbs.h".to_owned());
        assert!(place.is_header());
    }

    #[test]
    fn code_of_this_library_is_known_as_such() {
        assert!(own_code().contains(&(Site::here as *const () as usize)));
        let place = Place::all_at(Site::here as *const () as usize + 1).pop().expect("a place");
        assert!(place.function.is_some_and(|name| name.contains("here")));
    }
}
