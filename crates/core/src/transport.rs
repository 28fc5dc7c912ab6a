//! A transport, as the access layer sees it: one interface, behind which it moves bytes as its standard says.

use crate::attributes::{DeviceAttributes, Gid, PortAttributes};
use crate::description::{self, Description};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::flow::FlowRule;
use crate::qp::{Attributes, Path, QueuePairOptions, Queues, Transition};
use crate::request::SendRequest;
use std::sync::Arc;

pub mod connections;

use connections::ConnectionBackend;

/// Makes the devices of a transport, in the order of their descriptions.
pub type Create = fn(&[&Description]) -> Result<Vec<Arc<dyn Transport>>>;

/// How a transport is found and made.
pub struct TransportFactory {
    /// Name of its device: `iwarp0`.
    pub device: &'static str,
    /// Whether the device exists when `ADVERB_DEVICE` does not say.
    pub default: bool,
    /// Makes its devices, one for each description, all at once: they may share what is below. Opens no
    /// descriptor, starts no thread, takes no port.
    pub create: Create,
}

/// A device that is made, or its name and why it is missing.
pub type TransportResult = std::result::Result<(Description, Arc<dyn Transport>), (String, Error)>;

/// Makes the transports of the devices of a list ([`crate::description`]), or, without a list, of those that
/// exist by default.
pub fn make(known: &[TransportFactory], list: Option<&str>) -> Vec<TransportResult> {
    let names: Vec<_> = known.iter().map(|factory| factory.device).collect();
    let wanted: Vec<_> = match list {
        Some(list) => description::parse(list, &names),
        None => known.iter().filter(|t| t.default).map(|t| Ok(Description::of(t.device))).collect(),
    };
    let of = |factory: &TransportFactory| -> Result<Vec<Arc<dyn Transport>>> {
        let wanted = wanted.iter().flatten().filter(|wanted| wanted.like == factory.device);
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() { Ok(Vec::new()) } else { (factory.create)(&wanted) }
    };
    let mut made: Vec<_> = known.iter().map(|factory| of(factory).map(Vec::into_iter)).collect();
    let mut take = |wanted: Description| -> TransportResult {
        let of_transport = names.iter().zip(&mut made).find(|(name, _)| **name == wanted.like);
        match of_transport.map(|(_, made)| made) {
            Some(Ok(made)) => match made.next() {
                Some(transport) => Ok((wanted, transport)),
                None => Err((wanted.name, Error::new(libc::ENODEV, "it could not be made"))),
            },
            Some(Err(error)) => Err((wanted.name, Error::new(error.errno(), error.to_string()))),
            None => Err((wanted.name, Error::new(libc::ENODEV, "this build has no such transport"))),
        }
    };
    wanted
        .iter()
        .map(|wanted| match wanted {
            Ok(wanted) => take(wanted.clone()),
            Err(wrong) => Err((wrong.what.clone(), Error::new(libc::ENODEV, wrong.why.clone()))),
        })
        .collect()
}

/// A transport: the part below one device.
pub trait Transport: Send + Sync {
    /// Limits and abilities.
    fn attributes(&self) -> DeviceAttributes;
    /// The port's state and limits.
    fn port(&self) -> PortAttributes;
    /// The GID table.
    fn gids(&self) -> Vec<Gid>;
    /// A number for a new queue pair, random and not in use.
    fn allocate_number(&self, options: &QueuePairOptions) -> Result<u32>;
    /// The number is free again.
    fn release_number(&self, number: u32);
    /// The transport's half of a new queue pair.
    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn Endpoint>>;
    /// The transport's connection management.
    fn connections(&self) -> &dyn ConnectionBackend;
    /// Whether packets can be sent along this path; ports and the GID table have been checked.
    fn check_path(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
    /// A context was opened: from now on [`Device::raise`] has a listener. Called for each; opens no
    /// descriptor and starts no thread unless that alone needs it.
    fn opened(&self, _device: &Arc<Device>) {}
    /// Whether peers of the same host may map memory of this process: memory of the engine's own is made so
    /// that they can.
    fn has_peers_that_map(&self) -> bool {
        false
    }
    /// Notes for a person beside the attributes, in a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// The process exits normally: flush, and tell the peers, in bounded time.
    fn at_exit(&self) {}
}

/// The outcome of a request that [`OneSided`] was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtPost {
    /// The request has succeeded, with so many bytes.
    Done(u32),
    /// The request is to be queued. After a fault some of its bytes may have been copied, and will be once
    /// more.
    No,
    /// The request is to be queued, and the object that was asked is of no use any more.
    Over,
}

/// Carries out Writes and Reads in memory of a queue pair's peer as the program posts them, where this
/// process reaches that memory by itself.
///
/// The send queue has it ([`SendQueue::install`](crate::qp::SendQueue::install)), and forgets it as soon as
/// the program modifies the queue pair.
pub trait OneSided: Send {
    /// Carries out a request, or leaves it. The caller posts with the posts' lock; the queue pair is in RTS,
    /// and everything before the request is complete. No system call, no other lock that is held for long.
    fn carry_out(&mut self, queues: &Queues, request: &SendRequest<'_>) -> AtPost;
}

/// The outcome of [`Endpoint::take_over`] for a request that is about to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Nothing: it is to be queued.
    No,
    /// The request is complete, without a place in the queue: [`Queues::pass_send`] was called.
    Done,
    /// The request is on its way, and has its place:
    /// [`SendQueue::enter_sent`](crate::qp::SendQueue::enter_sent) was called.
    Sent {
        /// Something takes system calls: [`Endpoint::follow_up`] is to be called, once no lock is held.
        follows: bool,
    },
}

/// The transport's half of a queue pair.
pub trait Endpoint: Send + Sync + std::any::Any {
    /// Requests were posted: send those that can be sent without waiting. Any thread, at any time; on the
    /// fast path.
    fn transmit(&self);

    /// The calling thread is about to post. Acknowledgements that are pending by other queue pairs leave
    /// first. No other thread sees the posts yet, and no lock is held.
    #[inline]
    fn before_post(&self) {}

    /// Sends all posted requests, if that can be done at once, or else returns false. The posting thread
    /// calls this when other threads see the posts. After false, the thread calls [`Endpoint::transmit`], or
    /// flushes the posts of a queue pair in error.
    ///
    /// The transport looks for the requests under a lock that a change to RESET or ERROR takes, too. After
    /// such a change it sends nothing here. So a thread that flushes the queues afterwards sees all that was
    /// posted before.
    #[inline]
    fn transmit_at_once(&self) -> bool {
        false
    }

    /// Takes over a request that is about to be queued, if that can be done at once. It sends a short Send,
    /// or carries out a Write or a Read that [`OneSided`] has not. The posting thread has the posts' lock.
    ///
    /// As for [`Endpoint::transmit_at_once`], this is under a lock that is taken also on the way to RESET and
    /// ERROR.
    #[inline]
    fn take_over(&self, _request: &SendRequest<'_>) -> Takeover {
        Takeover::No
    }

    /// Makes the system calls that [`Takeover::Sent`] has asked for. With no lock of the queue pair.
    fn follow_up(&self) {}

    /// The program is about to change or end the queue pair: requests that were posted before and wait to be
    /// gathered leave, as far as there is room.
    fn send_off(&self) {}

    /// The state or attributes change as the state table permits; `attributes` holds the new ones. An error
    /// leaves all as it was.
    ///
    /// The state of the queues is still the old one, with three exceptions. On the way to RESET and ERROR it
    /// is ERROR. On the way to SQD it is SQD already: begin nothing new, and call
    /// [`Queues::send_queue_drained`] now or as soon as nothing is under way. From SQE to RTS it is RTS
    /// already: [`SendQueue::resume_at`](crate::qp::SendQueue::resume_at) says where to go on.
    /// [`Endpoint::transmit`] follows when it is RTS.
    ///
    /// To RESET or ERROR: when this returns, no thread touches the program's memory for the queue pair any
    /// more.
    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()>;

    /// Puts in the values that the endpoint knows better than the program that set them (ibv_query_qp(3)):
    /// the next sequence numbers.
    fn query(&self, _attributes: &mut Attributes) {}

    /// Whether a connection manager alone connects it (iWARP).
    fn is_connected_by_manager(&self) -> bool;

    /// The queue pair is destroyed. When this returns, no thread touches the program's memory for it any
    /// more, or reads or completes what has been posted: the rings may have been the program's memory, too.
    /// Never called from a call-back of the transport.
    fn close(&self);

    /// The queue pair joins a multicast group: datagrams to this GID come to it, too. Called once for each
    /// group.
    fn attach_multicast(&self, _group: &[u8; 16]) -> Result<()> {
        Err(Error::unsupported("the transport has no multicast"))
    }

    /// Takes the queue pair out of a multicast group that it has joined.
    fn detach_multicast(&self, _group: &[u8; 16]) -> Result<()> {
        Err(Error::unsupported("the transport has no multicast"))
    }

    /// Frames that the rule takes come to it from now on; the number says which rule it is.
    fn attach_flow(&self, _rule: FlowRule) -> Result<u64> {
        Err(Error::unsupported("the transport steers no flows"))
    }

    /// A rule ends.
    fn detach_flow(&self, _number: u64) {}

    /// The endpoint itself, for its own transport.
    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
}
