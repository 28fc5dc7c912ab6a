//! The bytes of requests: whether they are there, what they are, and where others arrive. They are read as the engine reads them, through their keys.

use super::flight::Checksum;
use adverb_core::memory::{Access, Keys};
use adverb_core::request::Sge;

/// Of longer elements only the beginning and the end are looked at.
const MOST: usize = 1 << 20;
const PART: usize = 64 << 10;
const BLOCK: usize = 16 << 10;

/// A checksum of the bytes of a request; none if a key does not open them.
///
/// # Errors
/// The element whose pages are not there.
pub(super) fn checksum(keys: &Keys, domain: u32, elements: &[Sge]) -> Result<Option<u64>, Sge> {
    let mut sum = Checksum::new();
    let mut small = [0; 256];
    let mut large = Vec::new();
    for element in elements.iter().filter(|element| element.length > 0) {
        let Sge { address, length, lkey } = *element;
        let Ok(span) = keys.open_span(lkey, address, length.into(), Access::empty(), domain) else {
            return Ok(None);
        };
        let length = span.len();
        let parts = if length > MOST { [0..PART, length - PART..length] } else { [0..length, 0..0] };
        for part in parts {
            let mut place = part.start;
            while place < part.end {
                let left = part.end - place;
                let block = if left <= small.len() {
                    &mut small[..left]
                } else {
                    large.resize(BLOCK, 0);
                    let count = left.min(BLOCK);
                    &mut large[..count]
                };
                span.read(place, block).map_err(|_| *element)?;
                sum.add(block);
                place += block.len();
            }
        }
    }
    Ok(Some(sum.value()))
}

/// Where the bytes that arrive for these elements lie in the process.
pub(super) fn places(keys: &Keys, domain: u32, elements: &[Sge]) -> Vec<(u64, u64)> {
    places_for(Access::LOCAL_WRITE, keys, domain, elements)
}

/// Where the bytes that leave from these elements lie in the process.
pub(super) fn places_to_read(keys: &Keys, domain: u32, elements: &[Sge]) -> Vec<(u64, u64)> {
    places_for(Access::empty(), keys, domain, elements)
}

fn places_for(rights: Access, keys: &Keys, domain: u32, elements: &[Sge]) -> Vec<(u64, u64)> {
    let open = |element: &Sge| {
        let Sge { address, length, lkey } = *element;
        let span = keys.open_span(lkey, address, length.into(), rights, domain).ok()?;
        let start = span.address() as u64;
        Some((start, start + u64::from(length)))
    };
    elements.iter().filter(|element| element.length > 0).filter_map(open).collect()
}
