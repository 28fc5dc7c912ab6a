//! Posts: the requests that a program hands to a queue, and what is wrong with them.

use super::explain::peer;
use super::few::Few;
use super::finding::Kind;
use super::flight::{Flight, Pair, Request};
use super::memory;
use super::report::Finding;
use super::roles::Act;
use super::site::Site;
use super::spare::{self, Spare};
use crate::names;
use adverb_core::clock;
use adverb_core::memory::Keys;
use adverb_core::qp::{QueuePair, Service, State};
use adverb_core::request::{Opcode, Sge};
use adverb_core::srq::SharedReceiveQueue;
use adverb_libibverbs::abi::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WQS_RESET, IBV_WR_BIND_MW, IBV_WR_RDMA_READ, ibv_mw_bind, ibv_qp,
    ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wq,
};
use adverb_libibverbs::qp::PairObject;
use adverb_libibverbs::seam::{self, Arguments, PostedRequest, Role};
use adverb_libibverbs::srq::SharedObject;
use adverb_libibverbs::wq::WorkQueueObject;
use std::ops::Range;
use std::sync::Arc;

/// The queue that requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Sends(usize),
    Receives(usize),
    /// A shared receive queue or a work queue.
    Shared(usize),
}

/// Requests of a call, before it is made.
pub(super) struct PostedRequests<'a> {
    target: Target,
    requests: Vec<Request>,
    /// The queue pair.
    core: Option<&'a QueuePair>,
    /// The peer of the queue pair is of this process.
    has_peer_here: Option<bool>,
    is_broken: bool,
    /// Bytes that are not there: of which request.
    gone: Option<(u64, Sge)>,
}

thread_local! {
    static REQUESTS: Spare<Request> = const { Spare::new() };
}

/// What is kept of a call that posts until it has ended.
pub(super) struct Posting {
    target: Target,
    serials: Range<u64>,
    /// The send queue has more requests than slots.
    over: Option<Over>,
}

struct Over {
    requests: usize,
    slots: usize,
    last: u64,
    /// None of those in the slots will ever be reported.
    is_for_ever: bool,
}

/// A receive of a datagram begins with so much room for a header. perftest and others let it reach into the
/// receive before.
const HEADER: u64 = 40;

/// What becomes of the bytes of a request.
enum Bytes {
    Sent,
    Arriving,
    Other,
}

fn bytes(opcode: u32) -> Bytes {
    use Opcode::{
        CompareSwap, FetchAdd, Read, Send, SendWithImmediate, SendWithInvalidate, Write, WriteWithImmediate,
    };
    match Opcode::from_number(opcode) {
        Some(Send | SendWithImmediate | SendWithInvalidate | Write | WriteWithImmediate) => Bytes::Sent,
        Some(Read | CompareSwap | FetchAdd) => Bytes::Arriving,
        _ => Bytes::Other,
    }
}

/// A queue as sentences name it.
fn pair_name(number: u32) -> String {
    format!("queue pair {number:#x}")
}

/// The operation of a request of a send queue, as in the header.
pub(super) fn operation(opcode: u32) -> &'static str {
    names::of(names::WR_OPCODE, opcode.into()).unwrap_or("no operation")
}

/// What is kept of a queue pair.
///
/// # Safety
/// `pair` is that queue pair.
pub(super) unsafe fn new_pair(core: &QueuePair, pair: *const ibv_qp) -> Pair {
    // SAFETY: the caller's promise.
    let (shared, completes_on) = unsafe {
        let [sends, receives] = [(&raw const (*pair).send_cq).read(), (&raw const (*pair).recv_cq).read()];
        ((&raw const (*pair).srq).read() as usize, [sends as usize, receives as usize])
    };
    let slots = core.capabilities().max_send_wr as usize;
    let service = core.queues().service;
    let (is_datagram, is_extended) = (service == Service::Ud, service == Service::XrcReceive);
    let (number, domain) = (core.number(), core.queues().domain);
    Pair { number, domain, is_datagram, is_extended, slots, shared, completes_on, ..Pair::default() }
}

/// Looks at the requests that a call is about to post. `has_peer_here`: whether the peer is of this process,
/// if that is known.
///
/// # Safety
/// The arguments are right for the call.
pub(super) unsafe fn gather<'a>(
    act: Act,
    arguments: &Arguments,
    site: Site,
    mut has_peer_here: Option<bool>,
) -> Option<PostedRequests<'a>> {
    let mut requests = spare::take(&REQUESTS);
    let mut gone = None;
    let when = clock::device();
    let request = |posted: &PostedRequest, elements: &[Sge]| Request {
        serial: 0,
        posted: *posted,
        elements: elements.iter().copied().collect(),
        arrives: Few::default(),
        checksum: None,
        site,
        when,
    };
    // SAFETY: the caller's promise, in all that follows.
    unsafe {
        if matches!(act, Act::PostSharedReceives | Act::PostWorkReceives) {
            let core = shared(act, arguments[0])?;
            let (keys, domain) = (&core.context().engine().keys, core.domain().number());
            seam::receives(arguments[1] as *const ibv_recv_wr, |posted, elements| {
                let mut request = request(posted, elements);
                request.arrives = memory::places(keys, domain, elements);
                requests.push(request);
            });
            let target = Target::Shared(arguments[0]);
            return Some(PostedRequests {
                target,
                requests,
                core: None,
                has_peer_here,
                is_broken: false,
                gone: None,
            });
        }
        let pair = arguments[0] as *mut ibv_qp;
        let core: &QueuePair = &PairObject::get(pair)?.inner.core;
        let queues = core.queues();
        let (keys, domain): (&Keys, u32) = (&queues.engine.keys, queues.domain);
        let is_broken = core.state() == State::Error;
        let mut send = |posted: &PostedRequest, elements: &[Sge]| {
            let mut request = request(posted, elements);
            match bytes(posted.opcode) {
                Bytes::Sent if posted.flags & IBV_SEND_INLINE == 0 && !is_broken => {
                    match memory::checksum(keys, domain, elements) {
                        Ok(sum) => request.checksum = sum,
                        Err(element) => {
                            gone.get_or_insert((posted.wr_id, element));
                        }
                    }
                }
                Bytes::Arriving => request.arrives = memory::places(keys, domain, elements),
                _ => {}
            }
            // The peer's memory may be of this process.
            let writes = posted.rkey != 0 && posted.length > 0 && posted.opcode != IBV_WR_RDMA_READ;
            if writes && *has_peer_here.get_or_insert_with(|| peer(core).is_some()) {
                let start = posted.remote_address;
                request.arrives.extend(start.checked_add(posted.length).map(|end| (start, end)));
            }
            requests.push(request);
        };
        let target = match act {
            Act::PostSends => {
                seam::sends(pair, arguments[1] as *const ibv_send_wr, &mut send);
                Target::Sends(arguments[0])
            }
            Act::PostBuilt => {
                seam::gathered(arguments[0] as *mut ibv_qp_ex, &mut send);
                Target::Sends(arguments[0])
            }
            Act::BindWindow => {
                if let Some(bind) = (arguments[2] as *const ibv_mw_bind).as_ref() {
                    send(&bound(bind, core.signal_all()), &[]);
                }
                Target::Sends(arguments[0])
            }
            _ => {
                seam::receives(arguments[1] as *const ibv_recv_wr, |posted, elements| {
                    let mut request = request(posted, elements);
                    request.arrives = memory::places(keys, domain, elements);
                    requests.push(request);
                });
                Target::Receives(arguments[0])
            }
        };
        Some(PostedRequests { target, requests, core: Some(core), has_peer_here, is_broken, gone })
    }
}

/// The request by which a window is bound.
fn bound(bind: &ibv_mw_bind, signals_all: bool) -> PostedRequest {
    PostedRequest {
        wr_id: bind.wr_id,
        role: Role::Send,
        opcode: IBV_WR_BIND_MW,
        flags: bind.send_flags,
        length: 0,
        remote_address: 0,
        rkey: 0,
        is_reported: signals_all || bind.send_flags & IBV_SEND_SIGNALED != 0,
    }
}

/// The shared receive queue or work queue that a call posts to.
///
/// # Safety
/// The call's first argument is such a queue.
unsafe fn shared(act: Act, pointer: usize) -> Option<Arc<SharedReceiveQueue>> {
    // SAFETY: the caller's promise.
    unsafe {
        match act {
            Act::PostWorkReceives => {
                WorkQueueObject::get(pointer as *mut ibv_wq).map(|object| object.inner.core.clone())
            }
            _ => SharedObject::get(pointer as *mut ibv_srq).map(|object| object.inner.core.clone()),
        }
    }
}

impl Flight {
    /// The requests of a call are about to be posted.
    pub(super) fn begin(&mut self, gathered: PostedRequests<'_>, findings: &mut Vec<Finding>) -> Posting {
        let PostedRequests { target, mut requests, core, has_peer_here, is_broken, gone } = gathered;
        let first = self.now() + 1;
        for request in &mut requests {
            request.serial = self.next_serial();
        }
        let (mut number, mut has_headers) = (0, false);
        if let (Target::Sends(pointer) | Target::Receives(pointer), Some(core)) = (target, core) {
            // SAFETY: the queue pair of the call.
            let pair = self.pair(pointer, || unsafe { new_pair(core, pointer as *const ibv_qp) });
            (number, has_headers) = (pair.number, pair.is_datagram);
            if let Some(is_here) = has_peer_here {
                self.found_peer(pointer, is_here);
            }
        }
        let is_receive = !matches!(target, Target::Sends(_));
        if let Some((wr_id, Sge { address, length, lkey })) = gone {
            let text = format!(
                "request {wr_id:#x} of {} has {length} bytes at {address:#x} of the region with lkey {lkey:#x}, and their pages are not there",
                pair_name(number)
            );
            findings.push(Finding::new(Kind::BufferFreed, lkey.into(), text).pair(number).request(wr_id));
        }
        for (place, request) in requests.iter().enumerate() {
            if is_receive {
                let most = if has_headers { HEADER } else { 0 };
                findings.extend(self.look_for_overlap(request, &requests[..place], number, most));
            }
            self.arrivals.add(request.serial, &request.arrives, is_receive);
        }
        let mut over = None;
        let forgotten = match target {
            Target::Shared(pointer) => self.shared.entry(pointer).or_default().begin(requests.drain(..)),
            Target::Receives(pointer) => self
                .pairs
                .get_mut(&pointer)
                .map_or_else(Vec::new, |pair| pair.receives.begin(requests.drain(..))),
            Target::Sends(pointer) => self.pairs.get_mut(&pointer).map_or_else(Vec::new, |pair| {
                let last = requests.last().map_or(0, |request| request.posted.wr_id);
                let forgotten = pair.sends.begin(requests.drain(..));
                if pair.sends.len() > pair.slots && !is_broken && pair.sends.is_certain() {
                    let mut all = pair.sends.iter().take(pair.slots);
                    over = Some(Over {
                        requests: pair.sends.len(),
                        slots: pair.slots,
                        last,
                        is_for_ever: !all.any(|request| request.posted.is_reported),
                    });
                }
                forgotten
            }),
        };
        self.finish(forgotten);
        spare::keep(&REQUESTS, requests);
        Posting { target, serials: first..self.now() + 1, over }
    }

    /// Whether a receive shares more than so many bytes of its memory with one that is posted, or stands
    /// before it in the list.
    fn look_for_overlap(
        &self,
        request: &Request,
        before: &[Request],
        number: u32,
        most: u64,
    ) -> Option<Finding> {
        let (start, end, (first, last, serial)) = request
            .arrives
            .iter()
            .find_map(|(start, end)| Some((*start, *end, self.arrivals.overlapping(*start, *end)?)))?;
        let shared = end.min(last) - start.max(first);
        if shared <= most {
            return None;
        }
        let in_list = before.iter().find(|other| other.serial == serial);
        let (other, site) =
            in_list.map(|other| (other.posted.wr_id, other.site)).or_else(|| self.find(serial))?;
        let whose = if number == 0 { "a shared queue".to_owned() } else { pair_name(number) };
        let wr_id = request.posted.wr_id;
        let text = format!(
            "receive {wr_id:#x} of {whose} has {} bytes at {start:#x}, and the posted receive {other:#x} has {} bytes \
             at {first:#x}: they share {} bytes",
            end - start,
            last - first,
            shared
        );
        Some(
            Finding::of_pair(Kind::ReceivesOverlap, number, text)
                .request(wr_id)
                .at("the other was posted at", site),
        )
    }

    /// A receive in flight.
    fn find(&self, serial: u64) -> Option<(u64, Site)> {
        let queues = self.pairs.values().map(|pair| &pair.receives).chain(self.shared.values());
        let mut all = queues.filter(|queue| queue.is_certain()).flat_map(|queue| queue.iter());
        let found = all.find(|request| request.serial == serial)?;
        Some((found.posted.wr_id, found.site))
    }

    /// The call has ended; of its requests, so many were taken.
    pub(super) fn end(&mut self, posting: Posting, taken: usize, findings: &mut Vec<Finding>) {
        let Posting { target, serials, over } = posting;
        let untaken = serials.start.saturating_add(taken as u64).min(serials.end)..serials.end;
        let is_whole = untaken.is_empty();
        let mut number = 0;
        let refused = match target {
            Target::Shared(pointer) => self.shared.get_mut(&pointer).map(|queue| queue.end(untaken)),
            Target::Receives(pointer) => self.pairs.get_mut(&pointer).map(|pair| pair.receives.end(untaken)),
            Target::Sends(pointer) => self.pairs.get_mut(&pointer).map(|pair| {
                number = pair.number;
                pair.sends.end(untaken)
            }),
        };
        self.finish(refused.into_iter().flatten());
        let Some(Over { requests, slots, last, is_for_ever }) =
            over.filter(|over| is_whole || over.is_for_ever)
        else {
            return;
        };
        let kind = if is_for_ever { Kind::UnsignalledForever } else { Kind::SlotReused };
        let why = if is_for_ever {
            "none of the requests in the slots is signalled, so no completion will ever free one"
        } else {
            "a slot is free when a signalled completion behind it was polled"
        };
        let text = format!(
            "{} has {slots} slots for sends (max_send_wr), and with request {last:#x} there are {requests} requests: {why}",
            pair_name(number)
        );
        findings.push(Finding::of_pair(kind, number, text).request(last));
    }
}

/// Receives were posted to a work queue, which may not be ready.
///
/// # Safety
/// It is a work queue, and lives.
pub(super) unsafe fn posted_too_early(pointer: usize) -> Option<Finding> {
    // SAFETY: the caller's promise.
    let (state, number) = unsafe {
        let queue = pointer as *const ibv_wq;
        ((&raw const (*queue).state).read_volatile(), (&raw const (*queue).wq_num).read())
    };
    let text = format!(
        "receives are posted to work queue {number:#x} in IBV_WQS_RESET, and adapters take them in IBV_WQS_RDY alone"
    );
    let finding = Finding::new(Kind::WrongState, pointer as u64, text);
    (state == IBV_WQS_RESET).then(|| {
        finding.remedy("lead the work queue to IBV_WQS_RDY first, by ibv_modify_wq, and post receives then")
    })
}

/// How many requests of a list were taken by a call that failed.
///
/// # Safety
/// The call has written where the first one is that was not taken; the list is as it was.
pub(super) unsafe fn taken(act: Act, arguments: &Arguments) -> usize {
    if matches!(act, Act::PostBuilt | Act::BindWindow) || arguments[2] == 0 {
        return 0;
    }
    let mut count = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let bad = *(arguments[2] as *const usize);
        let mut next = arguments[1];
        while next != 0 && next != bad && count < seam::MOST_REQUESTS {
            count += 1;
            next = match act {
                Act::PostSends => (*(next as *const ibv_send_wr)).next as usize,
                _ => (*(next as *const ibv_recv_wr)).next as usize,
            };
        }
    }
    count
}

/// The first request of a post that was not taken.
///
/// # Safety
/// As of [`refused`].
pub(super) unsafe fn bad_request(
    act: Act,
    arguments: &Arguments,
    built: &[(PostedRequest, usize)],
) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe {
        match act {
            Act::PostBuilt => built.first().map(|(posted, _)| posted.wr_id),
            _ if arguments[2] == 0 => None,
            Act::PostSends => (*(arguments[2] as *const *const ibv_send_wr)).as_ref().map(|bad| bad.wr_id),
            _ => (*(arguments[2] as *const *const ibv_recv_wr)).as_ref().map(|bad| bad.wr_id),
        }
    }
}

/// Why a post was refused, if the program could have known.
///
/// # Safety
/// The arguments are right for the call, which has failed with `errno`; the list is as it was.
pub(super) unsafe fn refused(
    act: Act,
    arguments: &Arguments,
    errno: i32,
    built: &[(PostedRequest, usize)],
) -> Option<Finding> {
    // SAFETY: the caller's promise, in all that follows.
    unsafe {
        if matches!(act, Act::PostSharedReceives | Act::PostWorkReceives) {
            if arguments[2] == 0 {
                return None;
            }
            let bad = (*(arguments[2] as *const *const ibv_recv_wr)).as_ref()?;
            let (count, wr_id) = (bad.num_sge, bad.wr_id);
            let most = shared(act, arguments[0])?.attributes().max_sge;
            let text = format!(
                "a receive of a {} has {count} elements, and its max_sge is {most}",
                if act == Act::PostWorkReceives { "work queue" } else { "shared receive queue" }
            );
            return (i64::from(count) > i64::from(most))
                .then(|| Finding::of_pair(Kind::TooManyElements, 0, text).request(wr_id));
        }
        let core: &Arc<QueuePair> = &PairObject::get(arguments[0] as *mut ibv_qp)?.inner.core;
        let (number, state, sizes) = (core.number(), core.state(), core.capabilities());
        let name = pair_name(number);
        let is_send = matches!(act, Act::PostSends | Act::PostBuilt);
        let takes = if is_send { State::takes_sends(state) } else { State::takes_receives(state) };
        if errno == libc::EINVAL && !takes {
            let (what, remedy) = if is_send {
                (
                    "sends are posted in RTS",
                    "lead the queue pair to RTS first, by ibv_modify_qp through INIT and RTR",
                )
            } else {
                (
                    "receives are posted in INIT, RTR and RTS",
                    "lead the queue pair to INIT first, by ibv_modify_qp",
                )
            };
            let text = format!("{name} is in {state}, and {what}");
            let mut finding = Finding::of_pair(Kind::WrongState, number, text).remedy(remedy);
            if let Some(wr_id) = bad_request(act, arguments, built) {
                finding = finding.request(wr_id);
            }
            return Some(finding);
        }
        if act != Act::PostBuilt && arguments[2] == 0 {
            return None;
        }
        let (wr_id, count, length, is_inline) = match act {
            Act::PostSends => {
                let bad = (*(arguments[2] as *const *const ibv_send_wr)).as_ref()?;
                let mut length = 0;
                if (0..=seam::MOST_ELEMENTS).contains(&bad.num_sge) && !bad.sg_list.is_null() {
                    length = (0..bad.num_sge as usize)
                        .map(|place| u64::from((*bad.sg_list.add(place)).length))
                        .sum();
                }
                (bad.wr_id, i64::from(bad.num_sge), length, bad.send_flags & IBV_SEND_INLINE != 0)
            }
            Act::PostBuilt => {
                let (posted, count) = built.iter().find(|(posted, count)| {
                    *count > sizes.max_send_sge as usize || posted.flags & IBV_SEND_INLINE != 0
                })?;
                (posted.wr_id, *count as i64, posted.length, posted.flags & IBV_SEND_INLINE != 0)
            }
            _ => {
                let bad = (*(arguments[2] as *const *const ibv_recv_wr)).as_ref()?;
                (bad.wr_id, i64::from(bad.num_sge), 0, false)
            }
        };
        let most = if is_send { sizes.max_send_sge } else { sizes.max_recv_sge };
        if count > i64::from(most) && !(is_inline && act == Act::PostBuilt) {
            let limit = if is_send { "max_send_sge" } else { "max_recv_sge" };
            let text = format!(
                "request {wr_id:#x} of {name} has {count} scatter/gather elements, and its {limit} is {most}"
            );
            return Some(Finding::of_pair(Kind::TooManyElements, number, text).request(wr_id));
        }
        if is_inline && length > u64::from(sizes.max_inline_data) {
            let text = format!(
                "request {wr_id:#x} of {name} has {length} bytes of inline data, and its max_inline_data is {}",
                sizes.max_inline_data
            );
            return Some(Finding::of_pair(Kind::InlineTooLong, number, text).request(wr_id));
        }
        None
    }
}
