//! Which kernel this process runs on.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// A number that tells processes of this kernel, also in other namespaces, from those of others. Zero if
/// there is none.
pub(crate) fn mark() -> u64 {
    static MARK: OnceLock<u64> = OnceLock::new();
    *MARK.get_or_init(|| {
        let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return 0 };
        #[expect(
            deprecated,
            reason = "the hash must be the same in every build of every process of the host"
        )]
        let mut hasher = std::hash::SipHasher::new();
        "trains".hash(&mut hasher);
        boot.hash(&mut hasher);
        hasher.finish()
    })
}
