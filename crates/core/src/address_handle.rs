//! Address handles: where a datagram goes (ibv_create_ah(3)).

use crate::device::Context;
use crate::error::{Error, Result};
use crate::fork::ForkGeneration;
use crate::qp::Path;
use crate::region::ProtectionDomain;
use std::sync::Arc;

/// The checked path of datagrams. Thread-safe.
pub struct AddressHandle {
    domain: Arc<ProtectionDomain>,
    path: Path,
    born: ForkGeneration,
}

impl AddressHandle {
    /// A new handle.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device has none; EINVAL for a path that is none; ENOMEM when it is full.
    pub fn new(domain: &Arc<ProtectionDomain>, path: Path) -> Result<Arc<Self>> {
        let context = domain.context();
        context.born.check()?;
        let most = context.attributes().max_ah;
        if most == 0 {
            return Err(Error::unsupported(format!("{} has no address handles", context.device().name())));
        }
        // IB-UD-19, IB-UD-20
        context.check_path(&path)?;
        if !context.device().address_handles.enter_below(most) {
            return Err(Error::exhausted(format!("all {most} address handles of the device are in use")));
        }
        domain.users().enter();
        Ok(Arc::new(Self { domain: domain.clone(), path, born: ForkGeneration::now() }))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The protection domain of the address handle.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Whether this process made the address handle (a child of fork did not).
    pub fn is_here(&self) -> bool {
        self.born.is_here()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        self.context().device().address_handles.leave();
        self.domain.users().leave();
    }
}
