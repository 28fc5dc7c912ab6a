//! The rules of a process: which frames go to which of its queue pairs.

use super::RawEndpoint;
use adverb_core::flow::{FlowRule, Headers, receivers};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, Weak};

/// The steering rules of a process: which frames go to which of its raw packet queue pairs.
#[derive(Default)]
pub(crate) struct Steering {
    rules: RwLock<Vec<(FlowRule, Target)>>,
    next: AtomicU64,
}

/// The endpoint that a rule steers to.
struct Target {
    /// Number of the rule.
    rule: u64,
    endpoint: Weak<RawEndpoint>,
}

impl Steering {
    /// Puts a rule into force; its number.
    pub(super) fn add(&self, rule: FlowRule, endpoint: Weak<RawEndpoint>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.change().push((rule, Target { rule: number, endpoint }));
        number
    }

    /// Ends a rule.
    pub(super) fn remove(&self, number: u64) {
        self.change().retain(|(_, target)| target.rule != number);
    }

    /// The endpoints that get a frame: each once, also if several rules say so.
    pub(super) fn receivers(&self, frame: &[u8]) -> Vec<Arc<RawEndpoint>> {
        let Some(headers) = Headers::of(frame) else { return Vec::new() };
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Arc<RawEndpoint>> = Vec::new();
        for endpoint in receivers(&rules, &headers).into_iter().filter_map(|target| target.endpoint.upgrade())
        {
            if !found.iter().any(|known| Arc::ptr_eq(known, &endpoint)) {
                found.push(endpoint);
            }
        }
        found
    }

    fn change(&self) -> RwLockWriteGuard<'_, Vec<(FlowRule, Target)>> {
        self.rules.write().unwrap_or_else(PoisonError::into_inner)
    }
}
