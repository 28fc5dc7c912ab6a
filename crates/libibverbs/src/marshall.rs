//! Conversions between the kernel's structures and those of `verbs.h`. They are historical exports; other
//! libraries of rdma-core call them.

use crate::abi::{
    ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_global_route, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid,
    ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec,
};

fn address_from_kernel(source: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let ib_uverbs_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class, .. } = source.grh;
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dgid },
            flow_label,
            sgid_index,
            hop_limit,
            traffic_class,
        },
        dlid: source.dlid,
        sl: source.sl,
        src_path_bits: source.src_path_bits,
        static_rate: source.static_rate,
        is_global: source.is_global,
        port_num: source.port_num,
    }
}

/// Converts an address.
///
/// # Safety
/// Both pointers are valid.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    destination: *mut ibv_ah_attr,
    source: *const ib_uverbs_ah_attr,
) {
    // SAFETY: the caller's promise.
    unsafe { destination.write(address_from_kernel(&*source)) }
}

/// Converts queue pair attributes; `rate_limit`, which the kernel's structure lacks, stays as it is.
///
/// # Safety
/// Both pointers are valid.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    destination: *mut ibv_qp_attr,
    source: *const ib_uverbs_qp_attr,
) {
    // SAFETY: the caller's promise.
    let (destination, source) = unsafe { (&mut *destination, &*source) };
    *destination = ibv_qp_attr {
        qp_state: source.qp_state,
        cur_qp_state: source.cur_qp_state,
        path_mtu: source.path_mtu,
        path_mig_state: source.path_mig_state,
        qkey: source.qkey,
        rq_psn: source.rq_psn,
        sq_psn: source.sq_psn,
        dest_qp_num: source.dest_qp_num,
        qp_access_flags: source.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: source.max_send_wr,
            max_recv_wr: source.max_recv_wr,
            max_send_sge: source.max_send_sge,
            max_recv_sge: source.max_recv_sge,
            max_inline_data: source.max_inline_data,
        },
        ah_attr: address_from_kernel(&source.ah_attr),
        alt_ah_attr: address_from_kernel(&source.alt_ah_attr),
        pkey_index: source.pkey_index,
        alt_pkey_index: source.alt_pkey_index,
        en_sqd_async_notify: source.en_sqd_async_notify,
        sq_draining: source.sq_draining,
        max_rd_atomic: source.max_rd_atomic,
        max_dest_rd_atomic: source.max_dest_rd_atomic,
        min_rnr_timer: source.min_rnr_timer,
        port_num: source.port_num,
        timeout: source.timeout,
        retry_cnt: source.retry_cnt,
        rnr_retry: source.rnr_retry,
        alt_port_num: source.alt_port_num,
        alt_timeout: source.alt_timeout,
        rate_limit: destination.rate_limit,
    };
}

/// Converts a path record.
///
/// # Safety
/// Both pointers are valid.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    destination: *mut ibv_sa_path_rec,
    source: *const ib_user_path_rec,
) {
    // SAFETY: the caller's promise.
    let (destination, source) = unsafe { (&mut *destination, &*source) };
    *destination = ibv_sa_path_rec {
        dgid: ibv_gid { raw: source.dgid },
        sgid: ibv_gid { raw: source.sgid },
        dlid: source.dlid,
        slid: source.slid,
        raw_traffic: source.raw_traffic as i32,
        flow_label: source.flow_label,
        hop_limit: source.hop_limit,
        traffic_class: source.traffic_class,
        reversible: source.reversible as i32,
        numb_path: source.numb_path,
        pkey: source.pkey,
        sl: source.sl,
        mtu_selector: source.mtu_selector,
        mtu: source.mtu as u8,
        rate_selector: source.rate_selector,
        rate: source.rate,
        packet_life_time_selector: source.packet_life_time_selector,
        packet_life_time: source.packet_life_time,
        preference: source.preference,
    };
}

/// Converts a path record into the kernel's form.
///
/// # Safety
/// Both pointers are valid.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    destination: *mut ib_user_path_rec,
    source: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller's promise.
    let (destination, source) = unsafe { (&mut *destination, &*source) };
    *destination = ib_user_path_rec {
        dgid: source.dgid.raw,
        sgid: source.sgid.raw,
        dlid: source.dlid,
        slid: source.slid,
        raw_traffic: source.raw_traffic as u32,
        flow_label: source.flow_label,
        reversible: source.reversible as u32,
        mtu: source.mtu.into(),
        pkey: source.pkey,
        hop_limit: source.hop_limit,
        traffic_class: source.traffic_class,
        numb_path: source.numb_path,
        sl: source.sl,
        mtu_selector: source.mtu_selector,
        rate_selector: source.rate_selector,
        rate: source.rate,
        packet_life_time_selector: source.packet_life_time_selector,
        packet_life_time: source.packet_life_time,
        preference: source.preference,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_record_survives_the_round_trip() {
        let mut path = ibv_sa_path_rec::zeroed();
        path.dgid.raw[15] = 7;
        path.mtu = 3;
        path.pkey = 0xffff;
        path.reversible = 1;
        path.preference = 9;
        let mut kernel = ib_user_path_rec::zeroed();
        let mut back = ibv_sa_path_rec::zeroed();
        // SAFETY: all three are local variables.
        unsafe {
            ibv_copy_path_rec_to_kern(&mut kernel, &path);
            ibv_copy_path_rec_from_kern(&mut back, &kernel);
        }
        assert_eq!((back.dgid, back.mtu, back.pkey), (path.dgid, 3, 0xffff));
        assert_eq!((back.reversible, back.preference), (1, 9));
    }

    #[test]
    fn queue_pair_attributes_keep_the_rate_limit() {
        let mut kernel = ib_uverbs_qp_attr::zeroed();
        kernel.qp_state = 3;
        kernel.max_inline_data = 64;
        kernel.ah_attr.grh.hop_limit = 5;
        let mut attr = ibv_qp_attr::zeroed();
        attr.rate_limit = 11;
        // SAFETY: both are local variables.
        unsafe { ibv_copy_qp_attr_from_kern(&mut attr, &kernel) };
        assert_eq!((attr.qp_state, attr.cap.max_inline_data, attr.rate_limit), (3, 64, 11));
        assert_eq!(attr.ah_attr.grh.hop_limit, 5);
    }
}
