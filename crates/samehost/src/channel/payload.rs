//! A record that begins with words and goes on with payload.

use adverb_core::memory::{SharedBytes, Source};
use adverb_local::Record;

/// A record of so many bytes is copied out whole.
pub const SHORT: usize = 128;

/// Room for the first words of a record, which are copied out before they are judged.
pub type Words = [u64; SHORT / 8];

/// Copies out the first words of a record, and finds the payload behind them, which stays where it is: it is
/// copied once, to its place. `None` if the record is shorter.
#[inline(always)]
pub fn take_apart<'a, const FIRST: usize>(record: &'a Record<'_>) -> Option<([u64; FIRST], Source<'a>)> {
    let length = record.len().checked_sub(FIRST * 8)?;
    let first = record.first_words()?;
    // SAFETY: the record's bytes stay mapped as long as it lives, and these lie within its length.
    let shared = unsafe { SharedBytes::new(record.as_ptr().add(FIRST * 8), length) };
    Some((first, Source::Shared(shared)))
}
