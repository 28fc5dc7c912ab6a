//! Multicast groups that a queue pair is in.

use super::Endpoint;
use crate::route::address_of;
use adverb_core::error::{Error, Result};
use std::net::IpAddr;

impl Endpoint {
    pub(super) fn multicast(&self, group: &[u8; 16], join: bool) -> Result<()> {
        let address = address_of(group);
        if !address.is_multicast() {
            return Err(Error::invalid(format!("{address} is not a multicast group")));
        }
        // The verb does not say on which interface: on all that have an address of the family.
        let mut interfaces: Vec<u32> = self
            .gids
            .all()
            .iter()
            .filter(|gid| address_of(&gid.bytes).is_ipv4() == address.is_ipv4())
            .map(|gid| gid.interface)
            .collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        self.net.primary()?;
        let mut result = Err(Error::new(libc::ENODEV, format!("no interface for the group {address}")));
        for interface in interfaces {
            let joined = self.change_membership(address, interface, join);
            if result.is_err() {
                result = joined;
            }
        }
        result
    }

    fn change_membership(&self, group: IpAddr, interface: u32, join: bool) -> Result<()> {
        let groups = &self.net.groups;
        let _change = groups.change(group, interface);
        let changed = if join {
            groups.join(group, interface, self.number())
        } else {
            groups.leave(group, interface, self.number())
        };
        if !changed {
            return Ok(());
        }
        let result = self.net.udp_port.multicast(group, interface, join);
        if result.is_err() && join {
            groups.leave(group, interface, self.number());
        }
        result
    }
}
