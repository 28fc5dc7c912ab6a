//! The words of rules that name errors and events, and what a real fabric does in each case.

use crate::names;
use adverb_core::event::AsyncEventKind;
use adverb_core::request::Status;

/// The errors that a completion can have, by the names of `enum ibv_wc_status` without `IBV_WC_`: what a
/// fabric does then, for a person.
pub const STATUSES: &[(&str, Status, &str)] = &[
    (
        "LOC_LEN_ERR",
        Status::LocalLength,
        "a message was longer than the receive that it took, or than the port allows",
    ),
    (
        "LOC_QP_OP_ERR",
        Status::LocalQpOperation,
        "the adapter could not carry out the request: it was made wrongly",
    ),
    ("LOC_PROT_ERR", Status::LocalProtection, "the request names local memory that its lkey does not open"),
    ("WR_FLUSH_ERR", Status::Flushed, "the queue pair was in error before the request was done"),
    ("MW_BIND_ERR", Status::WindowBind, "a memory window could not be bound: wrong region, range or right"),
    ("BAD_RESP_ERR", Status::BadResponse, "the peer's adapter answered something impossible"),
    ("LOC_ACCESS_ERR", Status::LocalAccess, "data arrived for local memory that may not be written"),
    (
        "REM_INV_REQ_ERR",
        Status::RemoteInvalidRequest,
        "the peer found the request invalid: its receive was too small, or it lacks the right",
    ),
    (
        "REM_ACCESS_ERR",
        Status::RemoteAccess,
        "the peer refused access: wrong rkey, bytes outside of the region, or a missing right",
    ),
    ("REM_OP_ERR", Status::RemoteOperation, "the peer could not complete the operation"),
    (
        "RETRY_EXC_ERR",
        Status::RetryExceeded,
        "the peer, or the way to it, has gone: nothing was acknowledged, however often it was sent",
    ),
    (
        "RNR_RETRY_EXC_ERR",
        Status::RnrRetryExceeded,
        "the peer had no receive posted, however often the message was sent",
    ),
    ("REM_ABORT_ERR", Status::RemoteAborted, "the peer gave the operation up"),
    ("FATAL_ERR", Status::Fatal, "the adapter failed"),
    ("RESP_TIMEOUT_ERR", Status::ResponseTimeout, "an answer came too late"),
    ("GENERAL_ERR", Status::General, "the transport failed in some other way"),
];

/// The events of devices and of queue pairs, by the names of `enum ibv_event_type` without `IBV_EVENT_`; what
/// they mean on a fabric, for a person.
pub const EVENTS: &[(&str, AsyncEventKind, &str)] = &[
    ("PORT_ERR", AsyncEventKind::PortError, "the cable was pulled, or the switch went down"),
    ("PORT_ACTIVE", AsyncEventKind::PortActive, "the port carries packets again"),
    ("DEVICE_FATAL", AsyncEventKind::DeviceFatal, "the adapter failed, or is about to be removed"),
    ("LID_CHANGE", AsyncEventKind::LidChange, "the subnet manager gave the port another LID"),
    ("PKEY_CHANGE", AsyncEventKind::PkeyChange, "the port is in other partitions now"),
    ("SM_CHANGE", AsyncEventKind::SmChange, "another subnet manager took over"),
    ("CLIENT_REREGISTER", AsyncEventKind::ClientReregister, "the subnet manager has forgotten subscriptions"),
    ("GID_CHANGE", AsyncEventKind::GidChange, "an address of the host was added, changed or removed"),
    (
        "QP_FATAL",
        AsyncEventKind::QpFatal,
        "the adapter found an error of the queue pair outside of a request",
    ),
    ("QP_REQ_ERR", AsyncEventKind::QpRequestError, "the peer sent something that is no valid request"),
    ("QP_ACCESS_ERR", AsyncEventKind::QpAccessError, "the peer asked for memory that it may not have"),
    (
        "COMM_EST",
        AsyncEventKind::CommunicationEstablished,
        "the first message came before the program had moved the queue pair to RTS",
    ),
    ("SQ_DRAINED", AsyncEventKind::SendQueueDrained, "the send queue of a queue pair in SQD is drained"),
    ("PATH_MIG", AsyncEventKind::PathMigrated, "the queue pair went over to its alternate path"),
    ("PATH_MIG_ERR", AsyncEventKind::PathMigrationError, "the alternate path does not work either"),
    (
        "QP_LAST_WQE_REACHED",
        AsyncEventKind::QpLastWqeReached,
        "a queue pair in error takes no more receives of its shared receive queue",
    ),
];

/// Whether an event is about a queue pair, and not about a device.
pub(super) fn is_of_pair(kind: AsyncEventKind) -> bool {
    matches!(kind as u32, 1..=7 | 16)
}

/// The operations of completions, by the names of `enum ibv_wc_opcode` without `IBV_WC_`.
pub fn operation_names() -> impl Iterator<Item = &'static str> {
    names::WC_OPCODE.iter().map(|(_, name)| name.trim_start_matches("IBV_WC_"))
}

/// What else happens to completions: the word, the form of its value, and what a fabric does.
pub const COMPLETION: &[(&str, &str, &str)] = &[
    (
        "delay",
        "=TIME",
        "completions come so much later, in the order of their queue: a busy adapter. With jitter=TIME up to so much later still",
    ),
    (
        "reorder",
        "[=TIME]",
        "a completion comes after the next one of another queue pair, or after 1 ms, or TIME: adapters have no order between queue pairs",
    ),
];

/// Kinds of faults of the wire: the word, the form of its value, and what a fabric does.
pub const WIRE: &[(&str, &str, &str)] = &[
    (
        "loss",
        "",
        "packets are lost: a full switch, a bad cable. RoCE repeats them; TCP does, too, 0.2 s later",
    ),
    (
        "partition",
        "",
        "nothing gets through: a switch or a route is gone. Connections last until their retries are used up",
    ),
    (
        "delay",
        "=TIME",
        "each packet comes so much later, in order: a long way. With jitter=TIME up to so much later still",
    ),
    (
        "reorder",
        "[=TIME]",
        "a packet comes 1 ms later, or TIME, and others overtake it: several paths. TCP hides it",
    ),
    ("duplicate", "[=N]", "a packet comes twice, or N times more: a link that repeats. TCP hides it"),
    (
        "corrupt",
        "",
        "a bit changes: a bad cable. RoCE drops the packet; iWARP ends the connection (checksums are on then)",
    ),
    (
        "rate",
        "=RATE",
        "so many bits in a second get through (10mbit, 2.5gbit). Queues of more than 0.2 s lose packets",
    ),
    ("cut", "", "iWARP: the TCP connection is reset, for both ends. RoCE has no such thing: see peer:cut"),
];

/// Kinds of faults of the device, in the same way.
pub const DEVICE: &[(&str, &str, &str)] = &[
    (
        "port_down",
        "",
        "the port is down: PORT_ERR, nothing gets through, the state is PORT_DOWN; afterwards PORT_ACTIVE",
    ),
    ("gid_removed", "=ADDRESS", "the host has lost the address: GID_CHANGE, its entry is empty"),
    ("gid_added", "=ADDRESS", "the host has one more address: GID_CHANGE, it has an entry"),
    ("gid_changed", "=OLD/NEW", "the host has another address in place of one: GID_CHANGE"),
    ("speed", "=GBITS", "the link runs at another speed, without an event: a lane of the cable failed"),
    (
        "fatal",
        "",
        "the adapter fails: DEVICE_FATAL, all queue pairs are in error, calls on the device fail with EIO, nothing gets through. Its driver resets it: RDMA_CM_EVENT_DEVICE_REMOVAL",
    ),
    (
        "gone",
        "",
        "the adapter is removed: as above, and it is in no list of devices and cannot be opened (ENODEV)",
    ),
];

/// Kinds of faults of the process, in the same way.
pub const PEER: &[(&str, &str, &str)] = &[
    (
        "stall",
        "[=TIME]",
        "the program gets no processor, for so long or for ever: its calls do not return. The engine goes on, as an adapter does",
    ),
    ("kill", "", "the program is killed (SIGKILL): connections of rdma_cm end, others stay silent"),
    (
        "restart",
        "",
        "the program is killed and starts again with the same arguments, as under a supervisor; once",
    ),
    (
        "cut",
        "",
        "the queue pair that posts, or with a time each one, goes into error. iWARP ends the connection; the peer of RoCE is not told",
    ),
];
