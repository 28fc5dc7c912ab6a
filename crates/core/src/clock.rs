//! The two clocks that programs see: of completions (ibv_create_cq_ex(3)) and of the device
//! (ibv_query_rt_values_ex(3)). And a third one for the engine alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// The device's clock, rounded up to the next tick of the system, at a fifth of the cost. Up to a tick late;
/// but where ticks are late, as on a virtual machine that waits for its processor, earlier than the time now,
/// by as much.
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

/// A counter of the processor's, which costs a twentieth of the clock: for polls that note when they were. It
/// differs a little from processor to processor on some machines.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it reads a counter. A process that may not (PR_SET_TSC) cannot read clocks either, which the C
    // library does by the same instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: it reads a counter that the kernel lets programs read, as the C library does for clocks.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    return device();
}

/// Whether so many [`ticks`] last no longer than this. The rate is measured, from the first such question on;
/// until that says something, it counts as high.
pub(crate) fn is_within(ticks: u64, time: Duration) -> bool {
    /// Per nanosecond.
    const HIGH_RATE: u64 = 4;
    /// So many nanoseconds say something.
    const LONG: u64 = 100_000;
    static START: OnceLock<(u64, u64)> = OnceLock::new();
    let now = (self::ticks(), device());
    let start = *START.get_or_init(|| now);
    let passed = (now.0.saturating_sub(start.0), now.1.saturating_sub(start.1));
    let time = time.as_nanos();
    if passed.1 < LONG {
        return u128::from(ticks) <= time * u128::from(HIGH_RATE);
    }
    u128::from(ticks) * u128::from(passed.1) <= time * u128::from(passed.0)
}

/// The time of day, in nanoseconds since 1970, at an instant of the device's clock.
pub fn wall_at(device_time: u64) -> u64 {
    read(libc::CLOCK_REALTIME).wrapping_sub(device()).wrapping_add(device_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_as_time_does() {
        assert!(is_within(0, Duration::ZERO));
        // The thread may have no processor for a while between any two of these.
        let (earliest, before, latest) = (device(), ticks(), device());
        while device() < latest + 1_000_000 {
            std::hint::spin_loop();
        }
        let passed = ticks().saturating_sub(before);
        let lasted = Duration::from_nanos(device() - earliest);
        assert!(passed > 0);
        assert!(is_within(passed, 2 * lasted), "{passed} ticks in {lasted:?}");
        assert!(!is_within(passed, Duration::from_micros(400)), "{passed} ticks in {lasted:?}");
    }
}
