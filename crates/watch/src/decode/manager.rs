//! Structures of rdma_cm.

use super::*;
use crate::names;
use adverb_librdmacm::abi::*;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

pub(crate) fn identifier(writer: &mut Writer, address: usize) {
    writer.pointer(address);
}

pub(crate) fn socket_address(writer: &mut Writer, address: usize) {
    match i32::from(read::<u16>(address)) {
        libc::AF_INET => {
            let v4 = read::<libc::sockaddr_in>(address);
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            writer.word(&SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).to_string());
        }
        libc::AF_INET6 => {
            let v6 = read::<libc::sockaddr_in6>(address);
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let shown = SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id);
            writer.word(&shown.to_string());
        }
        family => {
            writer.open(b'{');
            writer.key("sa_family").signed(family.into());
            writer.close(b'}');
        }
    }
}

/// At most so many bytes of private data are shown.
const MOST_DATA: usize = 64;

fn private_data(writer: &mut Writer, data: usize, length: usize) {
    if data == 0 {
        return writer.null();
    }
    // SAFETY: the program, or the engine, says that there are as many.
    let bytes = unsafe { std::slice::from_raw_parts(data as *const u8, length.min(MOST_DATA)) };
    writer.string(bytes);
}

pub(crate) fn rejected_data(writer: &mut Writer, data: usize, arguments: &Arguments) {
    private_data(writer, data, usize::from(arguments[2] as u8));
}

pub(crate) fn connection(writer: &mut Writer, address: usize) {
    let parameters = read::<rdma_conn_param>(address);
    let forms = [("private_data", Form::Skip), ("private_data_len", Form::Skip), ("qp_num", Form::Hex)];
    fields::<rdma_conn_param>(writer, address, &forms, all);
    // Inside of the brackets that were written last.
    writer.bytes.pop();
    private_data(
        writer.key("private_data"),
        parameters.private_data as usize,
        parameters.private_data_len.into(),
    );
    writer.close(b'}');
}

pub(crate) fn cm_event(writer: &mut Writer, address: usize) {
    let event = read::<rdma_cm_event>(address);
    writer.open(b'{');
    writer.key("event").name(names::CM_EVENT, event.event.into());
    writer.key("status").signed(event.status.into());
    identifier(writer.key("id"), event.id as usize);
    if !event.listen_id.is_null() {
        identifier(writer.key("listen_id"), event.listen_id as usize);
    }
    // SAFETY: every member begins with the private data.
    let connection = unsafe { event.param.conn };
    let is_of_peer = matches!(
        event.event,
        RDMA_CM_EVENT_CONNECT_REQUEST
            | RDMA_CM_EVENT_CONNECT_RESPONSE
            | RDMA_CM_EVENT_REJECTED
            | RDMA_CM_EVENT_ESTABLISHED
    );
    if is_of_peer && !connection.private_data.is_null() {
        private_data(
            writer.key("private_data"),
            connection.private_data as usize,
            connection.private_data_len.into(),
        );
    }
    writer.close(b'}');
}

pub(crate) fn addresses(writer: &mut Writer, address: usize) {
    writer.open(b'[');
    let mut next = address;
    while next != 0 {
        let info = read::<rdma_addrinfo>(next);
        address_info(writer.item(), &info);
        next = info.ai_next as usize;
    }
    writer.close(b']');
}

/// What a program wants of addresses: the function reads one of the list, and an address only as far as its
/// length says.
pub(crate) fn hints(writer: &mut Writer, address: usize) {
    writer.open(b'[');
    address_info(writer.item(), &read::<rdma_addrinfo>(address));
    writer.close(b']');
}

fn address_info(writer: &mut Writer, info: &rdma_addrinfo) {
    writer.open(b'{');
    writer.key("ai_flags").flags(names::RAI_FLAGS, (info.ai_flags as u32).into());
    writer.key("ai_family").signed(info.ai_family.into());
    writer.key("ai_qp_type").name(names::QP_TYPE, info.ai_qp_type as u64);
    writer.key("ai_port_space").name(names::PORT_SPACE, info.ai_port_space as u64);
    let addresses = [
        ("ai_src_addr", info.ai_src_addr as usize, info.ai_src_len as usize),
        ("ai_dst_addr", info.ai_dst_addr as usize, info.ai_dst_len as usize),
    ];
    for (name, place, length) in addresses {
        if place == 0 || length < size_of::<u16>() {
            continue;
        }
        let wanted = match i32::from(read::<u16>(place)) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => size_of::<u16>(),
        };
        if length >= wanted {
            socket_address(writer.key(name), place);
        }
    }
    writer.close(b'}');
}

pub(crate) fn joined(writer: &mut Writer, address: usize) {
    let forms = [
        ("comp_mask", Form::Flags(names::MC_MASK)),
        ("join_flags", Form::Hex),
        ("addr", Form::Of(socket_address)),
    ];
    fields::<rdma_cm_join_mc_attr_ex>(writer, address, &forms, all);
}
