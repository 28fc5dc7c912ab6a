//! The suite that every transport must pass. Each case uses the public interface alone, in one process, over
//! one device.
//!
//! ```text
//! adverb_core::conformance_tests!(Site::new(|| engine::install(&[my_transport::FACTORY]), "mine0", "127.0.0.1"));
//! ```
//!
//! Transports whose queue pairs attributes connect run a second list, with the services and states that exist
//! there alone; it needs no connection manager:
//!
//! ```text
//! adverb_core::conformance_tests_by_attributes!(
//!     Site::new(|| engine::install(&[my_transport::FACTORY]), "mine0", "127.0.0.1").by_attributes()
//! );
//! ```
//!
//! A case panics when the transport fails it. All waits are bounded by [`TEST_TIMEOUT`]. Operations that the
//! device does not list are left out. The standards of the transports differ in places: an iWARP write
//! completes when it is on its way. There a case asks for the rules that they have in common.

mod again;
pub mod agent;
mod completions;
mod connections;
mod datagrams;
pub mod fixture;
pub mod lingering;
mod messages;
mod one_sided;
mod order;
mod queues;
mod shared_receives;
mod states;
mod unreliable;
mod waits;
mod windows;

pub use again::*;
pub use completions::*;
pub use connections::*;
pub use datagrams::*;
pub use fixture::{Site, TEST_TIMEOUT};
pub use messages::*;
pub use one_sided::*;
pub use order::*;
pub use queues::*;
pub use shared_receives::*;
pub use states::*;
pub use unreliable::*;
pub use waits::*;
pub use windows::*;

/// Makes a test of each case, for the [`Site`](crate::conformance::Site) that the expression gives.
#[macro_export]
macro_rules! conformance_tests {
    ($site:expr) => {
        $crate::conformance_tests! { @each $site;
            connects_and_disconnects,
            the_passive_side_disconnects,
            both_sides_disconnect,
            a_message_posted_before_a_disconnect_arrives,
            the_end_waits_for_polls,
            negotiates_depths,
            private_data_has_limits,
            rejects_with_private_data,
            nobody_listens,
            requests_without_an_answer_are_refused,
            an_initiator_gives_up,
            ports_are_taken_once,
            a_wildcard_listener,
            a_queue_pair_of_the_program,
            synchronous_identifiers,
            many_connections_through_one_listener,
            a_peer_vanishes,
            sends_of_every_size,
            inline_sends,
            immediate_data,
            send_with_invalidate,
            a_message_too_long,
            no_receive,
            wrong_local_keys,
            ping_pong_by_polling,
            ping_pong_by_events,
            writes_of_every_size,
            reads_of_every_size,
            long_messages,
            a_message_comes_after_the_writes_before_it,
            a_fence_waits_for_reads,
            a_send_is_complete_before_its_reply,
            a_read_brings_nothing_of_later_requests,
            refused_writes_touch_nothing,
            refused_reads_touch_nothing,
            atomics,
            a_deregistered_region_is_left_alone,
            windows_open_part_of_a_region,
            windows_of_both_types,
            windows_are_taken_back,
            windows_that_cannot_be_bound,
            requests_about_keys_wait_for_uses_and_stop_nobody_else,
            a_region_changes,
            states_and_limits,
            requests_posted_in_error_are_flushed_in_order,
            unsignalled_requests,
            many_threads_post,
            destroyed_with_work_outstanding,
            destruction_reports_nothing,
            a_child_of_fork,
            an_overrun,
            solicited_only,
            armed_once,
            moderated,
            armed_late,
            slept_on,
            awaited,
            awaited_with_signals,
            awaited_by_one_who_is_kept,
            awaited_beside_a_fork,
            awaited_by_several,
            awaited_with_cancellations,
            timestamps,
            a_shared_receive_queue_feeds_all,
            a_shared_receive_queue_tells_of_its_limit,
            a_peer_that_takes_more_than_its_share_of_receives_is_noticed,
            a_shared_receive_queue_is_resized,
            the_last_receive_of_a_queue_pair,
            limits_of_shared_receive_queues,
        }
    };
    (@each $site:expr; $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$case(&$site);
            }
        )*
    };
}

/// Makes a test of each case that suits queue pairs which attributes connect, for the
/// [`Site`](crate::conformance::Site) that the expression gives.
#[macro_export]
macro_rules! conformance_tests_by_attributes {
    ($site:expr) => {
        $crate::conformance_tests! { @each $site;
            sends_of_every_size,
            inline_sends,
            immediate_data,
            send_with_invalidate,
            a_message_too_long,
            no_receive,
            wrong_local_keys,
            ping_pong_by_polling,
            ping_pong_by_events,
            writes_of_every_size,
            reads_of_every_size,
            long_messages,
            a_message_comes_after_the_writes_before_it,
            a_fence_waits_for_reads,
            a_send_is_complete_before_its_reply,
            a_read_brings_nothing_of_later_requests,
            refused_writes_touch_nothing,
            refused_reads_touch_nothing,
            atomics,
            atomic_writes,
            flushes,
            a_deregistered_region_is_left_alone,
            windows_open_part_of_a_region,
            windows_of_both_types,
            windows_are_taken_back,
            windows_that_cannot_be_bound,
            requests_about_keys_wait_for_uses_and_stop_nobody_else,
            a_region_changes,
            unsignalled_requests,
            many_threads_post,
            destroyed_with_work_outstanding,
            destruction_reports_nothing,
            an_overrun,
            solicited_only,
            armed_once,
            moderated,
            armed_late,
            slept_on,
            awaited,
            awaited_with_signals,
            awaited_by_one_who_is_kept,
            awaited_beside_a_fork,
            awaited_by_several,
            awaited_with_cancellations,
            timestamps,
            a_shared_receive_queue_feeds_all,
            a_shared_receive_queue_tells_of_its_limit,
            a_peer_that_takes_more_than_its_share_of_receives_is_noticed,
            a_shared_receive_queue_is_resized,
            the_last_receive_of_a_queue_pair,
            limits_of_shared_receive_queues,
            a_shared_receive_queue_of_all_services,
            attributes_are_checked,
            attributes_are_kept,
            a_send_queue_drains,
            a_queue_pair_begins_anew,
            unreliable_messages,
            messages_that_an_unreliable_peer_refuses_are_lost,
            an_unreliable_message_too_long,
            an_unreliable_receive_that_cannot_be_written,
            a_window_is_bound_behind_unreliable_messages,
            an_unreliable_send_queue_drains,
            a_failed_send_stops_an_unreliable_send_queue,
            a_send_queue_is_resumed_while_others_post,
            datagrams,
            datagrams_that_go_nowhere,
            address_handles,
            requests_that_are_no_datagrams,
            multicast,
        }
    };
}
