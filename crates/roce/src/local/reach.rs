//! Memory of another process, as far as that has told of it: its key table, and the regions that are published there, mapped.

use super::bell::Noted;
use super::channel::Channel;
use crate::lock;
use adverb_core::memory::moved::View;
use adverb_core::memory::{Access, key_number};
use adverb_local::{Foreign, Kind};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// What another process has told of its memory.
pub(crate) struct Reach {
    pub(super) table: Arc<Foreign>,
    // A child of fork is not to keep another process's memory.
    _noted: Noted,
    memory: OwnedFd,
    secret: [u32; 4],
    regions: Mutex<Regions>,
}

/// By key.
#[derive(Default)]
struct Regions {
    all: HashMap<u32, Arc<Region>>,
    /// When there are so many, those that are not published any more go.
    most: usize,
}

/// A region of another process, mapped.
pub(super) struct Region {
    table: Arc<Foreign>,
    pub(super) key: u32,
    pub(super) number: u32,
    pub(super) opened: [u64; 7],
    pub(super) view: View,
}

impl Region {
    /// Whether its key stands for it now.
    #[inline]
    pub(super) fn is_published(&self) -> bool {
        self.table.says(Kind::Key, self.number as usize, self.key, &self.opened)
    }

    /// The mapping, and the address of its first byte in the other process.
    pub(super) fn by_address(&self) -> (&View, u64) {
        (&self.view, self.opened[5])
    }
}

impl Regions {
    /// What is not published any more need not stay mapped.
    fn prune(&mut self) {
        self.all.retain(|_, region| region.is_published());
        self.most = (2 * self.all.len()).max(64);
    }
}

impl Reach {
    /// By these descriptors of the other process.
    pub(super) fn new(table: OwnedFd, memory: OwnedFd) -> io::Result<Self> {
        let table = Arc::new(Foreign::open(table)?);
        let secret = table.secrets().map(|word| word as u32);
        let _noted = Noted::of(memory.as_raw_fd());
        Ok(Self { table, _noted, memory, secret, regions: Mutex::default() })
    }

    /// The region with this key, mapped, if it is published.
    #[cold]
    pub(super) fn region(&self, key: u32) -> Option<Arc<Region>> {
        let number = key_number(self.secret, key);
        let opened = self.table.get(Kind::Key, number as usize, key)?;
        let mut regions = lock(&self.regions);
        if let Some(region) = regions.all.get(&key).filter(|region| region.opened == opened) {
            return Some(region.clone());
        }
        if regions.all.len() >= regions.most {
            regions.prune();
        }
        let [_, length, offset, access, ..] = opened;
        let rights = Access::from_bits_truncate(access as u32);
        let writable = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let length = usize::try_from(length).ok()?;
        let map = || View::map(self.memory.as_fd(), offset, length, writable);
        let view = map().or_else(|_| {
            regions.prune();
            map()
        });
        let (table, view) = (self.table.clone(), view.ok()?);
        let region = Arc::new(Region { table, key, number, opened, view });
        regions.all.insert(key, region.clone());
        Some(region)
    }

    /// Where a queue pair is published.
    #[cold]
    pub(super) fn pair(&self, number: u32) -> Option<(u32, [u64; 7])> {
        let index = self.table.find(number)?;
        Some((index as u32, self.table.get(Kind::Pair, index, number)?))
    }
}

/// Records that go by before a region is looked for again that could not be had.
const PAUSE: u32 = 64;

/// The region that records have spoken of last.
#[derive(Default)]
pub(super) struct Spoken {
    region: Option<Arc<Region>>,
    pause: u32,
}

impl Spoken {
    /// The region with a key that a record names.
    #[inline]
    pub(super) fn find(&mut self, channel: &Channel, key: u32) -> Option<Arc<Region>> {
        if let Some(region) = self.region.as_ref().filter(|region| region.key == key && region.is_published())
        {
            return Some(region.clone());
        }
        self.look_for(channel, key)
    }

    #[cold]
    fn look_for(&mut self, channel: &Channel, key: u32) -> Option<Arc<Region>> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        self.region = channel.reach().and_then(|reach| reach.region(key));
        if self.region.is_none() {
            self.pause = PAUSE;
        }
        self.region.clone()
    }

    /// The other process has gone.
    pub(super) fn forget(&mut self) {
        self.region = None;
    }
}
