//! What the fuzz target feeds, and a test of every run with random bytes: a ring, of which a program can
//! write each word.

use crate::ring::read::Rings;
use crate::ring::{layout, record};
use crate::setting::Format;

/// A ring of one chunk that is read and written in every format. The first byte tells what else is in the
/// file, the next 64 what it says of the process that has written it. Then there are records: kind, call,
/// flags and the number of words in a byte each, and these words. All that is written is bounded. Each line
/// is one of its format, whatever the program has put into the ring: `is_object` says whether a text is an
/// object of JSON.
pub fn ring(bytes: &[u8], is_object: impl Fn(&str) -> bool) {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let (process, mut rest) = rest.split_at(rest.len().min(64));
    let head = layout::Head { chunks: 1 };
    let mut file = vec![0; head.length()];
    file[..layout::HEAD].copy_from_slice(&head.bytes());
    if how & 1 != 0 {
        file[layout::LOST_AT..layout::LOST_AT + 8].fill(0xff);
    }
    let (list, chunk) = (layout::HEAD, layout::chunk_at(0));
    file[list..list + process.len()].copy_from_slice(process);
    // The process of the records, and an entry that is whole.
    file[list..list + 8].copy_from_slice(&1u64.to_ne_bytes());
    file[list + 504..list + 512].copy_from_slice(&1u64.to_ne_bytes());
    let mut records = Vec::new();
    while let [kind, call, flags, words, behind @ ..] = rest {
        let (said, left) = behind.split_at((usize::from(*words) * 8).min(behind.len()));
        let index = record::index_for(*kind, *call);
        // The length is wrong now and then.
        let length = 8 + said.len().next_multiple_of(8) + if *flags == 0xff { 8 } else { 0 };
        let first = u64::from(*kind) | (index as u64) << 8 | u64::from(*flags) << 24 | (length as u64) << 32;
        records.extend_from_slice(&first.to_ne_bytes());
        records.extend_from_slice(said);
        records.resize(records.len().next_multiple_of(8), 0);
        rest = left;
    }
    records.truncate(layout::CHUNK - layout::CHUNK_HEAD);
    let at = chunk + layout::CHUNK_HEAD;
    file[at..at + records.len()].copy_from_slice(&records);
    let used = (layout::CHUNK_HEAD + records.len()) as u64;
    for (at, value) in [(0, layout::OWNED << 2), (layout::USED_AT, used), (layout::OWNER_AT, 1 << 32 | 1)] {
        file[chunk + at..chunk + at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    let rings = Rings::read(file).expect("a whole file");
    for format in [Format::Text, Format::Chrome, Format::Json] {
        let mut all = 0;
        let Ok(()) = rings.write(format, |lines| -> Result<(), std::convert::Infallible> {
            all += lines.len();
            let lines = std::str::from_utf8(lines).expect("UTF-8");
            assert!(lines.is_empty() || lines.ends_with('\n'), "{lines:?}");
            for line in lines.lines() {
                assert!(!line.contains(char::is_control), "{line:?}");
                let object = match format {
                    Format::Chrome => line.strip_suffix(',').expect("a part of a list"),
                    _ => line,
                };
                assert!(format == Format::Text || is_object(object), "{line}");
            }
            Ok(())
        });
        // A record is a few lines, and the name of the process is in some of them.
        assert!(all <= (1 << 14) + bytes.len() * 400, "{all} bytes of {}", bytes.len());
    }
    assert!(rings.missing() >= u64::from(how & 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::random;

    fn is_object(text: &str) -> bool {
        matches!(serde_json::from_str(text), Ok(serde_json::Value::Object(_)))
    }

    /// A call whose arguments and result are tokens of any kind.
    fn call_with_tokens() -> Vec<u8> {
        let tokens: Vec<u8> = (0..64)
            .map(|_| match random::word() % 3 {
                0 => 0,
                _ => b"{}[]kiwsnugx\x01\n\""[random::word() as usize % 15],
            })
            .collect();
        let of_arguments = random::word() % 65;
        let (none, lengths) = (0, of_arguments | (64 - of_arguments) << 32);
        let words = [1, 2, random::word() % 2, 0, 1, 0, none, 0, 0, none, lengths];
        let head = [1, random::word() as u8, 0, words.len() as u8 + 8];
        head.into_iter().chain(words.into_iter().flat_map(u64::to_ne_bytes)).chain(tokens).collect()
    }

    #[test]
    fn garbage_in_a_ring_does_no_harm() {
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..65).map(|_| random::word() as u8).collect();
            if random::word().is_multiple_of(4) {
                bytes.extend(call_with_tokens());
            }
            for _ in 0..random::word() % 4 {
                let words = random::word() % 12;
                bytes.extend([
                    random::word() as u8 % 9,
                    random::word() as u8,
                    random::word() as u8 & 1,
                    words as u8,
                ]);
                // Most words are small.
                bytes
                    .extend((0..words).flat_map(|_| (random::word() >> (random::word() % 64)).to_ne_bytes()));
            }
            ring(&bytes, is_object);
        }
    }
}
