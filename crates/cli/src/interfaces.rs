//! The network interfaces of this namespace and their addresses.

use adverb_core::description::Addresses;
use adverb_core::interfaces;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The IP addresses of each interface that is up, of those that are asked for; empty if the system does not
/// say.
pub(crate) fn addresses(wanted: &Addresses) -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for local in interfaces::addresses().into_iter().filter(|local| wanted.has(local)) {
        found.entry(local.name).or_default().push(local.address);
    }
    found
}
