//! Functions that `verbs.h` calls through the tables of a context, without a function of ours between: for a
//! context of the host's, those that say by `errno` why they fail get one, which gives the program that
//! `errno`.
//!
//! What is on the fast path (post, poll, arm) stays as it is: it says by its result what is wrong.

use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::library::{Arguments, Function};
use super::{context_of, library};
use crate::abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, verbs_context};

macro_rules! wrapped {
    ($($index:literal = $field:ident,)*) => {
        /// Where the functions stand in an extended context, and what is put there.
        const PLACES: [(usize, Function); COUNT] = [
            (OPERATIONS + offset_of!(ibv_context_ops, alloc_mw), wrapped::<0>),
            $((offset_of!(verbs_context, $field), wrapped::<$index>),)*
        ];
    };
}

/// How many there are.
pub(super) const COUNT: usize = 16;

const OPERATIONS: usize = offset_of!(verbs_context, context) + offset_of!(ibv_context, ops);

wrapped! {
    1 = create_cq_ex,
    2 = create_qp_ex,
    3 = create_srq_ex,
    4 = open_qp,
    5 = open_xrcd,
    6 = ibv_create_flow,
    7 = create_wq,
    8 = create_rwq_ind_table,
    9 = alloc_td,
    10 = alloc_parent_domain,
    11 = alloc_dm,
    12 = reg_dm_mr,
    13 = alloc_null_mr,
    14 = create_counters,
    15 = create_flow_action_esp,
}

/// The functions of a context that stand behind ours; 0 where it has none.
pub(super) type Originals = [AtomicUsize; COUNT];

/// Puts ours in front. What a context of an older library does not have stays away.
///
/// # Safety
/// `pointer` is an open context of the host's that the program does not know yet.
pub(super) unsafe fn wrap(pointer: *mut ibv_context, originals: &Originals) {
    let base = pointer.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: the caller's promise; the field says whether there is a structure around.
    let is_extended = unsafe { (*pointer).abi_compat } == VERBS_ABI_IS_EXTENDED;
    // SAFETY: it stands right before the context where the structure is there.
    let size = if is_extended { unsafe { (*base).sz } } else { 0 };
    for ((place, ours), original) in PLACES.into_iter().zip(originals) {
        // The structure grows at the front: what is farther from its end than it is long is not there.
        let is_there = place >= OPERATIONS || size_of::<verbs_context>() - place <= size;
        let slot = base.wrapping_byte_add(place).cast::<usize>();
        // SAFETY: inside the structure; nobody else uses it yet.
        let theirs = if is_there { unsafe { *slot } } else { 0 };
        original.store(theirs, Ordering::Release);
        if theirs != 0 {
            // SAFETY: as above.
            unsafe { *slot = ours as usize };
        }
    }
}

/// What stands in the place of a function: the first argument is a context, or an object of one.
///
/// # Safety
/// As of the function.
unsafe extern "C" fn wrapped<const PLACE: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let found = unsafe { context_of(a) }.and_then(|context| {
        let original = context.originals.get(PLACE)?.load(Ordering::Acquire);
        // SAFETY: 0 is none; what the context had there is a function of integers and pointers.
        Some((library()?, unsafe { std::mem::transmute::<usize, Option<Function>>(original) }?))
    });
    let arguments: Arguments = [a, b, c, d, e, f];
    match found {
        // SAFETY: the caller's promise.
        Some((library, function)) => unsafe { library.call(function, &arguments) },
        // NULL, as each of them says.
        None => crate::unsupported::null() as usize,
    }
}
