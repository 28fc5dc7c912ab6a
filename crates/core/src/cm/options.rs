//! Options of an identifier (rdma_set_option(3)), and calls that have little to do on most transports.

use super::event::EventKind;
use super::identifier::{Identifier, IdentifierState};
use crate::error::{Error, Result};
use crate::qp::Service;

impl Identifier {
    /// RDMA_OPTION_ID_TOS: the type of service of the connection's packets. Counts for the next bind or
    /// connect.
    pub fn set_type_of_service(&self, value: u8) -> Result<()> {
        self.enter()?.options.type_of_service = Some(value);
        Ok(())
    }

    /// RDMA_OPTION_ID_REUSEADDR: whether the local port may be shared with identifiers that allow it, too.
    /// EINVAL once it is bound and to be switched off, or listens.
    pub fn set_reuse_address(&self, reuse: bool) -> Result<()> {
        let mut inner = self.enter()?;
        let may = inner.state == IdentifierState::Idle || reuse && inner.state != IdentifierState::Listen;
        if !may {
            return Err(Error::invalid("address reuse is chosen before binding"));
        }
        inner.options.reuse_address = reuse;
        Ok(())
    }

    /// RDMA_OPTION_ID_AFONLY: whether a wildcard IPv6 listener leaves IPv4 alone. EINVAL once it listens or
    /// resolves.
    pub fn set_family_only(&self, only: bool) -> Result<()> {
        let mut inner = self.enter()?;
        if !matches!(inner.state, IdentifierState::Idle | IdentifierState::AddressBound) {
            return Err(Error::invalid("the address family is restricted before listening"));
        }
        inner.options.v6_only = Some(only);
        Ok(())
    }

    /// RDMA_OPTION_ID_ACK_TIMEOUT: the local ACK timeout code (0 to 31) of reliable connections, which the
    /// peer learns when connecting; without meaning on iWARP, where TCP retransmits. EINVAL for other
    /// services and codes.
    pub fn set_ack_timeout(&self, code: u8) -> Result<()> {
        if !matches!(self.service, Service::Rc | Service::XrcSend) || code > 31 {
            return Err(Error::invalid(format!("ACK timeout {code} on {}: 0 to 31 on RC", self.service)));
        }
        self.enter()?.options.ack_timeout = Some(code);
        Ok(())
    }

    /// The code that [`Identifier::set_ack_timeout`] set.
    pub fn ack_timeout(&self) -> Option<u8> {
        self.enter().ok()?.options.ack_timeout
    }

    /// RDMA_OPTION_IB_PATH: the program has found the route itself, so it counts as resolved. EINVAL unless
    /// the address is resolved and the route is not.
    pub fn set_path(&self) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.state != IdentifierState::AddressResolved {
            return Err(Error::invalid("a path is set between resolving the address and the route"));
        }
        inner.state = IdentifierState::RouteResolved;
        self.push(&inner, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// Tells the connection manager that the first message has come on the queue pair (rdma_notify(3) with
    /// IBV_EVENT_COMM_EST). So the peer has established the connection, even if its message to that effect
    /// was lost. EINVAL without a connection.
    pub fn notify(&self) -> Result<()> {
        let inner = self.enter()?;
        let connection = inner.connection.clone();
        if connection.is_none() && inner.incoming.is_none() {
            return Err(Error::invalid("the identifier has no connection"));
        }
        drop(inner);
        connection.map_or(Ok(()), |connection| connection.notify())
    }

    /// Completes a connection whose queue pair the program manages itself, after
    /// [`EventKind::ConnectResponse`] (rdma_establish(3)). EINVAL otherwise.
    pub fn establish(&self) -> Result<()> {
        let inner = self.enter()?;
        match (&inner.connection, &inner.queue_pair) {
            (Some(connection), None) => {
                let connection = connection.clone();
                drop(inner);
                connection.establish()
            }
            _ => Err(Error::invalid("there is no connection that waits for its queue pair")),
        }
    }
}
