//! The bytes of requests: whether they are there, what they are, and where others arrive. They are read as
//! the engine reads them, through their keys.

use super::checksum::Checksum;
use super::few::Few;
use adverb_core::memory::{Access, Keys};
use adverb_core::request::Sge;
use std::cell::Cell;

/// The check looks at only the beginning and the end of longer elements.
const MOST: usize = 1 << 20;
const PART: usize = 64 << 10;
/// The bytes that are copied at a time, into the first cache of a processor.
const BLOCK: usize = 8 << 10;

thread_local! {
    /// A block of bytes: not on the stack, which may be the smallest.
    static BYTES: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// A checksum of the bytes of a request; none if a key does not open them.
///
/// # Errors
/// The element whose pages are not there.
pub(super) fn checksum(keys: &Keys, domain: u32, elements: &[Sge]) -> Result<Option<u64>, Sge> {
    let mut sum = Checksum::new();
    let mut small = [0; 256];
    let mut large = None;
    let mut add = |element: &Sge| -> Result<bool, Sge> {
        let Sge { address, length, lkey } = *element;
        let Ok(span) = keys.open_span(lkey, address, length.into(), Access::empty(), domain) else {
            return Ok(false);
        };
        let length = span.len();
        let parts = if length > MOST { [0..PART, length - PART..length] } else { [0..length, 0..0] };
        for part in parts {
            let mut place = part.start;
            while place < part.end {
                let left = part.end - place;
                let block = match small.get_mut(..left) {
                    Some(block) => block,
                    None => &mut large.get_or_insert_with(bytes)[..left.min(BLOCK)],
                };
                span.read(place, block).map_err(|_| *element)?;
                sum.add(block);
                place += block.len();
            }
        }
        Ok(true)
    };
    let all = elements
        .iter()
        .filter(|element| element.length > 0)
        .try_fold(true, |is_open, element| Ok(is_open && add(element)?));
    if large.is_some() {
        // A thread that ends keeps no memory.
        let _ = BYTES.try_with(|spare| spare.set(large));
    }
    all.map(|is_open| is_open.then(|| sum.value()))
}

/// The block of the calling thread.
fn bytes() -> Box<[u8]> {
    let kept = BYTES.try_with(Cell::take).ok().flatten();
    kept.unwrap_or_else(|| vec![0; BLOCK].into_boxed_slice())
}

/// Where the bytes that arrive for these elements lie in the process.
pub(super) fn places(keys: &Keys, domain: u32, elements: &[Sge]) -> Few<(u64, u64)> {
    places_for(Access::LOCAL_WRITE, keys, domain, elements)
}

/// Where the bytes that leave from these elements lie in the process.
pub(super) fn places_to_read(keys: &Keys, domain: u32, elements: &[Sge]) -> Few<(u64, u64)> {
    places_for(Access::empty(), keys, domain, elements)
}

fn places_for(rights: Access, keys: &Keys, domain: u32, elements: &[Sge]) -> Few<(u64, u64)> {
    let open = |element: &Sge| {
        let Sge { address, length, lkey } = *element;
        let span = keys.open_span(lkey, address, length.into(), rights, domain).ok()?;
        let start = span.address() as u64;
        Some((start, start + u64::from(length)))
    };
    elements.iter().filter(|element| element.length > 0).filter_map(open).collect()
}
