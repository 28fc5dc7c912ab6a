//! The network interfaces of this namespace and their addresses.

use adverb_core::interfaces;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The IP addresses of each interface that is up; empty if the system does not say.
pub(crate) fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for local in interfaces::addresses() {
        found.entry(local.name).or_default().push(local.address);
    }
    found
}
