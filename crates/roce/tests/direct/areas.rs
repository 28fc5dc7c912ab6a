//! What an agent does with memory that it has mapped itself, and registered: protects it, unmaps it, and lets
//! others wait for its pages.

use super::agent::Agent;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::region::{DeviceMemory, MemoryRegion, Pages, ProtectionDomain};
use adverb_core::request::{Opcode, SendRequest, Sge};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Pages of its own.
pub(crate) struct Area {
    address: usize,
    length: usize,
    pub(crate) region: Arc<MemoryRegion>,
    /// Whoever touches a page that is not there waits.
    guard: Option<OwnedFd>,
    /// The file that it is of.
    file: Option<OwnedFd>,
}

fn memory_file(length: usize) -> OwnedFd {
    // SAFETY: a C string and plain numbers; a fresh descriptor.
    unsafe {
        let file = libc::memfd_create(c"area".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, length as i64) == 0);
        OwnedFd::from_raw_fd(file)
    }
}

/// Maps a file, in place of what is at `at` if that is not null.
///
/// # Safety
/// What is there is nobody's.
unsafe fn map_shared(at: *mut libc::c_void, length: usize, file: &OwnedFd, offset: i64) -> usize {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let flags = if at.is_null() { flags } else { flags | libc::MAP_FIXED };
    // SAFETY: handed on to the caller.
    let found = unsafe { libc::mmap(at, length, protection, flags, file.as_raw_fd(), offset) };
    assert_ne!(found, libc::MAP_FAILED);
    found as usize
}

/// Layouts of `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// `_IOWR(0xAA, number, size)`.
const fn request(number: u64, size: usize) -> libc::c_ulong {
    (3 << 30 | (size as u64) << 16 | 0xAA << 8 | number) as libc::c_ulong
}

const MISSING: u64 = 1;

impl Area {
    fn new(
        domain: &Arc<ProtectionDomain>,
        length: usize,
        (protection, flags): (i32, i32),
        access: Access,
    ) -> Self {
        // SAFETY: a fresh anonymous mapping, which is registered as long as it is there or what is not there
        // is looked for in vain.
        unsafe {
            let flags = flags | libc::MAP_ANONYMOUS;
            let address = libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0);
            assert_ne!(address, libc::MAP_FAILED);
            let address = address as usize;
            let region =
                MemoryRegion::register(domain, address, length as u64, address as u64, access).unwrap();
            Self { address, length, region, guard: None, file: None }
        }
    }

    /// Shared memory of the program: of a memory descriptor (0), of a file in a tmpfs (1), or a System V
    /// segment (2).
    fn shared(domain: &Arc<ProtectionDomain>, kind: u64, length: usize, access: Access) -> Self {
        let file = match kind {
            0 => Some(memory_file(length)),
            1 => {
                let path = format!("/dev/shm/adverb-area-{}", std::process::id());
                let file =
                    std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                file.set_len(length as u64).unwrap();
                Some(file.into())
            }
            _ => None,
        };
        // SAFETY: fresh mappings, and a segment that goes with its last user.
        let address = unsafe {
            match &file {
                Some(file) => map_shared(std::ptr::null_mut(), length, file, 0),
                None => {
                    let id = libc::shmget(libc::IPC_PRIVATE, length, 0o600);
                    let address = libc::shmat(id, std::ptr::null(), 0);
                    assert!(id >= 0 && address.addr() != usize::MAX);
                    libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
                    address as usize
                }
            }
        };
        // SAFETY: as of `new`.
        let region =
            unsafe { MemoryRegion::register(domain, address, length as u64, address as u64, access) }
                .unwrap();
        Self { address, length, region, guard: None, file }
    }

    /// From the page at `from` on. Whether the system permits it for the kernel's own accesses, too.
    fn guard(&mut self, from: usize) -> bool {
        // SAFETY: a descriptor of its own, and structures of the size that the requests name.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
            if fd < 0 {
                return false;
            }
            let guard = OwnedFd::from_raw_fd(fd as i32);
            let mut api = Api { api: 0xAA, features: 0, ioctls: 0 };
            assert_eq!(libc::ioctl(guard.as_raw_fd(), request(0x3f, size_of::<Api>()), &raw mut api), 0);
            let (start, length) = (self.address + from, self.length - from);
            libc::madvise(start as *mut _, length, libc::MADV_DONTNEED);
            let (start, length) = (start as u64, length as u64);
            let mut register = Register { start, length, mode: MISSING, ioctls: 0 };
            let size = size_of::<Register>();
            assert_eq!(libc::ioctl(guard.as_raw_fd(), request(0, size), &raw mut register), 0);
            self.guard = Some(guard);
        }
        true
    }
}

/// Memory of the engine, registered.
pub(crate) enum Own {
    Device { memory: Arc<DeviceMemory>, _region: Arc<MemoryRegion> },
    Pages(Arc<Pages>),
}

impl Own {
    fn byte(&self, at: usize) -> u8 {
        let mut bytes = [0; 4];
        match self {
            Self::Device { memory, .. } => memory.read(at as u64, &mut bytes).unwrap(),
            Self::Pages(pages) => pages.read(at, &mut bytes),
        }
        bytes[0]
    }
}

impl Agent {
    fn own(&mut self, own: Own, address: u64, key: u32) -> Vec<u64> {
        self.own.push(Some(own));
        vec![self.own.len() as u64 - 1, address, key.into()]
    }

    pub(crate) fn obey_about_areas(&mut self, command: &str, numbers: &[u64]) -> Option<Vec<u64>> {
        Some(match (command, numbers) {
            ("device", [domain, from, length, access]) => {
                let domain = self.homes[*domain as usize].domain.clone();
                let access = Access::from_bits_truncate(*access as u32) | Access::ZERO_BASED;
                let memory = DeviceMemory::new(domain.context(), from + length, 0, 1).unwrap();
                let region = memory.register(&domain, *from, *length, access).unwrap();
                let key = region.key();
                self.own(Own::Device { memory, _region: region }, 0, key)
            }
            ("pages", [domain, _, length, access]) => {
                let access = Access::from_bits_truncate(*access as u32);
                let domain = &self.homes[*domain as usize].domain;
                let pages = Pages::for_peers(domain, *length as usize, access).unwrap();
                let (address, key) = (pages.start().as_ptr() as u64, pages.key());
                self.own(Own::Pages(pages), address, key)
            }
            ("own-byte", [index, at]) => {
                vec![self.own[*index as usize].as_ref().unwrap().byte(*at as usize).into()]
            }
            ("own-end", [index]) => {
                self.own[*index as usize] = None;
                vec![]
            }
            ("area", [domain, length, protection, access, more @ ..]) => {
                let access = Access::from_bits_truncate(*access as u32);
                let domain = &self.homes[*domain as usize].domain;
                let area = Area::new(
                    domain,
                    *length as usize,
                    (*protection as i32, more.first().map_or(libc::MAP_PRIVATE, |flags| *flags as i32)),
                    access,
                );
                let answer = vec![self.areas.len() as u64, area.address as u64, area.region.key().into()];
                self.areas.push(area);
                answer
            }
            ("shared", [domain, kind, length, access]) => {
                let access = Access::from_bits_truncate(*access as u32);
                let area =
                    Area::shared(&self.homes[*domain as usize].domain, *kind, *length as usize, access);
                let answer = vec![self.areas.len() as u64, area.address as u64, area.region.key().into()];
                self.areas.push(area);
                answer
            }
            // Another file comes in its place. What it was of stays as it is.
            ("area-replace", [index]) => {
                let area = &mut self.areas[*index as usize];
                let file = memory_file(area.length);
                // SAFETY: the area's own pages.
                unsafe { map_shared(area.address as *mut _, area.length, &file, 0) };
                vec![]
            }
            ("area-cut", [index, length]) => {
                let file = self.areas[*index as usize].file.as_ref().unwrap();
                // SAFETY: plain numbers.
                vec![unsafe { libc::ftruncate(file.as_raw_fd(), *length as i64) } as u64]
            }
            // A byte of the file that it is of.
            ("area-file-byte", [index, at]) => {
                let file = self.areas[*index as usize].file.as_ref().unwrap();
                let mut byte = [0u8];
                // SAFETY: one byte, which is there.
                let read = unsafe { libc::pread(file.as_raw_fd(), byte.as_mut_ptr().cast(), 1, *at as i64) };
                assert_eq!(read, 1);
                vec![byte[0].into()]
            }
            // The same bytes once more.
            ("area-again", [index]) => {
                let area = &mut self.areas[*index as usize];
                let (domain, access) = (area.region.domain().clone(), area.region.access());
                let (address, length) = (area.address, area.length as u64);
                // SAFETY: as of `new`.
                area.region =
                    unsafe { MemoryRegion::register(&domain, address, length, address as u64, access) }
                        .unwrap();
                vec![area.region.key().into()]
            }
            ("area-protect", [index, from, length, protection]) => {
                let address = self.areas[*index as usize].address + *from as usize;
                // SAFETY: pages of the area.
                vec![unsafe { libc::mprotect(address as *mut _, *length as usize, *protection as i32) } as u64]
            }
            ("area-unmap", [index, from, length]) => {
                let address = self.areas[*index as usize].address + *from as usize;
                // SAFETY: as above.
                vec![unsafe { libc::munmap(address as *mut _, *length as usize) } as u64]
            }
            ("area-end", [index]) => {
                self.areas[*index as usize].region.deregister();
                vec![]
            }
            ("area-byte", [index, at]) => {
                let mut byte = [0];
                let address = self.areas[*index as usize].address + *at as usize;
                // SAFETY: as above.
                unsafe { adverb_core::memory::copy_from(&mut byte, address) }.unwrap();
                vec![byte[0].into()]
            }
            ("area-guard", [index, from]) => vec![self.areas[*index as usize].guard(*from as usize).into()],
            // Whoever waits goes on, with pages of zeros.
            ("area-open", [index]) => {
                self.areas[*index as usize].guard = None;
                vec![]
            }
            ("exec", []) => {
                let arguments = [c"sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
                println!("\n= 0");
                // SAFETY: strings and an array that end as they should.
                unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
                vec![1]
            }
            // Without waiting for its end.
            ("area-send", [pair, index, from, length]) => {
                let area = &self.areas[*index as usize];
                let address = area.address as u64 + from;
                let sges = [Sge { address, length: *length as u32, lkey: area.region.key() }];
                let request = SendRequest { opcode: Opcode::Send, ..signalled(&sges, (0, 0)) };
                self.side(*pair).queue_pair.post_send(&request).unwrap();
                vec![]
            }
            _ => return None,
        })
    }
}
