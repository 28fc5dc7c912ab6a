//! A memory key in the table that others of this process's host look into ([`adverb_local::Table`]): the
//! words of an entry.
//!
//! | word | |
//! |---|---|
//! | 0 | what peers call the first byte |
//! | 1 | bytes |
//! | 2 | address of the first byte in that process |
//! | 3 | what the region permits (bits of [`Access`]); [`BY_FILE`], [`COMMON`] |
//! | 4 | protection domain; in the upper half how many bytes lie before those that can be mapped |
//! | 5 | bytes that can be mapped; 0: none |
//! | 6 | where they begin in the descriptor |
//!
//! That process may write anything there: words that do not fit together say nothing.

use adverb_core::memory::{Access, MappableBytes, PublishedBytes};

/// The memory file of the process may be used for the bytes.
const BY_FILE: u64 = 1 << 32;
/// The program shares the bytes by itself.
const COMMON: u64 = 1 << 33;
/// No address of a process lies behind this.
const END: u64 = i64::MAX as u64;

pub(crate) type EntryWords = [u64; 7];

/// The words that say this.
pub(crate) fn to_words(opened: &PublishedBytes) -> EntryWords {
    let PublishedBytes { first, length, address, access, domain, by_file, mapped, is_common } = *opened;
    let MappableBytes { skip, length: mapped, offset } =
        mapped.unwrap_or(MappableBytes { skip: 0, length: 0, offset: 0 });
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let rights = u64::from(access.bits()) | flag(BY_FILE, by_file) | flag(COMMON, is_common);
    [first, length, address, rights, u64::from(skip) << 32 | u64::from(domain), mapped, offset]
}

/// The bytes that words describe, if they describe any: they lie at addresses that a process may have, and
/// contain those that can be mapped.
pub(crate) fn from_words(words: &EntryWords) -> Option<PublishedBytes> {
    let [first, length, address, rights, domain, mapped, offset] = *words;
    let skip = (domain >> 32) as u32;
    first.checked_add(length.checked_sub(1)?)?;
    address.checked_add(length).filter(|end| *end <= END)?;
    let is_inside = u64::from(skip).checked_add(mapped).is_some_and(|end| end <= length);
    if mapped > 0 && !is_inside {
        return None;
    }
    Some(PublishedBytes {
        first,
        length,
        address,
        access: Access::from_bits_truncate(rights as u32),
        domain: domain as u32,
        by_file: rights & BY_FILE != 0,
        mapped: (mapped > 0).then_some(MappableBytes { skip, length: mapped, offset }),
        is_common: rights & COMMON != 0 && mapped == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENED: PublishedBytes = PublishedBytes {
        first: 0x500,
        length: 0x3000,
        address: 0x7000_0000_0100,
        access: Access::REMOTE,
        domain: 7,
        by_file: true,
        mapped: Some(MappableBytes { skip: 0xf00, length: 0x2000, offset: 1 << 40 }),
        is_common: false,
    };

    #[test]
    fn published_bytes_are_read_back_from_their_words() {
        for mapped in [None, OPENED.mapped] {
            for by_file in [false, true] {
                let opened = PublishedBytes { mapped, by_file, ..OPENED };
                assert_eq!(from_words(&to_words(&opened)), Some(opened));
            }
        }
        let common = PublishedBytes { mapped: None, is_common: true, ..OPENED };
        assert_eq!(from_words(&to_words(&common)), Some(common));
        let whole = PublishedBytes { first: u64::MAX - 7, length: 8, mapped: None, ..OPENED };
        assert_eq!(from_words(&to_words(&whole)), Some(whole));
    }

    #[test]
    fn words_that_do_not_fit_together_are_no_published_bytes() {
        let words = to_words(&OPENED);
        let says = |index: usize, value| {
            let mut words = words;
            words[index] = value;
            from_words(&words).is_some()
        };
        assert!(says(0, 0));
        assert!(!says(0, u64::MAX), "it passes the end of all names");
        assert!(!says(1, 0) && !says(1, 0x2eff) && !says(1, u64::MAX) && says(1, 0x2f00));
        assert!(!says(2, END - 8) && !says(2, u64::MAX) && says(2, END - 0x3000));
        assert!(says(3, u64::MAX) && says(3, 0));
        assert!(!says(4, u64::MAX) && !says(4, 0x1001 << 32) && says(4, 0x1000 << 32));
        assert!(!says(5, u64::MAX) && says(5, 0) && !says(5, 0x2101));
        assert!(says(6, u64::MAX), "who maps it finds out");
    }
}
