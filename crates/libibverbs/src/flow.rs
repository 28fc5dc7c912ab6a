//! Flow steering (`ibv_create_flow(3)`).

use core::ffi::c_int;

use adverb_core::flow::{
    ActiveFlow, EthernetFields, FlowKind, FlowRule, FlowSpec, Ipv4Fields, Ipv6Fields, PortPair,
};
use adverb_core::qp::Service;

use crate::abi::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS,
    IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_SNIFFER, IBV_FLOW_SPEC_ACTION_COUNT,
    IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE, IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP,
    IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL,
    ibv_flow, ibv_flow_attr, ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv6_filter,
    ibv_flow_spec_action_drop, ibv_flow_spec_eth, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext,
    ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter, ibv_qp,
};
use crate::context::context;
use crate::errno::{Call, fail_null, refusal};
use crate::memory::next_handle;
use crate::object::Object;
use crate::qp::PairObject;

/// A rule in force as C sees it.
pub type FlowObject = Object<ibv_flow, ActiveFlow>;

/// Puts a rule into force (`ibv_create_flow(3)`): NULL and `errno`, `EOPNOTSUPP` for devices, queue pairs,
/// conditions and actions without flow steering, `EINVAL` for what is malformed.
///
/// # Safety
/// The pointers are NULL or valid, and as many conditions follow the attributes as they say.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    let _call = Call::new();
    if qp.is_null() || attr.is_null() {
        return fail_null(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let (pointer, found) = unsafe { ((*qp).context, context((*qp).context)) };
    let can =
        |service| found.is_some_and(|context| context.inner.core.attributes().services.contains(&service));
    if !can(Service::RawPacket) {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let Some(pair) = (unsafe { PairObject::get(qp) }) else { return fail_null(libc::EINVAL) };
    // SAFETY: the caller's promise.
    let made = unsafe { rule(attr) }
        .and_then(|rule| ActiveFlow::new(&pair.inner.core, rule).map_err(|error| refusal(&error)));
    match made {
        Ok(flow) => {
            let c = ibv_flow { comp_mask: 0, context: pointer, handle: next_handle() };
            FlowObject::allocate(c, flow).cast()
        }
        Err(number) => fail_null(number),
    }
}

/// Ends a rule (`ibv_destroy_flow(3)`): an error number.
///
/// # Safety
/// `flow` is NULL or a rule that is not used any more.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { FlowObject::get(flow) }) else { return libc::EINVAL };
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// The rule behind attributes from C, or an error number.
///
/// # Safety
/// As many conditions follow `attr` as it says.
unsafe fn rule(attr: *const ibv_flow_attr) -> Result<FlowRule, c_int> {
    // SAFETY: the caller's promise.
    let head = unsafe { attr.read_unaligned() };
    let kind = match head.r#type {
        IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::MulticastDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        _ => return Err(libc::EINVAL),
    };
    let dont_trap = head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    if head.flags & !(IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS) != 0
        || head.port != 1
        || dont_trap && kind != FlowKind::Normal
        || head.num_of_specs != 0 && kind == FlowKind::Sniffer
    {
        return Err(libc::EINVAL);
    }
    if head.comp_mask != 0 || head.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut specs = Vec::with_capacity(head.num_of_specs.into());
    // SAFETY: the conditions follow, each as long as it says.
    let mut at = unsafe { attr.add(1) }.cast::<u8>();
    for _ in 0..head.num_of_specs {
        // SAFETY: the caller's promise.
        let (spec, size) = unsafe { condition(at)? };
        specs.push(spec);
        at = at.wrapping_add(size);
    }
    Ok(FlowRule { kind, priority: head.priority, dont_trap, specs })
}

/// One condition, and its size.
///
/// # Safety
/// `at` points to a condition that is as long as it says.
unsafe fn condition(at: *const u8) -> Result<(FlowSpec, usize), c_int> {
    // SAFETY: every condition begins like this.
    let head = unsafe { at.cast::<ibv_flow_spec_action_drop>().read_unaligned() };
    let size = usize::from(head.size);
    macro_rules! read {
        ($type:ty) => {{
            if size < size_of::<$type>() {
                return Err(libc::EINVAL);
            }
            // SAFETY: it is as long as it says.
            let spec = unsafe { at.cast::<$type>().read_unaligned() };
            (spec.val, spec.mask)
        }};
    }
    let spec = match head.r#type {
        IBV_FLOW_SPEC_ETH => {
            let (value, mask) = read!(ibv_flow_spec_eth);
            FlowSpec::Ethernet(ethernet(&value), ethernet(&mask))
        }
        IBV_FLOW_SPEC_IPV4 => {
            let fields = |source: u32, destination: u32| Ipv4Fields {
                source: source.to_ne_bytes(),
                destination: destination.to_ne_bytes(),
                others: [0; 4],
            };
            let (value, mask) = read!(ibv_flow_spec_ipv4);
            FlowSpec::Ipv4(fields(value.src_ip, value.dst_ip), fields(mask.src_ip, mask.dst_ip))
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            let (value, mask) = read!(ibv_flow_spec_ipv4_ext);
            FlowSpec::Ipv4(ipv4(&value), ipv4(&mask))
        }
        IBV_FLOW_SPEC_IPV6 => {
            let (value, mask) = read!(ibv_flow_spec_ipv6);
            FlowSpec::Ipv6(ipv6(&value), ipv6(&mask))
        }
        kind @ (IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP) => {
            let (value, mask) = read!(ibv_flow_spec_tcp_udp);
            let make = if kind == IBV_FLOW_SPEC_TCP { FlowSpec::Tcp } else { FlowSpec::Udp };
            make(ports(&value), ports(&mask))
        }
        IBV_FLOW_SPEC_ACTION_DROP if size >= size_of::<ibv_flow_spec_action_drop>() => FlowSpec::Drop,
        IBV_FLOW_SPEC_ESP
        | IBV_FLOW_SPEC_VXLAN_TUNNEL
        | IBV_FLOW_SPEC_GRE
        | IBV_FLOW_SPEC_MPLS
        | IBV_FLOW_SPEC_ACTION_TAG
        | IBV_FLOW_SPEC_ACTION_HANDLE
        | IBV_FLOW_SPEC_ACTION_COUNT => return Err(libc::EOPNOTSUPP),
        kind if kind & IBV_FLOW_SPEC_INNER != 0 => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    };
    Ok((spec, size))
}

fn ethernet(c: &ibv_flow_eth_filter) -> EthernetFields {
    EthernetFields {
        destination: c.dst_mac,
        source: c.src_mac,
        ether_type: c.ether_type.to_ne_bytes(),
        vlan: c.vlan_tag.to_ne_bytes(),
    }
}

fn ipv4(c: &ibv_flow_ipv4_ext_filter) -> Ipv4Fields {
    Ipv4Fields {
        source: c.src_ip.to_ne_bytes(),
        destination: c.dst_ip.to_ne_bytes(),
        others: [c.proto, c.tos, c.ttl, c.flags],
    }
}

fn ipv6(c: &ibv_flow_ipv6_filter) -> Ipv6Fields {
    Ipv6Fields {
        source: c.src_ip,
        destination: c.dst_ip,
        flow_label: c.flow_label.to_ne_bytes(),
        others: [c.next_hdr, c.traffic_class, c.hop_limit],
    }
}

fn ports(c: &ibv_flow_tcp_udp_filter) -> PortPair {
    PortPair { destination: c.dst_port.to_ne_bytes(), source: c.src_port.to_ne_bytes() }
}
