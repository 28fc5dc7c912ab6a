//! Parts of the engine that code below it reaches by itself.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A part of the engine of this process, if there is an engine. Thread-safe.
pub(crate) struct Current<T: 'static>(AtomicPtr<T>);

impl<T> Current<T> {
    /// None, until the engine says so.
    pub(crate) const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The engine that was built has this one.
    pub(crate) fn set(&self, part: &'static T) {
        self.0.store(std::ptr::from_ref(part).cast_mut(), Ordering::Release);
    }

    /// In a child of fork, whose engine is none of its own: stores alone.
    pub(crate) fn forget(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The part that the engine of this process has. `None` if there is no engine.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: `set` has stored a reference that lives for ever, or nothing is there.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}
