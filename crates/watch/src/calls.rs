//! The calls of verbs and rdma_cm: what their arguments are, and how each says that it has failed.

use crate::decode::{self, Form};
use crate::names;
use Form::{Address, After, Byte, Flags, Half, Hex, Name, Of, Pointer, Signed, Text, Unsigned, Wide, With};

/// What a function returns.
#[derive(Clone, Copy)]
pub(crate) enum Returns {
    /// A pointer: NULL and `errno` if it fails. The object is shown by the function.
    Object(fn(&mut crate::writer::Writer, usize)),
    /// A pointer that is not followed, with the same rule.
    Pointer,
    /// 0, or an error number.
    Number,
    /// 0 or more, or -1 and `errno`.
    MinusOne,
    /// A count, or a negative error number.
    Count,
    /// A count as wide as a pointer, or a negative error number.
    WideCount,
    /// 0 with a completion, `ENOENT` without one, or an error number.
    Poll,
    /// Something that is no failure.
    Value(Form),
    /// The call returns nothing.
    Nothing,
}

/// What a call does with requests and completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    None,
    /// Posts the list of sends in its second argument.
    Sends,
    /// Posts the list of receives in its second argument.
    Receives,
    /// Posts what the builders have gathered.
    Builders,
    /// Hands out completions in its third argument.
    Completions,
    /// Hands out one completion under the cursor.
    Cursor,
}

/// A call.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [(&'static str, Form)],
    pub(crate) returns: Returns,
    pub(crate) work: Work,
}

/// The work of the call of this name.
const fn work(name: &str) -> Work {
    match name.as_bytes() {
        b"ibv_post_send" => Work::Sends,
        b"ibv_post_recv" | b"ibv_post_srq_recv" | b"ibv_post_wq_recv" => Work::Receives,
        b"ibv_wr_complete" => Work::Builders,
        b"ibv_poll_cq" => Work::Completions,
        b"ibv_start_poll" | b"ibv_next_poll" => Work::Cursor,
        _ => Work::None,
    }
}

impl Call {
    /// Whether a polling program makes it again and again without a result.
    pub(crate) fn is_poll(&self) -> bool {
        matches!(self.returns, Returns::Poll) || self.work == Work::Completions
    }

    /// Whether the call can fail.
    pub(crate) fn can_fail(&self) -> bool {
        !matches!(self.returns, Returns::Nothing | Returns::Value(_))
    }
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $form:expr),*) -> $returns:expr;)*) => {
        /// All calls that are watched.
        pub(crate) const CALLS: &[Call] = &[$(Call {
            name: stringify!($name),
            arguments: &[$((stringify!($argument), $form)),*],
            returns: $returns,
            work: work(stringify!($name)),
        }),*];
    };
}

const CONTEXT: Form = Of(decode::context);
const PD: Form = Of(decode::domain);
const CQ: Form = Of(decode::completion_queue);
const QP: Form = Of(decode::pair);
const SRQ: Form = Of(decode::shared_queue);
const MR: Form = Of(decode::region);
const MW: Form = Of(decode::window);
const AH: Form = Of(decode::address_handle);
const WQ: Form = Of(decode::work_queue);
const DM: Form = Of(decode::device_memory);
const ID: Form = Pointer;
const ACCESS: Form = Flags(names::ACCESS);
const PAIR: Returns = Returns::Object(decode::pair);
const REGION: Returns = Returns::Object(decode::region);
const DOMAIN: Returns = Returns::Object(decode::domain);
const OPENED: Returns = Returns::Object(decode::context);

use Returns::{Count, MinusOne, Nothing, Number, Object, Poll, Value, WideCount};

calls! {
    ibv_get_device_list(num_devices: After(decode::found_count)) -> Returns::Pointer;
    ibv_free_device_list(list: Pointer) -> Nothing;
    ibv_get_device_guid(device: Of(decode::device)) -> Value(Form::Guid);
    ibv_get_device_index(device: Of(decode::device)) -> MinusOne;
    ibv_open_device(device: Of(decode::device)) -> OPENED;
    ibv_close_device(context: CONTEXT) -> MinusOne;
    ibv_import_device(cmd_fd: Signed) -> OPENED;
    ibv_fork_init() -> Number;
    ibv_query_device(context: CONTEXT, device_attr: After(decode::found_device_attributes)) -> Number;
    ibv_query_device_ex(
        context: CONTEXT, input: Pointer, attr: After(decode::found_device_attributes_ex), attr_size: Wide
    ) -> Number;
    ibv_query_rt_values_ex(context: CONTEXT, values: After(decode::found_time)) -> Number;
    ibv_query_port(context: CONTEXT, port_num: Byte, port_attr: After(decode::found_port)) -> Number;
    ibv_query_port_speed(context: CONTEXT, port_num: Unsigned, port_speed: After(decode::found_wide)) -> Number;
    ibv_query_gid(context: CONTEXT, port_num: Byte, index: Signed, gid: After(decode::found_gid)) -> MinusOne;
    ibv_query_gid_type(
        context: CONTEXT, port_num: Byte, index: Unsigned, r#type: After(decode::found_gid_type)
    ) -> MinusOne;
    _ibv_query_gid_ex(
        context: CONTEXT, port_num: Unsigned, gid_index: Unsigned, entry: After(decode::found_gid_entry), flags: Hex,
        entry_size: Wide
    ) -> Number;
    _ibv_query_gid_table(
        context: CONTEXT, entries: After(decode::found_gid_table), max_entries: Wide, flags: Hex, entry_size: Wide
    ) -> WideCount;
    ibv_query_pkey(context: CONTEXT, port_num: Byte, index: Signed, pkey: After(decode::found_half)) -> MinusOne;
    ibv_get_pkey_index(context: CONTEXT, port_num: Byte, pkey: Half) -> MinusOne;

    ibv_alloc_pd(context: CONTEXT) -> DOMAIN;
    ibv_dealloc_pd(pd: PD) -> Number;
    ibv_alloc_parent_domain(context: CONTEXT, attr: Of(decode::parent_init)) -> DOMAIN;
    ibv_alloc_td(context: CONTEXT, init_attr: Pointer) -> Returns::Pointer;
    ibv_dealloc_td(td: Pointer) -> Number;
    ibv_import_pd(context: CONTEXT, pd_handle: Unsigned) -> DOMAIN;
    ibv_unimport_pd(pd: PD) -> Nothing;
    ibv_open_xrcd(context: CONTEXT, xrcd_init_attr: Of(decode::xrc_init)) -> Returns::Pointer;
    ibv_close_xrcd(xrcd: Pointer) -> Number;

    ibv_reg_mr(pd: PD, addr: Pointer, length: Wide, access: ACCESS) -> REGION;
    ibv_reg_mr_iova(pd: PD, addr: Pointer, length: Wide, iova: Address, access: ACCESS) -> REGION;
    ibv_reg_mr_iova2(pd: PD, addr: Pointer, length: Wide, iova: Address, access: ACCESS) -> REGION;
    ibv_reg_mr_ex(pd: PD, mr_init_attr: Of(decode::region_init)) -> REGION;
    ibv_reg_dmabuf_mr(pd: PD, offset: Wide, length: Wide, iova: Address, fd: Signed, access: ACCESS) -> REGION;
    ibv_rereg_mr(mr: MR, flags: Flags(names::REREG), pd: PD, addr: Pointer, length: Wide, access: ACCESS) -> MinusOne;
    ibv_dereg_mr(mr: MR) -> Number;
    ibv_alloc_null_mr(pd: PD) -> REGION;
    ibv_advise_mr(
        pd: PD, advice: Name(names::ADVICE), flags: Flags(names::ADVISE_FLAGS), sg_list: With(decode::advised), num_sge: Unsigned
    ) -> Number;
    ibv_import_mr(pd: PD, mr_handle: Unsigned) -> REGION;
    ibv_unimport_mr(mr: MR) -> Nothing;
    ibv_alloc_dm(context: CONTEXT, attr: Of(decode::memory_init)) -> Object(decode::device_memory);
    ibv_free_dm(dm: DM) -> Number;
    ibv_reg_dm_mr(pd: PD, dm: DM, dm_offset: Wide, length: Wide, access: ACCESS) -> REGION;
    ibv_import_dm(context: CONTEXT, dm_handle: Unsigned) -> Object(decode::device_memory);
    ibv_unimport_dm(dm: DM) -> Nothing;
    ibv_alloc_mw(pd: PD, r#type: Name(names::MW_TYPE)) -> Object(decode::window);
    ibv_bind_mw(qp: QP, mw: MW, mw_bind: Of(decode::bind)) -> Number;
    ibv_dealloc_mw(mw: MW) -> Number;

    ibv_create_comp_channel(context: CONTEXT) -> Object(decode::channel);
    ibv_destroy_comp_channel(channel: Of(decode::channel)) -> Number;
    ibv_create_cq(
        context: CONTEXT, cqe: Signed, cq_context: Pointer, channel: Of(decode::channel), comp_vector: Signed
    ) -> Object(decode::completion_queue);
    ibv_create_cq_ex(context: CONTEXT, cq_attr: Of(decode::queue_init)) -> Object(decode::completion_queue);
    ibv_resize_cq(cq: CQ, cqe: Signed) -> Number;
    ibv_modify_cq(cq: CQ, attr: Of(decode::queue_change)) -> Number;
    ibv_destroy_cq(cq: CQ) -> Number;
    ibv_poll_cq(cq: CQ, num_entries: Signed, wc: After(decode::found_completions)) -> Count;
    ibv_start_poll(cq: CQ, attr: Pointer) -> Poll;
    ibv_next_poll(cq: CQ) -> Poll;
    ibv_end_poll(cq: CQ) -> Nothing;
    ibv_req_notify_cq(cq: CQ, solicited_only: Signed) -> Number;
    ibv_get_cq_event(
        channel: Of(decode::channel), cq: After(decode::found_queue), cq_context: After(decode::found_pointer)
    ) -> MinusOne;
    ibv_ack_cq_events(cq: CQ, nevents: Unsigned) -> Nothing;

    ibv_create_qp(pd: PD, qp_init_attr: Of(decode::pair_init)) -> PAIR;
    ibv_create_qp_ex(context: CONTEXT, qp_init_attr: Of(decode::pair_init_ex)) -> PAIR;
    ibv_open_qp(context: CONTEXT, qp_open_attr: Of(decode::open_init)) -> PAIR;
    ibv_modify_qp(qp: QP, attr: With(decode::pair_attributes), attr_mask: Flags(names::QP_MASK)) -> Number;
    ibv_query_qp(
        qp: QP, attr: After(decode::found_pair_attributes), attr_mask: Flags(names::QP_MASK),
        init_attr: After(decode::found_pair_init)
    ) -> Number;
    ibv_destroy_qp(qp: QP) -> Number;
    ibv_qp_to_qp_ex(qp: QP) -> Value(Pointer);
    ibv_query_qp_data_in_order(qp: QP, op: Name(names::WR_OPCODE), flags: Hex) -> Value(Signed);
    ibv_set_ece(qp: QP, ece: Pointer) -> Number;
    ibv_query_ece(qp: QP, ece: Pointer) -> Number;
    ibv_attach_mcast(qp: QP, gid: Of(decode::gid), lid: Half) -> Number;
    ibv_detach_mcast(qp: QP, gid: Of(decode::gid), lid: Half) -> Number;
    ibv_create_flow(qp: QP, flow_attr: Pointer) -> Returns::Pointer;
    ibv_destroy_flow(flow: Pointer) -> Number;

    ibv_create_srq(pd: PD, srq_init_attr: Of(decode::srq_init)) -> Object(decode::shared_queue);
    ibv_create_srq_ex(context: CONTEXT, srq_init_attr_ex: Of(decode::srq_init_ex)) -> Object(decode::shared_queue);
    ibv_modify_srq(srq: SRQ, srq_attr: With(decode::srq_change), srq_attr_mask: Flags(names::SRQ_MASK)) -> Number;
    ibv_query_srq(srq: SRQ, srq_attr: After(decode::found_srq_attributes)) -> Number;
    ibv_get_srq_num(srq: SRQ, srq_num: After(decode::found_number)) -> Number;
    ibv_destroy_srq(srq: SRQ) -> Number;
    ibv_create_wq(context: CONTEXT, wq_init_attr: Of(decode::work_queue_init)) -> Object(decode::work_queue);
    ibv_modify_wq(wq: WQ, wq_attr: Of(decode::work_queue_change)) -> Number;
    ibv_destroy_wq(wq: WQ) -> Number;
    ibv_create_rwq_ind_table(context: CONTEXT, init_attr: Of(decode::table_init)) -> Returns::Pointer;
    ibv_destroy_rwq_ind_table(rwq_ind_table: Pointer) -> Number;

    ibv_create_ah(pd: PD, attr: Of(decode::address_attributes)) -> Object(decode::address_handle);
    ibv_create_ah_from_wc(pd: PD, wc: Of(decode::completion), grh: Pointer, port_num: Byte) -> Object(decode::address_handle);
    ibv_init_ah_from_wc(
        context: CONTEXT, port_num: Byte, wc: Of(decode::completion), grh: Pointer, ah_attr: After(decode::found_address)
    ) -> MinusOne;
    ibv_destroy_ah(ah: AH) -> Number;
    ibv_resolve_eth_l2_from_gid(
        context: CONTEXT, attr: Of(decode::address_attributes), eth_mac: After(decode::found_ethernet), vid: Pointer
    ) -> MinusOne;

    ibv_post_send(qp: QP, wr: Of(decode::send_list), bad_wr: After(decode::bad_request)) -> Number;
    ibv_post_recv(qp: QP, wr: Of(decode::receive_list), bad_wr: After(decode::bad_request)) -> Number;
    ibv_post_srq_recv(srq: SRQ, wr: Of(decode::receive_list), bad_wr: After(decode::bad_request)) -> Number;
    ibv_post_wq_recv(wq: WQ, wr: Of(decode::receive_list), bad_wr: After(decode::bad_request)) -> Number;
    ibv_wr_start(qp: QP) -> Nothing;
    ibv_wr_complete(qp: QP) -> Number;
    ibv_wr_abort(qp: QP) -> Nothing;
    ibv_wr_send(qp: QP) -> Nothing;
    ibv_wr_send_imm(qp: QP, imm_data: Hex) -> Nothing;
    ibv_wr_send_inv(qp: QP, invalidate_rkey: Hex) -> Nothing;
    ibv_wr_send_tso(qp: QP, hdr: Pointer, hdr_sz: Half, mss: Half) -> Nothing;
    ibv_wr_rdma_write(qp: QP, rkey: Hex, remote_addr: Address) -> Nothing;
    ibv_wr_rdma_write_imm(qp: QP, rkey: Hex, remote_addr: Address, imm_data: Hex) -> Nothing;
    ibv_wr_rdma_read(qp: QP, rkey: Hex, remote_addr: Address) -> Nothing;
    ibv_wr_atomic_cmp_swp(qp: QP, rkey: Hex, remote_addr: Address, compare: Wide, swap: Wide) -> Nothing;
    ibv_wr_atomic_fetch_add(qp: QP, rkey: Hex, remote_addr: Address, add: Wide) -> Nothing;
    ibv_wr_atomic_write(qp: QP, rkey: Hex, remote_addr: Address, atomic_wr: Pointer) -> Nothing;
    ibv_wr_flush(qp: QP, rkey: Hex, remote_addr: Address, len: Wide, r#type: Byte, level: Byte) -> Nothing;
    ibv_wr_bind_mw(qp: QP, mw: MW, rkey: Hex, bind_info: Of(decode::bind_info)) -> Nothing;
    ibv_wr_local_inv(qp: QP, invalidate_rkey: Hex) -> Nothing;
    ibv_wr_set_ud_addr(qp: QP, ah: AH, remote_qpn: Hex, remote_qkey: Hex) -> Nothing;
    ibv_wr_set_xrc_srqn(qp: QP, remote_srqn: Hex) -> Nothing;
    ibv_wr_set_inline_data(qp: QP, addr: Pointer, length: Wide) -> Nothing;
    ibv_wr_set_inline_data_list(qp: QP, num_buf: Wide, buf_list: Pointer) -> Nothing;
    ibv_wr_set_sge(qp: QP, lkey: Hex, addr: Address, length: Unsigned) -> Nothing;
    ibv_wr_set_sge_list(qp: QP, num_sge: Wide, sg_list: With(decode::builder_elements)) -> Nothing;

    ibv_get_async_event(context: CONTEXT, event: After(decode::found_async_event)) -> MinusOne;
    ibv_ack_async_event(event: Of(decode::async_event)) -> Nothing;

    ibv_alloc_dmah(context: CONTEXT, attr: Pointer) -> Returns::Pointer;
    ibv_dealloc_dmah(dmah: Pointer) -> Number;
    ibv_dm_export_dmabuf_fd(dm: Pointer) -> MinusOne;
    ibv_alloc_buf(context: CONTEXT, attr: Pointer) -> Returns::Pointer;
    ibv_free_buf(buf: Pointer) -> Nothing;
    ibv_reg_buf_mr(pd: PD, attr: Pointer) -> REGION;
    ibv_export_buf_dmabuf_fd(buf: Pointer) -> MinusOne;
    _ibv_query_comp_cntr_caps(context: CONTEXT, caps: Pointer) -> Number;
    ibv_create_comp_cntr(context: CONTEXT, attr: Pointer) -> Returns::Pointer;
    ibv_destroy_comp_cntr(comp_cntr: Pointer) -> Number;
    ibv_inc_comp_cntr(comp_cntr: Pointer, amount: Wide) -> Number;
    ibv_inc_err_comp_cntr(comp_cntr: Pointer, amount: Wide) -> Number;
    ibv_qp_attach_comp_cntr(qp: QP, comp_cntr: Pointer, attr: Pointer) -> Number;
    ibv_read_comp_cntr(comp_cntr: Pointer, value: Pointer) -> Number;
    ibv_read_err_comp_cntr(comp_cntr: Pointer, value: Pointer) -> Number;
    ibv_set_comp_cntr(comp_cntr: Pointer, value: Wide) -> Number;
    ibv_set_err_comp_cntr(comp_cntr: Pointer, value: Wide) -> Number;

    rdma_create_event_channel() -> Object(decode::event_channel);
    rdma_destroy_event_channel(channel: Of(decode::event_channel)) -> Nothing;
    rdma_create_id(
        channel: Of(decode::event_channel), id: After(decode::new_id), context: Pointer, ps: Name(names::PORT_SPACE)
    ) -> MinusOne;
    rdma_destroy_id(id: ID) -> MinusOne;
    rdma_migrate_id(id: ID, channel: Of(decode::event_channel)) -> MinusOne;
    rdma_bind_addr(id: ID, addr: Of(decode::socket_address)) -> MinusOne;
    rdma_resolve_addr(
        id: ID, src_addr: Of(decode::socket_address), dst_addr: Of(decode::socket_address), timeout_ms: Signed
    ) -> MinusOne;
    rdma_resolve_route(id: ID, timeout_ms: Signed) -> MinusOne;
    rdma_resolve_addrinfo(id: ID, node: Pointer, service: Pointer, hints: Pointer) -> MinusOne;
    rdma_query_addrinfo(id: ID, info: Pointer) -> MinusOne;
    rdma_listen(id: ID, backlog: Signed) -> MinusOne;
    rdma_connect(id: ID, conn_param: Of(decode::connection)) -> MinusOne;
    rdma_accept(id: ID, conn_param: Of(decode::connection)) -> MinusOne;
    rdma_establish(id: ID) -> MinusOne;
    rdma_reject(id: ID, private_data: With(decode::rejected_data), private_data_len: Byte) -> MinusOne;
    rdma_reject_ece(id: ID, private_data: With(decode::rejected_data), private_data_len: Byte) -> MinusOne;
    rdma_disconnect(id: ID) -> MinusOne;
    rdma_notify(id: ID, event: Name(names::ASYNC_EVENT)) -> MinusOne;
    rdma_get_cm_event(channel: Of(decode::event_channel), event: After(decode::found_event)) -> MinusOne;
    rdma_ack_cm_event(event: Of(decode::cm_event)) -> MinusOne;
    rdma_write_cm_event(id: ID, event: Name(names::CM_EVENT), status: Signed, arg: Address) -> MinusOne;
    rdma_event_str(event: Name(names::CM_EVENT)) -> Value(Text);
    rdma_create_qp(id: ID, pd: PD, qp_init_attr: Of(decode::pair_init)) -> MinusOne;
    rdma_create_qp_ex(id: ID, qp_init_attr: Of(decode::pair_init_ex)) -> MinusOne;
    rdma_destroy_qp(id: ID) -> Nothing;
    rdma_create_srq(id: ID, pd: PD, attr: Of(decode::srq_init)) -> MinusOne;
    rdma_create_srq_ex(id: ID, attr: Of(decode::srq_init_ex)) -> MinusOne;
    rdma_destroy_srq(id: ID) -> Nothing;
    rdma_init_qp_attr(
        id: ID, qp_attr: After(decode::found_init_attributes), qp_attr_mask: After(decode::found_mask)
    ) -> MinusOne;
    rdma_create_ep(
        id: After(decode::new_id), res: Of(decode::addresses), pd: PD, qp_init_attr: Of(decode::pair_init)
    ) -> MinusOne;
    rdma_destroy_ep(id: ID) -> Nothing;
    rdma_get_request(listen: ID, id: After(decode::new_id)) -> MinusOne;
    rdma_getaddrinfo(node: Text, service: Text, hints: Of(decode::hints), res: After(decode::found_addresses)) -> MinusOne;
    rdma_freeaddrinfo(res: Pointer) -> Nothing;
    rdma_get_devices(num_devices: After(decode::found_count)) -> Returns::Pointer;
    rdma_free_devices(list: Pointer) -> Nothing;
    rdma_get_src_port(id: ID) -> Value(Half);
    rdma_get_dst_port(id: ID) -> Value(Half);
    rdma_set_option(id: ID, level: Name(names::OPTION_LEVEL), optname: Signed, optval: Pointer, optlen: Wide) -> MinusOne;
    rdma_join_multicast(id: ID, addr: Of(decode::socket_address), context: Pointer) -> MinusOne;
    rdma_join_multicast_ex(id: ID, mc_join_attr: Of(decode::joined), context: Pointer) -> MinusOne;
    rdma_leave_multicast(id: ID, addr: Of(decode::socket_address)) -> MinusOne;
    rdma_set_local_ece(id: ID, ece: Pointer) -> MinusOne;
    rdma_get_remote_ece(id: ID, ece: Pointer) -> MinusOne;
}

/// The call of this name.
pub(crate) fn find(name: &str) -> Option<usize> {
    CALLS.iter().position(|call| call.name == name)
}

/// Whether a name is as a pattern says: the same, or with what stands before the `*` at its end.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        // A macro of verbs.h calls either, as the flags of the region say.
        None => name == pattern || (pattern, name) == ("ibv_reg_mr", "ibv_reg_mr_iova2"),
    }
}

/// Asks whether the user means one of some calls; empty where none is near.
pub(crate) fn meant(name: &str) -> String {
    match similar(name).as_slice() {
        [] => String::new(),
        [one] => format!(" (is {one} meant?)"),
        all => format!(" (is one of these meant: {}?)", all.join(", ")),
    }
}

/// The calls that a user may mean by a name that is none: those in which it occurs, or whose first half is
/// the same.
fn similar(name: &str) -> Vec<&'static str> {
    const MOST: usize = 6;
    let word = name.trim_end_matches('*');
    let inside = |call: &&Call| word.len() > 2 && call.name.contains(word);
    let found: Vec<_> = CALLS.iter().filter(inside).map(|call| call.name).take(MOST).collect();
    if !found.is_empty() {
        return found;
    }
    let alike = |call: &Call| call.name.bytes().zip(word.bytes()).take_while(|(a, b)| a == b).count();
    // All begin with one of a few words, as ibv_.
    let least = (word.len() / 2).max("rdma_a".len());
    let mut all: Vec<_> =
        CALLS.iter().map(|call| (alike(call), call.name)).filter(|(alike, _)| *alike >= least).collect();
    all.sort_by_key(|(alike, _)| std::cmp::Reverse(*alike));
    all.into_iter().map(|(_, name)| name).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names behind which something stands that makes them watched, in the lists of exports.
    fn exported() -> Vec<String> {
        let list = include_str!("../../libibverbs/cdylib/src/lib.rs");
        let of_list = list
            .lines()
            .filter(|line| line.contains(" => ") && line.trim_start().contains(" = verbs::"))
            .filter_map(|line| line.trim_start().split(' ').next());
        // The one that stands in several private nodes.
        let in_nodes =
            list.lines().filter_map(|line| line.trim_start().strip_prefix("@passed ")?.split(',').next());
        let manager = include_str!("../../librdmacm/exports.rs");
        let of_manager = manager
            .split_whitespace()
            .map(|word| word.trim_end_matches([';', ':']))
            .filter(|word| word.starts_with("rdma_") && !word.contains('!'));
        of_list
            .chain(in_nodes)
            .chain(of_manager)
            .filter(|name| !["rdmacm_exports", "rdma_cm"].contains(name))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_function_that_is_watched_is_a_call() {
        let exported = exported();
        assert!(exported.len() > 100, "{exported:?}");
        let mut tables: Vec<_> = include_str!("../../libibverbs/src/seam/tables.rs")
            .split('"')
            .filter(|word| word.starts_with("ibv_") && !word.contains(' '))
            .map(str::to_owned)
            .collect();
        assert!(tables.len() > 50);
        tables.extend(exported);
        let missing: Vec<_> = tables.iter().filter(|name| find(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let unknown: Vec<_> = CALLS
            .iter()
            .filter(|call| !tables.iter().any(|name| name == call.name))
            .map(|call| call.name)
            .collect();
        assert!(unknown.is_empty(), "{unknown:?} are watched nowhere");
        let mut names: Vec<_> = CALLS.iter().map(|call| call.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn no_call_has_more_arguments_than_are_handed_on() {
        assert!(CALLS.iter().all(|call| call.arguments.len() <= 6));
    }

    #[test]
    fn a_pattern_has_a_star_at_its_end() {
        assert!(matches("ibv_post_*", "ibv_post_send") && matches("*", "rdma_listen"));
        assert!(!matches("ibv_post_*", "ibv_poll_cq") && !matches("ibv_post", "ibv_post_send"));
        assert_eq!(similar("post_send"), ["ibv_post_send"]);
        assert!(similar("ibv_reg_mrr").contains(&"ibv_reg_mr"));
        assert!(similar("nonsense").is_empty());
        assert_eq!(meant("post_send"), " (is ibv_post_send meant?)");
    }
}
