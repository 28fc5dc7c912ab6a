//! Peers: the processes at the other end. All queue pairs with one of them share its socket's buffer, and so a congestion window.

use crate::endpoint::Endpoint;
use crate::lock;
use adverb_proto::ib::Window;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The most that may be in flight to a peer: what a socket buffer of the size that ordinary users get takes.
const LIMIT: u32 = 384 << 10;

/// The peers that queue pairs are connected to, by address and UDP port. Thread-safe.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<(IpAddr, u16), Weak<Peer>>>);

impl Peers {
    /// The peer behind an address and port.
    pub(crate) fn of(&self, address: IpAddr, port: u16) -> Arc<Peer> {
        let mut peers = lock(&self.0);
        if let Some(peer) = peers.get(&(address, port)).and_then(Weak::upgrade) {
            return peer;
        }
        if peers.len() >= 64 && peers.len().is_power_of_two() {
            peers.retain(|_, peer| peer.strong_count() > 0);
        }
        let peer = Arc::new(Peer {
            window: Mutex::new(Window::new(LIMIT)),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
        });
        peers.insert((address, port), Arc::downgrade(&peer));
        peer
    }
}

/// See the module. Its locks are held for an instant only.
pub(crate) struct Peer {
    pub(crate) window: Mutex<Window>,
    /// Queue pairs that wait for room in the window.
    waiting: Mutex<Vec<Arc<Endpoint>>>,
    is_waited_for: AtomicBool,
}

impl Peer {
    /// A queue pair waits for room. Afterwards look at the window once more: room may have come meanwhile.
    pub(crate) fn wait(&self, endpoint: Arc<Endpoint>) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|known| Arc::ptr_eq(known, &endpoint)) {
            waiting.push(endpoint);
        }
        self.is_waited_for.store(true, Ordering::SeqCst);
    }

    /// Those who waited, if there is room now.
    pub(crate) fn wake(&self, ready: &mut Vec<Arc<Endpoint>>) {
        if self.is_waited_for.load(Ordering::SeqCst) && lock(&self.window).room() > 0 {
            let mut waiting = lock(&self.waiting);
            self.is_waited_for.store(false, Ordering::SeqCst);
            ready.append(&mut waiting);
        }
    }

    /// A queue pair is gone.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        lock(&self.waiting).retain(|known| !std::ptr::eq(&**known, endpoint));
    }
}
