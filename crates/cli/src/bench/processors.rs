//! The processors that a thread runs on.

use std::sync::OnceLock;

/// Keeps the calling thread, and those that it will start, on the n-th of the processors that it may use, or
/// lets it have all of them again. Two threads that poll must not share a processor, and a scheduler that
/// sees each of them wake the other's helpers brings them together. Without a second processor there is no
/// choice, and nothing happens.
pub(super) fn keep(place: Option<usize>) {
    static ALL: OnceLock<Option<libc::cpu_set_t>> = OnceLock::new();
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set is plain bits, for which zero is a valid value; its size goes along; a thread may always
    // stay where it may be.
    unsafe {
        let all = ALL.get_or_init(|| {
            let mut all = std::mem::zeroed();
            (libc::sched_getaffinity(0, size, &raw mut all) == 0).then_some(all)
        });
        let Some(all) = all else { return };
        let mut set = *all;
        if let Some(place) = place {
            let mut allowed =
                (0..libc::CPU_SETSIZE as usize).filter(|processor| libc::CPU_ISSET(*processor, all));
            let Some(processor) = allowed.nth(place).filter(|_| libc::CPU_COUNT(all) > 1) else { return };
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(processor, &mut set);
        }
        libc::sched_setaffinity(0, size, &raw const set);
    }
}
