//! The C structures of `verbs.h`, laid out as rdma-core's newest version has them.
//!
//! Structures only ever grew, and each growth is either negotiated (a size argument, `verbs_context.sz`) or
//! at the end of a structure that the library allocates, so programs built with older headers work with the
//! newest layout. Names and field names are those of the header, whose manual pages are their documentation;
//! the `tests/abi` package compares every offset with the header that a distribution ships.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

/// A field: its name, offset and size in bytes.
pub type Field = (&'static str, usize, usize);

/// Name and place of every field of a structure, for comparison with a C header.
pub trait Layout {
    /// The structure's name in C, without `struct`.
    const NAME: &'static str;
    /// The size of the structure in bytes.
    const SIZE: usize;
    /// The fields of the structure, in order.
    const FIELDS: &'static [Field];
}

/// Declares a C structure: the type, a constructor for the all-zero value, and its [`Layout`].
#[macro_export]
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $name {
            /// The structure with every byte zero.
            pub fn zeroed() -> Self {
                // SAFETY: the fields are integers, arrays, raw pointers, optional functions, unions and
                // structures of those, and pthread objects; all of them are valid when zero.
                unsafe { core::mem::zeroed() }
            }
        }

        impl $crate::abi::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const SIZE: usize = size_of::<$name>();
            const FIELDS: &'static [$crate::abi::Field] = &[
                $((stringify!($field), core::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }
    };
}

mod context;
mod device;
mod extended;
mod flow;
mod kernel;
mod object;
mod work;
mod wq;

pub use context::*;
pub use device::*;
pub use extended::*;
pub use flow::*;
pub use kernel::*;
pub use object::*;
pub use work::*;
pub use wq::*;

/// Name, size and fields of a structure.
pub type Structure = (&'static str, usize, &'static [Field]);

/// The layouts of all structures of this module that the header declares, for the comparison.
pub fn layouts() -> Vec<Structure> {
    macro_rules! list {
        ($($name:ident)*) => { vec![$((<$name as Layout>::NAME, <$name as Layout>::SIZE, <$name as Layout>::FIELDS)),*] };
    }
    list![
        ibv_gid_entry ibv_device_attr ibv_odp_caps ibv_tso_caps ibv_rss_caps ibv_packet_pacing_caps ibv_tm_caps
        ibv_cq_moderation_caps ibv_pci_atomic_caps ibv_device_attr_ex ibv_port_attr ibv_device ibv_context_ops
        ibv_context ibv_values_ex ibv_pd ibv_mr ibv_alloc_dm_attr ibv_dm ibv_mw ibv_mw_bind_info ibv_mw_bind ibv_global_route ibv_grh ibv_ah_attr
        ibv_ah ibv_srq_attr ibv_srq_init_attr ibv_srq_init_attr_ex ibv_srq ibv_comp_channel ibv_cq ibv_qp_cap
        ibv_qp_init_attr ibv_qp_attr ibv_qp ibv_async_event ibv_ece ibv_sge ibv_send_wr ibv_recv_wr ibv_wc ibv_data_buf
        ibv_qp_init_attr_ex ibv_rx_hash_conf ibv_qp_ex ibv_cq_init_attr_ex ibv_cq_ex ibv_poll_cq_attr ibv_wc_tm_info
        ibv_modify_cq_attr ibv_parent_domain_init_attr ibv_td ibv_td_init_attr verbs_context ib_uverbs_ah_attr
        ibv_xrcd_init_attr ibv_xrcd ibv_qp_open_attr ibv_flow_attr ibv_flow ibv_flow_eth_filter ibv_flow_spec_eth
        ibv_flow_ipv4_filter ibv_flow_spec_ipv4 ibv_flow_ipv4_ext_filter ibv_flow_spec_ipv4_ext ibv_flow_ipv6_filter
        ibv_flow_spec_ipv6 ibv_flow_tcp_udp_filter ibv_flow_spec_tcp_udp ibv_flow_spec_action_drop
        ibv_wq_init_attr ibv_wq_attr ibv_wq ibv_rwq_ind_table_init_attr ibv_rwq_ind_table
        ib_uverbs_qp_attr ib_user_path_rec ibv_sa_path_rec
    ]
}
