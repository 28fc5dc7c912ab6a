//! Polled completions: which requests they free, and whether the bytes of those are as they were.

use super::explain::{explain, last_retry, peer};
use super::finding::Kind;
use super::flight::Request;
use super::memory;
use super::objects::Objects;
use super::report::Finding;
use super::roles::Thing;
use super::spare::{self, Spare};
use super::work::operation;
use super::{Check, State};
use adverb_core::cancel::CancellationGuard;
use adverb_core::device::Context;
use adverb_core::memory::{Access, Keys};
use adverb_core::qp::State as PairState;
use adverb_libibverbs::abi::{IBV_WC_SUCCESS, ibv_cq, ibv_qp};
use adverb_libibverbs::cq::QueueObject;
use adverb_libibverbs::qp::by_number;
use adverb_libibverbs::seam::PolledCompletion;
use std::ops::Range;

/// A completion, and which of the requests in a list it has freed.
struct CompletionEffect {
    completed: PolledCompletion,
    requests: Range<usize>,
    /// The protection domain of its queue pair, if that is known.
    domain: Option<u32>,
}

thread_local! {
    static FREED: Spare<CompletionEffect> = const { Spare::new() };
    static REQUESTS: Spare<Request> = const { Spare::new() };
}

impl Check {
    /// Completions of a queue were handed out. `is_injected`: `--fault` has changed one of them, so their
    /// errors are no mistakes of the program.
    ///
    /// # Safety
    /// The queue lives.
    pub(super) unsafe fn polled(
        &self,
        queue: usize,
        completed: &[PolledCompletion],
        is_injected: bool,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { QueueObject::get(queue as *mut ibv_cq) }) else { return };
        let context = object.inner.core.context();
        let most = (object.inner.core.waiting() as usize).max(completed.len());
        let (mut all, mut requests) = (spare::take(&FREED), spare::take(&REQUESTS));
        let overrun = self.with(|state| {
            for completed in completed {
                let first = requests.len();
                let domain = if completed.is_receive() {
                    requests.extend(state.flight.complete_receive(completed.queue_pair, completed.wr_id));
                    None
                } else {
                    state.complete_send(completed, &mut requests)
                };
                all.push(CompletionEffect { completed: *completed, requests: first..requests.len(), domain });
            }
            (most > LEAST_ENTRIES).then(|| state.overrun(queue, most)).flatten()
        });
        for CompletionEffect { completed, requests: range, domain } in all.drain(..) {
            let requests = &requests[range];
            if completed.status != IBV_WC_SUCCESS {
                if !is_injected {
                    findings.extend(self.explain(context, &completed, requests.last()));
                }
            } else if let Some(domain) = domain {
                let whose = Whose { context, number: completed.queue_pair, domain };
                findings.extend(requests.iter().filter_map(|request| self.compare(request, &whose)));
            }
        }
        findings.extend(overrun);
        spare::keep(&FREED, all);
        spare::keep(&REQUESTS, requests);
    }

    /// The findings about a completion with an error, but for those that were told already.
    fn explain(
        &self,
        context: &Context,
        completed: &PolledCompletion,
        request: Option<&Request>,
    ) -> impl Iterator<Item = Finding> {
        // What was told of it may have to be waited for, by a call at which threads are cancelled.
        let _whole = CancellationGuard::new();
        let explained = || explain(completed, request, &*by_number(context, completed.queue_pair)?);
        let findings = [last_retry(completed, request), explained()];
        // The last retry was told already.
        let is_told = |finding: &Finding| {
            finding.kind == Kind::RetriesRunOut
                && self.with(|state| state.found.has(finding.kind, finding.object))
        };
        findings.map(|finding| finding.filter(|finding| !is_told(finding))).into_iter().flatten()
    }

    /// Whether the bytes of a request are as they were when it was posted.
    fn compare(&self, request: &Request, whose: &Whose) -> Option<Finding> {
        let before = request.checksum?;
        let what = || {
            let Request { posted, .. } = request;
            let (number, operation) = (whose.number, operation(posted.opcode));
            format!(
                "request {:#x} of queue pair {number:#x}, {operation} of {} bytes",
                posted.wr_id, posted.length
            )
        };
        let about = |kind, lkey: u32, text| {
            Finding::new(kind, lkey.into(), text)
                .pair(whose.number)
                .request(request.posted.wr_id)
                .at("posted at", request.site)
        };
        let (address, lkey) =
            request.elements.first().map_or((0, 0), |element| (element.address, element.lkey));
        match memory::checksum(whose.keys(), whose.domain, &request.elements) {
            Err(element) => {
                let text = format!(
                    "{}: {} bytes at {:#x} of the region with lkey {:#x} were unmapped before the completion was polled",
                    what(),
                    element.length,
                    element.address,
                    element.lkey
                );
                Some(about(Kind::BufferFreed, element.lkey, text))
            }
            Ok(Some(now)) if now != before && !self.others_may_write(request, whose) => {
                let text = format!(
                    "{}: its bytes at {address:#x} have changed since it was posted, before its completion was polled",
                    what()
                );
                Some(about(Kind::BufferChanged, lkey, text))
            }
            Ok(_) => None,
        }
    }

    /// Whether somebody else than the program may have changed the bytes of a request: a peer, or a receive
    /// or Read that has brought bytes.
    fn others_may_write(&self, request: &Request, whose: &Whose) -> bool {
        let places = memory::places_to_read(whose.keys(), whose.domain, &request.elements);
        let (arrived, may_be_written, pairs) = self.with(|state| {
            let changed = |(start, end): &(u64, u64)| {
                state.flight.arrivals.may_have_changed(*start, *end, request.serial)
            };
            // The same bytes may be of several regions, also of other domains, and behind memory windows.
            let may_be_written = state.regions.values().any(|region| {
                let is_its = |(start, end): &(u64, u64)| *start < region.end && region.start < *end;
                region.lets_peers_write && places.iter().any(is_its)
            });
            (places.iter().any(changed), may_be_written, state.objects.pairs())
        });
        if arrived || !may_be_written {
            return arrived;
        }
        // A peer needs a queue pair that lets it in. The posts of peers in this process are known.
        let write = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
        pairs.into_iter().any(|number| {
            by_number(whose.context, number).is_some_and(|pair| {
                let lets_in = pair.attributes().access & write != 0;
                lets_in && pair.state() > PairState::Init && peer(&pair).is_none()
            })
        })
    }
}

/// The queue pair that a request was posted to.
struct Whose<'a> {
    context: &'a Context,
    number: u32,
    domain: u32,
}

impl Whose<'_> {
    fn keys(&self) -> &'static Keys {
        &self.context.engine().keys
    }
}

/// Lets a completion queue say the room that was asked for: a program may rely on the room that it reads
/// there (`cqe`), and the engine's is larger.
///
/// # Safety
/// It lives.
pub(super) unsafe fn say_room(queue: usize, asked: u32) {
    // SAFETY: the caller's promise; a field of a live structure, before the call returns to the program.
    unsafe {
        if let Some(object) = QueueObject::get(queue as *mut ibv_cq) {
            (*object.c()).cqe = asked as i32;
        }
    }
}

/// Every adapter has room for so many completions.
const LEAST_ENTRIES: usize = 4;

impl State {
    /// What is wrong if a completion queue has held so many completions at a time.
    pub(super) fn overrun(&self, queue: usize, most: usize) -> Option<Finding> {
        let entries = self.queues.get(&queue)?.asked? as usize;
        if most <= entries.max(LEAST_ENTRIES) {
            return None;
        }
        let object = self.objects.get(queue)?;
        if self.found.has(Kind::CompletionQueueOverrun, object.serial) {
            return None;
        }
        let text = format!(
            "{} has held {most} completions at a time, and an adapter has room for {entries}",
            object.name
        );
        Some(Finding::of_object(Kind::CompletionQueueOverrun, object, text).at("made at", object.made))
    }

    /// The completion of a send was polled. The requests that it frees go to the end of `freed`. The
    /// protection domain of its queue pair, if that is known.
    fn complete_send(&mut self, completed: &PolledCompletion, freed: &mut Vec<Request>) -> Option<u32> {
        let is_error = completed.status != IBV_WC_SUCCESS;
        let (_, pair) = self.flight.by_number(completed.queue_pair)?;
        let (first, domain) = (freed.len(), pair.domain);
        pair.sends.complete_send(completed.wr_id, is_error, freed);
        self.waits.has_progress(completed.queue_pair);
        let now = self.flight.now();
        for request in &freed[first..] {
            self.flight.arrivals.remove(request.serial, &request.arrives, false, now);
        }
        Some(domain)
    }
}

impl Objects {
    /// The numbers of all queue pairs.
    fn pairs(&self) -> Vec<u32> {
        let pairs = self.all(Thing::QueuePair);
        // SAFETY: live objects; or they are just being destroyed, and the memory of objects stays for a
        // while.
        pairs.map(|pointer| unsafe { (&raw const (*(pointer as *const ibv_qp)).qp_num).read() }).collect()
    }
}
