//! Queue pair numbers. A number says which process of the network namespace owns it. Its upper half names
//! a *block*, which a process claims by listening on an abstract Unix socket of that name; its lower half is
//! random. A number that was given back rests until many more have been, so that late packets for it reach no
//! other queue pair.
//!
//! The first process to take a name in the abstract namespace has it, so one user can take them all. Then the
//! blocks of that user count as free for others. A process of another user takes one *beside* the first
//! owner. The name has the block's name and 64 random bits, so no process can take it in advance. A process
//! that looks for the owner of a block finds such names in the system's list of sockets, and goes by the user
//! at their end.

#[cfg(any(test, fuzzing))]
mod effect;
mod reading;

use crate::lock;
use crate::seqpacket::{Connection, Listener, Owner, name};
use crate::time;
use adverb_core::error::{Error, Result};
use adverb_core::random;
use reading::LastReading;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::time::Duration;

#[cfg(any(test, fuzzing))]
pub(crate) use effect::try_list;

/// Bits of a number that count within a block.
const BITS: u32 = 12;
/// Numbers of a block that are given out before another one is claimed, so that a random number is free after
/// a few tries.
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

/// Blocks that are looked at to see whether one user has most of them.
const SAMPLE: usize = 64;
/// Owners of one block that are looked at, beside the one with its name: more than a user has descriptors
/// for, in all blocks together.
const MOST_BESIDE: usize = 256;
/// The least age up to which the system's list counts as fresh, where nothing depends on it for long. It may
/// be more: any user can make the list long.
pub(crate) const FRESH: Duration = Duration::from_millis(20);

/// Names of sockets beside the blocks' own, by block, from the system's list of sockets (proc_net_unix(5)).
/// Any process can have taken such names, so no more than [`MOST_BESIDE`] of a block are returned.
fn listed(text: &[u8]) -> HashMap<u16, Vec<Vec<u8>>> {
    let prefix = block_name(0);
    let prefix = [b"@", &prefix[1..prefix.len() - 3]].concat();
    let mut found = HashMap::<u16, Vec<Vec<u8>>>::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(name) = line.rsplit(|byte| *byte == b' ').next().filter(|name| name.starts_with(&prefix))
        else {
            continue;
        };
        let Some((number, [b'/', ..])) = name[prefix.len()..].split_at_checked(3) else { continue };
        let number = std::str::from_utf8(number).ok().and_then(|digits| u16::from_str_radix(digits, 16).ok());
        // A number can be written in several ways, and a name in one.
        if let Some(number) = number.filter(|number| name[1..].starts_with(&block_name(*number)[1..])) {
            let names = found.entry(number).or_default();
            let name = [b"\0", &name[1..]].concat();
            if names.len() < MOST_BESIDE && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    found
}

/// The names of sockets whose processes have taken a block beside the one with its name. `fresh` is the most
/// age of the system's list, or more if that takes long to read. Zero: the list is read anew.
fn beside(block: u16, fresh: Duration) -> Vec<Vec<u8>> {
    static LIST: Mutex<LastReading<HashMap<u16, Vec<Vec<u8>>>>> = Mutex::new(LastReading::none());
    let read = || listed(&std::fs::read("/proc/net/unix").unwrap_or_default());
    lock(&LIST).get(fresh, time::now, read).get(&block).cloned().unwrap_or_default()
}

/// Connections to the owners of a block, our own user's first. There are several only if one user has taken
/// most blocks. `fresh` is the most age of the system's list, or more if that takes long to read. Zero: the
/// list is read anew.
///
/// # Errors
/// Those of connect(2) to the one with its name, if there is no other owner.
pub(crate) fn owners(block: u16, fresh: Duration) -> io::Result<Vec<Connection>> {
    let first = Connection::open(&block_name(block));
    if first.as_ref().is_ok_and(Connection::is_same_user) {
        return first.map(|first| vec![first]);
    }
    let mut all = beside_owners(block, fresh);
    match first {
        Ok(first) => all.push(first),
        Err(error) if all.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(all)
}

fn beside_owners(block: u16, fresh: Duration) -> Vec<Connection> {
    let mut all: Vec<Connection> = Vec::new();
    for connection in beside(block, fresh).iter().filter_map(|name| Connection::open(name).ok()) {
        // Not by a sort, which takes 4 KiB of the stack: a thread of the program comes here from a poll.
        let owner = connection.owner();
        let place = all.partition_point(|before| before.owner() <= owner);
        all.insert(place, connection);
    }
    all
}

/// The blocks that this process owns, and the numbers in use.
#[derive(Default)]
pub(crate) struct Numbers {
    blocks: Vec<(u16, Listener)>,
    /// Numbers that are not to be given out: in use, or resting.
    taken: HashSet<u32>,
    /// Numbers that were given back last, the oldest first.
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
            match Listener::bind_for_descriptors(&block_name(block)) {
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
        self.claim_beside()
            .ok_or_else(|| Error::exhausted("other processes have all blocks of queue pair numbers"))
    }

    /// Takes a block beside a user that has most of them.
    fn claim_beside(&mut self) -> Option<(u16, RawFd)> {
        let mut held: HashMap<Option<libc::uid_t>, Vec<u16>> = HashMap::new();
        for _ in 0..SAMPLE {
            let block = 1 + (random::word() % (BLOCKS - 2)) as u16;
            // A process that lets no connection in does not tell its user.
            let user = match Connection::open(&block_name(block)) {
                Ok(connection) if connection.owner() == Owner::Ourselves => continue,
                Ok(connection) => connection.user(),
                Err(_) => None,
            };
            held.entry(user).or_default().push(block);
        }
        let mut silent = held.remove(&None).unwrap_or_default();
        let (greedy, mut blocks) =
            held.into_iter().max_by_key(|(_, blocks)| blocks.len()).unwrap_or_default();
        blocks.append(&mut silent);
        if blocks.len() <= SAMPLE / 2 {
            return None;
        }
        // Further names that the greedy user has taken beside its own are as free as the rest.
        let is_his = |name: &Vec<u8>| Connection::open(name).map_or(true, |owner| owner.user() == greedy);
        // The choice of a block depends on the list, so it is read anew, once.
        let mut fresh = Duration::ZERO;
        let mut is_free = |block: u16| beside(block, std::mem::replace(&mut fresh, FRESH)).iter().all(is_his);
        let block = blocks.into_iter().find(|block| !self.owns(*block) && is_free(*block))?;
        let name = name(&format!("block/{block:03x}/{:016x}", random::word()));
        let listener = Listener::bind_for_descriptors(&name).ok()?;
        let fd = listener.fd();
        self.blocks.push((block, listener));
        Some((block, fd))
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
        // Numbers that rest take no place away from those in use.
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
