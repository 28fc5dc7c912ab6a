//! Connections that a listener holds for peers: those that have sent no request yet, and those whose request
//! waits for the program's answer. Each kind has a bound of its own, so a peer that connects and then says
//! nothing takes no place among the requests.

use crate::lock;
use crate::startup::Greeting;
use adverb_core::cm::first_to_go;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

/// Connections without a request that a listener holds, at least and at most. Each costs a descriptor.
const LEAST_SILENT: usize = 64;
const MOST_SILENT: usize = 1024;

/// The backlog of a listener: connections that have sent no request yet, and requests that wait for the
/// program's answer.
pub(crate) struct Backlog {
    /// Has one more holder for each request that waits for an answer.
    requests: Arc<()>,
    most: usize,
    /// Connections that have sent no request, oldest first.
    silent: Mutex<VecDeque<(IpAddr, Weak<Greeting>)>>,
}

/// The place of a request in its listener's backlog.
pub(crate) struct BacklogPlace {
    _counted: Arc<()>,
}

impl Backlog {
    /// The backlog of a listener that lets `most` requests wait.
    pub(crate) fn new(most: usize) -> Self {
        Self { requests: Arc::new(()), most, silent: Mutex::default() }
    }

    /// A connection has been taken in that has sent nothing yet. If there are too many of those, one gives
    /// way: the oldest of the peer that has the most.
    // RFC5042-6.4.1-1
    pub(crate) fn add_silent(&self, peer: IpAddr, greeting: &Arc<Greeting>) {
        let mut silent = lock(&self.silent);
        silent.retain(|(_, greeting)| greeting.strong_count() > 0);
        let most = self.most.clamp(LEAST_SILENT, MOST_SILENT);
        let gone =
            if silent.len() >= most { first_to_go(silent.iter().map(|(peer, _)| *peer)) } else { None };
        let gone = gone.and_then(|index| silent.remove(index)).and_then(|(_, greeting)| greeting.upgrade());
        silent.push_back((peer, Arc::downgrade(greeting)));
        drop(silent);
        if let Some(gone) = gone {
            gone.give_way();
        }
    }

    /// A place for a request that has come.
    pub(crate) fn place(&self) -> BacklogPlace {
        BacklogPlace { _counted: self.requests.clone() }
    }

    /// Whether there are more places taken than the listener has.
    pub(crate) fn is_full(&self) -> bool {
        Arc::strong_count(&self.requests) > self.most + 1
    }
}
