//! Listening, connecting, accepting, refusing, disconnecting.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use adverb_core::attributes::TransportType;
use adverb_core::cm::{ConnectionParameters, Parameters};
use adverb_core::error::{Error, Result};
use adverb_core::memory::moved::safe_point;
use adverb_core::qp::{QueuePair, Service, State};
use adverb_libibverbs::abi::IBV_EVENT_COMM_EST;
use adverb_libibverbs::context::context;
use adverb_libibverbs::errno::{Call, fail, refusal};
use adverb_libibverbs::qp::{PairObject, by_number, show_state};
use libc::sockaddr;

use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES,
    rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param,
};
use crate::event::{complete, rdma_get_cm_event};
use crate::id::{IdObject, answer, drop_event, identifier, refresh};
use crate::qp::rdma_create_qp;

/// Listens (`rdma_listen(3)`).
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id) }.and_then(|object| {
        object.inner.core.listen(backlog)?;
        refresh(object)
    }))
}

/// What NULL instead of parameters means.
const DEFAULT: rdma_conn_param = rdma_conn_param {
    responder_resources: RDMA_MAX_RESP_RES,
    initiator_depth: RDMA_MAX_INIT_DEPTH,
    retry_count: 7,
    rnr_retry_count: 7,
    private_data: null(),
    private_data_len: 0,
    flow_control: 0,
    srq: 0,
    qp_num: 0,
};

/// The queue pair that the identifier shows, which need not be made by `rdma_create_qp`, or on iWARP the one
/// with this number: on InfiniBand a program manages a queue pair that it does not show here.
///
/// # Safety
/// The object lives.
unsafe fn queue_pair(object: &IdObject, number: u32) -> Option<Arc<QueuePair>> {
    // SAFETY: fields of a live structure; the program shows a queue pair that lives, and the context is open.
    unsafe {
        let shown = (*object.c()).qp;
        if !shown.is_null() {
            return PairObject::get(shown).map(|pair| pair.inner.core.clone());
        }
        let transport = object.inner.core.device()?.transport().attributes().transport;
        if transport == TransportType::Ib {
            return None;
        }
        by_number(&context((*object.c()).verbs)?.inner.core, number)
    }
}

/// Calls `act` with the parameters of C and the queue pair.
///
/// # Safety
/// `parameters` is NULL or valid, and so is its private data.
unsafe fn with_parameters<T>(
    object: &IdObject,
    parameters: *mut rdma_conn_param,
    act: impl FnOnce(&Parameters<'_>) -> Result<T>,
) -> Result<T> {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let c = unsafe { parameters.as_ref() }.unwrap_or(&DEFAULT);
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { queue_pair(object, c.qp_num) };
    let private_data = if c.private_data.is_null() {
        &[][..]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(c.private_data.cast::<u8>(), c.private_data_len.into()) }
    };
    act(&Parameters {
        connection: ConnectionParameters {
            responder_resources: c.responder_resources,
            initiator_depth: c.initiator_depth,
            flow_control: c.flow_control != 0,
            retry_count: c.retry_count,
            rnr_retry_count: c.rnr_retry_count,
            srq: c.srq != 0,
            qp_number: c.qp_num,
            ..ConnectionParameters::default()
        },
        private_data,
        queue_pair: queue_pair.as_ref(),
    })
}

/// Connects (`rdma_connect(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `parameters` NULL or valid.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        start(id, parameters, |object, parameters| object.inner.core.connect(Some(parameters)).map(|()| true))
    }
}

/// Accepts a request (`rdma_accept(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `parameters` NULL or valid.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        start(id, parameters, |object, parameters| {
            object.inner.core.accept(Some(parameters))?;
            if let Some(pair) = parameters.queue_pair {
                show_state(pair, State::Rts);
            }
            // Nothing follows on an answer about datagrams.
            Ok(object.inner.core.service() != Service::Ud)
        })
    }
}

/// Starts connecting or accepting, and on a synchronous identifier waits for the outcome, if `act` says that
/// there will be one.
///
/// # Safety
/// `id` is NULL or an identifier, `parameters` NULL or valid.
unsafe fn start(
    id: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
    act: impl FnOnce(&IdObject, &Parameters<'_>) -> Result<bool>,
) -> c_int {
    // SAFETY: the caller's promise.
    let started = unsafe { identifier(id) }.and_then(|object| {
        // SAFETY: the caller's promise.
        let waits = unsafe { with_parameters(object, parameters, |parameters| act(object, parameters))? };
        Ok((object, waits))
    });
    safe_point();
    match started {
        // SAFETY: it lives.
        Ok((object, true)) => unsafe { complete(object) },
        Ok((_, false)) => 0,
        Err(error) => fail(refusal(&error)),
    }
}

/// Refuses a request (`rdma_reject(3)`).
///
/// # Safety
/// `id` is NULL or an identifier; `data` points to `length` bytes.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    let _call = Call::new();
    let bytes = if data.is_null() {
        &[][..]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id) }.and_then(|object| object.inner.core.reject(bytes)))
}

/// Refuses a request for its vendor options (`rdma_reject_ece(3)`). No device here has any, so it is refused
/// as for any other reason.
///
/// # Safety
/// As for [`rdma_reject`].
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_reject(id, data, length) }
}

/// Ends the connection (`rdma_disconnect(3)`).
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    let ended = unsafe { identifier(id) }.and_then(|object| {
        let _call = Call::new();
        object.inner.core.disconnect()?;
        Ok(object)
    });
    match ended {
        // SAFETY: it lives.
        Ok(object) => unsafe { complete(object) },
        Err(error) => fail(refusal(&error)),
    }
}

/// Completes a connection of a queue pair that the program manages (`rdma_establish(3)`).
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id) }.and_then(|object| {
        let _call = Call::new();
        object.inner.core.establish()
    }))
}

/// Tells of an asynchronous event of the queue pair (`rdma_notify(3)`).
///
/// # Safety
/// `id` is NULL or an identifier.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { identifier(id) }.and_then(|object| {
        let _call = Call::new();
        match event {
            IBV_EVENT_COMM_EST => object.inner.core.notify(),
            other => {
                Err(Error::invalid(format!("asynchronous event {other} says nothing about connections")))
            }
        }
    }))
}

/// Waits for the next request of a synchronous listener (`rdma_get_request(3)`), and makes its queue pair if
/// `rdma_create_ep` got attributes for one.
///
/// # Safety
/// `listener` is NULL or an identifier; `id` is valid.
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    let object = match unsafe { identifier(listener) } {
        Ok(object) if object.inner.core.is_synchronous() && !id.is_null() => object,
        Ok(_) => return fail(libc::EINVAL),
        Err(error) => return fail(refusal(&error)),
    };
    let c = object.c();
    // SAFETY: the object lives; the channel is its own; the event is live until it is acknowledged.
    unsafe {
        drop_event(object);
        let mut event: *mut rdma_cm_event = null_mut();
        let result = rdma_get_cm_event((*c).channel, &mut event);
        if result != 0 {
            return result;
        }
        let failed = match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => Some(libc::ECONNREFUSED),
            (_, status) if status != 0 => Some(status.saturating_abs()),
            (RDMA_CM_EVENT_CONNECT_REQUEST, _) => None,
            _ => Some(libc::EINVAL),
        };
        if let Some(number) = failed {
            (*c).event = event;
            return fail(number);
        }
        if let Some(mut attr) = *object.inner.queue_pair.get() {
            let result = rdma_create_qp((*event).id, (*c).pd, &mut attr);
            if result != 0 {
                (*c).event = event;
                return result;
            }
        }
        *id = (*event).id;
        (**id).event = event;
    }
    0
}

/// Joins a multicast group (`rdma_join_multicast(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `address` NULL or a socket address.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let joined = unsafe { group(id, address) }.and_then(|(object, group)| {
        let _call = Call::new();
        object.inner.core.join_multicast(group, context as u64)?;
        Ok(object)
    });
    match joined {
        // SAFETY: it lives.
        Ok(object) => unsafe { complete(object) },
        Err(error) => fail(refusal(&error)),
    }
}

/// # Safety
/// `id` is NULL or an identifier, `address` NULL or a socket address.
unsafe fn group<'a>(id: *mut rdma_cm_id, address: *const sockaddr) -> Result<(&'a IdObject, IpAddr)> {
    // SAFETY: the caller's promise.
    let (object, address) = unsafe { (identifier(id)?, crate::address::read(address)) };
    let address = address.ok_or_else(|| Error::invalid("the address of a group must be IPv4 or IPv6"))?;
    Ok((object, address.ip()))
}

/// Joins a multicast group (`rdma_join_multicast_ex(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `attr` NULL or valid.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const ADDRESS_AND_FLAGS: u32 = 3;
    const FLAGS: u32 = 2;
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return fail(libc::EINVAL) };
    if attr.comp_mask & !ADDRESS_AND_FLAGS != 0 {
        return fail(libc::ENOTSUP);
    }
    if attr.comp_mask != ADDRESS_AND_FLAGS || attr.join_flags >= FLAGS {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise. Who only sends is a member, too: membership of an IP group costs nothing.
    unsafe { rdma_join_multicast(id, attr.addr, context) }
}

/// Leaves a multicast group (`rdma_leave_multicast(3)`).
///
/// # Safety
/// `id` is NULL or an identifier, `address` NULL or a socket address.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    answer(unsafe { group(id, address) }.and_then(|(object, group)| object.inner.core.leave_multicast(group)))
}
