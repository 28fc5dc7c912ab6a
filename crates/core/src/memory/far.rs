//! Addresses for pages of tests in whose neighbourhood nothing else is mapped.

/// An address for mmap(2) to try, unlike any other. The kernel puts other mappings into the highest gap that
/// is large enough. There, a test would soon get a page that a test beside it has unmapped.
pub(super) fn far_address() -> *mut libc::c_void {
    const PAGE: u64 = 4096;
    // Far below all that the kernel chooses.
    let address = (crate::random::word() % (1 << 46)).max(1 << 32) / PAGE * PAGE;
    address as *mut libc::c_void
}
