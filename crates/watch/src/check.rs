//! The check of a program (`adverb run --check`): what a program does with verbs and rdma_cm that works by luck, or not at all.
//!
//! Each call is looked at before and after it is made. A finding is certain: where the check cannot know, it says nothing. Its mutex is held neither while
//! the call itself runs nor while names of functions are looked up.

mod completions;
mod describe;
mod explain;
pub mod finding;
mod flight;
mod lock;
mod memory;
mod objects;
mod report;
mod roles;
pub mod setting;
mod site;
pub mod suppress;
mod work;

use crate::calls::Call;
use crate::format::failure;
use adverb_core::cancel::Deferred;
use adverb_core::log;
use adverb_core::qp::{AttributeMask, State as PairState};
use adverb_core::setting::variable;
use adverb_libibverbs::abi::{ibv_cq_ex, ibv_mr, ibv_mw, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_wc};
use adverb_libibverbs::object;
use adverb_libibverbs::qp::{PairObject, core_attributes};
use adverb_libibverbs::seam::{self, Answer, Arguments, Posted};
use adverb_librdmacm::abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event};
use finding::Kind;
use flight::Flight;
use lock::{Inside, Lock};
use objects::{Caller, Objects};
use report::{Finding, Found, Report};
use roles::{Act, Effect, Role, Thing};
use site::Site;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use suppress::Suppressions;
use work::Posting;

/// The check of this process.
pub(crate) struct Check {
    lock: Lock<State>,
    report: Report,
}

/// What the mutex protects.
struct State {
    forks: u32,
    /// A call was seen in this process: in a child of fork, after the fork.
    has_calls: bool,
    ended: bool,
    objects: Objects,
    flight: Flight,
    /// How many completions programs have asked queues for.
    entries: HashMap<usize, u32>,
    found: Found,
}

/// What is kept from the beginning of a call to its end.
struct Begun {
    site: Site,
    /// Objects of an identifier that is about to be destroyed.
    managed: Vec<(usize, Thing)>,
    posting: Option<Posting>,
    /// Requests of builders, with the number of their elements.
    built: Vec<(Posted, usize)>,
    /// Of a queue pair that is changed.
    from: Option<PairState>,
}

static CHECK: OnceLock<&'static Check> = OnceLock::new();

/// The status with which the program exits; [`RUNNING`] before.
static STATUS: AtomicI32 = AtomicI32::new(RUNNING);
const RUNNING: i32 = i32::MIN;

unsafe extern "C" {
    /// on_exit(3).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn exits(status: c_int, _argument: *mut c_void) {
    STATUS.store(status, Ordering::Relaxed);
}

/// When the process ends, what it has registered has run, and so have the destructors of the libraries that use this one.
// SAFETY: an array of functions that the dynamic linker calls at the end.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    if let Some(check) = CHECK.get() {
        check.end();
    }
}

/// The text of the file of suppressions.
///
/// # Errors
/// A text for the user.
pub fn suppressions(file: &str) -> Result<Suppressions, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))?;
    Suppressions::parse(&text).map_err(|why| format!("{file}: {why}"))
}

impl Check {
    /// Begins it, if the variable says so.
    pub(crate) fn begin() -> Option<&'static Self> {
        let words = variable(setting::CHECK).filter(|text| !text.trim().is_empty())?;
        let is_wanted = setting::words(&words).unwrap_or_else(|why| {
            log::say(format_args!("{}: {why}", setting::CHECK));
            true
        });
        if !is_wanted {
            return None;
        }
        let _whole = Deferred::new();
        let present = |name| variable(name).filter(|text| !text.trim().is_empty());
        let suppressions = present(setting::SUPPRESS).map_or_else(Suppressions::default, |file| {
            suppressions(&file).unwrap_or_else(|why| {
                log::say(format_args!("{}: {why}", setting::SUPPRESS));
                Suppressions::default()
            })
        });
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name());
        let report = Report {
            format: present(setting::FORMAT)
                .and_then(|name| setting::Format::from_name(name.trim()))
                .unwrap_or(setting::Format::Text),
            file: present(setting::FILE),
            count: present(setting::COUNT),
            suppressions,
            program: program.unwrap_or_default().to_string_lossy().into_owned(),
        };
        let state = State {
            forks: lock::forks(),
            has_calls: false,
            ended: false,
            objects: Objects::default(),
            flight: Flight::default(),
            entries: HashMap::new(),
            found: Found::default(),
        };
        let check: &'static Self = Box::leak(Box::new(Self { lock: Lock::new(state), report }));
        if CHECK.set(check).is_ok() {
            check.lock.survive_forks();
            object::keep_memory();
            // SAFETY: a static function that may run at exit.
            unsafe { on_exit(exits, std::ptr::null_mut()) };
        }
        CHECK.get().copied()
    }

    /// Does something with the state, which is that of this process.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        self.lock.with(|state| {
            if state.forks != lock::forks() {
                state.enter_child();
            }
            work(state)
        })
    }

    /// Shows findings that the calling thread has made.
    fn emit(&self, call: &'static str, findings: Vec<Finding>) {
        for mut finding in findings {
            finding.call = finding.call.or((!call.is_empty()).then_some(call));
            let site = finding
                .site
                .unwrap_or_else(|| if finding.call.is_some() { Site::here() } else { Site::default() });
            if self.with(|state| state.found.is_new(&finding, site)) && self.report.show(&finding, site) {
                self.with(|state| state.found.count(finding.kind));
            }
        }
    }

    /// A call begins: the word that is handed to [`Check::ended`].
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(crate) unsafe fn begins(&self, index: usize, call: &'static Call, arguments: &Arguments) -> usize {
        let role = &Role::all()[index];
        if role.is_idle() {
            return 0;
        }
        let _whole = Deferred::new();
        let Some(_inside) = Inside::enter() else { return 0 };
        let keeps_site =
            role.effect != Effect::None || !matches!(role.act, Act::Other | Act::Poll | Act::Cursor);
        let site = if keeps_site { Site::here() } else { Site::default() };
        let mut begun = Begun { site, managed: Vec::new(), posting: None, built: Vec::new(), from: None };
        let ends_process = STATUS.load(Ordering::Relaxed) != RUNNING;
        let destroys = matches!(role.effect, Effect::Destroys(_));
        let caller = Caller { call: call.name, destroys, ends_process };
        let mut findings = Vec::new();
        let mut is_usable = true;
        self.with(|state| {
            state.has_calls = true;
            for (place, thing, may_be_null) in &role.objects {
                let finding = state.objects.argument(arguments[*place], *thing, *may_be_null, caller);
                is_usable &= arguments[*place] != 0 && !state.objects.is_gone(arguments[*place]);
                findings.extend(finding);
            }
            if matches!(role.act, Act::DestroysPair | Act::DestroysSharedQueue | Act::DestroysEndpoint) {
                begun.managed = state.objects.of_manager(arguments[0]);
            }
        });
        if is_usable {
            // SAFETY: the caller's promise; its objects live.
            unsafe { self.prepare(role, arguments, &mut begun, &mut findings) };
        }
        self.emit(call.name, findings);
        if role.effect == Effect::None && role.act == Act::Other {
            return 0;
        }
        Box::into_raw(Box::new(begun)) as usize
    }

    /// A call has ended.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so; `word` is that of [`Check::begins`].
    pub(crate) unsafe fn ended(
        &self,
        index: usize,
        call: &'static Call,
        arguments: &Arguments,
        word: usize,
        answer: Answer,
    ) {
        if word == 0 {
            return;
        }
        let _whole = Deferred::new();
        // SAFETY: the word of a call that has begun and not ended.
        let begun = unsafe { Box::from_raw(word as *mut Begun) };
        let Some(_inside) = Inside::enter() else { return };
        let role = &Role::all()[index];
        let failed = failure(call, answer);
        let mut findings = Vec::new();
        // SAFETY: the caller's promise, for all of these.
        self.with(|state| unsafe {
            state.effect(role, call, arguments, &begun, answer, failed, &mut findings);
            state.act(role, call, arguments, &begun, failed);
        });
        // SAFETY: the caller's promise.
        unsafe { self.conclude(role, arguments, *begun, answer, failed, &mut findings) };
        self.emit(call.name, findings);
    }

    /// A call that is looked at in a way of its own begins.
    ///
    /// # Safety
    /// The arguments are right for the call, and its objects live.
    unsafe fn prepare(
        &self,
        role: &Role,
        arguments: &Arguments,
        begun: &mut Begun,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise, in all that follows.
        unsafe {
            match role.act {
                Act::PostSends | Act::PostReceives | Act::PostSharedReceives | Act::PostBuilt => {
                    if role.act == Act::PostBuilt {
                        seam::gathered(arguments[0] as *mut ibv_qp_ex, |posted, elements| {
                            begun.built.push((*posted, elements.len()));
                        });
                    }
                    if let Some(gathered) = work::gather(role.act, arguments, begun.site) {
                        begun.posting = Some(self.with(|state| state.flight.begin(gathered, findings)));
                    }
                }
                Act::ModifyPair => {
                    let pair = PairObject::get(arguments[0] as *mut ibv_qp);
                    begun.from = pair.map(|pair| pair.inner.core.state());
                }
                Act::ReregisterRegion => self.look_for_users(region(arguments[0]), "ibv_rereg_mr", findings),
                _ => {}
            }
            match role.effect {
                Effect::Destroys(Thing::Region) => {
                    self.look_for_users(region(arguments[0]), "ibv_dereg_mr", findings);
                }
                Effect::Destroys(Thing::Window) => {
                    let window = &*(arguments[0] as *const ibv_mw);
                    self.with(|state| findings.extend(state.window_in_use(window.rkey, "ibv_dealloc_mw")));
                }
                _ => {}
            }
        }
    }

    /// A call that is looked at in a way of its own has ended.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    unsafe fn conclude(
        &self,
        role: &Role,
        arguments: &Arguments,
        mut begun: Begun,
        answer: Answer,
        failed: Option<i32>,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise, in all that follows.
        unsafe {
            if let Some(posting) = begun.posting.take() {
                let taken = failed.map_or(usize::MAX, |_| work::taken(role.act, arguments));
                self.with(|state| state.flight.end(posting, taken, findings));
                if let Some(errno) = failed {
                    findings.extend(self.refused(role.act, arguments, errno, &begun.built));
                }
            }
            match role.act {
                Act::Poll if failed.is_none() && answer.value as i32 > 0 => {
                    let count = answer.value as i32 as usize;
                    let mut completed = Vec::with_capacity(count);
                    seam::completed(arguments[2] as *const ibv_wc, count, |one| completed.push(*one));
                    self.polled(arguments[0], &completed, findings);
                    findings.extend(self.look_for_overrun(arguments[0], count));
                }
                Act::Cursor if failed.is_none() => {
                    let completed = seam::under_cursor(arguments[0] as *mut ibv_cq_ex);
                    self.polled(arguments[0], completed.as_slice(), findings);
                    findings.extend(self.look_for_overrun(arguments[0], 1));
                }
                Act::ModifyPair => findings.extend(self.modified(arguments, &begun, failed)),
                _ => {}
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
        built: &[(Posted, usize)],
    ) -> Option<Finding> {
        // SAFETY: the caller's promise.
        let (mut kind, number, mut text) = unsafe { work::refused(act, arguments, errno, built) }?;
        let mut failed_change = None;
        self.with(|state| {
            let is_managers = state.objects.get(arguments[0]).is_some_and(|object| object.manager != 0);
            if kind == Kind::WrongState && is_managers {
                text.push_str("; rdma_cm takes it there before it reports RDMA_CM_EVENT_ESTABLISHED");
            }
            failed_change = state.flight.pairs.get(&arguments[0]).and_then(|pair| pair.failed_change);
        });
        if let (Kind::WrongState, Some((errno, _))) = (kind, failed_change) {
            kind = Kind::ResultIgnored;
            let errno = crate::names::of_errno(errno).unwrap_or("an error");
            text = format!("ibv_modify_qp failed with {errno} before, and the program went on: {text}");
        }
        let finding = Finding::new(kind, number.into(), text);
        Some(match failed_change {
            Some((_, site)) => finding.at("failed at", site),
            None => finding,
        })
    }

    /// A queue pair was changed, or that was refused.
    ///
    /// # Safety
    /// As of [`Check::ended`].
    unsafe fn modified(&self, arguments: &Arguments, begun: &Begun, failed: Option<i32>) -> Option<Finding> {
        let from = begun.from?;
        // SAFETY: the caller's promise.
        let (core, attributes) = unsafe {
            let object = PairObject::get(arguments[0] as *mut ibv_qp)?;
            (object.inner.core.clone(), (arguments[1] as *const ibv_qp_attr).as_ref()?)
        };
        let mask = AttributeMask::from_bits_truncate(arguments[2] as u32);
        let number = core.number();
        let is_reset = core.state() == PairState::Reset;
        // SAFETY: as above.
        let new = unsafe { work::new_pair(&core, arguments[0] as *const ibv_qp) };
        self.with(|state| {
            let pair = state.flight.pair(arguments[0], || new);
            pair.failed_change = failed.map(|errno| (errno, begun.site));
            if failed.is_none() && is_reset {
                let all: Vec<_> = pair.sends.clear().into_iter().chain(pair.receives.clear()).collect();
                state.flight.finish(all);
            }
        });
        if failed? != libc::EINVAL {
            return None;
        }
        let why = core.why_refused(from, &core_attributes(attributes), mask)?;
        let text = format!("ibv_modify_qp of queue pair {number:#x} is refused: {why}");
        Some(Finding::new(Kind::WrongState, number.into(), text))
    }

    /// A region is about to go, or to change.
    fn look_for_users(&self, lkey: u32, call: &str, findings: &mut Vec<Finding>) {
        let users = self.with(|state| state.users_of(lkey));
        // Those of a queue pair in error are flushed.
        let found = users.into_iter().find(|user| user.number.is_none_or(|(pair, _)| is_working(pair)));
        if let Some(user) = found {
            let whose = match user.number {
                Some((_, number)) => format!("queue pair {number:#x}"),
                None => "a shared receive queue".to_owned(),
            };
            let text = format!(
                "{call} of the region with lkey {lkey:#x}, while {} {:#x} of {whose} is posted and uses it",
                user.what, user.wr_id
            );
            findings.push(Finding::new(Kind::RegionInUse, lkey.into(), text).at("posted at", user.site));
        }
    }

    /// The process ends.
    fn end(&self) {
        let _whole = Deferred::new();
        let Some(_inside) = Inside::enter() else { return };
        let failed = ![0, RUNNING].contains(&STATUS.load(Ordering::Relaxed));
        let findings = self.with(|state| {
            if std::mem::replace(&mut state.ended, true) || !state.has_calls {
                return None;
            }
            let left = if lock::has_missed() { Vec::new() } else { state.objects.left(None, failed) };
            Some(left)
        });
        let Some(findings) = findings else { return };
        self.emit("", findings);
        let found = self.with(|state| std::mem::take(&mut state.found));
        self.report.end(&found);
    }
}

impl State {
    /// This process is a child of fork: nothing of its parent's is its own.
    fn enter_child(&mut self) {
        self.forks = lock::forks();
        self.has_calls = false;
        self.ended = false;
        self.objects.enter_child();
        self.flight = Flight::default();
        self.entries.clear();
        self.found = Found::default();
    }

    /// An object is gone.
    fn end(&mut self, pointer: usize, call: &'static str, site: Site) {
        self.objects.end(pointer, call, site);
        self.flight.forget(pointer);
        self.flight.forget_shared(pointer);
        self.entries.remove(&pointer);
    }

    /// The requests in flight that use a region: one of each queue.
    fn users_of(&self, lkey: u32) -> Vec<User> {
        let uses = |request: &&flight::Request| {
            request.posted.flags & adverb_libibverbs::abi::IBV_SEND_INLINE == 0
                && request.elements.iter().any(|element| element.lkey == lkey && element.length > 0)
        };
        let mut users = Vec::new();
        for (pointer, pair) in &self.flight.pairs {
            for (queue, what) in [(&pair.sends, "request"), (&pair.receives, "receive")] {
                if let Some(request) = queue.iter().find(uses).filter(|_| queue.is_certain()) {
                    let number = Some((*pointer, pair.number));
                    users.push(User { number, what, wr_id: request.posted.wr_id, site: request.site });
                }
            }
        }
        for (pointer, queue) in &self.flight.shared {
            // One that no queue pair takes from is not in use.
            let taker = self.flight.pairs.iter().find(|(_, pair)| pair.shared == *pointer);
            if let (Some(request), Some((pair, _))) = (queue.iter().find(uses), taker) {
                let number = Some((*pair, self.flight.pairs[pair].number));
                users.push(User { number, what: "receive", wr_id: request.posted.wr_id, site: request.site });
            }
        }
        users
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
        Some(Finding::new(Kind::WindowInUse, rkey.into(), text).at("posted at", request.site))
    }

    /// What a call has made or destroyed.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so.
    #[allow(clippy::too_many_arguments)]
    unsafe fn effect(
        &mut self,
        role: &Role,
        call: &'static Call,
        arguments: &Arguments,
        begun: &Begun,
        answer: Answer,
        failed: Option<i32>,
        findings: &mut Vec<Finding>,
    ) {
        // SAFETY: the caller's promise: the result was written where it says.
        let made = match role.effect {
            Effect::Makes(thing) => Some((thing, answer.value)),
            Effect::MakesAt(thing, place) if failed.is_none() => {
                Some((thing, unsafe { *(arguments[place] as *const usize) }))
            }
            Effect::MakesAt(thing, _) => Some((thing, 0)),
            _ => None,
        };
        match (made, role.effect) {
            (Some((thing, 0)), _) => self.objects.fail(thing, call.name, failed.unwrap_or(0), begun.site),
            (Some((thing, pointer)), _) => {
                // SAFETY: just made.
                unsafe { self.make(thing, pointer, call.name, arguments, begun.site) };
            }
            (None, Effect::Destroys(thing)) => match failed {
                None => {
                    if thing == Thing::Context {
                        findings.extend(self.objects.left(Some(arguments[0]), false));
                    }
                    self.end(arguments[0], call.name, begun.site);
                }
                Some(libc::EBUSY) => self.objects.refuse(arguments[0], call.name, begun.site),
                Some(_) => {}
            },
            _ => {}
        }
    }

    /// # Safety
    /// The object lives, and the arguments are right for the call.
    unsafe fn make(
        &mut self,
        thing: Thing,
        pointer: usize,
        call: &'static str,
        arguments: &Arguments,
        site: Site,
    ) {
        // SAFETY: the caller's promise.
        let (new, entries) = unsafe {
            (describe::describe(thing, pointer, call, arguments), describe::entries(call, arguments))
        };
        self.entries.extend(entries.map(|entries| (pointer, entries)));
        self.objects.make(pointer, new, site);
    }

    /// What a call does in a way of its own.
    ///
    /// # Safety
    /// As of [`State::effect`].
    unsafe fn act(
        &mut self,
        role: &Role,
        call: &'static Call,
        arguments: &Arguments,
        begun: &Begun,
        failed: Option<i32>,
    ) {
        match role.act {
            Act::MakesManaged if failed.is_none() => {
                // SAFETY: the caller's promise: the identifier lives, and a new one was written where it says.
                unsafe {
                    let id = match role.effect {
                        Effect::MakesAt(_, place) => *(arguments[place] as *const usize),
                        _ => arguments[0],
                    };
                    self.look_at_identifier(id, call.name, arguments, begun.site);
                }
            }
            Act::DestroysPair | Act::DestroysSharedQueue | Act::DestroysEndpoint => {
                for (pointer, thing) in &begun.managed {
                    let goes = match role.act {
                        Act::DestroysPair => *thing != Thing::SharedQueue,
                        Act::DestroysSharedQueue => *thing == Thing::SharedQueue,
                        _ => true,
                    };
                    if goes {
                        self.end(*pointer, call.name, begun.site);
                    }
                }
            }
            Act::GetManagerEvent if failed.is_none() => {
                // SAFETY: the event was written there, and is the program's until it is acknowledged.
                let (kind, id) = unsafe {
                    let event = *(arguments[1] as *const *const rdma_cm_event);
                    ((*event).event, (*event).id as usize)
                };
                if kind == RDMA_CM_EVENT_CONNECT_REQUEST && self.objects.get(id).is_none() {
                    // SAFETY: the identifier lives.
                    unsafe { self.make(Thing::Identifier, id, call.name, arguments, begun.site) };
                }
            }
            _ => {}
        }
    }

    /// Takes in what the manager has made for an identifier.
    ///
    /// # Safety
    /// The identifier lives, and the arguments are right for the call.
    unsafe fn look_at_identifier(
        &mut self,
        id: usize,
        call: &'static str,
        arguments: &Arguments,
        site: Site,
    ) {
        // SAFETY: the caller's promise.
        for (pointer, thing) in unsafe { describe::of_identifier(id) } {
            if self.objects.get(pointer).is_none() {
                // SAFETY: objects of a live identifier.
                let mut new = unsafe { describe::describe(thing, pointer, call, arguments) };
                new.manager = id;
                self.objects.make(pointer, new, site);
            }
        }
    }
}

/// A request in flight that uses a region.
struct User {
    /// Its queue pair: address and number.
    number: Option<(usize, u32)>,
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

/// The names and meanings of all findings, for a person.
pub fn list() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for kind in finding::Kind::ALL {
        let _ = writeln!(text, "{}\n    {}\n    remedy: {}", kind.name(), kind.meaning(), kind.remedy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_is_in_the_list() {
        let list = list();
        assert!(finding::Kind::ALL.iter().all(|kind| list.contains(&format!("{}\n", kind.name()))));
    }
}
