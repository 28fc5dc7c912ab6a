//! Advice about memory that will be used soon (ibv_advise_mr(3)). Nothing is pinned here, so every region
//! pages on demand.

use super::ProtectionDomain;
use crate::error::{Error, Result};
use crate::memory::{Access, AccessError};
use crate::request::Sge;

/// The use that the program expects to make of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The bytes will be read.
    Prefetch,
    /// The bytes will be written.
    PrefetchWrite,
    /// The bytes will be used, but pages that are not there need not be brought in.
    PrefetchPresent,
}

/// Checks every element, and brings its pages in if the caller wants to `wait` for that. Without waiting
/// there is nothing to do that the first access would not do as well.
///
/// # Errors
/// EFAULT for bytes outside their region or of the address space, and for a key that is none. EPERM for a
/// region of another protection domain, or one that may not be written.
pub fn advise(domain: &ProtectionDomain, advice: Advice, wait: bool, elements: &[Sge]) -> Result<()> {
    domain.context().born.check()?;
    let keys = &domain.context().engine().keys;
    let rights = if advice == Advice::PrefetchWrite { Access::LOCAL_WRITE } else { Access::empty() };
    for element in elements {
        let (address, length) = (element.address, u64::from(element.length));
        let span =
            keys.open_span(element.lkey, address, length, rights, domain.number()).map_err(|error| {
                let errno = match error {
                    AccessError::ProtectionDomain | AccessError::Rights => libc::EPERM,
                    AccessError::Key | AccessError::Bounds | AccessError::Wrap => libc::EFAULT,
                };
                Error::new(
                    errno,
                    format!("{length} bytes at {address:#x} of key {:#x}: {error:?}", element.lkey),
                )
            })?;
        if wait && advice != Advice::PrefetchPresent {
            populate(span.address(), span.len(), advice == Advice::PrefetchWrite)?;
        }
    }
    Ok(())
}

fn populate(address: usize, length: usize, write: bool) -> Result<()> {
    // SAFETY: sysconf takes a plain number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = address & !(page - 1);
    let how = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this advice changes no byte: it only brings pages in, as an access would.
    if unsafe { libc::madvise(start as *mut _, address + length - start, how) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM | libc::EFAULT) => {
            Err(Error::new(libc::EFAULT, format!("the {length} bytes at {address:#x} are not all mapped")))
        }
        // The kernel does not know this advice: the first access brings the pages in.
        _ => Ok(()),
    }
}
