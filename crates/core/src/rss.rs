//! Receive side scaling: a raw packet queue pair that spreads its frames over work queues by a hash of their
//! headers (ibv_create_wq(3), ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3)). A work queue is a shared
//! receive queue with a completion queue of its own.

use crate::device::Context;
use crate::error::{Error, Result};
use crate::flow::Headers;
use crate::srq::SharedReceiveQueue;
use crate::users::DependentCount;
use bitflags::bitflags;
use std::sync::Arc;

/// Bytes of a hash key.
pub const KEY_LENGTH: usize = 40;
/// Most entries of a table.
pub const MOST_ENTRIES: usize = 128;

bitflags! {
    /// Which fields of a frame are hashed (`enum ibv_rx_hash_fields`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HashFields: u64 {
        /// Source of IPv4.
        const IPV4_SOURCE = 1;
        /// Destination of IPv4.
        const IPV4_DESTINATION = 1 << 1;
        /// Source of IPv6.
        const IPV6_SOURCE = 1 << 2;
        /// Destination of IPv6.
        const IPV6_DESTINATION = 1 << 3;
        /// Source port of TCP.
        const TCP_SOURCE = 1 << 4;
        /// Destination port of TCP.
        const TCP_DESTINATION = 1 << 5;
        /// Source port of UDP.
        const UDP_SOURCE = 1 << 6;
        /// Destination port of UDP.
        const UDP_DESTINATION = 1 << 7;
    }
}

/// How frames are hashed: the Toeplitz function, as adapters have it.
#[derive(Clone, Copy, Debug)]
pub struct Hash {
    /// The key.
    pub key: [u8; KEY_LENGTH],
    /// The fields that are hashed.
    pub fields: HashFields,
}

impl Hash {
    /// The hash of a frame; 0 if it has none of the fields.
    pub fn of(&self, headers: &Headers) -> u32 {
        let input = headers.hashed(self.fields);
        let word =
            |at: usize| u64::from_be_bytes(std::array::from_fn(|index| self.key[(at + index) % KEY_LENGTH]));
        let mut hash = 0;
        for (index, byte) in input.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte & 0x80 >> bit != 0) {
                hash ^= (word(index) << bit >> 32) as u32;
            }
        }
        hash
    }
}

/// The work queues that a hash chooses from (ibv_create_rwq_ind_table(3)).
pub struct IndirectionTable {
    queues: Vec<Arc<SharedReceiveQueue>>,
    users: DependentCount,
}

impl IndirectionTable {
    /// A table of these queues, of which one may stand at several places. Their number is a power of two.
    ///
    /// # Errors
    /// EINVAL for another number or more than [`MOST_ENTRIES`], and for queues of another context or no work
    /// queues.
    pub fn new(context: &Arc<Context>, queues: Vec<Arc<SharedReceiveQueue>>) -> Result<Arc<Self>> {
        let fit = |queue: &Arc<SharedReceiveQueue>| {
            Arc::ptr_eq(queue.context(), context) && queue.completion_queue().is_some()
        };
        if !queues.len().is_power_of_two() || queues.len() > MOST_ENTRIES || !queues.iter().all(fit) {
            return Err(Error::invalid(
                "an indirection table has 1 to 128 work queues of its context, a power of two",
            ));
        }
        queues.iter().for_each(|queue| queue.users().enter());
        Ok(Arc::new(Self { queues, users: DependentCount::new() }))
    }

    /// Queue pairs that use it.
    pub fn users(&self) -> &DependentCount {
        &self.users
    }

    /// The table's work queues.
    pub fn queues(&self) -> &[Arc<SharedReceiveQueue>] {
        &self.queues
    }

    /// The queue for a hash.
    pub(crate) fn choose(&self, hash: u32) -> &Arc<SharedReceiveQueue> {
        &self.queues[hash as usize & (self.queues.len() - 1)]
    }
}

impl Drop for IndirectionTable {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.users().leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and two of the results that the function's inventor published for verification.
    const KEY: [u8; KEY_LENGTH] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_hash_is_the_one_that_adapters_compute() {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([66, 9, 149, 187, 161, 142, 100, 80]);
        frame.extend([2794u16.to_be_bytes(), 1766u16.to_be_bytes()].concat());
        let headers = Headers::of(&frame).unwrap();
        let addresses = HashFields::IPV4_SOURCE | HashFields::IPV4_DESTINATION;
        let ports = HashFields::TCP_SOURCE | HashFields::TCP_DESTINATION;
        assert_eq!(Hash { key: KEY, fields: addresses }.of(&headers), 0x323e_8fc2);
        assert_eq!(Hash { key: KEY, fields: addresses | ports }.of(&headers), 0x51cc_c178);
        assert_eq!(Hash { key: KEY, fields: HashFields::IPV6_SOURCE }.of(&headers), 0);
    }
}
