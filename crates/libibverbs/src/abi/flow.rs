//! Flow steering: rules and their conditions. Numbers in conditions are in network order.

use core::ffi::c_uint;

use super::ibv_context;

pub const IBV_FLOW_ATTR_NORMAL: c_uint = 0;
pub const IBV_FLOW_ATTR_ALL_DEFAULT: c_uint = 1;
pub const IBV_FLOW_ATTR_MC_DEFAULT: c_uint = 2;
pub const IBV_FLOW_ATTR_SNIFFER: c_uint = 3;
pub const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: u32 = 1 << 1;
pub const IBV_FLOW_ATTR_FLAGS_EGRESS: u32 = 1 << 2;

pub const IBV_FLOW_SPEC_ETH: c_uint = 0x20;
pub const IBV_FLOW_SPEC_IPV4: c_uint = 0x30;
pub const IBV_FLOW_SPEC_IPV6: c_uint = 0x31;
pub const IBV_FLOW_SPEC_IPV4_EXT: c_uint = 0x32;
pub const IBV_FLOW_SPEC_ESP: c_uint = 0x34;
pub const IBV_FLOW_SPEC_TCP: c_uint = 0x40;
pub const IBV_FLOW_SPEC_UDP: c_uint = 0x41;
pub const IBV_FLOW_SPEC_VXLAN_TUNNEL: c_uint = 0x50;
pub const IBV_FLOW_SPEC_GRE: c_uint = 0x51;
pub const IBV_FLOW_SPEC_MPLS: c_uint = 0x60;
pub const IBV_FLOW_SPEC_INNER: c_uint = 0x100;
pub const IBV_FLOW_SPEC_ACTION_TAG: c_uint = 0x1000;
pub const IBV_FLOW_SPEC_ACTION_DROP: c_uint = 0x1001;
pub const IBV_FLOW_SPEC_ACTION_HANDLE: c_uint = 0x1002;
pub const IBV_FLOW_SPEC_ACTION_COUNT: c_uint = 0x1003;

c_struct! {
    /// A rule; its conditions follow.
    ibv_flow_attr {
        comp_mask: u32,
        r#type: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
}

c_struct! {
    /// A rule in force.
    ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }
}

c_struct! {
    /// Fields of Ethernet.
    ibv_flow_eth_filter {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }
}

c_struct! {
    /// A condition on Ethernet.
    ibv_flow_spec_eth {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }
}

c_struct! {
    /// Fields of IPv4, a few.
    ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }
}

c_struct! {
    /// A condition on a few fields of IPv4.
    ibv_flow_spec_ipv4 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }
}

c_struct! {
    /// Fields of IPv4.
    ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }
}

c_struct! {
    /// A condition on IPv4.
    ibv_flow_spec_ipv4_ext {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }
}

c_struct! {
    /// Fields of IPv6.
    ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }
}

c_struct! {
    /// A condition on IPv6.
    ibv_flow_spec_ipv6 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }
}

c_struct! {
    /// Ports.
    ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }
}

c_struct! {
    /// A condition on ports.
    ibv_flow_spec_tcp_udp {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }
}

c_struct! {
    /// Any condition, or an action: a type and its size.
    ibv_flow_spec_action_drop {
        r#type: c_uint,
        size: u16,
    }
}
