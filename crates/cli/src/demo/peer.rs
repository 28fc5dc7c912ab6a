//! One of the two processes of the demonstration.

use super::operation::{self, Effort, Operation, SideResult, Stage};
use super::refusal::{self, Refusal};
use crate::pair::child;
use crate::pair::link::Link;
use adverb::{Context, Listener};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Which side of an operation a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    Active,
    Passive,
}

/// What a process is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open the device.
    Open(String),
    /// Listen on an address.
    Listen(SocketAddr),
    /// Take a connection, in place of the last one.
    Accept,
    /// Make a connection, in place of the last one.
    Connect(SocketAddr),
    /// Do one side of an operation.
    Show(Operation, Role, Effort),
    /// Do one side of a forbidden one.
    Try(Refusal, Role),
}

/// The answer of the peer to a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Opened, and these operations can be shown.
    Offers(Vec<Operation>),
    /// Listening here.
    Listening(SocketAddr),
    /// Done.
    Done,
    /// Shown.
    Seen(SideResult),
    /// Refused; how the active side's request ended.
    Refused(String),
}

#[derive(Default)]
struct Peer {
    // Dropped in this order.
    stage: Option<Stage>,
    link: Option<Link>,
    listener: Option<Listener>,
    context: Option<Context>,
}

/// Carries out orders from standard input until it closes.
pub(super) fn serve(limit: Duration) {
    let mut peer = Peer::default();
    child::serve(limit, |order| peer.carry_out(order));
}

impl Peer {
    fn carry_out(&mut self, order: Order) -> Result<Answer, String> {
        match order {
            Order::Open(device) => {
                let context = Context::open(&device).map_err(|error| error.to_string())?;
                let offered = context.attributes().operations;
                let shown = Operation::ALL.iter().filter(|operation| offered.contains(&operation.opcode()));
                let answer = Answer::Offers(shown.copied().collect());
                self.context = Some(context);
                Ok(answer)
            }
            Order::Listen(address) => {
                let listener = Listener::bind(self.context()?, address, 8)
                    .map_err(|error| format!("listening on {address}: {error}"))?;
                let answer = Answer::Listening(listener.local_address());
                self.listener = Some(listener);
                Ok(answer)
            }
            Order::Accept => {
                self.hang_up();
                let listener = self.listener.as_ref().ok_or("not listening")?;
                self.link = Some(Link::accept(self.context()?, listener)?);
                Ok(Answer::Done)
            }
            Order::Connect(address) => {
                self.hang_up();
                self.link = Some(Link::connect(self.context()?, address)?);
                Ok(Answer::Done)
            }
            Order::Show(operation, role, effort) => {
                let link = self.link.as_ref().ok_or("not connected")?;
                let stage = match &self.stage {
                    Some(stage) => stage,
                    None => self.stage.insert(Stage::new(link)?),
                };
                let side = if role == Role::Active { operation::active } else { operation::passive };
                side(link, stage, operation, effort)
                    .map(Answer::Seen)
                    .map_err(|error| format!("{}: {error}", operation.name()))
            }
            Order::Try(refusal, role) => {
                let link = self.link.as_ref().ok_or("not connected")?;
                let side = if role == Role::Active { refusal::active } else { refusal::passive };
                side(link, refusal)
                    .map(Answer::Refused)
                    .map_err(|error| format!("{}: {error}", refusal.name()))
            }
        }
    }

    fn context(&self) -> Result<&Context, String> {
        self.context.as_ref().ok_or_else(|| "no device is open".to_owned())
    }

    fn hang_up(&mut self) {
        self.stage = None;
        self.link = None;
    }
}
