//! Paths between addresses, and the queue pair attributes that follow from the terms of both sides
//! (InfiniBand).

use crate::attributes::{Gid, GidKind, gid_of};
use crate::error::{Error, Result};
use crate::qp::{AttributeMask, Attributes, Path, Service, State};
use crate::transport::connections::Agreement;
use std::net::{IpAddr, SocketAddr};

/// Hop limit of paths, as Linux gives it to IP packets.
// ROCE-29
const HOP_LIMIT: u8 = 64;

impl Agreement {
    /// The attributes that take the queue pair to `state`, RTR or RTS, and which of them count.
    ///
    /// # Errors
    /// EINVAL for another state.
    pub fn attributes(&self, state: State) -> Result<(Attributes, AttributeMask)> {
        use AttributeMask as M;
        let asks = matches!(self.service, Service::Rc | Service::XrcSend);
        let answers = matches!(self.service, Service::Rc | Service::XrcReceive);
        let mut mask = match state {
            State::Rtr => M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            State::Rts => M::STATE | M::SQ_PSN,
            _ => return Err(Error::invalid(format!("an agreement leads to RTR and RTS, not to {state}"))),
        };
        if answers && state == State::Rtr {
            mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        }
        if asks && state == State::Rts {
            mask |= M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        }
        if (asks || answers) && state == State::Rts {
            mask |= M::TIMEOUT;
        }
        // IB-CM-38
        let attributes = Attributes {
            state: Some(state),
            path: self.path,
            path_mtu: self.path_mtu,
            destination: self.destination,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            max_dest_rd_atomic: self.responder_resources,
            max_rd_atomic: self.initiator_depth,
            // The longest delay, as in the kernel: few retries then cover a long time.
            min_rnr_timer: 0,
            timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry_count,
            port: 1,
            ..Attributes::default()
        };
        Ok((attributes, mask))
    }
}

/// The path from a local address to a GID.
///
/// # Errors
/// EADDRNOTAVAIL if `local` is not in the GID table.
pub fn path_to(gids: &[Gid], local: SocketAddr, gid: [u8; 16], traffic_class: u8) -> Result<Path> {
    let own = gid_entry(gids, local).ok_or_else(|| {
        let text = format!("the device has no GID for the address {}", local.ip());
        Error::new(libc::EADDRNOTAVAIL, text)
    })?;
    Ok(Path {
        gid,
        source_gid_index: own.index as u8,
        hop_limit: HOP_LIMIT,
        traffic_class,
        is_global: true,
        port: 1,
        ..Path::default()
    })
}

impl Path {
    /// The path with its source GID index changed from an index of GID table `from` to one of GID table `to`.
    /// The GID and its interface stay.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `to` lacks the source.
    pub fn in_table(self, from: &[Gid], to: &[Gid]) -> Result<Self> {
        let at = |gid: &&Gid| gid.index == u32::from(self.source_gid_index);
        // A table of tests may be of another device: then the index stands for itself.
        let Some(source) = from.iter().find(at) else { return Ok(self) };
        let same = to.iter().find(|gid| gid.bytes == source.bytes && gid.interface == source.interface);
        let same = same.ok_or_else(|| {
            Error::new(
                libc::EADDRNOTAVAIL,
                "the device of the queue pair does not have the address of the connection",
            )
        })?;
        Ok(Self { source_gid_index: same.index as u8, ..self })
    }
}

/// The entry of a local address; of a link-local one, on the right link.
pub(super) fn gid_entry(gids: &[Gid], local: SocketAddr) -> Option<Gid> {
    let (bytes, link) = (gid_of(local.ip()), scope_of(&local));
    let fits = |gid: &&Gid| gid.bytes == bytes && (link == 0 || gid.interface == link);
    // ROCE-21
    let best = gids.iter().filter(fits).find(|gid| gid.kind == GidKind::RoceV2);
    best.or_else(|| gids.iter().find(fits)).copied()
}

fn scope_of(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}

/// The GID of an IP multicast group: the mapped address for IPv4, the address itself for IPv6 (RoCE v2).
///
/// # Errors
/// EINVAL for another address.
// ROCE-26
pub fn multicast_gid(group: IpAddr) -> Result<[u8; 16]> {
    if group.is_multicast() {
        return Ok(gid_of(group));
    }
    Err(Error::invalid(format!("{group} is not a multicast address")))
}

/// A datagram queue pair and the way to it (struct rdma_ud_param).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramPeer {
    /// The way.
    pub path: Path,
    /// The queue pair number.
    pub queue_pair: u32,
    /// The queue pair's Q_Key.
    pub qkey: u32,
}

/// A path as rdma_cm shows it (struct ibv_sa_path_rec).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Our GID.
    pub source: [u8; 16],
    /// The peer's.
    pub destination: [u8; 16],
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// P_Key.
    pub pkey: u16,
    /// Code of how long a packet may be under way: 4.096 µs · 2^code.
    pub life_time: u8,
}

/// P_Key of every path: the default partition, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The packet life time code of paths, unless an ACK timeout is set: 0.27 s, as the kernel assumes on
/// Ethernet.
pub const PACKET_LIFE_TIME: u8 = 16;

impl PathRecord {
    /// The path between two addresses. The local ACK timeout of the options, if set, is one step above the
    /// packet life time.
    pub(super) fn between(
        local: SocketAddr,
        peer: SocketAddr,
        mtu: u32,
        options: &super::AddressOptions,
    ) -> Self {
        Self {
            source: gid_of(local.ip()),
            destination: gid_of(peer.ip()),
            mtu,
            traffic_class: options.type_of_service.unwrap_or(0),
            hop_limit: HOP_LIMIT,
            pkey: DEFAULT_PKEY,
            life_time: options.ack_timeout.map_or(PACKET_LIFE_TIME, |code| code.saturating_sub(1)),
        }
    }
}
