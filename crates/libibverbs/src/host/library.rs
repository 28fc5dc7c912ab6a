//! The host's libibverbs in a link-map namespace of its own (`dlmopen(3)`).
//!
//! It cannot be loaded beside ours: its providers are linked to `libibverbs.so.1` by that name, and would
//! register with ours. In a namespace of its own it is the only one of that name. It has a C library of its
//! own there, too, and three things of that need care: `errno`, the tables of `<ctype.h>`, and keys of
//! thread-specific data.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;

use adverb_core::cancel::CancellationGuard;

use crate::errno::set_errno;

/// A function of the host's. All that are called have at most six arguments, each an integer or a pointer;
/// registers that a function does not look at may hold anything.
pub(super) type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// The arguments of a call, in their order.
pub(super) type Arguments = [usize; 6];

/// A name that our own libibverbs exports, and no other.
const OURS: &CStr = c"adverb_rdma_create_event_channel";

/// How the names of nodes begin whose number changes from release to release.
const PRIVATE: &str = "IBVERBS_PRIVATE_";

/// Keys of thread-specific data that stay with the program's C library. Both C libraries count from 0 and
/// keep the values in the same place of a thread; the first 32 need no memory.
const KEYS: usize = 24;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The host's libibverbs.
pub(super) struct Library {
    /// Null in tests.
    handle: *mut c_void,
    errno: unsafe extern "C" fn() -> *mut c_int,
    /// Gives the calling thread the tables of `<ctype.h>`: a thread has those of the C library that made it.
    prepare: Option<unsafe extern "C" fn()>,
}

// SAFETY: the handle is only passed to dlvsym(3), which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads it by its full path.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn open(path: &str) -> Result<Self, String> {
        let _whole = CancellationGuard::new();
        let name = CString::new(path).map_err(|_| "its name has a zero".to_owned())?;
        // SAFETY: a C string; the library's constructors are those of a system library. `Self` owns the
        // handle.
        let handle =
            unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the call before has failed, so there is a text, and this thread reads it at once.
            return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
        }
        // SAFETY: the handle is open, the names are C strings, and each symbol is of the type that it has in
        // every C library of GNU.
        unsafe {
            let symbol = |name: &CStr| libc::dlsym(handle, name.as_ptr());
            let errno = symbol(c"__errno_location");
            if errno.is_null() || !symbol(OURS).is_null() {
                let why = if errno.is_null() { "it has no C library of GNU" } else { "it is adverb's own" };
                libc::dlclose(handle);
                return Err(why.to_owned());
            }
            let create = symbol(c"pthread_key_create");
            if !create.is_null() {
                let create: unsafe extern "C" fn(*mut libc::pthread_key_t, *const c_void) -> c_int =
                    std::mem::transmute(create);
                for _ in 0..KEYS {
                    create(&mut 0, std::ptr::null());
                }
            }
            let prepare = symbol(c"__ctype_init");
            Ok(Self {
                handle,
                errno: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_int>(errno),
                prepare: std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn()>>(prepare),
            })
        }
    }

    /// A library without functions, whose `errno` is where `errno` says.
    #[cfg(test)]
    pub(super) fn for_tests(errno: unsafe extern "C" fn() -> *mut c_int) -> Self {
        Self { handle: std::ptr::null_mut(), errno, prepare: None }
    }

    /// The function of this name and version.
    pub(super) fn function(&self, name: &str, node: &str) -> Option<Function> {
        let (Ok(symbol), Ok(version)) = (CString::new(name), CString::new(node)) else { return None };
        // SAFETY: the handle is open and never closed; the strings are terminated.
        let mut found = unsafe { dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()) };
        if found.is_null() && node.starts_with(PRIVATE) {
            // SAFETY: as above.
            found = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) };
        }
        // SAFETY: null is none; what libibverbs exports under the names that are asked for are functions of
        // integers and pointers.
        unsafe { std::mem::transmute::<*mut c_void, Option<Function>>(found) }
    }

    /// Calls a function with the program's `errno`, and gives the program the one that it leaves.
    ///
    /// Nothing here has to be dropped: the thread may be cancelled in the call.
    ///
    /// # Safety
    /// The function is the host's, and the arguments are right for it.
    pub(super) unsafe fn call(&self, function: Function, arguments: &Arguments) -> usize {
        let [a, b, c, d, e, f] = *arguments;
        // SAFETY: both places are the calling thread's, as long as it lives; of the rest, the caller's
        // promise.
        unsafe {
            if let Some(prepare) = self.prepare {
                prepare();
            }
            let theirs = (self.errno)();
            *theirs = crate::errno::errno();
            let result = function(a, b, c, d, e, f);
            set_errno(*theirs);
            result
        }
    }
}

impl Drop for Library {
    /// Another thread was faster: nobody has called a function of this one.
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: opened by `open`, and closed once.
            unsafe { libc::dlclose(self.handle) };
        }
    }
}
