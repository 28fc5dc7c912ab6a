//! Bytes of the peer's reads that are taken before their responses are sent, since something behind them is
//! about to change them.

use adverb_proto::iwarp::ReadRequest;

/// The most bytes that are kept for one connection. Another adverb has no more bytes of reads under way when
/// it sends a request that may change them.
pub(crate) const MOST: u64 = 1 << 20;

/// Bytes of the peer's reads that were taken from memory early, since a later request is about to change that
/// memory.
// PRACTICE-ORDER-2
#[derive(Default)]
pub(crate) struct KeptReads(Vec<Read>);

struct Read {
    /// Number of the request.
    msn: u32,
    /// Where in the response the bytes begin.
    from: u32,
    bytes: Vec<u8>,
}

impl KeptReads {
    /// The bytes of a read from `offset` of its response on; none if they are not kept.
    pub(crate) fn find(&self, msn: u32, offset: u32, length: usize) -> Option<&[u8]> {
        let read = self.0.iter().find(|read| read.msn == msn)?;
        read.bytes.get(offset.checked_sub(read.from)? as usize..)?.get(..length)
    }

    /// Keeps the bytes of a read from `offset` on, which `copy` brings, unless they are kept already, or
    /// there are too many.
    pub(crate) fn take(
        &mut self,
        msn: u32,
        request: &ReadRequest,
        offset: u32,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) {
        let length = request.len.saturating_sub(offset) as usize;
        let known: usize = self.0.iter().map(|read| read.bytes.len()).sum();
        if length == 0 || (known + length) as u64 > MOST || self.0.iter().any(|read| read.msn == msn) {
            return;
        }
        let mut bytes = vec![0; length];
        // A read of memory that cannot be read is refused when its answer is to be sent.
        if copy(&mut bytes) {
            self.0.push(Read { msn, from: offset, bytes });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the reads that have been answered.
    pub(crate) fn retain(&mut self, is_left: impl Fn(u32) -> bool) {
        self.0.retain(|read| is_left(read.msn));
    }
}
