//! Import of open devices and of their objects (`ibv_import_device(3)`), by the process that opened them and
//! by others of its user.
//!
//! The command descriptor of a context is a memfd. Each duplicate of it stands for the context, and says to
//! other processes where to ask for its objects ([`adverb_core::export`]). What they import is of their own
//! engine: a domain of theirs, and in it regions of the same pages by the same addresses, under keys that
//! `lkey` and `rkey` say.

use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use adverb_core::descriptor::set_length;
use adverb_core::device::{Context, Device};
use adverb_core::error::{Error, Result};
use adverb_core::export::{self, Remote};
use adverb_core::region::ProtectionDomain;

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::context::{self, context};
use crate::domain::{self, DomainObject};
use crate::errno::{Call, fail_null, refusal};
use crate::memory::RegionObject;
use crate::object::Object;

const NAME: &std::ffi::CStr = c"adverb-context";

/// A command descriptor, and what tells it from others; -1 where there is no memfd.
pub(crate) fn command_descriptor(context: &Context) -> (RawFd, Option<u64>) {
    // SAFETY: a C string, and a flag that exists.
    let descriptor = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    let ticket = export::ticket(context);
    // Without these bytes the process exports nothing.
    if set_length(descriptor, ticket.len()).is_ok() {
        // SAFETY: a live slice.
        let _ = unsafe { libc::pwrite(descriptor, ticket.as_ptr().cast(), ticket.len(), 0) };
    }
    (descriptor, identity(descriptor))
}

/// What tells a memfd from others.
fn identity(descriptor: RawFd) -> Option<u64> {
    // SAFETY: plain numbers, valid when zero.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor, or a number that is none, and a live local.
    (unsafe { libc::fstat(descriptor, &raw mut found) } == 0).then_some(found.st_ino)
}

/// Whether a descriptor was made by [`command_descriptor`], perhaps in another process.
fn is_ours(descriptor: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{descriptor}"))
        .is_ok_and(|link| link.to_str() == Some("/memfd:adverb-context (deleted)"))
}

/// Opens the device of a command descriptor anew, so that objects of the context which it belongs to can be
/// imported: NULL and `errno` on failure, `EINVAL` for what is no command descriptor, `ENODEV` if this
/// process does not have the device, `EOPNOTSUPP` if the process that opened it has ended; as
/// [`Remote::device`]. The descriptor belongs to the new context.
pub extern "C" fn ibv_import_device(descriptor: c_int) -> *mut ibv_context {
    let Some(identity) = identity(descriptor).filter(|_| is_ours(descriptor)) else {
        return fail_null(libc::EINVAL);
    };
    let devices = match crate::device::devices() {
        Ok(devices) => devices,
        Err(error) => return fail_null(refusal(&error)),
    };
    let found: Option<Arc<Context>> =
        devices.iter().find_map(|device| device.context_with_identity(identity));
    let imported = match found {
        Some(exporter) => context::import(exporter, descriptor),
        None => import_from_elsewhere(&devices, descriptor),
    };
    imported.unwrap_or_else(|error| fail_null(refusal(&error)))
}

fn import_from_elsewhere(devices: &[Arc<Device>], descriptor: c_int) -> Result<*mut ibv_context> {
    let _call = Call::new();
    let remote = Remote::of(descriptor)
        .ok_or_else(|| Error::invalid("the command descriptor does not say whose it is"))?;
    let name = remote.device()?;
    let device = devices.iter().find(|device| device.name() == name).ok_or_else(|| {
        Error::new(libc::ENODEV, format!("the context is of {name}, which ADVERB_DEVICE does not name here"))
    })?;
    context::import_remote(device, remote, descriptor)
}

/// Makes a protection domain of an imported device usable through it (`ibv_import_pd(3)`): NULL and `errno`
/// on failure.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_import_pd(pointer: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return fail_null(libc::EINVAL) };
    if let Some(remote) = context.inner.remote {
        let _call = Call::new();
        let imported = remote.find_domain(handle).and_then(|()| ProtectionDomain::new(&context.inner.core));
        return match imported {
            Ok(core) => domain::wrap_as(pointer, core, handle, Some((remote, handle))),
            Err(error) => fail_null(refusal(&error)),
        };
    }
    let Some(original) = context.inner.exporter().protection_domain(handle) else {
        return fail_null(libc::ENOENT);
    };
    match original.share(&context.inner.core) {
        Ok(core) => domain::wrap(pointer, core),
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Forgets an imported protection domain (`ibv_import_pd(3)`); the original stays.
///
/// # Safety
/// `pd` is NULL or an imported protection domain that is not used any more.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if let Some(object) = unsafe { DomainObject::get(pd) } {
        object.inner.core.retire();
        // SAFETY: nothing refers to it any more.
        unsafe { Object::free(object) };
    }
}

/// Makes a memory region usable through an imported protection domain (`ibv_import_mr(3)`): NULL and `errno`
/// on failure. Its address is not told. Of another process's region, the import has keys of its own, and
/// `ENOENT` says that there is no such region, `EOPNOTSUPP` that its pages cannot be shared: the log says
/// why.
///
/// # Safety
/// `pd` is NULL or a protection domain.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { DomainObject::get(pd) }) else { return fail_null(libc::EINVAL) };
    if let Some((remote, number)) = domain.inner.remote {
        let _call = Call::new();
        return match remote.import_region(&domain.inner.core, number, handle) {
            Ok(region) => {
                let object = RegionObject::of(domain, null_mut(), region.length() as usize, region);
                // SAFETY: just made; nobody else knows it.
                unsafe { (*object).handle = handle };
                object
            }
            Err(error) => fail_null(refusal(&error)),
        };
    }
    match domain.inner.core.region_length(handle) {
        Some(length) => RegionObject::imported(domain, null_mut::<c_void>(), length as usize, handle),
        None => fail_null(libc::ENOENT),
    }
}

/// Forgets an imported memory region (`ibv_import_mr(3)`); the original stays.
///
/// # Safety
/// `mr` is NULL or an imported region that is not used any more.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if let Some(object) = unsafe { RegionObject::get(mr) } {
        // SAFETY: nothing refers to it any more.
        unsafe { Object::free(object) };
    }
}
