//! Bytes to and from shared words.

use crate::sync::Word;

const WORD: usize = 8;

/// Writes `bytes` at byte `offset` of `words`, which no other thread should be writing. Panics if they do not
/// fit.
#[inline]
pub(crate) fn store(words: &[Word], offset: usize, mut bytes: &[u8]) {
    let mut index = offset / WORD;
    let lead = offset % WORD;
    if lead != 0 {
        let (first, rest) = bytes.split_at(bytes.len().min(WORD - lead));
        merge(&words[index], lead, first);
        (index, bytes) = (index + 1, rest);
    }
    let (whole, tail) = bytes.as_chunks::<WORD>();
    let (words, after) = words[index..].split_at(whole.len());
    for (word, bytes) in words.iter().zip(whole) {
        word.set(u64::from_ne_bytes(*bytes));
    }
    if !tail.is_empty() {
        merge(&after[0], 0, tail);
    }
}

/// Puts `bytes` at byte `offset` of a word and leaves the rest of it.
fn merge(word: &Word, offset: usize, bytes: &[u8]) {
    let mut value = word.get().to_ne_bytes();
    value[offset..offset + bytes.len()].copy_from_slice(bytes);
    word.set(u64::from_ne_bytes(value));
}

/// Reads what is at byte `offset` of `words`. Panics if there is not as much.
#[inline]
pub(crate) fn load(words: &[Word], offset: usize, mut target: &mut [u8]) {
    let mut index = offset / WORD;
    let lead = offset % WORD;
    if lead != 0 {
        let (first, rest) = target.split_at_mut(target.len().min(WORD - lead));
        first.copy_from_slice(&words[index].get().to_ne_bytes()[lead..lead + first.len()]);
        (index, target) = (index + 1, rest);
    }
    let (whole, tail) = target.as_chunks_mut::<WORD>();
    let (words, after) = words[index..].split_at(whole.len());
    for (word, bytes) in words.iter().zip(whole) {
        *bytes = word.get().to_ne_bytes();
    }
    if !tail.is_empty() {
        let value = after[0].get().to_ne_bytes();
        let len = tail.len();
        tail.copy_from_slice(&value[..len]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length() {
        let words: [Word; 5] = Default::default();
        // An interpreter takes long.
        let step = if cfg!(miri) { 5 } else { 1 };
        for offset in (0..=40).step_by(step) {
            for len in (0..=40 - offset).step_by(step) {
                store(&words, 0, &[0xAA; 40]);
                let bytes: Vec<u8> = (0..len as u8).collect();
                store(&words, offset, &bytes);
                let mut back = vec![0; len];
                load(&words, offset, &mut back);
                assert_eq!(back, bytes);
                let mut all = [0; 40];
                load(&words, 0, &mut all);
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&byte| byte == 0xAA));
            }
        }
    }
}
