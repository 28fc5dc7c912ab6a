//! Completion queues that are polled entry by entry (`ibv_create_cq_ex(3)`).
//!
//! From `ibv_start_poll` to `ibv_end_poll` the polling thread owns the cursor; other threads wait for it.

use core::ffi::c_int;
use std::cell::UnsafeCell;

use adverb_core::clock;
use adverb_core::memory::moved::safe_point;
use adverb_core::request::Completion;

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM,
    IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, ibv_context,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
};
use crate::cq::{QueueObject, create};
use crate::domain::DomainObject;
use crate::errno::fail_null;
use crate::seam;

/// What can be asked of a completion here.
const FIELDS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMESTAMPS;

/// The flags that need a look at the clock.
const TIMESTAMPS: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// The completion under an extended poll, and the lock of the polling thread.
///
/// The polling thread owns `current` and nothing else: others come to the lock meanwhile. So there is never
/// an exclusive reference to a whole cursor.
pub struct Cursor {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Whether the lock is taken: not if the program has promised to use one thread. Changed by the creator
    /// alone.
    locked: bool,
    current: UnsafeCell<Option<Completion>>,
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            locked: true,
            current: UnsafeCell::new(None),
        }
    }
}

impl Cursor {
    /// Waits for the cursor, which belongs to the caller from then on.
    ///
    /// # Safety
    /// The caller does not own it. It calls [`Cursor::leave`] in the same thread.
    unsafe fn enter(&self) {
        if self.locked {
            // SAFETY: the mutex is initialized, and lives as long as the cursor.
            unsafe { libc::pthread_mutex_lock(self.lock.get()) };
        }
    }

    /// Leaves the cursor to others.
    ///
    /// # Safety
    /// It belongs to the caller, and no completion is under it.
    unsafe fn leave(&self) {
        if self.locked {
            // SAFETY: as in `enter`; this thread holds the mutex.
            unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
        }
    }
}

/// `ibv_create_cq_ex(3)`: NULL and `errno` on failure, `EOPNOTSUPP` for fields that completions do not have
/// here, `EINVAL` for a domain that is no parent domain.
pub(crate) unsafe extern "C" fn create_cq_ex(
    pointer: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return fail_null(libc::EINVAL) };
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if attr.wc_flags & !FIELDS != 0
        || attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0
    {
        return fail_null(libc::EOPNOTSUPP);
    }
    let mut parent = None;
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        // SAFETY: the caller's promise.
        let domain = unsafe { DomainObject::get(attr.parent_domain) };
        parent = domain.filter(|domain| domain.inner.is_parent_domain());
        if parent.is_none() {
            return fail_null(libc::EINVAL);
        }
    }
    // SAFETY: the caller's promise.
    let object = unsafe {
        create(pointer, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector, parent, |c| {
            c.start_poll = Some(start_poll);
            c.next_poll = Some(next_poll);
            c.end_poll = Some(end_poll);
            c.read_opcode = Some(read_opcode);
            c.read_vendor_err = Some(read_vendor_err);
            c.read_byte_len = Some(read_byte_len);
            c.read_imm_data = Some(read_imm_data);
            c.read_qp_num = Some(read_qp_num);
            c.read_src_qp = Some(read_src_qp);
            c.read_wc_flags = Some(read_wc_flags);
            c.read_slid = Some(read_slid);
            c.read_sl = Some(read_sl);
            c.read_dlid_path_bits = Some(read_dlid_path_bits);
            c.read_completion_ts = Some(read_completion_ts);
            c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
            seam::watch_polls(c);
        })
    };
    if !object.is_null() && attr.wc_flags & TIMESTAMPS != 0 {
        // SAFETY: just created.
        unsafe { (*object).inner.core.want_timestamps() };
    }
    if !object.is_null() && flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        // SAFETY: just created; nobody polls it yet.
        unsafe { (*object).inner.cursor.locked = false };
    }
    object.cast()
}

/// Takes the next completion under the cursor: 0, `ENOENT` when there is none, or another error number.
///
/// # Safety
/// The caller owns the cursor.
unsafe fn advance(object: &QueueObject) -> c_int {
    let current = object.inner.cursor.current.get();
    // SAFETY: the caller's promise.
    match object.inner.core.poll(1, |completion| unsafe { *current = Some(*completion) }) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            // SAFETY: the caller's promise.
            if let Some(current) = unsafe { &*current } {
                // SAFETY: fields of a live structure, which belong to the polling thread.
                unsafe {
                    (*object.c()).wr_id = current.wr_id;
                    (*object.c()).status = current.status as u32;
                }
            }
            0
        }
        Err(error) => error.errno(),
    }
}

pub(crate) unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    safe_point();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return libc::EINVAL };
    // SAFETY: `attr` is NULL or valid.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    let cursor = &object.inner.cursor;
    // SAFETY: the caller is not between start and end. Once the cursor is entered, it is this thread's; no
    // completion is under it unless one was taken.
    unsafe {
        cursor.enter();
        let result = advance(object);
        if result != 0 {
            cursor.leave();
        }
        result
    }
}

pub(crate) unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return libc::EINVAL };
    // SAFETY: the caller is between start and end, so the cursor is its own.
    unsafe { advance(object) }
}

pub(crate) unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return };
    let cursor = &object.inner.cursor;
    // SAFETY: the caller is between start and end: it owns the cursor.
    unsafe {
        *cursor.current.get() = None;
        cursor.leave();
    }
}

/// What `read` finds in the completion under the cursor, or zero when there is none.
///
/// # Safety
/// `cq` is NULL or a queue that the caller polls.
unsafe fn current<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { QueueObject::get(cq) }) else { return T::default() };
    // SAFETY: the cursor belongs to the caller.
    unsafe { (*object.inner.cursor.current.get()).as_ref() }.map_or_else(T::default, read)
}

/// Shows, and lets change, the completion under the cursor, if there is one.
///
/// # Safety
/// `cq` is NULL or a queue that the caller polls.
pub(crate) unsafe fn with_current<T>(
    cq: *mut ibv_cq_ex,
    look: impl FnOnce(&mut Completion) -> T,
) -> Option<T> {
    // SAFETY: the caller's promise.
    let object = unsafe { QueueObject::get(cq) }?;
    // SAFETY: the cursor belongs to the caller.
    unsafe { (*object.inner.cursor.current.get()).as_mut() }.map(look)
}

macro_rules! readers {
    ($($name:ident: $type:ty = $read:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller's promise.
            unsafe { current(cq, $read) }
        })*
    };
}

readers! {
    read_opcode: u32 = |completion| completion.opcode as u32;
    read_vendor_err: u32 = |completion| completion.vendor_error;
    read_byte_len: u32 = |completion| completion.byte_length;
    read_imm_data: u32 = |completion| completion.immediate;
    read_qp_num: u32 = |completion| completion.queue_pair;
    read_src_qp: u32 = |completion| completion.source_queue_pair;
    read_wc_flags: u32 = |completion| completion.flags.bits().into();
    read_slid: u32 = |_| 0;
    read_sl: u8 = |completion| completion.service_level;
    read_dlid_path_bits: u8 = |completion| completion.path_bits;
    read_completion_ts: u64 = |completion| completion.timestamp;
    read_completion_wallclock_ns: u64 = |completion| clock::wall_at(completion.timestamp);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cursor that threads share as they share a completion queue.
    struct SharedCursor(Cursor);

    // SAFETY: threads enter it before they look at the completion.
    unsafe impl Sync for SharedCursor {}

    #[test]
    fn a_cursor_belongs_to_one_thread_at_a_time() {
        let rounds = if cfg!(miri) { 20 } else { 500 };
        let shared = &SharedCursor(Cursor::default());
        let polls = |thread: u64| {
            for round in 0..rounds {
                let mine = Completion { wr_id: thread << 32 | round, ..Completion::EMPTY };
                // SAFETY: between `enter` and `leave` the completion belongs to this thread.
                unsafe {
                    shared.0.enter();
                    let current = shared.0.current.get();
                    assert_eq!(*current, None, "what another thread polls");
                    *current = Some(mine);
                    std::thread::yield_now();
                    assert_eq!(*current, Some(mine));
                    *current = None;
                    shared.0.leave();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| polls(1));
            polls(2);
        });
    }

    #[test]
    fn a_program_with_one_thread_takes_no_lock() {
        let cursor = Cursor { locked: false, ..Cursor::default() };
        // SAFETY: this thread alone.
        unsafe {
            assert_eq!(libc::pthread_mutex_lock(cursor.lock.get()), 0);
            // This would wait for ever.
            cursor.enter();
            cursor.leave();
            assert_eq!(libc::pthread_mutex_unlock(cursor.lock.get()), 0, "it is still held");
        }
    }
}
