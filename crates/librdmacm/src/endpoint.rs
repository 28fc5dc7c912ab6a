//! Names to addresses, and identifiers made from them (`rdma_getaddrinfo(3)`, `rdma_create_ep(3)`).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;

use adverb_core::cm::{AddressFlags, AddressHints, AddressInfo, LookupError, PortSpace, lookup};
use adverb_core::error::{Error, Result};
use adverb_core::qp::Service;
use adverb_libibverbs::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_pd, ibv_qp_init_attr,
};
use adverb_libibverbs::errno::{Call, fail, refusal};
use libc::{sockaddr, socklen_t};

use crate::abi::{RAI_DNS, RAI_PASSIVE, RAI_SA, rdma_addrinfo, rdma_cm_id};
use crate::address;
use crate::id::{IdObject, bind, create, rdma_destroy_id, rdma_resolve_addr, rdma_resolve_route};
use crate::qp::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};

/// How long `rdma_create_ep` gives address and route, in milliseconds.
const RESOLVE_TIMEOUT: c_int = 2000;

/// Looks up addresses (`rdma_getaddrinfo(3)`): 0, -1 with `errno`, or a number of getaddrinfo(3).
///
/// # Safety
/// The strings are NULL or terminated, `hints` is NULL or valid, `result` is valid.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    let _call = Call::new();
    if result.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let hints = unsafe { hints.as_ref() };
    if hints.is_some_and(|hints| hints.ai_flags & (RAI_SA | RAI_DNS) == RAI_SA) {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let text = |pointer: *const c_char| (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
    let wanted = hints.map(core_hints);
    match lookup(text(node), text(service), wanted.as_ref()) {
        Ok(found) => match allocate(&found, hints) {
            Some(allocated) => {
                // SAFETY: the caller's promise.
                unsafe { *result = allocated };
                0
            }
            None => fail(libc::ENOMEM),
        },
        Err(LookupError::Resolver(number)) => number,
        Err(LookupError::Other(error)) => fail(refusal(&error)),
    }
}

fn core_hints(c: &rdma_addrinfo) -> AddressHints {
    AddressHints {
        flags: AddressFlags::from_bits_truncate(c.ai_flags as u32),
        // Other families than those of IP are found by no resolver.
        family: if matches!(c.ai_family, libc::AF_INET | libc::AF_INET6) { c.ai_family } else { 0 },
        service: service(c.ai_qp_type),
        port_space: PortSpace::from_number(c.ai_port_space as u32),
        // SAFETY: the addresses of hints are NULL or valid.
        source: unsafe { with_length(c.ai_src_addr, c.ai_src_len) },
        // SAFETY: as above.
        destination: unsafe { with_length(c.ai_dst_addr, c.ai_dst_len) },
    }
}

/// # Safety
/// `pointer` is NULL or points to `length` bytes.
unsafe fn with_length(pointer: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    // SAFETY: the caller's promise; the length is checked against the family before anything else is read.
    unsafe {
        let found =
            (length as usize >= size_of::<libc::sockaddr_in>()).then(|| address::read(pointer)).flatten()?;
        (address::storage(found).1 <= length).then_some(found)
    }
}

fn service(qp_type: c_int) -> Option<Service> {
    match qp_type as u32 {
        IBV_QPT_RC => Some(Service::Rc),
        IBV_QPT_XRC_SEND => Some(Service::XrcSend),
        IBV_QPT_XRC_RECV => Some(Service::XrcReceive),
        IBV_QPT_UC => Some(Service::Uc),
        IBV_QPT_UD => Some(Service::Ud),
        _ => None,
    }
}

/// The C structure, in memory of malloc: [`rdma_freeaddrinfo`] frees it.
fn allocate(found: &AddressInfo, hints: Option<&rdma_addrinfo>) -> Option<*mut rdma_addrinfo> {
    // SAFETY: zeroed memory is a structure of NULLs and zeros.
    let c = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>().as_mut()? };
    let hinted = |pick: fn(&rdma_addrinfo) -> c_int| hints.map(pick).filter(|value| *value != 0);
    c.ai_flags = found.flags.bits() as c_int;
    c.ai_family = found.family;
    c.ai_qp_type = hinted(|c| c.ai_qp_type).unwrap_or(found.service.map_or(0, |service| service as c_int));
    c.ai_port_space =
        hinted(|c| c.ai_port_space).unwrap_or(found.port_space.map_or(0, |space| space as c_int));
    let put = |from: Option<SocketAddr>, pointer: &mut *mut sockaddr, length: &mut socklen_t| {
        let Some(from) = from else { return true };
        let (storage, size) = address::storage(from);
        // SAFETY: `size` bytes are allocated and copied.
        unsafe {
            *pointer = libc::malloc(size as usize).cast();
            if !pointer.is_null() {
                pointer.cast::<u8>().copy_from_nonoverlapping((&raw const storage).cast(), size as usize);
                *length = size;
            }
        }
        !pointer.is_null()
    };
    let complete = put(found.source, &mut c.ai_src_addr, &mut c.ai_src_len)
        && put(found.destination, &mut c.ai_dst_addr, &mut c.ai_dst_len);
    if !complete {
        // SAFETY: just allocated.
        unsafe { rdma_freeaddrinfo(c) };
        return None;
    }
    Some(c)
}

/// Frees what [`rdma_getaddrinfo`] gave.
///
/// # Safety
/// `list` is NULL or came from there and is not used any more.
pub unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    let _call = Call::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: the caller's promise; everything in it was allocated with malloc.
        unsafe {
            let c = at.read();
            for pointer in [
                c.ai_connect,
                c.ai_route,
                c.ai_src_canonname.cast(),
                c.ai_dst_canonname.cast(),
                c.ai_src_addr.cast::<c_void>(),
                c.ai_dst_addr.cast(),
            ] {
                libc::free(pointer);
            }
            libc::free(at.cast());
            at = c.ai_next;
        }
    }
}

/// A synchronous identifier for an address that was looked up: bound, or with address and route resolved;
/// with attributes also its queue pair, or those of its requests (`rdma_create_ep(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(info), false) = (unsafe { info.as_ref() }, id.is_null()) else { return fail(libc::EINVAL) };
    // SAFETY: the caller's promise.
    let new = match unsafe { create_for(info) } {
        Ok(new) => new,
        Err(error) => return fail(refusal(&error)),
    };
    // SAFETY: the identifier is new and known to nobody else.
    let result = unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            passive(new, info, pd, attr)
        } else {
            active(new, info, pd, attr)
        }
    };
    // SAFETY: as above; `id` is valid.
    unsafe {
        if result == 0 {
            *id = new;
        } else {
            let number = adverb_libibverbs::errno::errno();
            rdma_destroy_ep(new);
            adverb_libibverbs::errno::set_errno(number);
        }
    }
    result
}

unsafe fn create_for(info: &rdma_addrinfo) -> Result<*mut rdma_cm_id> {
    let port_space = PortSpace::from_number(info.ai_port_space as u32);
    let port_space =
        port_space.ok_or_else(|| Error::invalid(format!("no port space {:#x}", info.ai_port_space)))?;
    let service = service(info.ai_qp_type).unwrap_or(port_space.service());
    // SAFETY: no channel.
    unsafe { create(null_mut(), null_mut(), port_space, service) }
}

unsafe fn passive(
    new: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Err(error) = bind(new, info.ai_src_addr) {
            return fail(refusal(&error));
        }
        if !pd.is_null() {
            (*new).pd = pd;
        }
        if let (Some(attr), Some(object)) = (attr.as_ref(), IdObject::get(new)) {
            let mut kept = *attr;
            kept.qp_type = info.ai_qp_type as u32;
            *object.inner.queue_pair.get() = Some(kept);
        }
    }
    0
}

unsafe fn active(
    new: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let mut result = rdma_resolve_addr(new, info.ai_src_addr, info.ai_dst_addr, RESOLVE_TIMEOUT);
        if result == 0 {
            result = rdma_resolve_route(new, RESOLVE_TIMEOUT);
        }
        if let (0, Some(attr)) = (result, attr.as_mut()) {
            attr.qp_type = info.ai_qp_type as u32;
            result = rdma_create_qp(new, pd, attr);
        }
        result
    }
}

/// Ends an identifier with its queue pair and shared receive queue (`rdma_create_ep(3)`).
///
/// # Safety
/// `id` is NULL or an identifier that is not used any more.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(object) = IdObject::get(id) else { return };
        if !(*object.c()).qp.is_null() {
            rdma_destroy_qp(id);
        }
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}

/// Looking up within the connection manager (`rdma_resolve_addrinfo(3)`): there is no such service here.
pub extern "C" fn unsupported() -> c_int {
    fail(libc::EOPNOTSUPP)
}

pub use unsupported as rdma_resolve_addrinfo;
pub use unsupported as rdma_query_addrinfo;
pub use unsupported as rdma_write_cm_event;
