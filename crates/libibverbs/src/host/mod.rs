//! The host's own devices (`adverb run --with-host-devices`): the host's libibverbs serves them, and this
//! library passes on what is asked of them.
//!
//! The list of devices has them behind ours. A function of ours that gets an object looks whose it is: an
//! open context of the host's, or an object that begins with one, as every object of verbs does; or a device
//! of the host's. Then the host's function of the same name and version is called with the same arguments.
//! Nothing is known here of what they mean, so there is one way for all functions ([`pass`]). Functions that
//! `verbs.h` calls through the tables of a context, posts and polls first of all, do not come by.
//!
//! Without the option, [`ACTIVE`] is false, and that is all that is looked at.

mod library;
mod operations;

use core::ffi::{c_int, c_uint};
use std::convert::Infallible;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use adverb_core::{log, setting};

use crate::abi::{ibv_async_event, ibv_context, ibv_device};
use crate::errno::{errno, set_errno};
use crate::event;
use crate::grow_list::GrowList;
use crate::seam;
use library::{Arguments, Function, Library};
use operations::Originals;

/// Whether the host's library is loaded, so that an object may be the host's.
pub static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The library, once it is loaded.
static LIBRARY: GrowList<Library> = GrowList::new();

/// The host's devices that the program may know. The lists that they came in are kept, so none of them is
/// ever freed.
static DEVICES: GrowList<usize> = GrowList::new();

/// The host's contexts.
static CONTEXTS: GrowList<Context> = GrowList::new();

/// An open context of the host's.
struct Context {
    /// The context's address; [`FREE`] while there is none, [`CLAIMED`] before it is there.
    address: AtomicUsize,
    /// The context's own functions where verbs.h calls by its tables.
    originals: Originals,
}

const FREE: usize = 0;
const CLAIMED: usize = 1;

impl Context {
    fn claimed() -> Self {
        Self { address: AtomicUsize::new(CLAIMED), originals: [const { AtomicUsize::new(0) }; _] }
    }

    /// Keeps an open context in mind.
    ///
    /// # Safety
    /// It is the host's, and the program does not know it yet.
    unsafe fn add(pointer: *mut ibv_context) {
        let claim = |context: &Self| {
            context.address.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        match CONTEXTS.find_or_add(claim, || Ok::<_, Infallible>(Self::claimed())) {
            Ok(context) => {
                // SAFETY: the caller's promise.
                unsafe { operations::wrap(pointer, &context.originals) };
                context.address.store(pointer as usize, Ordering::Release);
            }
            Err(never) => match never {},
        }
    }
}

/// The host's context at an address.
fn context_at(address: usize) -> Option<&'static Context> {
    CONTEXTS.find(|context| address > CLAIMED && context.address.load(Ordering::Acquire) == address)
}

/// The host's context that something is or belongs to.
///
/// # Safety
/// `object` is NULL, a context, or an object of verbs; it is not freed during the call.
unsafe fn context_of(object: usize) -> Option<&'static Context> {
    if object == 0 || !object.is_multiple_of(align_of::<usize>()) {
        return None;
    }
    // SAFETY: the caller's promise: every one of them begins with a pointer.
    context_at(object).or_else(|| context_at(unsafe { *(object as *const usize) }))
}

/// Whether something is the host's: a device, a context, or an object.
///
/// # Safety
/// `object` is NULL, a device, a context, or an object of verbs; it is not freed during the call.
pub unsafe fn owns(object: usize) -> bool {
    // SAFETY: the caller's promise.
    DEVICES.find(|device| *device == object).is_some() || unsafe { context_of(object) }.is_some()
}

/// Whether an object may be the host's.
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Acquire)
}

/// The library, if it is loaded.
fn library() -> Option<&'static Library> {
    LIBRARY.find(|_| true)
}

/// The library, which is loaded if the setting says so.
fn load() -> Option<&'static Library> {
    static FAILED: AtomicBool = AtomicBool::new(false);
    if is_active() {
        return library();
    }
    let path = setting::host_library().filter(|_| !FAILED.load(Ordering::Relaxed))?;
    match LIBRARY.find_or_add(|_| true, || Library::open(&path)) {
        Ok(library) => {
            ACTIVE.store(true, Ordering::SeqCst);
            seam::ACTIVE.store(true, Ordering::SeqCst);
            Some(library)
        }
        Err(why) => {
            if !FAILED.swap(true, Ordering::Relaxed) {
                log::say(format_args!(
                    "{}={path}: cannot be loaded, so the host's devices are missing: {why}",
                    setting::HOST_DEVICES
                ));
            }
            None
        }
    }
}

/// A function that is passed on: what stands in the table of exports.
pub struct ForwardedFunction {
    /// What answers in the place of a function that the host's library does not have.
    missing: *const (),
    /// What of the first argument says whose it is.
    subject: unsafe fn(usize) -> usize,
    name: &'static str,
    node: &'static str,
    /// The address of the host's function, [`UNKNOWN`] before it is looked up, or [`MISSING`].
    theirs: AtomicUsize,
}

const UNKNOWN: usize = 0;
const MISSING: usize = 1;

// SAFETY: the pointers are of functions.
unsafe impl Sync for ForwardedFunction {}

impl ForwardedFunction {
    /// The function `name@node`. It has at most six integers and pointers; `missing` looks at none.
    pub const fn new(
        name: &'static str,
        node: &'static str,
        missing: *const (),
        subject: unsafe fn(usize) -> usize,
    ) -> Self {
        Self { missing, subject, name, node, theirs: AtomicUsize::new(UNKNOWN) }
    }

    /// The host's function, if its library has it.
    fn theirs(&self, library: &Library) -> Option<Function> {
        let mut address = self.theirs.load(Ordering::Relaxed);
        if address == UNKNOWN {
            let found = library.function(self.name, self.node);
            address = found.map_or(MISSING, |function| function as usize);
            self.theirs.store(address, Ordering::Relaxed);
        }
        // SAFETY: any other word is the address of a function of integers and pointers.
        (address != MISSING).then(|| unsafe { std::mem::transmute::<usize, Function>(address) })
    }

    /// Calls the host's function, or says that it is missing.
    ///
    /// # Safety
    /// The arguments are right for it.
    unsafe fn call(&self, library: &Library, arguments: &Arguments) -> usize {
        // SAFETY: the caller's promise; and `missing` is a function that looks at no argument.
        unsafe {
            match self.theirs(library) {
                Some(function) => library.call(function, arguments),
                None => std::mem::transmute::<*const (), extern "C" fn() -> usize>(self.missing)(),
            }
        }
    }
}

/// What a function of the table does first, once [`ACTIVE`] is true: calls the host's function if the object
/// is the host's. None if it is ours.
///
/// # Safety
/// The arguments are right for the function.
pub(crate) unsafe fn pass(passed: &ForwardedFunction, arguments: &Arguments) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe {
        if !owns((passed.subject)(arguments[0])) {
            return None;
        }
        library().map(|library| passed.call(library, arguments))
    }
}

/// The first argument is the object.
///
/// # Safety
/// None is needed.
pub unsafe fn itself(argument: usize) -> usize {
    argument
}

/// The first argument is an asynchronous event: the object that it is about, or 0 if it is about a port.
///
/// # Safety
/// The argument is NULL or points to an event.
pub unsafe fn subject_of_event(argument: usize) -> usize {
    // SAFETY: the caller's promise.
    match unsafe { (argument as *const ibv_async_event).as_ref() } {
        // SAFETY: an event that is not about a port is about an object, and every member of the union is then
        // its pointer.
        Some(event) if event::is_about_object(event.event_type) => unsafe { event.element.cq as usize },
        _ => 0,
    }
}

macro_rules! functions {
    ($($constant:ident = $name:ident $node:literal,)*) => {
        $(static $constant: ForwardedFunction = ForwardedFunction::new(
            stringify!($name),
            $node,
            crate::unsupported::null as *const (),
            itself,
        );)*
    };
}

// What is called from here, not by the program.
functions! {
    GET_DEVICE_LIST = ibv_get_device_list "IBVERBS_1.1",
    FREE_DEVICE_LIST = ibv_free_device_list "IBVERBS_1.1",
    OPEN_DEVICE = ibv_open_device "IBVERBS_1.1",
    CLOSE_DEVICE = ibv_close_device "IBVERBS_1.1",
    FORK_INIT = ibv_fork_init "IBVERBS_1.1",
    IS_FORK_INITIALIZED = ibv_is_fork_initialized "IBVERBS_1.13",
}

/// The host's devices; none without the option.
pub fn devices() -> Vec<*mut ibv_device> {
    let before = errno();
    let found = load().map(list).unwrap_or_default();
    // Without an adapter the host's library fails, which is no failure of ours.
    set_errno(before);
    found
}

fn list(library: &Library) -> Vec<*mut ibv_device> {
    let mut count: c_int = 0;
    // SAFETY: a live local.
    let list = unsafe { GET_DEVICE_LIST.call(library, &first(&raw mut count as usize)) };
    let list = list as *const *mut ibv_device;
    let count = usize::try_from(count).unwrap_or_default();
    if list.is_null() {
        log!(Info, "the host's libibverbs has no list of devices: {}", std::io::Error::last_os_error());
        return Vec::new();
    }
    // SAFETY: the host's list has as many.
    let found = unsafe { slice::from_raw_parts(list, count) }.to_vec();
    let mut is_known = true;
    for device in &found {
        let add = || {
            is_known = false;
            Ok::<_, Infallible>(*device as usize)
        };
        let _ = DEVICES.find_or_add(|known| *known == *device as usize, add);
    }
    // A device lives as long as a list that has it.
    if is_known {
        // SAFETY: the list is the host's, and nobody uses it any more.
        unsafe { FREE_DEVICE_LIST.call(library, &first(list as usize)) };
    }
    found
}

/// Opens a device of the host's (`ibv_open_device(3)`).
///
/// # Safety
/// [`owns`] it.
pub unsafe fn open(device: *mut ibv_device) -> *mut ibv_context {
    let Some(library) = library() else { return crate::unsupported::null().cast() };
    // SAFETY: the caller's promise.
    unsafe {
        let context = OPEN_DEVICE.call(library, &first(device as usize)) as *mut ibv_context;
        if !context.is_null() {
            Context::add(context);
        }
        context
    }
}

/// Closes a context of the host's (`ibv_close_device(3)`).
///
/// # Safety
/// [`owns`] it, and nobody uses it any more.
pub unsafe fn close(pointer: *mut ibv_context) -> c_int {
    let Some(library) = library() else { return -1 };
    // Another one may stand there as soon as it is closed.
    if let Some(context) = context_at(pointer as usize) {
        context.address.store(FREE, Ordering::Release);
    }
    // SAFETY: the caller's promise.
    unsafe { CLOSE_DEVICE.call(library, &first(pointer as usize)) as c_int }
}

/// Prepares the host's library for fork(2), if there is one (`ibv_fork_init(3)`): an error number.
pub fn fork_init() -> Option<c_int> {
    // SAFETY: it has no arguments.
    load().map(|library| unsafe { FORK_INIT.call(library, &first(0)) as c_int })
}

/// Whether the host's library is prepared for fork(2), if there is one (`ibv_is_fork_initialized(3)`).
pub fn is_fork_initialized() -> Option<c_uint> {
    // SAFETY: it has no arguments.
    load().map(|library| unsafe { IS_FORK_INITIALIZED.call(library, &first(0)) as c_uint })
}

fn first(argument: usize) -> Arguments {
    [argument, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests;
