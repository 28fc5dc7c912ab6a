//! The token that names a peer's memory.

use super::try_resolve;
use std::fmt;
use std::ops::RangeBounds;

/// Bytes of a peer: address, length and key of a [`MemoryRegion`](crate::MemoryRegion) there, or of a part of
/// one.
///
/// The peer's engine checks every request against what it has registered, so a token that is wrong, or that
/// was made up, gives access to nothing. It travels as [`RemoteMemory::to_bytes`], for instance in the
/// private data of the connection or in a message.
///
/// ```
/// use adverb::{RemoteMemory, Rights};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// let region = domain.memory_region(4096, Rights::READ)?;
/// // The owner sends these bytes, and the peer makes the token of them.
/// let bytes = region.remote().to_bytes();
/// let token = RemoteMemory::from_bytes(&bytes).expect("20 bytes");
/// assert_eq!(token.len(), 4096);
/// // The third record of 64 bytes:
/// let record = token.slice(128..192).expect("the region has so much");
/// assert_eq!(record.address(), token.address() + 128);
/// assert!(token.slice(4000..5000).is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    address: u64,
    length: u64,
    key: u32,
}

impl RemoteMemory {
    /// Bytes of a token.
    ///
    /// ```
    /// use adverb::{RemoteMemory, Rights};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let region = domain.memory_region(64, Rights::READ)?;
    /// // A message of a token and a name:
    /// let message = [&region.remote().to_bytes()[..], b"the table"].concat();
    /// let (token, name) = message.split_at_checked(RemoteMemory::BYTES).expect("a peer may send less");
    /// assert_eq!((RemoteMemory::from_bytes(token), name), (Some(region.remote()), &b"the table"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub const BYTES: usize = 20;

    /// The `length` bytes that the peer calls `address`, under its key `key` (rkey, STag).
    ///
    /// ```
    /// use adverb::RemoteMemory;
    ///
    /// /// The token in a message of another program, such as rping: address, key and length, big-endian.
    /// fn token(message: &[u8; 16]) -> RemoteMemory {
    ///     let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    ///     RemoteMemory::new(number(&message[..8]), number(&message[12..]), number(&message[8..12]) as u32)
    /// }
    ///
    /// assert_eq!(token(&[0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 7, 0, 0, 0, 64]), RemoteMemory::new(4096, 64, 7));
    /// ```
    pub fn new(address: u64, length: u64, key: u32) -> Self {
        Self { address, length, key }
    }

    /// The peer's address of the first byte.
    ///
    /// ```
    /// use adverb::Rights;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let region = domain.memory_region(4096, Rights::ATOMIC)?;
    /// let token = region.remote();
    /// // An atomic needs an address that is a multiple of 8.
    /// let is_word = |offset: u64| (token.address() + offset).is_multiple_of(8);
    /// assert!(is_word(64) && !is_word(65));
    /// # Ok(())
    /// # }
    /// ```
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    ///
    /// ```
    /// use adverb::RemoteMemory;
    ///
    /// /// The tokens of the records of 64 bytes in memory that a peer offers.
    /// fn records(offered: &RemoteMemory) -> Vec<RemoteMemory> {
    ///     let places = (0..offered.len() as usize / 64).map(|number| number * 64);
    ///     places.filter_map(|place| offered.slice(place..place + 64)).collect()
    /// }
    ///
    /// assert_eq!(records(&RemoteMemory::new(4096, 200, 7)).len(), 3);
    /// ```
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    ///
    /// ```
    /// use adverb::RemoteMemory;
    ///
    /// /// The token in private data, if the peer has sent one. A transport may append zeros.
    /// fn offered(private_data: &[u8]) -> Option<RemoteMemory> {
    ///     RemoteMemory::from_bytes(private_data).filter(|token| !token.is_empty())
    /// }
    ///
    /// assert_eq!(offered(&[0; 56]), None);
    /// let token = RemoteMemory::new(4096, 64, 7);
    /// assert_eq!(offered(&token.to_bytes()), Some(token));
    /// ```
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The peer's key.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server, region, there) = ends_with_region(Rights::READ)?;
    /// # drop(there);
    /// // A server that lends a region to each client learns by the key that one comes back.
    /// let lent = region.remote();
    /// client.post_send(WorkRequest::send(b"done").invalidate(&lent))?;
    /// let message = server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(message.invalidated, Some(lent.key()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> u32 {
        self.key
    }

    /// A part of the memory; none if the range passes the end, as it may where the token came from a peer. A
    /// request that goes through the part is bounded by it.
    ///
    /// ```
    /// use adverb::{PostError, Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE)?;
    /// // The client's own part of a table. A record that is too long does not reach the next part.
    /// let part = there.slice(64..80).expect("the table has so much");
    /// let refused = client.post_send(WorkRequest::write(b"far too long for it", &part)).unwrap_err();
    /// assert_eq!(refused.reason, PostError::PastToken);
    /// assert!(there.slice(4090..4100).is_none(), "it passes the end of the table");
    /// # Ok(())
    /// # }
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let (start, length) = try_resolve(range, usize::try_from(self.length).unwrap_or(usize::MAX))?;
        Some(Self { address: self.address.wrapping_add(start as u64), length: length as u64, key: self.key })
    }

    /// The token as bytes: address, length and key, big-endian.
    ///
    /// ```
    /// use adverb::{RemoteMemory, Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let region = client.domain().memory_region(4096, Rights::READ)?;
    /// client.post_send(WorkRequest::send(&region.remote().to_bytes()))?;
    /// // The peer knows from now on where it may read.
    /// let message = server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(RemoteMemory::from_bytes(message.message()), Some(region.remote()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// The token that begins `bytes`; none if there are too few.
    ///
    /// Some transports append zeros to private data. There, a peer that sent none seems to have sent a token
    /// of no bytes: [`RemoteMemory::slice`] then returns none.
    ///
    /// ```
    /// use adverb::RemoteMemory;
    ///
    /// let token = RemoteMemory::new(4096, 64, 7);
    /// // Private data, with the zeros of the transport behind the token:
    /// let mut data = token.to_bytes().to_vec();
    /// data.resize(56, 0);
    /// assert_eq!(RemoteMemory::from_bytes(&data), Some(token));
    /// // A peer that has sent too little:
    /// assert_eq!(RemoteMemory::from_bytes(b"hello"), None);
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (key, _) = rest.split_first_chunk()?;
        Some(Self {
            address: u64::from_be_bytes(*address),
            length: u64::from_be_bytes(*length),
            key: u32::from_be_bytes(*key),
        })
    }
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteMemory({} bytes at {:#x}, key {:#x})", self.length, self.address, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_journey() {
        let token = RemoteMemory::new(0x1234_5678_9abc_def0, 4096, 0xfeed_f00d);
        let bytes = token.to_bytes();
        assert_eq!(RemoteMemory::from_bytes(&bytes), Some(token));
        assert_eq!(RemoteMemory::from_bytes(&bytes[..19]), None);
        assert_eq!(token.slice(16..), Some(RemoteMemory::new(0x1234_5678_9abc_df00, 4080, 0xfeed_f00d)));
        assert_eq!(token.slice(16..24).unwrap().len(), 8);
        assert_eq!(token.slice(4096..).unwrap().len(), 0);
    }

    #[test]
    fn a_part_past_the_end_is_none() {
        let token = RemoteMemory::new(u64::MAX, 4096, 1);
        let backwards = std::ops::Range { start: 2, end: 1 };
        for range in [0..4097, 4097..4097, 4096..4097, backwards, usize::MAX..usize::MAX] {
            assert_eq!(token.slice(range), None);
        }
        assert_eq!(token.slice(..=usize::MAX), None);
        assert_eq!(RemoteMemory::new(0, u64::MAX, 1).slice(..=usize::MAX), None);
        assert_eq!(RemoteMemory::new(0, 0, 1).slice(..8), None);
    }
}
