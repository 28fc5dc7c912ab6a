//! Calls that are looked at in ways of their own: before they are made, and when they have ended.

use super::finding::Kind;
use super::flight::Pair;
use super::objects::Object;
use super::report::Finding;
use super::roles::{Act, Effect, Role, Thing};
use super::site::Site;
use super::spare::{self, Spare};
use super::waits::{Before, Waits};
use super::{CallState, Check, State, completions, describe, flight, profile, work};
use crate::calls::Call;
use crate::names;
use adverb_core::clock;
use adverb_core::qp::{AttributeMask, State as PairState};
use adverb_libibverbs::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    IBV_SEND_INLINE, IBV_WQS_RDY, ibv_async_event, ibv_cq, ibv_cq_ex, ibv_mr, ibv_mw, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_srq, ibv_wc, ibv_wq,
};
use adverb_libibverbs::cq::QueueObject;
use adverb_libibverbs::qp::{PairObject, core_attributes};
use adverb_libibverbs::seam::{self, Answer, Arguments, PolledCompletion, PostedRequest};
use adverb_libibverbs::srq::SharedObject;
use adverb_librdmacm::abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event, rdma_cm_id};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static COMPLETED: Spare<PolledCompletion> = const { Spare::new() };
}

/// A post has failed: polls that find nothing are looked at.
static HAS_FAILED_POSTS: AtomicBool = AtomicBool::new(false);

/// Whether polls that find nothing are looked at.
pub(super) fn has_failed_posts() -> bool {
    HAS_FAILED_POSTS.load(Ordering::Relaxed)
}

/// A post that has failed, and of whose requests none is in flight.
pub(super) struct FailedPost {
    call: &'static str,
    wr_id: u64,
    errno: i32,
    site: Site,
    /// Since then, so many polls of the completion queue have found nothing.
    polls: u32,
    since: u64,
}

/// A program that polls so often, for so long, waits for a completion.
const WAITING_POLLS: (u32, u64) = (100, 100_000_000);

impl Check {
    /// A call begins.
    ///
    /// # Safety
    /// The arguments are right for the call, and its objects live.
    pub(super) unsafe fn prepare(
        &self,
        role: &Role,
        call: &'static Call,
        arguments: &Arguments,
        begun: &mut CallState,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise, in all that follows.
        unsafe {
            match role.act {
                Act::PostSends
                | Act::PostReceives
                | Act::PostSharedReceives
                | Act::PostWorkReceives
                | Act::PostBuilt
                | Act::BindWindow => {
                    if role.act == Act::PostBuilt {
                        seam::gathered(arguments[0] as *mut ibv_qp_ex, |posted, elements| {
                            begun.built.push((*posted, elements.len()));
                        });
                    }
                    if let Some(gathered) = work::gather(role.act, arguments, begun.site, begun.has_peer_here)
                    {
                        begun.posting = Some(self.with(|state| {
                            findings.extend(state.receive_posted(role.act, arguments[0]));
                            let first = state.flight.now() + 1;
                            let posting = state.flight.begin(gathered, findings);
                            if !self.profiles.is_empty() {
                                let (profiles, flight) = (&self.profiles, &state.flight);
                                findings.extend(profile::unfenced(profiles, flight, arguments[0], first));
                                findings.extend(profile::unordered(profiles, flight, arguments[0], first));
                            }
                            posting
                        }));
                    }
                }
                Act::ModifyPair => {
                    let pair = PairObject::get(arguments[0] as *mut ibv_qp);
                    begun.from = pair.map(|pair| pair.inner.core.state());
                }
                Act::ReregisterRegion => self.look_for_users(region(arguments[0]), call.name, findings),
                Act::GetEvent => self.with(|state| state.waits.sleep(arguments[0])),
                Act::Arm => {
                    let queue = QueueObject::get(arguments[0] as *mut ibv_cq);
                    begun.before = queue.map(|queue| Before::of(&queue.inner.core));
                }
                Act::AcknowledgeEvents => self.with(|state| {
                    if let Some(queue) = state.queues.get_mut(&arguments[0]) {
                        queue.acknowledge(arguments[1] as u32);
                    }
                }),
                Act::AcknowledgeManagerEvent => {
                    self.with(|state| state.waits.acknowledge_manager_event(arguments[0]));
                }
                Act::AcknowledgeAsyncEvent => {
                    let object = subject(arguments[0] as *const ibv_async_event);
                    self.with(|state| state.waits.acknowledge_asynchronous(object));
                }
                Act::DestroysPair => {
                    let pair = (*(arguments[0] as *const rdma_cm_id)).qp as usize;
                    let caller = begun.caller(call);
                    findings.extend(self.with(|state| {
                        state.objects.argument(pair, Thing::QueuePair, true, caller).filter(|_| pair != 0)
                    }));
                }
                _ => {}
            }
            // The completions of a queue pair go with it.
            if matches!(role.effect, Effect::Destroys(Thing::QueuePair | Thing::CompletionQueue))
                || matches!(role.act, Act::DestroysPair | Act::DestroysEndpoint)
            {
                findings.extend(self.with(|state| state.overruns()));
            }
            match role.effect {
                Effect::Destroys(Thing::Region) => {
                    self.look_for_users(region(arguments[0]), call.name, findings);
                }
                Effect::Destroys(Thing::Window) => {
                    let window = &*(arguments[0] as *const ibv_mw);
                    self.with(|state| findings.extend(state.window_in_use(window.rkey, call.name)));
                }
                Effect::Destroys(
                    Thing::CompletionQueue | Thing::QueuePair | Thing::SharedQueue | Thing::Identifier,
                ) => {
                    self.with(|state| {
                        if state.must_wait(arguments[0]) {
                            state.waits.begin_ending(arguments[0], call.name, begun.site);
                        }
                    });
                }
                _ => {}
            }
        }
    }

    /// A call has ended.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn conclude(
        &self,
        role: &Role,
        call: &'static Call,
        arguments: &Arguments,
        begun: &mut CallState,
        answer: Answer,
        failed: Option<i32>,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise, in all that follows.
        unsafe {
            if let Some(posting) = begun.posting.take() {
                let taken = failed.map_or(usize::MAX, |_| work::taken(role.act, arguments));
                self.with(|state| state.flight.end(posting, taken, findings));
                match failed {
                    Some(_) if role.act == Act::BindWindow => {}
                    Some(errno) => {
                        if !begun.is_injected {
                            findings.extend(self.refused(role.act, arguments, errno, &begun.built));
                        }
                        if errno == libc::EINVAL {
                            self.remember_failure(role.act, call.name, arguments, begun, errno);
                        }
                    }
                    None if HAS_FAILED_POSTS.load(Ordering::Relaxed) => self.with(|state| {
                        state.failed_posts.remove(&completes_on(role.act, arguments[0]));
                    }),
                    None => {}
                }
            }
            if role.act == Act::PostWorkReceives && failed.is_none() {
                findings.extend(work::posted_too_early(arguments[0]));
            }
            match role.act {
                Act::Poll if failed.is_none() && answer.value as i32 > 0 => {
                    let count = answer.value as i32 as usize;
                    let mut completed = spare::take(&COMPLETED);
                    seam::completed(arguments[2] as *const ibv_wc, count, |one| completed.push(*one));
                    self.polled(arguments[0], &completed, begun.is_injected, findings);
                    spare::keep(&COMPLETED, completed);
                }
                Act::Poll if failed.is_none() && HAS_FAILED_POSTS.load(Ordering::Relaxed) => {
                    findings.extend(self.with(|state| state.polled_in_vain(arguments[0])));
                }
                Act::Cursor if failed.is_none() => {
                    let completed = seam::under_cursor(arguments[0] as *mut ibv_cq_ex);
                    self.polled(arguments[0], completed.as_slice(), begun.is_injected, findings);
                }
                Act::ResizeQueue if failed.is_none() => self.with(|state| {
                    if let Some(queue) = state.queues.get_mut(&arguments[0]) {
                        queue.asked = Some(arguments[1] as u32);
                        completions::say_room(arguments[0], arguments[1] as u32);
                    }
                }),
                Act::ReregisterRegion if failed.is_none() => {
                    let region = describe::region(arguments[0], call.name, arguments);
                    self.with(|state| state.regions.insert(arguments[0], region));
                }
                Act::Arm if failed.is_none() => self.with(|state| {
                    if let Some(queue) = state.queues.get_mut(&arguments[0]) {
                        queue.arm(arguments[1] as u32 != 0, begun.before);
                    }
                }),
                Act::GetEvent => {
                    let queue = if failed.is_none() { *(arguments[1] as *const usize) } else { 0 };
                    let now =
                        QueueObject::get(queue as *mut ibv_cq).map(|object| Before::of(&object.inner.core));
                    self.with(|state| {
                        state.waits.wake();
                        let is_late = state.queues.get_mut(&queue).is_some_and(|queue| queue.got_event(now));
                        findings.extend(state.objects.get(queue).filter(|_| is_late).map(Before::finding));
                    });
                }
                Act::GetAsyncEvent if failed.is_none() => {
                    let object = subject(arguments[1] as *const ibv_async_event);
                    self.with(|state| state.waits.got_asynchronous(object));
                }
                Act::GetManagerEvent if failed.is_none() => {
                    let event = *(arguments[1] as *const *const rdma_cm_event);
                    let (kind, id, listener) =
                        ((*event).event, (*event).id as usize, (*event).listen_id as usize);
                    let whose = if kind == RDMA_CM_EVENT_CONNECT_REQUEST { listener } else { id };
                    self.with(|state| state.waits.got_manager_event(event as usize, whose, kind));
                }
                Act::ModifyPair => findings.extend(self.modified(arguments, begun, failed)),
                _ => {}
            }
            if let Effect::Destroys(_) = role.effect {
                self.with(|state| state.waits.finish_ending(arguments[0]));
            }
        }
    }

    /// A post was refused.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    unsafe fn refused(
        &self,
        act: Act,
        arguments: &Arguments,
        errno: i32,
        built: &[(PostedRequest, usize)],
    ) -> Option<Finding> {
        // SAFETY: the caller's promise.
        let mut finding = unsafe { work::refused(act, arguments, errno, built) }?;
        let (failed_change, is_managers) = self.with(|state| {
            let is_managers = state.objects.get(arguments[0]).is_some_and(|object| object.manager != 0);
            (state.flight.pairs.get(&arguments[0]).and_then(|pair| pair.failed_change), is_managers)
        });
        if finding.kind == Kind::WrongState && is_managers {
            finding.text.push_str("; rdma_cm takes it there before it reports RDMA_CM_EVENT_ESTABLISHED");
            finding.remedy = Some(
                "let rdma_cm take the queue pair through INIT, RTR and RTS, and post sends after RDMA_CM_EVENT_ESTABLISHED"
                    .to_owned(),
            );
        }
        if let (Kind::WrongState, Some((errno, _))) = (finding.kind, failed_change) {
            finding.kind = Kind::ResultIgnored;
            let errno = names::of_errno(errno).unwrap_or("an error");
            finding.text = format!(
                "ibv_modify_qp failed with {errno} before, and the program went on: {}",
                finding.text
            );
            finding.remedy = None;
        }
        Some(match failed_change {
            Some((_, site)) => finding.at("failed at", site),
            None => finding,
        })
    }

    /// Keeps a post in mind that has failed.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    unsafe fn remember_failure(
        &self,
        act: Act,
        call: &'static str,
        arguments: &Arguments,
        begun: &CallState,
        errno: i32,
    ) {
        // SAFETY: the caller's promise.
        let (queue, wr_id) =
            unsafe { (completes_on(act, arguments[0]), work::bad_request(act, arguments, &begun.built)) };
        let Some(wr_id) = wr_id.filter(|_| queue != 0) else { return };
        HAS_FAILED_POSTS.store(true, Ordering::Relaxed);
        let post = FailedPost { call, wr_id, errno, site: begun.site, polls: 0, since: clock::device() };
        self.with(|state| state.failed_posts.insert(queue, post));
    }

    /// A queue pair was changed, or that was refused.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    unsafe fn modified(
        &self,
        arguments: &Arguments,
        begun: &CallState,
        failed: Option<i32>,
    ) -> Option<Finding> {
        let from = begun.from?;
        // SAFETY: the caller's promise.
        let (core, attributes, new) = unsafe {
            let pair = arguments[0] as *mut ibv_qp;
            let core = PairObject::get(pair)?.inner.core.clone();
            let new = work::new_pair(&core, pair);
            (core, (arguments[1] as *const ibv_qp_attr).as_ref()?, new)
        };
        let mask = AttributeMask::from_bits_truncate(arguments[2] as u32);
        let number = core.number();
        let is_reset = core.state() == PairState::Reset;
        self.with(|state| {
            let pair = state.flight.pair(arguments[0], || new);
            pair.failed_change = failed.map(|errno| (errno, begun.site));
            if failed.is_none() && is_reset {
                let all: Vec<_> = pair.sends.clear().into_iter().chain(pair.receives.clear()).collect();
                state.flight.finish(all);
            }
        });
        if failed? != libc::EINVAL || begun.is_injected {
            return None;
        }
        let why = core.why_refused(from, &core_attributes(attributes), mask)?;
        let text = format!("ibv_modify_qp of queue pair {number:#x} is refused: {why}");
        let finding = Finding::of_pair(Kind::WrongState, number, text);
        Some(match why.split_once("needs also ") {
            Some((_, missing)) => {
                finding.remedy(format!("set the attributes and their bits in attr_mask: {missing}"))
            }
            None => finding,
        })
    }

    /// A region is about to go, or to change.
    fn look_for_users(&self, lkey: u32, call: &str, findings: &mut Vec<Finding>) {
        let users = self.with(|state| state.users_of(lkey));
        // Those of a queue pair in error are flushed.
        let Some(user) = users.into_iter().find(|user| user.pair == 0 || is_working(user.pair)) else {
            return;
        };
        let whose = match user.pair {
            0 => "a work queue".to_owned(),
            _ => format!("queue pair {:#x}", user.number),
        };
        let text = format!(
            "{call} of the region with lkey {lkey:#x}, while {} {:#x} of {whose} is posted and uses it",
            user.what, user.wr_id
        );
        findings.push(
            Finding::new(Kind::RegionInUse, lkey.into(), text)
                .pair(user.number)
                .request(user.wr_id)
                .at("posted at", user.site),
        );
    }
}

/// The completion queue on which the requests of a call complete; 0 if that is not known.
///
/// # Safety
/// `queue` is what the call posts to, and lives.
unsafe fn completes_on(act: Act, queue: usize) -> usize {
    let pair = queue as *const ibv_qp;
    // SAFETY: the caller's promise.
    unsafe {
        match act {
            Act::PostSends | Act::PostBuilt | Act::BindWindow => (&raw const (*pair).send_cq).read() as usize,
            Act::PostReceives => (&raw const (*pair).recv_cq).read() as usize,
            _ => 0,
        }
    }
}

/// What an asynchronous event is about; 0 if it is no object.
///
/// # Safety
/// It is an event.
unsafe fn subject(event: *const ibv_async_event) -> usize {
    // SAFETY: the caller's promise; which member is set follows from the kind.
    unsafe {
        match (*event).event_type {
            IBV_EVENT_CQ_ERR..8
            | IBV_EVENT_SRQ_ERR..=IBV_EVENT_SRQ_LIMIT_REACHED
            | IBV_EVENT_QP_LAST_WQE_REACHED => (*event).element.cq as usize,
            _ => 0,
        }
    }
}

impl State {
    /// A call posts receives: whether a message has waited for them for long.
    fn receive_posted(&mut self, act: Act, queue: usize) -> Option<Finding> {
        if !self.waits.has_missing() {
            return None;
        }
        let numbers: Vec<_> = match act {
            Act::PostReceives => self.flight.pairs.get(&queue).map(|pair| pair.number).into_iter().collect(),
            Act::PostSharedReceives => self
                .flight
                .pairs
                .values()
                // Messages of XRC say themselves to which shared queue they go.
                .filter(|pair| pair.shared == queue || pair.is_extended)
                .map(|pair| pair.number)
                .collect(),
            _ => return None,
        };
        let (number, time) = self.waits.receive_posted(&numbers)?;
        if self.found.has(Kind::NoReceive, number.into()) {
            return None;
        }
        Some(Waits::no_receive(number, time))
    }

    /// A poll of a completion queue has found nothing.
    fn polled_in_vain(&mut self, queue: usize) -> Option<Finding> {
        let post = self.failed_posts.get_mut(&queue)?;
        post.polls += 1;
        let is_long = clock::device().saturating_sub(post.since) >= WAITING_POLLS.1;
        if post.polls < WAITING_POLLS.0 || !is_long || self.flight.completes_on(queue) {
            return None;
        }
        let post = self.failed_posts.remove(&queue)?;
        let errno = names::of_errno(post.errno).unwrap_or("an error");
        let text = format!(
            "{} failed with {errno} for wr_id {}, and the program polls for completions though nothing is posted",
            post.call, post.wr_id
        );
        let number = self.objects.get(queue).map(|object| object.number);
        Some(
            Finding::new(Kind::ResultIgnored, queue as u64, text)
                .request(post.wr_id)
                .queue(number)
                .at("failed at", post.site),
        )
    }

    /// The requests in flight that use a region: one of each queue.
    fn users_of(&self, lkey: u32) -> Vec<User> {
        let uses = |request: &&flight::Request| {
            request.posted.flags & IBV_SEND_INLINE == 0
                && request.elements.iter().any(|element| element.lkey == lkey && element.length > 0)
        };
        let mut users = Vec::new();
        for (pointer, pair) in &self.flight.pairs {
            let taken = self.taken(Thing::QueuePair, *pointer, pair.receives.len());
            for (queue, what, taken) in [(&pair.sends, "request", 0), (&pair.receives, "receive", taken)] {
                if let Some(request) = queue.iter().skip(taken).find(uses).filter(|_| queue.is_certain()) {
                    let (pair, number) = (*pointer, pair.number);
                    users.push(User { pair, number, what, wr_id: request.posted.wr_id, site: request.site });
                }
            }
        }
        for (pointer, queue) in self.flight.shared.iter().filter(|(_, queue)| queue.is_certain()) {
            let taken = self.taken(Thing::SharedQueue, *pointer, queue.len());
            let Some(request) = queue.iter().skip(taken).find(uses) else { continue };
            let (wr_id, site) = (request.posted.wr_id, request.site);
            // One that no queue pair takes from is not in use.
            let taker = self.flight.pairs.iter().find(|(_, pair)| pair.shared == *pointer);
            if let Some((pair, Pair { number, .. })) = taker {
                users.push(User { pair: *pair, number: *number, what: "receive", wr_id, site });
            } else if self.is_ready_work_queue(*pointer) {
                users.push(User { pair: 0, number: 0, what: "receive", wr_id, site });
            }
        }
        users
    }

    /// How many of these receives messages have taken, though no completion of them was polled: an adapter
    /// uses their memory no more.
    fn taken(&self, thing: Thing, pointer: usize, count: usize) -> usize {
        let is_live = self.objects.get(pointer).is_some_and(|object| object.thing == thing && !object.ending);
        if !is_live {
            return 0;
        }
        // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
        let left = unsafe {
            match thing {
                Thing::QueuePair => {
                    PairObject::get(pointer as *mut ibv_qp).and_then(|pair| pair.inner.core.receives_left())
                }
                _ => SharedObject::get(pointer as *mut ibv_srq).map(|queue| queue.inner.core.fill().0.into()),
            }
        };
        left.map_or(0, |left| count.saturating_sub(left as usize))
    }

    /// Whether this is a work queue that takes messages in.
    fn is_ready_work_queue(&self, pointer: usize) -> bool {
        let is_one = |object: &Object| object.thing == Thing::WorkQueue && !object.ending;
        // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
        self.objects.get(pointer).is_some_and(is_one)
            && unsafe { (&raw const (*(pointer as *const ibv_wq)).state).read_volatile() } == IBV_WQS_RDY
    }

    /// A window is about to go, while a request in flight uses it.
    fn window_in_use(&self, rkey: u32, call: &str) -> Option<Finding> {
        let mut sends = self
            .flight
            .pairs
            .values()
            .flat_map(|pair| pair.sends.iter().map(|request| (pair.number, request)));
        let (number, request) = sends.find(|(_, request)| request.posted.rkey == rkey && rkey != 0)?;
        let text = format!(
            "{call} of the memory window with rkey {rkey:#x}, while request {:#x} of queue pair {number:#x} uses it",
            request.posted.wr_id
        );
        Some(
            Finding::new(Kind::WindowInUse, rkey.into(), text)
                .pair(number)
                .request(request.posted.wr_id)
                .at("posted at", request.site),
        )
    }
}

/// A request in flight that uses a region.
struct User {
    /// The address of its queue pair, and the number; 0 of a work queue.
    pair: usize,
    number: u32,
    what: &'static str,
    wr_id: u64,
    site: Site,
}

/// The lkey of a region.
///
/// # Safety
/// It lives.
unsafe fn region(pointer: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (*(pointer as *const ibv_mr)).lkey }
}

/// Whether requests of a queue pair are carried out.
fn is_working(pointer: usize) -> bool {
    // SAFETY: it lives, or is just being destroyed: the memory of objects stays for a while.
    let state = unsafe { (&raw const (*(pointer as *const ibv_qp)).state).read_volatile() };
    PairState::from_number(state).is_some_and(|state| (PairState::Rtr..=PairState::Sqd).contains(&state))
}
