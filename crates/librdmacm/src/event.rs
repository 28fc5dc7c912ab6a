//! Events (`rdma_get_cm_event(3)`).

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use adverb_core::cm::{Event, EventKind};
use adverb_core::error::Result;
use adverb_core::event::wait_in_vain;
use adverb_core::memory::moved::safe_point;
use adverb_core::qp::{Service, State};
use adverb_libibverbs::errno::{Call, Waiting, fail, refusal};
use adverb_libibverbs::object::Object;
use adverb_libibverbs::qp;

use crate::abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event, rdma_cm_event_param, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::id::{ChannelObject, IdObject, drop_event, refresh, wrap};
use crate::retired;
use crate::route::c_address;

/// An event as C sees it. Freeing it acknowledges it; until then its private data lies inside.
type EventObject = Object<rdma_cm_event, Event>;

/// Takes the next event of a channel (`rdma_get_cm_event(3)`): -1 and `errno` on failure, `EAGAIN` if the
/// descriptor was made non-blocking. A cancellation point.
///
/// # Safety
/// `channel` is NULL or a channel; `event` is NULL or valid.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let call = Waiting::begin();
    // SAFETY: the caller's promise.
    let (Some(object), false) = (unsafe { ChannelObject::get(channel) }, event.is_null()) else {
        return no_event(channel, libc::EINVAL);
    };
    // As this thread may sleep here for good.
    safe_point();
    loop {
        match object.inner.get() {
            Ok(found) => {
                // Of a connection that has come about, and before the program hears of it.
                safe_point();
                // SAFETY: the channel of the program; identifiers with an event that is out are not freed.
                if let Some(c) = unsafe { event_object(found, channel) } {
                    // SAFETY: the caller's promise.
                    unsafe { *event = c };
                    return call.succeeded();
                }
            }
            Err(error) => return no_event(channel, refusal(&error)),
        }
    }
}

/// -1 and `errno`; on a channel that is destroyed, or is being destroyed by another thread, as if the wait
/// had begun earlier.
fn no_event(channel: *mut rdma_event_channel, errno: c_int) -> c_int {
    if errno != libc::EINTR && retired::is_known(channel) {
        return fail(refusal(&wait_in_vain()));
    }
    fail(errno)
}

/// Makes the C event, and brings the structure of its identifier up to date. `None` if a connection request
/// could not be taken in; it is refused then.
///
/// # Safety
/// `channel` is the channel that the event came from.
unsafe fn event_object(event: Event, channel: *mut rdma_event_channel) -> Option<*mut rdma_cm_event> {
    let _call = Call::new();
    let mut c = rdma_cm_event::zeroed();
    (c.event, c.status) = (event.kind as u32, event.status);
    if let Some(listener) = &event.listener {
        c.listen_id = listener.cookie() as *mut rdma_cm_id;
        // SAFETY: the listener is not freed while the event is not acknowledged.
        let context = unsafe { (*c.listen_id).context };
        // The requests of a synchronous listener have channels of their own.
        let channel = if event.identifier.is_synchronous() { null_mut() } else { channel };
        c.id = wrap(event.identifier.clone(), channel, context).ok()?;
    } else {
        c.id = event.identifier.cookie() as *mut rdma_cm_id;
    }
    // SAFETY: it lives, for the same reason.
    let id = unsafe { IdObject::get(c.id)? };
    if let Err(error) = update(id, &event) {
        if c.event == RDMA_CM_EVENT_CONNECT_REQUEST {
            // SAFETY: just made; the program has not seen it.
            unsafe { crate::id::rdma_destroy_id(c.id) };
            return None;
        }
        (c.event, c.status) = (RDMA_CM_EVENT_ADDR_ERROR, -error.errno());
    }
    c.param = match event.identifier.service() {
        Service::Ud => rdma_cm_event_param { ud: datagram(&event) },
        _ => rdma_cm_event_param { conn: connection(&event) },
    };
    Some(EventObject::allocate(c, event).cast())
}

/// Brings the identifier's structure up to what the event says.
fn update(id: &IdObject, event: &Event) -> Result<()> {
    match event.kind {
        EventKind::AddressResolved | EventKind::RouteResolved | EventKind::ConnectRequest => refresh(id)?,
        EventKind::Established => {
            refresh(id)?;
            show_state(id, State::Rts);
        }
        EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError | EventKind::Disconnected => {
            show_state(id, State::Error);
        }
        _ => {}
    }
    Ok(())
}

/// Writes the state of the identifier's queue pair into its structure, as `ibv_modify_qp` would.
fn show_state(id: &IdObject, state: State) {
    if let Some(pair) = id.inner.core.queue_pair() {
        qp::show_state(&pair, state);
    }
}

fn connection(event: &Event) -> rdma_conn_param {
    let from = &event.parameters;
    let data = &event.private_data;
    rdma_conn_param {
        private_data: if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() },
        // The transports' limits are below 256.
        private_data_len: data.len().min(255) as u8,
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: from.flow_control.into(),
        retry_count: from.retry_count,
        rnr_retry_count: from.rnr_retry_count,
        srq: from.srq.into(),
        qp_num: from.qp_number,
    }
}

fn datagram(event: &Event) -> rdma_ud_param {
    let mut c = rdma_ud_param::zeroed();
    if let Some(peer) = &event.datagram {
        (c.ah_attr, c.qp_num, c.qkey) = (c_address(&peer.path), peer.queue_pair, peer.qkey);
    }
    match event.kind {
        // The word that the program gave when it joined.
        EventKind::MulticastJoin | EventKind::MulticastError => {
            c.private_data = event.context as *const c_void;
        }
        _ if !event.private_data.is_empty() => {
            c.private_data = event.private_data.as_ptr().cast();
            // The transports' limits are below 256.
            c.private_data_len = event.private_data.len().min(255) as u8;
        }
        _ => {}
    }
    c
}

/// Acknowledges an event and frees it (`rdma_get_cm_event(3)`).
///
/// # Safety
/// `event` is NULL or an event that is not used any more.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { EventObject::get(event) }) else { return fail(libc::EINVAL) };
    // SAFETY: as above.
    unsafe { Object::free(object) };
    0
}

/// Waits for the outcome of the last call on a synchronous identifier, which then shows the event; returns at
/// once for others.
///
/// # Safety
/// The object lives.
pub(crate) unsafe fn complete(object: &IdObject) -> c_int {
    if !object.inner.core.is_synchronous() {
        return 0;
    }
    // SAFETY: the caller's promise; the structure's channel is the identifier's own.
    unsafe {
        drop_event(object);
        let c = object.c();
        let result = rdma_get_cm_event((*c).channel, &raw mut (*c).event);
        match EventObject::get((*c).event) {
            Some(event) if result == 0 => {
                event.inner.outcome().map_or_else(|error| fail(refusal(&error)), |()| 0)
            }
            _ => result,
        }
    }
}

/// Name of an event (`rdma_event_str(3)`).
pub extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
    ];
    NAMES.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
