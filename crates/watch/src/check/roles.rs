//! What each call does with objects: which of its arguments are some, what it makes, and what it destroys.

use crate::calls::{CALLS, Call};
use std::sync::OnceLock;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Thing {
    Context,
    Domain,
    ThreadDomain,
    XrcDomain,
    Region,
    Window,
    DeviceMemory,
    Channel,
    CompletionQueue,
    QueuePair,
    SharedQueue,
    WorkQueue,
    Table,
    AddressHandle,
    Flow,
    EventChannel,
    Identifier,
}

impl Thing {
    /// For a sentence.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Context => "open device",
            Self::Domain => "protection domain",
            Self::ThreadDomain => "thread domain",
            Self::XrcDomain => "XRC domain",
            Self::Region => "region",
            Self::Window => "memory window",
            Self::DeviceMemory => "device memory",
            Self::Channel => "completion channel",
            Self::CompletionQueue => "completion queue",
            Self::QueuePair => "queue pair",
            Self::SharedQueue => "shared receive queue",
            Self::WorkQueue => "work queue",
            Self::Table => "indirection table",
            Self::AddressHandle => "address handle",
            Self::Flow => "flow",
            Self::EventChannel => "event channel",
            Self::Identifier => "identifier",
        }
    }
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The call returns a new object.
    Makes(Thing),
    /// The call writes a new object where this argument points.
    MakesAt(Thing, usize),
    /// The call destroys its first argument.
    Destroys(Thing),
}

/// A call that is looked at in a way of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Other,
    PostSends,
    PostReceives,
    PostSharedReceives,
    PostWorkReceives,
    PostBuilt,
    /// Posts a request, too.
    BindWindow,
    Poll,
    Cursor,
    Arm,
    ResizeQueue,
    ModifyPair,
    ReregisterRegion,
    GetEvent,
    AcknowledgeEvents,
    GetAsyncEvent,
    AcknowledgeAsyncEvent,
    GetManagerEvent,
    AcknowledgeManagerEvent,
    /// The manager makes objects of an identifier.
    MakesManaged,
    /// The call destroys the queue pair of an identifier.
    DestroysPair,
    DestroysSharedQueue,
    /// The call destroys an identifier with all that belongs to it.
    DestroysEndpoint,
}

/// What a call does with objects.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) effect: Effect,
    pub(super) act: Act,
    /// Arguments that are objects: their places, whether they may be NULL.
    pub(super) objects: Vec<(usize, Thing, bool)>,
}

impl Role {
    fn of(call: &Call) -> Self {
        let effect = effect(call.name);
        let objects = call
            .arguments
            .iter()
            .enumerate()
            .filter(|(_, (_, form))| !form.is_result())
            .filter_map(|(place, (name, _))| {
                let thing = argument(call.name, name.trim_start_matches("r#"))?;
                Some((place, thing, may_be_null(call.name, thing)))
            })
            .collect();
        Self { effect, act: act(call.name), objects }
    }

    /// The roles of all calls, in the order of the list.
    pub(super) fn all() -> &'static [Self] {
        static ROLES: OnceLock<Vec<Role>> = OnceLock::new();
        ROLES.get_or_init(|| CALLS.iter().map(Self::of).collect())
    }

    /// Whether the call is part of the ways of data: it makes, changes and destroys no object.
    pub(super) fn is_frequent(&self) -> bool {
        use Act::{
            Arm, Cursor, Poll, PostBuilt, PostReceives, PostSends, PostSharedReceives, PostWorkReceives,
        };
        let posts =
            matches!(self.act, PostSends | PostReceives | PostSharedReceives | PostWorkReceives | PostBuilt);
        posts || matches!(self.act, Poll | Cursor | Arm)
    }

    /// Whether the thread may be cancelled while the check looks at the call. What is done for posts and
    /// polls has no points of cancellation, unless it says so.
    pub(super) fn may_be_cancelled(&self) -> bool {
        !self.is_frequent()
    }

    /// Whether the check has anything to do when the call is made.
    pub(super) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.act == Act::Other && self.effect == Effect::None
    }
}

/// Which kind of object an argument is.
fn argument(call: &str, name: &str) -> Option<Thing> {
    Some(match name {
        "context" if call.starts_with("ibv_") || call.starts_with("_ibv_") => Thing::Context,
        "pd" => Thing::Domain,
        "td" => Thing::ThreadDomain,
        "xrcd" => Thing::XrcDomain,
        "mr" => Thing::Region,
        "mw" => Thing::Window,
        "dm" => Thing::DeviceMemory,
        "cq" => Thing::CompletionQueue,
        "qp" => Thing::QueuePair,
        "srq" => Thing::SharedQueue,
        "wq" => Thing::WorkQueue,
        "rwq_ind_table" => Thing::Table,
        "ah" => Thing::AddressHandle,
        "flow" => Thing::Flow,
        "channel" if call.starts_with("rdma_") => Thing::EventChannel,
        "channel" => Thing::Channel,
        "id" | "listen" => Thing::Identifier,
        _ => return None,
    })
}

fn may_be_null(call: &str, thing: Thing) -> bool {
    match thing {
        Thing::Channel => call == "ibv_create_cq",
        Thing::Domain => call.starts_with("rdma_") || call == "ibv_rereg_mr",
        Thing::EventChannel => matches!(call, "rdma_create_id" | "rdma_migrate_id"),
        Thing::AddressHandle => call == "ibv_wr_set_ud_addr",
        _ => false,
    }
}

fn effect(call: &str) -> Effect {
    use Effect::{Destroys, Makes, MakesAt, None};
    match call {
        "ibv_open_device" | "ibv_import_device" => Makes(Thing::Context),
        "ibv_close_device" => Destroys(Thing::Context),
        "ibv_alloc_pd" | "ibv_alloc_parent_domain" | "ibv_import_pd" => Makes(Thing::Domain),
        "ibv_dealloc_pd" | "ibv_unimport_pd" => Destroys(Thing::Domain),
        "ibv_alloc_td" => Makes(Thing::ThreadDomain),
        "ibv_dealloc_td" => Destroys(Thing::ThreadDomain),
        "ibv_open_xrcd" => Makes(Thing::XrcDomain),
        "ibv_close_xrcd" => Destroys(Thing::XrcDomain),
        "ibv_reg_mr" | "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" | "ibv_reg_mr_ex" | "ibv_reg_dmabuf_mr"
        | "ibv_alloc_null_mr" | "ibv_import_mr" | "ibv_reg_dm_mr" | "ibv_reg_buf_mr" => Makes(Thing::Region),
        "ibv_dereg_mr" | "ibv_unimport_mr" => Destroys(Thing::Region),
        "ibv_alloc_dm" | "ibv_import_dm" => Makes(Thing::DeviceMemory),
        "ibv_free_dm" | "ibv_unimport_dm" => Destroys(Thing::DeviceMemory),
        "ibv_alloc_mw" => Makes(Thing::Window),
        "ibv_dealloc_mw" => Destroys(Thing::Window),
        "ibv_create_comp_channel" => Makes(Thing::Channel),
        "ibv_destroy_comp_channel" => Destroys(Thing::Channel),
        "ibv_create_cq" | "ibv_create_cq_ex" => Makes(Thing::CompletionQueue),
        "ibv_destroy_cq" => Destroys(Thing::CompletionQueue),
        "ibv_create_qp" | "ibv_create_qp_ex" | "ibv_open_qp" => Makes(Thing::QueuePair),
        "ibv_destroy_qp" => Destroys(Thing::QueuePair),
        "ibv_create_srq" | "ibv_create_srq_ex" => Makes(Thing::SharedQueue),
        "ibv_destroy_srq" => Destroys(Thing::SharedQueue),
        "ibv_create_wq" => Makes(Thing::WorkQueue),
        "ibv_destroy_wq" => Destroys(Thing::WorkQueue),
        "ibv_create_rwq_ind_table" => Makes(Thing::Table),
        "ibv_destroy_rwq_ind_table" => Destroys(Thing::Table),
        "ibv_create_ah" | "ibv_create_ah_from_wc" => Makes(Thing::AddressHandle),
        "ibv_destroy_ah" => Destroys(Thing::AddressHandle),
        "ibv_create_flow" => Makes(Thing::Flow),
        "ibv_destroy_flow" => Destroys(Thing::Flow),
        "rdma_create_event_channel" => Makes(Thing::EventChannel),
        "rdma_destroy_event_channel" => Destroys(Thing::EventChannel),
        "rdma_create_id" => MakesAt(Thing::Identifier, 1),
        "rdma_create_ep" => MakesAt(Thing::Identifier, 0),
        "rdma_get_request" => MakesAt(Thing::Identifier, 1),
        "rdma_destroy_id" | "rdma_destroy_ep" => Destroys(Thing::Identifier),
        _ => None,
    }
}

fn act(call: &str) -> Act {
    match call {
        "ibv_post_send" => Act::PostSends,
        "ibv_post_recv" => Act::PostReceives,
        "ibv_post_srq_recv" => Act::PostSharedReceives,
        "ibv_post_wq_recv" => Act::PostWorkReceives,
        "ibv_wr_complete" => Act::PostBuilt,
        "ibv_bind_mw" => Act::BindWindow,
        "ibv_poll_cq" => Act::Poll,
        "ibv_start_poll" | "ibv_next_poll" => Act::Cursor,
        "ibv_req_notify_cq" => Act::Arm,
        "ibv_resize_cq" => Act::ResizeQueue,
        "ibv_modify_qp" => Act::ModifyPair,
        "ibv_rereg_mr" => Act::ReregisterRegion,
        "ibv_get_cq_event" => Act::GetEvent,
        "ibv_ack_cq_events" => Act::AcknowledgeEvents,
        "ibv_get_async_event" => Act::GetAsyncEvent,
        "ibv_ack_async_event" => Act::AcknowledgeAsyncEvent,
        "rdma_get_cm_event" => Act::GetManagerEvent,
        "rdma_ack_cm_event" => Act::AcknowledgeManagerEvent,
        "rdma_create_qp" | "rdma_create_qp_ex" | "rdma_create_srq" | "rdma_create_srq_ex"
        | "rdma_create_ep" | "rdma_get_request" => Act::MakesManaged,
        "rdma_destroy_qp" => Act::DestroysPair,
        "rdma_destroy_srq" => Act::DestroysSharedQueue,
        "rdma_destroy_ep" => Act::DestroysEndpoint,
        _ => Act::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Returns, find};

    fn role(name: &str) -> &'static Role {
        &Role::all()[find(name).expect(name)]
    }

    #[test]
    fn arguments_that_are_objects_are_known() {
        assert_eq!(role("ibv_post_send").objects, [(0, Thing::QueuePair, false)]);
        assert_eq!(role("ibv_wr_bind_mw").objects, [(0, Thing::QueuePair, false), (1, Thing::Window, false)]);
        assert_eq!(role("rdma_create_id").objects, [(0, Thing::EventChannel, true)]);
        assert_eq!(role("ibv_create_cq").objects, [(0, Thing::Context, false), (3, Thing::Channel, true)]);
        assert_eq!(role("ibv_get_cq_event").objects, [(0, Thing::Channel, false)]);
        assert!(role("ibv_post_send").is_frequent() && !role("ibv_modify_qp").is_frequent());
        assert!(Role::all().iter().all(|role| !role.is_frequent() || role.effect == Effect::None));
        assert!(role("ibv_get_device_list").is_idle() && !role("ibv_poll_cq").is_idle());
    }

    #[test]
    fn every_object_that_is_made_can_be_destroyed() {
        for (call, role) in CALLS.iter().zip(Role::all()) {
            match role.effect {
                Effect::Makes(thing) => {
                    assert!(matches!(call.returns, Returns::Object(_) | Returns::Pointer), "{}", call.name);
                    assert!(Role::all().iter().any(|other| other.effect == Effect::Destroys(thing)));
                }
                Effect::MakesAt(_, place) => assert!(call.arguments[place].1.is_result(), "{}", call.name),
                Effect::Destroys(thing) => {
                    assert_eq!(role.objects.first().map(|object| (object.0, object.1)), Some((0, thing)));
                }
                Effect::None => {}
            }
        }
    }
}
