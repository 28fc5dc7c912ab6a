//! What operations and connections cost in memory.

use super::allocator;
use super::session::{Session, text};
use super::target::{Order, idle_options};
use crate::pair::link::{PEER_TIMEOUT, Waiting};
use adverb::WorkRequest;

impl Session {
    /// Allocations of this process per message of 8 bytes, sent and returned.
    fn allocations(&mut self, rounds: usize) -> Result<f64, String> {
        self.target.order(&Order::ReturnSends(8, rounds))?;
        let before = allocator::calls();
        for _ in 0..rounds {
            self.link.run(WorkRequest::send(&[1; 8]))?;
            self.link.hear(Waiting::Polling, |_| Ok(()))?;
        }
        let calls = allocator::calls() - before;
        self.done()?;
        Ok(calls as f64 / rounds as f64)
    }

    /// The least of some times that: a table that grows once is not a cost per message.
    pub(super) fn least_allocations(&mut self) -> Result<f64, String> {
        (0..3).try_fold(f64::MAX, |least, _| Ok(self.allocations(5000)?.min(least)))
    }

    /// Bytes that this process allocates for an idle connection of 128 + 128 requests.
    pub(super) fn idle_memory(&mut self, count: usize) -> Result<f64, String> {
        let mut idle = Vec::with_capacity(2 * count);
        let mut before = 0;
        // The first half makes what is made once.
        for index in 0..2 * count {
            if index == count {
                before = allocator::bytes();
            }
            self.target.order(&Order::AcceptIdle)?;
            let queue_pair = self.link.domain().queue_pair(idle_options(&self.link)).map_err(text)?;
            idle.push(queue_pair.connect(self.address, &[], PEER_TIMEOUT).map_err(text)?);
            self.done()?;
        }
        let bytes = allocator::bytes() - before;
        self.target.order(&Order::DropIdle)?;
        drop(idle);
        self.done()?;
        Ok(bytes as f64 / count as f64)
    }
}
