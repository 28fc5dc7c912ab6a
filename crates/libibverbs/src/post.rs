//! Posting work requests (`ibv_post_send(3)`, `ibv_post_recv(3)`). No lock but those of the queue, no
//! allocation.

use core::ffi::c_int;

use adverb_core::error::PostError;
use adverb_core::memory::WindowType;
use adverb_core::memory::moved::safe_point;
use adverb_core::qp::Service;
use adverb_core::request::{Data, Datagram, Opcode, ReceiveRequest, SendFlags, SendRequest, Sge};

use crate::abi::{IBV_SEND_INLINE, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_send_wr_ud, ibv_sge, ibv_srq};
use crate::address::HandleObject;
use crate::qp::PairObject;
use crate::refused;
use crate::srq::SharedObject;
use crate::window;

// A list of `ibv_sge` is handed on as it lies.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(core::mem::offset_of!(Sge, address) == core::mem::offset_of!(ibv_sge, addr));
    assert!(core::mem::offset_of!(Sge, length) == core::mem::offset_of!(ibv_sge, length));
    assert!(core::mem::offset_of!(Sge, lkey) == core::mem::offset_of!(ibv_sge, lkey));
};

/// The elements of a scatter/gather list from C.
///
/// # Safety
/// `list` points to `count` elements, which stay as they are while the slice is used; it is not looked at for
/// a count of 0.
#[inline]
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], PostError> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise; the layouts are the same.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count) }),
        _ => Err(PostError::Invalid),
    }
}

/// Takes a send request from C over into `request`, which is a new one.
///
/// The request is filled where it lies, and not returned: a copy would read bytes as words that were stored
/// one by one, and the processor makes such a load wait until all stores before it have left for the caches,
/// those into memory of another processor, too.
///
/// # Safety
/// The list of the request is valid while `request` is used.
#[inline(always)]
unsafe fn take_over<'a>(
    request: &mut SendRequest<'a>,
    wr: &ibv_send_wr,
    service: Service,
    domain: u32,
) -> Result<(), PostError> {
    let opcode = Opcode::from_number(wr.opcode).ok_or(PostError::Invalid)?;
    let flags = SendFlags::from_bits_truncate(wr.send_flags as u8);
    if opcode == Opcode::BindWindow {
        let bind = &wr.bind_mw;
        // SAFETY: of such a request this member is set, and its objects live during the call.
        *request = unsafe { window::request(WindowType::Two, bind.mw, bind.rkey, &bind.bind_info)? };
        (request.wr_id, request.flags) = (wr.wr_id, flags);
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    request.data =
        if wr.send_flags & IBV_SEND_INLINE != 0 { Data::InlineAt(sges) } else { Data::Registered(sges) };
    if service == Service::Ud {
        // SAFETY: of a datagram this member is set, and its handle lives during the call.
        request.datagram = Some(unsafe { datagram(wr.wr.ud, domain)? });
    }
    (request.wr_id, request.opcode, request.flags) = (wr.wr_id, opcode, flags);
    request.immediate = wr.imm_data;
    // SAFETY: the opcode says which member the program has set; all are made of integers.
    unsafe {
        match opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => {
                let atomic = &wr.wr.atomic;
                (request.remote_address, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            Opcode::Write | Opcode::WriteWithImmediate | Opcode::Read | Opcode::AtomicWrite => {
                // One by one, for the same reason: the program may have stored the address just now.
                let rdma = &raw const wr.wr.rdma;
                request.remote_address = (&raw const (*rdma).remote_addr).read_volatile();
                request.rkey = (&raw const (*rdma).rkey).read_volatile();
            }
            _ => {}
        }
    }
    if service == Service::XrcSend {
        // IB-XRC-1
        request.shared_queue = wr.qp_type;
    }
    Ok(())
}

/// Where a datagram goes.
///
/// # Safety
/// The handle lives while the result is used.
#[inline]
unsafe fn datagram<'a>(ud: ibv_send_wr_ud, domain: u32) -> Result<Datagram<'a>, PostError> {
    // SAFETY: the caller's promise.
    let handle = unsafe { HandleObject::get(ud.ah) }.ok_or(PostError::Invalid)?;
    // IB-UD-8
    if handle.inner.domain().number() != domain {
        return Err(PostError::Invalid);
    }
    Ok(Datagram { path: handle.inner.path(), queue_pair: ud.remote_qpn, qkey: ud.remote_qkey })
}

/// `ibv_post_send(3)`: an error number, and which request it was. Those before it are on their way.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    safe_point();
    let mut at = wr;
    // SAFETY: the caller's promise.
    let result = match unsafe { PairObject::get(qp) } {
        None => Err(PostError::Invalid),
        Some(object) => object.inner.core.post_sends(|batch| {
            let queues = object.inner.core.queues();
            // SAFETY: the list consists of valid requests and ends with NULL.
            while let Some(request) = unsafe { at.as_ref() } {
                let mut taken = SendRequest::default();
                // SAFETY: the lists of the requests are valid while they are posted.
                unsafe { take_over(&mut taken, request, queues.service, queues.domain)? };
                batch.post(&taken)?;
                at = request.next;
            }
            Ok(())
        }),
    };
    // SAFETY: the bad request of the list is valid, and the queue pair live.
    if let (Err(error), Some((object, wr))) = (result, unsafe { PairObject::get(qp).zip(at.as_ref()) }) {
        // SAFETY: as above.
        unsafe { refused::send(&object.inner.core, wr, error) };
    }
    // IB-QP-28
    // SAFETY: `bad` is NULL or valid.
    unsafe { answer(result, at, bad) }
}

/// `ibv_post_recv(3)`: as [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    // SAFETY: the caller's promise.
    let result = match unsafe { PairObject::get(qp) } {
        None => Err(PostError::Invalid),
        Some(object) => object.inner.core.post_receives(|batch| {
            // SAFETY: the list consists of valid requests and ends with NULL.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: the lists of the requests are valid while they are posted.
                let sges = unsafe { elements(request.sg_list, request.num_sge)? };
                batch.push(&ReceiveRequest { wr_id: request.wr_id, sges })?;
                at = request.next;
            }
            Ok(())
        }),
    };
    // SAFETY: the bad request of the list is valid, and the queue pair live.
    if let (Err(error), Some((object, wr))) = (result, unsafe { PairObject::get(qp).zip(at.as_ref()) }) {
        refused::receive(&object.inner.core, wr, error);
    }
    // SAFETY: `bad` is NULL or valid.
    unsafe { answer(result, at, bad) }
}

/// `ibv_post_srq_recv(3)`: as [`post_send`].
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    // SAFETY: the caller's promise.
    let mut result = unsafe { SharedObject::get(srq) }.ok_or(PostError::Invalid).map(drop);
    // SAFETY: the caller's promise; the list consists of valid requests and ends with NULL.
    while let (Some(object), Some(request)) = unsafe { (SharedObject::get(srq), at.as_ref()) } {
        // SAFETY: the lists of the requests are valid while they are posted.
        let sges = unsafe { elements(request.sg_list, request.num_sge) };
        result = sges
            .and_then(|sges| object.inner.core.post_receive(&ReceiveRequest { wr_id: request.wr_id, sges }));
        if let Err(error) = result {
            refused::shared_receive(&object.inner.core, request, error);
            break;
        }
        at = request.next;
    }
    // SAFETY: `bad` is NULL or valid.
    unsafe { answer(result, at, bad) }
}

/// The return value, and where the bad request is.
///
/// # Safety
/// `bad` is NULL or valid.
#[inline]
pub(crate) unsafe fn answer<T>(result: Result<(), PostError>, at: *mut T, bad: *mut *mut T) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            if !bad.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *bad = at };
            }
            error.errno()
        }
    }
}
