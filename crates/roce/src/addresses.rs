//! Paths from the GID table, and the watch over the host's addresses.

use crate::gid::Gids;
use crate::lock;
use crate::net::Net;
use crate::route::{PORT, Route, address_of};
use adverb_core::device::Device;
use adverb_core::error::{Error, Result};
use adverb_core::event::AsyncEventKind;
use adverb_core::fork;
use adverb_core::interfaces;
use adverb_core::log;
use adverb_core::qp::Path;
use adverb_core::reactor::{READABLE, Readiness, Source};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Arc;

impl Gids {
    /// The route along a path, to UDP port 4791.
    ///
    /// # Errors
    /// EINVAL for a source that is not in the GID table, and for two addresses that do not go together.
    pub(crate) fn route_of(&self, path: &Path) -> Result<Route> {
        // ROCE-22, IB-UD-20
        let Some((source, interface)) = self.at(path.source_gid_index) else {
            return Err(Error::invalid(format!("there is no GID at index {}", path.source_gid_index)));
        };
        let destination = address_of(&path.gid);
        // ROCE-23, IB-UD-19
        if destination.is_unspecified() {
            return Err(Error::invalid(
                "the path has no GID of the peer: ibv_*_pingpong want -g 0 on both sides",
            ));
        }
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(Error::invalid(format!(
                "no path leads from {source} (GID index {}) to {destination}: both must be IPv4 or both IPv6",
                path.source_gid_index
            )));
        }
        // ROCE-31
        Ok(Route {
            source,
            interface,
            destination,
            port: PORT,
            class: path.traffic_class,
            hops: path.hop_limit,
        })
    }
}

impl Net {
    /// Keeps a device's GID table up to date from now on, and tells the device's programs.
    pub(crate) fn watch_addresses(&self, device: &Arc<Device>, gids: &Arc<Gids>) {
        let Ok(engine) = self.engine() else { return };
        let mut watch = lock(&self.watch);
        if watch.devices.iter().any(|known| Arc::ptr_eq(&known.device, device)) {
            return;
        }
        if watch.fd.is_none() {
            let Ok(fd) = interfaces::changes(false) else {
                log!(Info, "changes of addresses are not noticed: netlink is missing");
                return;
            };
            let fd = fd.into_raw_fd();
            fork::own_descriptor(fd);
            if engine.reactor.add(fd, READABLE, Arc::new(Watcher { net: self.this(), fd })).is_err() {
                return;
            }
            watch.fd = Some(fd);
        }
        let is_active = gids.is_active();
        watch.devices.push(Watched { device: device.clone(), gids: gids.clone(), is_active });
    }
}

/// Who hears of changed addresses.
#[derive(Default)]
pub(crate) struct Watch {
    /// The descriptor that tells of them.
    fd: Option<RawFd>,
    devices: Vec<Watched>,
}

/// A device that is open.
struct Watched {
    device: Arc<Device>,
    gids: Arc<Gids>,
    is_active: bool,
}

struct Watcher {
    net: Arc<Net>,
    fd: RawFd,
}

impl Source for Watcher {
    fn ready(self: Arc<Self>, _: Readiness) {
        interfaces::take_changes(self.fd);
        let mut has_changed = vec![(Arc::as_ptr(&self.net.gids), self.net.gids.refresh())];
        let mut news = Vec::new();
        for watched in &mut lock(&self.net.watch).devices {
            let table = Arc::as_ptr(&watched.gids);
            let changed = match has_changed.iter().find(|(known, _)| *known == table) {
                Some((_, changed)) => *changed,
                None => {
                    has_changed.push((table, watched.gids.refresh()));
                    has_changed.last().is_some_and(|(_, changed)| *changed)
                }
            };
            if changed {
                news.push((watched.device.clone(), AsyncEventKind::GidChange));
            }
            let active = watched.gids.is_active();
            if watched.is_active != active {
                watched.is_active = active;
                // IB-QP-40
                let kind = if active { AsyncEventKind::PortActive } else { AsyncEventKind::PortError };
                news.push((watched.device.clone(), kind));
            }
        }
        news.into_iter().for_each(|(device, kind)| device.raise(kind));
    }
}
