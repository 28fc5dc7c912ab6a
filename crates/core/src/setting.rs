//! The environment variables of the project, read once per engine. All are ignored in setuid programs.

use std::ffi::{CStr, CString, c_char};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The value of an environment variable, unless the program runs with more rights than its user (secure_getenv(3)).
pub fn variable(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: a valid C string; the result is read at once, before anything could change the environment in this thread.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_string_lossy().into_owned()) }
    }
}

/// The devices that a program sees: `ADVERB_DEVICE`, a comma list, in its order.
pub fn devices() -> Option<Vec<String>> {
    let list = variable("ADVERB_DEVICE")?;
    let names: Vec<String> =
        list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { None } else { Some(names) }
}

/// How long a thread may spin after real work, in microseconds: `ADVERB_SPIN`; by default 0 on up to two processors, else 20.
pub fn spin_microseconds() -> u32 {
    variable("ADVERB_SPIN").and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| {
        if std::thread::available_parallelism().map_or(1, |n| n.get()) <= 2 { 0 } else { 20 }
    })
}

/// Whether `feature` is switched off by `ADVERB_WITHOUT`, a comma list, so that tests cover the fallbacks.
pub fn without(feature: &str) -> bool {
    variable("ADVERB_WITHOUT").is_some_and(|list| list.split(',').any(|name| name.trim() == feature))
}
