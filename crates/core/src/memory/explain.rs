//! Why a key does not open bytes, in words for a person. Only where something has failed already: nothing
//! here is fast.

use super::keys::{Access, AccessError, Entry, Keys};
use std::fmt::Write;

/// The user of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The program itself.
    Local,
    /// The peer of this queue pair.
    Peer(u32),
}

impl Keys {
    /// The error in this use of a key, and the key that was probably meant; none if by now nothing is wrong.
    #[cold]
    pub fn explain(
        &self,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
        user: User,
    ) -> Option<(AccessError, String)> {
        let opened = match user {
            User::Local => self.open_span(key, address, length, rights, domain),
            User::Peer(queue_pair) => self.open_for_peer(key, address, length, rights, domain, queue_pair),
        };
        let error = opened.err()?;
        let entry = self.entry(key);
        let (thing, entry) = match &entry {
            Some(entry) => (if entry.window.is_some() { "window" } else { "region" }, entry),
            None => return Some((error, self.explain_key(key, address, length, domain))),
        };
        let (first, size) = (entry.iova, entry.length);
        let text = match error {
            AccessError::Key if user == User::Local => {
                format!("key {key:#x} is a memory window's, which is for peers alone")
            }
            AccessError::Key => format!("the region under the window of key {key:#x} is gone"),
            AccessError::ProtectionDomain if entry.domain == domain => {
                format!("the window of key {key:#x} is bound to another queue pair")
            }
            AccessError::ProtectionDomain => format!(
                "the {thing} of key {key:#x} is of protection domain {}, the request of protection domain {domain}",
                entry.domain
            ),
            AccessError::Rights => format!(
                "the {thing} of key {key:#x} permits {}; wanted is {}",
                words(entry.access),
                words(rights)
            ),
            AccessError::Wrap => "address and length pass the end of the address space".to_owned(),
            AccessError::Bounds => {
                let mut text = String::new();
                let (end, last) =
                    (u128::from(address) + u128::from(length), u128::from(first) + u128::from(size));
                let bytes = |count: u128| if count == 1 { "byte" } else { "bytes" };
                let far = u128::from(size);
                let is_elsewhere = end + far <= first.into() || u128::from(address) >= last + far;
                let _ = match first.checked_sub(address) {
                    _ if is_elsewhere => write!(text, "none of the bytes is in"),
                    Some(before) if before > 0 => {
                        write!(text, "the bytes begin {before} {} before", bytes(before.into()))
                    }
                    _ => {
                        let past = end.saturating_sub(last);
                        write!(text, "the bytes end {past} {} past the end of", bytes(past))
                    }
                };
                let _ = write!(text, " the {thing} of key {key:#x}, which has {size} bytes at {first:#x}");
                text
            }
        };
        Some((error, text))
    }

    /// The explanation for a key that opens nothing.
    fn explain_key(&self, key: u32, address: u64, length: u64, domain: u32) -> String {
        let was_there = self.slot(key).is_some_and(|slot| slot.key() == key);
        let mut text = match (key, was_there) {
            (0, _) => "key 0x0 is no key".to_owned(),
            (_, true) => {
                format!("key {key:#x} is gone: its region was deregistered, or it was invalidated")
            }
            (_, false) => format!("there is no key {key:#x} here"),
        };
        let has = |entry: &Entry| {
            let at = address.checked_sub(entry.iova);
            entry.window.is_none()
                && entry.domain == domain
                && at.and_then(|at| at.checked_add(length)).is_some_and(|end| end <= entry.length)
        };
        if let Some(other) = self.find_key(has) {
            let _ = write!(text, "; the bytes are in the region of key {other:#x}");
        }
        text
    }
}

/// Rights, by their names in the C interface.
pub(crate) fn words(access: Access) -> String {
    let mut text = String::new();
    let known = access - Access::OPTIONAL;
    let _ = bitflags::parser::to_writer(&known, &mut text);
    if text.is_empty() { "local reads alone".to_owned() } else { text.replace(" | ", " and ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::keys::Kind;

    fn entry() -> Entry {
        Entry {
            address: 0x10_0000,
            length: 4096,
            iova: 0x10_0000,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
            domain: 3,
            window: None,
            kind: Kind::Program,
        }
    }

    #[test]
    fn every_reason_has_a_sentence_with_its_numbers() {
        let keys = Keys::new();
        let key = keys.insert(entry()).unwrap();
        let gone = keys.insert(entry()).unwrap();
        keys.remove(gone);
        let said = |key, address, length, rights, domain| {
            keys.explain(key, address, length, rights, domain, User::Peer(1)).map(|(_, text)| text)
        };
        let read = Access::REMOTE_READ;
        assert_eq!(said(key, 0x10_0000, 4096, read, 3), None);
        let shown = format!("{key:#x}");
        assert_eq!(
            said(key, 0x10_0ff0, 64, read, 3).unwrap(),
            format!(
                "the bytes end 48 bytes past the end of the region of key {shown}, which has 4096 bytes at 0x100000"
            )
        );
        assert_eq!(
            said(key, 0xf_fff0, 64, read, 3).unwrap(),
            format!(
                "the bytes begin 16 bytes before the region of key {shown}, which has 4096 bytes at 0x100000"
            )
        );
        assert_eq!(
            said(key, 0x10_0000, 8, Access::REMOTE_WRITE, 3).unwrap(),
            format!("the region of key {shown} permits LOCAL_WRITE and REMOTE_READ; wanted is REMOTE_WRITE")
        );
        assert_eq!(
            said(key, 0x10_0000, 8, read, 4).unwrap(),
            format!(
                "the region of key {shown} is of protection domain 3, the request of protection domain 4"
            )
        );
        assert_eq!(
            said(gone, 0x10_0000, 8, read, 3).unwrap(),
            format!(
                "key {gone:#x} is gone: its region was deregistered, or it was invalidated; \
                 the bytes are in the region of key {shown}"
            )
        );
        assert_eq!(
            said(key ^ 1, 0x20_0000, 8, read, 3).unwrap(),
            format!("there is no key {:#x} here", key ^ 1)
        );
        // As in traces and findings: without leading zeros, and 0 as the others.
        assert_eq!(said(0, 0x20_0000, 8, read, 3).unwrap(), "key 0x0 is no key");
        assert_eq!(said(0xab, 0x20_0000, 8, read, 3).unwrap(), "there is no key 0xab here");
    }
}
