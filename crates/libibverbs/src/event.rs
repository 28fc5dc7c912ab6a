//! Asynchronous events (`ibv_get_async_event(3)`).

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adverb_core::device::Context;
use adverb_core::event::{AsyncEvent, AsyncEventKind};

use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
    ibv_async_event_element, ibv_context, ibv_cq_ex, ibv_qp_ex, ibv_srq,
};
use crate::context::context;
use crate::cq::{self, QueueObject};
use crate::errno::{Waiting, fail, refusal};
use crate::qp::{self, PairObject};
use crate::srq::{self, SharedObject};

/// What kind of object an event is about.
enum Subject {
    Queue,
    Pair,
    SharedQueue,
    Port,
}

fn subject(event_type: u32) -> Subject {
    const IBV_EVENT_QP_LAST_WQE_REACHED: u32 = AsyncEventKind::QpLastWqeReached as u32;
    match event_type {
        IBV_EVENT_CQ_ERR => Subject::Queue,
        1..=7 | IBV_EVENT_QP_LAST_WQE_REACHED => Subject::Pair,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Subject::SharedQueue,
        _ => Subject::Port,
    }
}

/// Whether an event of any library is about an object, rather than about a port or the whole device.
pub(crate) fn is_about_object(event_type: u32) -> bool {
    const IBV_EVENT_QP_LAST_WQE_REACHED: u32 = AsyncEventKind::QpLastWqeReached as u32;
    const IBV_EVENT_WQ_FATAL: u32 = 19;
    matches!(
        event_type,
        IBV_EVENT_CQ_ERR
            ..=7 | IBV_EVENT_SRQ_ERR
                | IBV_EVENT_SRQ_LIMIT_REACHED
                | IBV_EVENT_QP_LAST_WQE_REACHED
                | IBV_EVENT_WQ_FATAL
    )
}

/// Counts an event that is being handed out, so that its object is not destroyed before the acknowledgement.
/// Called while the event can no longer be withdrawn and its object not yet be freed.
fn count(event: &AsyncEvent) {
    // SAFETY: the subject of an event in the queue is a live object: destroying it withdraws its events
    // first.
    unsafe {
        match subject(event.kind as u32) {
            Subject::Queue => {
                if let Some(object) = QueueObject::get(event.subject as *mut ibv_cq_ex) {
                    object.inner.async_events.fetch_add(1, Ordering::AcqRel);
                }
            }
            Subject::Pair => {
                if let Some(object) = PairObject::get(event.subject as *mut ibv_qp_ex) {
                    object.inner.async_events.fetch_add(1, Ordering::AcqRel);
                }
            }
            Subject::SharedQueue => {
                if let Some(object) = SharedObject::get(event.subject as *mut ibv_srq) {
                    object.inner.async_events.fetch_add(1, Ordering::AcqRel);
                }
            }
            Subject::Port => {}
        }
    }
}

/// Takes back the events about an object that nobody has fetched.
pub(crate) fn withdraw(context: &Arc<Context>, address: u64, kinds: &[AsyncEventKind]) {
    context.events().withdraw(|event| event.subject == address && kinds.contains(&event.kind));
}

/// Waits for the next event (`ibv_get_async_event(3)`): -1 and `errno` on failure. A cancellation point.
///
/// # Safety
/// `pointer` is NULL or an open context; `event` is NULL or valid.
pub unsafe extern "C" fn ibv_get_async_event(
    pointer: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let call = Waiting::begin();
    // SAFETY: the caller's promise.
    let (Some(context), false) = (unsafe { context(pointer) }, event.is_null()) else {
        return fail(libc::EINVAL);
    };
    let found = match context.inner.core.events().wait_with(count) {
        Ok(found) => found,
        Err(error) => return fail(refusal(&error)),
    };
    let event_type = found.kind as u32;
    let element = match subject(event_type) {
        Subject::Queue => ibv_async_event_element { cq: found.subject as *mut _ },
        Subject::Pair => ibv_async_event_element { qp: found.subject as *mut _ },
        Subject::SharedQueue => ibv_async_event_element { srq: found.subject as *mut _ },
        Subject::Port => ibv_async_event_element { port_num: found.subject as c_int },
    };
    // SAFETY: the caller's promise.
    unsafe { event.write(ibv_async_event { element, event_type }) };
    call.succeeded()
}

/// Acknowledges an event (`ibv_get_async_event(3)`).
///
/// # Safety
/// `event` is NULL or came from [`ibv_get_async_event`] and is acknowledged once.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's promise.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    // SAFETY: an object with an event that is not acknowledged is not freed; the type says which member is
    // valid.
    unsafe {
        match subject(event.event_type) {
            Subject::Queue => {
                if let Some(object) = QueueObject::get(event.element.cq) {
                    cq::async_acknowledgement(object.c()).acknowledge(1);
                }
            }
            Subject::Pair => {
                if let Some(object) = PairObject::get(event.element.qp) {
                    qp::acknowledgement(object.c()).acknowledge(1);
                }
            }
            Subject::SharedQueue => {
                if let Some(object) = SharedObject::get(event.element.srq) {
                    srq::acknowledgement(object.c()).acknowledge(1);
                }
            }
            Subject::Port => {}
        }
    }
}
