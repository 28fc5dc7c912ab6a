//! Memory that the program owns and registers.

use adverb_core::error::Error;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A value with bytes that stay where they are: it can be registered as a
/// [`MemoryRegion`](crate::MemoryRegion).
///
/// ```
/// use adverb::{Rights, StableMemory};
/// use std::ptr::NonNull;
///
/// struct Table(Box<[u64; 512]>);
///
/// // SAFETY: the bytes lie on the heap as long as the table lives, and nothing uses them while it is registered.
/// unsafe impl StableMemory for Table {
///     fn bytes(&mut self) -> (NonNull<u8>, usize) {
///         (NonNull::from(&mut *self.0).cast(), size_of::<[u64; 512]>())
///     }
/// }
///
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let region = domain.register(Table(Box::new([0; 512])), Rights::READ)?;
/// region.write(8, &7_u64.to_ne_bytes());
/// let table: Table = region.deregister().expect("this is the last clone");
/// assert_eq!(table.0[1], 7);
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// [`StableMemory::bytes`] always returns the same range. As long as the value lives, also while it is moved,
/// the range stays mapped, initialised, readable and writable, and nothing in this program accesses it but
/// through the registration.
pub unsafe trait StableMemory: Send + 'static {
    /// The first byte, and how many there are.
    ///
    /// ```
    /// use adverb::StableMemory;
    ///
    /// // The range stays the same while the value is moved.
    /// let mut vector = vec![0_u8; 4096];
    /// let before = vector.bytes();
    /// let mut moved = Box::new(vector);
    /// assert_eq!((moved.bytes(), before.1), (before, 4096));
    /// ```
    fn bytes(&mut self) -> (NonNull<u8>, usize);
}

/// A value whose bytes nobody else can change: it can be registered as a [`Buffer`](crate::Buffer), too.
///
/// ```
/// use adverb::ExclusiveMemory;
/// # use adverb::StableMemory;
/// # use std::ptr::NonNull;
/// # struct Page(Box<[u8; 4096]>);
/// # // SAFETY: the bytes lie on the heap as long as the page lives. Nothing uses them while it is registered.
/// # unsafe impl StableMemory for Page {
/// #     fn bytes(&mut self) -> (NonNull<u8>, usize) {
/// #         (NonNull::from(&mut *self.0).cast(), 4096)
/// #     }
/// # }
/// // A type of the program's own, which is a `StableMemory` already.
/// // SAFETY: the page owns its bytes, and no other process maps them.
/// unsafe impl ExclusiveMemory for Page {}
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// let mut buffer = domain.register_buffer(Page(Box::new([0; 4096])))?;
/// buffer[0] = 7;
/// let page: Page = buffer.deregister().expect("nobody else has a part of it");
/// assert_eq!(page.0[0], 7);
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// No other process and no other value of this program reads or writes the bytes.
pub unsafe trait ExclusiveMemory: StableMemory {}

// SAFETY: a vector's bytes lie on the heap, and only its own methods move them: nobody calls one meanwhile.
// The length counts, so all are initialised.
unsafe impl StableMemory for Vec<u8> {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(self.as_mut_slice()).cast(), self.len())
    }
}

// SAFETY: the vector owns its bytes.
unsafe impl ExclusiveMemory for Vec<u8> {}

// SAFETY: the bytes lie on the heap as long as the box lives.
unsafe impl StableMemory for Box<[u8]> {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

// SAFETY: the box owns its bytes.
unsafe impl ExclusiveMemory for Box<[u8]> {}

/// Pages of a mapping that is unmapped at the end.
struct ProgramMapping {
    start: NonNull<u8>,
    /// Bytes that the program asked for.
    length: usize,
    /// Bytes that are mapped.
    mapped: usize,
}

// SAFETY: the mapping belongs to this value alone, in whichever thread it is.
unsafe impl Send for ProgramMapping {}
// SAFETY: a shared reference gives out addresses, or bytes to read.
unsafe impl Sync for ProgramMapping {}

impl ProgramMapping {
    fn new(
        length: usize,
        page: usize,
        flags: i32,
        file: Option<(&File, u64)>,
        what: &str,
    ) -> Result<Self, Error> {
        let mapped = length.max(1).checked_next_multiple_of(page).filter(|all| *all <= isize::MAX as usize);
        let mapped =
            mapped.ok_or_else(|| Error::exhausted(format!("{what}: more than the address space has")))?;
        let (descriptor, offset) = match file {
            Some((file, offset)) => (file.as_raw_fd(), offset),
            None => (-1, 0),
        };
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| Error::invalid(format!("{what}: the offset {offset} is too large")))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(Error::system("mmap").context(what));
        }
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::exhausted(format!("{what}: no usable address")))?;
        Ok(Self { start, length, mapped })
    }
}

impl Drop for ProgramMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping. Its registration, if there was one, has ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// Pages of the program's own, all zero at first: use it as a `[u8]`, and register it.
///
/// ```
/// use adverb::Mapping;
///
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let mut mapping = Mapping::new(1 << 20)?;
/// mapping[..5].copy_from_slice(b"pages");
/// let buffer = domain.register_buffer(mapping)?;
/// assert_eq!(&buffer[..5], b"pages");
/// let mapping: Mapping = buffer.deregister().expect("nobody else has a part of it");
/// assert_eq!(&mapping[..5], b"pages");
/// # Ok(())
/// # }
/// ```
pub struct Mapping(ProgramMapping);

impl Mapping {
    /// At least `length` bytes in pages of the usual size.
    ///
    /// ```
    /// use adverb::{Mapping, Rights};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // Memory that begins at a page, and that the kernel fills with zeros as it is touched.
    /// let mapping = Mapping::new(1 << 20)?;
    /// assert!(mapping.as_ptr().addr().is_multiple_of(4096) && mapping[4096] == 0);
    /// let region = domain.register(mapping, Rights::READ)?;
    /// assert_eq!(region.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOMEM when memory has run out.
    pub fn new(length: usize) -> crate::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Ok(Self(ProgramMapping::new(length, 4096, flags, None, &format!("mapping {length} bytes"))?))
    }

    /// At least `length` bytes in huge pages of `2^log_size` bytes: 21 for 2 MiB, 30 for 1 GiB. The mapping
    /// has whole pages.
    ///
    /// # Errors
    /// EINVAL for a size that the machine does not have; ENOMEM when too few such pages are reserved. The
    /// administrator reserves them with `sysctl vm.nr_hugepages=N`.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// use adverb::Mapping;
    /// let mapping = Mapping::huge_pages(1 << 20, 21).or_else(|_| Mapping::new(1 << 20))?;
    /// assert!(mapping.len() >= 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn huge_pages(length: usize, log_size: u32) -> crate::Result<Self> {
        if !(12..=40).contains(&log_size) {
            return Err(
                Error::invalid(format!("pages of 2^{log_size} bytes: 2^12 to 2^40 are allowed")).into()
            );
        }
        let size = (log_size << libc::MAP_HUGE_SHIFT) as i32;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
        let what = format!(
            "mapping {length} bytes in huge pages of 2^{log_size} bytes (reserve some: sysctl vm.nr_hugepages)"
        );
        let mut mapped = ProgramMapping::new(length, 1 << log_size, flags, None, &what)?;
        mapped.length = mapped.mapped;
        Ok(Self(mapped))
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are mapped and initialised (zero at first), and belong to this value alone: it is
        // borrowed.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.length) }
    }
}

// SAFETY: the pages are mapped until the value is dropped, wherever it is, and nobody accesses them but by
// the value.
unsafe impl StableMemory for Mapping {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (self.0.start, self.0.length)
    }
}

// SAFETY: private anonymous pages: no other process has them, and no other value.
unsafe impl ExclusiveMemory for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("length", &self.0.length).finish()
    }
}

/// Bytes of a file, mapped to be registered as a [`MemoryRegion`](crate::MemoryRegion). Other processes may
/// change the file, so there is no `&[u8]` of them: [`MemoryRegion::read`](crate::MemoryRegion::read) copies
/// them.
///
/// As with every mapping, the kernel raises SIGBUS in a program that reads bytes of a file that has become
/// shorter. A request that needs such bytes fails instead.
///
/// ```
/// use adverb::{FileMapping, Rights};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("adverb-doc-{}", std::process::id()));
/// std::fs::write(&path, b"what peers may read")?;
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let mapping = FileMapping::private(&std::fs::File::open(&path)?, 0, 19)?;
/// let region = domain.register(mapping, Rights::READ)?;
/// assert_eq!(region.to_vec(..4), b"what");
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct FileMapping(ProgramMapping);

impl FileMapping {
    /// `length` bytes of `file` from `offset` on. Changes go to the file. It must be open for reading and
    /// writing.
    ///
    /// ```
    /// use adverb::{FileMapping, Rights};
    /// use std::fs::File;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("adverb-doc-shared-{}", std::process::id()));
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// std::fs::write(&path, [0; 4096])?;
    /// let file = File::options().read(true).write(true).open(&path)?;
    /// let region = domain.register(FileMapping::shared(&file, 0, 4096)?, Rights::WRITE)?;
    /// region.write(0, b"as a peer does it");
    /// // The bytes are in the file, for every process that reads it.
    /// assert!(std::fs::read(&path)?.starts_with(b"as a peer does it"));
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for an offset that is no multiple of the page size, for no bytes, and for bytes behind the end
    /// of the file. EACCES for a file that is not open for both. ENOMEM when memory has run out.
    pub fn shared(file: &File, offset: u64, length: usize) -> crate::Result<Self> {
        Self::new(file, offset, length, libc::MAP_SHARED)
    }

    /// `length` bytes of `file` from `offset` on. Changes stay in this process, so the file may be open for
    /// reading alone.
    ///
    /// ```
    /// use adverb::{FileMapping, Rights};
    /// use std::fs::File;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("adverb-doc-private-{}", std::process::id()));
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// std::fs::write(&path, b"a template")?;
    /// // Open for reading alone. Peers write into a copy of the template.
    /// let region = domain.register(FileMapping::private(&File::open(&path)?, 0, 10)?, Rights::WRITE)?;
    /// region.write(2, b"letter");
    /// assert_eq!(region.to_vec(..10), b"a letterte");
    /// assert_eq!(std::fs::read(&path)?, b"a template");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`FileMapping::shared`].
    pub fn private(file: &File, offset: u64, length: usize) -> crate::Result<Self> {
        Self::new(file, offset, length, libc::MAP_PRIVATE)
    }

    fn new(file: &File, offset: u64, length: usize, flags: i32) -> crate::Result<Self> {
        let what = format!("mapping {length} bytes at {offset} of a file");
        let metadata = file.metadata();
        let size = metadata.map_err(|error| {
            Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}"))
        })?;
        let (size, end) = (size.len(), offset.checked_add(length as u64));
        if length == 0 || end.is_none_or(|end| end > size) {
            return Err(Error::invalid(format!("{what}, which has {size}")).into());
        }
        Ok(Self(ProgramMapping::new(length, 1, flags, Some((file, offset)), &what)?))
    }
}

// SAFETY: the pages are mapped for reads and writes until the value is dropped, wherever it is. They are
// initialised: bytes of a file. The value gives nobody access.
unsafe impl StableMemory for FileMapping {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (self.0.start, self.0.length)
    }
}

impl fmt::Debug for FileMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMapping").field("length", &self.0.length).finish()
    }
}

/// Memory that could not be registered, and why. It becomes an [`Error`](crate::Error) by `?`.
///
/// ```
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// // No bytes cannot be registered.
/// let refused = domain.register_buffer(Vec::with_capacity(64)).unwrap_err();
/// println!("{}", refused.error);
/// assert_eq!(refused.memory.capacity(), 64);
/// # Ok(())
/// # }
/// ```
pub struct NotRegistered<M> {
    /// Why the memory is not registered.
    pub error: crate::Error,
    /// The program's memory.
    pub memory: M,
}

impl<M> fmt::Debug for NotRegistered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotRegistered").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for NotRegistered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for NotRegistered<M> {}

impl<M> From<NotRegistered<M>> for crate::Error {
    fn from(refused: NotRegistered<M>) -> Self {
        refused.error
    }
}
