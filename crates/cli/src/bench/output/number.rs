//! Numbers with their units, as people read them.

use crate::bench::result::{Target, Unit};
use crate::pair::table;
use std::time::Duration;

/// "6.21 µs", "2.31 GB/s", "12.3 M/s".
pub(super) fn value(unit: Unit, value: f64) -> String {
    match unit {
        _ if !value.is_finite() => "-".into(),
        Unit::Nanoseconds => table::time(Duration::from_nanos(value as u64)),
        Unit::BytesPerSecond => table::rate(value),
        Unit::Bytes => table::bytes(value),
        Unit::Count if value.fract() == 0.0 => format!("{value:.0}"),
        Unit::Count => format!("{value:.3}"),
        Unit::PerSecond => per_second(value),
    }
}

/// A round number with its unit, without decimals: "10 µs".
pub(super) fn round(unit: Unit, value: f64) -> String {
    let (value, unit) = match unit {
        Unit::Nanoseconds if value < 1e3 => (value, "ns"),
        Unit::Nanoseconds if value < 1e6 => (value / 1e3, "µs"),
        Unit::Nanoseconds => (value / 1e6, "ms"),
        Unit::BytesPerSecond if value < 1e6 => (value / 1e3, "kB/s"),
        Unit::BytesPerSecond if value < 1e9 => (value / 1e6, "MB/s"),
        Unit::BytesPerSecond => (value / 1e9, "GB/s"),
        other => return self::value(other, value),
    };
    format!("{:.0} {unit}", value.max(1.0))
}

/// "12.3 M/s".
pub(super) fn per_second(value: f64) -> String {
    match value {
        n if n < 9_999.5 => format!("{n:.0}/s"),
        n if n < 999_500.0 => format!("{:.0} k/s", n / 1e3),
        n => format!("{:.2} M/s", n / 1e6),
    }
}

/// "64 KiB".
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// "1.25", and not more digits than mean something.
pub(super) fn ratio(ratio: f64) -> String {
    match ratio {
        r if r < 0.0995 => format!("{r:.3}"),
        r if r < 9.995 => format!("{r:.2}"),
        r if r < 99.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// "at most 1.3", of a ratio where there is one.
pub(super) fn target(target: Target, unit: Unit, is_ratio: bool) -> String {
    let limit = |limit: f64| if is_ratio { format!("{limit}") } else { value(unit, limit) };
    match target {
        Target::AtMost(most) => format!("at most {}", limit(most)),
        Target::AtLeast(least) => format!("at least {}", limit(least)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        assert_eq!(per_second(12_345_678.0), "12.35 M/s");
        assert_eq!(per_second(6_200.0), "6200/s");
        assert_eq!(size(64 << 10), "64 KiB");
        assert_eq!(ratio(0.0042), "0.004");
        assert_eq!((ratio(1.234), ratio(23.45), ratio(120.4)), ("1.23".into(), "23.4".into(), "120".into()));
        assert_eq!(target(Target::AtMost(1.3), Unit::Nanoseconds, true), "at most 1.3");
        assert_eq!(target(Target::AtMost(16384.0), Unit::Bytes, false), "at most 16.4 kB");
        assert_eq!(value(Unit::Count, 4.0), "4");
        assert_eq!(
            (round(Unit::Nanoseconds, 1e4).as_str(), round(Unit::BytesPerSecond, 5e7).as_str()),
            ("10 µs", "50 MB/s")
        );
    }
}
