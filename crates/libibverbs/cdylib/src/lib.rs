//! The drop-in `libibverbs.so.1`: what it exports, and nothing else. The functions are in the
//! `adverb-libibverbs` and `adverb-librdmacm` crates.
//!
//! Public nodes are those of rdma-core 65. The private node's number changes from release to release, and
//! libraries that distributions link to it at load time must find every name of it, so five generations stand
//! side by side.

use adverb_libibverbs as verbs;
use adverb_librdmacm as rdmacm;

mod export;
mod system;

use export::{export_flag, exports, private_exports};

exports! {
    "IBVERBS_1.0" "@@":
        ibv_copy_path_rec_from_kern = verbs::marshall::ibv_copy_path_rec_from_kern,
        ibv_copy_path_rec_to_kern = verbs::marshall::ibv_copy_path_rec_to_kern,
        ibv_copy_qp_attr_from_kern = verbs::marshall::ibv_copy_qp_attr_from_kern,
        ibv_create_comp_channel = verbs::cq::ibv_create_comp_channel => null,
        ibv_destroy_comp_channel = verbs::cq::ibv_destroy_comp_channel => error_number,
        ibv_get_sysfs_path = verbs::sysfs::ibv_get_sysfs_path,
        ibv_rate_to_mult = verbs::rates::ibv_rate_to_mult,
        ibv_read_sysfs_file = verbs::sysfs::ibv_read_sysfs_file,
        mult_to_ibv_rate = verbs::rates::mult_to_ibv_rate;
    "IBVERBS_1.1" "@@":
        ibv_ack_async_event = verbs::event::ibv_ack_async_event => nothing of verbs::host::subject_of_event,
        ibv_ack_cq_events = verbs::cq::ibv_ack_cq_events => nothing,
        ibv_alloc_pd = verbs::domain::ibv_alloc_pd => null,
        ibv_attach_mcast = verbs::qp::ibv_attach_mcast => error_number,
        ibv_close_device = verbs::context::ibv_close_device => watched,
        ibv_copy_ah_attr_from_kern = verbs::marshall::ibv_copy_ah_attr_from_kern,
        ibv_create_ah = verbs::address::ibv_create_ah => null,
        ibv_create_ah_from_wc = verbs::address::ibv_create_ah_from_wc => null,
        ibv_create_cq = verbs::cq::ibv_create_cq => null,
        ibv_create_qp = verbs::qp::ibv_create_qp => null,
        ibv_create_srq = verbs::srq::ibv_create_srq => null,
        ibv_dealloc_pd = verbs::domain::ibv_dealloc_pd => error_number,
        ibv_dereg_mr = verbs::memory::ibv_dereg_mr => error_number,
        ibv_destroy_ah = verbs::address::ibv_destroy_ah => error_number,
        ibv_destroy_cq = verbs::cq::ibv_destroy_cq => error_number,
        ibv_destroy_qp = verbs::qp::ibv_destroy_qp => error_number,
        ibv_destroy_srq = verbs::srq::ibv_destroy_srq => error_number,
        ibv_detach_mcast = verbs::qp::ibv_detach_mcast => error_number,
        ibv_dofork_range = verbs::fork::ibv_dofork_range,
        ibv_dontfork_range = verbs::fork::ibv_dontfork_range,
        ibv_event_type_str = verbs::strings::ibv_event_type_str,
        ibv_fork_init = verbs::fork::ibv_fork_init => watched,
        ibv_free_device_list = verbs::device::ibv_free_device_list => watched,
        ibv_get_async_event = verbs::event::ibv_get_async_event => minus_one,
        ibv_get_cq_event = verbs::cq::ibv_get_cq_event => minus_one,
        ibv_get_device_guid = verbs::device::ibv_get_device_guid => zero,
        ibv_get_device_list = verbs::device::ibv_get_device_list => watched,
        ibv_get_device_name = verbs::device::ibv_get_device_name,
        ibv_init_ah_from_wc = verbs::address::ibv_init_ah_from_wc => minus_one,
        ibv_modify_qp = verbs::qp::ibv_modify_qp => error_number,
        ibv_modify_srq = verbs::srq::ibv_modify_srq => error_number,
        ibv_node_type_str = verbs::strings::ibv_node_type_str,
        ibv_open_device = verbs::context::ibv_open_device => watched,
        ibv_port_state_str = verbs::strings::ibv_port_state_str,
        ibv_query_device = verbs::device::ibv_query_device => error_number,
        ibv_query_gid = verbs::port::ibv_query_gid => minus_one,
        ibv_query_pkey = verbs::port::ibv_query_pkey => minus_one,
        ibv_query_port = verbs::port::ibv_query_port => error_number,
        ibv_query_qp = verbs::qp::ibv_query_qp => error_number,
        ibv_query_srq = verbs::srq::ibv_query_srq => error_number,
        ibv_rate_to_mbps = verbs::rates::ibv_rate_to_mbps,
        ibv_reg_mr = verbs::memory::ibv_reg_mr => null,
        ibv_rereg_mr = verbs::memory::ibv_rereg_mr => minus_one,
        ibv_resize_cq = verbs::cq::ibv_resize_cq => error_number,
        ibv_resolve_eth_l2_from_gid = verbs::address::ibv_resolve_eth_l2_from_gid => minus_one,
        ibv_wc_status_str = verbs::strings::ibv_wc_status_str,
        mbps_to_ibv_rate = verbs::rates::mbps_to_ibv_rate;
    "IBVERBS_1.1" "@":
        ibv_register_driver = verbs::unsupported::nothing;
    "IBVERBS_1.5" "@@":
        ibv_get_pkey_index = verbs::port::ibv_get_pkey_index => minus_one;
    "IBVERBS_1.6" "@@":
        ibv_qp_to_qp_ex = verbs::qp_ex::ibv_qp_to_qp_ex => null;
    "IBVERBS_1.7" "@@":
        ibv_reg_mr_iova = verbs::memory::ibv_reg_mr_iova => null;
    "IBVERBS_1.8" "@@":
        ibv_reg_mr_iova2 = verbs::memory::ibv_reg_mr_iova2 => null;
    "IBVERBS_1.9" "@@":
        ibv_get_device_index = verbs::device::ibv_get_device_index => minus_one;
    "IBVERBS_1.10" "@@":
        ibv_import_device = verbs::import::ibv_import_device => watched,
        ibv_import_mr = verbs::import::ibv_import_mr => null,
        ibv_import_pd = verbs::import::ibv_import_pd => null,
        ibv_query_ece = verbs::qp::ibv_query_ece => error_number,
        ibv_set_ece = verbs::qp::ibv_set_ece => error_number,
        ibv_unimport_mr = verbs::import::ibv_unimport_mr => nothing,
        ibv_unimport_pd = verbs::import::ibv_unimport_pd => nothing;
    "IBVERBS_1.11" "@@":
        _ibv_query_gid_ex = verbs::port::_ibv_query_gid_ex => error_number,
        _ibv_query_gid_table = verbs::port::_ibv_query_gid_table => zero;
    "IBVERBS_1.12" "@@":
        ibv_reg_dmabuf_mr = verbs::memory::ibv_reg_dmabuf_mr => null;
    "IBVERBS_1.13" "@@":
        ibv_import_dm = verbs::device_memory::ibv_import_dm => null,
        ibv_is_fork_initialized = verbs::fork::ibv_is_fork_initialized,
        ibv_unimport_dm = verbs::device_memory::ibv_unimport_dm => nothing;
    "IBVERBS_1.14" "@@":
        ibv_query_qp_data_in_order = verbs::qp::ibv_query_qp_data_in_order => zero;
    "IBVERBS_1.15" "@@":
        ibv_alloc_dmah = verbs::unsupported::null => null,
        ibv_dealloc_dmah = verbs::unsupported::error_number => error_number,
        ibv_reg_mr_ex = verbs::memory::ibv_reg_mr_ex => null;
    "IBVERBS_1.16" "@@":
        ibv_dm_export_dmabuf_fd = verbs::unsupported::minus_one => minus_one,
        ibv_query_port_speed = verbs::port::ibv_query_port_speed => error_number;
    "IBVERBS_1.17" "@@":
        ibv_alloc_buf = verbs::unsupported::null => null,
        ibv_free_buf = verbs::unsupported::nothing => nothing,
        ibv_reg_buf_mr = verbs::unsupported::null => null;
    "IBVERBS_1.18" "@@":
        _ibv_query_comp_cntr_caps = verbs::unsupported::error_number => error_number,
        ibv_create_comp_cntr = verbs::unsupported::null => null,
        ibv_destroy_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_export_buf_dmabuf_fd = verbs::unsupported::minus_one => minus_one,
        ibv_inc_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_inc_err_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_qp_attach_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_read_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_read_err_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_set_comp_cntr = verbs::unsupported::error_number => error_number,
        ibv_set_err_comp_cntr = verbs::unsupported::error_number => error_number;
    // The ABI of 2007 had other structures; such a program is told that there is no device.
    "IBVERBS_1.0" "@":
        ibv_ack_async_event = verbs::unsupported::nothing,
        ibv_ack_cq_events = verbs::unsupported::nothing,
        ibv_alloc_pd = verbs::unsupported::null,
        ibv_attach_mcast = verbs::unsupported::error_number,
        ibv_close_device = verbs::unsupported::minus_one,
        ibv_create_ah = verbs::unsupported::null,
        ibv_create_cq = verbs::unsupported::null,
        ibv_create_qp = verbs::unsupported::null,
        ibv_create_srq = verbs::unsupported::null,
        ibv_dealloc_pd = verbs::unsupported::error_number,
        ibv_dereg_mr = verbs::unsupported::error_number,
        ibv_destroy_ah = verbs::unsupported::error_number,
        ibv_destroy_cq = verbs::unsupported::error_number,
        ibv_destroy_qp = verbs::unsupported::error_number,
        ibv_destroy_srq = verbs::unsupported::error_number,
        ibv_detach_mcast = verbs::unsupported::error_number,
        ibv_free_device_list = verbs::unsupported::nothing,
        ibv_get_async_event = verbs::unsupported::minus_one,
        ibv_get_cq_event = verbs::unsupported::minus_one,
        ibv_get_device_guid = verbs::unsupported::zero,
        ibv_get_device_list = verbs::legacy::ibv_get_device_list,
        ibv_get_device_name = verbs::unsupported::null,
        ibv_modify_qp = verbs::unsupported::error_number,
        ibv_modify_srq = verbs::unsupported::error_number,
        ibv_open_device = verbs::unsupported::null,
        ibv_query_device = verbs::unsupported::error_number,
        ibv_query_gid = verbs::unsupported::minus_one,
        ibv_query_pkey = verbs::unsupported::minus_one,
        ibv_query_port = verbs::unsupported::error_number,
        ibv_query_qp = verbs::unsupported::error_number,
        ibv_query_srq = verbs::unsupported::error_number,
        ibv_reg_mr = verbs::unsupported::null,
        ibv_resize_cq = verbs::unsupported::error_number;
}

private_exports! {
    since_25 verbs::strings::ibv_wr_opcode_str:
        ibv_wr_opcode_str;
    since_25 verbs::unsupported::error_number:
        execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd
        ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
        ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp
        ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table
        ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd
        ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
        ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
        ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
        ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
        ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
        ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any
        ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters
        ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr
        ibv_cmd_resize_cq;
    since_25 verbs::unsupported::minus_one:
        ibv_read_ibdev_sysfs_file;
    since_25 verbs::unsupported::nothing:
        __verbs_log verbs_init_cq verbs_set_ops verbs_uninit_context;
    since_25 verbs::unsupported::null:
        _verbs_init_and_alloc_context verbs_open_device;
    since_25 verbs::unsupported::zero:
        __ioctl_final_num_attrs;
    since_59 verbs::unsupported::error_number:
        ibv_cmd_alloc_dmah ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_query_port_speed
        ibv_cmd_reg_mr_ex;
    since_64 verbs::unsupported::error_number:
        ibv_dmabuf_heap_cc_shared_init;
    since_64 verbs::unsupported::nothing:
        ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free;
    since_64 verbs::unsupported::null:
        ibv_dmabuf_heap_alloc;
    since_65 verbs::unsupported::error_number:
        ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
        ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_read_comp_cntr
        ibv_cmd_read_err_comp_cntr ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr;
    until_34 verbs::unsupported::error_number:
        ibv_cmd_query_device;
    only_25 verbs::unsupported::error_number:
        ibv_cmd_query_device_ex ibv_get_fw_ver;
}

exports! {
    "IBVERBS_PRIVATE_25" "@@": verbs_register_driver_25 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_33" "@@": verbs_register_driver_33 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_34" "@@": verbs_register_driver_34 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_57" "@@": verbs_register_driver_57 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_59" "@@": verbs_register_driver_59 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_64" "@@": verbs_register_driver_64 = verbs::unsupported::nothing;
    "IBVERBS_PRIVATE_65" "@@": verbs_register_driver_65 = verbs::unsupported::nothing;
}

// A function of private nodes that is passed on; the host's library may have it in another node.
mod ibv_query_gid_type {
    use super::*;
    exports! {
        @passed ibv_query_gid_type, verbs::port::ibv_query_gid_type, minus_one, verbs::host::itself,
        "@@" "IBVERBS_PRIVATE_34", "@" "IBVERBS_PRIVATE_57", "@" "IBVERBS_PRIVATE_59", "@" "IBVERBS_PRIVATE_64",
        "@" "IBVERBS_PRIVATE_65", "@" "IBVERBS_PRIVATE_25", "@" "IBVERBS_PRIVATE_33"
    }
}

export_flag! {
    verbs_allow_disassociate_destroy:
        "@@" "IBVERBS_PRIVATE_34", "@" "IBVERBS_PRIVATE_57", "@" "IBVERBS_PRIVATE_59", "@" "IBVERBS_PRIVATE_64",
        "@" "IBVERBS_PRIVATE_65", "@" "IBVERBS_PRIVATE_25", "@" "IBVERBS_PRIVATE_33"
}

/// What librdmacm.so.1 jumps to.
macro_rules! rdmacm_exports {
    ($($kind:ident $node:literal: $($name:ident)*;)*) => {
        $($(rdmacm_exports!(@$kind $name);)*)*
    };
    (@sockets $name:ident) => {
        export::trampoline!(concat!("adverb_", stringify!($name)), "@@", "ADVERB_RDMACM", rdmacm::$name);
    };
    (@calls $name:ident) => {
        mod $name {
            use super::*;
            static WATCHED: verbs::seam::Function =
                verbs::seam::Function::new(stringify!($name), rdmacm::$name as *const ());
            export::passing!(concat!("adverb_", stringify!($name)), "@@", "ADVERB_RDMACM", rdmacm::$name, WATCHED);
        }
    };
}

/// What an exported function does that is watched or passed on.
///
/// # Safety
/// The arguments are right for the function.
unsafe extern "C" fn pass(
    function: &'static verbs::seam::Function,
    arguments: &verbs::seam::Arguments,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { verbs::seam::pass(adverb_watch::start, function, arguments) }
}

include!("rdmacm_exports.rs");
