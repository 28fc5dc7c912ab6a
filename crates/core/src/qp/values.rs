//! Whether the values of attributes are ones that the device has (ibv_modify_qp(3)), for transports whose
//! paths are attributes.

use super::{AttributeMask as M, Attributes};
use crate::device::Context;
use crate::error::{Error, Result};

/// Largest queue pair number and packet sequence number.
const MAX_24_BITS: u32 = 0xff_ffff;
/// Largest code of a timer.
const MAX_TIMER: u8 = 31;
/// Most retries; of retries when the peer is not ready it means: without end.
const MAX_RETRIES: u8 = 7;

/// Checks the values that `mask` names.
///
/// # Errors
/// EINVAL for a value out of range; EOPNOTSUPP for values that no device here has.
pub(super) fn check(context: &Context, attributes: &Attributes, mask: M) -> Result<()> {
    let limits = context.attributes();
    for (flag, what, value, most) in [
        // IB-QP-22
        (M::DEST_QPN, "dest_qp_num", attributes.destination, MAX_24_BITS),
        (M::TIMEOUT, "timeout", attributes.timeout.into(), MAX_TIMER.into()),
        (M::MIN_RNR_TIMER, "min_rnr_timer", attributes.min_rnr_timer.into(), MAX_TIMER.into()),
        (M::RETRY_COUNT, "retry_cnt", attributes.retry_count.into(), MAX_RETRIES.into()),
        (M::RNR_RETRY, "rnr_retry", attributes.rnr_retry.into(), MAX_RETRIES.into()),
        // IB-QP-21
        (M::MAX_QP_RD_ATOMIC, "max_rd_atomic", attributes.max_rd_atomic.into(), limits.max_qp_init_rd_atom),
        (
            M::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attributes.max_dest_rd_atomic.into(),
            limits.max_qp_rd_atom,
        ),
    ] {
        if mask.contains(flag) && value > most {
            return Err(Error::invalid(format!("{what} {value}: at most {most} is allowed")));
        }
    }
    if mask.contains(M::PATH_MTU) {
        // IB-QP-20, IB-PKT-44
        let mtu = attributes.path_mtu;
        let active = context.transport().port().active_mtu;
        if !mtu.is_power_of_two() || !(256..=active).contains(&mtu) {
            // The front end makes 0 of a number that is no value of enum ibv_mtu.
            let what =
                if mtu == 0 { "this is no path_mtu".into() } else { format!("path_mtu of {mtu} bytes") };
            return Err(Error::invalid(format!(
                "{what}: the port carries 256 to {active} bytes (IBV_MTU_256 to IBV_MTU_{active})"
            )));
        }
    }
    let entries = context.transport().port().pkey_table_length;
    if mask.contains(M::PKEY_INDEX) && attributes.pkey_index >= entries {
        let index = attributes.pkey_index;
        return Err(Error::invalid(format!("pkey_index {index}: the table has {entries} entries")));
    }
    if mask.contains(M::AV) {
        context.check_path(&attributes.path).map_err(|error| error.context("address vector"))?;
    }
    // IB-QP-24
    if mask.contains(M::ALT_PATH) {
        return Err(Error::unsupported("the device has no alternate paths"));
    }
    if mask.contains(M::RATE_LIMIT) {
        return Err(Error::unsupported("the device does not limit rates"));
    }
    Ok(())
}

/// Sequence numbers have 24 bits; the bits above them are not looked at.
pub(super) fn masked(attributes: &Attributes) -> Attributes {
    Attributes {
        rq_psn: attributes.rq_psn & MAX_24_BITS,
        sq_psn: attributes.sq_psn & MAX_24_BITS,
        ..*attributes
    }
}
