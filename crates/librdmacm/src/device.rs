//! The devices as rdma_cm sees them: each is opened once, with a default protection domain, and shared by all
//! identifiers (`rdma_get_devices(3)`).

use core::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use adverb_core::device::Device;
use adverb_core::error::{Error, Result};
use adverb_libibverbs::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr,
};
use adverb_libibverbs::context::{ibv_close_device, open};
use adverb_libibverbs::device::devices;
use adverb_libibverbs::domain::{ibv_alloc_pd, ibv_dealloc_pd};
use adverb_libibverbs::errno::{Call, errno, fail_null, refusal};
use adverb_libibverbs::grow_list::GrowList;
use adverb_libibverbs::xrc::open_xrcd;

/// A device in use by rdma_cm. It stays open: programs keep the context that they find in an identifier.
pub(crate) struct OpenDevice {
    device: Arc<Device>,
    /// The context that identifiers show as `verbs`.
    pub(crate) verbs: *mut ibv_context,
    /// The protection domain that identifiers show as `pd` until the program gives them another.
    pub(crate) pd: *mut ibv_pd,
    /// The XRC domain of identifiers that are given none, opened when the first one needs it.
    xrcd: Mutex<*mut ibv_xrcd>,
}

// SAFETY: contexts and protection domains may be used by any thread (ibv_open_device(3)).
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl OpenDevice {
    /// The XRC domain of the identifiers on this device.
    pub(crate) fn xrc_domain(&self) -> Result<*mut ibv_xrcd> {
        let mut xrcd = self.xrcd.lock().unwrap_or_else(PoisonError::into_inner);
        if xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the context stays open.
            *xrcd = unsafe { open_xrcd(self.verbs, &raw mut attr) };
            if xrcd.is_null() {
                return Err(Error::new(errno(), format!("no XRC domain on {}", self.device.name())));
            }
        }
        Ok(*xrcd)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: only an entry that never got into the list is dropped: nobody else knows these objects.
        unsafe {
            ibv_dealloc_pd(self.pd);
            ibv_close_device(self.verbs);
        }
    }
}

static OPENED: GrowList<OpenDevice> = GrowList::new();

/// Opens a device for rdma_cm, or finds it opened.
pub(crate) fn opened(device: &Arc<Device>) -> Result<&'static OpenDevice> {
    OPENED.find_or_add(
        |entry| Arc::ptr_eq(&entry.device, device),
        || {
            let verbs = open(device)?;
            // SAFETY: just opened.
            let pd = unsafe { ibv_alloc_pd(verbs) };
            if pd.is_null() {
                let error = Error::new(errno(), format!("no protection domain on {}", device.name()));
                // SAFETY: just opened; nobody else knows it.
                unsafe { ibv_close_device(verbs) };
                return Err(error);
            }
            Ok(OpenDevice { device: device.clone(), verbs, pd, xrcd: Mutex::new(null_mut()) })
        },
    )
}

/// The open devices, as an array that ends with NULL (`rdma_get_devices(3)`).
///
/// # Safety
/// `count` is NULL or valid.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 0;
    }
    let opened = devices().and_then(|found| found.iter().map(opened).collect::<Result<Vec<_>>>());
    let opened = match opened {
        Ok(opened) if !opened.is_empty() => opened,
        Ok(_) => return fail_null(libc::ENODEV),
        Err(error) => return fail_null(refusal(&error)),
    };
    // SAFETY: room for the contexts and the NULL; zeroed memory is an array of NULLs.
    let list =
        unsafe { libc::calloc(opened.len() + 1, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
    if list.is_null() {
        return fail_null(libc::ENOMEM);
    }
    for (place, entry) in opened.iter().enumerate() {
        // SAFETY: inside the array.
        unsafe { *list.add(place) = entry.verbs };
    }
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = opened.len() as c_int;
    }
    list
}

/// Frees the array; the devices stay open (`rdma_get_devices(3)`).
///
/// # Safety
/// `list` is NULL or came from [`rdma_get_devices`].
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    let _call = Call::new();
    // SAFETY: it was allocated with calloc.
    unsafe { libc::free(list.cast::<c_void>()) }
}
