//! Connections to other processes of the host, which are kept so that not every message opens one.

use crate::seqpacket::Connection;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// The number of connections at which the table looks for processes that have gone. It looks again whenever
/// the number has doubled.
const FEW: usize = 16;
/// The most connections that are kept.
const MOST: usize = 1024;

/// Open connections to other processes of the host, by the key that names each process. They are kept for
/// later messages.
pub(crate) struct Contacts<K> {
    known: HashMap<K, Arc<Connection>>,
    look_at: usize,
}

impl<K> Default for Contacts<K> {
    fn default() -> Self {
        Self { known: HashMap::new(), look_at: FEW }
    }
}

impl<K: Eq + Hash> Contacts<K> {
    pub(crate) fn get(&self, whom: &K) -> Option<Arc<Connection>> {
        self.known.get(whom).cloned()
    }

    pub(crate) fn keep(&mut self, whom: K, connection: Connection) -> Arc<Connection> {
        if self.known.len() >= self.look_at {
            // Most of the processes to which a server has spoken are gone, and each kept connection takes a
            // descriptor.
            self.known.retain(|_, connection| !connection.has_hung_up());
            if self.known.len() >= MOST {
                self.known.clear();
            }
            self.look_at = (2 * self.known.len()).clamp(FEW, MOST);
        }
        let kept = Arc::new(connection);
        self.known.insert(whom, kept.clone());
        kept
    }

    pub(crate) fn forget(&mut self, whom: &K) {
        self.known.remove(whom);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket::{Listener, name};

    #[test]
    fn those_who_have_gone_take_no_descriptors() {
        let mut contacts = Contacts::default();
        let bind =
            |number: usize| Listener::bind(&name(&format!("contacts/{}/{number}", std::process::id())));
        let open =
            |number: usize| Connection::open(&name(&format!("contacts/{}/{number}", std::process::id())));
        let _lives = bind(0).unwrap();
        contacts.keep(0, open(0).unwrap());
        for number in 1..10 * FEW {
            let goes = bind(number).unwrap();
            contacts.keep(number, open(number).unwrap());
            drop(goes);
            assert!(contacts.known.len() <= FEW + 1, "{number}: {} are kept", contacts.known.len());
        }
        assert!(contacts.get(&0).is_some_and(|connection| !connection.has_hung_up()));
        contacts.forget(&0);
        assert!(contacts.get(&0).is_none());
    }
}
