//! When a rule strikes: `@3`, `@3+`, `@3..7`, `@2s..5s`, `%5`, `@100posts`.

use std::time::Duration;

/// No time is longer.
pub(super) const LONGEST: &str = "30 days";
const MOST_SECONDS: u64 = 30 * 24 * 3600;

/// All of a million.
pub(super) const MILLION: u64 = 1_000_000;

/// When a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct When {
    pub(super) span: Span,
    /// How often the rule strikes, of a million calls, completions or packets.
    pub(super) chance: u64,
}

impl When {
    /// Whether the rule strikes each time, at least for a time.
    pub(super) fn is_steady(&self) -> bool {
        self.chance == MILLION && !matches!(self.span, Span::Counts(first, last) if last - first < MILLION)
    }
}

/// The part of what is counted, or of time, in which a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Span {
    Always,
    /// The first and the last.
    Counts(u64, u64),
    /// From an instant on, perhaps up to another one.
    From(Point, Option<Point>),
    /// From an instant on, for so long.
    For(Point, Duration),
}

/// An instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Point {
    /// The instant so long after the first call.
    Time(Duration),
    /// The call with this number that posts to a send queue.
    Posts(u64),
    /// The poll of so many completions in all.
    Completions(u64),
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wants {
    /// Something that is counted.
    Many,
    /// An instant.
    Point,
    /// An instant, and perhaps one at which it ends.
    State,
}

impl Wants {
    fn form(self) -> &'static str {
        match self {
            Self::Many => {
                "@N for the Nth one, @N+ from there on, @N..M, @2s..5s or @2s.. for a time, and %PERCENT"
            }
            Self::Point => "@2s, @100ms, @100posts or @100completions",
            Self::State => {
                "@2s, @2s..5s, @0s..100posts, @100posts, @100posts+3s, @100posts..200posts, and the same of completions"
            }
        }
    }
}

/// Out of what stands behind a rule.
///
/// # Errors
/// What is wanted.
pub(super) fn parse(text: &str, wants: Wants) -> Result<When, String> {
    let wrong = || format!("{text:?}: wanted is {}", wants.form());
    let (mut span, mut chance) = (Span::Always, MILLION);
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        let end = rest[1..].find(['@', '%']).map_or(rest.len(), |end| end + 1);
        let part = &rest[1..end];
        rest = &rest[end..];
        match sign {
            '@' if span == Span::Always => span = self::span(part, wants).ok_or_else(wrong)?,
            '%' if chance == MILLION && wants == Wants::Many => {
                let percent = part.parse::<f64>().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
                let Some(percent) = percent else {
                    return Err(format!(
                        "{text:?}: wanted is a percentage above 0 and up to 100, as in %5 or %0.1"
                    ));
                };
                chance = (percent * 10_000.0).round().max(1.0) as u64;
            }
            _ => return Err(wrong()),
        }
    }
    if span == Span::Always && wants != Wants::Many {
        return Err(format!("{text:?}: a time or a count is missing: wanted is {}", wants.form()));
    }
    Ok(When { span, chance })
}

fn span(text: &str, wants: Wants) -> Option<Span> {
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (from, Some(to)),
        None => (text, None),
    };
    if let Some(first) = from.strip_suffix('+').filter(|_| to.is_none()) {
        return many(first, None, wants).map(|(first, _)| Span::Counts(first, u64::MAX));
    }
    if let Some((first, last)) = many(from, to, wants) {
        return Some(Span::Counts(first, last));
    }
    if let Some((begin, time)) = from.split_once('+').filter(|_| to.is_none() && wants == Wants::State) {
        return Some(Span::For(point(begin)?, duration(time)?));
    }
    let begin = point(from)?;
    let end = match to {
        None | Some("") => None,
        Some(to) => Some(point(to)?),
    };
    let fits = match (begin, end) {
        (_, None) => true,
        (Point::Time(begin), Some(Point::Time(end))) => begin < end,
        // From the beginning on.
        (Point::Time(begin), Some(_)) => begin.is_zero(),
        (Point::Posts(begin), Some(Point::Posts(end)))
        | (Point::Completions(begin), Some(Point::Completions(end))) => begin < end,
        _ => false,
    };
    let is_allowed = match wants {
        Wants::Many => to.is_some() && matches!((begin, end), (Point::Time(_), None | Some(Point::Time(_)))),
        Wants::Point => to.is_none(),
        Wants::State => true,
    };
    (fits && is_allowed).then_some(Span::From(begin, end))
}

/// Numbers of things that are counted.
fn many(first: &str, last: Option<&str>, wants: Wants) -> Option<(u64, u64)> {
    let first = first.parse::<u64>().ok().filter(|first| *first > 0 && wants == Wants::Many)?;
    let last = match last {
        None => first,
        Some("") => u64::MAX,
        Some(last) => last.parse().ok()?,
    };
    (first <= last).then_some((first, last))
}

fn point(text: &str) -> Option<Point> {
    let count = |unit: &str| {
        let number = text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit[..unit.len() - 1]))?;
        number.parse::<u64>().ok().filter(|number| *number > 0)
    };
    if let Some(count) = count("posts") {
        return Some(Point::Posts(count));
    }
    if let Some(count) = count("completions") {
        return Some(Point::Completions(count));
    }
    duration(text).map(Point::Time)
}

/// A time: `2s`, `0.5s`, `20ms`, `50us`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, unit)))?;
    let time = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()?;
    (time <= Duration::from_secs(MOST_SECONDS)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_times_and_chance_are_read() {
        let seconds = Duration::from_secs;
        let many = |text| parse(text, Wants::Many).map(|when| (when.span, when.chance));
        assert_eq!(many(""), Ok((Span::Always, MILLION)));
        assert_eq!(many("@3"), Ok((Span::Counts(3, 3), MILLION)));
        assert_eq!(many("@3+"), Ok((Span::Counts(3, u64::MAX), MILLION)));
        assert_eq!(many("@3.."), Ok((Span::Counts(3, u64::MAX), MILLION)));
        assert_eq!(many("@3..7%50"), Ok((Span::Counts(3, 7), 500_000)));
        let time = Span::From(Point::Time(seconds(2)), Some(Point::Time(seconds(5))));
        assert_eq!(many("%0.5@2s..5s"), Ok((time, 5000)));
        assert_eq!(many("@2s.."), Ok((Span::From(Point::Time(seconds(2)), None), MILLION)));
        let point = |text| parse(text, Wants::Point).map(|when| when.span);
        assert_eq!(point("@20ms"), Ok(Span::From(Point::Time(Duration::from_millis(20)), None)));
        assert_eq!(point("@1post"), Ok(Span::From(Point::Posts(1), None)));
        assert_eq!(point("@7completions"), Ok(Span::From(Point::Completions(7), None)));
        let state = |text| parse(text, Wants::State).map(|when| when.span);
        assert_eq!(state("@1posts..9posts"), Ok(Span::From(Point::Posts(1), Some(Point::Posts(9)))));
        let (start, third) = (Point::Time(Duration::ZERO), Point::Posts(3));
        assert_eq!(state("@0s..3posts"), Ok(Span::From(start, Some(third))));
        let time = Duration::from_millis(300);
        assert_eq!(state("@8posts+300ms"), Ok(Span::For(Point::Posts(8), time)));
        for text in [
            "@0",
            "@x",
            "@",
            "%0",
            "%101",
            "%",
            "@2s",
            "@5..3",
            "@5s..2s",
            "@1@2",
            "%1%2",
            "@1posts",
            "@0s..5posts",
        ] {
            assert!(many(text).is_err(), "{text}");
        }
        for text in [
            "", "@3", "@2s..3s", "%5", "@2", "@0posts", "@2s%5", "@-1s", "@2h", "@2s+1s", "@1e9s", "@infs",
            "@nans",
        ] {
            assert!(point(text).is_err(), "{text}");
        }
        for text in ["", "@3", "@1posts..2s", "@1s..2posts", "@3s..1s", "@1posts+2", "@1posts+2s..3s"] {
            assert!(state(text).is_err(), "{text}");
        }
    }
}
