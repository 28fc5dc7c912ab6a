//! Event channels and identifiers: their life, their addresses, their options.

use core::ffi::{c_int, c_void};
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adverb_core::cm::{EventChannel, Identifier, PortSpace};
use adverb_core::error::{Error, Result};
use adverb_core::qp::Service;
use adverb_libibverbs::abi::ibv_qp_init_attr;
use adverb_libibverbs::device::devices;
use adverb_libibverbs::errno::{Call, fail, fail_null, refusal};
use adverb_libibverbs::object::{Head, Object};
use libc::sockaddr;

use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use crate::address;
use crate::device::opened;
use crate::event::{complete, rdma_ack_cm_event};
use crate::retired;
use crate::route::{drop_route, refresh_route};

impl Head for rdma_event_channel {
    const TAG: u64 = u64::from_ne_bytes(*b"advb-ech");
}

impl Head for rdma_cm_id {
    const TAG: u64 = u64::from_ne_bytes(*b"advb-id ");
}

impl Head for rdma_cm_event {
    const TAG: u64 = u64::from_ne_bytes(*b"advb-evt");
}

/// An event channel as C sees it.
pub(crate) type ChannelObject = Object<rdma_event_channel, Arc<EventChannel>>;

/// What stands behind a `struct rdma_cm_id`.
pub(crate) struct IdSide {
    /// The identifier.
    pub(crate) core: Arc<Identifier>,
    /// The queue pair that `rdma_get_request` makes for each request of this listener. Set before anybody
    /// else knows the identifier.
    pub(crate) queue_pair: UnsafeCell<Option<ibv_qp_init_attr>>,
}

/// An identifier as C sees it.
pub(crate) type IdObject = Object<rdma_cm_id, IdSide>;

/// -1 and `errno`, or 0.
pub(crate) fn answer(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(refusal(&error)),
    }
}

/// The identifier behind a pointer.
///
/// # Safety
/// `id` is NULL or points to readable memory.
pub(crate) unsafe fn identifier<'a>(id: *mut rdma_cm_id) -> Result<&'a IdObject> {
    // SAFETY: the caller's promise.
    unsafe { IdObject::get(id) }.ok_or_else(|| Error::invalid("this is not an identifier"))
}

/// A new event channel (`rdma_create_event_channel(3)`): NULL and `errno`, `ENODEV` when there is no device.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let _call = Call::new();
    let created = devices().and_then(|found| {
        if found.is_empty() {
            return Err(Error::new(libc::ENODEV, "there is no RDMA device"));
        }
        EventChannel::new()
    });
    created.map_or_else(|error| fail_null(refusal(&error)), channel_object)
}

/// The C object of a channel.
fn channel_object(core: Arc<EventChannel>) -> *mut rdma_event_channel {
    ChannelObject::allocate(rdma_event_channel { fd: core.descriptor() }, core).cast()
}

/// Ends a channel (`rdma_create_event_channel(3)`). Identifiers that still report on it keep its descriptor
/// open.
///
/// # Safety
/// `channel` is NULL or a channel that is not used any more.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { ChannelObject::get(channel) }) else { return };
    // SAFETY: a descriptor of this process, or of nobody.
    let flags = unsafe { libc::fcntl(object.inner.descriptor(), libc::F_GETFL) };
    // SAFETY: as above. A thread that is on its way to wait there is looked after.
    unsafe {
        if flags & libc::O_NONBLOCK == 0 {
            retired::retire(object);
        } else {
            Object::free(object);
        }
    }
}

/// A new identifier (`rdma_create_id(3)`); without a channel its calls wait for their outcome.
///
/// # Safety
/// `channel` is NULL or a channel; `id` is valid.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: u32,
) -> c_int {
    let Some(space) = PortSpace::from_number(port_space) else { return fail(libc::EINVAL) };
    // SAFETY: the caller's promise.
    match unsafe { create(channel, context, space, space.service()) } {
        Ok(created) if !id.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { *id = created };
            0
        }
        Ok(created) => {
            // SAFETY: just created.
            unsafe { rdma_destroy_id(created) };
            fail(libc::EINVAL)
        }
        Err(error) => fail(refusal(&error)),
    }
}

/// Creates an identifier.
///
/// # Safety
/// `channel` is NULL or a channel.
pub(crate) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: PortSpace,
    service: Service,
) -> Result<*mut rdma_cm_id> {
    let _call = Call::new();
    if devices()?.is_empty() {
        return Err(Error::new(libc::ENODEV, "there is no RDMA device"));
    }
    // SAFETY: the caller's promise.
    let object = unsafe { ChannelObject::get(channel) };
    if !channel.is_null() && object.is_none() {
        return Err(Error::invalid("this is not an event channel"));
    }
    let core = Identifier::with_service(object.map(|object| &object.inner), port_space, service)?;
    wrap(core, channel, context)
}

/// The C object of a new core identifier that reports on `channel`, or, if that is NULL, on a channel of its
/// own.
pub(crate) fn wrap(
    core: Arc<Identifier>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
) -> Result<*mut rdma_cm_id> {
    let mut c = rdma_cm_id::zeroed();
    c.channel = if channel.is_null() { channel_object(core.channel()?) } else { channel };
    c.context = context;
    c.ps = core.port_space() as u32;
    c.qp_type = core.service() as u32;
    let object = IdObject::allocate(c, IdSide { core, queue_pair: UnsafeCell::new(None) });
    // SAFETY: just allocated.
    unsafe { (*object).inner.core.set_cookie(object as u64) };
    Ok(object.cast())
}

/// Brings the structure's addresses and device up to what the identifier knows.
pub(crate) fn refresh(object: &IdObject) -> Result<()> {
    let core = &object.inner.core;
    let c = object.c();
    // SAFETY: fields of a live structure, which belong to the thread that the manual pages let use the
    // identifier.
    unsafe {
        refresh_route(c, core);
        if let (Some(device), true) = (core.device(), (*c).verbs.is_null()) {
            let opened = opened(&device)?;
            ((*c).verbs, (*c).pd, (*c).port_num) = (opened.verbs, opened.pd, 1);
        }
    }
    Ok(())
}

/// Acknowledges the event that a synchronous identifier shows.
///
/// # Safety
/// The object lives.
pub(crate) unsafe fn drop_event(object: &IdObject) {
    let c = object.c();
    // SAFETY: the event is the identifier's own.
    unsafe {
        if !(*c).event.is_null() {
            rdma_ack_cm_event((*c).event);
            (*c).event = std::ptr::null_mut();
        }
    }
}

/// Ends an identifier (`rdma_destroy_id(3)`): waits until its events are acknowledged. Its queue pair stays
/// as it is.
///
/// # Safety
/// `id` is NULL or an identifier that is not used any more.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let object = match unsafe { identifier(id) } {
        Ok(object) => object,
        Err(error) => return fail(refusal(&error)),
    };
    let own_channel = object.inner.core.is_synchronous();
    // SAFETY: the object lives until it is freed at the end.
    unsafe {
        drop_event(object);
        object.inner.core.destroy();
        if own_channel {
            rdma_destroy_event_channel((*object.c()).channel);
        }
        drop_route(object.c());
        Object::free(object);
    }
    0
}

/// Moves an identifier to another channel (`rdma_migrate_id(3)`), or, for NULL, to one of its own.
///
/// # Safety
/// `id` is NULL or an identifier, `channel` NULL or a channel.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { migrate(id, channel) })
}

unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<()> {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (object, target) = unsafe { (identifier(id)?, ChannelObject::get(channel)) };
    let core = &object.inner.core;
    let was_own = core.is_synchronous();
    if channel.is_null() && was_own {
        return Err(Error::invalid("the identifier has a channel of its own already"));
    }
    if !channel.is_null() && target.is_none() {
        return Err(Error::invalid("this is not an event channel"));
    }
    let c = object.c();
    // SAFETY: fields of a live structure; its own channel is used by nobody else.
    unsafe {
        if was_own {
            drop_event(object);
        }
        core.migrate(target.map(|target| &target.inner))?;
        if was_own {
            rdma_destroy_event_channel((*c).channel);
        }
        (*c).channel = if channel.is_null() { channel_object(core.channel()?) } else { channel };
    }
    Ok(())
}

/// Binds to a local address (`rdma_bind_addr(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `address` NULL or a socket address.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { bind(id, address) })
}

pub(crate) unsafe fn bind(id: *mut rdma_cm_id, address: *mut sockaddr) -> Result<()> {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (object, address) = unsafe { (identifier(id)?, required(address)?) };
    object.inner.core.bind(address)?;
    refresh(object)
}

/// An address that has to be there.
///
/// # Safety
/// `address` is NULL or a socket address.
unsafe fn required(address: *const sockaddr) -> Result<SocketAddr> {
    // SAFETY: the caller's promise.
    unsafe { address::read(address) }.ok_or_else(|| Error::invalid("an address must be IPv4 or IPv6"))
}

/// Finds the way to a peer (`rdma_resolve_addr(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, the addresses NULL or socket addresses.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { resolve(id, source, destination, timeout) } {
        // SAFETY: as above.
        Ok(object) => unsafe { complete(object) },
        Err(error) => fail(refusal(&error)),
    }
}

unsafe fn resolve<'a>(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout: c_int,
) -> Result<&'a IdObject> {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (object, peer) = unsafe { (identifier(id)?, required(destination)?) };
    // SAFETY: the caller's promise. As in the kernel, no family means no address.
    let anywhere = source.is_null() || unsafe { (&raw const (*source).sa_family).read_unaligned() } == 0;
    // SAFETY: the caller's promise.
    let local = if anywhere { None } else { Some(unsafe { required(source)? }) };
    object.inner.core.resolve_address(local, peer, milliseconds(timeout))?;
    Ok(object)
}

fn milliseconds(timeout: c_int) -> Duration {
    Duration::from_millis(timeout.max(0) as u64)
}

/// Finds the route to the resolved peer (`rdma_resolve_route(3)`).
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let found = unsafe { identifier(id) };
    let resolved = found.and_then(|object| {
        object.inner.core.resolve_route(milliseconds(timeout))?;
        Ok(object)
    });
    match resolved {
        // SAFETY: as above.
        Ok(object) => unsafe { complete(object) },
        Err(error) => fail(refusal(&error)),
    }
}

/// The local port in network order (`rdma_get_src_port(3)`), or 0.
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    let local = unsafe { identifier(id) }.ok().and_then(|object| object.inner.core.local_address());
    local.map_or(0, |address| address.port().to_be())
}

/// The peer's port in network order (`rdma_get_dst_port(3)`), or 0.
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    let peer = unsafe { identifier(id) }.ok().and_then(|object| object.inner.core.peer_address());
    peer.map_or(0, |address| address.port().to_be())
}

/// Sets an option (`rdma_set_option(3)`): `ENOSYS` for one that does not exist, `EINVAL` for a value of the
/// wrong size.
///
/// # Safety
/// `id` is NULL or an identifier; `value` points to `length` bytes.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    answer(unsafe { set_option(id, level, option, value, length) })
}

unsafe fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let core = &unsafe { identifier(id)? }.inner.core;
    let sized = |size: usize| {
        if length == size && !value.is_null() {
            return Ok(());
        }
        Err(Error::invalid(format!("option {option} has {size} bytes, not {length}")))
    };
    // SAFETY: the length is checked before the value is read, and the caller's promise.
    let byte = || sized(1).map(|()| unsafe { value.cast::<u8>().read() });
    // SAFETY: as above.
    let number = || sized(size_of::<c_int>()).map(|()| unsafe { value.cast::<c_int>().read_unaligned() });
    match (level, option) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => core.set_type_of_service(byte()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => core.set_reuse_address(number()? != 0),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => core.set_family_only(number()? != 0),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => core.set_ack_timeout(byte()?),
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => core.set_path(),
        _ => Err(Error::new(libc::ENOSYS, format!("there is no option {option} at level {level}"))),
    }
}
