//! Memory windows as objects of a program.

use super::ProtectionDomain;
use crate::error::{Error, Result};
use crate::fork::ForkGeneration;
use crate::memory::WindowType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A memory window (ibv_alloc_mw(3)).
pub struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    kind: WindowType,
    key: u32,
    ended: AtomicBool,
    born: ForkGeneration,
}

impl MemoryWindow {
    /// A window that is not bound.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device has none; ENOMEM when it has `max_mw` of them.
    pub fn new(domain: &Arc<ProtectionDomain>, kind: WindowType) -> Result<Arc<Self>> {
        let context = domain.context();
        context.born.check()?;
        let most = context.attributes().max_mw;
        if most == 0 {
            return Err(Error::unsupported(format!("{} has no memory windows", context.device().name())));
        }
        if !context.device().windows.enter_below(most) {
            return Err(Error::exhausted(format!("all {most} memory windows of the device are in use")));
        }
        let key = context.engine().keys.insert_window(kind, domain.number()).inspect_err(|_| {
            context.device().windows.leave();
        })?;
        domain.users().enter();
        let (ended, born) = (AtomicBool::new(false), ForkGeneration::now());
        Ok(Arc::new(Self { domain: domain.clone(), kind, key, ended, born }))
    }

    /// The key it was made with. A bind may change the lowest 8 bits.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The window's kind.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The window's protection domain.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Ends the window (ibv_dealloc_mw(3)). Again: no effect.
    pub fn deallocate(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let context = self.domain.context();
        if self.born.is_here() {
            context.engine().keys.remove_window(self.key);
        }
        context.device().windows.leave();
        self.domain.users().leave();
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.deallocate();
    }
}
