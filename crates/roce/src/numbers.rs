//! Queue pair numbers. A number says which process of the network namespace owns it: its upper half names a *block*, which a process claims
//! by listening on an abstract Unix socket of that name; the lower half is random. A number that was given back rests until many more
//! have been, so that late packets find nobody.

use crate::seqpacket::{Listener, name};
use adverb_core::error::{Error, Result};
use adverb_core::random;
use std::collections::{HashSet, VecDeque};
use std::os::fd::RawFd;

/// Bits of a number that count within a block.
const BITS: u32 = 12;
/// Numbers of a block that are given out before another one is claimed: random ones stay easy to find.
const MOST: usize = (1 << BITS) * 3 / 4;
/// Numbers that rest, for each block.
const RESTING: usize = 512;
/// Blocks: 0 has the special numbers 0 and 1, and the last one that of multicast, so neither is claimed.
const BLOCKS: u64 = 1 << (24 - BITS);

/// The block of a queue pair number.
pub(crate) fn block_of(number: u32) -> u16 {
    (number >> BITS) as u16 & (BLOCKS - 1) as u16
}

/// The name of a block's socket.
pub(crate) fn block_name(block: u16) -> Vec<u8> {
    name(&format!("block/{block:03x}"))
}

/// The blocks that this process owns, and the numbers in use.
#[derive(Default)]
pub(crate) struct Numbers {
    blocks: Vec<(u16, Listener)>,
    /// Those that are not to be given out: in use, or resting.
    taken: HashSet<u32>,
    /// Those that were given back last, the oldest first.
    resting: VecDeque<u32>,
}

impl Numbers {
    /// This process's first block, if it has one.
    pub(crate) fn first_block(&self) -> Option<u16> {
        self.blocks.first().map(|(block, _)| *block)
    }

    /// Whether this process owns a block.
    pub(crate) fn owns(&self, block: u16) -> bool {
        self.blocks.iter().any(|(own, _)| *own == block)
    }

    /// Claims one more block. Returns it and the socket that listens for it.
    ///
    /// # Errors
    /// EMFILE; ENOMEM when other processes have them all.
    pub(crate) fn claim(&mut self) -> Result<(u16, RawFd)> {
        let first = random::word() % BLOCKS;
        for offset in 0..BLOCKS {
            let block = ((first + offset) % BLOCKS) as u16;
            // IB-QP-25, IB-PKT-51
            if block == 0 || u64::from(block) == BLOCKS - 1 || self.owns(block) {
                continue;
            }
            match Listener::bind(&block_name(block)) {
                Ok(listener) => {
                    let fd = listener.fd();
                    self.blocks.push((block, listener));
                    return Ok((block, fd));
                }
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(error) => {
                    return Err(Error::new(
                        error.raw_os_error().unwrap_or(libc::EIO),
                        format!("claiming queue pair numbers: {error}"),
                    ));
                }
            }
        }
        Err(Error::exhausted("other processes have all blocks of queue pair numbers"))
    }

    /// Whether another block is needed before a number is given out.
    pub(crate) fn is_crowded(&self) -> bool {
        self.count() >= self.blocks.len() * MOST
    }

    /// A random number that is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.is_crowded() {
            return None;
        }
        loop {
            // ROCE-41
            let random = random::word();
            let (block, _) = &self.blocks[(random >> 32) as usize % self.blocks.len()];
            let number = u32::from(*block) << BITS | random as u32 & ((1 << BITS) - 1);
            if self.taken.insert(number) {
                return Some(number);
            }
        }
    }

    /// A number is free again, after a rest.
    // IB-QP-26
    pub(crate) fn release(&mut self, number: u32) {
        self.resting.push_back(number);
        if self.resting.len() > self.blocks.len() * RESTING
            && let Some(oldest) = self.resting.pop_front()
        {
            self.taken.remove(&oldest);
        }
    }

    /// Numbers in use.
    pub(crate) fn count(&self) -> usize {
        self.taken.len() - self.resting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-QP-26
    #[test]
    fn numbers_rest() {
        let mut numbers = Numbers::default();
        numbers.claim().unwrap();
        let mut last = VecDeque::new();
        // Three times as many as there are.
        for _ in 0..3 << BITS {
            let number = numbers.take().unwrap();
            assert!(!last.contains(&number), "{number:#x} is back");
            numbers.release(number);
            last.push_back(number);
            if last.len() > RESTING {
                last.pop_front();
            }
        }
        assert_eq!((numbers.count(), numbers.taken.len()), (0, RESTING));
        // What rests takes no place away from those in use.
        assert!((0..MOST).all(|_| numbers.take().is_some()));
        assert!(numbers.is_crowded());
    }

    // IB-QP-25
    #[test]
    fn numbers_belong_to_claimed_blocks() {
        let mut numbers = Numbers::default();
        assert!(numbers.is_crowded());
        assert_eq!(numbers.take(), None);
        let (first, _) = numbers.claim().unwrap();
        let taken: HashSet<u32> = (0..MOST).map(|_| numbers.take().unwrap()).collect();
        assert_eq!(taken.len(), MOST);
        assert!(taken.iter().all(|number| block_of(*number) == first));
        assert!(numbers.is_crowded());
        let (second, _) = numbers.claim().unwrap();
        assert_ne!(first, second);
        assert!(numbers.owns(first) && numbers.owns(second));
        let other = Numbers::default();
        assert!(!other.owns(first));
        assert!(Listener::bind(&block_name(first)).is_err());
        numbers.release(*taken.iter().next().unwrap());
        assert_eq!(numbers.count(), MOST - 1);
    }
}
