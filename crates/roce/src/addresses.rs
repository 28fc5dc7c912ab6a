//! Paths from the GID table, and the watch over the host's addresses.

use crate::gid::Gids;
use crate::net::Net;
use crate::route::{PORT, Route, address_of};
use adverb_core::device::Device;
use adverb_core::error::{Error, Result};
use adverb_core::event::AsyncEventKind;
use adverb_core::ports::{Activity, Port};
use adverb_core::qp::Path;
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
        engine.ports.watch(device, || {
            let activity = Activity::new(gids.is_active());
            Box::new(GidPort { net: self.this(), gids: gids.clone(), changes: gids.changes(), activity })
        });
    }
}

/// A port, which has the GIDs of its interfaces' addresses.
struct GidPort {
    net: Arc<Net>,
    gids: Arc<Gids>,
    /// Changes of the table of which programs have been told.
    changes: u64,
    activity: Activity,
}

impl Port for GidPort {
    fn look(&mut self) -> Vec<AsyncEventKind> {
        self.net.gids.refresh();
        self.gids.refresh();
        let changes = self.gids.changes();
        let has_changed = std::mem::replace(&mut self.changes, changes) != changes;
        let active = self.activity.becomes(self.gids.is_active());
        has_changed.then_some(AsyncEventKind::GidChange).into_iter().chain(active).collect()
    }
}
