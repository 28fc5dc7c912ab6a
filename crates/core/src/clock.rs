//! The two clocks that programs see: of completions (ibv_create_cq_ex(3)) and of the device (ibv_query_rt_values_ex(3)).

use std::sync::atomic::{AtomicU64, Ordering};

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live local; both clocks exist everywhere.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The device's clock: nanoseconds that never go back (CLOCK_MONOTONIC).
pub fn device() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The device's clock, rounded up to the next tick of the system, at a fifth of the cost. Up to a tick late; but where ticks are late, as on a virtual
/// machine that waits for its processor, earlier than the time now, by as much.
pub fn late() -> u64 {
    static TICK: AtomicU64 = AtomicU64::new(0);
    let mut tick = TICK.load(Ordering::Relaxed);
    if tick == 0 {
        let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a live local; the clock exists since Linux 2.6.32.
        unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
        tick = resolution.tv_nsec as u64 + 1;
        TICK.store(tick, Ordering::Relaxed);
    }
    read(libc::CLOCK_MONOTONIC_COARSE) + tick
}

/// The time of day, in nanoseconds since 1970, at an instant of the device's clock.
pub fn wall_at(device_time: u64) -> u64 {
    read(libc::CLOCK_REALTIME).wrapping_sub(device()).wrapping_add(device_time)
}
