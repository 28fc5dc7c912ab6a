//! Requests that are in flight when the program ends.

use super::finding::Kind;
use super::flight::{Flight, Pair, Request};
use super::lock::Inside;
use super::report::Finding;
use super::work::operation;
use super::{Check, State};
use adverb_core::qp::State as PairState;
use adverb_libibverbs::abi::ibv_qp;
use adverb_libibverbs::qp::PairObject;

impl Check {
    /// The program begins to end: what is in flight now, before the engine ends its connections.
    pub(super) fn note_flight(&self) {
        let Some(_inside) = Inside::enter() else { return };
        let cores = self.with(State::sending);
        for (pointer, core) in cores {
            if core.state() != PairState::Rts {
                continue;
            }
            let (posted, done) = core.queues().send.progress();
            let left = usize::try_from(posted.saturating_sub(done)).unwrap_or(0);
            self.with(|state| {
                if let Some(pair) = state.flight.pairs.get_mut(&pointer) {
                    pair.left = Some(left);
                }
            });
        }
    }
}

impl State {
    /// The queue pairs with requests of which no completion was polled.
    fn sending(&mut self) -> Vec<(usize, std::sync::Arc<adverb_core::qp::QueuePair>)> {
        let pairs = self.flight.pairs.iter().filter(|(_, pair)| pair.sends.len() > 0);
        let core = |pointer: usize| {
            self.objects.get(pointer).filter(|object| !object.ending)?;
            // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
            let pair = unsafe { PairObject::get(pointer as *mut ibv_qp) }?;
            Some((pointer, pair.inner.core.clone()))
        };
        pairs.filter_map(|(pointer, _)| core(*pointer)).collect()
    }
}

impl Flight {
    /// What is in flight at the end: of queue pairs that worked when the program began to end, and that it
    /// has not destroyed since.
    pub(super) fn left(&self) -> Vec<Finding> {
        let mut findings: Vec<_> = self.pairs.values().filter_map(Pair::left_at_exit).collect();
        findings.sort_by_key(|finding| finding.object);
        findings
    }
}

impl Pair {
    fn left_at_exit(&self) -> Option<Finding> {
        let left = self.left.filter(|_| self.sends.is_certain())?;
        let all = self.sends.len();
        let is_under_way = left > 0 && left <= all;
        let first = if is_under_way {
            self.sends.iter().nth(all - left)?
        } else {
            self.sends.iter().find(|request| request.posted.is_reported)?
        };
        let Request { posted, elements, site, .. } = first;
        let bytes =
            elements.first().map_or_else(String::new, |element| format!(" at {:#x}", element.address));
        let what = format!(
            "request {:#x} of queue pair {:#x}, {} of {} bytes{bytes},",
            posted.wr_id,
            self.number,
            operation(posted.opcode),
            posted.length
        );
        let text = match (is_under_way, left) {
            (true, 1) => format!("{what} is under way when the program ends: it may never arrive"),
            (true, count) => {
                format!(
                    "{what} and {} behind it are under way when the program ends: they may never arrive",
                    count - 1
                )
            }
            _ => format!("{what} is signalled, and the program ends without a poll of its completion"),
        };
        Some(
            Finding::of_pair(Kind::InFlightAtExit, self.number, text)
                .request(posted.wr_id)
                .at("posted at", *site),
        )
    }
}
