//! The queue pair state machine, as one table: the attributes that each transition needs, and those that it
//! may carry (ibv_modify_qp(3)). For InfiniBand, these are the modifiers of Modify Queue Pair in the
//! InfiniBand Architecture Specification, volume 1, section 11.2.4.2.

use crate::error::{Error, Result};
use crate::request::Opcode;
use bitflags::bitflags;
use std::fmt;

/// The transport service of a queue pair (`enum ibv_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames.
    RawPacket = 8,
    /// The initiator of an extended reliable connection (annex A14): it has only a send queue.
    XrcSend = 9,
    /// The target of one: it has no queues at all.
    XrcReceive = 10,
}

impl Service {
    /// Whether requests of this kind exist in the service (the InfiniBand Architecture Specification, volume
    /// 1, table of section 9.2).
    ///
    /// ```
    /// # use adverb_core::{qp::Service, request::Opcode};
    /// // Of readings, only the newest matters. A service without repetitions is enough, if it has Writes.
    /// assert!(Service::Uc.has(Opcode::Write) && !Service::Uc.has(Opcode::Read));
    /// assert!(!Service::Ud.has(Opcode::Write));
    /// ```
    pub fn has(self, operation: Opcode) -> bool {
        use Opcode::{BindWindow, LocalInvalidate, Send, SendWithImmediate, Write, WriteWithImmediate};
        match self {
            Rc | XrcSend => true,
            XrcReceive => false,
            Uc => matches!(
                operation,
                Send | SendWithImmediate | Write | WriteWithImmediate | LocalInvalidate | BindWindow
            ),
            Ud => matches!(operation, Send | SendWithImmediate),
            RawPacket => operation == Send,
        }
    }
}

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// New: takes no requests.
    Reset = 0,
    /// Takes receives.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send, too.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue in error (UC, UD).
    Sqe = 5,
    /// In error: every request is flushed.
    Error = 6,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rc => "RC",
            Uc => "UC",
            Ud => "UD",
            RawPacket => "raw packet",
            XrcSend => "XRC initiator",
            XrcReceive => "XRC target",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reset => "RESET",
            Init => "INIT",
            Rtr => "RTR",
            Rts => "RTS",
            Sqd => "SQD",
            Sqe => "SQE",
            Err_ => "ERROR",
        })
    }
}

impl State {
    /// The state of a number of the C interface.
    ///
    /// ```
    /// # use adverb_core::qp::State;
    /// // A program in C has printed the state of its queue pair as a number.
    /// assert_eq!(State::from_number(6), Some(State::Error));
    /// assert_eq!(State::from_number(7), None);
    /// ```
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Error,
            _ => return None,
        })
    }

    /// Whether receives may be posted.
    ///
    /// ```
    /// # use adverb_core::qp::State;
    /// // Before there is a connection: so the first message of the peer finds a receive.
    /// assert!(State::Init.takes_receives());
    /// assert!(!State::Reset.takes_receives());
    /// ```
    // IB-QP-1, IB-QP-3
    pub fn takes_receives(self) -> bool {
        self != Self::Reset
    }

    /// Whether sends may be posted: in error they are accepted and flushed.
    ///
    /// ```
    /// # use adverb_core::qp::State;
    /// // A queue pair that waits for its connection takes receives alone.
    /// assert!(State::Init.takes_receives() && !State::Init.takes_sends());
    /// assert!(State::Rts.takes_sends());
    /// ```
    // IB-QP-3, IB-QP-4, IB-QP-6, IB-QP-9
    pub fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Error)
    }
}

bitflags! {
    /// Which attributes a modification carries (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttributeMask: u32 {
        /// The next state.
        const STATE = 1;
        /// The state that the caller assumes.
        const CURRENT_STATE = 1 << 1;
        /// Notify when the send queue is drained.
        const SQD_NOTIFY = 1 << 2;
        /// Access of peers.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries.
        const RETRY_COUNT = 1 << 10;
        /// Retries when the peer is not ready.
        const RNR_RETRY = 1 << 11;
        /// First PSN to receive.
        const RQ_PSN = 1 << 12;
        /// Outstanding reads and atomics as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Minimum RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// Outstanding reads and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes.
        const CAP = 1 << 19;
        /// The peer's queue pair number.
        const DEST_QPN = 1 << 20;
        /// Packet pacing.
        const RATE_LIMIT = 1 << 25;
    }
}

/// The attributes of a queue pair (struct ibv_qp_attr). A modification sets those in its mask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Next state, as a number of the C interface.
    pub state: Option<State>,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Q_Key.
    pub qkey: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// First PSN to send.
    pub sq_psn: u32,
    /// The peer's queue pair number.
    pub destination: u32,
    /// The peers' rights: bits of [`crate::memory::Access`].
    pub access: u32,
    /// The path.
    pub path: Path,
    /// P_Key index.
    pub pkey_index: u16,
    /// Outbound reads and atomics (ORD).
    pub max_rd_atomic: u8,
    /// Inbound reads and atomics (IRD).
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Port.
    pub port: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Whether to raise an event when drained.
    pub sqd_notify: bool,
    /// Only read: in SQD, and requests that were begun are not complete.
    pub sq_draining: bool,
}

/// Where packets go (struct ibv_ah_attr).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The destination's GID.
    pub gid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of our own GID.
    pub source_gid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// LID (no meaning on Ethernet).
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Source path bits.
    pub source_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Whether the GID part is used.
    pub is_global: bool,
    /// Port.
    pub port: u8,
}

use AttributeMask as M;
use Service::{RawPacket, Rc, Uc, Ud, XrcReceive, XrcSend};
use State::{Error as Err_, Init, Reset, Rtr, Rts, Sqd, Sqe};

struct Row(State, State, &'static [(Service, M, M)]);

const NONE: M = M::empty();
const fn m(parts: &[M]) -> M {
    let mut all = M::empty();
    let mut index = 0;
    while index < parts.len() {
        all = all.union(parts[index]);
        index += 1;
    }
    all
}

const INIT_CONNECTED: M = m(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);
const INIT_DATAGRAM: M = m(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
const ADDRESS: M = m(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
/// The attributes of a queue pair that sends requests and waits for answers, and of one that answers.
const REQUESTER: M = m(&[M::TIMEOUT, M::RETRY_COUNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC]);
const RESPONDER: M = m(&[M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
const RTR_OPTIONS: M = m(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);
const SQD_OPTIONS: M = m(&[M::AV, M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX, M::PATH_MIG_STATE]);
const RTS_OPTIONS: M = m(&[M::CURRENT_STATE, M::ACCESS_FLAGS, M::ALT_PATH, M::PATH_MIG_STATE]);
const DATAGRAM_OPTIONS: M = m(&[M::CURRENT_STATE, M::QKEY]);

/// From, to, and per service the required attributes and those that are allowed beside them.
// IB-QP-2, IB-QP-14, IB-QP-15, IB-QP-16, IB-QP-17, IB-XRC-9
const TABLE: &[Row] = &[
    Row(
        Reset,
        Init,
        &[
            (Rc, INIT_CONNECTED, NONE),
            (Uc, INIT_CONNECTED, NONE),
            (Ud, INIT_DATAGRAM, NONE),
            (RawPacket, M::PORT, NONE),
            (XrcSend, INIT_CONNECTED, NONE),
            (XrcReceive, INIT_CONNECTED, NONE),
        ],
    ),
    Row(
        Init,
        Init,
        &[
            (Rc, NONE, INIT_CONNECTED),
            (Uc, NONE, INIT_CONNECTED),
            (Ud, NONE, INIT_DATAGRAM),
            (RawPacket, NONE, M::PORT),
            (XrcSend, NONE, INIT_CONNECTED),
            (XrcReceive, NONE, INIT_CONNECTED),
        ],
    ),
    Row(
        Init,
        Rtr,
        &[
            (Rc, m(&[ADDRESS, RESPONDER]), RTR_OPTIONS),
            (Uc, ADDRESS, RTR_OPTIONS),
            (Ud, NONE, m(&[M::PKEY_INDEX, M::QKEY])),
            (RawPacket, NONE, NONE),
            (XrcSend, ADDRESS, RTR_OPTIONS),
            (XrcReceive, m(&[ADDRESS, RESPONDER]), RTR_OPTIONS),
        ],
    ),
    Row(
        Rtr,
        Rts,
        &[
            (Rc, m(&[M::SQ_PSN, REQUESTER]), m(&[RTS_OPTIONS, M::MIN_RNR_TIMER])),
            (Uc, M::SQ_PSN, RTS_OPTIONS),
            (Ud, M::SQ_PSN, DATAGRAM_OPTIONS),
            (RawPacket, NONE, M::RATE_LIMIT),
            (XrcSend, m(&[M::SQ_PSN, REQUESTER]), RTS_OPTIONS),
            (XrcReceive, m(&[M::SQ_PSN, M::TIMEOUT]), m(&[RTS_OPTIONS, M::MIN_RNR_TIMER])),
        ],
    ),
    Row(
        Rts,
        Rts,
        &[
            (Rc, NONE, m(&[RTS_OPTIONS, M::MIN_RNR_TIMER, M::RATE_LIMIT])),
            (Uc, NONE, m(&[RTS_OPTIONS, M::RATE_LIMIT])),
            (Ud, NONE, m(&[DATAGRAM_OPTIONS, M::RATE_LIMIT])),
            (RawPacket, NONE, M::RATE_LIMIT),
            (XrcSend, NONE, RTS_OPTIONS),
            (XrcReceive, NONE, m(&[RTS_OPTIONS, M::MIN_RNR_TIMER])),
        ],
    ),
    Row(
        Rts,
        Sqd,
        &[
            (Rc, NONE, M::SQD_NOTIFY),
            (Uc, NONE, M::SQD_NOTIFY),
            (Ud, NONE, M::SQD_NOTIFY),
            (RawPacket, NONE, M::SQD_NOTIFY),
            (XrcSend, NONE, M::SQD_NOTIFY),
            (XrcReceive, NONE, M::SQD_NOTIFY),
        ],
    ),
    Row(
        Sqd,
        Sqd,
        &[
            (Rc, NONE, m(&[SQD_OPTIONS, M::PORT, REQUESTER, RESPONDER])),
            (Uc, NONE, SQD_OPTIONS),
            (Ud, NONE, m(&[M::PKEY_INDEX, M::QKEY])),
            (RawPacket, NONE, NONE),
            (XrcSend, NONE, m(&[SQD_OPTIONS, M::PORT, REQUESTER])),
            (XrcReceive, NONE, m(&[SQD_OPTIONS, M::PORT, M::TIMEOUT, RESPONDER])),
        ],
    ),
    Row(
        Sqd,
        Rts,
        &[
            (Rc, NONE, m(&[RTS_OPTIONS, M::MIN_RNR_TIMER])),
            (Uc, NONE, RTS_OPTIONS),
            (Ud, NONE, DATAGRAM_OPTIONS),
            (RawPacket, NONE, NONE),
            (XrcSend, NONE, RTS_OPTIONS),
            (XrcReceive, NONE, m(&[RTS_OPTIONS, M::MIN_RNR_TIMER])),
        ],
    ),
    Row(
        Sqe,
        Rts,
        &[
            (Uc, NONE, m(&[M::CURRENT_STATE, M::ACCESS_FLAGS])),
            (Ud, NONE, DATAGRAM_OPTIONS),
            (RawPacket, NONE, NONE),
        ],
    ),
];

/// The attributes of a modification that count. Programs set up both ends of XRC like RC. As in Linux,
/// attributes without a meaning for an end are not looked at.
// IB-XRC-9
pub(super) fn meant(service: Service, mask: M) -> M {
    match service {
        XrcSend => mask.difference(RESPONDER),
        XrcReceive => mask.difference(m(&[M::RETRY_COUNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC])),
        _ => mask,
    }
}

/// How a modification changes the state: where it comes from and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
}

/// Checks a modification against the table. `connected_by_manager`: the transport has no attributes of a path
/// (iWARP), so a connection manager alone takes the queue pair beyond INIT, and every attribute beside the
/// state is optional.
pub fn check(
    service: Service,
    from: State,
    attributes: &Attributes,
    mask: M,
    connected_by_manager: bool,
) -> Result<Transition> {
    let to = if mask.contains(M::STATE) {
        attributes.state.ok_or_else(|| Error::invalid("the next state is not one of the seven"))?
    } else {
        from
    };
    let given = mask.difference(M::STATE);
    // From anywhere to RESET and ERROR, with nothing else to say.
    if matches!(to, Reset | Err_) && mask.contains(M::STATE) {
        return Ok(Transition { from, to });
    }
    if connected_by_manager {
        return match (from, to) {
            (Reset, Init) | (Init, Init) | (Rts, Rts) | (Rts, Sqd) | (Sqd, Sqd) | (Sqd, Rts) => {
                Ok(Transition { from, to })
            }
            // A program that manages its queue pair itself takes this step (rdma_init_qp_attr(3)); there is
            // nothing to do in it.
            (Init, Rtr) => Ok(Transition { from, to: from }),
            _ if !mask.contains(M::STATE) => Ok(Transition { from, to }),
            _ => Err(Error::invalid(format!(
                "{from} to {to}: on iWARP the connection manager (rdma_connect, rdma_accept) connects a queue pair"
            ))),
        };
    }
    let row = TABLE
        .iter()
        .find(|row| row.0 == from && row.1 == to)
        .and_then(|row| row.2.iter().find(|(known, _, _)| *known == service));
    let Some((_, required, optional)) = row else {
        return Err(Error::invalid(format!("a queue pair of {service} cannot go from {from} to {to}")));
    };
    // IB-QP-19
    let missing = required.difference(given);
    if !missing.is_empty() {
        return Err(Error::invalid(format!("{from} to {to} ({service}) needs also {}", names(missing))));
    }
    let surplus = given.difference(required.union(*optional));
    if !surplus.is_empty() {
        return Err(Error::invalid(format!("{from} to {to} ({service}) does not take {}", names(surplus))));
    }
    Ok(Transition { from, to })
}

/// By their names in the C interface.
fn names(mask: AttributeMask) -> String {
    let name = |name| match name {
        "STATE" => "IBV_QP_STATE".to_owned(),
        "CURRENT_STATE" => "IBV_QP_CUR_STATE".to_owned(),
        "SQD_NOTIFY" => "IBV_QP_EN_SQD_ASYNC_NOTIFY".to_owned(),
        "RETRY_COUNT" => "IBV_QP_RETRY_CNT".to_owned(),
        other => format!("IBV_QP_{other}"),
    };
    mask.iter_names().map(|(known, _)| name(known)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(service: Service, from: State, to: State, mask: M, iwarp: bool) -> std::result::Result<State, i32> {
        let attributes = Attributes { state: Some(to), ..Attributes::default() };
        check(service, from, &attributes, mask | M::STATE, iwarp).map(|t| t.to).map_err(|e| e.errno())
    }

    // IB-QP-2, IB-QP-14, IB-QP-15, IB-QP-16, IB-QP-17, IB-QP-19
    #[test]
    fn the_way_to_rts() {
        assert_eq!(go(Rc, Reset, Init, INIT_CONNECTED, false), Ok(Init));
        assert_eq!(go(Rc, Reset, Init, INIT_DATAGRAM, false), Err(libc::EINVAL));
        assert_eq!(go(Rc, Init, Rtr, ADDRESS, false), Err(libc::EINVAL));
        assert_eq!(go(Uc, Init, Rtr, ADDRESS, false), Ok(Rtr));
        assert_eq!(go(Ud, Init, Rtr, NONE, false), Ok(Rtr));
        assert_eq!(go(Ud, Rtr, Rts, M::SQ_PSN, false), Ok(Rts));
        assert_eq!(go(Rc, Reset, Rts, NONE, false), Err(libc::EINVAL));
        assert_eq!(go(Rc, Rts, Rts, M::RQ_PSN, false), Err(libc::EINVAL));
    }

    // IB-XRC-9
    #[test]
    fn an_initiator_only_asks_and_a_target_only_answers() {
        assert_eq!(go(XrcSend, Init, Rtr, ADDRESS, false), Ok(Rtr));
        assert_eq!(go(XrcSend, Init, Rtr, ADDRESS | M::MIN_RNR_TIMER, false), Err(libc::EINVAL));
        assert_eq!(meant(XrcSend, m(&[ADDRESS, RESPONDER])), ADDRESS);
        assert_eq!(meant(XrcReceive, m(&[M::SQ_PSN, REQUESTER])), M::SQ_PSN | M::TIMEOUT);
        assert_eq!(go(XrcSend, Rtr, Rts, REQUESTER | M::SQ_PSN, false), Ok(Rts));
        assert_eq!(go(XrcReceive, Init, Rtr, ADDRESS, false), Err(libc::EINVAL));
        assert_eq!(go(XrcReceive, Init, Rtr, ADDRESS | RESPONDER, false), Ok(Rtr));
        assert_eq!(go(XrcReceive, Rtr, Rts, M::SQ_PSN | M::TIMEOUT, false), Ok(Rts));
        assert_eq!(go(XrcReceive, Rtr, Rts, REQUESTER | M::SQ_PSN, false), Err(libc::EINVAL));
    }

    // IB-QP-2
    #[test]
    fn error_and_reset_from_everywhere() {
        for from in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err_] {
            assert_eq!(go(Rc, from, Err_, NONE, false), Ok(Err_));
            assert_eq!(go(Rc, from, Reset, NONE, false), Ok(Reset));
        }
    }

    #[test]
    fn iwarp_is_connected_by_its_manager() {
        assert_eq!(go(Rc, Reset, Init, M::ACCESS_FLAGS, true), Ok(Init));
        assert_eq!(go(Rc, Init, Rtr, M::ACCESS_FLAGS | M::PORT, true), Ok(Init));
        assert_eq!(go(Rc, Init, Rts, NONE, true), Err(libc::EINVAL));
        assert_eq!(go(Rc, Reset, Rtr, NONE, true), Err(libc::EINVAL));
        assert_eq!(go(Rc, Rts, Err_, NONE, true), Ok(Err_));
    }
}
