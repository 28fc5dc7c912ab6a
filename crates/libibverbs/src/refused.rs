//! Why a request was not taken (`ibv_post_send(3)`): lines of the log, since a program has nothing but an
//! error number. Only where a post has failed already.

use std::borrow::Cow;

use adverb_core::error::PostError;
use adverb_core::log;
use adverb_core::qp::{QueuePair, Service, State};
use adverb_core::request::{Data, Opcode, SendRequest, Sge};
use adverb_core::srq::SharedReceiveQueue;

use crate::abi::{IBV_SEND_INLINE, ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::post::elements;

/// A datagram that has no address.
pub(crate) const NO_HANDLE: &str =
    "its address handle is NULL, or of another protection domain than the queue pair";

/// Whether a line is wanted. A full queue has none: programs meet it often in ordinary operation.
fn is_wanted(error: PostError) -> bool {
    error != PostError::QueueFull && log::enabled(log::Level::Info)
}

/// A send request as far as a refusal depends on it.
#[derive(Default)]
pub(crate) struct RefusedRequest {
    pub(crate) wr_id: u64,
    /// The opcode as the program wrote it: it may be none.
    pub(crate) opcode: u32,
    /// What is wrong with it, where [`PostError::Invalid`] does not say.
    pub(crate) why: Option<Cow<'static, str>>,
    pub(crate) sges: usize,
    pub(crate) bytes: u64,
    pub(crate) is_inline: bool,
}

impl RefusedRequest {
    /// A request that C's functions have refused.
    ///
    /// # Safety
    /// The list of the request is valid.
    unsafe fn of_c(wr: &ibv_send_wr, error: PostError) -> Self {
        let bytes = match error {
            // SAFETY: the caller's promise.
            PostError::InlineTooLong | PostError::TooLong => unsafe { elements(wr.sg_list, wr.num_sge) },
            _ => Ok(&[][..]),
        };
        let is_bind = Opcode::from_number(wr.opcode) == Some(Opcode::BindWindow);
        Self {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            why: no_list(wr.sg_list, wr.num_sge).filter(|_| !is_bind).map(Cow::from),
            sges: usize::try_from(wr.num_sge).unwrap_or(0),
            bytes: bytes.map_or(0, length),
            is_inline: wr.send_flags & IBV_SEND_INLINE != 0,
        }
    }

    /// A request that a builder has refused.
    pub(crate) fn of_builder(request: &SendRequest<'_>) -> Self {
        let (sges, bytes) = match request.data {
            Data::Registered(sges) | Data::InlineAt(sges) => (sges.len(), length(sges)),
            Data::Inline(slices) => (0, slices.iter().map(|slice| slice.len() as u64).sum()),
        };
        let is_inline = !matches!(request.data, Data::Registered(_));
        Self { wr_id: request.wr_id, opcode: request.opcode as u32, why: None, sges, bytes, is_inline }
    }
}

fn length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// What is wrong with a list of elements from C.
fn no_list(list: *const ibv_sge, count: i32) -> Option<String> {
    match count {
        ..=-1 => Some(format!("num_sge is {count}")),
        1.. if list.is_null() => Some(format!("num_sge is {count}, and sg_list is NULL")),
        _ => None,
    }
}

/// `ibv_post_send(3)` has refused a request.
///
/// # Safety
/// As of [`RefusedRequest::of_c`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn send(pair: &QueuePair, wr: &ibv_send_wr, error: PostError) {
    if is_wanted(error) {
        // SAFETY: the caller's promise.
        say(pair, &unsafe { RefusedRequest::of_c(wr, error) }, error);
    }
}

/// A request was refused that `refused` describes.
#[cold]
#[inline(never)]
pub(crate) fn built(pair: &QueuePair, refused: &RefusedRequest, error: PostError) {
    if is_wanted(error) {
        say(pair, refused, error);
    }
}

fn say(pair: &QueuePair, refused: &RefusedRequest, error: PostError) {
    let (number, wr_id) = (pair.number(), refused.wr_id);
    let what = Opcode::from_number(refused.opcode).map_or("no operation", Opcode::name);
    let why = why_send(pair, refused, error);
    log!(Info, "queue pair {number:#x}: request {wr_id:#x} ({what}) is not taken: {why}");
}

fn why_send(pair: &QueuePair, refused: &RefusedRequest, error: PostError) -> String {
    let service = pair.queues().service;
    let sizes = pair.capabilities();
    let opcode = Opcode::from_number(refused.opcode);
    match error {
        PostError::Invalid if opcode.is_none() => {
            format!("its opcode is {}, and none has that number", refused.opcode)
        }
        PostError::Invalid if let Some(why) = &refused.why => why.to_string(),
        PostError::State if service == Service::XrcReceive => {
            "an XRC target queue pair sends nothing".to_owned()
        }
        PostError::State => {
            format!(
                "the queue pair is in {}; sends are posted in {}",
                pair.state(),
                states(State::takes_sends)
            )
        }
        PostError::TooManySges => format!(
            "it has {} scatter/gather elements; the queue pair has max_send_sge {}",
            refused.sges, sizes.max_send_sge
        ),
        PostError::InlineTooLong => format!(
            "it has {} bytes of inline data; the queue pair has max_inline_data {}",
            refused.bytes, sizes.max_inline_data
        ),
        PostError::TooLong => format!(
            "it has {} bytes; the device's max_msg_sz is {}",
            refused.bytes,
            pair.context().attributes().max_message
        ),
        PostError::Unsupported => {
            format!("a {service} queue pair of this device, or its peer, has no such operation")
        }
        PostError::Invalid if opcode == Some(Opcode::BindWindow) => {
            "the window, or its region, is not one that this operation binds".to_owned()
        }
        PostError::Invalid if refused.is_inline && opcode.is_some_and(Opcode::is_read_or_atomic) => {
            "inline data is for sends and writes".to_owned()
        }
        PostError::Invalid if service == Service::Ud => NO_HANDLE.to_owned(),
        error => error.to_string(),
    }
}

/// `ibv_post_recv(3)` has refused a request.
#[cold]
#[inline(never)]
pub(crate) fn receive(pair: &QueuePair, wr: &ibv_recv_wr, error: PostError) {
    if !is_wanted(error) {
        return;
    }
    let why = match error {
        PostError::State => {
            let states = states(State::takes_receives);
            format!("the queue pair is in {}; receives are posted in {states}", pair.state())
        }
        PostError::Invalid if no_list(wr.sg_list, wr.num_sge).is_none() => {
            "the queue pair has its receives from elsewhere: a shared receive queue, or work queues"
                .to_owned()
        }
        error => why_receive(wr, pair.capabilities().max_recv_sge, "queue pair has max_recv_sge", error),
    };
    log!(Info, "queue pair {:#x}: receive {:#x} is not taken: {why}", pair.number(), wr.wr_id);
}

/// `ibv_post_srq_recv(3)`, or `ibv_post_wq_recv(3)`, has refused a request.
#[cold]
#[inline(never)]
pub(crate) fn shared_receive(queue: &SharedReceiveQueue, wr: &ibv_recv_wr, error: PostError) {
    if is_wanted(error) {
        let why = why_receive(wr, queue.attributes().max_sge, "shared receive queue has max_sge", error);
        let (number, wr_id) = (queue.number(), wr.wr_id);
        log!(Info, "shared receive queue {number:#x}: receive {wr_id:#x} is not taken: {why}");
    }
}

fn why_receive(wr: &ibv_recv_wr, most: u32, limit: &str, error: PostError) -> String {
    match error {
        PostError::TooManySges => {
            format!("it has {} scatter/gather elements; the {limit} {most}", wr.num_sge)
        }
        error => no_list(wr.sg_list, wr.num_sge).unwrap_or_else(|| error.to_string()),
    }
}

/// The states that a request is posted in, as in a sentence.
fn states(takes: impl Fn(State) -> bool) -> String {
    let states = (0..=State::Error as u32).filter_map(State::from_number);
    states.filter(|state| takes(*state)).map(|state| state.to_string()).collect::<Vec<_>>().join(", ")
}
