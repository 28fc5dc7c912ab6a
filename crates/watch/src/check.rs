//! The check of a program (`adverb run --check`): what a program does with verbs and rdma_cm that works by
//! luck, or not at all.
//!
//! Each call is looked at before and after it is made. A finding is certain: where the check cannot know, it
//! says nothing. Its mutex is held neither while the call itself runs nor while names of functions are looked
//! up.

mod checksum;
mod completions;
mod describe;
mod ending;
mod explain;
mod few;
pub mod finding;
mod flight;
mod known;
mod lock;
mod map;
mod memory;
mod objects;
mod passage;
mod profile;
mod report;
mod roles;
pub mod setting;
mod site;
mod sleepers;
mod spare;
pub mod suppress;
mod waits;
mod work;

use crate::calls::Call;
use crate::format::failure;
use adverb_core::cancel::CancellationGuard;
use adverb_core::engine;
use adverb_core::heard;
use adverb_core::log;
use adverb_core::qp::State as PairState;
use adverb_core::setting::variable;
use adverb_libibverbs::abi::ibv_qp;
use adverb_libibverbs::object;
use adverb_libibverbs::qp::PairObject;
use adverb_libibverbs::seam::{Answer, Arguments, PostedRequest};
use adverb_librdmacm::abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event, rdma_cm_id};
use describe::Region;
use flight::Flight;
use lock::{Inside, Lock};
use map::Map;
use objects::{Caller, Objects};
use passage::FailedPost;
use profile::Profile;
use report::{Finding, Findings, LeakSearch, Report};
use roles::{Act, Effect, Role, Thing};
use site::Site;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use suppress::Suppressions;
use waits::Waits;
use work::Posting;

/// The check of this process.
pub(crate) struct Check {
    lock: Lock<State>,
    report: Report,
    /// Adapters that the program is compared with.
    profiles: Vec<&'static Profile>,
}

/// What the mutex protects.
struct State {
    forks: u32,
    /// A call was seen in this process: in a child of fork, after the fork.
    has_calls: bool,
    ended: bool,
    objects: Objects,
    flight: Flight,
    /// Completion queues, by address.
    queues: Map<usize, waits::Queue>,
    /// Regions, by address.
    regions: Map<usize, Region>,
    waits: Waits,
    /// Posts that have failed, by the completion queue.
    failed_posts: Map<usize, FailedPost>,
    has_thread: bool,
    /// Findings that are being shown.
    emitting: u32,
    found: Findings,
}

/// The word of a call of which nothing is kept: no address, and with zeros where addresses have them.
const NOTHING_KEPT: usize = 8;

/// What is kept from the beginning of a call to its end.
struct CallState {
    site: Site,
    /// The object that is about to be destroyed, by its serial.
    serial: u64,
    /// Objects of an identifier that is about to be destroyed, with their serials.
    managed: Vec<(usize, Thing, u64)>,
    posting: Option<Posting>,
    /// Of a post: whether the peer is of this process, if that is known.
    has_peer_here: Option<bool>,
    /// Requests of builders, with the number of their elements.
    built: Vec<(PostedRequest, usize)>,
    /// The state of a queue pair that is changed, before the call.
    from: Option<PairState>,
    /// The completions of a queue that is armed, before the call.
    before: Option<waits::Before>,
    /// `--fault` has made the call or one of its completions fail. Such a failure is no mistake of the
    /// program.
    is_injected: bool,
}

impl CallState {
    fn new(site: Site) -> Self {
        let (managed, built) = (Vec::new(), Vec::new());
        let (posting, has_peer_here) = (None, None);
        let (from, before, is_injected) = (None, None, false);
        Self { site, serial: 0, managed, posting, has_peer_here, built, from, before, is_injected }
    }

    /// A new state. The calling thread uses the memory of its last call again.
    fn of_thread(site: Site) -> Box<Self> {
        match SPARE_STATE.try_with(Cell::take).ok().flatten() {
            Some(mut begun) => {
                *begun = Self::new(site);
                begun
            }
            None => Box::new(Self::new(site)),
        }
    }

    /// Keeps the memory for the next call of this thread.
    fn keep(self: Box<Self>) {
        // A thread that ends keeps no memory.
        let _ = SPARE_STATE.try_with(|kept| kept.set(Some(self)));
    }

    fn caller(&self, call: &'static Call) -> Caller {
        Caller { call: call.name, destroys: true, ends_process: STATUS.load(Ordering::Relaxed) != RUNNING }
    }
}

thread_local! {
    static SPARE_STATE: Cell<Option<Box<CallState>>> = const { Cell::new(None) };
}

static CHECK: OnceLock<&'static Check> = OnceLock::new();

/// The status with which the program exits; [`RUNNING`] before.
static STATUS: AtomicI32 = AtomicI32::new(RUNNING);
const RUNNING: i32 = i32::MIN;
/// So long the end of the process waits for a finding that is being shown.
const EMIT_TIMEOUT_MS: u32 = 10_000;

unsafe extern "C" {
    /// on_exit(3).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn exits(status: c_int, _argument: *mut c_void) {
    STATUS.store(status, Ordering::Relaxed);
}

/// Runs before the engine's own handler, which ends connections: it was asked for later.
extern "C" fn exits_soon(_status: c_int, _argument: *mut c_void) {
    if let Some(check) = CHECK.get() {
        check.note_flight();
    }
}

/// When the process ends, what it has registered has run, and so have the destructors of the libraries that
/// use this one.
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
        let _whole = CancellationGuard::new();
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
                .and_then(|name| setting::FindingFormat::from_name(name.trim()))
                .unwrap_or(setting::FindingFormat::Text),
            file: present(setting::FILE),
            count: present(setting::COUNT),
            suppressions,
            program: program.unwrap_or_default().to_string_lossy().into_owned(),
            errors: report::Errors::now(),
        };
        let state = State {
            forks: lock::forks(),
            has_calls: false,
            ended: false,
            objects: Objects::default(),
            flight: Flight::default(),
            queues: Map::default(),
            regions: Map::default(),
            waits: Waits::default(),
            failed_posts: Map::default(),
            has_thread: false,
            emitting: 0,
            found: Findings::default(),
        };
        let check: &'static Self =
            Box::leak(Box::new(Self { lock: Lock::new(state), report, profiles: Profile::named(&words) }));
        if CHECK.set(check).is_ok() {
            check.lock.survive_forks();
            object::keep_memory();
            heard::listen(waits::hear);
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
        if findings.is_empty() {
            return;
        }
        let _whole = CancellationGuard::new();
        for mut finding in findings {
            finding.call = finding.call.or((!call.is_empty()).then_some(call));
            let site = finding
                .site
                .unwrap_or_else(|| if finding.call.is_some() { Site::here() } else { Site::default() });
            let is_new = self.with(|state| {
                let is_new = !state.ended && state.found.is_new(&finding, site);
                state.emitting += u32::from(is_new);
                is_new
            });
            if is_new {
                let is_shown = self.report.show(&finding, site);
                self.with(|state| {
                    state.emitting = state.emitting.saturating_sub(1);
                    if is_shown {
                        state.found.count(finding.kind);
                    }
                });
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
        let _whole = role.may_be_cancelled().then(CancellationGuard::new);
        let Some(_inside) = Inside::enter() else { return 0 };
        let is_kept =
            role.effect != Effect::None || !matches!(role.act, Act::Other | Act::Poll | Act::Cursor);
        let site = if is_kept { Site::of_call(index) } else { Site::default() };
        let mut kept = is_kept.then(|| CallState::of_thread(site));
        let mut none = None;
        let begun: &mut CallState = match &mut kept {
            Some(kept) => kept,
            None => none.insert(CallState::new(site)),
        };
        let ends_process = STATUS.load(Ordering::Relaxed) != RUNNING;
        let destroys = matches!(role.effect, Effect::Destroys(_));
        let caller = Caller { call: call.name, destroys, ends_process };
        let mut findings = Vec::new();
        let mut is_usable = true;
        self.with(|state| {
            state.has_calls = true;
            state.flight.epoch += u64::from(!role.is_frequent());
            for (place, thing, may_be_null) in &role.objects {
                if state.objects.is_live(arguments[*place]) {
                    continue;
                }
                let finding = state.objects.argument(arguments[*place], *thing, *may_be_null, caller);
                let is_there = *may_be_null || arguments[*place] != 0;
                is_usable &= is_there && !state.objects.is_gone(arguments[*place]);
                findings.extend(finding);
            }
            if matches!(role.act, Act::DestroysPair | Act::DestroysSharedQueue | Act::DestroysEndpoint) {
                let managed = state.objects.of_manager(arguments[0]);
                let begin_end = |(pointer, thing)| (pointer, thing, state.objects.begin_end(pointer));
                begun.managed = managed.into_iter().map(begin_end).collect();
            }
            if destroys {
                begun.serial = state.objects.begin_end(arguments[0]);
            }
            if matches!(role.act, Act::PostSends | Act::PostBuilt) {
                begun.has_peer_here = state.flight.has_peer_here(arguments[0]);
            }
            if role.act == Act::DestroysPair && is_usable {
                // SAFETY: the caller's promise: the identifier lives.
                let pair = unsafe { (*(arguments[0] as *const rdma_cm_id)).qp as usize };
                let caller = Caller { destroys: true, ..caller };
                findings.extend(state.objects.argument(pair, Thing::QueuePair, true, caller));
            }
        });
        if is_usable {
            // SAFETY: the caller's promise; its objects live.
            unsafe {
                self.prepare(role, call, arguments, begun, &mut findings);
                if !self.profiles.is_empty() {
                    findings.extend(profile::look(&self.profiles, call.name, role.act, arguments));
                }
            }
        }
        self.emit(call.name, findings);
        match kept {
            Some(begun) => Box::into_raw(begun) as usize,
            None if role.act == Act::Other => 0,
            None => NOTHING_KEPT,
        }
    }

    /// The call is not made: a fault answers in its place.
    ///
    /// # Safety
    /// `word` is that of [`Check::begins`], and the call has not ended.
    pub(crate) unsafe fn injected(&self, word: usize) {
        if ![0, NOTHING_KEPT].contains(&word) {
            // SAFETY: the caller's promise.
            unsafe { (*(word as *mut CallState)).is_injected = true };
        }
    }

    /// A call has ended. Beside its answer stands whether `--fault` has changed a completion that the call
    /// hands out.
    ///
    /// # Safety
    /// The arguments are right for the call; `word` is that of [`Check::begins`].
    pub(crate) unsafe fn ended(
        &self,
        index: usize,
        call: &'static Call,
        arguments: &Arguments,
        word: usize,
        (answer, is_injected): (Answer, bool),
    ) {
        if word == 0 {
            return;
        }
        let role = &Role::all()[index];
        // A poll that has found nothing.
        let is_empty = word == NOTHING_KEPT && (role.act != Act::Poll || answer.value as i32 == 0);
        if is_empty
            && (role.act == Act::Poll || failure(call, answer).is_some())
            && !passage::has_failed_posts()
        {
            return;
        }
        let _whole = role.may_be_cancelled().then(CancellationGuard::new);
        // SAFETY: the word of a call that has begun and not ended.
        let mut kept = (word != NOTHING_KEPT).then(|| unsafe { Box::from_raw(word as *mut CallState) });
        let mut none = None;
        let begun: &mut CallState = match &mut kept {
            Some(kept) => kept,
            None => none.insert(CallState::new(Site::default())),
        };
        begun.is_injected |= is_injected;
        let Some(_inside) = Inside::enter() else { return };
        let makes_queue = matches!(
            role.effect,
            Effect::Makes(Thing::QueuePair | Thing::CompletionQueue | Thing::EventChannel | Thing::Channel)
        );
        if makes_queue
            && let (Some(check), Some(engine)) = (CHECK.get(), engine::existing())
            && !self.with(|state| std::mem::replace(&mut state.has_thread, true))
        {
            check.start_looking(engine);
            // SAFETY: a static function that may run at exit.
            unsafe { on_exit(exits_soon, std::ptr::null_mut()) };
        }
        let failed = failure(call, answer);
        let mut findings = Vec::new();
        if !role.is_frequent() {
            // SAFETY: the caller's promise, for all of these.
            self.with(|state| unsafe {
                state.effect(role, call, arguments, begun, answer, failed, &mut findings);
                state.act(role, call, arguments, begun, failed);
            });
        }
        // SAFETY: the caller's promise.
        unsafe { self.conclude(role, call, arguments, begun, answer, failed, &mut findings) };
        self.emit(call.name, findings);
        if let Some(begun) = kept {
            begun.keep();
        }
    }

    /// The process ends.
    fn end(&self) {
        let _whole = CancellationGuard::new();
        let Some(_inside) = Inside::enter() else { return };
        let status = STATUS.load(Ordering::Relaxed);
        let failed = (![0, RUNNING].contains(&status)).then_some(status);
        if self.with(|state| state.ended || !state.has_calls) {
            return;
        }
        let told = waits::told(true);
        let both_ends = self.both_ends(&told);
        let (findings, leaks) = self.with(|state| {
            let mut findings = state.messages(told, &both_ends);
            findings.extend(state.endings(0));
            findings.extend(state.overruns());
            // A handler of a signal may end the program in the middle of its work.
            let leaks = match failed {
                _ if lock::has_missed() => LeakSearch::CallUnseen,
                _ if state.waits.has_endings() => LeakSearch::DestroyUnfinished,
                Some(status) => LeakSearch::ProgramFailed(status),
                None => LeakSearch::Made,
            };
            if leaks == LeakSearch::Made {
                findings.extend(state.flight.left());
            }
            if matches!(leaks, LeakSearch::Made | LeakSearch::ProgramFailed(_)) {
                findings.extend(state.objects.left(None, failed.is_some()));
            }
            (findings, leaks)
        });
        self.emit("", findings);
        // Another thread may be looking for names.
        for _ in 0..EMIT_TIMEOUT_MS {
            if self.with(|state| state.emitting) == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let found = self.with(|state| {
            state.ended = true;
            std::mem::take(&mut state.found)
        });
        self.report.end(&found, leaks);
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
        self.queues.clear();
        self.regions.clear();
        self.waits = Waits::default();
        self.failed_posts.clear();
        self.has_thread = false;
        self.emitting = 0;
        self.found = Findings::default();
    }

    /// The object of this serial is gone.
    fn end(&mut self, pointer: usize, serial: u64, call: &'static str, site: Site) {
        if self.objects.is_anothers(pointer, serial) {
            return;
        }
        self.objects.end(pointer, call, site);
        self.regions.remove(&pointer);
        self.flight.forget(pointer);
        self.flight.forget_shared(pointer);
        self.queues.remove(&pointer);
        self.failed_posts.remove(&pointer);
        self.waits.forget(pointer);
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
        begun: &CallState,
        answer: Answer,
        failed: Option<i32>,
        findings: &mut Vec<Finding>,
    ) {
        let made = match role.effect {
            Effect::Makes(thing) => Some((thing, answer.value)),
            Effect::MakesAt(thing, place) if failed.is_none() => {
                // SAFETY: the caller's promise: the result was written where the argument says.
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
                    self.end(arguments[0], begun.serial, call.name, begun.site);
                }
                Some(errno) => {
                    self.objects.stay(arguments[0]);
                    if errno == libc::EBUSY && !begun.is_injected {
                        self.objects.refuse(arguments[0], call.name, begun.site);
                    }
                }
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
        // SAFETY: the caller's promise.
        unsafe { self.begin_queue(thing, pointer, entries) };
        if thing == Thing::Region {
            // SAFETY: as above.
            let region = unsafe { describe::region(pointer, call, arguments) };
            self.regions.insert(pointer, region);
        }
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
        begun: &CallState,
        failed: Option<i32>,
    ) {
        match role.act {
            Act::MakesManaged if failed.is_none() => {
                // SAFETY: the caller's promise: the identifier lives, and a new one was written where it
                // says.
                unsafe {
                    let id = match role.effect {
                        Effect::MakesAt(_, place) => *(arguments[place] as *const usize),
                        _ => arguments[0],
                    };
                    self.look_at_identifier(id, call.name, arguments, begun.site);
                }
            }
            Act::DestroysPair | Act::DestroysSharedQueue | Act::DestroysEndpoint => {
                for (pointer, thing, serial) in &begun.managed {
                    let goes = match role.act {
                        Act::DestroysPair => *thing != Thing::SharedQueue,
                        Act::DestroysSharedQueue => *thing == Thing::SharedQueue,
                        _ => true,
                    };
                    if goes {
                        self.end(*pointer, *serial, call.name, begun.site);
                    } else {
                        self.objects.stay(*pointer);
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

    /// A new queue begins empty.
    ///
    /// # Safety
    /// It lives.
    unsafe fn begin_queue(&mut self, thing: Thing, pointer: usize, entries: Option<u32>) {
        match thing {
            Thing::CompletionQueue => {
                self.queues.insert(pointer, waits::Queue::new(entries));
                if let Some(entries) = entries {
                    // SAFETY: the caller's promise.
                    unsafe { completions::say_room(pointer, entries) };
                }
            }
            Thing::QueuePair => {
                let pair = pointer as *mut ibv_qp;
                // SAFETY: the caller's promise.
                unsafe {
                    if let Some(object) = PairObject::get(pair) {
                        self.flight.pair(pointer, || work::new_pair(&object.inner.core, pair));
                    }
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
                // SAFETY: as above.
                unsafe { self.begin_queue(thing, pointer, None) };
                self.objects.make(pointer, new, site);
            }
        }
    }
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
